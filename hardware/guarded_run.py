"""The first run of a candidate: in a forked child, on guarded arrays, under a deadline.

Whatever the candidate does there (a wild store, an endless loop, ``exit``) ends that child and is reported;
the worker that forked it lives on. The child never gets back to Python: it is native code from the fork to
its end, prepared in full by the worker. That touches few of the pages that it would have to copy, and halves
the cost of a run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import platform
import resource
import select
import signal
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from solgym.hardware.object_file import libc, link, map_memory
from solgym.hardware.thread_runtime import LinkedRuntime

__all__ = [
    "ARCHITECTURES",
    "GuardedRun",
    "GuardedRunner",
    "MappedSegment",
    "address_space_bytes",
    "guard_code",
    "segment_from",
]

GUARD_BYTES: Final = 1 << 20
"""Untouchable address space around each array: wide enough that a miss by a few rows still hits it."""

POLL_S: Final = 1e-3
"""Shortest wait between looks at the CPU time of a child that shares its core."""

_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_MAP_POPULATE: Final = 0x8000
_PR_SET_PDEATHSIG: Final = 1
_SA_SIGINFO: Final = 0x4
_SA_RESETHAND: Final = 0x80000000

# States of the child, in the first word of its report.
_PREPARING, _RUNNING, _FINISHED = range(3)

# System calls that the child makes, by architecture (Linux).
_SYSTEM_CALLS: Final = {
    "x86_64": {
        "mmap": 9,
        "close": 3,
        "setpgid": 109,
        "prctl": 157,
        "sched_setaffinity": 203,
        "prlimit64": 302,
    },
    "aarch64": {
        "mmap": 222,
        "close": 57,
        "setpgid": 154,
        "prctl": 167,
        "sched_setaffinity": 122,
        "prlimit64": 261,
    },
}

ARCHITECTURES: Final = tuple(_SYSTEM_CALLS)
"""Processors, as ``platform.machine`` names them, on which candidates can be run."""

# solgym_guarded_run forks; the child makes the prepared system calls (seven words each: number and
# arguments), starts its helper threads if the kernel needs any, runs the kernel, and ends. Its report: state,
# faulting address, nanoseconds of the run, and for a failed preparation its step and errno.
#
# solgym_note_fault is a signal handler: it notes the faulting address (si_addr, at byte 16 of siginfo_t on
# 64-bit Linux) and returns; with SA_RESETHAND the repeated fault then ends the process by the same signal.
_IR: Final = """
%report = type { i64, i64, i64, i64, i64 }
%timespec = type { i64, i64 }
@solgym_report = global ptr null

declare i32 @fork()
declare i32 @getppid()
declare void @_exit(i32) noreturn
declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare ptr @__errno_location()

define internal i64 @now(ptr %spec) {
  %ignored = call i32 @clock_gettime(i32 1, ptr %spec)
  %seconds = load i64, ptr %spec
  %rest = getelementptr %timespec, ptr %spec, i64 0, i32 1
  %nanoseconds = load i64, ptr %rest
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %nanoseconds
  ret i64 %sum
}

define void @solgym_note_fault(i32 %signal, ptr %info, ptr %context) {
  %where = getelementptr i8, ptr %info, i64 16
  %address = load i64, ptr %where
  %report = load ptr, ptr @solgym_report
  %slot = getelementptr %report, ptr %report, i64 0, i32 1
  store i64 %address, ptr %slot
  ret void
}

