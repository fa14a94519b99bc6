"""Programs of machine learning that are built around matrix products: dense layers, an MLP, attention.

Activations, scalings and the steps of a softmax are operations of their own, as a framework would write them:
fusing them is for whoever chooses the passes. Products count two operations a term; shortcuts that change the
arithmetic (Strassen, Winograd) are not allowed for.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from solgym.envs.mlir_passes.programs.ml_rows import softmax_of_rows
from solgym.envs.mlir_passes.programs.program import Argument, Extents, Program
from solgym.envs.mlir_passes.programs.tensor_function import Tensor, TensorFunction, tensor_module

__all__ = ["PROGRAMS"]

_Array = NDArray[np.float64]


def _matmul(function: TensorFunction, left: Tensor, right: Tensor) -> Tensor:
    start = function.filled((left.shape[0], right.shape[1]), 0.0)
    return function.named("matmul", (left, right), start)


def _matmul_transposed(function: TensorFunction, left: Tensor, right: Tensor) -> Tensor:
    maps = ", ".join(f"affine_map<(m, n, k) -> ({index})>" for index in ("m, k", "n, k", "m, n"))
    start = function.filled((left.shape[0], right.shape[0]), 0.0)
    return function.named("matmul", (left, right), start, f"indexing_maps = [{maps}]")


def _add_to_rows(function: TensorFunction, matrix: Tensor, bias: Tensor) -> Tensor:
    return function.elementwise(
        {"x": (matrix, "i, j"), "b": (bias, "j")}, matrix.shape, "%s = arith.addf %x, %b"
    )


# --- batch_matmul


def _batch_matmul_arguments(extents: Extents) -> tuple[Argument, ...]:
    b, m, n, k = (extents[name] for name in "bmnk")
    return Argument("A", (b, m, k)), Argument("B", (b, k, n)), Argument("C", (b, m, n), "out")


def _write_batch_matmul(function: TensorFunction, extents: Extents) -> None:
    start = function.filled((extents["b"], extents["m"], extents["n"]), 0.0)
    function.write(function.named("batch_matmul", (function.read("A"), function.read("B")), start), "C")


def _batch_matmul_reference(extents: Extents, a: _Array, b: _Array) -> tuple[_Array, ...]:
    return (np.matmul(a, b),)


# --- gemv


def _gemv_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return Argument("A", (m, n)), Argument("x", (n,)), Argument("y", (m,), "out")


def _write_gemv(function: TensorFunction, extents: Extents) -> None:
    inputs = function.read("A"), function.read("x")
    function.write(function.named("matvec", inputs, function.filled((extents["m"],), 0.0)), "y")


def _gemv_reference(extents: Extents, a: _Array, x: _Array) -> tuple[_Array, ...]:
    return (a @ x,)


# --- gemv_transposed


def _gemv_transposed_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return Argument("A", (m, n)), Argument("x", (m,)), Argument("y", (n,), "out")


def _write_gemv_transposed(function: TensorFunction, extents: Extents) -> None:
    inputs = function.read("x"), function.read("A")
    function.write(function.named("vecmat", inputs, function.filled((extents["n"],), 0.0)), "y")


def _gemv_transposed_reference(extents: Extents, a: _Array, x: _Array) -> tuple[_Array, ...]:
    return (np.einsum("ij,i->j", a, x),)


# --- matmul_transposed_b


def _transposed_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n, k = (extents[name] for name in "mnk")
    return Argument("A", (m, k)), Argument("B", (n, k)), Argument("C", (m, n), "out")


def _write_transposed(function: TensorFunction, extents: Extents) -> None:
    function.write(_matmul_transposed(function, function.read("A"), function.read("B")), "C")


def _transposed_reference(extents: Extents, a: _Array, b: _Array) -> tuple[_Array, ...]:
    return (a @ b.T,)


# --- bias_relu_matmul


def _dense_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n, k = (extents[name] for name in "mnk")
    return Argument("X", (m, k)), Argument("W", (k, n)), Argument("bias", (n,)), Argument("Y", (m, n), "out")


def _write_dense(function: TensorFunction, extents: Extents) -> None:
    product = _matmul(function, function.read("X"), function.read("W"))
    biased = _add_to_rows(function, product, function.read("bias"))
    zero = function.constant(0.0)
    positive = function.elementwise({"s": (biased, "i, j")}, biased.shape, f"%r = arith.maximumf %s, {zero}")
    function.write(positive, "Y")


def _dense_reference(extents: Extents, x: _Array, w: _Array, bias: _Array) -> tuple[_Array, ...]:
    return (np.maximum(x @ w + bias, 0.0),)


# --- gelu_mlp


def _mlp_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, d, h = (extents[name] for name in "mdh")
    return (
        Argument("X", (m, d)),
        Argument("W1", (d, h)),
        Argument("b1", (h,)),
        Argument("W2", (h, d)),
        Argument("b2", (d,)),
        Argument("Y", (m, d), "out"),
    )


def _write_mlp(function: TensorFunction, extents: Extents) -> None:
    hidden = _add_to_rows(
        function, _matmul(function, function.read("X"), function.read("W1")), function.read("b1")
    )
    half, one = function.constant(0.5), function.constant(1.0)
    cubic, scale = function.constant(0.044715), function.constant(math.sqrt(2.0 / math.pi))
    active = function.elementwise(
        {"v": (hidden, "i, j")},
        hidden.shape,
        "%square = arith.mulf %v, %v",
        "%cube = arith.mulf %square, %v",
        f"%bend = arith.mulf %cube, {cubic}",
        "%sum = arith.addf %v, %bend",
        f"%angle = arith.mulf %sum, {scale}",
        "%tanh = math.tanh %angle",
        f"%gate = arith.addf %tanh, {one}",
        f"%half = arith.mulf %v, {half}",
        "%gelu = arith.mulf %half, %gate",
    )
    output = _matmul(function, active, function.read("W2"))
    function.write(_add_to_rows(function, output, function.read("b2")), "Y")


def _mlp_reference(
    extents: Extents, x: _Array, w1: _Array, b1: _Array, w2: _Array, b2: _Array
) -> tuple[_Array, ...]:
    hidden = x @ w1 + b1
    # 1 + tanh(u) is 2 / (1 + exp(-2u)).
    gate = 1.0 / (1.0 + np.exp(-2.0 * np.sqrt(2.0 / np.pi) * (hidden + 0.044715 * hidden**3)))
    return ((hidden * gate) @ w2 + b2,)


# --- swiglu


def _swiglu_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n, k = (extents[name] for name in "mnk")
    return Argument("X", (m, k)), Argument("G", (k, n)), Argument("U", (k, n)), Argument("Y", (m, n), "out")


def _write_swiglu(function: TensorFunction, extents: Extents) -> None:
    x = function.read("X")
    gate = _matmul(function, x, function.read("G"))
    up = _matmul(function, x, function.read("U"))
    one = function.constant(1.0)
    swish = function.elementwise(
        {"g": (gate, "i, j")},
        gate.shape,
        "%minus = arith.negf %g",
        "%exponential = math.exp %minus",
        f"%sum = arith.addf %exponential, {one}",
        "%swish = arith.divf %g, %sum",
    )
    product = function.elementwise(
        {"s": (swish, "i, j"), "u": (up, "i, j")}, up.shape, "%p = arith.mulf %s, %u"
    )
    function.write(product, "Y")


def _swiglu_reference(extents: Extents, x: _Array, g: _Array, u: _Array) -> tuple[_Array, ...]:
    gate = x @ g
    # The logistic function is (1 + tanh(g / 2)) / 2.
    return (gate * 0.5 * (1.0 + np.tanh(0.5 * gate)) * (x @ u),)


# --- attention


def _attention_arguments(extents: Extents) -> tuple[Argument, ...]:
    shape = extents["n"], extents["d"]
    return Argument("Q", shape), Argument("K", shape), Argument("V", shape), Argument("O", shape, "out")


def _write_attention(function: TensorFunction, extents: Extents) -> None:
    scores = _matmul_transposed(function, function.read("Q"), function.read("K"))
    factor = function.constant(1.0 / math.sqrt(extents["d"]))
    scaled = function.elementwise({"s": (scores, "i, j")}, scores.shape, f"%t = arith.mulf %s, {factor}")
    function.write(_matmul(function, softmax_of_rows(function, scaled), function.read("V")), "O")


def _attention_reference(extents: Extents, q: _Array, k: _Array, v: _Array) -> tuple[_Array, ...]:
    # Inputs within [-1, 1) keep the powers far from overflow: no need to subtract the largest.
    weights = np.exp(np.einsum("id,jd->ij", q, k, optimize=True) / np.sqrt(extents["d"]))
    return ((weights @ v) / weights.sum(axis=1, keepdims=True),)


def _attention_flops(extents: Extents) -> int:
    n, d = extents["n"], extents["d"]
    # Of the softmax: n - 1 maxima, n differences, n exponentials and n - 1 additions a row. The scaling can
    # move to Q and the division to O, where d is less than n.
    return 4 * n * n * d + n * (4 * n - 2) + 2 * n * min(n, d)


PROGRAMS: tuple[Program, ...] = (
    Program(
        name="batch_matmul",
        env_id="BatchMatmul",
        summary="Products of a batch of matrices: C[b] = A[b] B[b]",
        suite="ML",
        split="train",
        extents=("b", "m", "n", "k"),
        train=((4, 128, 128, 128), (8, 64, 96, 128), (2, 192, 128, 96), (16, 64, 64, 64)),
        test=((6, 80, 112, 96), (3, 99, 130, 77)),
        arguments=_batch_matmul_arguments,
        mlir=tensor_module(_batch_matmul_arguments, _write_batch_matmul),
        reference=_batch_matmul_reference,
        flops=lambda extents: 2 * math.prod(extents.values()),
        error_terms=lambda extents: extents["k"],
        dtypes=("f32", "f64"),
    ),
    Program(
        name="gemv",
        env_id="Gemv",
        summary="Matrix times vector: y = A x",
        suite="ML",
        split="train",
        extents=("m", "n"),
        train=((1024, 2048), (512, 4096), (2048, 1024), (4096, 256)),
        test=((768, 2560), (1499, 1001)),
        arguments=_gemv_arguments,
        mlir=tensor_module(_gemv_arguments, _write_gemv),
        reference=_gemv_reference,
        flops=lambda extents: 2 * extents["m"] * extents["n"],
        error_terms=lambda extents: extents["n"],
    ),
    Program(
        name="gemv_transposed",
        env_id="GemvTransposed",
        summary="Transposed matrix times vector: y = A^T x",
        suite="ML",
        split="train",
        extents=("m", "n"),
        train=((512, 512), (1024, 256), (256, 1024)),
        test=((384, 640), (499, 601)),
        arguments=_gemv_transposed_arguments,
        mlir=tensor_module(_gemv_transposed_arguments, _write_gemv_transposed),
        reference=_gemv_transposed_reference,
        flops=lambda extents: 2 * extents["m"] * extents["n"],
        error_terms=lambda extents: extents["m"],
    ),
    Program(
        name="matmul_transposed_b",
        env_id="MatmulTransposedB",
        summary="Matrix product with the second matrix transposed: C = A B^T",
        suite="ML",
        split="test",
        extents=("m", "n", "k"),
        train=((256, 256, 256), (128, 384, 256), (320, 192, 192)),
        test=((192, 320, 224), (201, 299, 173)),
        arguments=_transposed_arguments,
        mlir=tensor_module(_transposed_arguments, _write_transposed),
        reference=_transposed_reference,
        flops=lambda extents: 2 * math.prod(extents.values()),
        error_terms=lambda extents: extents["k"],
    ),
    Program(
        name="bias_relu_matmul",
        env_id="BiasReluMatmul",
        summary="Dense layer: Y = max(X W + bias, 0)",
        suite="ML",
        split="train",
        extents=("m", "n", "k"),
        train=((128, 256, 128), (192, 192, 128), (256, 128, 192)),
        test=((160, 224, 144), (149, 203, 131)),
        arguments=_dense_arguments,
        mlir=tensor_module(_dense_arguments, _write_dense),
        reference=_dense_reference,
        # The product can start from the bias.
        flops=lambda extents: (2 * extents["k"] + 1) * extents["m"] * extents["n"],
        error_terms=lambda extents: extents["k"] + 1,
    ),
    Program(
        name="gelu_mlp",
        env_id="GeluMlp",
        summary="Two dense layers with a GELU between: Y = gelu(X W1 + b1) W2 + b2, gelu in its tanh form",
        suite="ML",
        split="train",
        extents=("m", "d", "h"),
        train=((64, 128, 256), (96, 96, 192), (128, 64, 256)),
        test=((80, 112, 208), (77, 93, 245)),
        arguments=_mlp_arguments,
        mlir=tensor_module(_mlp_arguments, _write_mlp),
        reference=_mlp_reference,
        # Products can start from the biases; x / (1 + exp(x (a + b x^2))) takes seven operations.
        flops=lambda extents: (4 * extents["d"] + 7) * extents["m"] * extents["h"],
        error_terms=lambda extents: extents["d"] + extents["h"] + 10,
    ),
    Program(
        name="swiglu",
        env_id="Swiglu",
        summary="Gated dense layer: Y = swish(X G) * (X U), swish(g) = g / (1 + exp(-g))",
        suite="ML",
        split="test",
        extents=("m", "n", "k"),
        train=((64, 256, 128), (128, 128, 128), (96, 192, 96)),
        test=((80, 208, 112), (67, 251, 105)),
        arguments=_swiglu_arguments,
        mlir=tensor_module(_swiglu_arguments, _write_swiglu),
        reference=_swiglu_reference,
        # An exponential, an addition, a division and a product for each pair of sums.
        flops=lambda extents: 4 * (extents["k"] + 1) * extents["m"] * extents["n"],
        error_terms=lambda extents: 2 * extents["k"] + 5,
    ),
    Program(
        name="attention",
        env_id="Attention",
        summary="One head of attention: O = softmax(Q K^T / sqrt(d)) V, softmax of each row",
        suite="ML",
        split="train",
        extents=("n", "d"),
        train=((256, 64), (192, 96), (320, 32), (384, 16)),
        test=((224, 80), (245, 53)),
        arguments=_attention_arguments,
        mlir=tensor_module(_attention_arguments, _write_attention),
        reference=_attention_reference,
        flops=_attention_flops,
        error_terms=lambda extents: 2 * extents["n"] + extents["d"] + 5,
    ),
)
"""The programs of this file."""
