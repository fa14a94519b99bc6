"""Studies failures of the crash log: meets them again, makes them smaller, says which action is to blame.

All of it happens in a pass worker of its own and in the measuring workers, so a pass that crashes for the
hundredth time hurts nobody, and nothing of it goes to the crash log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from solgym.envs.mlir_passes.catalogue import ACTION_INDEX, ACTIONS
from solgym.envs.mlir_passes.client import ModuleSource, PassFailure, PassWorker
from solgym.envs.mlir_passes.crash_log import FINISH, RUN, CrashRecord, not_recording
from solgym.envs.mlir_passes.programs import ProgramTask, parse_task
from solgym.envs.mlir_passes.user_program import UserTask
from solgym.errors import InvalidOption, UnknownTask
from solgym.hardware.measurement import MeasurePolicy, Status
from solgym.hardware.target import CpuTarget

__all__ = ["Export", "Failure", "Study", "open_study"]

RUN_ONCE: Final = MeasurePolicy(warmup=1, min_repeats=3, max_repeats=3, max_seconds=0.01)


@dataclass(frozen=True)
class Failure:
    """A failure that can be met again.

    Attributes:
        task: the program.
        actions: what is applied before the failing action.
        action: the failing one; ``FINISH`` or ``RUN`` if there is none.
        status: how it ends.
        outcome: what is said then.
    """

    task: ProgramTask | UserTask
    actions: tuple[str, ...]
    action: str
    status: Status
    outcome: str


@dataclass(frozen=True)
class Export:
    """A failure for those who work on MLIR.

    Attributes:
        module: the last module that is as it should be, as MLIR text.
        blamed: the action that fails on it or makes it wrong; ``FINISH`` if that is the finishing pipeline.
        after: what that action makes of it, where it makes something, which is then wrong.
        pipeline: the action as a pass pipeline; empty where it is a script or the finishing pipeline.
    """

    module: str
    blamed: str
    after: str | None
    pipeline: str


@contextmanager
def open_study() -> Iterator[Study]:
    """Have a pass worker and a target of one's own for a while, and keep what fails out of the crash log."""
    worker = PassWorker()
    try:
        with not_recording(), CpuTarget() as target:
            yield Study(worker, target)
    finally:
        worker.close()