define i32 @solgym_guarded_run(ptr %calls, i64 %count, i32 %parent, ptr %kernel, ptr %buffers, ptr %workspace,
                               ptr %runtime, ptr %start_threads, i64 %helpers, i32 %spins) {
entry:
  %spec = alloca %timespec, align 8
  %report = load ptr, ptr @solgym_report
  %seconds_slot = getelementptr %report, ptr %report, i64 0, i32 2
  %step_slot = getelementptr %report, ptr %report, i64 0, i32 3
  %errno_slot = getelementptr %report, ptr %report, i64 0, i32 4
  %pid = call i32 @fork()
  %is_child = icmp eq i32 %pid, 0
  br i1 %is_child, label %head, label %worker
worker:
  ret i32 %pid
head:
  %step = phi i64 [ 0, %entry ], [ %step_next, %made ]
  store i64 %step, ptr %step_slot
  %more = icmp ult i64 %step, %count
  br i1 %more, label %make, label %prepared
make:
  %first = mul i64 %step, 7
  %p0 = getelementptr i64, ptr %calls, i64 %first
  %p1 = getelementptr i64, ptr %p0, i64 1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %p4 = getelementptr i64, ptr %p0, i64 4
  %p5 = getelementptr i64, ptr %p0, i64 5
  %p6 = getelementptr i64, ptr %p0, i64 6
  %w0 = load i64, ptr %p0
  %w1 = load i64, ptr %p1
  %w2 = load i64, ptr %p2
  %w3 = load i64, ptr %p3
  %w4 = load i64, ptr %p4
  %w5 = load i64, ptr %p5
  %w6 = load i64, ptr %p6
  %result = call i64 (i64, ...) @syscall(i64 %w0, i64 %w1, i64 %w2, i64 %w3, i64 %w4, i64 %w5, i64 %w6)
  %failed = icmp eq i64 %result, -1
  br i1 %failed, label %give_up, label %made
made:
  %step_next = add i64 %step, 1
  br label %head
prepared:
  ; The worker may have died before this child asked to die with it.
  %parent_now = call i32 @getppid()
  %orphan = icmp ne i32 %parent_now, %parent
  br i1 %orphan, label %give_up, label %threads
threads:
  %serial = icmp eq ptr %start_threads, null
  br i1 %serial, label %run, label %start
start:
  %started = call i64 %start_threads(i64 %helpers, i32 %spins)
  %enough = icmp eq i64 %started, %helpers
  br i1 %enough, label %run, label %give_up
run:
  store volatile i64 1, ptr %report
  %before = call i64 @now(ptr %spec)
  call void %kernel(ptr %buffers, ptr %workspace, ptr %runtime)
  %after = call i64 @now(ptr %spec)
  %elapsed = sub i64 %after, %before
  store i64 %elapsed, ptr %seconds_slot
  store volatile i64 2, ptr %report
  call void @_exit(i32 0)
  unreachable
give_up:
  %errno_at = call ptr @__errno_location()
  %errno = load i32, ptr %errno_at
  %errno64 = sext i32 %errno to i64
  store i64 %errno64, ptr %errno_slot
  call void @_exit(i32 81)
  unreachable
}
"""


@functools.cache
def guard_code() -> bytes:
    """Compile what runs in the child to an object file, for processes that do not load LLVM."""
    from solgym.hardware.jit import compile_object

    return compile_object(_IR)


@dataclass(frozen=True)
class MappedSegment:
    """One array in the shared memory (see ``hardware.buffers.Segment``)."""

    name: str
    offset: int
    span: int
    front: int
    nbytes: int


def segment_from(data: Any) -> MappedSegment:
    """Read a segment from plain data."""
    return MappedSegment(data["name"], data["offset"], data["span"], data["front"], data["nbytes"])


@dataclass(frozen=True)
class GuardedRun:
    """How the child ended.

    Attributes:
        end: ``finished``, ``signal``, ``exit``, ``timeout``, ``slow`` (it used up its CPU time), ``setup``
        (it could not begin) or ``unlinkable``.
        number: of the signal, or the exit status.
        seconds: how long the kernel ran, by the wall clock, if it finished.
        detail: what else is known, for people.
    """

    end: str
    number: int
    seconds: float
    detail: str


def address_space_bytes() -> int:
    """Virtual memory of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE


