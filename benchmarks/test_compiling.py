"""From a schedule to a function that can be called: generating code, compiling and linking."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.scoreboard import QuantityRow, Report
from solgym.envs.kernel_dsl.kernels import KERNELS, KernelTask, parse_task
from solgym.envs.kernel_dsl.knobs import knob_space
from solgym.envs.kernel_dsl.random_schedules import random_schedule, random_task
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.errors import IllegalSchedule
from solgym.hardware.jit import LoadedObject, compile_object
from solgym.hardware.target import TargetSpec, cpu_spec

SEED = 1


@dataclass(frozen=True)
class Made:
    """How long one schedule took; ``refused`` if the code generator found that it would become too large."""

    task: str
    cpu_s: float
    wall_s: float
    refused: bool = False


def make(schedule: Schedule, task: KernelTask, spec: TargetSpec) -> Made:
    cpu, wall = time.thread_time(), time.perf_counter()
    refused = False
    try:
        lowered = schedule.lower(task, spec)
        loaded = LoadedObject(compile_object(lowered.ir), (lowered.entry,))
    except IllegalSchedule:
        refused = True
    made = Made(task.id, time.thread_time() - cpu, time.perf_counter() - wall, refused)
    if not refused:
        loaded.close()
    return made


def register_tiled(count: int) -> list[Made]:
    task, spec = parse_task("gemm/f32/m512n512k512"), cpu_spec()
    space, rng = knob_space(task, spec), np.random.default_rng(SEED)
    make(space.schedule_from(space.sample(rng)), task, spec)  # LLVM's own start
    return [make(space.schedule_from(space.sample(rng)), task, spec) for _ in range(count)]


def anything(count: int) -> list[Made]:
    """Random legal schedules, in turns of the default task of a kernel and of small ragged ones."""
    spec, rng = cpu_spec(), np.random.default_rng(SEED)
    names = sorted(KERNELS)
    taken = []
    for number in range(count):
        kernel = names[number % len(names)]
        small = number // len(names) % 2 == 1
        task = random_task(rng, kernel) if small else parse_task(KERNELS[kernel].default_task_id)
        taken.append(make(random_schedule(task, spec, rng, patterns=True), task, spec))
    return taken


def test_register_tiled_gemm(benchmark: BenchmarkFixture, report: Report, quick: bool) -> None:
    made: list[Made] = benchmark.pedantic(register_tiled, args=(5 if quick else 50,), rounds=1)
    milliseconds = sorted(1e3 * m.cpu_s for m in made)
    benchmark.extra_info["milliseconds"] = milliseconds
    report.quantities.append(
        QuantityRow(
            name="schedule to callable, GEMM 512",
            value=median(milliseconds),
            unit="ms",
            limit=25,
            detail=f"median CPU time of {len(made)} knob settings, {milliseconds[0]:.0f} to "
            f"{milliseconds[-1]:.0f} ms; wall clock {1e3 * median(m.wall_s for m in made):.1f} ms",
        )
    )


def test_any_legal_schedule(benchmark: BenchmarkFixture, report: Report, quick: bool) -> None:
    made: list[Made] = benchmark.pedantic(anything, args=(30 if quick else 300,), rounds=1)
    slowest = max(made, key=lambda m: m.cpu_s)
    legal = [m for m in made if not m.refused]
    benchmark.extra_info["slowest"] = slowest.task
    report.quantities.append(
        QuantityRow(
            name="the same, slowest of any",
            value=slowest.cpu_s,
            unit="s",
            limit=1,
            detail=f"of {len(made)} random schedules of all kernels, half ragged ({len(made) - len(legal)} "
            f"refused as too large); median {1e3 * median(m.cpu_s for m in legal):.1f} ms; "
            f"slowest: {slowest.task}",
        )
    )
