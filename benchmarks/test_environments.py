"""What an agent's step costs beyond compiling and running, and whether thousands of steps cost memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.peer_process import ROOT
from benchmarks.scoreboard import QuantityRow, Report
from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.hardware.measurement import Measurement
from solgym.hardware.profile import HardwareProfile

SEED = 0
GEMM_256 = "gemm/f32/m256n256k256"


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

    A sample is a single call, as GEMM 256 is far from fast enough for more. A candidate that failed has none.
    """
    if measurement.time_s is None:
        return 0.0
    calls = measurement.warmup + measurement.discarded + 2
    return sum(measurement.samples_s) + calls * measurement.time_s


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


def test_memory(benchmark: BenchmarkFixture, report: Report, profile: HardwareProfile, quick: bool) -> None:
    count, window = (200, 50) if quick else (2000, 200)
    command = [sys.executable, "-m", "benchmarks.memory_growth", str(count)]

    def run() -> dict[str, list[int]]:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
        sizes: dict[str, list[int]] = json.loads(done.stdout)
        return sizes

    sizes = benchmark.pedantic(run, rounds=1)
    workers = len(set(sizes["pid"]) - {0})
    for name, kind in (("your process", "user"), ("worker", "worker")):
        resident = [size / 2**20 for size in sizes[kind] if size]
        first, last = median(resident[:window]), median(resident[-window:])
        benchmark.extra_info[name] = (first, last)
        detail = f"resident memory, {first:.0f} MiB over the first {window}, {last:.0f} MiB over the last"
        kept = "up to 512 artifacts are remembered" if kind == "user" else f"workers in turn: {workers}"
        report.quantities.append(
            QuantityRow(
                name=f"growth over {count} candidates, {name}",
                value=last - first,
                unit="MiB",
                limit=32,
                detail=f"{detail}; {kept}",
            )
        )