def _stack_bytes() -> int:
    """Address space that a thread's stack takes: the soft limit, or a default if that is unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return (soft if soft != resource.RLIM_INFINITY else 8 << 20) + mmap.PAGESIZE


class GuardedRunner:
    """Runs kernels in forked children, one at a time."""

    def __init__(
        self, guard: bytes, cores: set[int], private_fds: Sequence[int], runtime: LinkedRuntime | None
    ):
        """Link what a run needs, and note where this process faults from now on.

        Args:
            guard: what ``guard_code`` returned.
            cores: where children may run; the caller itself may be pinned to fewer.
            private_fds: descriptors that no child may keep open.
            runtime: a thread runtime that only children start, for kernels on several threads.
        """
        self._private_fds = tuple(private_fds)
        self._runtime = runtime
        self._numbers = _SYSTEM_CALLS[platform.machine()]
        mask = sum(1 << core for core in cores)
        self._cores = (ctypes.c_uint64 * (max(cores) // 64 + 1))()
        for word in range(len(self._cores)):
            self._cores[word] = mask >> 64 * word & (1 << 64) - 1
        self._report = mmap.mmap(-1, mmap.PAGESIZE)
        self._linked = link(guard, ("solgym_report", "solgym_note_fault", "solgym_guarded_run"))
        report = ctypes.c_void_p.from_address(self._linked.addresses["solgym_report"])
        report.value = ctypes.addressof(ctypes.c_char.from_buffer(self._report))
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self._fork_and_run = ctypes.CFUNCTYPE(
            ctypes.c_int,
            pointer,
            integer,
            ctypes.c_int,
            pointer,
            pointer,
            pointer,
            pointer,
            pointer,
            integer,
            ctypes.c_int,
        )(self._linked.addresses["solgym_guarded_run"])
        self._record_faults()

    def _record_faults(self) -> None:
        # struct sigaction of glibc: handler, 128 bytes of signal mask, flags, restorer.
        action = ctypes.create_string_buffer(152)
        struct.pack_into("<Q", action, 0, self._linked.addresses["solgym_note_fault"])
        struct.pack_into("<I", action, 136, _SA_SIGINFO | _SA_RESETHAND)
        for number in (signal.SIGSEGV, signal.SIGBUS):
            libc.sigaction(int(number), action, None)

    def run(
        self,
        entry: int,
        arrays: Sequence[MappedSegment],
        workspace: MappedSegment | None,
        fd: int,
        *,
        threads: int,
        timeout_s: float,
        slow_s: float | None,
        spare_bytes: int,
    ) -> GuardedRun:
        """Run a kernel once in a child process and say how that ended.

        Args:
            entry: address of the kernel.
            arrays: inputs, then outputs.
            workspace: its scratch memory, or None.
            fd: the shared memory that the segments lie in.
            threads: threads that the kernel was compiled for.
            timeout_s: after so long the child is killed, with everything that it started.
            slow_s: the same once it has run for so long and used so much CPU time; None for no such limit.
            spare_bytes: memory that the candidate may allocate on top of its arrays.
        """
        segments = [*arrays, *([workspace] if workspace else [])]
        starts, length = _starts(segments)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = map_memory(None, length, 0, private | _MAP_NORESERVE, -1, 0)
        try:
            addresses = [
                base + start + segment.front for segment, start in zip(segments, starts, strict=True)
            ]
            pointers = (ctypes.c_void_p * max(1, len(arrays)))(*addresses[: len(arrays)])
            limit = address_space_bytes() + (threads - 1) * _stack_bytes() + spare_bytes
            limits = (ctypes.c_uint64 * 2)(limit, limit)
            calls = self._calls(segments, [base + start for start in starts], fd, ctypes.addressof(limits))
            words = (ctypes.c_int64 * len(calls))(*calls)
            runtime = self._runtime if threads > 1 else None
            struct.pack_into("<5q", self._report, 0, _PREPARING, -1, 0, 0, 0)
            child = self._fork_and_run(
                ctypes.addressof(words),
                len(calls) // 7,
                os.getpid(),
                entry,
                ctypes.addressof(pointers),
                addresses[-1] if workspace else None,
                runtime.pointer if runtime else None,
                runtime.start if runtime else None,
                threads - 1,
                runtime.spins(threads) if runtime else 0,
            )
            if child < 0:
                return GuardedRun("setup", 0, 0.0, "the system refused to fork")
            status = _wait(child, timeout_s, slow_s)
        finally:
            libc.munmap(base, length)
        if isinstance(status, str):
            return GuardedRun(status, 0, 0.0, "")
        return self._post_mortem(os.waitstatus_to_exitcode(status), base, segments)

    def _calls(
        self, segments: Sequence[MappedSegment], pages: Sequence[int], fd: int, limits: int
    ) -> list[int]:
        """The system calls by which the child prepares itself, seven words each."""
        number = self._numbers
        calls: list[int] = []

        def add(name: str, *arguments: int) -> None:
            calls.extend([number[name], *arguments, *[0] * (6 - len(arguments))])

        add("setpgid", 0, 0)
        add("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL))
        for private in self._private_fds:
            add("close", private)
        add("sched_setaffinity", 0, ctypes.sizeof(self._cores), ctypes.addressof(self._cores))
        for segment, page in zip(segments, pages, strict=True):
            # Replaces part of the untouchable range; what is left of it guards both sides.
            protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED | _MAP_POPULATE
            add("mmap", page, segment.span, protection, flags, fd, segment.offset)
        add("prlimit64", 0, int(resource.RLIMIT_AS), limits, 0)
        return calls

    def _post_mortem(self, code: int, base: int, segments: Sequence[MappedSegment]) -> GuardedRun:
        """Say how a child came to its end with ``code``."""
        state, fault, nanoseconds, step, errno = struct.unpack_from("<5q", self._report, 0)
        if state == _PREPARING:
            return GuardedRun("setup", code, 0.0, f"step {step}: {os.strerror(errno)}")
        if code < 0:
            has_address = -code in (signal.SIGSEGV, signal.SIGBUS) and fault != -1
            return GuardedRun("signal", -code, 0.0, _locate(fault, base, segments) if has_address else "")
        if state != _FINISHED:
            return GuardedRun("exit", code, 0.0, "")
        return GuardedRun("finished", 0, nanoseconds / 1e9, "")


def _starts(segments: Sequence[MappedSegment]) -> tuple[list[int], int]:
    """Offsets of the segments' pages in the child's address range, and the range's length."""
    starts, cursor = [], GUARD_BYTES
    for segment in segments:
        starts.append(cursor)
        cursor += segment.span + GUARD_BYTES
    return starts, cursor


