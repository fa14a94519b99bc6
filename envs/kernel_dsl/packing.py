"""What a packed copy of a tensor looks like: its stage, its storage order, and the loads that read it."""

from __future__ import annotations

from solgym.envs.kernel_dsl.expression import Affine, Axis, Binary, Expr, Load, Stage, Tensor, Unary
from solgym.envs.kernel_dsl.nest import Layout, Loop, LoopKind, LoopPart, ProgramNest, Scope, StageNest

__all__ = ["copy_stage", "fresh_name", "lowest_indices", "redirect"]


def fresh_name(program: ProgramNest, name: str) -> str:
    """The name, with a number behind it if it is taken."""
    taken = {nest.name for nest in program.stages}
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}{number}", number + 1
    return candidate


def _merged_index(loads: tuple[Load, ...]) -> list[tuple[Affine, ...]]:
    """Per dimension, the index expressions of all loads."""
    return [tuple(dict.fromkeys(load.index[d] for load in loads)) for d in range(len(loads[0].index))]


def _range(indices: tuple[Affine, ...], nest: StageNest) -> tuple[int, int]:
    """Smallest and largest value of a dimension's index expressions over the whole stage."""
    lows = [index.constant for index in indices]
    highs = [i.constant + sum(c * (nest.axes[a].extent - 1) for a, c in i.terms) for i in indices]
    return min(lows), max(highs)


def copy_stage(
    program: ProgramNest, nest: StageNest, loads: tuple[Load, ...], name: str, depth: int, scope: Scope
) -> StageNest:
    """The stage that copies what the loops of ``nest`` below ``depth`` read of a tensor, and its loops."""
    tensor = loads[0].tensor
    dimensions = _merged_index(loads)
    ranges = [_range(indices, nest) for indices in dimensions]
    axes = tuple(
        Axis(_dimension_name(indices, d), high - low + 1)
        for d, (indices, (low, high)) in enumerate(zip(dimensions, ranges, strict=True))
    )
    if len({axis.name for axis in axes}) != len(axes):
        axes = tuple(Axis(f"d{d}", axis.extent) for d, axis in enumerate(axes))
    index = tuple(Affine(((axis.name, 1),), low) for axis, (low, _) in zip(axes, ranges, strict=True))
    stage = Stage(
        Tensor(name, tuple(a.extent for a in axes)), axes, (), None, Load(tensor, index, loads[0].padded)
    )
    layout = _layout(nest, dimensions, axes, depth)
    spans = {axis.name: axis.extent for axis in axes}
    loops = []
    for dimension, tile in layout:
        axis = axes[dimension].name
        suffix = ".o" if tile > 1 else ".i" if any(d == dimension and t > 1 for d, t in layout) else ""
        loops.append(Loop(f"{axis}{suffix}", (LoopPart(axis, tile, spans[axis]),)))
        spans[axis] = tile
    return StageNest(stage, tuple(loops), layout=layout, scope=scope, copies=tensor)


def _dimension_name(indices: tuple[Affine, ...], dimension: int) -> str:
    if len(indices) == 1 and len(indices[0].terms) == 1 and indices[0].terms[0][1] == 1:
        return indices[0].terms[0][0]
    return f"d{dimension}"


def lowest_indices(nest: StageNest, loads: tuple[Load, ...]) -> list[int]:
    """Per dimension, the smallest index that any of the loads reads: where the copy begins."""
    return [_range(indices, nest)[0] for indices in _merged_index(loads)]


def _layout(
    nest: StageNest, dimensions: list[tuple[Affine, ...]], axes: tuple[Axis, ...], depth: int
) -> Layout:
    """Storage order that makes the loops below ``depth`` read the buffer from start to end.

    A dimension that one axis indexes is tiled at the stride of the loop that is innermost but for the
    unrolled and vector loops; other dimensions stay whole.
    """
    order: list[tuple[int, int]] = []
    tile_of: dict[int, int] = {}
    for dimension, indices in enumerate(dimensions):
        single = len(indices) == 1 and len(indices[0].terms) == 1 and indices[0].terms[0][1] == 1
        if single and indices[0].constant == 0:
            steps = [
                p.stride
                for loop in nest.loops[depth:]
                for p in loop.parts
                if p.axis == indices[0].terms[0][0]
            ]
            inner = [
                loop.stride
                for loop in nest.loops[depth:]
                if not loop.fused and loop.axis == indices[0].terms[0][0] and _is_register_loop(loop)
            ]
            coarser = [s for s in steps if s > max(inner)] if inner else []
            if coarser and min(coarser) < axes[dimension].extent:
                tile_of[dimension] = min(coarser)
    for loop in nest.loops[depth:]:
        for part in loop.parts:
            for dimension, indices in enumerate(dimensions):
                if not any(index.coefficient(part.axis) for index in indices):
                    continue
                tile = tile_of.get(dimension, 1)
                entry = (dimension, tile if part.stride >= tile else 1)
                if entry not in order:
                    order.append(entry)
    for dimension in range(len(dimensions)):
        if (dimension, 1) not in order:
            order.append((dimension, 1))
    return tuple(order)


def _is_register_loop(loop: Loop) -> bool:
    return loop.kind in (LoopKind.UNROLLED, LoopKind.VECTOR)


def redirect(expr: Expr, tensor: str, copy: str, lows: list[int]) -> Expr:
    """Let the loads of ``tensor`` read its packed copy, whose indices start at 0."""
    if isinstance(expr, Load) and expr.tensor == tensor:
        return Load(copy, tuple(index - low for index, low in zip(expr.index, lows, strict=True)))
    if isinstance(expr, Unary):
        return Unary(expr.operator, redirect(expr.argument, tensor, copy, lows))
    if isinstance(expr, Binary):
        left = redirect(expr.left, tensor, copy, lows)
        return Binary(expr.operator, left, redirect(expr.right, tensor, copy, lows))
    return expr
