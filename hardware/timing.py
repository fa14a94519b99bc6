"""Adaptive timing of native kernels: how many samples to take, of how many calls each, by which clock.

The clock is read in native code around the calls, so Python costs nothing inside a sample. This module runs
in the worker process and imports neither numpy nor anything of the tasks: it sees addresses and numbers only.
"""

from __future__ import annotations

import ctypes
import functools
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from solgym.hardware.measurement import Clock, MeasurePolicy
from solgym.hardware.object_file import link

__all__ = [
    "Interval",
    "NativeSampler",
    "NativeTimer",
    "Sample",
    "SampleSet",
    "TimerFault",
    "median_interval",
    "sample_alone",
    "sample_in_turns",
    "sampler_code",
]

CONFIDENCE: Final = 0.95

MAX_CALLS: Final = 1_000_000
"""Most calls in one sample, for kernels of a few nanoseconds."""

LINE_BYTES: Final = 64
"""Cache line of every x86-64 CPU; flushing walks the buffers by it."""

_CLOCK_IDS: Final[dict[Clock, int]] = {
    "thread_cpu": time.CLOCK_THREAD_CPUTIME_ID,
    "wall": time.CLOCK_MONOTONIC,
}


class TimerFault(RuntimeError):
    """A clock gave a time that is zero, negative or not finite: a bug in the timer, never a fast kernel."""


@dataclass(frozen=True)
class Interval:
    """The median of some samples and the interval in which the true median lies, in the samples' unit."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """How far the interval reaches from the median, as a fraction of the median."""
        return max(self.high - self.median, self.median - self.low) / self.median


@functools.lru_cache(maxsize=1024)
def _bootstrap_rank(count: int) -> int:
    """Rank (from 1) of the order statistic that is the lower end of the interval of ``count`` samples.

    A resample's median is at most the k-th smallest sample exactly when at least half of its draws are among
    the k smallest, and each draw is with probability k/n: a binomial tail. So the bootstrap distribution of
    the median is known in closed form (Maritz and Jarrett, JASA 73, 1978), with no resampling and no seed.
    """
    half = (count + 1) // 2
    tail = (1 - CONFIDENCE) / 2
    log_choose = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(count + 1)
    ]
    for rank in range(1, half + 1):
        probability = rank / count
        if probability >= 1:
            return rank
        log_in, log_out = math.log(probability), math.log1p(-probability)
        at_most = sum(
            math.exp(log_choose[k] + k * log_in + (count - k) * log_out) for k in range(half, count + 1)
        )
        if at_most > tail:
            return rank
    return half


def median_interval(samples: Sequence[float]) -> Interval:
    """Return the median and its 95% bootstrap percentile interval.

    Args:
        samples: at least one positive number.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("the median of no samples does not exist; take at least one")
    ordered = sorted(samples)
    count = len(ordered)
    middle = count // 2
    median = ordered[middle] if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    rank = _bootstrap_rank(count)
    return Interval(median, ordered[rank - 1], ordered[count - rank])


@dataclass(frozen=True)
class Sample:
    """Seconds per call, and how often the process was taken off a core meanwhile."""

    seconds: float
    involuntary_switches: int