def _wait(child: int, timeout_s: float, slow_s: float | None) -> int | Literal["timeout", "slow"]:
    """Wait for the child and return its wait status; at a limit kill its process group and say which it
    was.
    """
    pidfd = os.pidfd_open(child)
    try:
        ended = _ended_in_time(child, pidfd, timeout_s, slow_s)
    finally:
        os.close(pidfd)
    # Also after a proper end: whatever the candidate started goes with it.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    return status if ended == "ended" else ended


def _ended_in_time(
    child: int, pidfd: int, timeout_s: float, slow_s: float | None
) -> Literal["ended", "timeout", "slow"]:
    """Wait until the child ends or meets a limit. CPU time that others had does not count as slowness."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    left_s, used_s = timeout_s, 0.0
    deadline = time.perf_counter() + timeout_s
    while left_s > 0:
        wait_s = left_s if slow_s is None else min(left_s, max(slow_s - used_s, POLL_S))
        if poller.poll(wait_s * 1000):
            return "ended"
        if slow_s is not None and (used_s := _cpu_seconds(child)) >= slow_s:
            return "slow"
        left_s = deadline - time.perf_counter()
    return "timeout"


def _cpu_seconds(process: int) -> float:
    """CPU time that all threads of a child of this process have used; it may have ended."""
    # The process's CPU clock, as clock_getcpuclockid makes it from the process id on Linux.
    return time.clock_gettime(~process << 3 | 2)


def _locate(fault: int, base: int, segments: Sequence[MappedSegment]) -> str:
    """Describe a faulting address relative to the nearest array."""
    starts, length = _starts(segments)
    if 0 <= fault < mmap.PAGESIZE:
        return "through a null or impossible pointer"
    if not base <= fault < base + length:
        return f"at address {fault:#x}, far from every buffer"
    nearest: tuple[int, str] | None = None
    for segment, start in zip(segments, starts, strict=True):
        first = base + start + segment.front
        before, past = first - fault, fault - (first + segment.nbytes)
        distance = max(before, past, 0)
        side = f"{before} bytes before the start" if before > 0 else f"{max(past, 0)} bytes past the end"
        if nearest is None or distance < nearest[0]:
            nearest = (distance, f"{side} of buffer {segment.name!r} ({segment.nbytes} bytes)")
    return nearest[1] if nearest else f"at address {fault:#x}"
