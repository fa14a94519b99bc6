"""Kernels whose heart is a reduction along rows: row sums, softmax, layer normalisation, attention."""

from __future__ import annotations

import math

import numpy as np

from solgym.envs.kernel_dsl.expression import Builder, Computation, exp, rsqrt
from solgym.envs.kernel_dsl.kernels.kernel import Extents, Float64Array, Kernel, Ranges
from solgym.hardware.task import DType

__all__ = ["ROWS"]

LAYERNORM_EPSILON = 1e-5  # the default of torch.nn.LayerNorm


def reduction(dtype: DType, rows: int, cols: int) -> Computation:
    """``y[i] = sum over j of X[i, j]``."""
    b = Builder(dtype)
    x = b.input("X", rows, cols)
    j = b.reduce("j", cols)
    b.stage("y", {"i": rows}, lambda i: x[i, j], over=[j], combiner="sum")
    return b.build()


def softmax(dtype: DType, rows: int, cols: int) -> Computation:
    """``Y[i, j] = exp(X[i, j] - m[i]) / s[i]`` with ``m`` the row's maximum and ``s`` the row's sum."""
    b = Builder(dtype)
    x = b.input("X", rows, cols)
    j = b.reduce("j", cols)
    m = b.stage("m", {"i": rows}, lambda i: x[i, j], over=[j], combiner="max")
    e = b.stage("e", {"i": rows, "j": cols}, lambda i, jj: exp(x[i, jj] - m[i]))
    s = b.stage("s", {"i": rows}, lambda i: e[i, j], over=[j], combiner="sum")
    b.stage("Y", {"i": rows, "j": cols}, lambda i, jj: e[i, jj] * (1.0 / s[i]))
    return b.build()


def layernorm(dtype: DType, rows: int, cols: int) -> Computation:
    """``Y = (X - mean) * rsqrt(variance + eps) * gamma + beta`` along rows.

    The stages hold the row's sum and its sum of squared deviations; the divisions by ``cols`` are
    subexpressions that depend on the row alone.
    """
    b = Builder(dtype)
    x, gamma, beta = b.input("X", rows, cols), b.input("gamma", cols), b.input("beta", cols)
    j = b.reduce("j", cols)
    total = b.stage("total", {"i": rows}, lambda i: x[i, j], over=[j], combiner="sum")

    squares = b.stage(
        "squares",
        {"i": rows},
        lambda i: (x[i, j] - total[i] * (1.0 / cols)) * (x[i, j] - total[i] * (1.0 / cols)),
        over=[j],
        combiner="sum",
    )
    b.stage(
        "Y",
        {"i": rows, "j": cols},
        lambda i, jj: (
            (x[i, jj] - total[i] * (1.0 / cols))
            * rsqrt(squares[i] * (1.0 / cols) + LAYERNORM_EPSILON)
            * gamma[jj]
            + beta[jj]
        ),
    )
    return b.build()


def attention(dtype: DType, seq: int, dim: int) -> Computation:
    """One head, ``softmax(Q K^T / sqrt(dim)) V``; dividing by the row's sum comes last, as it is linear."""
    b = Builder(dtype)
    q, k, v = b.input("Q", seq, dim), b.input("K", seq, dim), b.input("V", seq, dim)
    d, j = b.reduce("d", dim), b.reduce("j", seq)
    scale = 1.0 / math.sqrt(dim)
    s = b.stage("S", {"i": seq, "j": seq}, lambda i, jj: q[i, d] * k[jj, d], over=[d], combiner="sum")
    m = b.stage("m", {"i": seq}, lambda i: s[i, j], over=[j], combiner="max")
    p = b.stage("P", {"i": seq, "j": seq}, lambda i, jj: exp((s[i, jj] - m[i]) * scale))
    total = b.stage("l", {"i": seq}, lambda i: p[i, j], over=[j], combiner="sum")
    o = b.stage("O", {"i": seq, "d": dim}, lambda i, dd: p[i, j] * v[j, dd], over=[j], combiner="sum")
    b.stage("out", {"i": seq, "d": dim}, lambda i, dd: o[i, dd] * (1.0 / total[i]))
    return b.build()