# The clock is read right before the first and right after the last call. getrusage stays outside of that; its
# word at byte 136 is ru_nivcsw, summed over all threads of the process (Linux, 64 bits).
_SAMPLER_IR: Final = """
%timespec = type {{ i64, i64 }}
declare i32 @clock_gettime(i32, ptr)
declare i32 @getrusage(i32, ptr)
{declare_flush}

define internal i64 @now(i32 %clock, ptr %spec) {{
  %ignored = call i32 @clock_gettime(i32 %clock, ptr %spec)
  %seconds = load i64, ptr %spec
  %rest = getelementptr %timespec, ptr %spec, i64 0, i32 1
  %nanoseconds = load i64, ptr %rest
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %nanoseconds
  ret i64 %sum
}}

define internal i64 @switches(ptr %usage) {{
  %ignored = call i32 @getrusage(i32 0, ptr %usage)
  %word = getelementptr i8, ptr %usage, i64 136
  %count = load i64, ptr %word
  ret i64 %count
}}

define internal void @flush(ptr %regions, i64 %count) {{
entry:
  br label %regions_head
regions_head:
  %region = phi i64 [ 0, %entry ], [ %region_next, %region_done ]
  %any = icmp ult i64 %region, %count
  br i1 %any, label %region_entry, label %done
region_entry:
  %slot = shl i64 %region, 1
  %start_slot = getelementptr i64, ptr %regions, i64 %slot
  %start = load ptr, ptr %start_slot
  %bytes_slot = getelementptr i64, ptr %start_slot, i64 1
  %bytes = load i64, ptr %bytes_slot
  br label %line_head
line_head:
  %offset = phi i64 [ 0, %region_entry ], [ %offset_next, %line ]
  %inside = icmp ult i64 %offset, %bytes
  br i1 %inside, label %line, label %region_done
line:
  %address = getelementptr i8, ptr %start, i64 %offset
  {flush_line}
  %offset_next = add i64 %offset, {line_bytes}
  br label %line_head
region_done:
  %region_next = add i64 %region, 1
  br label %regions_head
done:
  {flush_fence}
  ret void
}}

; times and switched receive one i64 per sample: nanoseconds for all of its calls, and involuntary switches.
define void @solgym_sample(ptr %kernel, ptr %buffers, ptr %workspace, ptr %runtime, i64 %calls, i64 %samples,
                           i32 %clock, ptr %times, ptr %switched, ptr %regions, i64 %region_count) {{
entry:
  %spec = alloca %timespec, align 8
  %usage = alloca [144 x i8], align 8
  %flushes = icmp ne i64 %region_count, 0
  br label %sample_head
sample_head:
  %sample = phi i64 [ 0, %entry ], [ %sample_next, %sample_done ]
  %more = icmp ult i64 %sample, %samples
  br i1 %more, label %prepare, label %done
prepare:
  br i1 %flushes, label %evict, label %begin
evict:
  call void @flush(ptr %regions, i64 %region_count)
  br label %begin
begin:
  %switches_before = call i64 @switches(ptr %usage)
  %start = call i64 @now(i32 %clock, ptr %spec)
  br label %call_head
call_head:
  %made = phi i64 [ 0, %begin ], [ %made_next, %call ]
  %calls_left = icmp ult i64 %made, %calls
  br i1 %calls_left, label %call, label %sample_done
call:
  call void %kernel(ptr %buffers, ptr %workspace, ptr %runtime)
  %made_next = add i64 %made, 1
  br label %call_head
sample_done:
  %stop = call i64 @now(i32 %clock, ptr %spec)
  %switches_after = call i64 @switches(ptr %usage)
  %elapsed = sub i64 %stop, %start
  %times_slot = getelementptr i64, ptr %times, i64 %sample
  store i64 %elapsed, ptr %times_slot
  %lost = sub i64 %switches_after, %switches_before
  %switched_slot = getelementptr i64, ptr %switched, i64 %sample
  store i64 %lost, ptr %switched_slot
  %sample_next = add i64 %sample, 1
  br label %sample_head
done:
  ret void
}}
"""


@functools.cache
def sampler_code() -> bytes:
    """Compile the sampling loop to an object file, for processes that do not load LLVM."""
    from solgym.hardware.jit import compile_object, host_cpu

    flush = {"declare_flush": "", "flush_line": "", "flush_fence": ""}
    if platform.machine() == "x86_64":
        # clflushopt flushes many lines at once; clflush, which every x86-64 CPU has, one after the other.
        name = "clflushopt" if "+clflushopt" in host_cpu().features.split(",") else "sse2.clflush"
        flush = {
            "declare_flush": f"declare void @llvm.x86.{name}(ptr)\ndeclare void @llvm.x86.sse2.mfence()",
            "flush_line": f"call void @llvm.x86.{name}(ptr %address)",
            "flush_fence": "call void @llvm.x86.sse2.mfence()",
        }
    return compile_object(_SAMPLER_IR.format(line_bytes=LINE_BYTES, **flush))