class Study:
    """What can be done with failures; see ``open_study``."""

    def __init__(self, worker: PassWorker, target: CpuTarget) -> None:
        self._worker = worker
        self._target = target

    def repeat(self, record: CrashRecord) -> Failure | None:
        """Meet a recorded failure again; None if it does not fail any more.

        The record may blame code generation for what an action did, if the worker had to make the module anew
        when it failed; here the action itself is found.

        Raises:
            UnknownTask: this version has no such program.
            InvalidOption: this version has no such action.
        """
        for action in (*record.actions, record.action):
            if action not in ACTION_INDEX and action not in (FINISH, RUN):
                raise InvalidOption(f"there is no action {action!r} in this version's catalogue")
        task = _task_of(record)
        whole = record.actions if record.action in (FINISH, RUN) else (*record.actions, record.action)
        for count, action in enumerate(whole):
            failure = self._meet(task, whole[:count], action)
            if failure is not None:
                return failure
        for action in (FINISH, RUN) if record.action == RUN else (record.action,):
            if action in (FINISH, RUN):
                failure = self._meet(task, whole, action)
                if failure is not None:
                    return failure
        return None

    def minimise(
        self, failure: Failure, seconds: float = 120.0, notice: Callable[[str], None] = lambda _: None
    ) -> Failure:
        """Remove actions, and then make extents smaller, while the failure stays what it is.

        Args:
            failure: what to make smaller.
            seconds: how long to try; what has been reached by then is returned.
            notice: told whenever something smaller fails too.
        """
        ends = time.monotonic() + seconds
        failure = self._with_fewer_actions(failure, ends, notice)
        if isinstance(failure.task, ProgramTask):
            failure = self._with_smaller_extents(failure, ends, notice)
        return failure

    def export(self, failure: Failure) -> Export:
        """The last good module of a failure, and the action to blame."""
        actions, blamed = failure.actions, failure.action
        if failure.action == RUN:
            good = self._good_actions(failure)
            if good < 0:
                actions, blamed = (), FINISH
            else:
                actions, blamed = failure.actions[:good], failure.actions[good]
        after = (
            self._text(failure.task, (*actions, blamed))
            if failure.action == RUN and blamed != FINISH
            else None
        )
        action = ACTIONS[ACTION_INDEX[blamed]]
        return Export(self._text(failure.task, actions), blamed, after, action.pipeline)

    # ------------------------------------------------------------------ how

    def _meet(self, task: ProgramTask | UserTask, actions: Sequence[str], action: str) -> Failure | None:
        """Apply actions that succeed, then one that may not."""
        before = tuple(actions)
        if action == RUN:
            return self._run(task, before)
        made: object
        if action == FINISH:
            made = self._worker.build(task, before)
        else:
            made = self._worker.step(task, before, action, enforce_masks=False)
        if isinstance(made, PassFailure):
            return Failure(task, before, action, made.status, made.error)
        return None

    def _run(self, task: ProgramTask | UserTask, actions: tuple[str, ...]) -> Failure | None:
        from solgym.envs.mlir_passes.sequence import PassSequence

        found = self._target.evaluate(PassSequence(task.id, actions), task, RUN_ONCE)
        if found.artifact_digest is None or found.status in (Status.OK, Status.UNSTABLE):
            return None
        return Failure(task, actions, RUN, found.status, found.error or "")

    def _still(
        self, wanted: Failure, task: ProgramTask | UserTask, actions: tuple[str, ...]
    ) -> Failure | None:
        """The same failure after other actions or at another shape; None if it ends in another way."""
        if isinstance(self._worker.view(task, actions), PassFailure):
            return None
        found = self._meet(task, actions, wanted.action)
        return found if found is not None and found.status is wanted.status else None

    def _with_fewer_actions(self, failure: Failure, ends: float, notice: Callable[[str], None]) -> Failure:
        """Take out halves, quarters and so on of the actions, the last first, until none can be spared."""
        size = max(1, len(failure.actions) // 2)
        while time.monotonic() < ends:
            before = failure
            start = len(failure.actions) - size
            while start > -size and time.monotonic() < ends:
                first = max(0, start)
                fewer = failure.actions[:first] + failure.actions[start + size :]
                found = self._still(failure, failure.task, fewer) if fewer != failure.actions else None
                if found is not None:
                    failure = found
                    notice(f"{len(fewer)} actions")
                start -= size
            if size == 1 and failure is before:
                break
            size = max(1, size // 2)
        return failure

    def _with_smaller_extents(self, failure: Failure, ends: float, notice: Callable[[str], None]) -> Failure:
        """Halve extents, one after the other, as long as it fails."""
        assert isinstance(failure.task, ProgramTask)
        for name in failure.task.extents:
            while time.monotonic() < ends:
                smaller = _halved(failure.task, name)
                found = None if smaller is None else self._still(failure, smaller, failure.actions)
                if found is None:
                    break
                failure = found
                notice(failure.task.id)
        return failure

    def _good_actions(self, failure: Failure) -> int:
        """How many actions can be applied so that the program still runs right, but not with the next one; -1
        if not even none.
        """
        if self._run(failure.task, ()) is not None:
            return -1
        good, bad = 0, len(failure.actions)
        while bad - good > 1:  # a run that does not end takes long, so there must not be many
            count = (good + bad) // 2
            if self._run(failure.task, failure.actions[:count]) is None:
                good = count
            else:
                bad = count
        return good

    def _text(self, task: ModuleSource, actions: tuple[str, ...]) -> str:
        made = self._worker.code(task, actions)
        if isinstance(made, PassFailure):
            raise InvalidOption(f"the module cannot be made: {made.error}")
        return made


def _task_of(record: CrashRecord) -> ProgramTask | UserTask:
    if record.module is None:
        return parse_task(record.program)
    name = record.program.split("/")[1]
    return UserTask(name, record.module.text, record.module.function, record.module.arguments)


def _halved(task: ProgramTask, name: str) -> ProgramTask | None:
    least = task.program.minimum.get(name, 1)
    extent = max(least, task.extents[name] // 2)
    if extent == task.extents[name]:
        return None
    extents = {**task.extents, name: extent}
    try:
        return parse_task(task.program.task_id(tuple(extents.values()), task.dtype))
    except UnknownTask:
        return None
