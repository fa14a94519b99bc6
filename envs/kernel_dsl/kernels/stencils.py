"""Stencils on the valid region: the input has a border of one element on each side, the output has none."""

from __future__ import annotations

import numpy as np

from solgym.envs.kernel_dsl.expression import Axis, Builder, Computation, Expr, TensorHandle
from solgym.envs.kernel_dsl.kernels.kernel import Extents, Float64Array, Kernel
from solgym.hardware.task import DType

__all__ = ["STENCILS"]

# Weights of the centre, of each edge neighbour and of each corner; the rows sum to 1, so values neither
# grow nor vanish when a stencil is applied again and again.
WEIGHTS_5 = (0.5, 0.125, 0.0)
WEIGHTS_9 = (0.4, 0.1, 0.05)
WEIGHTS_7 = (0.4, 0.1)


def stencil2d(dtype: DType, points: int, h: int, w: int) -> Computation:
    """``Y[i, j]`` is a weighted mean of ``X`` around ``[i + 1, j + 1]``, of 5 or 9 points."""
    b = Builder(dtype)
    x: TensorHandle = b.input("X", h + 2, w + 2)
    centre, edge, corner = WEIGHTS_5 if points == 5 else WEIGHTS_9

    def five(i: Axis, j: Axis) -> Expr:
        edges = x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2]
        return x[i + 1, j + 1] * centre + edges * edge

    def nine(i: Axis, j: Axis) -> Expr:
        corners = x[i, j] + x[i, j + 2] + x[i + 2, j] + x[i + 2, j + 2]
        return five(i, j) + corners * corner

    b.stage("Y", {"i": h, "j": w}, five if points == 5 else nine)
    return b.build()


def stencil3d(dtype: DType, d: int, h: int, w: int) -> Computation:
    """``Y[i, j, k]`` is a weighted mean of ``X`` around ``[i + 1, j + 1, k + 1]``, of 7 points."""
    b = Builder(dtype)
    x = b.input("X", d + 2, h + 2, w + 2)
    centre, face = WEIGHTS_7
    b.stage(
        "Y",
        {"i": d, "j": h, "k": w},
        lambda i, j, k: (
            x[i + 1, j + 1, k + 1] * centre
            + (
                x[i, j + 1, k + 1]
                + x[i + 2, j + 1, k + 1]
                + x[i + 1, j, k + 1]
                + x[i + 1, j + 2, k + 1]
                + x[i + 1, j + 1, k]
                + x[i + 1, j + 1, k + 2]
            )
            * face
        ),
    )
    return b.build()


def stencil2d_reference(extents: Extents, x: Float64Array) -> Float64Array:
    """A sum of weighted, shifted windows."""
    centre, edge, corner = WEIGHTS_5 if extents["points"] == 5 else WEIGHTS_9
    weights = np.array([[corner, edge, corner], [edge, centre, edge], [corner, edge, corner]])
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3))
    return np.asarray(np.einsum("ijrs,rs->ij", windows, weights))


def stencil3d_reference(extents: Extents, x: Float64Array) -> Float64Array:
    """A sum of weighted, shifted windows."""
    centre, face = WEIGHTS_7
    inner = slice(1, -1)
    result = centre * x[inner, inner, inner]
    for axis in range(3):
        for shift in (slice(None, -2), slice(2, None)):
            window = [inner, inner, inner]
            window[axis] = shift
            result = result + face * x[tuple(window)]
    return np.asarray(result)


STENCILS = (
    Kernel(
        name="stencil2d",
        env_id="Stencil2d",
        family="stencil",
        summary="5- or 9-point stencil on the valid region of a 2-D grid",
        extents=("points", "h", "w"),
        build=stencil2d,
        reference=stencil2d_reference,
        default="f32/points5h1024w1024",
        train=(
            "f32/points5h1024w1024", "f32/points9h1024w1024", "f32/points5h512w512", "f32/points9h300w1000",
            "f32/points5h130w515", "f64/points5h512w1024",
        ),
        test=(
            "f32/points5h2048w2048", "f32/points9h768w768", "f32/points9h257w1023", "f64/points5h500w700",
            "f64/points9h500w700",
        ),
        allowed={"points": (5, 9)},
    ),
    Kernel(
        name="stencil3d",
        env_id="Stencil3d",
        family="stencil",
        summary="7-point stencil on the valid region of a 3-D grid",
        extents=("d", "h", "w"),
        build=stencil3d,
        reference=stencil3d_reference,
        default="f32/d96h96w96",
        train=("f32/d96h96w96", "f32/d32h128w128", "f32/d30h50w70", "f64/d64h64w64"),
        test=("f32/d128h128w128", "f32/d25h67w131", "f64/d48h96w100"),
    ),
)  # fmt: skip
