"""Where the cache levels are: reported sizes, sizes found in a sweep, and which working sets to time.

Everything here is arithmetic on sizes and rates; ``calibration`` does the timing. Virtual machines often
report odd cache sizes, so the reported ones are kept only where a sweep does not contradict them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from solgym.hardware.fingerprint import HostDevice
from solgym.hardware.microkernels import StreamKernel, StreamKind

__all__ = [
    "Level",
    "SweepPoint",
    "SweepSize",
    "coarse_sizes",
    "envelope",
    "memory_wanted",
    "plateaus",
    "reconcile",
    "reported",
    "spread_over_dies",
    "sweep_sizes",
]

LevelName = Literal["L1", "L2", "L3", "DRAM"]
_NAMES: tuple[LevelName, ...] = ("L1", "L2", "L3", "DRAM")

MIB = 1 << 20

BEYOND = 9.0
"""The largest working set, in multiples of what all caches hold.

Stores that bypass the caches leave them to the array that is read, so a copy must be twice as large as a
read before the caches stop helping: at 9 times, at most a quarter of either array is still resident.
"""

TRANSITION = (1.1, 1.3, 1.6, 2.0, 2.6, 3.3, 4.5, 6.0)
"""Working sets just beyond a cache, in multiples of what fits: part of them still hits."""

PLATEAU_FROM = 8.0
"""From this multiple of the nearer caches on, a level's bandwidth counts as its own."""

QUIETER = 1.25
"""A working set so many times smaller shows what a cache does on a better day."""


@dataclass(frozen=True)
class Level:
    """One level of the hierarchy; ``size_bytes`` is None for DRAM."""

    name: LevelName
    size_bytes: int | None
    instances: int = 1
    shared: bool = False


@dataclass(frozen=True)
class SweepSize:
    """A working set to time, the level it belongs to, and whether that level's own bandwidth shows there."""

    working_set_bytes: int
    level: LevelName
    level_index: int
    plateau: bool


@dataclass
class SweepPoint:
    """A working set, the best bandwidth of each stream there in bytes per second, and the kernels for it.

    ``doubtful`` streams were interrupted whenever they were timed: their rates are upper limits.
    """

    size: SweepSize
    rates: dict[StreamKind, float] = field(default_factory=dict)
    kernels: dict[StreamKind, StreamKernel] = field(default_factory=dict)
    doubtful: set[StreamKind] = field(default_factory=set)

    def credit(self, kernel: StreamKernel, rate: float, clean: bool) -> None:
        """Keep the better rate of a stream; an uninterrupted one replaces a mere upper limit."""
        kind = kernel.kind
        better = rate > self.rates.get(kind, 0.0) and clean == (kind not in self.doubtful)
        if kind not in self.rates or better or (clean and kind in self.doubtful):
            self.rates[kind], self.kernels[kind] = rate, kernel
            self.doubtful = self.doubtful - {kind} if clean else self.doubtful | {kind}


def reported(device: HostDevice, members: int) -> tuple[Level, ...]:
    """The cache levels that the operating system reports, and DRAM."""
    caches = [
        Level(_NAMES[int(c.name[1]) - 1], c.size_bytes, min(c.instances, members), c.shared and members > 1)
        for c in device.caches
    ]
    return (*caches, Level("DRAM", None, 1, members > 1))


def resident_bytes(levels: Sequence[Level], index: int, members: int) -> float:
    """Bytes that levels 0 to ``index`` hold together for so many threads, one on each core."""
    sizes = [(level.size_bytes or math.inf) * min(members, level.instances) for level in levels[: index + 1]]
    return sum(sizes)


def memory_wanted(levels: Sequence[Level], members: int, budget_bytes: int) -> int:
    """Bytes to reserve so that the largest working set is well beyond all caches, within a budget."""
    cached = resident_bytes(levels[:-1], len(levels), members) if len(levels) > 1 else 32 * MIB
    per_member = max(64 * MIB, BEYOND * cached) / members
    return min(budget_bytes, math.ceil(per_member / (2 * MIB)) * 2 * MIB * members)


