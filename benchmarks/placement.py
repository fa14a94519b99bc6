"""Which core a thread runs on, decided here and not by the scheduler, for candidates and peers alike.

Schedulers of small virtual machines have been seen to keep two threads of a process on one core for as long
as a benchmark lasts, whoever's threads they were; the times are then several times too long, and say nothing.
"""

from __future__ import annotations

import os

from solgym.hardware.fingerprint import host_device

__all__ = ["only_core", "spread_threads"]


def spread_threads(pid: int) -> None:
    """Give every thread of a process a core: the main one the first, the others the rest in turn."""
    first, *others = host_device().cpus
    threads = sorted(int(thread) for thread in os.listdir(f"/proc/{pid}/task"))
    os.sched_setaffinity(pid, {first})
    for number, thread in enumerate(thread for thread in threads if thread != pid):
        os.sched_setaffinity(thread, {others[number % len(others)]})


def only_core(pid: int) -> int | None:
    """The core to which a process is bound, if it is bound to one."""
    cores = os.sched_getaffinity(pid)
    return min(cores) if len(cores) == 1 else None
