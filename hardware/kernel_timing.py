"""Timing of calibration kernels: one core by its CPU time, all cores at once by the wall clock.

A calibration looks for the best that the machine can do, so interference must not enter: on one core the
thread's own CPU time is counted and the fastest of several passes kept; on all cores only stretches of
time count during which no thread lost its core. Candidates are timed elsewhere (``solgym.hardware.timing``).
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from solgym.hardware.jit import LoadedObject, compile_object
from solgym.hardware.microkernels import ENTRY

__all__ = ["Kernel", "Load", "Pass", "Team", "WorkingMemory", "best_rate", "simultaneous_rate"]

Result = TypeVar("Result")

ONE_PASS_S = 0.7e-3
"""A timed pass lasts at least this long, which hides the 1 us of a Python call and of reading the clock."""

PIECE_BYTES = 32 << 20
"""Larger loads are timed piece by piece, since short passes more often escape an interruption."""

CLEAN_SHARE = 0.97
"""A pass whose thread spent less than this share of the wall clock on a core was interrupted."""


class Kernel:
    """A compiled calibration kernel that can be called: ``kernel(base, bytes, passes)``."""

    def __init__(self, ir: str) -> None:
        self._object = LoadedObject(compile_object(ir), (ENTRY,))
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._call = prototype(self._object.addresses[ENTRY])

    def __call__(self, base: int, nbytes: int, passes: int) -> None:
        """Run it; the GIL is released for the duration, so several threads compute at once."""
        self._call(base, nbytes, passes)


class WorkingMemory:
    """Anonymous memory full of random bytes, in huge pages where there are any to spare TLB misses.

    Zeros would not do: some CPUs write lines of zeros past the caches twice as fast as any others.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._map = mmap.mmap(-1, nbytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)

    @property
    def address(self) -> int:
        """Where the memory starts; page-aligned."""
        return int(self._bytes.ctypes.data)

    def fill(self, begin: int, end: int) -> None:
        """Write a part from the calling thread, which places it near that thread's core."""
        block = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
        for start in range(begin, end, block.size):
            part = self._bytes[start : min(start + block.size, end)]
            part[:] = block[: part.size]


class Team:
    """One thread pinned to each core. ``everyone`` runs a job on all of them at the same time."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self.size = len(cpus)
        self._members = [
            ThreadPoolExecutor(1, thread_name_prefix="solgym-calibrate", initializer=_pin, initargs=(cpu,))
            for cpu in cpus
        ]

    def alone(self, job: Callable[[], Result]) -> Result:
        """Run a job on the first core while the others idle."""
        return self._members[0].submit(job).result()

    def everyone(self, job: Callable[[int], Result]) -> list[Result]:
        """Run ``job(member)`` on every core; results in the order of members."""
        futures = [member.submit(job, index) for index, member in enumerate(self._members)]
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the threads."""
        for member in self._members:
            member.shutdown()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _pin(cpu: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})


def _cpu_time_ns() -> int:
    """CPU time of this thread where its clock is fine enough, else the wall clock."""
    return time.thread_time_ns() if _THREAD_CLOCK_IS_FINE else time.perf_counter_ns()


_THREAD_CLOCK_IS_FINE = time.get_clock_info("thread_time").resolution <= 1e-6


