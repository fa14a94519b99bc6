"""A CPU target that measures the same machine code once.

For agents that learn: they come back to the same candidates thousands of times, and a measurement costs a
hundred times what looking it up does. Not for results: those are measured.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from solgym.hardware.measurement import Measurement, MeasurePolicy, Status
from solgym.hardware.pool import WorkerPool
from solgym.hardware.target import Artifact, CpuTarget
from solgym.hardware.task import Task

if TYPE_CHECKING:
    from solgym.hardware.profile import HardwareProfile

__all__ = ["REMEMBERED_MAX", "RememberingTarget"]

REMEMBERED_MAX: Final = 20_000
"""Measurements that are remembered; a few kilobytes each, so some tens of megabytes."""

DECISIVE: Final = frozenset({Status.OK, Status.WRONG_RESULT, Status.CRASHED, Status.TIMEOUT})
"""What says something about the candidate itself; the other statuses may come from outside and pass."""


class RememberingTarget(CpuTarget):
    """A ``CpuTarget`` that remembers what became of an artifact on a task under a policy.

    Inputs drawn from another seed are not tried again: an artifact that was right on one counts as right.
    Speed-of-light bounds are applied when measuring, so use one profile with one target. A copy or pickle of
    the target remembers nothing.
    """

    def __init__(
        self,
        threads: int = 1,
        pool: WorkerPool | None = None,
        profile: HardwareProfile | None = None,
        capacity: int = REMEMBERED_MAX,
    ) -> None:
        """Set up the target; nothing is started yet.

        Args:
            threads: threads that candidates run on.
            pool: where they are run; by default one worker shared by the whole process.
            profile: see ``CpuTarget``.
            capacity: measurements to remember; those not asked for longest are forgotten first.

        Raises:
            InvalidOption: the pool is made for another number of threads.
        """
        super().__init__(threads, pool, profile)
        self._capacity = capacity
        self._forget()

    def _forget(self) -> None:
        self._known: OrderedDict[tuple[str, str, MeasurePolicy], Measurement] = OrderedDict()
        self._known_lock = threading.Lock()
        self.remembered = 0
        """How often a measurement was remembered instead of made."""

    def measure(
        self,
        artifact: Artifact,
        task: Task,
        policy: MeasurePolicy | None = None,
        seed: int = 0,
        sol_time_s: float | None = None,
    ) -> Measurement:
        """What became of the artifact when it was first measured, or measure it now; see ``CpuTarget``."""
        key = (artifact.digest, task.id, policy or MeasurePolicy())
        with self._known_lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                self.remembered += 1
                return replace(known, compile_s=artifact.compile_s)
        measurement = super().measure(artifact, task, policy, seed, sol_time_s)
        if measurement.status in DECISIVE:
            with self._known_lock:
                self._known[key] = measurement
                while len(self._known) > self._capacity:
                    self._known.popitem(last=False)
        return measurement

    def __getstate__(self) -> dict[str, Any]:
        without = ("_known", "_known_lock", "remembered")
        return {name: value for name, value in super().__getstate__().items() if name not in without}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()
