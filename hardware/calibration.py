"""Calibration: measure this machine's CPU peaks, bandwidths and overheads in a few seconds.

The kernels come from ``microkernels`` and are compiled through llvmlite, so no C compiler is needed. What is
kept of every figure is the best that was seen, because a profile bounds what kernels can reach: a peak
that a good kernel beats would be worse than useless. ``docs/hardware.md`` has the method and the checks.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from solgym.errors import UnsupportedTarget
from solgym.hardware import cache_levels, overheads
from solgym.hardware.cache_levels import Level, SweepPoint
from solgym.hardware.fingerprint import calibration_fingerprint, check_threads, host_device
from solgym.hardware.kernel_timing import Kernel, Load, Team, WorkingMemory, best_rate, simultaneous_rate
from solgym.hardware.microkernels import StreamKernel, StreamKind, fma_kernel
from solgym.hardware.profile import BandwidthPoint, ByThreads, HardwareProfile, MemoryLevel, Progress, Threads

__all__ = ["calibrate", "memory_budget_bytes"]

FMA_CHAINS = (10, 12, 24)
"""Chains tried: 10 and 12 leave constants a register among 16, 24 suits 32 and longer latencies."""

MIB = 1 << 20
MAX_MEMORY_BYTES = 2048 * MIB
SOFT_LIMIT_S = 8.0
"""On a busy machine, every point still to come gets the fewest passes after this long."""

HARD_LIMIT_S = 12.0
"""After this long only the kernels that won at the point before are timed, once, to end within 20 s."""

MAX_ATTEMPTS = 3
"""How often a point is timed, each time with twice the passes, until no thread loses its core."""

PLACE_STEP_BYTES = 5 * MIB // 4

LOOKS = 3
"""How often shared levels are timed again. Their bandwidth wavers by 10 to 15% within seconds."""

MAX_SPREAD = 8
"""Virtual CPUs up to which each may be on a die of its own, and all together so many times as fast as one.