@dataclass(frozen=True)
class Load:
    """What one thread does in a pass: a kernel on a piece of memory, and the work in one trip over it.

    ``granule_bytes`` is what sizes must be a multiple of, for pieces of a load to be loads themselves.
    """

    kernel: Kernel
    address: int
    nbytes: int
    work: float
    granule_bytes: int = 1

    def run(self, trips: int) -> None:
        """Go over the memory ``trips`` times."""
        self.kernel(self.address, self.nbytes, trips)

    def pieces(self) -> list[Load]:
        """The same work in pieces that take about a millisecond each, one after the other."""
        count = max(1, self.nbytes // PIECE_BYTES)
        size = self.nbytes // count // self.granule_bytes * self.granule_bytes
        work = self.work * size / self.nbytes if self.nbytes else self.work
        return [replace(self, address=self.address + i * size, nbytes=size, work=work) for i in range(count)]

    def trips_for(self, duration_s: float) -> int:
        """Trips that take about ``duration_s``; also warms caches and code."""
        trips = 1
        while True:
            begin = _cpu_time_ns()
            self.run(trips)
            taken_s = max(_cpu_time_ns() - begin, 100) / 1e9
            if taken_s >= 0.5 * duration_s:
                return max(1, math.ceil(trips * duration_s / taken_s))
            trips = max(2 * trips, int(trips * min(0.8 * duration_s / taken_s, 1000)))


def best_rate(load: Load, repeats: int, pass_s: float = ONE_PASS_S) -> float:
    """Work per second of the fastest pass on this thread, by its CPU time.

    Stops before ``repeats`` once the two fastest of at least four passes agree within 0.5%.
    """
    trips = load.trips_for(pass_s)
    taken: list[int] = []
    for _ in range(repeats):
        begin = _cpu_time_ns()
        load.run(trips)
        taken = sorted([*taken, _cpu_time_ns() - begin])
        if len(taken) >= 4 and taken[1] <= 1.005 * taken[0]:
            break
    return load.work * trips / (taken[0] / 1e9)


@dataclass(frozen=True)
class Pass:
    """When a timed pass began and ended on the wall clock, its CPU time, and the work done."""

    begin_s: float
    end_s: float
    cpu_s: float
    work: float

    @property
    def clean(self) -> bool:
        """Whether the thread kept its core throughout."""
        return self.cpu_s >= CLEAN_SHARE * (self.end_s - self.begin_s)


def overlapping_rate(members: Sequence[Sequence[Pass]]) -> float | None:
    """Best work per second of all threads together, over the clean passes of any one of them.

    Within such a pass the others' work is read off their own passes, linearly. None if in no pass of any
    thread all the others were at work and kept their cores.
    """
    begins = np.array([p.begin_s for passes in members for p in passes if p.clean])
    ends = np.array([p.end_s for passes in members for p in passes if p.clean])
    work = np.zeros_like(begins)
    valid = np.ones(begins.shape, dtype=bool)
    for passes in members:
        times = np.array([t for p in passes for t in (p.begin_s, p.end_s)])
        done = np.cumsum([w for p in passes for w in (0.0, p.work)])
        dirty = np.cumsum([d for p in passes for d in (0.0, 0.0 if p.clean else 1.0)])
        work += np.interp(ends, times, done) - np.interp(begins, times, done)
        valid &= np.interp(ends, times, dirty) == np.interp(begins, times, dirty)
        valid &= (begins >= times[0]) & (ends <= times[-1])
    if not valid.any():
        return None
    return float(np.max((work / (ends - begins))[valid]))


def simultaneous_rate(team: Team, load_of: Callable[[int], Load], passes: int) -> tuple[float, bool]:
    """Work per second of all members at once, and whether it stems from uninterrupted passes.

    Where other processes never leave all cores alone for the length of a pass, the sum of each member's
    best rate by CPU time is returned instead, with False: that is an upper limit.
    """
    barrier = threading.Barrier(team.size)

    def member(index: int) -> tuple[float, list[Pass]]:
        loads = load_of(index).pieces()
        for load in loads:
            load.run(1)
        trips = 1 if len(loads) > 1 else loads[0].trips_for(ONE_PASS_S)
        barrier.wait()
        log = []
        for load in itertools.islice(itertools.cycle(loads), max(passes, 2 * len(loads))):
            begin, cpu = time.perf_counter(), _cpu_time_ns()
            load.run(trips)
            cpu_s = (_cpu_time_ns() - cpu) / 1e9
            log.append(Pass(begin, time.perf_counter(), cpu_s, load.work * trips))
        return max(p.work / p.cpu_s for p in log), log

    results = team.everyone(member)
    rate = overlapping_rate([log for _, log in results])
    return (rate, True) if rate is not None else (sum(own for own, _ in results), False)
