"""Kernels that move or map elements without a reduction: transpose and a fused elementwise chain."""

from __future__ import annotations

import numpy as np

from solgym.envs.kernel_dsl.expression import Builder, Computation, relu
from solgym.envs.kernel_dsl.kernels.kernel import Extents, Float64Array, Kernel
from solgym.hardware.task import DType

__all__ = ["POINTWISE"]


def transpose(dtype: DType, rows: int, cols: int) -> Computation:
    """``Y[j, i] = X[i, j]``; ``rows`` and ``cols`` are the input's."""
    b = Builder(dtype)
    x = b.input("X", rows, cols)
    b.stage("Y", {"j": cols, "i": rows}, lambda j, i: x[i, j])
    return b.build()


def elementwise(dtype: DType, rows: int, cols: int) -> Computation:
    """``Y = relu(X * scale + shift) + R``: a folded batch normalisation, an activation, a residual."""
    b = Builder(dtype)
    x, residual = b.input("X", rows, cols), b.input("R", rows, cols)
    scale, shift = b.input("scale", cols), b.input("shift", cols)
    b.stage("Y", {"i": rows, "j": cols}, lambda i, j: relu(x[i, j] * scale[j] + shift[j]) + residual[i, j])
    return b.build()


def transpose_reference(extents: Extents, x: Float64Array) -> Float64Array:
    """A copy in the other order."""
    return np.ascontiguousarray(x.T)


def elementwise_reference(
    extents: Extents, x: Float64Array, residual: Float64Array, scale: Float64Array, shift: Float64Array
) -> Float64Array:
    """The chain, one numpy operation after the other."""
    return np.asarray(np.clip(x * scale + shift, 0.0, None) + residual)


POINTWISE = (
    Kernel(
        name="transpose",
        env_id="Transpose",
        family="pointwise",
        summary="Out-of-place transpose, Y[j, i] = X[i, j]",
        extents=("rows", "cols"),
        build=transpose,
        reference=transpose_reference,
        default="f32/rows2048cols2048",
        train=(
            "f32/rows2048cols2048", "f32/rows512cols512", "f32/rows1000cols700", "f32/rows256cols4096",
            "f32/rows129cols515", "f64/rows1024cols1024",
        ),
        test=("f32/rows1536cols1536", "f32/rows1023cols513", "f32/rows3000cols200", "f64/rows500cols900"),
        minimum={"rows": 2, "cols": 2},
    ),
    Kernel(
        name="elementwise",
        env_id="Elementwise",
        family="pointwise",
        summary="A fused chain, Y = relu(X * scale + shift) + R",
        extents=("rows", "cols"),
        build=elementwise,
        reference=elementwise_reference,
        default="f32/rows1024cols1024",
        train=(
            "f32/rows1024cols1024", "f32/rows256cols256", "f32/rows2048cols512", "f32/rows100cols3001",
            "f64/rows512cols1024",
        ),
        test=("f32/rows1536cols1024", "f32/rows333cols777", "f32/rows64cols127", "f64/rows333cols777"),
    ),
)  # fmt: skip
