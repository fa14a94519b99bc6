"""Expert schedules against numpy, torch and the speed of light."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.comparison import Bench, Comparison
from benchmarks.scoreboard import Report, SpeedRow

SQUARE = tuple(f"gemm/f32/m{n}n{n}k{n}" for n in (512, 1024, 2048))
RAGGED = tuple(
    f"gemm/f32/m{m}n{n}k{k}"
    for m, n, k in ((500, 500, 500), (1000, 1000, 1000), (1023, 1023, 1023), (127, 3072, 768))
)
# The default task of each, which the last-level cache holds, and one that only main memory does.
STREAMING = {
    "gemv": ("gemv/f32/m2048n2048", "gemv/f32/m4096n8192"),
    "reduction": ("reduction/f32/rows1024cols2048", "reduction/f32/rows4096cols8192"),
    "elementwise": ("elementwise/f32/rows1024cols1024", "elementwise/f32/rows3072cols4096"),
    "stencil2d": ("stencil2d/f32/points5h1024w1024", "stencil2d/f32/points5h4096w4096"),
}

Compare = Callable[..., list[Comparison]]


@pytest.fixture
def compare(bench: Bench, benchmark: BenchmarkFixture) -> Compare:
    """``bench.compare`` for one or more tasks, as one benchmark."""

    def run(*tasks: str, threads: int = 1) -> list[Comparison]:
        comparisons: list[Comparison] = benchmark.pedantic(
            lambda: [bench.compare(task, threads) for task in tasks], rounds=1
        )
        for comparison in comparisons:
            benchmark.extra_info[comparison.task] = comparison.row(comparison.task).model_dump()
        return comparisons

    return run


def geometric_mean(name: str, rows: list[SpeedRow], target: float) -> SpeedRow:
    """The row that sums up several."""

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return math.exp(sum(map(math.log, known)) / len(known)) if len(known) == len(rows) else None

    return SpeedRow(
        name=name,
        task=f"geometric mean of {len(rows)}",
        threads=rows[0].threads,
        peer="fastest of each" if rows[0].peer else None,
        ratio=mean([row.ratio for row in rows]),
        ratio_low=mean([row.ratio_low for row in rows]),
        ratio_high=mean([row.ratio_high for row in rows]),
        ratio_target=target,
        sol_fraction=mean([row.sol_fraction for row in rows]),
        summary=True,
    )


@pytest.mark.parametrize(
    ("name", "tasks", "threads", "target"),
    [
        pytest.param("GEMM, 1 thread", SQUARE, 1, 1.0, id="gemm-square"),
        pytest.param("GEMM, 2 threads", SQUARE, 2, 0.95, id="gemm-square-2-threads"),
        pytest.param("GEMM, ragged", RAGGED, 1, 0.95, id="gemm-ragged"),
    ],
)
def test_gemm(
    name: str, tasks: tuple[str, ...], threads: int, target: float, compare: Compare, report: Report
) -> None:
    if threads > len(os.sched_getaffinity(0)):
        pytest.skip(f"needs {threads} cores")
    rows = [comparison.row(name) for comparison in compare(*tasks, threads=threads)]
    report.speed += [*rows, geometric_mean(name, rows, target)]


def test_convolution(compare: Compare, report: Report) -> None:
    (comparison,) = compare("conv2d/f32/n1h56w56ci64co64r3s3")
    report.speed.append(comparison.row("Conv2d", ratio_target=1.0, sol_target=0.85))


@pytest.mark.parametrize(("name", "kernel"), [("Softmax", "softmax"), ("LayerNorm", "layernorm")])
def test_rows(name: str, kernel: str, compare: Compare, report: Report) -> None:
    (comparison,) = compare(f"{kernel}/f32/rows512cols1024")
    report.speed += [
        comparison.row(f"{name} / torch", library="torch", ratio_target=1.5, sol_target=0.4),
        comparison.row(f"{name} / numpy", library="numpy", ratio_target=2.5),
    ]


@pytest.mark.parametrize("kernel", STREAMING)
def test_streaming(kernel: str, compare: Compare, report: Report) -> None:
    for comparison, where in zip(compare(*STREAMING[kernel]), ("L3", "DRAM"), strict=True):
        target = 1.0 if kernel == "gemv" else None
        report.speed.append(
            comparison.row(f"{kernel.capitalize()}, {where}", ratio_target=target, sol_target=0.8)
        )


def test_transpose(compare: Compare, report: Report) -> None:
    (comparison,) = compare("transpose/f32/rows2048cols2048")
    report.speed.append(comparison.row("Transpose", ratio_target=2.0, sol_target=0.4))


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("Attention", "attention/f32/seq512dim64"),
        ("GEMMBiasGELU", "gemm_bias_gelu/f32/m512n512k512"),
        ("MLP", "mlp/f32/batch128in256hidden1024out256"),
    ],
)
def test_fused(name: str, task: str, compare: Compare, report: Report) -> None:
    (comparison,) = compare(task)
    report.speed.append(comparison.row(name, ratio_target=1.0))
