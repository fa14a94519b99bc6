"""What an agent's step costs beyond compiling and running, and whether thousands of steps cost memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.scoreboard import QuantityRow, Report
from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.hardware.measurement import Measurement, MeasurePolicy
from solgym.hardware.pool import WorkerPool
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.target import CpuTarget

SEED = 0
GEMM_256 = "gemm/f32/m256n256k256"
# Many schedules of many kinds, and little else: what is left over after a candidate is what counts here.
SMALL = "gemm/f32/m48n48k48"
HASTY = MeasurePolicy(
    warmup=1, min_repeats=3, slow_repeats=1, max_repeats=3, max_seconds=1e-3, unstable_ci=1e6
)


@dataclass(frozen=True)
class Step:
    """One step that measured a candidate, in seconds; ``run_s`` is that of all calls of it."""

    wall_s: float
    compile_s: float
    run_s: float

    @property
    def overhead_s(self) -> float:
        return self.wall_s - self.compile_s - self.run_s


def run_time_s(measurement: Measurement) -> float:
    """How long the calls took: the guarded first, those to warm up, the timed, the last check.

    Only what is measured counts as running: a candidate that failed has none.
    """
    if measurement.time_s is None:
        return 0.0
    # Samples of short candidates hold several calls; about twice batch_below_s is what they then last.
    batch = max(1, round(2 * MeasurePolicy().batch_below_s / measurement.time_s))
    batch = batch if measurement.time_s < MeasurePolicy().batch_below_s else 1
    timed = sum(measurement.samples_s) * batch + measurement.discarded * measurement.time_s * batch
    return timed + (measurement.warmup + 2) * measurement.time_s


def actions(env: gym.Env[Any, Any], rng: np.random.Generator) -> Iterator[Any]:
    """Random actions: legal ones of the mask, or settings of all knobs that have a schedule."""
    tuning = cast(KernelDSLEnv, env.unwrapped)
    while True:
        if tuning.action_mode == "knobs":
            knobs = tuning.knobs
            yield np.array(knobs.encode(knobs.sample(rng)))
        else:
            yield int(rng.choice(np.flatnonzero(tuning.action_masks())))


def measured_steps(env: gym.Env[Any, Any], count: int, seed: int) -> list[Step]:
    """Steps of random episodes until so many have measured a candidate."""
    tuning = cast(KernelDSLEnv, env.unwrapped)
    draws = actions(env, np.random.default_rng(seed))
    taken: list[Step] = []
    env.reset(seed=seed)
    while len(taken) < count:
        action = next(draws)
        before, started = tuning.measurements_used, time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action)
        wall_s = time.perf_counter() - started
        if tuning.measurements_used > before:
            last = tuning.last_measurement
            taken.append(Step(wall_s, last.compile_s, run_time_s(last)))
        if terminated or truncated:
            env.reset()
    return taken


@pytest.mark.parametrize("mode", ["knobs", "primitive"])
def test_steps(
    mode: str, benchmark: BenchmarkFixture, report: Report, profile: HardwareProfile, quick: bool
) -> None:
    with closing(gym.make("KernelDSL-GEMM-v0", task=GEMM_256, action_mode=mode, profile=profile)) as env:
        measured_steps(env, 3, SEED + 1)
        steps: list[Step] = benchmark.pedantic(
            measured_steps, args=(env, 10 if quick else 120, SEED), rounds=1
        )
    rate = len(steps) / sum(step.wall_s for step in steps)
    shares = {
        name: 1e3 * median(getattr(s, name) for s in steps) for name in ("wall_s", "compile_s", "run_s")
    }
    benchmark.extra_info["steps_per_second"] = rate
    inputs = "new inputs at each step" if mode == "knobs" else "new inputs at each reset"
    policy = "random knob settings" if mode == "knobs" else "random legal actions from the untouched nest"
    report.quantities += [
        QuantityRow(
            name=f"measured steps, GEMM 256, {mode}",
            value=rate,
            unit="/s",
            limit=20,
            sense="at least",
            detail=f"{len(steps)} {policy}; medians: step {shares['wall_s']:.1f} ms, compiling "
            f"{shares['compile_s']:.1f} ms, running {shares['run_s']:.1f} ms",
        ),
        QuantityRow(
            name=f"overhead of a step, {mode}",
            value=1e3 * median(step.overhead_s for step in steps),
            unit="ms",
            limit=3,
            detail=f"median of wall clock less compiling and all calls of the candidate; {inputs}",
        ),
    ]


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return 0  # a worker that is being replaced


def test_memory(benchmark: BenchmarkFixture, report: Report, profile: HardwareProfile, quick: bool) -> None:
    count, window = (200, 50) if quick else (2000, 200)
    users: list[int] = []
    workers: list[int] = []
    seen: set[int] = set()

    with WorkerPool() as pool, CpuTarget(1, pool) as target:
        made = gym.make(
            "KernelDSL-GEMM-v0", task=SMALL, target=target, profile=profile, policy=HASTY, stop_at=1.0
        )
        with closing(made) as env:
            tuning = cast(KernelDSLEnv, env.unwrapped)
            rng = np.random.default_rng(SEED)

            def run() -> None:
                env.reset(seed=SEED)
                while len(users) < count:
                    before = tuning.measurements_used
                    _, _, terminated, truncated, _ = env.step(next(draws))
                    if tuning.measurements_used > before:
                        users.append(resident_bytes(os.getpid()))
                        seen.update(pool.pids())
                        workers.append(max(map(resident_bytes, pool.pids()), default=0))
                    if terminated or truncated:
                        env.reset()

            draws = actions(env, rng)
            benchmark.pedantic(run, rounds=1)
    for name, sizes in (("your process", users), ("worker", [size for size in workers if size])):
        first, last = median(sizes[:window]), median(sizes[-window:])
        benchmark.extra_info[name] = (first, last)
        report.quantities.append(
            QuantityRow(
                name=f"growth over {count} candidates, {name}",
                value=(last - first) / 2**20,
                unit="MiB",
                limit=32,
                detail=f"resident memory, {first / 2**20:.0f} MiB over the first {window}, "
                f"{last / 2**20:.0f} MiB over the last; up to 512 artifacts are remembered; "
                f"{len(seen)} worker processes in turn",
            )
        )
