"""How near random search comes to the expert's schedule."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.scoreboard import QuantityRow, Report
from solgym.baselines.budget import Budget
from solgym.baselines.runner import tune
from solgym.hardware.profile import HardwareProfile

SEEDS = range(5)


def test_random_search(
    benchmark: BenchmarkFixture, report: Report, profile: HardwareProfile, quick: bool, tmp_path: Path
) -> None:
    measurements, seeds = (20, range(2)) if quick else (200, SEEDS)

    def search() -> list[float]:
        """Expert time / best time of each seed, both timed in turns when the search has ended."""
        ratios = []
        for seed in seeds:
            result = tune(
                "KernelDSL-GEMM-v0",
                task="gemm/f32/m512n512k512",
                budget=Budget(measurements=measurements),
                seed=seed,
                out=tmp_path / str(seed),
            )
            assert result.best is not None
            assert result.expert is not None
            best, expert = result.best.result, result.expert.result
            assert best.time_s is not None
            assert expert.time_s is not None
            ratios.append(expert.time_s / best.time_s)
        return ratios

    ratios: list[float] = benchmark.pedantic(search, rounds=1)
    benchmark.extra_info["ratios"] = ratios
    report.quantities.append(
        QuantityRow(
            name="random search, GEMM 512",
            value=median(ratios),
            unit="x expert",
            limit=0.85,
            sense="at least",
            detail=f"{measurements} measurements, seeds: {', '.join(f'{ratio:.2f}' for ratio in ratios)}",
        )
    )