Measured on 2 of Zen 5: writes to DRAM reach 44 or 87 GB/s, changing every 5 to 20 s with the placement. With
more CPUs than this the product would pass what any socket has, and the sweep of all is believed.
"""

_KINDS: tuple[StreamKind, ...] = get_args(StreamKind)


@dataclass(frozen=True)
class _Variant:
    """One way to run a stream, and the nearest level (0 is L1) at which it can be the fastest."""

    kernel: StreamKernel
    from_level: int


def stream_variants(vector_bits: int) -> list[_Variant]:
    """The implementations among which the fastest counts, for each stream and working set.

    Plain loops win in near caches. Several strands engage more prefetchers. Stores that bypass the caches
    save the read of every line to be written, which pays once the working set leaves L2.
    """

    def variant(kind: StreamKind, strands: int, unroll: int, from_level: int, **options: object) -> _Variant:
        return _Variant(StreamKernel(kind, vector_bits, strands, unroll, **options), from_level)  # type: ignore[arg-type]

    return [
        variant("read", 1, 8, 0),
        variant("read", 4, 4, 0),
        variant("copy", 1, 8, 0),
        variant("copy", 4, 4, 2, nontemporal=True),
        variant("copy", 1, 8, 2, nontemporal=True),
        variant("copy", 1, 8, 0, library=True),
        variant("add", 1, 16, 0),
        variant("add", 2, 4, 1),
        variant("add", 4, 4, 2, nontemporal=True),
        variant("add", 1, 8, 2, nontemporal=True),
        variant("write", 1, 8, 0),
        variant("write", 4, 4, 1),
        variant("write", 1, 8, 0, library=True),
        variant("write", 1, 8, 2, nontemporal=True),
    ]


def memory_budget_bytes() -> int:
    """Memory that calibration may take: a third of what is free, at most 2 GiB."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        free = 1024 * MIB
    return min(MAX_MEMORY_BYTES, free // 3)


@dataclass
class _Session:
    """What a running calibration shares between its parts: the team, memory, kernels, clock, progress."""

    team: Team
    memory: WorkingMemory
    vector_bits: int
    progress: Progress
    started_s: float = field(default_factory=time.perf_counter)
    look: int = 0
    _kernels: dict[str, Kernel] = field(default_factory=dict)

    def kernel(self, ir: str) -> Kernel:
        """The compiled kernel of this text."""
        if ir not in self._kernels:
            self._kernels[ir] = Kernel(ir)
        return self._kernels[ir]

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started_s

    def rate(self, threads: Threads, load_of: Callable[[int], Load], repeats: int) -> tuple[float, bool]:
        """The best rate of one thread, or of all at once; False if it is only an upper limit."""
        hurry = self.elapsed_s > SOFT_LIMIT_S
        if threads == "1":
            return self.team.alone(lambda: best_rate(load_of(0), 3 if hurry else repeats)), True
        rate, clean = 0.0, False
        for attempt in range(1 if hurry else MAX_ATTEMPTS):
            rate, clean = simultaneous_rate(self.team, load_of, 3 if hurry else repeats << attempt)
            if clean:
                break
        return rate, clean

    def stream_load(
        self, kernel: StreamKernel, working_set_bytes: int, members: int
    ) -> Callable[[int], Load]:
        """Each member's equal share of a working set, in that member's own part of the memory."""
        share = working_set_bytes // members
        nbytes = max(kernel.granule_bytes, share // kernel.granule_bytes * kernel.granule_bytes)
        part = self.memory.nbytes // members
        # Where an array lies decides how well L2 keeps it: each look takes another place.
        shift = min(self.look * PLACE_STEP_BYTES, part - nbytes) // 4096 * 4096
        compiled = self.kernel(kernel.ir())

        def load(index: int) -> Load:
            address = self.memory.address + shift + index * part // 4096 * 4096
            return Load(compiled, address, nbytes, nbytes, kernel.granule_bytes)

        return load


def _quiet(fraction: float, text: str) -> None:
    """The progress callback of callers who want none."""


def calibrate(threads: int | None = None, progress: Progress | None = None) -> HardwareProfile:
    """Measure this machine: multiply-add peaks, bandwidths of every memory level, call overheads.

    Takes about 8 s. Nothing is read from or written to the cache; ``host_profile`` does that.

    Args:
        threads: what "all" means in the profile; all usable physical cores by default.
        progress: called with the fraction done and what is being measured.

    Raises:
        InvalidOption: more threads than usable cores, or fewer than one.
        UnsupportedTarget: too little free memory to tell DRAM from the caches.
    """
    members, device = check_threads(threads), host_device()
    budget = memory_budget_bytes()
    if budget < 64 * MIB:
        raise UnsupportedTarget(
            f"calibration needs 64 MiB, and a third of the free memory is {budget // MIB} MiB; free some"
        )
    report = progress or _quiet
    report(0.0, "reserving memory")
    reported = cache_levels.reported(device, members)
    memory = WorkingMemory(cache_levels.memory_wanted(reported, members, budget))
    with Team(device.cpus[:members]) as team:
        share = memory.nbytes // members
        team.everyone(lambda index: memory.fill(index * share, (index + 1) * share))
        session = _Session(team, memory, device.vector_bits, report)
        peaks = _peaks(session)
        report(0.06, "finding cache sizes")
        levels, remark = _levels(session, reported)
        tables: tuple[Threads, ...] = ("1", "all") if members > 1 else ("1",)
        swept: dict[Threads, list[SweepPoint]] = {}
        for position, table in enumerate(tables):
            swept[table] = _sweep(session, levels, table, 0.08 + 0.3 * position, 0.38 + 0.3 * position)
        for look in range(LOOKS):
            session.look = look + 1
            for table in tables:
                report(0.68 + 0.28 * look / LOOKS, f"bandwidth again, look {look + 2} of {LOOKS + 1}")
                _look_again(session, swept[table], table, brief=look > 0)
        report(0.96, "overheads")
        overhead_s = team.alone(lambda: overheads.measure(device.cpus[:members]))
    profile = _assemble(members, peaks, levels, swept, overhead_s, remark)
    report(1.0, "done")
    return profile


def _peaks(session: _Session) -> dict[str, dict[str, ByThreads]]:
    """Multiply-add peaks: the best over chain counts and over the two widest vectors of the host."""
    result: dict[str, ByThreads] = {}
    widths = {session.vector_bits, max(128, session.vector_bits // 2)}
    dtypes: tuple[Literal["f32", "f64"], ...] = ("f32", "f64")
    for position, dtype in enumerate(dtypes):
        session.progress(0.01 + 0.025 * position, f"{dtype} multiply-add peak")
        best: dict[Threads, float] = {"1": 0.0, "all": 0.0}
        for width in sorted(widths, reverse=True):
            for chains in FMA_CHAINS:
                kernel, unroll = session.kernel(fma_kernel(dtype, width, chains, unroll=4)), 4
                flops = 2.0 * width // int(dtype[1:]) * chains * unroll

                def load(index: int, kernel: Kernel = kernel, flops: float = flops) -> Load:
                    return Load(kernel, session.memory.address + 4096 * index, 0, flops)

                best["1"] = max(best["1"], session.rate("1", load, 12)[0])
                if session.team.size > 1 and width == max(widths):
                    best["all"] = max(best["all"], session.rate("all", load, 12)[0])
        result[dtype] = _both(best["1"], best["all"], session.team.size)
    return {"fma": result}


def _both(one: float, together: float, members: int) -> ByThreads:
    """A rate for one thread and for all; what all reach together, one of them reaches its share of."""
    one = max(one, together / members)
    return {"1": one, "all": max(one, together)}


def _levels(session: _Session, reported: tuple[Level, ...]) -> tuple[tuple[Level, ...], str]:
    """Cache levels of one core: as reported, where a coarse read sweep does not contradict."""
    kernel = StreamKernel("read", session.vector_bits, strands=4)
    sweep = []
    for nbytes in cache_levels.coarse_sizes(session.memory.nbytes):
        load = session.stream_load(kernel, nbytes, 1)
        sweep.append((nbytes, session.rate("1", load, 5)[0]))
    return cache_levels.reconcile(reported, sweep)


def _sweep(
    session: _Session, levels: Sequence[Level], threads: Threads, begin: float, end: float
) -> list[SweepPoint]:
    """Time every stream at working sets from within L1 to far beyond the last cache."""
    members = 1 if threads == "1" else session.team.size
    variants = stream_variants(session.vector_bits)
    points: list[SweepPoint] = []
    sizes = cache_levels.sweep_sizes(levels, members, session.memory.nbytes)
    for position, size in enumerate(sizes):
        fraction = begin + (end - begin) * position / len(sizes)
        session.progress(fraction, _describe(size.working_set_bytes, size.level, members))
        point = SweepPoint(size)
        kernels = [v.kernel for v in variants if size.level_index >= v.from_level or size.level == "DRAM"]
        if points and session.elapsed_s > HARD_LIMIT_S:
            kernels = list(points[-1].kernels.values())
        for kernel in kernels:
            load = session.stream_load(kernel, size.working_set_bytes, members)
            repeats = 10 if size.working_set_bytes < 32 * MIB else 4
            point.credit(kernel, *session.rate(threads, load, repeats))
        points.append(point)
    return points


def _look_again(session: _Session, points: list[SweepPoint], threads: Threads, brief: bool) -> None:
    """Time the fastest kernels again where others can interfere, seconds after the last time.

    That is beyond L1, which other programs share by turns or all the time, and wherever a point lies below
    its successor, as bandwidth does not rise with the working set. A brief look leaves out the largest
    working sets, which no cache helps: they take longest and vary least.
    """
    members = 1 if threads == "1" else session.team.size
    largest = points[-1].size.working_set_bytes
    for position, point in enumerate(points):
        if session.elapsed_s > HARD_LIMIT_S:
            return
        size = point.size
        if brief and size.working_set_bytes > largest / 3:
            return
        following = points[min(position + 1, len(points) - 1)]
        kernels = list(point.kernels.values())
        if size.level == "L2" and size.plateau and threads == "1":
            kernels = [v.kernel for v in stream_variants(session.vector_bits) if v.from_level < 2]
        for kernel in kernels:
            kind = kernel.kind
            disturbed = point.rates[kind] < 0.97 * following.rates[kind] or kind in point.doubtful
            if disturbed or size.level != "L1":
                load = session.stream_load(kernel, size.working_set_bytes, members)
                point.credit(kernel, *session.rate(threads, load, 3 if brief else 6))


def _describe(working_set_bytes: int, level: str, members: int) -> str:
    return f"bandwidth, {members} thread{'s' * (members > 1)}, {working_set_bytes / 1024:,.0f} KiB ({level})"


def _assemble(
    members: int,
    peaks: dict[str, dict[str, ByThreads]],
    levels: Sequence[Level],
    swept: dict[Threads, list[SweepPoint]],
    overhead_s: dict[Literal["call", "parallel_region"], float],
    remark: str,
) -> HardwareProfile:
    device = host_device()
    doubtful = sum(len(point.doubtful) for point in swept.get("all", []))
    remark_all = f"all threads: {doubtful} figures are upper limits, as other processes interfered"
    swept = {threads: cache_levels.envelope(points) for threads, points in swept.items()}
    swept.setdefault("all", swept["1"])
    if device.virtual and 1 < members <= MAX_SPREAD:
        swept["all"] = cache_levels.spread_over_dies(swept["all"], swept["1"], members)
        remark_all += "; a virtual machine: at least each thread's own rate, as if on a die of its own"
    one, together = cache_levels.plateaus(swept["1"]), cache_levels.plateaus(swept["all"])
    memory_levels = []
    for level in levels:
        rates: dict[str, ByThreads] = {
            f"{kind}_bytes_per_s": {
                "1": one[level.name][kind],
                "all": max(one[level.name][kind], together[level.name][kind]),
            }
            for kind in _KINDS
        }
        memory_levels.append(
            MemoryLevel(
                name=level.name,
                size_bytes=level.size_bytes,
                shared=level.shared,
                instances=level.instances,
                **rates,
            )
        )
    return HardwareProfile(
        name=device.model,
        kind="calibrated",
        target="cpu",
        cores=members,
        vector_bits=device.vector_bits,
        peak_flops_per_s=peaks,
        levels=tuple(memory_levels),
        bandwidth_curve={threads: tuple(map(_point, curve)) for threads, curve in swept.items()},
        launch_overhead_s=overhead_s,
        sources={
            "cores": "usable physical cores, from the operating system",
            "vector_bits": "LLVM's host features",
            "peak_flops_per_s": "independent multiply-add chains in registers; best of several kernels",
            "levels.*.size_bytes": remark,
            "levels.*.instances": "the operating system's cache topology",
            "levels.*_bytes_per_s": "the best working set well inside each level",
            "bandwidth_curve": f"sweep of the working set, best of several kernels; {remark_all}",
            "launch_overhead_s": "calls of an empty kernel; parallel regions without work",
        },
        fingerprint=calibration_fingerprint(members),
    )


def _point(point: SweepPoint) -> BandwidthPoint:
    rates = {f"{kind}_bytes_per_s": point.rates[kind] for kind in _KINDS}
    return BandwidthPoint(
        working_set_bytes=math.floor(point.size.working_set_bytes), level=point.size.level, **rates
    )
