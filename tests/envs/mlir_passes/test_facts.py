import numpy as np
import pytest
from torch_mlir import ir

from solgym.envs.mlir_passes.affine_loops import affine_loops, may_tile
from solgym.envs.mlir_passes.catalogue import ACTION_INDEX, ACTIONS
from solgym.envs.mlir_passes.facts import MAX_OPERATIONS, facts_of, level_of, mask_of, refusal
from solgym.envs.mlir_passes.structured import linalg_operations
from tests.envs.mlir_passes.running import apply_all

CONTEXT = ir.Context()
CONTEXT.enable_multithreading(False)


def matmul(m: int, n: int, k: int) -> str:
    return f"""
func.func @main(%A: memref<{m}x{k}xf32>, %B: memref<{k}x{n}xf32>, %C: memref<{m}x{n}xf32>) {{
  %a = bufferization.to_tensor %A restrict : memref<{m}x{k}xf32> to tensor<{m}x{k}xf32>
  %b = bufferization.to_tensor %B restrict : memref<{k}x{n}xf32> to tensor<{k}x{n}xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{m}x{n}xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %c = linalg.matmul ins(%a, %b : tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>)
    outs(%start : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  bufferization.materialize_in_destination %c in restrict writable %C
    : (tensor<{m}x{n}xf32>, memref<{m}x{n}xf32>) -> ()
  return
}}
"""


MATMUL = matmul(20, 24, 12)


def loops(body: str) -> str:
    return f"func.func @main(%A: memref<64x64xf32>, %B: memref<64x64xf32>) {{\n{body}\n  return\n}}"


def copy(lower: int, upper: int, step: int = 1) -> str:
    return loops(f"""
      affine.for %i = 0 to 64 {{
        affine.for %j = {lower} to {upper} step {step} {{
          %x = affine.load %A[%i, %j] : memref<64x64xf32>
          affine.store %x, %B[%i, %j] : memref<64x64xf32>
        }}
      }}""")


IN_PLACE = loops("""
  affine.for %i = 1 to 63 {
    affine.for %j = 1 to 63 {
      %x = affine.load %A[%i - 1, %j] : memref<64x64xf32>
      %y = affine.load %A[%i, %j + 1] : memref<64x64xf32>
      %z = arith.addf %x, %y : f32
      affine.store %z, %A[%i, %j] : memref<64x64xf32>
    }
  }""")

# A buffer is read in one nest and overwritten in the next, as in doitgen and in stencils over time.
READ_THEN_OVERWRITTEN = loops("""
  affine.for %t = 0 to 4 {
    affine.for %i = 0 to 64 {
      %x = affine.load %A[%t, 63 - %i] : memref<64x64xf32>
      affine.store %x, %B[%t, %i] : memref<64x64xf32>
    }
    affine.for %i = 0 to 64 {
      %x = affine.load %B[%t, %i] : memref<64x64xf32>
      affine.store %x, %A[%t, %i] : memref<64x64xf32>
    }
  }""")


def parsed(text: str) -> ir.Operation:
    with CONTEXT, ir.Location.unknown():
        return ir.Module.parse(text).operation


def after(text: str, *actions: str) -> ir.Operation:
    module = parsed(text)
    apply_all(module, actions)
    return module


def refused(module: ir.Operation, name: str) -> str | None:
    return refusal(ACTIONS[ACTION_INDEX[name]], facts_of(module))


@pytest.mark.parametrize(
    ("actions", "level"),
    [
        ((), "tensor"),
        (("bufferize",), "linalg"),
        (("bufferize", "linalg-to-affine"), "affine"),
        (("bufferize", "linalg-to-scf"), "scf"),
        (("bufferize", "linalg-to-affine", "affine-lower"), "scf"),
    ],
)
def test_the_level_is_the_highest_that_remains(actions, level):
    assert level_of(facts_of(after(MATMUL, *actions))) == level


def test_linalg_operations_are_sorted_by_their_maps():
    fill, product = linalg_operations(parsed(MATMUL))
    assert (fill.kind, product.kind) == ("fill", "contraction")
    assert product.extents == (20, 24, 12)
    assert (product.m, product.n, product.reduction) == (0, 1, (2,))
    assert product.points == 20 * 24 * 12


