"""Fuzzing of the code generator: random legal schedules of random tasks against the reference.

Every schedule runs once in a guarded child (docs/measuring.md), so wrong results, writes outside a buffer,
crashes and endless loops all show. Run ``python -m solgym.envs.kernel_dsl.fuzz --count 10000``; a failure is
printed as a schedule that ``solgym show`` and ``Schedule.from_json`` read, reduced to the steps that matter.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import typer

from solgym.envs.kernel_dsl.kernels import KernelTask
from solgym.envs.kernel_dsl.primitives import Step
from solgym.envs.kernel_dsl.random_schedules import random_schedule, random_task
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.hardware.measurement import Measurement, MeasurePolicy, Status
from solgym.hardware.target import CpuTarget

__all__ = ["Failure", "Report", "fuzz"]

ONCE = MeasurePolicy(
    warmup=1, slow_repeats=1, min_repeats=1, max_repeats=1, batch_below_s=0.0, timeout_s=20.0
)
HARMLESS = (Status.OK, Status.UNSTABLE, Status.ILLEGAL)
"""``illegal``: the primitives accepted each step, but the code would have become too large."""


@dataclass(frozen=True)
class Failure:
    """A schedule that went wrong, and what happened."""

    seed: int
    schedule: Schedule
    measurement: Measurement


@dataclass
class Report:
    """What a run of the fuzzer saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    primitives: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    without_reason: list[Step] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


def fuzz(
    count: int,
    seed: int = 0,
    target: CpuTarget | None = None,
    progress: Callable[[int, Report], None] = lambda done, report: None,
) -> Report:
    """Try ``count`` random schedules.

    Args:
        count: number of schedules.
        seed: schedule number n is drawn from ``seed + n`` alone, so that any one can be drawn again.
        target: where to run them; one thread of this CPU by default.
        progress: called after each with the number done and the report so far.
    """
    report = Report()
    chosen = target or CpuTarget()
    for number in range(count):
        task, schedule = draw(seed + number, chosen, report)
        measurement = chosen.evaluate(schedule, task, ONCE, seed=seed + number)
        report.statuses[measurement.status.value] += 1
        report.primitives.update(str(step["op"]) for step in schedule.steps)
        if measurement.status not in HARMLESS:
            report.failures.append(Failure(seed + number, schedule, measurement))
        progress(number + 1, report)
    return report


def draw(seed: int, target: CpuTarget, report: Report | None = None) -> tuple[KernelTask, Schedule]:
    """The task and schedule that belong to a seed."""

    def refused(step: Step, reason: str) -> None:
        if report is not None:
            report.refusals[str(step["op"])] += 1
            if not reason.strip():
                report.without_reason.append(step)

    rng = np.random.default_rng(seed)
    task = random_task(rng)
    return task, random_schedule(task, target.spec, rng, refused=refused, patterns=True)


def reduce(failure: Failure, task: KernelTask, target: CpuTarget) -> Schedule:
    """Leave out every step without which a failure keeps its status."""
    steps = list(failure.schedule.steps)
    position = 0
    while position < len(steps):
        shorter = Schedule(task.id, tuple(steps[:position] + steps[position + 1 :]))
        outcome = target.evaluate(shorter, task, ONCE, seed=failure.seed)
        if outcome.status is failure.measurement.status:
            steps = list(shorter.steps)
        else:
            position += 1
    return Schedule(task.id, tuple(steps))


def main(
    count: Annotated[int, typer.Option(help="Number of schedules.")] = 1500,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads per schedule.")] = 1,
) -> None:
    """Fuzz the code generator; exit code 1 if anything went wrong."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console()
    with CpuTarget(threads=threads) as target, Progress(console=console) as bar:
        line = bar.add_task("schedules", total=count)
        report = fuzz(count, seed, target, lambda done, _: bar.update(line, completed=done))
        for failure in report.failures:
            task, _ = draw(failure.seed, target)
            console.print(
                f"seed {failure.seed}: {failure.measurement.status.value}: {failure.measurement.error}"
            )
            console.print_json(json.dumps(reduce(failure, task, target).to_json()))
    console.print(f"statuses: {dict(report.statuses)}")
    console.print(f"steps taken: {dict(report.primitives.most_common())}")
    console.print(f"steps refused: {dict(report.refusals.most_common())}")
    raise typer.Exit(1 if report.failures or report.without_reason else 0)


if __name__ == "__main__":
    typer.run(main)
