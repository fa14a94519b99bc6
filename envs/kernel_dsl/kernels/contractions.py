"""Matrix products and what is built of them: GEMM, batched GEMM, GEMV, GEMM with bias and GELU, MLP."""

from __future__ import annotations

import math

import numpy as np

from solgym.envs.kernel_dsl.expression import Builder, Computation, gelu, relu
from solgym.envs.kernel_dsl.kernels.kernel import Extents, Float64Array, Kernel, Ranges, fan_in_range
from solgym.hardware.task import DType

__all__ = ["CONTRACTIONS"]


def gemm(dtype: DType, m: int, n: int, k: int) -> Computation:
    """``C[m, n] = A[m, k] B[k, n]``."""
    b = Builder(dtype)
    left, right = b.input("A", m, k), b.input("B", k, n)
    kk = b.reduce("k", k)
    b.stage("C", {"i": m, "j": n}, lambda i, j: left[i, kk] * right[kk, j], over=[kk], combiner="sum")
    return b.build()


def batched_gemm(dtype: DType, b: int, m: int, n: int, k: int) -> Computation:
    """``C[b, m, n] = A[b, m, k] B[b, k, n]``."""
    builder = Builder(dtype)
    left, right = builder.input("A", b, m, k), builder.input("B", b, k, n)
    kk = builder.reduce("k", k)
    builder.stage(
        "C",
        {"b": b, "i": m, "j": n},
        lambda bb, i, j: left[bb, i, kk] * right[bb, kk, j],
        over=[kk],
        combiner="sum",
    )
    return builder.build()


def gemv(dtype: DType, m: int, n: int) -> Computation:
    """``y[m] = A[m, n] x[n]``."""
    b = Builder(dtype)
    matrix, vector = b.input("A", m, n), b.input("x", n)
    j = b.reduce("j", n)
    b.stage("y", {"i": m}, lambda i: matrix[i, j] * vector[j], over=[j], combiner="sum")
    return b.build()


def gemm_bias_gelu(dtype: DType, m: int, n: int, k: int) -> Computation:
    """``out = gelu(A B + bias)`` with the exact, erf-based GELU."""
    b = Builder(dtype)
    left, right, bias = b.input("A", m, k), b.input("B", k, n), b.input("bias", n)
    kk = b.reduce("k", k)
    acc = b.stage("acc", {"i": m, "j": n}, lambda i, j: left[i, kk] * right[kk, j], over=[kk], combiner="sum")
    b.stage("out", {"i": m, "j": n}, lambda i, j: gelu(acc[i, j] + bias[j]))
    return b.build()


def mlp(dtype: DType, **extents: int) -> Computation:
    """``Y = relu(X W1 + b1) W2 + b2``; extents batch, in, hidden, out."""
    batch, inner, hidden, outer = (extents[name] for name in ("batch", "in", "hidden", "out"))
    b = Builder(dtype)
    x, w1, b1 = b.input("X", batch, inner), b.input("W1", inner, hidden), b.input("b1", hidden)
    w2, b2 = b.input("W2", hidden, outer), b.input("b2", outer)
    k, j = b.reduce("k", inner), b.reduce("j", hidden)
    acc1 = b.stage(
        "acc1", {"i": batch, "j": hidden}, lambda i, jj: x[i, k] * w1[k, jj], over=[k], combiner="sum"
    )
    act = b.stage("H", {"i": batch, "j": hidden}, lambda i, jj: relu(acc1[i, jj] + b1[jj]))
    acc2 = b.stage(
        "acc2", {"i": batch, "o": outer}, lambda i, o: act[i, j] * w2[j, o], over=[j], combiner="sum"
    )
    b.stage("Y", {"i": batch, "o": outer}, lambda i, o: acc2[i, o] + b2[o])
    return b.build()


def matmul_reference(extents: Extents, left: Float64Array, right: Float64Array) -> Float64Array:
    """Matrix product over the last two dimensions; a vector on the right gives a vector."""
    return np.asarray(left @ right)


def gemm_bias_gelu_reference(
    extents: Extents, left: Float64Array, right: Float64Array, bias: Float64Array
) -> Float64Array:
    """``x * Phi(x)`` of the biased product, with libm's erf element by element."""
    x = left @ right + bias
    erf = np.array([math.erf(v) for v in (x * math.sqrt(0.5)).flat]).reshape(x.shape)
    return np.asarray(x * (1.0 + erf) / 2.0)


