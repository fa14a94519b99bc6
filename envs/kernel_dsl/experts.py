"""Expert schedules: the best known hand-written schedule per kernel and class of shapes, as data.

``experts.json`` lists knob configurations, best first; the first one that fits a task and its target is
taken. They are what a person who knows the kernel would write, and what a tuner has to match.
"""

from __future__ import annotations

import functools
import json
from importlib import resources

from pydantic import BaseModel, ConfigDict, Field

from solgym.envs.kernel_dsl.kernels import KernelTask
from solgym.envs.kernel_dsl.knobs import KNOBS, Choice, knob_space, pattern_actions
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.errors import IllegalSchedule
from solgym.hardware.target import TargetSpec

__all__ = ["Expert", "expert_schedule", "experts"]


class Expert(BaseModel):
    """One entry of ``experts.json``.

    Attributes:
        kernel: which kernel it is for.
        vector_registers: how many the target must have at least; register tiles follow from it.
        at_least: lower limits of extents, by name.
        at_most: upper limits of extents, by name.
        bytes_at_least: lower limit of the task's working set, in bytes.
        threads_at_least: how many threads the target must have.
        config: knob choices; a knob that is left out has its first choice, ``lanes`` its last.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kernel: str
    vector_registers: int = 16
    at_least: dict[str, int] = Field(default_factory=dict)
    at_most: dict[str, int] = Field(default_factory=dict)
    bytes_at_least: int = 0
    threads_at_least: int = 1
    config: dict[str, Choice]

    def fits(self, task: KernelTask, target: TargetSpec) -> bool:
        """Whether the entry is meant for a task on a target."""
        extents = task.extents
        return (
            self.kernel == task.kernel.name
            and target.vector_registers >= self.vector_registers
            and target.threads >= self.threads_at_least
            and task.work.working_set_bytes >= self.bytes_at_least
            and all(extents[name] >= limit for name, limit in self.at_least.items())
            and all(extents[name] <= limit for name, limit in self.at_most.items())
        )


@functools.cache
def experts() -> tuple[Expert, ...]:
    """All entries of ``experts.json``, in order."""
    text = resources.files(__package__).joinpath("experts.json").read_text()
    return tuple(Expert.model_validate(entry) for entry in json.loads(text))


def expert_schedule(task: KernelTask, target: TargetSpec) -> Schedule:
    """The best known schedule of a task on a target.

    Where no entry can be applied (to very small shapes), it is the first pattern that can, and where there is
    none of those either, the untouched nest.
    """
    space = knob_space(task, target)
    base: dict[str, Choice] = {name: choices[0] for name, choices in KNOBS[task.kernel.name].knobs.items()}
    base["lanes"] = space.knobs["lanes"][-1]
    for expert in experts():
        if not expert.fits(task, target):
            continue
        try:
            return space.schedule_from({**base, **expert.config})
        except IllegalSchedule:
            continue
    for action in pattern_actions(task, target):
        if action.steps is not None:
            return Schedule(task.id, action.steps)
    return Schedule(task.id)
