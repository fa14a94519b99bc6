"""The meaning of a computation, in numpy and float64: slow, direct, and the judge of everything else.

Every stage is evaluated over its whole iteration space at once, so use it for small shapes. Tests compare
kernels' expressions with their hand-written references through it; measuring uses the references.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solgym.envs.kernel_dsl.expression import Affine, Binary, Computation, Const, Expr, Load, Stage, Unary

__all__ = ["interpret", "interpret_stages"]

Values = NDArray[np.float64]

UNARY: dict[str, Any] = {
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
}
BINARY: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}


def interpret(computation: Computation, inputs: Sequence[NDArray[Any]]) -> tuple[Values, ...]:
    """Evaluate a computation.

    Args:
        computation: what to compute.
        inputs: one array per input, in order.

    Returns:
        The outputs in float64, in the order of ``computation.outputs``.

    Raises:
        ValueError: number or shapes of the inputs do not fit.
    """
    values = interpret_stages(computation, inputs)
    return tuple(values[name] for name in computation.outputs)


def interpret_stages(computation: Computation, inputs: Sequence[NDArray[Any]]) -> dict[str, Values]:
    """Like ``interpret``, but gives every tensor by name, inputs and intermediates included."""
    if len(inputs) != len(computation.inputs):
        raise ValueError(f"the computation has {len(computation.inputs)} inputs, got {len(inputs)}")
    values: dict[str, Values] = {}
    for tensor, array in zip(computation.inputs, inputs, strict=True):
        if array.shape != tensor.shape:
            raise ValueError(f"input {tensor.name} has shape {tensor.shape}, got {array.shape}")
        values[tensor.name] = np.asarray(array, dtype=np.float64)
    for stage in computation.stages:
        values[stage.name] = _evaluate_stage(stage, values)
    return values


def _evaluate_stage(stage: Stage, values: dict[str, Values]) -> Values:
    axes = stage.all_axes
    grid: dict[str, NDArray[np.int64]] = {}
    for position, axis in enumerate(axes):
        shape = [1] * len(axes)
        shape[position] = axis.extent
        grid[axis.name] = np.arange(axis.extent, dtype=np.int64).reshape(shape)
    full = np.broadcast_to(_evaluate(stage.expr, grid, values), tuple(axis.extent for axis in axes))
    reduced = tuple(range(len(stage.axes), len(axes)))
    if stage.combiner is None:
        return np.ascontiguousarray(full)
    return np.asarray(full.sum(axis=reduced) if stage.combiner == "sum" else full.max(axis=reduced))


def _evaluate(expr: Expr, grid: dict[str, NDArray[np.int64]], values: dict[str, Values]) -> Values:
    if isinstance(expr, Const):
        return np.asarray(expr.value, dtype=np.float64)
    if isinstance(expr, Load):
        return _load(expr, grid, values[expr.tensor])
    if isinstance(expr, Unary):
        return np.asarray(UNARY[expr.operator](_evaluate(expr.argument, grid, values)))
    if isinstance(expr, Binary):
        left, right = _evaluate(expr.left, grid, values), _evaluate(expr.right, grid, values)
        return np.asarray(BINARY[expr.operator](left, right))
    raise TypeError(f"not an expression: {expr!r}")


def _load(load: Load, grid: dict[str, NDArray[np.int64]], tensor: Values) -> Values:
    indices = [_position(index, grid) for index in load.index]
    if not load.padded:
        return np.asarray(tensor[tuple(indices)])
    inside: NDArray[np.bool_] = np.asarray(True)
    clipped = []
    for index, size in zip(indices, tensor.shape, strict=True):
        inside = inside & (index >= 0) & (index < size)
        clipped.append(np.clip(index, 0, size - 1))
    return np.where(inside, tensor[tuple(clipped)], 0.0)


def _position(index: Affine, grid: dict[str, NDArray[np.int64]]) -> NDArray[np.int64]:
    total: NDArray[np.int64] = np.asarray(index.constant)
    for name, coefficient in index.terms:
        total = total + coefficient * grid[name]
    return total