def mlp_reference(
    extents: Extents, x: Float64Array, w1: Float64Array, b1: Float64Array, w2: Float64Array, b2: Float64Array
) -> Float64Array:
    """Two products with a rectified layer between them."""
    return np.asarray(np.maximum(x @ w1 + b1, 0.0) @ w2 + b2)


def _gelu_ranges(extents: Extents) -> Ranges:
    return {"B": fan_in_range(extents["k"])}


def _mlp_ranges(extents: Extents) -> Ranges:
    return {"W1": fan_in_range(extents["in"]), "W2": fan_in_range(extents["hidden"])}


CONTRACTIONS = (
    Kernel(
        name="gemm",
        env_id="GEMM",
        family="contraction",
        summary="Matrix product, C[m, n] = A[m, k] B[k, n]",
        extents=("m", "n", "k"),
        build=gemm,
        reference=matmul_reference,
        default="f32/m512n512k512",
        train=(
            "f32/m256n256k256", "f32/m384n384k384", "f32/m512n512k512", "f32/m768n768k768",
            "f32/m128n1024k512", "f32/m1024n64k1024", "f32/m100n300k200", "f32/m65n130k515",
            "f64/m256n256k256", "f64/m512n512k512", "f64/m100n300k200",
        ),
        test=(
            "f32/m320n320k320", "f32/m500n500k500", "f32/m1000n1000k1000", "f32/m1023n1023k1023",
            "f32/m127n3072k768", "f32/m48n768k96", "f64/m320n320k320", "f64/m127n200k333",
        ),
    ),
    Kernel(
        name="batched_gemm",
        env_id="BatchedGEMM",
        family="contraction",
        summary="A matrix product per batch entry, C[b, m, n] = A[b, m, k] B[b, k, n]",
        extents=("b", "m", "n", "k"),
        build=batched_gemm,
        reference=matmul_reference,
        default="f32/b16m128n128k64",
        train=(
            "f32/b16m128n128k64", "f32/b8m256n256k64", "f32/b64m32n32k32", "f32/b12m50n70k30",
            "f64/b16m128n128k64", "f64/b12m50n70k30",
        ),
        test=("f32/b32m64n64k64", "f32/b6m100n90k77", "f32/b4m384n64k384", "f64/b32m64n64k64"),
    ),
    Kernel(
        name="gemv",
        env_id="GEMV",
        family="contraction",
        summary="Matrix times vector, y[m] = A[m, n] x[n]",
        extents=("m", "n"),
        build=gemv,
        reference=matmul_reference,
        default="f32/m2048n2048",
        train=(
            "f32/m2048n2048", "f32/m512n512", "f32/m1000n3000", "f32/m4096n256", "f32/m129n1027",
            "f64/m1024n2048", "f64/m1000n3000",
        ),
        test=("f32/m1024n1024", "f32/m1023n2049", "f32/m256n8192", "f64/m1023n2049"),
    ),
    Kernel(
        name="gemm_bias_gelu",
        env_id="GEMMBiasGELU",
        family="contraction",
        summary="Matrix product with a fused epilogue, out = gelu(A B + bias)",
        extents=("m", "n", "k"),
        build=gemm_bias_gelu,
        reference=gemm_bias_gelu_reference,
        default="f32/m512n512k512",
        train=("f32/m512n512k512", "f32/m256n256k256", "f32/m128n1024k256", "f32/m100n300k200"),
        test=("f32/m384n384k384", "f32/m127n768k300", "f32/m500n500k500"),
        dtypes=("f32",),  # erf has a vector polynomial in f32 only
        ranges=_gelu_ranges,
    ),
    Kernel(
        name="mlp",
        env_id="MLP",
        family="contraction",
        summary="Two dense layers, Y = relu(X W1 + b1) W2 + b2",
        extents=("batch", "in", "hidden", "out"),
        build=mlp,
        reference=mlp_reference,
        default="f32/batch128in256hidden1024out256",
        train=(
            "f32/batch128in256hidden1024out256", "f32/batch64in128hidden512out128",
            "f32/batch100in200hidden300out50", "f64/batch64in128hidden512out128",
        ),
        test=(
            "f32/batch96in256hidden768out256", "f32/batch127in130hidden515out65",
            "f64/batch127in130hidden515out65",
        ),
        ranges=_mlp_ranges,
    ),
)  # fmt: skip
