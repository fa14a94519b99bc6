"""What people run today instead of a tuned kernel: numpy's way of computing each kernel.

One table maps a kernel's name to a function that prepares the computation and returns a call without
arguments; only that call is timed. Each is written as a careful user of numpy would write it: results go
to arrays made beforehand, temporaries are reused, contractions go to BLAS. ``peers_torch`` has the same
table for torch, which only benchmarks need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solgym.envs.kernel_dsl.kernels.rows import LAYERNORM_EPSILON
from solgym.envs.kernel_dsl.kernels.stencils import WEIGHTS_5, WEIGHTS_7, WEIGHTS_9

__all__ = ["NUMPY_PEERS", "Call", "Peer"]

Arrays = tuple[NDArray[Any], ...]
Call = Callable[[], NDArray[Any] | tuple[NDArray[Any], ...]]
Peer = Callable[[Mapping[str, int], Arrays], Call]


def _matmul(extents: Mapping[str, int], inputs: Arrays) -> Call:
    left, right = inputs
    out = np.empty_like(left @ right)
    return lambda: np.matmul(left, right, out=out)


def _gemm_bias_gelu(extents: Mapping[str, int], inputs: Arrays) -> Call:
    left, right, bias = inputs
    out = np.empty((left.shape[0], right.shape[1]), left.dtype)
    scratch, sign = np.empty_like(out), np.empty_like(out)

    def call() -> NDArray[Any]:
        np.matmul(left, right, out=out)
        np.add(out, bias, out=out)
        _erf(out * np.float32(math.sqrt(0.5)), scratch, sign)
        np.add(scratch, 1.0, out=scratch)
        np.multiply(out, scratch, out=out)
        return np.multiply(out, 0.5, out=out)

    return call


def _erf(x: NDArray[Any], out: NDArray[Any], sign: NDArray[Any]) -> None:
    """The error function, which numpy lacks: Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7."""
    np.sign(x, out=sign)
    np.abs(x, out=x)
    t = np.divide(1.0, 1.0 + np.float32(0.3275911) * x)
    out.fill(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        np.multiply(out, t, out=out)
        np.add(out, coefficient, out=out)
    np.multiply(out, t, out=out)
    np.multiply(out, np.exp(-x * x), out=out)
    np.subtract(1.0, out, out=out)
    np.multiply(out, sign, out=out)


def _mlp(extents: Mapping[str, int], inputs: Arrays) -> Call:
    x, w1, b1, w2, b2 = inputs
    hidden = np.empty((x.shape[0], w1.shape[1]), x.dtype)
    out = np.empty((x.shape[0], w2.shape[1]), x.dtype)

    def call() -> NDArray[Any]:
        np.matmul(x, w1, out=hidden)
        np.add(hidden, b1, out=hidden)
        np.maximum(hidden, 0, out=hidden)
        np.matmul(hidden, w2, out=out)
        return np.add(out, b2, out=out)

    return call


def _conv2d(extents: Mapping[str, int], inputs: Arrays) -> Call:
    """One matrix product on the gathered windows (im2col)."""
    image, weights = inputs
    r, s, ci, co = weights.shape
    n, h, w, _ = image.shape
    padded = np.pad(image, ((0, 0), (r // 2, r // 2), (s // 2, s // 2), (0, 0)))
    inside = padded[:, r // 2 : r // 2 + h, s // 2 : s // 2 + w]
    windows = np.lib.stride_tricks.sliding_window_view(padded, (r, s), axis=(1, 2)).transpose(
        0, 1, 2, 4, 5, 3
    )
    columns = np.empty((n, h, w, r, s, ci), image.dtype)
    out = np.empty((n, h, w, co), image.dtype)
    matrix = weights.reshape(r * s * ci, co)

    def call() -> NDArray[Any]:
        np.copyto(inside, image)
        np.copyto(columns, windows)
        np.matmul(columns.reshape(n * h * w, r * s * ci), matrix, out=out.reshape(n * h * w, co))
        return out

    return call


def _depthwise_conv2d(extents: Mapping[str, int], inputs: Arrays) -> Call:
    image, weights = inputs
    r, s, _ = weights.shape
    n, h, w, c = image.shape
    padded = np.pad(image, ((0, 0), (r // 2, r // 2), (s // 2, s // 2), (0, 0)))
    inside = padded[:, r // 2 : r // 2 + h, s // 2 : s // 2 + w]
    out, product = np.empty((n, h, w, c), image.dtype), np.empty((n, h, w, c), image.dtype)

    def call() -> NDArray[Any]:
        np.copyto(inside, image)
        out.fill(0)
        for y in range(r):
            for x in range(s):
                np.multiply(padded[:, y : y + h, x : x + w], weights[y, x], out=product)
                np.add(out, product, out=out)
        return out

    return call


def _stencil2d(extents: Mapping[str, int], inputs: Arrays) -> Call:
    (x,) = inputs
    inner = (slice(1, -1), slice(1, -1))
    up, down, left, right = x[:-2, 1:-1], x[2:, 1:-1], x[1:-1, :-2], x[1:-1, 2:]
    corners = (x[:-2, :-2], x[:-2, 2:], x[2:, :-2], x[2:, 2:])
    centre, edge, corner = WEIGHTS_5 if extents["points"] == 5 else WEIGHTS_9
    out, part = np.empty_like(x[inner]), np.empty_like(x[inner])

    def call() -> NDArray[Any]:
        np.add(up, down, out=out)
        np.add(out, left, out=out)
        np.add(out, right, out=out)
        np.multiply(out, edge, out=out)
        np.multiply(x[inner], centre, out=part)
        np.add(out, part, out=out)
        if corner:
            np.add(corners[0], corners[1], out=part)
            np.add(part, corners[2], out=part)
            np.add(part, corners[3], out=part)
            np.multiply(part, corner, out=part)
            np.add(out, part, out=out)
        return out

    return call


def _stencil3d(extents: Mapping[str, int], inputs: Arrays) -> Call:
    (x,) = inputs
    inner = slice(1, -1)
    faces = []
    for axis in range(3):
        for shifted in (slice(None, -2), slice(2, None)):
            window = [inner, inner, inner]
            window[axis] = shifted
            faces.append(x[tuple(window)])
    middle = x[inner, inner, inner]
    out, part = np.empty_like(middle), np.empty_like(middle)

    def call() -> NDArray[Any]:
        np.add(faces[0], faces[1], out=out)
        for face in faces[2:]:
            np.add(out, face, out=out)
        np.multiply(out, WEIGHTS_7[1], out=out)
        np.multiply(middle, WEIGHTS_7[0], out=part)
        return np.add(out, part, out=out)

    return call


def _reduction(extents: Mapping[str, int], inputs: Arrays) -> Call:
    (x,) = inputs
    out = np.empty(x.shape[0], x.dtype)

    def call() -> NDArray[Any]:
        np.sum(x, axis=1, out=out)
        return out

    return call


def _softmax_rows(x: NDArray[Any], out: NDArray[Any], row: NDArray[Any]) -> NDArray[Any]:
    np.max(x, axis=1, keepdims=True, out=row)
    np.subtract(x, row, out=out)
    np.exp(out, out=out)
    np.sum(out, axis=1, keepdims=True, out=row)
    np.divide(out, row, out=out)
    return out


def _softmax(extents: Mapping[str, int], inputs: Arrays) -> Call:
    (x,) = inputs
    out, row = np.empty_like(x), np.empty((x.shape[0], 1), x.dtype)
    return lambda: _softmax_rows(x, out, row)


def _layernorm(extents: Mapping[str, int], inputs: Arrays) -> Call:
    x, gamma, beta = inputs
    out, squares = np.empty_like(x), np.empty_like(x)
    mean, variance = np.empty((x.shape[0], 1), x.dtype), np.empty((x.shape[0], 1), x.dtype)

    def call() -> NDArray[Any]:
        np.mean(x, axis=1, keepdims=True, out=mean)
        np.subtract(x, mean, out=out)
        np.multiply(out, out, out=squares)
        np.mean(squares, axis=1, keepdims=True, out=variance)
        np.add(variance, LAYERNORM_EPSILON, out=variance)
        np.sqrt(variance, out=variance)
        np.divide(out, variance, out=out)
        np.multiply(out, gamma, out=out)
        return np.add(out, beta, out=out)

    return call


def _attention(extents: Mapping[str, int], inputs: Arrays) -> Call:
    q, k, v = inputs
    scale = q.dtype.type(1.0 / math.sqrt(q.shape[1]))
    scores = np.empty((q.shape[0], k.shape[0]), q.dtype)
    row, out = np.empty((q.shape[0], 1), q.dtype), np.empty((q.shape[0], v.shape[1]), q.dtype)

    def call() -> NDArray[Any]:
        np.matmul(q, k.T, out=scores)
        np.multiply(scores, scale, out=scores)
        _softmax_rows(scores, scores, row)
        return np.matmul(scores, v, out=out)

    return call


def _transpose(extents: Mapping[str, int], inputs: Arrays) -> Call:
    (x,) = inputs
    out = np.empty((x.shape[1], x.shape[0]), x.dtype)

    def call() -> NDArray[Any]:
        np.copyto(out, x.T)
        return out

    return call


def _elementwise(extents: Mapping[str, int], inputs: Arrays) -> Call:
    x, residual, scale, shift = inputs
    out = np.empty_like(x)

    def call() -> NDArray[Any]:
        np.multiply(x, scale, out=out)
        np.add(out, shift, out=out)
        np.maximum(out, 0, out=out)
        return np.add(out, residual, out=out)

    return call


NUMPY_PEERS: dict[str, Peer] = {
    "gemm": _matmul,
    "batched_gemm": _matmul,
    "gemv": _matmul,
    "gemm_bias_gelu": _gemm_bias_gelu,
    "mlp": _mlp,
    "conv2d": _conv2d,
    "depthwise_conv2d": _depthwise_conv2d,
    "stencil2d": _stencil2d,
    "stencil3d": _stencil3d,
    "reduction": _reduction,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "attention": _attention,
    "transpose": _transpose,
    "elementwise": _elementwise,
}
"""How numpy computes each kernel, by the kernel's name."""
