"""Every primitive: what it changes, that the result stays right on ragged shapes, and what it refuses."""

import dataclasses

import pytest

from solgym.envs.kernel_dsl.nest import LoopKind
from solgym.envs.kernel_dsl.primitives import PRIMITIVES, apply_step
from solgym.errors import IllegalSchedule, InvalidSchedule
from solgym.hardware.target import cpu_spec
from tests.envs.kernel_dsl.running import assert_right, nest_of, step

GEMM = "gemm/f32/m13n37k11"
REGISTER_TILE = (
    step("split", "C", loop="i", factor=4),
    step("split", "C", loop="j", factor=32),
    step("split", "C", loop="j.i", factor=16),
    step("reorder", "C", loops=["j.o", "i.o", "k", "i.i", "j.i.o", "j.i.i"]),
    step("unroll", "C", loop="i.i"),
    step("unroll", "C", loop="j.i.o"),
    step("vectorize", "C", loop="j.i.i", lanes=16),
    step("accumulate", "C", loop="k"),
)
SOFTMAX = "softmax/f32/rows5cols37"

RIGHT = {
    "untouched": (GEMM,),
    "split": (GEMM, step("split", "C", loop="i", factor=5), step("split", "C", loop="i.i", factor=2)),
    "split of an outer loop again": (
        GEMM, step("split", "C", loop="j", factor=5), step("split", "C", loop="j.o", factor=3),
    ),
    "reorder": (GEMM, step("reorder", "C", loops=["k", "j", "i"])),
    "unroll": (GEMM, step("split", "C", loop="k", factor=4), step("unroll", "C", loop="k.i")),
    "vectorize": (GEMM, step("reorder", "C", loops=["k", "j"]), step("vectorize", "C", loop="j", lanes=16)),
    "vectorize across rows": (
        GEMM, step("reorder", "C", loops=["j", "k", "i"]), step("vectorize", "C", loop="i", lanes=8),
    ),
    "vectorize a reduction": (
        GEMM, step("accumulate", "C", loop="k"), step("vectorize", "C", loop="k", lanes=4),
    ),
    "parallel on one thread": (GEMM, step("parallel", "C", loop="i")),
    "fuse two axes": (GEMM, step("split", "C", loop="j", factor=8), step("fuse", "C", loop="i")),
    "fuse axes of one trip": (
        "gemm/f32/m1n37k11", step("split", "C", loop="j", factor=8), step("fuse", "C", loop="i"),
    ),
    "fuse one axis": (GEMM, step("split", "C", loop="j", factor=8), step("fuse", "C", loop="j.o")),
    "accumulate": (GEMM, step("accumulate", "C", loop="k")),
    "accumulate inside an outer reduction": (
        GEMM, step("split", "C", loop="k", factor=4), step("reorder", "C", loops=["k.o", "i", "j"]),
        step("accumulate", "C", loop="k.i"),
    ),
    "register tile": (GEMM, *REGISTER_TILE),
    "split_reduction": (
        GEMM, step("accumulate", "C", loop="k"), step("split_reduction", "C", loop="k", factor=3),
    ),
    "cache_read of a panel": (GEMM, *REGISTER_TILE, step("cache_read", "C", tensor="B", loop="j.o")),
    "cache_read of everything": (GEMM, *REGISTER_TILE, step("cache_read", "C", tensor="A")),
    "cache_read with padding": ("conv2d/f32/n1h5w7ci3co5r3s3", step("cache_read", "Y", tensor="X", loop="y")),
    "cache_read of a stencil": (
        "stencil2d/f32/points5h9w21",
        step("split", "Y", loop="j", factor=8), step("cache_read", "Y", tensor="X", loop="i"),
    ),
    "compute_at": (SOFTMAX, *(step("compute_at", s, at="Y", loop="i") for s in ("s", "e", "m"))),
    "prefetch": (GEMM, step("prefetch", "C", tensor="B", loop="k", distance=4)),
    "transpose": (
        "transpose/f32/rows21cols35",
        step("split", "Y", loop="j", factor=8), step("split", "Y", loop="i", factor=8),
        step("reorder", "Y", loops=["j.o", "i.o", "j.i", "i.i"]),
        step("unroll", "Y", loop="j.i"), step("vectorize", "Y", loop="i.i", lanes=8),
        step("transpose", "Y", tensor="X"),
    ),
    "slide": (
        "stencil2d/f32/points9h5w70",
        step("split", "Y", loop="j", factor=32), step("split", "Y", loop="j.i", factor=16),
        step("unroll", "Y", loop="j.i.o"), step("vectorize", "Y", loop="j.i.i", lanes=16),
        step("slide", "Y", tensor="X"),
    ),
    "stream": (
        "elementwise/f32/rows7cols96", step("vectorize", "Y", loop="j", lanes=16), step("stream", "Y"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_result_is_right(name: str) -> None:
    task_id, *steps = RIGHT[name]
    assert_right(task_id, *steps)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_transposing_works_for_every_vector_length(dtype: str, lanes: int) -> None:
    assert_right(
        f"transpose/{dtype}/rows{2 * lanes + 1}cols{3 * lanes - 1}",
        step("split", "Y", loop="j", factor=lanes),
        step("split", "Y", loop="i", factor=lanes),
        step("reorder", "Y", loops=["j.o", "i.o", "j.i", "i.i"]),
        step("unroll", "Y", loop="j.i"),
        step("vectorize", "Y", loop="i.i", lanes=lanes),
        step("transpose", "Y", tensor="X"),
    )


@pytest.mark.parametrize(("threads", "rows"), [(2, 1), (2, 2), (2, 5), (2, 13), (3, 2)])
def test_parallel_loops_work_whatever_the_trips(threads: int, rows: int) -> None:
    assert_right(f"gemm/f32/m{rows}n20k9", step("parallel", "C", loop="i"), threads=threads)


def test_parallel_loops_may_be_fused_and_hold_private_buffers() -> None:
    assert_right(
        GEMM,
        step("split", "C", loop="i", factor=4),
        step("split", "C", loop="j", factor=10),
        step("reorder", "C", loops=["i.o", "j.o", "i.i"]),
        step("fuse", "C", loop="i.o"),
        step("parallel", "C", loop="i.o+j.o"),
        step("cache_read", "C", tensor="B", loop="i.o+j.o"),
        threads=2,
    )


REFUSED = {
    "split beyond the loop": (step("split", "C", loop="i", factor=13), "from 2 to 12"),
    "split of an unknown loop": (step("split", "C", loop="z", factor=2), "no loop 'z'"),
    "split of an unknown stage": (step("split", "D", loop="i", factor=2), "no stage 'D'"),
    "reorder to the same": (step("reorder", "C", loops=["i", "j"]), "already"),
    "reorder of one": (step("reorder", "C", loops=["i"]), "two or more"),
    "vectorise outside": (step("vectorize", "C", loop="i", lanes=8), "not innermost"),
    "vectorise a reduction": (step("vectorize", "C", loop="k", lanes=8), "accumulate"),
    "too many lanes": (step("vectorize", "C", loop="k", lanes=32), "power of two"),
    "lanes not a power of two": (step("vectorize", "C", loop="k", lanes=6), "power of two"),
    "parallel reduction": (step("parallel", "C", loop="k"), "reduction"),
    "parallel inside": (step("parallel", "C", loop="j"), "not outermost"),
    "fuse the innermost": (step("fuse", "C", loop="k"), "innermost"),
    "fuse a reduction with a spatial loop": (step("fuse", "C", loop="j"), "reduction"),
    "bind on a CPU": (step("bind", "C", loop="i", to="block_x"), "no block_x"),
    "accumulate around spatial loops": (step("accumulate", "C", loop="i"), "unroll or vectorise"),
    "partial sums without registers": (step("split_reduction", "C", loop="k", factor=2), "accumulate"),
    "partial sums of a spatial loop": (step("split_reduction", "C", loop="i", factor=2), "spatial"),
    "compute an output elsewhere": (step("compute_at", "C", at="C", loop="i"), "output"),
    "pack what is not read": (step("cache_read", "C", tensor="C"), "does not read"),
    "shared memory on a CPU": (step("cache_read", "C", tensor="A", scope="shared"), "no shared"),
    "prefetch what does not move": (
        step("prefetch", "C", tensor="A", loop="j", distance=2),
        "does not change",
    ),
    "prefetch too far": (step("prefetch", "C", tensor="A", loop="k", distance=65), "1 to 64"),
    "transpose without a square": (step("transpose", "C", tensor="A"), "vector loop across"),
    "slide without overlap": (step("slide", "C", tensor="B"), "loads that overlap"),
    "stream without vectors": (step("stream", "C"), "vector loop along"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_says_why(name: str) -> None:
    refused, reason = REFUSED[name]
    nest = nest_of(GEMM)
    with pytest.raises(IllegalSchedule, match=reason):
        apply_step(nest, refused, cpu_spec())
    assert str(nest) == str(nest_of(GEMM)), "a refused primitive must leave the nest as it was"


def test_stages_read_elsewhere_do_not_move() -> None:
    with pytest.raises(IllegalSchedule, match="reads e outside loop"):
        nest_of(SOFTMAX, step("compute_at", "e", at="Y", loop="i"))


def test_tiles_of_packed_buffers_are_not_cut() -> None:
    with pytest.raises(IllegalSchedule, match="steps by 20, which cuts tiles of 16"):
        nest_of(
            "gemm/f32/m13n99k11",
            step("split", "C", loop="j", factor=20),
            step("reorder", "C", loops=["j.o", "k", "j.i"]),
            step("vectorize", "C", loop="j.i", lanes=16),
            step("cache_read", "C", tensor="B"),
        )


def test_attached_stages_start_at_tiles_of_what_they_read() -> None:
    """Found by fuzzing: 2 rows of a buffer stored in tiles of 6 rows were read from the wrong place."""
    with pytest.raises(IllegalSchedule, match="do not start at tiles of 6"):
        nest_of(
            "gemm_bias_gelu/f32/m18n68k8",
            step("split", "acc", loop="i", factor=6),
            step("reorder", "acc", loops=["i.o", "k", "i.i", "j"]),
            step("unroll", "acc", loop="i.i"),
            step("split", "out", loop="i", factor=2),
            step("compute_at", "acc", at="out", loop="i.o"),
            step("cache_read", "acc", tensor="A"),
        )


def test_targets_decide_what_is_possible() -> None:
    device = dataclasses.replace(
        cpu_spec(),
        name="cuda",
        loop_kinds=frozenset({"serial", "unrolled", "block_x", "thread_x"}),
        scopes=frozenset({"global", "shared", "register"}),
    )
    nest = nest_of(
        GEMM,
        step("split", "C", loop="i", factor=4),
        step("bind", "C", loop="i.o", to="block_x"),
        step("bind", "C", loop="i.i", to="thread_x"),
        step("cache_read", "C", tensor="B", scope="shared"),
        spec=device,
    )
    assert [loop.kind for loop in nest.by_name["C"].loops[:2]] == [LoopKind.BLOCK_X, LoopKind.THREAD_X]
    with pytest.raises(IllegalSchedule, match="no vector loops"):
        apply_step(nest, step("vectorize", "C", loop="k", lanes=4), device)


@pytest.mark.parametrize(
    "malformed",
    [
        {"op": "melt", "stage": "C"},
        {"stage": "C"},
        {"op": "split", "stage": "C", "loop": "i"},
        {"op": "split", "stage": "C", "loop": "i", "factor": "4"},
        {"op": "split", "stage": "C", "loop": "i", "factor": True},
        {"op": "split", "stage": "C", "loop": "i", "factor": 4, "extra": 1},
        {"op": "reorder", "stage": "C", "loops": "ij"},
        {"op": "split", "stage": "C", "loop": "i", "factor": 10**5000},
        {"op": "vectorize", "stage": "C", "loop": "k", "lanes": 1 << 20_000},
        {"op": "unroll", "stage": "C", "loop": "i" * 10_000_000},
        3,
    ],
    ids=range(11),
)
def test_malformed_steps_are_misuse(malformed: dict[str, object]) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        apply_step(nest_of(GEMM), malformed, cpu_spec())
    assert len(str(caught.value)) < 300


def test_every_primitive_is_documented_and_tested() -> None:
    used = {str(one["op"]) for _, *steps in RIGHT.values() for one in steps} | {"bind"}
    assert used == set(PRIMITIVES)
    assert all(entry.summary for entry in PRIMITIVES.values())