def reduction_reference(extents: Extents, x: Float64Array) -> Float64Array:
    """Row sums."""
    return np.asarray(x.sum(axis=1))


def _softmax(x: Float64Array) -> Float64Array:
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def softmax_reference(extents: Extents, x: Float64Array) -> Float64Array:
    """Softmax along rows."""
    return _softmax(x)


def layernorm_reference(
    extents: Extents, x: Float64Array, gamma: Float64Array, beta: Float64Array
) -> Float64Array:
    """Normalise by numpy's mean and (biased) variance."""
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + LAYERNORM_EPSILON) * gamma + beta)


def attention_reference(extents: Extents, q: Float64Array, k: Float64Array, v: Float64Array) -> Float64Array:
    """Scaled dot-product attention."""
    return np.asarray(_softmax(q @ k.T / math.sqrt(q.shape[1])) @ v)


def _softmax_ranges(extents: Extents) -> Ranges:
    return {"X": (-2.0, 2.0)}  # outputs of one row differ by up to e^4, so no constant is close


def _layernorm_ranges(extents: Extents) -> Ranges:
    return {"X": (-1.0, 2.0), "gamma": (0.5, 1.5), "beta": (-0.5, 0.5)}  # a mean that must be subtracted


def _attention_ranges(extents: Extents) -> Ranges:
    return {"Q": (-2.0, 2.0), "K": (-2.0, 2.0)}  # scores of deviation 4/3, far from uniform weights


ROWS = (
    Kernel(
        name="reduction",
        env_id="Reduction",
        family="rows",
        summary="Row sums, y[i] = sum over j of X[i, j]",
        extents=("rows", "cols"),
        build=reduction,
        reference=reduction_reference,
        default="f32/rows1024cols2048",
        train=(
            "f32/rows1024cols2048", "f32/rows512cols512", "f32/rows4096cols256", "f32/rows100cols3001",
            "f64/rows512cols2048",
        ),
        test=("f32/rows2048cols2048", "f32/rows257cols1023", "f32/rows16cols65536", "f64/rows257cols1023"),
        minimum={"cols": 2},
    ),
    Kernel(
        name="softmax",
        env_id="Softmax",
        family="rows",
        summary="Softmax along rows",
        extents=("rows", "cols"),
        build=softmax,
        reference=softmax_reference,
        default="f32/rows512cols1024",
        train=(
            "f32/rows512cols1024", "f32/rows1024cols256", "f32/rows128cols4096", "f32/rows300cols1000",
            "f32/rows65cols515", "f64/rows256cols1024",
        ),
        test=("f32/rows256cols2048", "f32/rows1000cols300", "f32/rows127cols1023", "f64/rows127cols1023"),
        minimum={"cols": 2},
        ranges=_softmax_ranges,
    ),
    Kernel(
        name="layernorm",
        env_id="LayerNorm",
        family="rows",
        summary="Layer normalisation along rows with gain and shift",
        extents=("rows", "cols"),
        build=layernorm,
        reference=layernorm_reference,
        default="f32/rows512cols1024",
        train=(
            "f32/rows512cols1024", "f32/rows1024cols256", "f32/rows128cols4096", "f32/rows300cols1000",
            "f32/rows65cols515", "f64/rows256cols1024",
        ),
        test=("f32/rows256cols768", "f32/rows1000cols300", "f32/rows127cols1023", "f64/rows127cols1023"),
        minimum={"cols": 2},
        ranges=_layernorm_ranges,
    ),
    Kernel(
        name="attention",
        env_id="Attention",
        family="rows",
        summary="One attention head, softmax(Q K^T / sqrt(dim)) V",
        extents=("seq", "dim"),
        build=attention,
        reference=attention_reference,
        default="f32/seq512dim64",
        train=(
            "f32/seq512dim64", "f32/seq256dim64", "f32/seq128dim128", "f32/seq200dim40", "f64/seq256dim64",
        ),
        test=("f32/seq384dim64", "f32/seq257dim80", "f32/seq1024dim32", "f64/seq257dim80"),
        minimum={"seq": 2},
        ranges=_attention_ranges,
    ),
)  # fmt: skip