def coarse_sizes(limit_bytes: int) -> list[int]:
    """Working sets from 8 KiB up, each 1.5 times the one before (rounded to 4 KiB)."""
    sizes, size = [], 8192.0
    while size <= limit_bytes:
        sizes.append(int(size) // 4096 * 4096)
        size *= 1.5
    return sizes


def _knees(sweep: Sequence[tuple[int, float]]) -> list[int]:
    """Working sets after which the read bandwidth drops by a fifth or more within two steps."""
    rates = [max(rate for _, rate in sweep[position:]) for position in range(len(sweep))]
    drops = [rates[i] / rates[min(i + 2, len(rates) - 1)] for i in range(len(rates))]
    # Of equal drops side by side the last counts: the largest working set that is still fast.
    return [
        sweep[i][0]
        for i, drop in enumerate(drops)
        if drop >= 1.25
        and drop >= max(drops[max(0, i - 3) : i + 1])
        and drop > max(drops[i + 1 : i + 4], default=0.0)
    ]


def reconcile(levels: tuple[Level, ...], sweep: Sequence[tuple[int, float]]) -> tuple[tuple[Level, ...], str]:
    """Correct the reported levels by a coarse read sweep on one core.

    Without any report, up to three knees of the sweep become private caches. Otherwise only the last
    cache is doubted, the one that virtual machines misreport: if bandwidth has fallen half way (in
    logarithm) to DRAM's at less than half or more than twice its size, the place of the fall counts.

    Returns:
        the levels, and one clause that says where their sizes are from.
    """
    if len(levels) == 1:
        knees = _knees(sweep)[:3]
        found = [Level(_NAMES[index], size) for index, size in enumerate(knees)]
        return (*found, levels[-1]), "nothing reported; knees of a read sweep"
    last, size = levels[-2], levels[-2].size_bytes or 0
    near = resident_bytes(levels[:-2], len(levels), 1)
    inside = [rate for nbytes, rate in sweep if 2 * near <= nbytes <= max(4 * near, size / 8)]
    outermost = sweep[-1][1]
    if not inside or max(inside) < 1.25 * outermost:
        return levels, "reported by the operating system; the last cache is no faster than DRAM"
    half_way = math.sqrt(max(inside) * outermost)
    fall = max((nbytes for nbytes, rate in sweep if rate >= half_way), default=size)
    if size / 2 <= fall <= 2 * size or (fall > size and fall == sweep[-1][0]):
        return levels, "reported by the operating system, confirmed by a read sweep"
    corrected = Level(last.name, max(fall, 2 * int(near)), last.instances, last.shared)
    remark = f"reported by the operating system; {last.name} says {size} bytes, a read sweep {fall}"
    return (*levels[:-2], corrected, levels[-1]), remark


def sweep_sizes(levels: Sequence[Level], members: int, limit_bytes: int) -> list[SweepSize]:
    """The working sets to time, all threads together: dense beyond each cache, sparse on plateaus."""
    sizes: list[SweepSize] = []
    near = 0.0
    for index, level in enumerate(levels):
        far = min(resident_bytes(levels, index, members), limit_bytes)
        if level.size_bytes is None:
            factors = [*(f for f in TRANSITION if f * near < 0.75 * far), far / max(near, 1.0)]
            wanted = [(near * f, f >= 6.0 or f == factors[-1]) for f in factors]
        elif index == 0:
            wanted = [(far * f, True) for f in (0.35, 0.6, 0.85)]
        else:
            wanted = [(near * f, False) for f in TRANSITION if near * f < 0.5 * far]
            start = min(max(PLATEAU_FROM * near, far / 64), 0.6 * far)
            wanted += [(start, True), (math.sqrt(start * far * 0.8), True)] if start < 0.4 * far else []
            wanted += [(far * f, True) for f in (0.5, 0.6, 0.7, 0.8, 0.95)]
        for nbytes, plateau in wanted:
            rounded = int(nbytes) // 4096 * 4096
            if rounded and (not sizes or rounded > sizes[-1].working_set_bytes) and rounded <= limit_bytes:
                sizes.append(SweepSize(rounded, level.name, index, plateau))
        near = far
    return sizes


def plateaus(points: Sequence[SweepPoint]) -> dict[LevelName, dict[StreamKind, float]]:
    """Each level's own bandwidth: the best of its plateau, or of all its points if it has none."""
    result: dict[LevelName, dict[StreamKind, float]] = {}
    for name in dict.fromkeys(point.size.level for point in points):
        own = [point for point in points if point.size.level == name]
        flat = [point for point in own if point.size.plateau] or own[-1:]
        result[name] = {kind: max(point.rates[kind] for point in flat) for kind in flat[0].rates}
    return result


def envelope(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """The sweep as a bound: no point below a farther one, nor below slightly nearer ones of its level.

    What a working set reached is within reach of any smaller one. How much of it a cache keeps wavers with
    the pages it lies in and with neighbours that come and go, so each is also credited with what one up to
    ``QUIETER`` times smaller reached in the same level. Within L1 and L2, which are a core's own, every
    working set is credited with the best of them all.
    """
    result: list[SweepPoint] = []
    beyond: dict[StreamKind, float] = dict.fromkeys(points[-1].rates, 0.0)
    for point in reversed(points):
        beyond = {kind: max(rate, point.rates[kind]) for kind, rate in beyond.items()}
        own_cache = point.size.plateau and point.size.level in ("L1", "L2")
        reach = 0.0 if own_cache else point.size.working_set_bytes / QUIETER
        near = [p for p in points if p.size.level == point.size.level and p.size.working_set_bytes >= reach]
        near = [p for p in near if p.size.plateau or not own_cache]
        rates = {kind: max(beyond[kind], *(p.rates[kind] for p in near)) for kind in beyond}
        result.append(SweepPoint(point.size, rates))
    return result[::-1]


def spread_over_dies(
    together: Sequence[SweepPoint], alone: Sequence[SweepPoint], members: int
) -> list[SweepPoint]:
    """Credit all threads with what each reaches alone on its share: every one on a die of its own.

    Hypervisors move virtual CPUs between dies, each with its own last cache and its own link to memory, and a
    sweep sees the placement of its moment only. Both sweeps must be envelopes.
    """
    result = []
    for point in together:
        share = point.size.working_set_bytes / members
        reached = [near for near in alone if near.size.working_set_bytes <= share] or list(alone[:1])
        rates = {kind: max(rate, members * reached[-1].rates[kind]) for kind, rate in point.rates.items()}
        result.append(SweepPoint(point.size, rates, point.kernels, point.doubtful))
    return envelope(result)
