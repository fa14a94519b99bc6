"""``parallel_for`` for generated kernels: a thread pool written as LLVM IR, with no compiler and no OpenMP.

The caller and its helper threads meet at a counter: helpers spin on it for a bounded time, then sleep on a
futex, so a parallel region costs about a microsecond on free cores and never burns a core that somebody else
needs. It is not a general thread pool: one region runs at a time, and regions do not nest. Linux only
(futex).
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import threading
from typing import Final

from solgym.errors import ClosedEnvironment, InvalidOption, UnsupportedTarget
from solgym.hardware.object_file import link

__all__ = ["MAX_THREADS", "LinkedRuntime", "ThreadRuntime", "runtime_code"]

MAX_THREADS: Final = 256

SPINS: Final = 1000
"""Pauses before a waiting thread sleeps: 10 to 50 microseconds on current x86 cores (10 to 50 ns each), which
is about what being woken costs, so that waiting never takes more than twice the best choice in hindsight."""

CROWDED_SPINS: Final = 50
"""The same when there are more threads than cores, where the awaited thread may not even be running."""

# Where the futex system call and the spin hint differ between architectures.
_FUTEX_NUMBER: Final = {"x86_64": 202, "aarch64": 98}
_PAUSE: Final = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}

# How the waiting works. A region: the caller writes the job, sets @pending to the number of helpers and adds
# one to @epoch. Each helper that sees a new epoch runs its share and takes one from @pending. Whoever sleeps
# says so first (@sleepers, @caller_sleeps) and the kernel re-checks the counter before it puts a thread to
# sleep; all these accesses are sequentially consistent, so either the sleeper sees the new value or the waker
# sees the sleeper. Helpers all answer before the next epoch starts, so none can miss one.
_IR: Final = """
%job = type {{ ptr, ptr, i64, i64 }}
@solgym_runtime = global ptr @solgym_parallel_for, align 64
@job = internal global %job zeroinitializer, align 64
@epoch = internal global i32 0, align 128
@sleepers = internal global i32 0, align 64
@pending = internal global i32 0, align 128
@caller_sleeps = internal global i32 0, align 64
@stopping = internal global i32 0, align 64
@helpers = internal global i64 0, align 64
@spins = internal global i32 0, align 4
@handles = internal global [{max_threads} x i64] zeroinitializer, align 64

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i64 @syscall(i64, ...)
{declare_pause}

; 128 is FUTEX_PRIVATE_FLAG; 0 waits while the word has the value, 1 wakes up to that many threads.
define internal void @sleep_while(ptr %word, i32 %value) {{
  %value64 = zext i32 %value to i64
  call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i64 128, i64 %value64, ptr null, ptr null, i64 0)
  ret void
}}

define internal void @wake(ptr %word) {{
  call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i64 129, i64 2147483647, ptr null, ptr null, i64 0)
  ret void
}}

; Runs chunks first, first + stride, ... of the current job.
define internal void @run_chunks(i64 %first, i64 %stride) {{
entry:
  %fn = load ptr, ptr @job
  %ctx = load ptr, ptr getelementptr (%job, ptr @job, i64 0, i32 1)
  %trips = load i64, ptr getelementptr (%job, ptr @job, i64 0, i32 2)
  %chunks = load i64, ptr getelementptr (%job, ptr @job, i64 0, i32 3)
  %share = udiv i64 %trips, %chunks
  %extra = urem i64 %trips, %chunks
  br label %head
head:
  %chunk = phi i64 [ %first, %entry ], [ %next, %latch ]
  %more = icmp ult i64 %chunk, %chunks
  br i1 %more, label %body, label %done
body:
  %has_extra = icmp ult i64 %chunk, %extra
  %shift = select i1 %has_extra, i64 %chunk, i64 %extra
  %whole = mul i64 %chunk, %share
  %begin = add i64 %whole, %shift
  %one = zext i1 %has_extra to i64
  %size = add i64 %share, %one
  %end = add i64 %begin, %size
  %empty = icmp eq i64 %size, 0
  br i1 %empty, label %latch, label %run
run:
  call void %fn(ptr %ctx, i64 %begin, i64 %end, i64 %chunk)
  br label %latch
latch:
  %next = add i64 %chunk, %stride
  br label %head
done:
  ret void
}}

