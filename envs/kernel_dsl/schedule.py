"""Schedules: ordered steps for one task, as data that can be stored, replayed and hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.primitives import Step, apply_step
from solgym.envs.kernel_dsl.rules import Limits
from solgym.errors import IllegalSchedule, InvalidSchedule

if TYPE_CHECKING:
    from solgym.hardware.target import LoweredKernel, TargetSpec
    from solgym.hardware.task import Task

__all__ = ["FORMAT_VERSION", "MAX_STEPS", "Schedule"]

FORMAT_VERSION = 1

MAX_STEPS = 1000
"""Most steps of a schedule: a tenth of a second, and several times what the loops of all stages can use."""


@dataclass(frozen=True)
class Schedule:
    """Steps to apply, one after the other, to the untouched loop nest of a task.

    Attributes:
        task_id: the task that the schedule was written for, for example ``gemm/f32/m512n512k512``.
        steps: dicts as ``primitives.apply_step`` takes them.
    """

    task_id: str
    steps: tuple[Step, ...] = ()

    def extended(self, *steps: Step) -> Schedule:
        """The same schedule with more steps at its end."""
        return Schedule(self.task_id, self.steps + steps)

    def to_json(self) -> dict[str, Any]:
        """Plain data: format version, task id and steps."""
        return {"version": FORMAT_VERSION, "task": self.task_id, "steps": [dict(step) for step in self.steps]}

    @classmethod
    def from_json(cls, data: object) -> Schedule:
        """Read what ``to_json`` wrote, or its text.

        Raises:
            InvalidSchedule: the data does not have that form.
        """
        if isinstance(data, str):
            try:
                data = json.loads(data)
            except (ValueError, RecursionError) as error:  # also of numbers too long and nesting too deep
                raise InvalidSchedule(
                    f"the schedule is not JSON ({error}); expected what to_json() writes"
                ) from error
        if not isinstance(data, Mapping):
            raise InvalidSchedule("a schedule is a JSON object with version, task and steps")
        if data.get("version") != FORMAT_VERSION:
            raise InvalidSchedule(
                f"schedule version {data.get('version')!r} is unknown; expected {FORMAT_VERSION}"
            )
        task, steps = data.get("task"), data.get("steps")
        if not isinstance(task, str) or not isinstance(steps, list):
            raise InvalidSchedule("a schedule needs a task id (string) and steps (list)")
        for step in steps:
            if not isinstance(step, Mapping) or not isinstance(step.get("op"), str):
                raise InvalidSchedule(f"step {step!r} is not an object with an 'op'")
        schedule = cls(task, tuple(dict(step) for step in steps))
        _ = schedule.digest  # refuses what is no plain data
        return schedule

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hex.

        Raises:
            InvalidSchedule: the steps are no plain data.
        """
        try:
            text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidSchedule(f"the steps of the schedule are no plain data: {error}") from error
        return hashlib.sha256(text.encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def nests(self, initial: ProgramNest, limits: Limits) -> Iterator[ProgramNest]:
        """The nest before the first step and after every one.

        Raises:
            IllegalSchedule: a step is refused; the message says which and why.
        """
        if len(self.steps) > MAX_STEPS:
            raise IllegalSchedule(f"the schedule has {len(self.steps)} steps, more than {MAX_STEPS}")
        nest = initial
        yield nest
        for number, step in enumerate(self.steps, start=1):
            try:
                nest = apply_step(nest, step, limits)
            except IllegalSchedule as error:
                raise IllegalSchedule(f"step {number} ({step['op']}): {error}") from error
            yield nest

    def apply(self, initial: ProgramNest, limits: Limits) -> ProgramNest:
        """The nest after all steps; see ``nests``."""
        *_, last = self.nests(initial, limits)
        return last

    def lower(self, task: Task, target: TargetSpec) -> LoweredKernel:
        """Generate LLVM IR for a task on a target.

        Raises:
            IllegalSchedule: a step is refused, or the code would become too large.
            InvalidSchedule: the task is none of the schedule language, or a step is malformed.
        """
        from solgym.envs.kernel_dsl.kernels import KernelTask
        from solgym.envs.kernel_dsl.lowering import lower

        if not isinstance(task, KernelTask):
            raise InvalidSchedule(f"{task.id} is no task of the schedule language")
        nest = self.apply(ProgramNest.initial(task.computation), target)
        return lower(nest, target)
