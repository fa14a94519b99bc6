"""Runs schedules in tests: once, guarded, against the reference."""

import functools
from typing import Any

from solgym.envs.kernel_dsl.fuzz import ONCE
from solgym.envs.kernel_dsl.kernels import parse_task
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.primitives import apply_step
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.hardware.measurement import Measurement, Status
from solgym.hardware.target import CpuTarget, TargetSpec, cpu_spec


@functools.cache
def target(threads: int = 1) -> CpuTarget:
    return CpuTarget(threads=threads)


def step(op: str, stage: str, **arguments: Any) -> dict[str, Any]:
    return {"op": op, "stage": stage, **arguments}


def nest_of(task_id: str, *steps: dict[str, Any], spec: TargetSpec | None = None) -> ProgramNest:
    nest = ProgramNest.initial(parse_task(task_id).computation)
    for one in steps:
        nest = apply_step(nest, one, spec or cpu_spec())
    return nest


def run(task_id: str, *steps: dict[str, Any], threads: int = 1) -> Measurement:
    return target(threads).evaluate(Schedule(task_id, steps), parse_task(task_id), ONCE)


def assert_right(task_id: str, *steps: dict[str, Any], threads: int = 1) -> None:
    measurement = run(task_id, *steps, threads=threads)
    assert measurement.status in (Status.OK, Status.UNSTABLE), measurement.error
