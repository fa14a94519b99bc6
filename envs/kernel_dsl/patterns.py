"""Patterns: whole schedule skeletons with a few parameters, as programmers of kernels know them.

A pattern writes ordinary steps through a ``ScheduleWriter``, which keeps the nest at hand, so that parameters
too large for a small shape fall away instead of failing. Knob spaces (``knobs``) and the pattern actions
of the environments are made of these functions; nothing here can do what the primitives would refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from solgym.envs.kernel_dsl.nest import Loop, LoopKind, ProgramNest, StageNest
from solgym.envs.kernel_dsl.primitives import Step, apply_step
from solgym.envs.kernel_dsl.rules import MAX_ACCUMULATORS, Limits
from solgym.errors import IllegalSchedule

__all__ = [
    "Blocking", "ScheduleWriter", "contraction", "pack", "pack_transposed", "pointwise", "prefetch_ahead",
    "row_reduction", "rows_inside", "square_transpose",
]  # fmt: skip


class ScheduleWriter:
    """Collects steps while applying them.

    Attributes:
        nest: the program as it is after the steps so far.
        steps: the steps so far.
    """

    def __init__(self, nest: ProgramNest, limits: Limits) -> None:
        self.nest = nest
        self.limits = limits
        self.steps: list[Step] = []

    def do(self, op: str, stage: str, **arguments: Any) -> None:
        """Apply one step.

        Raises:
            IllegalSchedule: the primitive refuses.
        """
        step = {"op": op, "stage": stage, **arguments}
        self.nest = apply_step(self.nest, step, self.limits)
        self.steps.append(step)

    def stage(self, name: str) -> StageNest:
        """A stage as it is now."""
        return self.nest.by_name[name]

    def loop(self, stage: str, name: str) -> Loop:
        """A loop as it is now."""
        nest = self.stage(stage)
        return nest.loops[nest.positions[name]]

    def tile(self, stage: str, loop: str | None, factor: int) -> tuple[str | None, str | None]:
        """Split a loop: (outer, inner), either None where it would have one trip; 0 leaves it whole."""
        if loop is not None and factor == 1:
            return loop, None
        if loop is None or factor == 0 or factor >= self.loop(stage, loop).trips:
            return None, loop
        self.do("split", stage, loop=loop, factor=factor)
        return f"{loop}.o", f"{loop}.i"

    def order(self, stage: str, loops: Sequence[str | None]) -> None:
        """Bring the named loops into the given order; absent ones are skipped."""
        wanted = [name for name in loops if name is not None]
        present = [loop.name for loop in self.stage(stage).loops if loop.name in wanted]
        if len(wanted) > 1 and present != wanted:
            self.do("reorder", stage, loops=wanted)

    def unroll(self, stage: str, *loops: str | None) -> None:
        """Unroll the loops that exist."""
        for name in loops:
            if name is not None:
                self.do("unroll", stage, loop=name)

    def vectorize(self, stage: str, loop: str | None, lanes: int) -> None:
        """Vectorise a loop of at most ``lanes`` trips; a single trip is unrolled."""
        if loop is not None and self.loop(stage, loop).trips > 1:
            self.do("vectorize", stage, loop=loop, lanes=lanes)
        else:
            self.unroll(stage, loop)

    def parallelise(self, stage: str, threads: int) -> None:
        """Run the outermost loop in parallel if there are threads and it allows that."""
        nest = self.stage(stage)
        if threads > 1 and nest.attachment is None and nest.loops:
            first = nest.loops[0]
            serial = first.kind is LoopKind.SERIAL and not nest.is_reduction(first)
            if serial and first.trips > 1 and nest.accumulate_position != 0:
                self.do("parallel", stage, loop=first.name)


@dataclass(frozen=True)
class Blocking:
    """The loops that ``contraction`` made, outermost first; None where a level is absent."""

    column_block: str | None
    reduction_block: str | None
    row_block: str | None
    column_panel: str | None
    row_panel: str | None


def contraction(
    w: ScheduleWriter,
    stage: str,
    *,
    rows: str,
    columns: str,
    lanes: int,
    tile_rows: int,
    tile_vectors: int,
    block_rows: int = 0,
    block_columns: int = 0,
    block_reduction: int = 0,
    order: str = "columns",
    threads: int = 1,
) -> Blocking:
    """Multi-level tiling of a contraction with a register tile.

    The register tile has ``tile_rows`` rows of ``tile_vectors`` vectors of ``lanes`` columns. Around it run
    the reduction, then tiles along the other axis than ``order`` names, then tiles along ``order``; then
    cache blocks of ``block_rows``, of ``block_reduction`` (of the last reduction axis) and of
    ``block_columns``; 0 leaves a level out. With threads, the outermost loop is shared out.

    Raises:
        IllegalSchedule: the register tile needs too many accumulators.
    """
    if tile_rows * tile_vectors > MAX_ACCUMULATORS:
        raise IllegalSchedule(f"a tile of {tile_rows} x {tile_vectors} vectors needs too many accumulators")
    nest = w.stage(stage)
    outer = [a.name for a in nest.stage.axes if a.name not in (rows, columns)]
    reductions = [a.name for a in nest.stage.reduction_axes]
    column_block, column_rest = w.tile(stage, columns, block_columns)
    column_panel, column_tile = w.tile(stage, column_rest, lanes * tile_vectors)
    column_vectors, lane_loop = w.tile(stage, column_tile, lanes)
    row_block, row_rest = w.tile(stage, rows, block_rows)
    row_panel, row_tile = w.tile(stage, row_rest, tile_rows)
    reduction_block, reduction_rest = w.tile(stage, reductions[-1], block_reduction)
    inner_reductions = [*reductions[:-1], reduction_rest]
    if lane_loop is None:
        lane_loop, column_vectors = column_vectors, None
    panels = [column_panel, row_panel] if order == "columns" else [row_panel, column_panel]
    blocks = [column_block, reduction_block, row_block]
    if threads > 1 and column_block is None and reduction_block is not None and row_block is not None:
        blocks = [row_block, reduction_block]
    w.order(stage, [*outer, *blocks, *panels, *inner_reductions, row_tile, column_vectors, lane_loop])
    w.unroll(stage, row_tile, column_vectors)
    w.vectorize(stage, lane_loop, lanes)
    first = next(name for name in (inner_reductions) if name is not None)
    w.do("accumulate", stage, loop=first)
    w.parallelise(stage, threads)
    return Blocking(column_block, reduction_block, row_block, column_panel, row_panel)


def row_reduction(
    w: ScheduleWriter, stage: str, *, lanes: int, tile_rows: int = 1, partial: int = 1, threads: int = 1
) -> None:
    """Reduce along rows in vectors, with several partial accumulators, several rows at once.

    ``tile_rows`` rows share what they read in common; ``partial`` vectors per row accumulate side by side.
    """
    nest = w.stage(stage)
    rows, columns = nest.stage.axes[-1].name, nest.stage.reduction_axes[-1].name
    row_panel, row_tile = w.tile(stage, rows, tile_rows)
    column_panel, column_tile = w.tile(stage, columns, lanes * partial)
    vectors, lane_loop = w.tile(stage, column_tile, lanes)
    if lane_loop is None:
        lane_loop, vectors = vectors, None
    others = [a.name for a in nest.stage.axes[:-1]] + [a.name for a in nest.stage.reduction_axes[:-1]]
    w.order(stage, [*others, row_panel, column_panel, row_tile, vectors, lane_loop])
    w.unroll(stage, row_tile, vectors)
    around = column_panel or row_tile or vectors or lane_loop
    if around is not None:
        w.do("accumulate", stage, loop=around)
    w.vectorize(stage, lane_loop, lanes)
    if vectors is not None:
        w.do("split_reduction", stage, loop=vectors)
    w.parallelise(stage, threads)


def pointwise(
    w: ScheduleWriter,
    stage: str,
    *,
    lanes: int,
    tile_rows: int = 1,
    tile_vectors: int = 1,
    stream: bool = False,
    threads: int = 1,
) -> None:
    """Vectors along the last loop, ``tile_vectors`` at a time, on ``tile_rows`` rows at once.

    Serves elementwise stages, stencils and (with reduction axes, unrolled) small convolutions. Loops that
    were split before, for what is computed inside the stage, stay outside.
    """
    nest = w.stage(stage)
    reductions = [a.name for a in nest.stage.reduction_axes]
    axes = [loop.name for loop in nest.loops if loop.name not in reductions]
    columns = axes[-1]
    rows = axes[-2] if len(axes) > 1 and not w.nest.attached.get((stage, axes[-2])) else None
    row_panel, row_tile = w.tile(stage, rows, tile_rows)
    column_panel, column_tile = w.tile(stage, columns, lanes * tile_vectors)
    vectors, lane_loop = w.tile(stage, column_tile, lanes)
    if lane_loop is None:
        lane_loop, vectors = vectors, None
    leading = axes[:-2] if rows is not None else axes[:-1]
    w.order(stage, [*leading, row_panel, column_panel, *reductions, row_tile, vectors, lane_loop])
    w.unroll(stage, *reductions, row_tile, vectors)
    w.vectorize(stage, lane_loop, lanes)
    if reductions:
        w.do("accumulate", stage, loop=reductions[0])
    if stream:
        w.do("stream", stage)
    w.parallelise(stage, threads)


def prefetch_ahead(w: ScheduleWriter, stage: str, tensor: str, distance: int) -> None:
    """Prefetch a tensor in the innermost serial loop of a stage; distance 0 means a whole run of that loop.

    After a whole run comes the next row, where rows are contiguous and the loop runs along them.

    Raises:
        IllegalSchedule: there is no such loop, or the primitive refuses.
    """
    serial = [loop for loop in w.stage(stage).loops if loop.kind is LoopKind.SERIAL and loop.trips > 1]
    if not serial:
        raise IllegalSchedule(f"stage {stage} has no serial loop left to prefetch in")
    w.do("prefetch", stage, tensor=tensor, loop=serial[-1].name, distance=distance or serial[-1].trips)


def square_transpose(
    w: ScheduleWriter, stage: str, tensor: str, *, lanes: int, block_rows: int = 0, block_columns: int = 0,
    order: str = "rows", stream: bool = False, threads: int = 1,
) -> None:  # fmt: skip
    """Transpose in squares of ``lanes`` by ``lanes`` elements in registers, inside cache blocks."""
    rows, columns = (a.name for a in w.stage(stage).stage.axes[-2:])
    others = [a.name for a in w.stage(stage).stage.axes[:-2]]
    row_block, row_rest = w.tile(stage, rows, block_rows)
    column_block, column_rest = w.tile(stage, columns, block_columns)
    row_panel, row_tile = w.tile(stage, row_rest, lanes)
    column_panel, column_tile = w.tile(stage, column_rest, lanes)
    panels = [row_panel, column_panel] if order == "rows" else [column_panel, row_panel]
    blocks = [row_block, column_block]
    w.order(stage, [*others, *blocks, *panels, row_tile, column_tile])
    _square(w, stage, tensor, row_tile, column_tile, lanes)
    if stream and w.stage(stage).vector_loop is not None:
        w.do("stream", stage)
    w.parallelise(stage, threads)


def pack(
    w: ScheduleWriter,
    stage: str,
    tensor: str,
    loop: str | None,
    *,
    lanes: int,
    unrolled: int = 4,
    threads: int = 1,
) -> str:
    """Copy what ``loop`` reads of a tensor into a packed buffer, in vectors; the name of the copy."""
    copy = _cache_read(w, stage, tensor, loop)
    last = w.stage(copy).loops[-1].name
    outer, inner = w.tile(copy, last, lanes)
    if inner is not None:
        if outer is not None:
            _, several = w.tile(copy, outer, unrolled)
            if several is not None and w.loop(copy, several).trips <= unrolled:
                w.unroll(copy, several)
        w.vectorize(copy, inner, lanes)
    w.parallelise(copy, threads)
    return copy


def pack_transposed(w: ScheduleWriter, stage: str, tensor: str, *, lanes: int, threads: int = 1) -> str:
    """Pack a whole tensor with its rows turned into columns, in squares transposed in registers."""
    copy = _cache_read(w, stage, tensor, None)
    *others, down, along = [loop.name for loop in w.stage(copy).loops]
    down_panel, down_tile = w.tile(copy, down, lanes)
    along_panel, along_tile = w.tile(copy, along, lanes)
    w.order(copy, [*others, down_panel, along_panel, down_tile, along_tile])
    _square(w, copy, tensor, down_tile, along_tile, lanes)
    w.parallelise(copy, threads)
    return copy


def _cache_read(w: ScheduleWriter, stage: str, tensor: str, loop: str | None) -> str:
    before = set(w.nest.by_name)
    if loop is None:
        w.do("cache_read", stage, tensor=tensor)
    else:
        w.do("cache_read", stage, tensor=tensor, loop=loop)
    (copy,) = set(w.nest.by_name) - before
    return copy


def _square(
    w: ScheduleWriter, stage: str, tensor: str, down: str | None, along: str | None, lanes: int
) -> None:
    """Unroll one loop and vectorise the other; transpose in registers where they make a square."""
    if down is not None and w.loop(stage, down).trips <= lanes:
        w.unroll(stage, down)
    w.vectorize(stage, along, lanes)
    square = (
        down is not None and w.loop(stage, down).trips == lanes and w.stage(stage).vector_loop is not None
    )
    if square:
        w.do("transpose", stage, tensor=tensor)


def rows_inside(w: ScheduleWriter, host: str, rows: str, tile_rows: int, stages: Sequence[str]) -> str | None:
    """Compute all ``stages`` for ``tile_rows`` rows of ``host`` at a time; the loop over those tiles."""
    panel, _ = w.tile(host, rows, tile_rows)
    if panel is None:
        return None
    for name in reversed(stages):
        w.do("compute_at", name, at=host, loop=panel)
    return panel
