"""Programs of machine learning that normalise, reduce, map or rearrange: what memory, not arithmetic, bounds.

Each step (a maximum, a difference, a sum, a quotient) is an operation of its own: fusing them is for whoever
chooses the passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from solgym.envs.mlir_passes.programs.program import Argument, Extents, Program
from solgym.envs.mlir_passes.programs.tensor_function import Tensor, TensorFunction, tensor_module

__all__ = ["PROGRAMS", "softmax_of_rows"]

_Array = NDArray[np.float64]

_EPSILON = 1e-5
"""What normalisations add to a variance or a mean square."""


def softmax_of_rows(function: TensorFunction, x: Tensor) -> Tensor:
    """The softmax of each row of a matrix, in four steps."""
    largest = function.reduce("maximumf", x, 1, -math.inf)
    powers = function.elementwise(
        {"x": (x, "i, j"), "m": (largest, "i")},
        x.shape,
        "%difference = arith.subf %x, %m",
        "%power = math.exp %difference",
    )
    total = function.reduce("addf", powers, 1, 0.0)
    return function.elementwise(
        {"p": (powers, "i, j"), "s": (total, "i")}, x.shape, "%quotient = arith.divf %p, %s"
    )


def _mean(function: TensorFunction, x: Tensor, dimension: int) -> Tensor:
    total = function.reduce("addf", x, dimension, 0.0)
    share = function.constant(1.0 / x.shape[dimension])
    return function.elementwise({"s": (total, "i")}, total.shape, f"%average = arith.mulf %s, {share}")


def _squares(function: TensorFunction, x: Tensor) -> Tensor:
    return function.elementwise({"x": (x, "i, j")}, x.shape, "%square = arith.mulf %x, %x")


def _divide_by_root(function: TensorFunction, x: Tensor, mean_square: Tensor) -> Tensor:
    epsilon = function.constant(_EPSILON)
    inverse = function.elementwise(
        {"v": (mean_square, "i")},
        mean_square.shape,
        f"%shifted = arith.addf %v, {epsilon}",
        "%inverse = math.rsqrt %shifted",
    )
    return function.elementwise(
        {"x": (x, "i, j"), "r": (inverse, "i")}, x.shape, "%scaled = arith.mulf %x, %r"
    )


def _layer_norm(function: TensorFunction, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    centred = function.elementwise(
        {"x": (x, "i, j"), "m": (_mean(function, x, 1), "i")}, x.shape, "%c = arith.subf %x, %m"
    )
    normal = _divide_by_root(function, centred, _mean(function, _squares(function, centred), 1))
    return function.elementwise(
        {"x": (normal, "i, j"), "g": (gain, "j"), "b": (bias, "j")},
        x.shape,
        "%gained = arith.mulf %x, %g",
        "%biased = arith.addf %gained, %b",
    )


def _layer_norm_of(x: _Array, gain: _Array, bias: _Array) -> _Array:
    deviation: _Array = np.sqrt(x.var(axis=1, keepdims=True) + _EPSILON)
    centred: _Array = x - x.mean(axis=1, keepdims=True)
    return centred / deviation * gain + bias


# --- softmax


def _softmax_arguments(extents: Extents) -> tuple[Argument, ...]:
    shape = extents["m"], extents["n"]
    return Argument("X", shape), Argument("Y", shape, "out")


def _write_softmax(function: TensorFunction, extents: Extents) -> None:
    function.write(softmax_of_rows(function, function.read("X")), "Y")


def _softmax_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return (powers / powers.sum(axis=1, keepdims=True),)


# --- layernorm, residual_layernorm, rmsnorm


def _layernorm_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return (
        Argument("X", (m, n)),
        Argument("gain", (n,)),
        Argument("bias", (n,)),
        Argument("Y", (m, n), "out"),
    )


def _write_layernorm(function: TensorFunction, extents: Extents) -> None:
    x, gain, bias = (function.read(name) for name in ("X", "gain", "bias"))
    function.write(_layer_norm(function, x, gain, bias), "Y")


def _layernorm_reference(extents: Extents, x: _Array, gain: _Array, bias: _Array) -> tuple[_Array, ...]:
    return (_layer_norm_of(x, gain, bias),)


def _residual_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return (
        Argument("A", (m, n)),
        Argument("B", (m, n)),
        Argument("gain", (n,)),
        Argument("bias", (n,)),
        Argument("S", (m, n), "out"),
        Argument("Y", (m, n), "out"),
    )


def _write_residual(function: TensorFunction, extents: Extents) -> None:
    a, b, gain, bias = (function.read(name) for name in ("A", "B", "gain", "bias"))
    total = function.elementwise({"a": (a, "i, j"), "b": (b, "i, j")}, a.shape, "%s = arith.addf %a, %b")
    normal = _layer_norm(function, total, gain, bias)
    function.write(total, "S")
    function.write(normal, "Y")


def _residual_reference(
    extents: Extents, a: _Array, b: _Array, gain: _Array, bias: _Array
) -> tuple[_Array, ...]:
    return a + b, _layer_norm_of(a + b, gain, bias)


def _rmsnorm_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return Argument("X", (m, n)), Argument("gain", (n,)), Argument("Y", (m, n), "out")


def _write_rmsnorm(function: TensorFunction, extents: Extents) -> None:
    x = function.read("X")
    normal = _divide_by_root(function, x, _mean(function, _squares(function, x), 1))
    gained = function.elementwise(
        {"x": (normal, "i, j"), "g": (function.read("gain"), "j")}, x.shape, "%y = arith.mulf %x, %g"
    )
    function.write(gained, "Y")


def _rmsnorm_reference(extents: Extents, x: _Array, gain: _Array) -> tuple[_Array, ...]:
    return (x * gain / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + _EPSILON),)


# --- batch_norm_inference


def _batch_norm_arguments(extents: Extents) -> tuple[Argument, ...]:
    shape, channels = tuple(extents[name] for name in "nchw"), (extents["c"],)
    return (
        Argument("X", shape),
        Argument("mean", channels),
        Argument("variance", channels),
        Argument("gain", channels),
        Argument("bias", channels),
        Argument("Y", shape, "out"),
    )


def _write_batch_norm(function: TensorFunction, extents: Extents) -> None:
    x, mean, variance, gain, bias = (
        function.read(name) for name in ("X", "mean", "variance", "gain", "bias")
    )
    epsilon = function.constant(_EPSILON)
    everywhere = "i, j, k, l"
    centred = function.elementwise(
        {"x": (x, everywhere), "m": (mean, "j")}, x.shape, "%centred = arith.subf %x, %m"
    )
    normal = function.elementwise(
        {"x": (centred, everywhere), "v": (variance, "j")},
        x.shape,
        f"%shifted = arith.addf %v, {epsilon}",
        "%inverse = math.rsqrt %shifted",
        "%normal = arith.mulf %x, %inverse",
    )
    affine = function.elementwise(
        {"x": (normal, everywhere), "g": (gain, "j"), "b": (bias, "j")},
        x.shape,
        "%gained = arith.mulf %x, %g",
        "%biased = arith.addf %gained, %b",
    )
    function.write(affine, "Y")


def _batch_norm_reference(
    extents: Extents, x: _Array, mean: _Array, variance: _Array, gain: _Array, bias: _Array
) -> tuple[_Array, ...]:
    factor = gain / np.sqrt(variance + _EPSILON)
    return (x * factor[:, None, None] + (bias - mean * factor)[:, None, None],)


def _batch_norm_inputs(extents: Extents, generator: np.random.Generator) -> Mapping[str, _Array]:
    return {"variance": generator.uniform(0.5, 1.5, extents["c"])}


def _batch_norm_flops(extents: Extents) -> int:
    # A factor and a term for each channel, in three and two operations, then a multiply-add.
    return 2 * math.prod(extents.values()) + 5 * extents["c"]


# --- elementwise_chain


def _chain_arguments(extents: Extents) -> tuple[Argument, ...]:
    shape = extents["m"], extents["n"]
    return Argument("A", shape), Argument("B", shape), Argument("C", shape), Argument("D", shape, "out")


def _write_chain(function: TensorFunction, extents: Extents) -> None:
    a, b, c = (function.read(name) for name in "ABC")
    zero = function.constant(0.0)
    here = "i, j"
    total = function.elementwise({"a": (a, here), "b": (b, here)}, a.shape, "%s = arith.addf %a, %b")
    product = function.elementwise({"s": (total, here), "c": (c, here)}, a.shape, "%p = arith.mulf %s, %c")
    positive = function.elementwise({"p": (product, here)}, a.shape, f"%r = arith.maximumf %p, {zero}")
    square = function.elementwise({"r": (positive, here)}, a.shape, "%q = arith.mulf %r, %r")
    difference = function.elementwise(
        {"q": (square, here), "a": (a, here)}, a.shape, "%d = arith.subf %q, %a"
    )
    function.write(difference, "D")


def _chain_reference(extents: Extents, a: _Array, b: _Array, c: _Array) -> tuple[_Array, ...]:
    product = (a + b) * c
    return (np.where(product > 0.0, product**2, 0.0) - a,)


# --- transpose, transpose_4d


def _transpose_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return Argument("A", (m, n)), Argument("B", (n, m), "out")


def _write_transpose(function: TensorFunction, extents: Extents) -> None:
    function.write(function.transpose(function.read("A"), (1, 0)), "B")


def _transpose_reference(extents: Extents, a: _Array) -> tuple[_Array, ...]:
    return (a.T,)


def _layout_arguments(extents: Extents) -> tuple[Argument, ...]:
    n, c, h, w = (extents[name] for name in "nchw")
    return Argument("X", (n, c, h, w)), Argument("Y", (n, h, w, c), "out")


def _write_layout(function: TensorFunction, extents: Extents) -> None:
    function.write(function.transpose(function.read("X"), (0, 2, 3, 1)), "Y")


def _layout_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    return (np.moveaxis(x, 1, 3),)


# --- row_reduction, column_reduction


def _row_norm_arguments(extents: Extents) -> tuple[Argument, ...]:
    return Argument("A", (extents["m"], extents["n"])), Argument("norm", (extents["m"],), "out")


def _write_row_norm(function: TensorFunction, extents: Extents) -> None:
    total = function.reduce("addf", _squares(function, function.read("A")), 1, 0.0)
    root = function.elementwise({"s": (total, "i")}, total.shape, "%root = math.sqrt %s")
    function.write(root, "norm")


def _row_norm_reference(extents: Extents, a: _Array) -> tuple[_Array, ...]:
    return (np.linalg.norm(a, axis=1),)


def _column_moments_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return Argument("A", (m, n)), Argument("mean", (n,), "out"), Argument("variance", (n,), "out")


def _write_column_moments(function: TensorFunction, extents: Extents) -> None:
    a = function.read("A")
    mean = _mean(function, a, 0)
    centred = function.elementwise({"a": (a, "i, j"), "m": (mean, "j")}, a.shape, "%c = arith.subf %a, %m")
    variance = _mean(function, _squares(function, centred), 0)
    function.write(mean, "mean")
    function.write(variance, "variance")


def _column_moments_reference(extents: Extents, a: _Array) -> tuple[_Array, ...]:
    return a.mean(axis=0), a.var(axis=0)


PROGRAMS: tuple[Program, ...] = (
    Program(
        name="softmax",
        env_id="Softmax",
        summary="Softmax of each row: Y[i, j] = exp(X[i, j] - m[i]) / sum_k exp(X[i, k] - m[i]), m: maxima",
        suite="ML",
        split="train",
        extents=("m", "n"),
        train=((512, 512), (1024, 256), (256, 1024), (128, 2048)),
        test=((384, 640), (301, 777)),
        arguments=_softmax_arguments,
        mlir=tensor_module(_softmax_arguments, _write_softmax),
        reference=_softmax_reference,
        # A row takes n - 1 maxima and additions, and n differences, exponentials and quotients.
        flops=lambda extents: extents["m"] * (5 * extents["n"] - 2),
        error_terms=lambda extents: extents["n"] + 3,
    ),
    Program(
        name="layernorm",
        env_id="Layernorm",
        summary="Layer normalisation: Y = (X - mean) / sqrt(variance + 1e-5) * gain + bias, along each row",
        suite="ML",
        split="train",
        extents=("m", "n"),
        train=((1024, 512), (2048, 256), (512, 1024), (256, 2048)),
        test=((768, 640), (699, 770)),
        arguments=_layernorm_arguments,
        mlir=tensor_module(_layernorm_arguments, _write_layernorm),
        reference=_layernorm_reference,
        # Three an element for the sums of x and of x^2, four to shift and scale by row and by column; the few
        # operations a row make up for the first terms, which need no addition.
        flops=lambda extents: 7 * extents["m"] * extents["n"],
        error_terms=lambda extents: 2 * extents["n"] + 6,
    ),
    Program(
        name="rmsnorm",
        env_id="Rmsnorm",
        summary="Root-mean-square normalisation: Y = X / sqrt(mean(X^2) + 1e-5) * gain, along each row",
        suite="ML",
        split="test",
        extents=("m", "n"),
        train=((1024, 512), (2048, 256), (512, 1024)),
        test=((768, 640), (703, 765)),
        arguments=_rmsnorm_arguments,
        mlir=tensor_module(_rmsnorm_arguments, _write_rmsnorm),
        reference=_rmsnorm_reference,
        flops=lambda extents: 4 * extents["m"] * extents["n"],
        error_terms=lambda extents: extents["n"] + 5,
        dtypes=("f32", "f64"),
    ),
    Program(
        name="residual_layernorm",
        env_id="ResidualLayernorm",
        summary="Residual connection, then layer normalisation: S = A + B, Y = layernorm(S) * gain + bias",
        suite="ML",
        split="train",
        extents=("m", "n"),
        train=((1024, 512), (2048, 256), (512, 1024)),
        test=((768, 640), (695, 771)),
        arguments=_residual_arguments,
        mlir=tensor_module(_residual_arguments, _write_residual),
        reference=_residual_reference,
        flops=lambda extents: 8 * extents["m"] * extents["n"],
        error_terms=lambda extents: 2 * extents["n"] + 7,
    ),
    Program(
        name="batch_norm_inference",
        env_id="BatchNormInference",
        summary="Batch normalisation with known statistics, NCHW: "
        "Y = (X - mean) / sqrt(variance + 1e-5) * gain + bias, by channel",
        suite="ML",
        split="train",
        extents=("n", "c", "h", "w"),
        train=((4, 64, 32, 32), (2, 64, 64, 48), (4, 32, 32, 64)),
        test=((3, 48, 40, 48), (2, 67, 45, 51)),
        arguments=_batch_norm_arguments,
        mlir=tensor_module(_batch_norm_arguments, _write_batch_norm),
        reference=_batch_norm_reference,
        flops=_batch_norm_flops,
        error_terms=lambda extents: 6,
        inputs=_batch_norm_inputs,
    ),
    Program(
        name="elementwise_chain",
        env_id="ElementwiseChain",
        summary="Five elementwise steps: D = max((A + B) * C, 0)^2 - A",
        suite="ML",
        split="train",
        extents=("m", "n"),
        train=((1024, 512), (512, 1024), (2048, 256)),
        test=((768, 640), (733, 715)),
        arguments=_chain_arguments,
        mlir=tensor_module(_chain_arguments, _write_chain),
        reference=_chain_reference,
        flops=lambda extents: 5 * extents["m"] * extents["n"],
        error_terms=lambda extents: 5,
        dtypes=("f32", "f64"),
    ),
    Program(
        name="transpose",
        env_id="Transpose",
        summary="Transposed matrix: B = A^T",
        suite="ML",
        split="train",
        extents=("m", "n"),
        train=((512, 512), (256, 1024), (1024, 512)),
        test=((384, 640), (501, 707)),
        arguments=_transpose_arguments,
        mlir=tensor_module(_transpose_arguments, _write_transpose),
        reference=_transpose_reference,
        flops=lambda extents: 0,
        error_terms=lambda extents: 0,
    ),
    Program(
        name="transpose_4d",
        env_id="Transpose4d",
        summary="From NCHW to NHWC: Y[n, h, w, c] = X[n, c, h, w]",
        suite="ML",
        split="test",
        extents=("n", "c", "h", "w"),
        train=((2, 64, 64, 64), (1, 128, 48, 64), (4, 32, 64, 64)),
        test=((2, 48, 80, 56), (3, 59, 53, 61)),
        arguments=_layout_arguments,
        mlir=tensor_module(_layout_arguments, _write_layout),
        reference=_layout_reference,
        flops=lambda extents: 0,
        error_terms=lambda extents: 0,
    ),
    Program(
        name="row_reduction",
        env_id="RowReduction",
        summary="Euclidean norm of each row: norm[i] = sqrt(sum_j A[i, j]^2)",
        suite="ML",
        split="train",
        extents=("m", "n"),
        train=((2048, 512), (1024, 1024), (256, 4096)),
        test=((1536, 640), (1213, 717)),
        arguments=_row_norm_arguments,
        mlir=tensor_module(_row_norm_arguments, _write_row_norm),
        reference=_row_norm_reference,
        # n squares, n - 1 additions and a root.
        flops=lambda extents: 2 * extents["m"] * extents["n"],
        error_terms=lambda extents: extents["n"] + 2,
    ),
    Program(
        name="column_reduction",
        env_id="ColumnReduction",
        summary="Mean and variance of each column: variance[j] = sum_i (A[i, j] - mean[j])^2 / m",
        suite="ML",
        split="train",
        extents=("m", "n"),
        train=((2048, 512), (1024, 1024), (4096, 256)),
        test=((1536, 640), (1301, 605)),
        arguments=_column_moments_arguments,
        mlir=tensor_module(_column_moments_arguments, _write_column_moments),
        reference=_column_moments_reference,
        # Sums of elements and of their squares; the few operations a column make up for the first terms.
        flops=lambda extents: 3 * extents["m"] * extents["n"],
        error_terms=lambda extents: 2 * extents["m"] + 4,
    ),
)
"""The programs of this file."""
