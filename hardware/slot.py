"""The place where the processes of one run measure, one at a time: a core of its own, and whose turn it is.

A training run has several processes with environments, which share one core for timing; the learner and the
processes themselves keep to the other cores, so that they do not disturb what is being timed. Tuners and
single environments need none of this: their worker claims a core by itself (see ``hardware.worker``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from solgym.errors import ClosedEnvironment, UnsupportedTarget
from solgym.hardware.fingerprint import core_siblings, device_fingerprint, host_device
from solgym.hardware.worker import claim_core

__all__ = ["MeasurementSlot", "claim_slot", "current_slot", "leave_slot", "use_slot", "waited_s"]

_PID: Final = struct.Struct("<q")

_waited_s = 0.0


class MeasurementSlot:
    """A core on which processes take turns to measure. A context manager for the process that claimed it.

    The lock is a file without a name, so nothing is left behind however the run ends; a process that dies in
    its turn loses it to the next.

    Attributes:
        core: logical CPU to measure on; None if no core can be set apart (there is only one, or others have
            claimed them all): then nothing is pinned, and processes only take turns.
        cpus: all logical CPUs that the run may use.
        other_cpus: those that learner and environments keep to; all of them if ``core`` is None.
        lock_fd: descriptor of the lock, to be passed on to child processes.
    """

    def __init__(
        self,
        core: int | None,
        cpus: Iterable[int],
        other_cpus: Iterable[int],
        lock_fd: int,
        claim: socket.socket | None = None,
    ) -> None:
        """Put a slot together; ``claim_slot`` makes one, ``from_json`` another process's view of it."""
        self.core = core
        self.cpus, self.other_cpus = frozenset(cpus), frozenset(other_cpus)
        self.lock_fd = lock_fd
        self._claim = claim
        self._owner = os.getpid()

    def to_json(self) -> dict[str, Any]:
        """Plain data for a child process that inherits ``lock_fd`` under the same number."""
        return {
            "core": self.core,
            "cpus": sorted(self.cpus),
            "other_cpus": sorted(self.other_cpus),
            "lock_fd": self.lock_fd,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> MeasurementSlot:
        """The slot of the parent process."""
        return cls(**data)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other process measures; nobody else does meanwhile. Does not nest.

        Raises:
            ClosedEnvironment: the slot is closed.
        """
        global _waited_s
        if self.lock_fd < 0:
            raise ClosedEnvironment("this measurement slot is closed; claim a new one")
        started = time.perf_counter()
        # A description of its own each time: a lock belongs to it, and forked children would share one.
        lock = os.open(f"/proc/self/fd/{self.lock_fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _waited_s += time.perf_counter() - started
            os.pwrite(lock, _PID.pack(os.getpid()), 0)
            try:
                yield
            finally:
                os.pwrite(lock, _PID.pack(0), 0)
        finally:
            os.close(lock)

    def holder(self) -> int | None:
        """Process id of whoever measures now, or did when it was killed; None if nobody does."""
        data = os.pread(self.lock_fd, _PID.size, 0)
        return _PID.unpack(data)[0] or None if len(data) == _PID.size else None

    def keep_off(self) -> None:
        """Keep all threads of this process, and those to come, off the core on which is measured."""
        _keep_to(self.other_cpus)

    @contextlib.contextmanager
    def whole_machine(self) -> Iterator[None]:
        """Let this process use all CPUs meanwhile, for example to calibrate."""
        before = os.sched_getaffinity(0)
        _keep_to(self.cpus)
        try:
            yield
        finally:
            _keep_to(before)

    def close(self) -> None:
        """Give the core back; the process that claimed it may use all CPUs again. Closing twice does
        nothing.
        """
        if self.lock_fd < 0:
            return
        if current_slot() is self:
            leave_slot()
        os.close(self.lock_fd)
        self.lock_fd = -1
        if self._claim is not None:
            self._claim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def claim_slot() -> MeasurementSlot:
    """Claim a core to measure on, so that other SOLGym processes of this machine keep off it.

    The affinity of this process does not change; see ``use_slot``. The last free core is taken, as the first
    one usually serves interrupts.

    Raises:
        UnsupportedTarget: this is not Linux.
    """
    if not hasattr(os, "sched_getaffinity"):
        raise UnsupportedTarget("measuring needs Linux; on Windows use WSL 2, on macOS a Linux container")
    # Both are remembered and must describe the machine as it is before any process is confined.
    device, _ = host_device(), device_fingerprint()
    cpus = frozenset(os.sched_getaffinity(0))
    lock_fd = os.memfd_create("solgym-slot", os.MFD_CLOEXEC)
    for core in reversed(device.cpus):
        other_cpus = cpus - core_siblings(core)
        if core in cpus and other_cpus and (claim := claim_core(core)):
            return MeasurementSlot(core, cpus, other_cpus, lock_fd, claim)
    return MeasurementSlot(None, cpus, cpus, lock_fd)


_slot: MeasurementSlot | None = None


def use_slot(slot: MeasurementSlot) -> None:
    """From now on the default pools of this process measure in ``slot``, and the process keeps off its core.

    Call it before anything is measured in a child process. What describes the machine is looked up first, as
    seen from all its CPUs: device fingerprints must not depend on where a process is confined to.
    """
    global _slot
    with slot.whole_machine():
        host_device()
        device_fingerprint()
    _slot = slot
    slot.keep_off()


def current_slot() -> MeasurementSlot | None:
    """Where the default pools of this process measure, if they take turns with other processes."""
    return _slot


def leave_slot() -> None:
    """Undo ``use_slot``."""
    global _slot
    if _slot is not None:
        left, _slot = _slot, None
        _keep_to(left.cpus)


def waited_s() -> float:
    """Seconds that this process has spent waiting for its turns."""
    return _waited_s


def _keep_to(cpus: Iterable[int]) -> None:
    """Set the affinity of every thread of this process; new threads inherit it."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile, or CPUs that went away
            os.sched_setaffinity(int(thread.name), cpus)
