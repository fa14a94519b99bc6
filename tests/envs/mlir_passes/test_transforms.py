import pytest
from torch_mlir import ir

from solgym.envs.mlir_passes.apply import apply_action
from solgym.envs.mlir_passes.catalogue import ACTION_INDEX, ACTIONS
from solgym.envs.mlir_passes.programs.task import parse_task
from tests.envs.mlir_passes.running import apply_all, run

REGISTER_TILES = "tile-contraction-m8-n32-k1 tile-fill-r8-c32 vectorize"
INTO_REGISTERS = "licm hoist-subsets hoist-subsets eliminate-empty-tensors bufferize fold-aliases"
REGISTER_LOOPS = "tile-contraction-m8-n32-k1 generalize fold-unit-dimensions-by-slices"
LOWERED = "hoist-transfers lower-contractions-outer transfers-to-scf-unrolled canonicalize cse"


@pytest.mark.parametrize(
    ("task", "actions"),
    [
        ("gemm/f32/m64n64k64", f"tile-contraction-k64 {REGISTER_TILES} {INTO_REGISTERS} {LOWERED}"),
        ("gemm/f32/m37n45k19", f"{REGISTER_TILES} {INTO_REGISTERS} {LOWERED}"),
        ("gemm/f32/m37n45k19", "pad-contraction-m8-n16 tile-contraction-m8-n16-k1 vectorize bufferize"),
        ("gemm/f32/m37n45k19", "fuse-8x16 tile-contraction-k64 vectorize bufferize lower-contractions-dot"),
        ("gemm/f32/m37n45k19", "generalize interchange-reduction-first bufferize linalg-to-affine"),
        ("gemm/f64/m24n20k9", f"{REGISTER_TILES} {INTO_REGISTERS} {LOWERED}"),
        ("gemm/f32/m1n1k1", f"{REGISTER_TILES} {INTO_REGISTERS} {LOWERED}"),
        ("gemm/f32/m40n36k20", "pack-matmul-16 lower-packs vectorize bufferize"),
        ("batch_matmul/f32/b3m9n17k5", f"{REGISTER_TILES} {INTO_REGISTERS} {LOWERED}"),
        ("gemv/f32/m21n64", f"tile-reduction-r8 reduce-in-16-lanes vectorize {INTO_REGISTERS} {LOWERED}"),
        ("gemv_transposed/f32/m21n50", f"tile-reduction-r8-c16 vectorize {INTO_REGISTERS} {LOWERED}"),
        ("transpose/f32/m35n50", "tile-elementwise-r16-c16 vectorize bufferize permute-transfers "
         "lower-transposes-shuffle-16x16 transfers-to-scf-unrolled"),
        ("softmax/f32/m19n64", "fuse-elementwise approximate-math fuse-rows-8 reduce-in-16-lanes "
         "tile-elementwise-r1-c16 vectorize bufferize lower-reductions-inner-parallel"),
        ("layernorm/f32/m19n40", "fuse-rows-8 tile-elementwise-r1-c16 vectorize bufferize"),
        ("conv2d_nhwc/f32/n1h9w11f33c3", f"{REGISTER_TILES.replace(' vectorize', '')} generalize "
         f"fold-unit-dimensions-by-slices vectorize fold-tensor-subsets {INTO_REGISTERS} {LOWERED}"),
        ("conv2d_nhwc/f32/n1h9w11f33c3", "tile-contraction-m8-n16-k1 decompose-convolution vectorize"),
        ("conv2d_nhwc/f32/n1h9w11f33c3", "convolution-to-matmul bufferize"),
        ("box_blur/f32/h19w70", "fuse-elementwise fuse-8x64 bufferize stack-buffers-64k"),
        ("jacobi_2d/f32/steps3n34", "affine-vectorize-16 affine-unroll-jam-rows-4"),
    ],
)  # fmt: skip
def test_transformed_programs_still_compute_the_same(task, actions):
    assert run(task, actions.split()).status == "ok"


@pytest.mark.parametrize(
    ("task", "actions"),
    [
        ("gemm/f32/m256n256k256", f"{REGISTER_LOOPS} vectorize"),
        ("gemm/f32/m256n256k256", f"{REGISTER_LOOPS} vectorize fold-tensor-subsets bufferize"),
        ("doitgen/f32/nr32nq32np96", f"fuse-elementwise {REGISTER_LOOPS} vectorize"),
    ],
)
def test_vectors_of_higher_rank_in_loops_do_not_fill_the_stack(task, actions):
    # What they are kept in while they are split was on the stack anew in each of 65,536 iterations.
    assert run(task, actions.split()).status == "ok"


def text_after(task: str, *actions: str) -> str:
    context = ir.Context()
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        module = ir.Module.parse(parse_task(task).module_text).operation
        apply_all(module, actions)
        return str(module)


def test_ragged_ends_are_split_off_so_that_all_shapes_stay_static():
    text = text_after("gemm/f32/m37n45k19", "tile-contraction-m8-n32-k1")
    assert not any(mark in text for mark in ("?", "affine.min"))
    # 37 rows are four tiles of 8 and 5 more; 45 columns one of 32 and 13 more.
    for shape in ("tensor<8x32xf32>", "tensor<5x32xf32>", "tensor<8x13xf32>", "tensor<5x13xf32>"):
        assert f"-> {shape}" in text


def test_a_tile_that_names_m_n_and_k_takes_one_step_of_batch_and_window():
    text = text_after("conv2d_nhwc/f32/n2h16w16f32c8", "tile-contraction-m8-n32-k1")
    assert "tensor<1x1x8x1xf32>, tensor<1x1x1x32xf32>" in text


def test_the_last_operation_takes_its_producers_into_its_tiles():
    text = text_after("softmax/f32/m16n32", "fuse-rows-8")
    loop = text[text.index("scf.for") :]
    assert text[: text.index("scf.for")].count("linalg.") == 0
    assert loop.count("linalg.reduce") == 2
    assert "tensor<8x32xf32>" in loop


def test_lanes_keep_partial_results_of_their_own():
    text = text_after("gemv/f32/m16n64", "reduce-in-16-lanes")
    assert "tensor<16x16xf32>" in text


def test_scripts_leave_no_mark_behind():
    for action in ACTIONS:
        if action.transform and not action.transform.startswith(("approximate", "lower-packs")):
            context = ir.Context()
            context.enable_multithreading(False)
            with context, ir.Location.unknown():
                module = ir.Module.parse(parse_task("gemm/f32/m20n20k20").module_text).operation
                apply_action(module, ACTIONS[ACTION_INDEX[action.name]])
                assert "solgym" not in str(module)


def test_equal_modules_and_actions_give_equal_text():
    actions = [*REGISTER_TILES.split(), *INTO_REGISTERS.split(), *LOWERED.split()]
    assert text_after("gemm/f32/m37n45k19", *actions) == text_after("gemm/f32/m37n45k19", *actions)


def test_rows_are_unrolled_and_joined_only_where_that_is_safe():
    joined = text_after("jacobi_2d/f32/steps2n34", "affine-unroll-jam-rows-4")
    assert joined.count("step 4") == 2
    in_place = text_after("seidel_2d/f32/steps2n34", "affine-unroll-jam-rows-4")
    assert "step 4" not in in_place