def test_a_convolution_has_its_rows_in_the_input_and_its_columns_in_the_filter():
    module = parsed("""
      func.func @main(%X: memref<1x10x12x3xf32>, %W: memref<3x3x3x8xf32>, %Y: memref<1x8x10x8xf32>) {
        linalg.conv_2d_nhwc_hwcf ins(%X, %W : memref<1x10x12x3xf32>, memref<3x3x3x8xf32>)
          outs(%Y : memref<1x8x10x8xf32>)
        return
      }""")
    (found,) = linalg_operations(module)
    assert found.kind == "convolution"
    assert found.extents == (1, 8, 10, 8, 3, 3, 3)
    assert (found.m, found.n) == (2, 3)  # ow and the output channel


def test_the_mask_says_what_refusals_say():
    for actions in ((), ("bufferize",), ("bufferize", "linalg-to-affine"), ("tile-contraction-m8-n8-k1",)):
        module = after(MATMUL, *actions)
        mask = mask_of(facts_of(module))
        assert (mask.dtype, mask.shape) == (np.bool_, (len(ACTIONS),))
        assert list(mask) == [refused(module, action.name) is None for action in ACTIONS]


def test_finish_is_always_offered_and_clean_ups_nearly_always():
    mask = mask_of(facts_of(parsed("func.func @main() { return }")))
    assert list(mask[[0, ACTION_INDEX["canonicalize"]]]) == [True, True]


def test_tensors_come_before_buffers():
    module = parsed(MATMUL)
    assert refused(module, "bufferize") is None
    assert "bufferize first" in refused(module, "linalg-to-affine")
    assert "bufferize first" in refused(module, "raise-to-affine")


def test_only_generic_operations_are_interchanged():
    assert "generalize" in refused(parsed(MATMUL), "interchange-reduction-first")
    assert refused(after(MATMUL, "generalize"), "interchange-reduction-first") is None


def test_large_operations_are_tiled_before_they_become_vectors():
    text = matmul(200, 240, 120)
    assert "tile first" in refused(parsed(text), "vectorize")
    assert refused(after(text, "tile-contraction-m8-n8-k1"), "vectorize") is None


@pytest.mark.parametrize(
    ("bounds", "allowed"),
    [
        ((0, 64), {4, 8, 16, 32, 64}),
        ((1, 57), {4, 8}),  # 56 steps
        ((0, 63), set()),
        ((0, 64, 4), set()),  # unrolled: 16 steps of four
    ],
)
def test_affine_loops_are_vectorised_only_in_whole_steps_of_one(bounds, allowed):
    module = parsed(copy(*bounds))
    offered = {width for width in (4, 8, 16, 32, 64) if refused(module, f"affine-vectorize-{width}") is None}
    assert offered == allowed


def test_an_unrolled_loop_is_not_vectorised():
    assert refused(after(copy(0, 64), "affine-unroll-4"), "affine-vectorize-16") is not None


def test_a_triangular_loop_is_not_vectorised():
    text = loops("""
      affine.for %i = 0 to 64 {
        affine.for %j = 0 to affine_map<(i) -> (i + 1)>(%i) {
          %x = affine.load %A[%i, %j] : memref<64x64xf32>
          affine.store %x, %B[%i, %j] : memref<64x64xf32>
        }
      }""")
    assert refused(parsed(text), "affine-vectorize-8") is not None
    assert refused(parsed(text), "affine-coalesce") is not None


@pytest.mark.parametrize("subscript", ["%j * 2", "31 - %j", "%j floordiv 2"])
def test_a_loop_with_a_stride_is_not_vectorised(subscript):
    text = copy(0, 32).replace("%x = affine.load %A[%i, %j]", f"%x = affine.load %A[%i, {subscript}]")
    assert refused(parsed(text), "affine-vectorize-8") is not None