class NativeSampler:
    """The sampling loop, linked into this process."""

    def __init__(self, code: bytes) -> None:
        """Link what ``sampler_code`` returned."""
        self._linked = link(code, ("solgym_sample",))
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self.run = ctypes.CFUNCTYPE(
            None,
            pointer,
            pointer,
            pointer,
            pointer,
            integer,
            integer,
            ctypes.c_int32,
            pointer,
            pointer,
            pointer,
            integer,
        )(self._linked.addresses["solgym_sample"])


class NativeTimer:
    """Runs one loaded kernel on fixed buffers under a clock."""

    def __init__(
        self,
        sampler: NativeSampler,
        entry: int,
        buffers: int,
        workspace: int,
        runtime: int,
        clock: Clock,
        flushed: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Bind a kernel to its arguments.

        Args:
            sampler: the loop that calls it.
            entry: address of the kernel.
            buffers: address of its array of pointers.
            workspace: address of its scratch memory, or 0.
            runtime: address of the thread runtime, or 0.
            clock: ``thread_cpu`` or ``wall``.
            flushed: (address, bytes) of what is evicted from the caches before each sample.
        """
        self._sampler = sampler
        self._entry, self._buffers, self._workspace, self._runtime = entry, buffers, workspace, runtime
        self.clock: Clock = clock
        self._region_count = len(flushed)
        self._regions = (ctypes.c_int64 * (2 * len(flushed)))(
            *(word for region in flushed for word in region)
        )

    def sample(self, calls: int, samples: int) -> list[Sample]:
        """Take ``samples`` samples of ``calls`` calls each.

        Raises:
            TimerFault: the clock stood still or ran backwards.
        """
        times = (ctypes.c_int64 * samples)()
        switched = (ctypes.c_int64 * samples)()
        self._sampler.run(
            self._entry,
            self._buffers,
            self._workspace or None,
            self._runtime or None,
            calls,
            samples,
            _CLOCK_IDS[self.clock],
            ctypes.addressof(times),
            ctypes.addressof(switched),
            ctypes.addressof(self._regions),
            self._region_count,
        )
        return [
            Sample(checked_seconds(t / 1e9 / calls, self.clock), s)
            for t, s in zip(times, switched, strict=True)
        ]


def checked_seconds(seconds: float, clock: Clock) -> float:
    """Return ``seconds`` if it can be a duration.

    Raises:
        TimerFault: it is zero, negative or not finite.
    """
    if not 0 < seconds < math.inf:
        raise TimerFault(
            f"the {clock} clock measured {seconds} s for a call, which cannot be; this is a bug in the timer "
            "or a broken clock, please report it"
        )
    return seconds


@dataclass
class SampleSet:
    """The samples of one kernel as they come in, and whether they suffice.

    With the wall clock, samples during which the process lost a core are set aside: they time the machine's
    other users. Should nearly all be like that, they are all there is, and ``usable`` returns them.
    """

    policy: MeasurePolicy
    clock: Clock
    calls: int = 1
    warmup: int = 0
    kept: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)

    def add(self, samples: Sequence[Sample]) -> None:
        """Sort new samples into kept and disturbed."""
        for sample in samples:
            is_disturbed = self.clock == "wall" and sample.involuntary_switches > 0
            (self.disturbed if is_disturbed else self.kept).append(sample.seconds)

    @property
    def too_disturbed(self) -> bool:
        """Whether too few undisturbed samples are there to say anything."""
        return len(self.kept) < self.policy.slow_repeats

    def usable(self) -> list[float]:
        """The samples to judge by."""
        return self.kept + self.disturbed if self.too_disturbed else self.kept

    @property
    def discarded(self) -> int:
        """How many samples ``usable`` leaves out."""
        return 0 if self.too_disturbed else len(self.disturbed)

    @property
    def precise(self) -> bool:
        """Whether there are enough samples and their median is known well enough."""
        enough = len(self.kept) >= self.policy.min_repeats
        return enough and median_interval(self.kept).spread <= self.policy.target_ci

    @property
    def exhausted(self) -> bool:
        """Whether the repeat cap is met; disturbed samples may triple it."""
        taken = len(self.kept) + len(self.disturbed)
        return len(self.kept) >= self.policy.max_repeats or taken >= 3 * self.policy.max_repeats

    def chunk(self, seconds_left: float, sample_s: float) -> int:
        """How many samples to take next, given the time left and what one takes. Keeps the count odd."""
        count = len(self.kept)
        wanted = (
            self.policy.min_repeats - count
            if count < self.policy.min_repeats
            else self.policy.min_repeats - 1
        )
        wanted = max(1, min(wanted, self.policy.max_repeats - count))
        fitting = int(seconds_left / sample_s) if sample_s > 0 else wanted
        return max(1, min(wanted, fitting))


def _warm_up(timer: NativeTimer, samples: SampleSet, started: float) -> float:
    """Make the untimed calls, choose the calls per sample; returns the seconds that one sample takes."""
    policy = samples.policy
    seconds = 0.0
    for _ in range(policy.warmup):
        seconds = timer.sample(1, 1)[0].seconds
        samples.warmup += 1
        if time.perf_counter() - started > policy.max_seconds:
            break
    if not policy.flush_cache and seconds < policy.batch_below_s:
        # A single call of so short a kernel is mostly clock; a batch tells its time well enough to size the
        # next.
        for _ in range(2):
            samples.calls = min(MAX_CALLS, math.ceil(2 * policy.batch_below_s / seconds))
            seconds = timer.sample(samples.calls, 1)[0].seconds
            samples.warmup += samples.calls
        samples.calls = min(MAX_CALLS, max(1, math.ceil(2 * policy.batch_below_s / seconds)))
    return seconds * samples.calls


def sample_alone(timer: NativeTimer, policy: MeasurePolicy, before_chunk: Callable[[], None]) -> SampleSet:
    """Warm one kernel up and sample it until its median is known, or repeats or time run out.

    Args:
        timer: the kernel, bound to its buffers.
        policy: how many samples, how precise, how long.
        before_chunk: called before each group of samples; the worker poisons the outputs there, so that a
            kernel that stops working after its first calls is found out.
    """
    samples = SampleSet(policy, timer.clock)
    started = time.perf_counter()
    sample_s = _warm_up(timer, samples, started)
    while not samples.precise and not samples.exhausted:
        left = policy.max_seconds - (time.perf_counter() - started)
        if left <= 0 and len(samples.kept) + len(samples.disturbed) >= policy.slow_repeats:
            break
        before_chunk()
        samples.add(timer.sample(samples.calls, samples.chunk(left, sample_s)))
    return samples


def sample_in_turns(
    timers: Sequence[NativeTimer], policy: MeasurePolicy, before_round: Callable[[], None]
) -> list[SampleSet]:
    """Sample several kernels round-robin, so that whatever drifts meanwhile drifts for all of them alike.

    Each sample follows one untimed call of the same kernel, which brings its own data back into the caches.
    Rounds go on until every kernel is precise, or repeats or ``max_seconds`` per kernel run out.
    """
    sets = [SampleSet(policy, timer.clock) for timer in timers]
    for timer, samples in zip(timers, sets, strict=True):
        _warm_up(timer, samples, time.perf_counter())
    started = time.perf_counter()
    budget_s = policy.max_seconds * len(timers)
    rounds = 0
    while not all(samples.precise for samples in sets) and not any(samples.exhausted for samples in sets):
        if rounds >= policy.slow_repeats and time.perf_counter() - started > budget_s:
            break
        before_round()
        for timer, samples in zip(timers, sets, strict=True):
            if not policy.flush_cache:
                timer.sample(1, 1)
                samples.warmup += 1
            samples.add(timer.sample(samples.calls, 1))
        rounds += 1
    return sets