define internal ptr @helper(ptr %argument) {{
entry:
  %index = ptrtoint ptr %argument to i64
  %count = load i64, ptr @helpers
  %stride = add i64 %count, 1
  %limit = load i32, ptr @spins
  br label %await
await:
  %last = phi i32 [ 0, %entry ], [ %now, %finished ]
  br label %spin
spin:
  %turn = phi i32 [ 0, %await ], [ %turn_next, %pause ]
  %seen = load atomic i32, ptr @epoch seq_cst, align 4
  %changed = icmp ne i32 %seen, %last
  br i1 %changed, label %woken, label %patience
patience:
  %tired = icmp uge i32 %turn, %limit
  br i1 %tired, label %lie_down, label %pause
pause:
  {pause}
  %turn_next = add i32 %turn, 1
  br label %spin
lie_down:
  %asleep = atomicrmw add ptr @sleepers, i32 1 seq_cst
  br label %sleep
sleep:
  %again = load atomic i32, ptr @epoch seq_cst, align 4
  %still = icmp eq i32 %again, %last
  br i1 %still, label %futex, label %get_up
futex:
  call void @sleep_while(ptr @epoch, i32 %last)
  br label %sleep
get_up:
  %awake = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  br label %woken
woken:
  %now = load atomic i32, ptr @epoch seq_cst, align 4
  %stop = load atomic i32, ptr @stopping seq_cst, align 4
  %stops = icmp ne i32 %stop, 0
  br i1 %stops, label %leave, label %work
work:
  call void @run_chunks(i64 %index, i64 %stride)
  %before = atomicrmw sub ptr @pending, i32 1 seq_cst
  %was_last = icmp eq i32 %before, 1
  br i1 %was_last, label %tell, label %finished
tell:
  %waits = load atomic i32, ptr @caller_sleeps seq_cst, align 4
  %must_wake = icmp ne i32 %waits, 0
  br i1 %must_wake, label %wake_caller, label %finished
wake_caller:
  call void @wake(ptr @pending)
  br label %finished
finished:
  br label %await
leave:
  ret ptr null
}}

define internal void @announce() {{
  %old = atomicrmw add ptr @epoch, i32 1 seq_cst
  %sleeping = load atomic i32, ptr @sleepers seq_cst, align 4
  %any = icmp ne i32 %sleeping, 0
  br i1 %any, label %wake_all, label %done
wake_all:
  call void @wake(ptr @epoch)
  br label %done
done:
  ret void
}}

