"""A schedule under construction: the steps so far, the nest they give, and the stage in focus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from solgym.envs.kernel_dsl.kernels import KernelTask
from solgym.envs.kernel_dsl.nest import ProgramNest, StageNest
from solgym.envs.kernel_dsl.primitives import Step, apply_step
from solgym.envs.kernel_dsl.rules import Limits
from solgym.envs.kernel_dsl.schedule import Schedule

__all__ = ["ScheduleState"]


@dataclass(frozen=True)
class ScheduleState:
    """What an agent has made of a task so far.

    Attributes:
        candidate: the steps.
        nest: the loop nest after them.
        focus: name of the stage that loop-wise actions refer to.
    """

    candidate: Schedule
    nest: ProgramNest
    focus: str

    @classmethod
    def untouched(cls, task: KernelTask) -> ScheduleState:
        """No steps yet; in focus is the stage with the largest iteration space, the last of equals."""
        nest = ProgramNest.initial(task.computation)
        return cls(Schedule(task.id), nest, _largest_stage(nest))

    @classmethod
    def scheduled(cls, task: KernelTask, steps: Sequence[Step], limits: Limits) -> ScheduleState:
        """The state after ``steps``.

        Raises:
            IllegalSchedule: a step is refused; the message says which and why.
            InvalidSchedule: a step does not have the form of a step.
        """
        return cls.untouched(task).restarted(steps, limits)

    @classmethod
    def reached(cls, candidate: Schedule, nest: ProgramNest) -> ScheduleState:
        """The state of a schedule whose nest is known already."""
        return cls(candidate, nest, _largest_stage(ProgramNest.initial(nest.computation)))

    def after(self, steps: Sequence[Step], limits: Limits) -> ScheduleState:
        """The state after more steps; raises as ``scheduled`` does."""
        nest = self.nest
        for step in steps:
            nest = apply_step(nest, step, limits)
        return replace(self, candidate=self.candidate.extended(*steps), nest=nest)

    def restarted(self, steps: Sequence[Step], limits: Limits) -> ScheduleState:
        """The state that ``steps`` alone give on the same task; raises as ``scheduled`` does."""
        initial = ProgramNest.initial(self.nest.computation)
        candidate = Schedule(self.candidate.task_id, tuple(steps))
        return ScheduleState.reached(candidate, candidate.apply(initial, limits))

    @property
    def stage(self) -> StageNest:
        """The stage in focus."""
        return self.nest.by_name[self.focus]

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors that the stage in focus reads, in order of appearance."""
        return self.stage.stage.reads


def _largest_stage(nest: ProgramNest) -> str:
    def points(stage: StageNest) -> int:
        total = 1
        for axis in stage.stage.all_axes:
            total *= axis.extent
        return total

    return max(reversed(nest.stages), key=points).name
