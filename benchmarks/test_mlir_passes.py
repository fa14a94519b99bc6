"""What the pass environments reach and cost: shipped sequences against the plain pipeline, and the rates of
steps."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from statistics import median

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.comparison import Bench
from benchmarks.scoreboard import QuantityRow, Report, SpeedRow
from solgym.envs.mlir_passes.client import PassWorker
from solgym.envs.mlir_passes.env import MLIRPassesEnv
from solgym.envs.mlir_passes.experts import applicable, known_sequence, overall_sequence
from solgym.envs.mlir_passes.programs import PROGRAMS, ProgramTask, parse_task
from solgym.envs.mlir_passes.sequence import PassSequence
from solgym.hardware.measurement import MeasurePolicy, Status
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.speed_of_light import sol_fraction, speed_of_light
from solgym.hardware.target import Artifact, CpuTarget

SEED = 0
TURNS = MeasurePolicy(max_seconds=0.3, unstable_ci=1e6, timeout_s=30.0)


def expert(task: ProgramTask) -> PassSequence:
    return PassSequence(task.id, applicable(task, known_sequence(task.id)))


def test_gemm_against_openblas(benchmark: BenchmarkFixture, report: Report, bench: Bench) -> None:
    task = parse_task("gemm/f32/m512n512k512")
    comparison = benchmark.pedantic(bench.compare, args=(task.id, 1, (task, expert(task))), rounds=1)
    report.speed.append(comparison.row("MLIR passes, GEMM 512", library="numpy", ratio_target=0.95))


def against_plain(task: ProgramTask, sequences: Sequence[PassSequence]) -> list[float]:
    """Times of the plain pipeline and of sequences, taken in turns; infinite where a sequence fails."""
    with closing(CpuTarget()) as target:
        made = [target.compile(candidate, task) for candidate in (PassSequence(task.id), *sequences)]
        artifacts = [item for item in made if isinstance(item, Artifact)]
        timed = iter(target.measure_in_turns(artifacts, task, TURNS, SEED))
        results = [next(timed) if isinstance(item, Artifact) else item.measurement() for item in made]
    good = (Status.OK, Status.UNSTABLE)
    return [r.time_s if r.status in good and r.time_s is not None else math.inf for r in results]


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def test_suite_against_plain(
    benchmark: BenchmarkFixture, report: Report, profile: HardwareProfile, quick: bool
) -> None:
    programs = list(PROGRAMS.values())[:: 8 if quick else 1]

    def run() -> dict[str, tuple[float, float, float]]:
        times = {}
        for program in programs:
            task = parse_task(program.default_task_id)
            fixed = PassSequence(task.id, applicable(task, overall_sequence()))
            plain, own, overall = against_plain(task, [expert(task), fixed])
            times[task.id] = (plain, own, overall)
        return times

    times = benchmark.pedantic(run, rounds=1)
    for task_id, (plain, own, _) in times.items():
        task = parse_task(task_id)
        bound = speed_of_light(task.work, profile)
        report.speed.append(
            SpeedRow(
                name=f"MLIR passes, {task.program.name}",
                task=task_id,
                ours_s=own,
                peer="plain pipeline at O3",
                peer_s=plain,
                ratio=plain / own,
                ratio_target=1.0,
                sol_fraction=sol_fraction(own, bound.time_s),
                bound=bound.binding,
            )
        )
    speedups = [plain / own for plain, own, _ in times.values()]
    fixed = [plain / overall if overall < math.inf else 1.0 for plain, _, overall in times.values()]
    for name, values, target in (
        ("own sequences", speedups, 4.0),
        ("the overall sequence", fixed, None),
    ):
        report.speed.append(
            SpeedRow(
                name=f"MLIR passes, {name}",
                task=f"geomean of {len(values)} programs",
                peer="plain pipeline at O3",
                ratio=geometric_mean(values),
                ratio_target=target,
                summary=True,
            )
        )


def random_steps(env: MLIRPassesEnv, seconds: float, seed: int) -> list[float]:
    """Wall-clock seconds of the steps of random offered actions, resets left out."""
    rng = np.random.default_rng(seed)
    taken: list[float] = []
    _, info = env.reset(seed=seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        action = int(rng.choice(np.flatnonzero(info["action_mask"][1:]) + 1))
        started = time.perf_counter()
        _, _, terminated, truncated, info = env.step(action)
        taken.append(time.perf_counter() - started)
        if terminated or truncated:
            _, info = env.reset()
    return taken


@pytest.mark.parametrize("observation", ["mqss", "full"])
def test_unmeasured_steps(
    observation: str, benchmark: BenchmarkFixture, report: Report, profile: HardwareProfile, quick: bool
) -> None:
    made = MLIRPassesEnv(
        suite="All",
        reward_at="end",
        observation=observation,  # type: ignore[arg-type]
        profile=profile,
        max_steps=20,
    )
    with closing(made) as env:
        unmeasured: list[float] = []

        def run() -> None:
            rng = np.random.default_rng(SEED)
            for task in env.tasks[:: 8 if quick else 1]:
                _, info = env.reset(seed=SEED, options={"task": task})
                for _ in range(19):
                    offered = np.flatnonzero(info["action_mask"][1:]) + 1
                    if not len(offered):
                        break
                    started = time.perf_counter()
                    _, _, _, _, info = env.step(int(rng.choice(offered)))
                    unmeasured.append(time.perf_counter() - started)

        benchmark.pedantic(run, rounds=1)
    report.quantities.append(
        QuantityRow(
            name=f"unmeasured steps, {observation}",
            value=len(unmeasured) / sum(unmeasured),
            unit="/s",
            limit=400,
            sense="at least",
            detail=f"{len(unmeasured)} random offered actions over the suite, crashes and hangs included; "
            f"median {1e3 * median(unmeasured):.2f} ms, longest {max(unmeasured):.1f} s",
        )
    )


def test_measured_steps(
    benchmark: BenchmarkFixture, report: Report, profile: HardwareProfile, quick: bool
) -> None:
    seconds = 0.5 if quick else 2.0

    def run() -> dict[str, tuple[float, float]]:
        rates = {}
        for program in list(PROGRAMS.values())[:: 8 if quick else 1]:
            with closing(MLIRPassesEnv(program.name, profile=profile, max_steps=20)) as env:
                env.reset(seed=SEED)
                used = env.measurements_used
                taken = random_steps(env, seconds, SEED)
                measured = env.measurements_used - used
                rates[program.name] = (len(taken) / sum(taken), measured / sum(taken))
        return rates

    rates = benchmark.pedantic(run, rounds=1)
    measured = sorted(rate for _, rate in rates.values())
    report.quantities.append(
        QuantityRow(
            name="measured steps, median program",
            value=median(measured),
            unit="/s",
            limit=10,
            sense="at least",
            detail=f"candidates measured a second over {len(measured)} programs: {measured[0]:.1f} to "
            f"{measured[-1]:.1f}; with steps that change nothing "
            f"{median(r for r, _ in rates.values()):.1f} steps/s",
        )
    )


def test_from_module_to_callable(benchmark: BenchmarkFixture, report: Report, quick: bool) -> None:
    def run() -> list[float]:
        times = []
        worker = PassWorker()
        for program in list(PROGRAMS.values())[:: 8 if quick else 1]:
            task = parse_task(program.default_task_id)
            for actions in ((), applicable(task, known_sequence(task.id))):
                worker.view(task, actions)
                started = time.perf_counter()
                worker.build(task, actions)
                times.append(time.perf_counter() - started)
        worker.close()
        return times

    times = benchmark.pedantic(run, rounds=1)
    report.quantities.append(
        QuantityRow(
            name="from module to object code",
            value=1e3 * median(times),
            unit="ms",
            limit=80,
            detail=f"{len(times)} modules, untouched and after the shipped sequences: finishing pipeline, "
            f"LLVM at O3, object file; longest {1e3 * max(times):.0f} ms; linking takes under 0.1 ms more",
        )
    )