define void @solgym_parallel_for(ptr %fn, ptr %ctx, i64 %trips, i64 %chunks) {{
entry:
  store ptr %fn, ptr @job
  store ptr %ctx, ptr getelementptr (%job, ptr @job, i64 0, i32 1)
  store i64 %trips, ptr getelementptr (%job, ptr @job, i64 0, i32 2)
  store i64 %chunks, ptr getelementptr (%job, ptr @job, i64 0, i32 3)
  %count = load i64, ptr @helpers
  %count32 = trunc i64 %count to i32
  %stride = add i64 %count, 1
  %no_helpers = icmp eq i64 %count, 0
  %one_chunk = icmp ule i64 %chunks, 1
  %alone = or i1 %no_helpers, %one_chunk
  br i1 %alone, label %serial, label %share
serial:
  call void @run_chunks(i64 0, i64 1)
  ret void
share:
  store atomic i32 %count32, ptr @pending seq_cst, align 4
  call void @announce()
  call void @run_chunks(i64 0, i64 %stride)
  %limit = load i32, ptr @spins
  br label %spin
spin:
  %turn = phi i32 [ 0, %share ], [ %turn_next, %pause ]
  %left = load atomic i32, ptr @pending seq_cst, align 4
  %finished = icmp eq i32 %left, 0
  br i1 %finished, label %done, label %patience
patience:
  %tired = icmp uge i32 %turn, %limit
  br i1 %tired, label %lie_down, label %pause
pause:
  {pause}
  %turn_next = add i32 %turn, 1
  br label %spin
lie_down:
  store atomic i32 1, ptr @caller_sleeps seq_cst, align 4
  br label %sleep
sleep:
  %remaining = load atomic i32, ptr @pending seq_cst, align 4
  %all_back = icmp eq i32 %remaining, 0
  br i1 %all_back, label %get_up, label %futex
futex:
  call void @sleep_while(ptr @pending, i32 %remaining)
  br label %sleep
get_up:
  store atomic i32 0, ptr @caller_sleeps seq_cst, align 4
  br label %done
done:
  ret void
}}

; Starts the helpers from a clean state and returns how many of the wanted number could be made.
define i64 @solgym_runtime_start(i64 %wanted, i32 %spin_limit) {{
entry:
  store atomic i32 0, ptr @epoch seq_cst, align 4
  store atomic i32 0, ptr @sleepers seq_cst, align 4
  store atomic i32 0, ptr @pending seq_cst, align 4
  store atomic i32 0, ptr @caller_sleeps seq_cst, align 4
  store atomic i32 0, ptr @stopping seq_cst, align 4
  store i32 %spin_limit, ptr @spins
  store i64 %wanted, ptr @helpers
  br label %head
head:
  %made = phi i64 [ 0, %entry ], [ %index, %made_one ]
  %enough = icmp uge i64 %made, %wanted
  br i1 %enough, label %done, label %make
make:
  %index = add i64 %made, 1
  %argument = inttoptr i64 %index to ptr
  %handle = getelementptr [{max_threads} x i64], ptr @handles, i64 0, i64 %made
  %code = call i32 @pthread_create(ptr %handle, ptr null, ptr @helper, ptr %argument)
  %created = icmp eq i32 %code, 0
  br i1 %created, label %made_one, label %done
made_one:
  br label %head
done:
  store i64 %made, ptr @helpers
  ret i64 %made
}}

