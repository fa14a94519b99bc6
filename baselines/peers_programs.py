"""Numpy's way of computing MLIR programs, by the programs' names; what ``peers`` is for kernels.

Only programs for which numpy has a way that its users would call fast are here: those made of products of
matrices, and of sums and maxima along rows. Arguments that a program changes in place stay as they are and
the result goes to an array of its own, so that every call computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solgym.baselines.peers import NUMPY_PEERS, Arrays, Call, Peer
from solgym.envs.mlir_passes.programs.polybench_blas import ALPHA, BETA

__all__ = ["BLAS_PROGRAMS", "PROGRAM_PEERS"]


def _matmul_transposed_b(extents: Mapping[str, int], inputs: Arrays) -> Call:
    left, right = inputs
    out = np.empty_like(left @ right.T)
    return lambda: np.matmul(left, right.T, out=out)


def _gemv_transposed(extents: Mapping[str, int], inputs: Arrays) -> Call:
    matrix, vector = inputs
    out = np.empty(matrix.shape[1], matrix.dtype)
    return lambda: np.matmul(matrix.T, vector, out=out)


def _gemm_update(extents: Mapping[str, int], inputs: Arrays) -> Call:
    c, left, right = inputs
    out, scaled = np.empty_like(c), np.empty_like(c)

    def call() -> NDArray[Any]:
        np.matmul(left, right, out=out)
        np.multiply(out, ALPHA, out=out)
        np.multiply(c, BETA, out=scaled)
        return np.add(out, scaled, out=out)

    return call


def _two_products(extents: Mapping[str, int], inputs: Arrays) -> Call:
    a, b, c, d = inputs
    between, out, scaled = np.empty_like(a @ b), np.empty_like(d), np.empty_like(d)

    def call() -> NDArray[Any]:
        np.matmul(a, b, out=between)
        np.multiply(between, ALPHA, out=between)
        np.matmul(between, c, out=out)
        np.multiply(d, BETA, out=scaled)
        return np.add(out, scaled, out=out)

    return call


def _three_products(extents: Mapping[str, int], inputs: Arrays) -> Call:
    a, b, c, d = inputs
    left, right = np.empty_like(a @ b), np.empty_like(c @ d)
    out: NDArray[Any] = np.empty_like(left @ right)

    def call() -> NDArray[Any]:
        np.matmul(a, b, out=left)
        np.matmul(c, d, out=right)
        return np.matmul(left, right, out=out)

    return call


def _atax(extents: Mapping[str, int], inputs: Arrays) -> Call:
    matrix, x = inputs
    between, out = np.empty_like(matrix @ x), np.empty_like(x)

    def call() -> NDArray[Any]:
        np.matmul(matrix, x, out=between)
        np.matmul(matrix.T, between, out=out)
        return out

    return call


def _bicg(extents: Mapping[str, int], inputs: Arrays) -> Call:
    matrix, p, r = inputs
    s, q = np.empty_like(r @ matrix), np.empty_like(matrix @ p)
    return lambda: (np.matmul(matrix.T, r, out=s), np.matmul(matrix, p, out=q))


def _mvt(extents: Mapping[str, int], inputs: Arrays) -> Call:
    x1, x2, y1, y2, matrix = inputs
    first, second = np.empty_like(x1), np.empty_like(x2)

    def call() -> tuple[NDArray[Any], ...]:
        np.matmul(matrix, y1, out=first)
        np.matmul(matrix.T, y2, out=second)
        return np.add(first, x1, out=first), np.add(second, x2, out=second)

    return call


def _gesummv(extents: Mapping[str, int], inputs: Arrays) -> Call:
    a, b, x = inputs
    out, other = np.empty_like(x), np.empty_like(x)

    def call() -> NDArray[Any]:
        np.matmul(a, x, out=out)
        np.matmul(b, x, out=other)
        np.multiply(out, ALPHA, out=out)
        np.multiply(other, BETA, out=other)
        return np.add(out, other, out=out)

    return call


def _dense(extents: Mapping[str, int], inputs: Arrays) -> Call:
    x, weights, bias = inputs
    out = np.empty_like(x @ weights)

    def call() -> NDArray[Any]:
        np.matmul(x, weights, out=out)
        np.add(out, bias, out=out)
        np.maximum(out, 0, out=out)
        return out

    return call


def _elementwise_chain(extents: Mapping[str, int], inputs: Arrays) -> Call:
    a, b, c = inputs
    out = np.empty_like(a)

    def call() -> NDArray[Any]:
        np.add(a, b, out=out)
        np.multiply(out, c, out=out)
        np.maximum(out, 0, out=out)
        np.multiply(out, out, out=out)
        return np.subtract(out, a, out=out)

    return call


_WITH_BLAS: dict[str, Peer] = {
    "gemm": NUMPY_PEERS["gemm"],
    "batch_matmul": NUMPY_PEERS["batched_gemm"],
    "gemv": NUMPY_PEERS["gemv"],
    "matmul_transposed_b": _matmul_transposed_b,
    "gemv_transposed": _gemv_transposed,
    "gemm_update": _gemm_update,
    "2mm": _two_products,
    "3mm": _three_products,
    "atax": _atax,
    "bicg": _bicg,
    "mvt": _mvt,
    "gesummv": _gesummv,
    "bias_relu_matmul": _dense,
    "attention": NUMPY_PEERS["attention"],
}

PROGRAM_PEERS: dict[str, Peer] = {
    **_WITH_BLAS,
    "softmax": NUMPY_PEERS["softmax"],
    "layernorm": NUMPY_PEERS["layernorm"],
    "transpose": NUMPY_PEERS["transpose"],
    "elementwise_chain": _elementwise_chain,
}
"""How numpy computes each program, by the program's name."""

BLAS_PROGRAMS = frozenset(_WITH_BLAS)
"""Programs whose time is that of BLAS."""
