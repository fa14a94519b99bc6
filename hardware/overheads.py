"""What it costs to call a kernel and to enter a parallel region, with no work inside either."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from solgym.errors import UnsupportedTarget
from solgym.hardware.jit import LoadedObject, compile_object
from solgym.hardware.thread_runtime import ThreadRuntime

__all__ = ["measure"]

_CALLS = """
define void @empty(ptr %buffers, ptr %workspace, ptr %runtime) {
  ret void
}

define void @nothing(ptr %ctx, i64 %begin, i64 %end, i64 %thread) {
  ret void
}

define void @call_repeatedly(ptr %entry, i64 %times) {
start:
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %loop ]
  call void %entry(ptr null, ptr null, ptr null)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret void
}

define void @fork_repeatedly(ptr %runtime, i64 %times, i64 %threads) {
start:
  %parallel_for = load ptr, ptr %runtime
  br label %loop
loop:
  %i = phi i64 [ 0, %start ], [ %next, %loop ]
  call void %parallel_for(ptr @nothing, ptr null, i64 %threads, i64 %threads)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


LONGEST_S = 0.4
"""How long parallel regions are timed at most; on a busy machine most batches are interrupted."""


def measure(cpus: Sequence[int]) -> dict[Literal["call", "parallel_region"], float]:
    """Seconds per call of an empty kernel, and per empty parallel region with one thread on each CPU.

    The calling thread, which may be pinned, ends up on the first CPU. Both are looped over in native code,
    as the measuring loop of short kernels is; the fastest of many batches counts. Parallel regions are
    timed by the wall clock. Where several threads are not supported, there is no ``parallel_region``.
    """
    symbols = ("empty", "call_repeatedly", "fork_repeatedly")
    overhead_s: dict[Literal["call", "parallel_region"], float] = {}
    with LoadedObject(compile_object(_CALLS), symbols) as code:
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.addresses["call_repeatedly"])
        fork = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
            code.addresses["fork_repeatedly"]
        )
        calls, regions, threads = 100_000, 10, len(cpus)
        empty = code.addresses["empty"]
        overhead_s["call"] = min(_timed(lambda: call(empty, calls)) for _ in range(20)) / calls
        if threads == 1:
            return overhead_s
        before = _native_threads()
        try:
            # The runtime spins for less long if there are fewer CPUs than threads.
            _pin(0, set(cpus))
            runtime = ThreadRuntime(threads)
        except UnsupportedTarget:
            return overhead_s
        with runtime:
            for thread, cpu in zip([0, *sorted(_native_threads() - before)], cpus, strict=False):
                _pin(thread, {cpu})
            pointer, begin, best_s = runtime.pointer, time.perf_counter(), math.inf
            while time.perf_counter() - begin < LONGEST_S:
                best_s = min(best_s, _timed(lambda: fork(pointer, regions, threads)))
            overhead_s["parallel_region"] = best_s / regions
    return overhead_s


def _pin(thread: int, cpus: set[int]) -> None:
    """Restrict a thread (0 is the calling one) to some CPUs where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(thread, cpus)


def _native_threads() -> set[int]:
    """Ids of this process's threads; empty where the system does not list them."""
    folder = Path("/proc/self/task")
    return {int(entry.name) for entry in folder.iterdir()} if folder.is_dir() else set()


def _timed(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
