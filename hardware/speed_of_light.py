"""The speed of light of a task, and the scores that are measured against it.

``speed_of_light`` gives the least time in which a machine described by a profile can do a task's work.
The score formulas (``gap_closed``, ``sol_fraction``, ``speedup``, ``has_headroom``) are defined here and
nowhere else; environments, reports and leaderboards all call them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

from solgym.errors import InvalidOption, InvalidProfile
from solgym.hardware.profile import HardwareProfile, Streams
from solgym.hardware.task import Work

__all__ = [
    "HEADROOM",
    "Bound",
    "gap_closed",
    "has_headroom",
    "sol_fraction",
    "speed_of_light",
    "speedup",
    "transfer_time_s",
]

HEADROOM = 1.05
"""A baseline below this multiple of the speed of light leaves nothing to win."""


@dataclass(frozen=True)
class Bound:
    """A lower bound on the time of a task, with its breakdown.

    Attributes:
        time_s: the bound; the largest of compute and memory, plus the launch.
        terms: seconds by term: ``compute``, the memory level used, ``launch``.
        binding: ``compute`` or the name of the memory level, whichever takes longer.
        arithmetic_intensity: flops per compulsory byte.
        ridge_point: the intensity from which compute binds, for this mix of reads and writes.
        level: the nearest memory level in which the working set stays resident.
        peak_flops_per_s: the compute ceiling used.
        bandwidth_bytes_per_s: compulsory bytes over the memory term; infinite if that is zero.
        threads: threads that the bound allows for.
        flushed: whether inputs start outside every cache.
        cached_bytes: compulsory bytes that may stay in nearer caches and are not charged to ``level``.
        work: the work that was bounded.
        profile_name: whose peaks were used, and of which kind they are.
        whole_device: whether ``threads`` means nothing, as on a GPU.
    """

    time_s: float
    terms: dict[str, float]
    binding: str
    arithmetic_intensity: float
    ridge_point: float
    level: str
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    threads: int
    flushed: bool
    cached_bytes: float
    work: Work
    profile_name: str
    whole_device: bool = False

    def explain(self) -> str:
        """The bound in plain text: what each term is made of, which one binds, and why."""
        work, launch_s = self.work, self.terms["launch"]
        users = "whole device" if self.whole_device else f"{self.threads} thread{'s' * (self.threads > 1)}"
        cached = f", {self.cached_bytes:,.0f} of them cached" if self.cached_bytes else ""
        lines = [
            f"speed of light   {_seconds(self.time_s)}   on {self.profile_name}, "
            f"{users}, {'flushed' if self.flushed else 'warm'} caches",
            f"  compute        {_seconds(self.terms['compute'])}   {work.flops:,} {work.dtype} flops "
            f"at {_si(self.peak_flops_per_s)}FLOP/s{self._mark('compute')}",
            f"  {self.level:<14} {_seconds(self.terms[self.level])}   {work.read_bytes:,} bytes read + "
            f"{work.written_bytes:,} written{cached} at {_si(self.bandwidth_bytes_per_s)}B/s"
            f"{self._mark(self.level)}",
            f"  launch         {_seconds(launch_s)}   added to the larger of the two",
            f"intensity {self.arithmetic_intensity:.3g} flop/byte, ridge point {self.ridge_point:.3g}: "
            + (
                "enough arithmetic per byte, so the execution units bind"
                if self.binding == "compute"
                else f"too little arithmetic per byte, so {self.binding} bandwidth binds"
            ),
        ]
        if launch_s > max(self.terms["compute"], self.terms[self.level]):
            lines.append("the launch takes longer than the work: a larger task would tell more")
        return "\n".join(lines)

    def _mark(self, term: str) -> str:
        return "   <- binds" if self.binding == term else ""


def _si(value: float) -> str:
    """Three significant digits with an SI prefix: 2.65e11 is ``265 G``."""
    if not math.isfinite(value):
        return f"{value} "
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def _seconds(value: float) -> str:
    for factor, unit in ((1.0, "s "), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor:
            return f"{value / factor:8.3f} {unit}"
    return f"{value / 1e-9:8.3f} ns"


def transfer_time_s(streams: Streams, read_bytes: float, written_bytes: float) -> float:
    """Least time to read and write these bytes as a mixture of the streams that were measured.

    The streams write 0 (read), 1/3 (add), 1/2 (copy) and all (write) of their bytes. Traffic with any
    other share of writes is split between two of them so that the bytes come out right, and the fastest
    split counts. Caches that read and write through separate ports make such a minimum necessary: in L1,
    ``add`` moves more bytes per second than a read and a copy one after the other. Without a write
    figure, writes go at the better of read and copy, which no memory exceeds.
    """
    total = read_bytes + written_bytes
    if total == 0:
        return 0.0
    rates = [(0.0, streams.read), (0.5, streams.copy)]
    rates.append((1.0, streams.write if streams.write is not None else max(streams.read, streams.copy)))
    if streams.add is not None:
        rates.append((1 / 3, streams.add))
    times = []
    for (share_a, rate_a), (share_b, rate_b) in combinations(rates, 2):
        bytes_a = (written_bytes - total * share_b) / (share_a - share_b)
        if -1e-9 * total <= bytes_a <= total * (1 + 1e-9):
            times.append(bytes_a / rate_a + (total - bytes_a) / rate_b)
    return min(times)


@dataclass(frozen=True)
class _MemoryTerm:
    level: str
    time_s: float
    cached_bytes: float = 0.0


def _memory_term(work: Work, profile: HardwareProfile, threads: int, flushed: bool) -> _MemoryTerm:
    """The slowest memory level for this work, and the seconds that it takes."""
    read, written, touched = work.read_bytes, work.written_bytes, work.working_set_bytes
    term = _MemoryTerm(profile.level_for(touched, threads).name, 0.0)
    swept = profile.measured_streams(touched, threads)
    if swept is not None:
        term = _MemoryTerm(term.level, transfer_time_s(swept, read, written))
    else:
        # Without a sweep, only what cannot stay in nearer levels is charged to a level: of W bytes
        # touched in every call, at least W - capacity cross its boundary whatever is replaced.
        for index, level in enumerate(profile.levels):
            near = profile.resident_bytes(index - 1, threads) if index else 0.0
            streams = level.streams(threads, profile.cores)
            if touched > near and streams is not None:
                time_s = (touched - near) / touched * transfer_time_s(streams, read, written)
                if time_s > term.time_s:
                    term = _MemoryTerm(level.name, time_s, near)
    last = profile.levels[-1]
    outermost = last.streams(threads, profile.cores)
    if flushed and outermost is not None:
        # Reads must come from the last level; what is written may still sit in a cache at the end.
        cold_s = transfer_time_s(outermost, read, 0)
        if cold_s > term.time_s:
            return _MemoryTerm(last.name, cold_s)
    return term


def _bound(work: Work, profile: HardwareProfile, threads: int, flushed: bool, unit: str) -> Bound:
    peak = profile.peak_flops(work.dtype, unit, threads)
    compute_s = work.flops / peak
    memory = _memory_term(work, profile, threads, flushed)
    level, memory_s = memory.level, memory.time_s
    launch_s = profile.launch_overhead_s.get("call", 0.0)
    if threads > 1:
        launch_s += profile.launch_overhead_s.get("parallel_region", 0.0)
    total = work.compulsory_bytes
    bandwidth = total / memory_s if memory_s else math.inf
    return Bound(
        time_s=max(compute_s, memory_s) + launch_s,
        terms={"compute": compute_s, level: memory_s, "launch": launch_s},
        binding="compute" if compute_s >= memory_s else level,
        arithmetic_intensity=work.flops / total if total else math.inf,
        ridge_point=peak / bandwidth,
        level=level,
        peak_flops_per_s=peak,
        bandwidth_bytes_per_s=bandwidth,
        threads=threads,
        flushed=flushed,
        cached_bytes=memory.cached_bytes,
        work=work,
        profile_name=f"{profile.name} ({profile.kind})",
        whole_device=profile.target != "cpu",
    )


def speed_of_light(
    work: Work, profile: HardwareProfile, threads: int = 1, flushed: bool = False, unit: str = "fma"
) -> Bound:
    """Bound the time of a task from below.

    ``T = max(flops / peak, memory time) + launch``. The memory time is that of the compulsory bytes at
    the bandwidth of the nearest level in which the working set stays resident. With several threads the
    bound is the smaller of that for all of them and that for one, since a kernel may leave threads idle
    rather than pay for a parallel region.

    Args:
        work: flops and compulsory bytes.
        profile: published or calibrated peaks.
        threads: threads that the kernel may use.
        flushed: True if caches are flushed before each call, so that inputs come from the last level.
        unit: the execution unit, ``fma`` or, on devices that have one, ``tensor``.

    Raises:
        InvalidOption: the profile has no peak for the dtype and unit, or ``threads`` < 1.
        InvalidProfile: no figure of the profile limits this work, so there is no bound.
    """
    bound = _bound(work, profile, threads, flushed, unit)
    if bound.time_s <= 0:
        raise InvalidProfile(
            f"profile {profile.name!r} sets no bound here: the work has no flops, and there is no bandwidth "
            f"for {bound.level}, where its {work.working_set_bytes:,} bytes stay; choose a larger task or "
            "flushed caches"
        )
    if threads > 1:
        alone = _bound(work, profile, 1, flushed, unit)
        if alone.time_s < bound.time_s:
            return alone
    return bound


def _check_times(**times_s: float) -> None:
    for name, value in times_s.items():
        if not (math.isfinite(value) and value > 0):
            raise InvalidOption(f"{name} is {value}; expected a positive, finite time in seconds")


def has_headroom(baseline_s: float, sol_s: float) -> bool:
    """Whether a baseline leaves something to win: it takes at least 1.05 x the speed of light."""
    _check_times(baseline_s=baseline_s, sol_s=sol_s)
    return baseline_s >= HEADROOM * sol_s


def gap_closed(time_s: float, baseline_s: float, sol_s: float) -> float:
    """How much of the distance from the baseline to the speed of light a time has covered.

    ``ln(baseline / time) / ln(baseline / sol)``: 0 at the baseline, 1 at the speed of light, negative
    when slower than the baseline. Where there is no headroom the denominator is held at ``ln(1.05)``, so
    that the score stays finite; ask ``has_headroom`` before ranking anything by such a score.

    Raises:
        InvalidOption: a time is not positive and finite.
    """
    _check_times(time_s=time_s, baseline_s=baseline_s, sol_s=sol_s)
    return math.log(baseline_s / time_s) / max(math.log(baseline_s / sol_s), math.log(HEADROOM))


def sol_fraction(time_s: float, sol_s: float) -> float:
    """Speed of light over time: 1 means that the bound was reached."""
    _check_times(time_s=time_s, sol_s=sol_s)
    return sol_s / time_s


def speedup(time_s: float, baseline_s: float) -> float:
    """How many times faster than the baseline."""
    _check_times(time_s=time_s, baseline_s=baseline_s)
    return baseline_s / time_s
