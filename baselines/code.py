"""A schedule in the forms that people read: its loop nest, its LLVM IR and its assembly."""

from __future__ import annotations

from dataclasses import dataclass

from solgym.envs.kernel_dsl.kernels.task import KernelTask
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.hardware.jit import assembly
from solgym.hardware.target import TargetSpec

__all__ = ["Code", "code_of"]


@dataclass(frozen=True)
class Code:
    """A schedule for people: the loop nest, LLVM IR and assembly."""

    nest: str
    llvm: str
    assembly: str


def code_of(schedule: Schedule, task: KernelTask, spec: TargetSpec) -> Code:
    """Lower a schedule to everything that a person may want to read.

    Raises:
        IllegalSchedule: the schedule does not apply to the task or target.
    """
    nest = schedule.apply(ProgramNest.initial(task.computation), spec)
    kernel = schedule.lower(task, spec)
    return Code(str(nest), kernel.ir, assembly(kernel.ir))
