"""Counting the least work that a computation needs, for the speed-of-light bound.

The count must never exceed what some legal schedule does, or the bound would not be a bound:

* a subexpression counts once for each point of the axes that it depends on (``1 / s[i]`` once a row),
  equal subexpressions of one stage count once, and constants are folded;
* products with a zero that comes from padding are skipped;
* every operator and function counts one, a reduction adds one per point, so a multiply-add is two.

Shortcuts that change the arithmetic itself (Strassen, Winograd) cannot be written in the schedule
language, so the count does not allow for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from solgym.envs.kernel_dsl.expression import Binary, Computation, Const, Expr, Load, Stage, Unary
from solgym.hardware.task import NUMPY_DTYPES, Work

__all__ = ["count_work", "in_bounds_points", "reduction_length"]


def count_work(computation: Computation) -> Work:
    """Count flops by walking the expressions, and bytes from inputs and outputs alone."""
    itemsize = NUMPY_DTYPES[computation.dtype].itemsize
    read = sum(tensor.size for tensor in computation.inputs)
    written = sum(computation.tensor(name).size for name in computation.outputs)
    flops = sum(_stage_flops(computation, stage) for stage in computation.stages)
    return Work(computation.dtype, flops, read * itemsize, written * itemsize)


def reduction_length(computation: Computation) -> int:
    """Number of terms that are summed on the way to one output element, over all stages.

    Maxima do not count: they are exact.
    """
    return sum(
        math.prod(axis.extent for axis in stage.reduction_axes)
        for stage in computation.stages
        if stage.combiner == "sum"
    )


def in_bounds_points(computation: Computation, stage: Stage, loads: tuple[Load, ...], axes: set[str]) -> int:
    """Number of points of ``axes`` at which every padded load of ``loads`` lies inside its tensor.

    Tensor dimensions that share an axis are taken to be independent, which holds for convolutions.
    """
    extents = {axis.name: axis.extent for axis in stage.all_axes}
    fraction = 1.0
    for load in loads:
        if not load.padded:
            continue
        for index, size in zip(load.index, computation.tensor(load.tensor).shape, strict=True):
            values = np.array([index.constant])
            for name, coefficient in index.terms:
                values = np.add.outer(values, coefficient * np.arange(extents[name])).ravel()
            fraction *= float(np.mean((values >= 0) & (values < size)))
    return round(math.prod(extents[name] for name in axes) * fraction)


def _stage_flops(computation: Computation, stage: Stage) -> int:
    extents = {axis.name: axis.extent for axis in stage.all_axes}
    contributing = set(extents)
    skipped = _zero_factors(stage.expr) if stage.combiner == "sum" else ()
    total = in_bounds_points(computation, stage, skipped, contributing) if stage.combiner else 0
    for node in set(_operations(stage.expr)):
        axes = {name for load in node.loads() for index in load.index for name, _ in index.terms}
        total += (
            in_bounds_points(computation, stage, skipped if node is stage.expr else (), axes) if axes else 0
        )
    return total


def _operations(expr: Expr) -> Iterator[Unary | Binary]:
    if isinstance(expr, Unary):
        yield expr
        yield from _operations(expr.argument)
    elif isinstance(expr, Binary):
        yield expr
        yield from _operations(expr.left)
        yield from _operations(expr.right)


def _zero_factors(expr: Expr) -> tuple[Load, ...]:
    """Padded loads that make the whole of ``expr`` zero when they read padding."""
    if isinstance(expr, Load):
        return (expr,) if expr.padded else ()
    if isinstance(expr, Binary) and expr.operator == "mul":
        return _zero_factors(expr.left) + _zero_factors(expr.right)
    if isinstance(expr, Binary) and expr.operator == "div" and not isinstance(expr.right, Const):
        return _zero_factors(expr.left)
    return ()