def test_nothing_is_fused_or_vectorised_after_loops_were_joined():
    module = after(copy(0, 64), "affine-coalesce")
    assert "known to misread" in refused(module, "affine-tile-32")
    assert refused(module, "affine-vectorize-8") is not None


def test_a_tiled_loop_is_vectorised_within_its_tiles():
    assert refused(after(copy(0, 64), "affine-tile-32"), "affine-vectorize-32") is None
    assert refused(after(copy(0, 64), "affine-tile-32"), "affine-vectorize-64") is not None


def test_nothing_is_fused_where_memory_is_read_and_then_overwritten():
    module = parsed(READ_THEN_OVERWRITTEN)
    for name in ("affine-fuse", "affine-fuse-maximal", "affine-fuse-producers"):
        assert "read before" in refused(module, name)


def test_nothing_is_fused_after_vectorisation():
    text = loops(
        copy(0, 64).split("{", 1)[1].rsplit("return", 1)[0]
        + """
      affine.for %i = 0 to 64 {
        affine.for %j = 0 to 64 {
          %x = affine.load %B[%i, %j] : memref<64x64xf32>
          %y = arith.addf %x, %x : f32
          affine.store %y, %B[%i, %j] : memref<64x64xf32>
        }
      }"""
    )
    assert refused(parsed(text), "affine-fuse-maximal") is None
    assert refused(after(text, "affine-vectorize-16"), "affine-fuse-maximal") is not None


def test_loops_that_store_where_other_steps_read_are_not_parallel():
    assert [loop.is_parallel for loop in affine_loops(parsed(IN_PLACE))] == [False, False]
    assert [loop.is_parallel for loop in affine_loops(parsed(copy(0, 64)))] == [True, True]
    assert not may_tile(affine_loops(parsed(IN_PLACE)))
    assert refused(parsed(IN_PLACE), "affine-tile-32") is not None
    assert refused(parsed(IN_PLACE), "affine-unroll-jam-rows-4") is not None


def test_a_sum_is_parallel_in_the_loops_of_its_result():
    module = after(MATMUL, "eliminate-empty-tensors", "bufferize", "linalg-to-affine")
    assert [loop.is_parallel for loop in affine_loops(module)] == [True, True, True, True, False]
    assert [loop.trips for loop in affine_loops(module)] == [20, 24, 20, 24, 12]


def test_values_that_are_handed_on_are_not_unrolled():
    text = loops("""
      %zero = arith.constant 0.0 : f32
      affine.for %i = 0 to 64 {
        %last:2 = affine.for %j = 0 to 64 iter_args(%x = %zero, %y = %zero) -> (f32, f32) {
          %z = affine.load %A[%i, %j] : memref<64x64xf32>
          %s = arith.addf %z, %y : f32
          affine.store %s, %B[%i, %j] : memref<64x64xf32>
          affine.yield %s, %x : f32, f32
        }
      }""")
    assert "hands a carried value on" in refused(parsed(text), "affine-unroll-2")


def test_empty_tensors_stay_where_an_argument_is_read_and_overwritten():
    text = matmul(12, 12, 12)
    assert refused(parsed(text), "eliminate-empty-tensors") is None
    overwriting = text.replace("writable %C", "writable %A")
    assert refused(parsed(overwriting), "eliminate-empty-tensors") is not None


def test_a_module_at_the_size_limit_takes_no_action_but_finish():
    body = "\n".join("  %a" + str(i) + " = arith.constant 1.0 : f32" for i in range(MAX_OPERATIONS))
    facts = facts_of(parsed("func.func @main() {\n" + body + "\n  return\n}"))
    assert list(np.flatnonzero(mask_of(facts))) == [0]


def test_unrolling_stops_before_the_size_limit():
    body = "\n".join(f"%v{i} = arith.addf %x, %x : f32" for i in range(3 * MAX_OPERATIONS // 8))
    text = loops(f"""
      affine.for %i = 0 to 64 {{
        %x = affine.load %A[%i, %i] : memref<64x64xf32>
        {body}
      }}""")
    assert refused(parsed(text), "affine-unroll-2") is None
    assert "copies" in refused(parsed(text), "affine-unroll-4")
