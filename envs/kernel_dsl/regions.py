"""Which part of a tensor is needed where, and how buffers are laid out.

A stage that is computed inside a loop of another one covers only the region that this iteration reads. A
region is a start per dimension (linear in the loop counters outside) and an extent (a number).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solgym.envs.kernel_dsl.emission import Linear
from solgym.envs.kernel_dsl.expression import Affine
from solgym.envs.kernel_dsl.nest import Layout, ProgramNest, StageNest
from solgym.errors import IllegalSchedule

__all__ = ["Buffer", "Range", "axis_ranges", "largest_extents", "region_of"]


@dataclass(frozen=True)
class Range:
    """``extent`` consecutive values from ``start``."""

    start: Linear
    extent: int


def index_range(index: Affine, axes: dict[str, Range]) -> Range:
    """The values that an affine index takes over ranges of its axes."""
    start, extent = Linear((), index.constant), 1
    for axis, coefficient in index.terms:
        start = start.plus(axes[axis].start, coefficient)
        extent += coefficient * (axes[axis].extent - 1)
    return Range(start, extent)


def axis_ranges(
    program: ProgramNest, nest: StageNest, host: StageNest, at_loop: dict[str, Range]
) -> dict[str, Range]:
    """Ranges of a stage's axes during one iteration of a loop of ``host``, whose ranges are ``at_loop``."""
    if nest.name == host.name:
        return at_loop
    region = region_of(program, nest, host, at_loop)
    ranges = {axis.name: range_ for axis, range_ in zip(nest.stage.axes, region, strict=True)}
    for axis in nest.stage.reduction_axes:
        ranges[axis.name] = Range(Linear(), axis.extent)
    return ranges


def region_of(
    program: ProgramNest, nest: StageNest, host: StageNest, at_loop: dict[str, Range]
) -> tuple[Range, ...]:
    """What the readers of a stage need of it during one iteration of a loop of ``host``."""
    merged: list[Range] | None = None
    for reader_name in program.consumers.get(nest.name, ()):
        reader = program.by_name[reader_name]
        axes = axis_ranges(program, reader, host, at_loop)
        for load in reader.stage.loads_of(nest.name):
            ranges = [index_range(index, axes) for index in load.index]
            merged = (
                ranges
                if merged is None
                else [_union(a, b, nest.name) for a, b in zip(merged, ranges, strict=True)]
            )
    if merged is None:
        raise IllegalSchedule(f"nothing reads stage {nest.name} where it is computed")
    return tuple(merged)


def _union(a: Range, b: Range, name: str) -> Range:
    difference = b.start.plus(a.start, -1)
    if difference.terms:
        raise IllegalSchedule(f"the stages that read {name} need unrelated parts of it")
    low = min(0, difference.constant)
    high = max(a.extent, difference.constant + b.extent)
    return Range(a.start.shifted(low), high - low)


def largest_extents(program: ProgramNest) -> dict[str, tuple[int, ...]]:
    """The largest region, per dimension, that each stage ever covers: the size of its buffer."""
    sizes: dict[str, tuple[int, ...]] = {}
    for nest in reversed(program.stages):
        if nest.attachment is None:
            sizes[nest.name] = nest.stage.tensor.shape
            continue
        host = program.by_name[nest.attachment.stage]
        extents = dict(zip((a.name for a in host.stage.axes), sizes[host.name], strict=True))
        remaining = host.remaining(host.positions[nest.attachment.loop] + 1)
        at_loop = {a: Range(Linear(), min(e, extents.get(a, e))) for a, e in remaining.items()}
        sizes[nest.name] = tuple(r.extent for r in region_of(program, nest, host, at_loop))
    return sizes


class Buffer:
    """Where the elements of a tensor lie: strides per dimension, in elements, tiled or not."""

    def __init__(self, shape: tuple[int, ...], layout: Layout | None) -> None:
        order = layout or tuple((d, 1) for d in range(len(shape)))
        self.shape = shape
        self.entries: list[list[tuple[int, int]]] = [[] for _ in shape]
        counts = []
        for position, (dimension, tile) in enumerate(order):
            outer = [t for d, t in order[:position] if d == dimension]
            counts.append(outer[-1] // tile if outer else -(-shape[dimension] // tile))
        for position, (dimension, tile) in enumerate(order):
            self.entries[dimension].append((tile, math.prod(counts[position + 1 :])))
        self.elements = math.prod(counts)

    def offset(self, local: list[Linear]) -> Linear:
        """The offset in elements of an element, from its indices relative to the buffer's start."""
        total = Linear()
        for index, entries in zip(local, self.entries, strict=True):
            if len(entries) == 1:
                total = total.plus(index, entries[0][1])
                continue
            (tile, outer), (_, inner) = entries
            terms = tuple(
                (s, c * outer // tile if c * s.stride % tile == 0 else c * inner) for s, c in index.terms
            )
            constant = index.constant // tile * outer + index.constant % tile * inner
            total = total.plus(Linear(terms, constant))
        return total

    def stride(self, dimension: int) -> int:
        """Distance in elements of neighbours along a dimension, inside a tile."""
        return self.entries[dimension][-1][1]