define void @solgym_runtime_stop() {{
entry:
  %count = load i64, ptr @helpers
  store atomic i32 1, ptr @stopping seq_cst, align 4
  call void @announce()
  br label %head
head:
  %joined = phi i64 [ 0, %entry ], [ %next, %join ]
  %more = icmp ult i64 %joined, %count
  br i1 %more, label %join, label %done
join:
  %handle = getelementptr [{max_threads} x i64], ptr @handles, i64 0, i64 %joined
  %thread = load i64, ptr %handle
  %code = call i32 @pthread_join(i64 %thread, ptr null)
  %next = add i64 %joined, 1
  br label %head
done:
  store i64 0, ptr @helpers
  ret void
}}
"""


@functools.cache
def runtime_code() -> bytes:
    """Compile the runtime to an object file; a process without LLVM gets these bytes from one that has it.

    Raises:
        UnsupportedTarget: this operating system or architecture has no futex support here.
    """
    from solgym.hardware.jit import compile_object

    machine = platform.machine()
    if machine not in _FUTEX_NUMBER or platform.system() != "Linux":
        raise UnsupportedTarget(
            f"kernels on several threads need Linux on {' or '.join(_FUTEX_NUMBER)}, this is "
            f"{platform.system()} on {machine}; use threads=1"
        )
    declare_pause, pause = _PAUSE[machine]
    text = _IR.format(
        max_threads=MAX_THREADS, futex=_FUTEX_NUMBER[machine], declare_pause=declare_pause, pause=pause
    )
    return compile_object(text)


class LinkedRuntime:
    """A linked copy of the runtime, not started. Its state is in its globals, so it serves one pool at a
    time.
    """

    def __init__(self, code: bytes) -> None:
        """Link what ``runtime_code`` returned."""
        self._linked = link(code, ("solgym_runtime", "solgym_runtime_start", "solgym_runtime_stop"))
        addresses = self._linked.addresses
        self.pointer = addresses["solgym_runtime"]
        self.start = addresses["solgym_runtime_start"]
        self.stop = addresses["solgym_runtime_stop"]

    @staticmethod
    def spins(threads: int) -> int:
        """How often a waiting thread pauses before it sleeps; few times where threads outnumber cores."""
        return CROWDED_SPINS if threads > len(os.sched_getaffinity(0)) else SPINS


class _LinkedRuntimes:
    """Linked copies, kept for the next pool.

    In a forked child every copy is free again, as the threads of the parent do not exist there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._all: list[LinkedRuntime] = []
        self._free: list[LinkedRuntime] = []

    def take(self, code: bytes | None) -> LinkedRuntime:
        if os.getpid() != self._pid:
            self._lock, self._pid, self._free = threading.Lock(), os.getpid(), list(self._all)
        with self._lock:
            if self._free:
                return self._free.pop()
            linked = LinkedRuntime(code if code is not None else runtime_code())
            self._all.append(linked)
            return linked

    def give_back(self, linked: LinkedRuntime) -> None:
        with self._lock:
            self._free.append(linked)


_linked_runtimes = _LinkedRuntimes()


class ThreadRuntime:
    """A pool of threads that a kernel's parallel loops run on. A context manager.

    ``pointer`` goes to the kernel as its third argument. The calling thread takes part, so ``threads - 1``
    helpers are made. Only one thread may run kernels on one runtime at a time.

    A child made by ``os.fork`` has none of the helpers: it must make its own runtime, and a runtime that it
    inherited refuses to work there.
    """

    def __init__(self, threads: int, code: bytes | None = None) -> None:
        """Start the helpers.

        Args:
            threads: how many threads take part, the caller included.
            code: what ``runtime_code`` returned, for a process that does not load LLVM; compiled here if
            None.

        Raises:
            InvalidOption: ``threads`` is not between 1 and ``MAX_THREADS``.
            UnsupportedTarget: this operating system or architecture has no futex support here.
            OSError: the system refused to make so many threads.
        """
        if not 1 <= threads <= MAX_THREADS:
            raise InvalidOption(f"threads must be between 1 and {MAX_THREADS}; got {threads}")
        self.threads = threads
        self._pid = os.getpid()
        self._linked: LinkedRuntime | None = _linked_runtimes.take(code)
        start = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)(self._linked.start)
        made = start(threads - 1, self._linked.spins(threads))
        if made != threads - 1:
            self.close()
            raise OSError(
                f"the system let this process make {made} of {threads - 1} helper threads; "
                "use fewer threads or raise the limit (ulimit -u)"
            )

    @property
    def pointer(self) -> int:
        """Address of the runtime structure, whose first word is ``parallel_for``.

        Raises:
            ClosedEnvironment: the runtime was closed, or belongs to the process that this one was forked
            from.
        """
        if self._linked is None:
            raise ClosedEnvironment("this thread runtime is closed; make a new ThreadRuntime")
        if os.getpid() != self._pid:
            raise ClosedEnvironment("threads do not survive a fork; make a new ThreadRuntime in this process")
        return self._linked.pointer

    def close(self) -> None:
        """Stop and join the helpers. Closing twice does nothing."""
        linked, self._linked = self._linked, None
        if linked is None or os.getpid() != self._pid:
            return
        ctypes.CFUNCTYPE(None)(linked.stop)()
        _linked_runtimes.give_back(linked)

    def __enter__(self) -> ThreadRuntime:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
