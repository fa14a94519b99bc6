"""Convolutions and pooling of machine learning, by linalg's named operations.

Strides are one and nothing is padded, so an input is larger than its output by the window less one; only the
maximum pooling halves its input. Extents are those of the output.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from solgym.envs.mlir_passes.programs.program import Argument, Extents, Program
from solgym.envs.mlir_passes.programs.tensor_function import TensorFunction, tensor_module

__all__ = ["PROGRAMS"]

_Array = NDArray[np.float64]

_WINDOW = 3
"""Rows and columns of a filter."""


def _steps(step: int) -> str:
    return f"{{dilations = dense<1> : vector<2xi64>, strides = dense<{step}> : vector<2xi64>}}"


# --- conv2d_nchw


def _nchw_arguments(extents: Extents) -> tuple[Argument, ...]:
    n, f, h, w, c = (extents[name] for name in "nfhwc")
    return (
        Argument("X", (n, c, h + _WINDOW - 1, w + _WINDOW - 1)),
        Argument("W", (f, c, _WINDOW, _WINDOW)),
        Argument("Y", (n, f, h, w), "out"),
    )


def _write_nchw(function: TensorFunction, extents: Extents) -> None:
    inputs = function.read("X"), function.read("W")
    start = function.filled(tuple(extents[name] for name in "nfhw"), 0.0)
    function.write(function.named("conv_2d_nchw_fchw", inputs, start, _steps(1)), "Y")


def _nchw_reference(extents: Extents, x: _Array, w: _Array) -> tuple[_Array, ...]:
    h, width = extents["h"], extents["w"]
    total = np.zeros((extents["n"], extents["f"], h, width))
    for row, column in np.ndindex(_WINDOW, _WINDOW):
        shifted = x[:, :, row : row + h, column : column + width]
        total += np.einsum("nchw,fc->nfhw", shifted, w[:, :, row, column], optimize=True)
    return (total,)


# --- conv2d_nhwc


def _nhwc_arguments(extents: Extents) -> tuple[Argument, ...]:
    n, h, w, f, c = (extents[name] for name in "nhwfc")
    return (
        Argument("X", (n, h + _WINDOW - 1, w + _WINDOW - 1, c)),
        Argument("W", (_WINDOW, _WINDOW, c, f)),
        Argument("Y", (n, h, w, f), "out"),
    )


def _write_nhwc(function: TensorFunction, extents: Extents) -> None:
    inputs = function.read("X"), function.read("W")
    start = function.filled(tuple(extents[name] for name in "nhwf"), 0.0)
    function.write(function.named("conv_2d_nhwc_hwcf", inputs, start, _steps(1)), "Y")


def _nhwc_reference(extents: Extents, x: _Array, w: _Array) -> tuple[_Array, ...]:
    h, width = extents["h"], extents["w"]
    shifts = np.ndindex(_WINDOW, _WINDOW)
    return (sum(x[:, i : i + h, j : j + width] @ w[i, j] for i, j in shifts) + np.zeros(()),)


# --- depthwise_conv2d_nhwc


def _depthwise_arguments(extents: Extents) -> tuple[Argument, ...]:
    n, h, w, c = (extents[name] for name in "nhwc")
    return (
        Argument("X", (n, h + _WINDOW - 1, w + _WINDOW - 1, c)),
        Argument("W", (_WINDOW, _WINDOW, c)),
        Argument("Y", (n, h, w, c), "out"),
    )


def _write_depthwise(function: TensorFunction, extents: Extents) -> None:
    inputs = function.read("X"), function.read("W")
    start = function.filled(tuple(extents[name] for name in "nhwc"), 0.0)
    function.write(function.named("depthwise_conv_2d_nhwc_hwc", inputs, start, _steps(1)), "Y")


def _depthwise_reference(extents: Extents, x: _Array, w: _Array) -> tuple[_Array, ...]:
    windows = sliding_window_view(x, (_WINDOW, _WINDOW), axis=(1, 2))
    return (np.einsum("nhwcij,ijc->nhwc", windows, w),)


# --- conv1d


def _conv1d_arguments(extents: Extents) -> tuple[Argument, ...]:
    n, w, f, c = (extents[name] for name in "nwfc")
    return (
        Argument("X", (n, w + _WINDOW - 1, c)),
        Argument("W", (_WINDOW, c, f)),
        Argument("Y", (n, w, f), "out"),
    )


def _write_conv1d(function: TensorFunction, extents: Extents) -> None:
    inputs = function.read("X"), function.read("W")
    start = function.filled(tuple(extents[name] for name in "nwf"), 0.0)
    attributes = "{dilations = dense<1> : vector<1xi64>, strides = dense<1> : vector<1xi64>}"
    function.write(function.named("conv_1d_nwc_wcf", inputs, start, attributes), "Y")


def _conv1d_reference(extents: Extents, x: _Array, w: _Array) -> tuple[_Array, ...]:
    windows = sliding_window_view(x, _WINDOW, axis=1)
    return (np.einsum("nwci,icf->nwf", windows, w, optimize=True),)


# --- max_pool_nhwc


def _max_pool_arguments(extents: Extents) -> tuple[Argument, ...]:
    n, h, w, c = (extents[name] for name in "nhwc")
    return Argument("X", (n, 2 * h, 2 * w, c)), Argument("Y", (n, h, w, c), "out")


def _write_max_pool(function: TensorFunction, extents: Extents) -> None:
    start = function.filled(tuple(extents[name] for name in "nhwc"), -math.inf)
    inputs = function.read("X"), function.empty((2, 2))
    function.write(function.named("pooling_nhwc_max", inputs, start, _steps(2)), "Y")


def _max_pool_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    n, h, w, c = (extents[name] for name in "nhwc")
    return (x.reshape(n, h, 2, w, 2, c).max(axis=(2, 4)),)


# --- avg_pool_nhwc


def _avg_pool_arguments(extents: Extents) -> tuple[Argument, ...]:
    n, h, w, c = (extents[name] for name in "nhwc")
    return (
        Argument("X", (n, h + _WINDOW - 1, w + _WINDOW - 1, c)),
        Argument("Y", (n, h, w, c), "out"),
    )


def _write_avg_pool(function: TensorFunction, extents: Extents) -> None:
    start = function.filled(tuple(extents[name] for name in "nhwc"), 0.0)
    inputs = function.read("X"), function.empty((_WINDOW, _WINDOW))
    total = function.named("pooling_nhwc_sum", inputs, start, _steps(1))
    share = function.constant(1.0 / _WINDOW**2)
    mean = function.elementwise({"s": (total, "i, j, k, l")}, total.shape, f"%mean = arith.mulf %s, {share}")
    function.write(mean, "Y")


def _avg_pool_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    return (sliding_window_view(x, (_WINDOW, _WINDOW), axis=(1, 2)).mean(axis=(-2, -1)),)


PROGRAMS: tuple[Program, ...] = (
    Program(
        name="conv2d_nchw",
        env_id="Conv2dNchw",
        summary="3 x 3 convolution, channels first: "
        "Y[n, f, h, w] = sum_{c, i, j} X[n, c, h + i, w + j] W[f, c, i, j]",
        suite="ML",
        split="test",
        extents=("n", "f", "h", "w", "c"),
        train=((1, 32, 32, 32, 16), (2, 16, 16, 48, 16), (1, 64, 16, 16, 32)),
        test=((1, 48, 28, 28, 16), (1, 37, 31, 29, 19)),
        arguments=_nchw_arguments,
        mlir=tensor_module(_nchw_arguments, _write_nchw),
        reference=_nchw_reference,
        flops=lambda extents: 2 * _WINDOW**2 * math.prod(extents.values()),
        error_terms=lambda extents: _WINDOW**2 * extents["c"],
    ),
    Program(
        name="conv2d_nhwc",
        env_id="Conv2dNhwc",
        summary="3 x 3 convolution, channels last: "
        "Y[n, h, w, f] = sum_{i, j, c} X[n, h + i, w + j, c] W[i, j, c, f]",
        suite="ML",
        split="train",
        extents=("n", "h", "w", "f", "c"),
        train=((1, 32, 32, 32, 16), (2, 16, 48, 16, 16), (1, 16, 16, 64, 32)),
        test=((1, 28, 28, 48, 16), (1, 31, 29, 37, 19)),
        arguments=_nhwc_arguments,
        mlir=tensor_module(_nhwc_arguments, _write_nhwc),
        reference=_nhwc_reference,
        flops=lambda extents: 2 * _WINDOW**2 * math.prod(extents.values()),
        error_terms=lambda extents: _WINDOW**2 * extents["c"],
    ),
    Program(
        name="depthwise_conv2d_nhwc",
        env_id="DepthwiseConv2dNhwc",
        summary="3 x 3 convolution of each channel by itself, channels last: "
        "Y[n, h, w, c] = sum_{i, j} X[n, h + i, w + j, c] W[i, j, c]",
        suite="ML",
        split="train",
        extents=("n", "h", "w", "c"),
        train=((4, 64, 64, 64), (8, 64, 64, 32), (2, 64, 64, 128)),
        test=((4, 56, 72, 48), (3, 61, 67, 53)),
        arguments=_depthwise_arguments,
        mlir=tensor_module(_depthwise_arguments, _write_depthwise),
        reference=_depthwise_reference,
        flops=lambda extents: 2 * _WINDOW**2 * math.prod(extents.values()),
        error_terms=lambda extents: _WINDOW**2,
    ),
    Program(
        name="conv1d",
        env_id="Conv1d",
        summary="Cross-correlation of sequences, window 3, channels last: "
        "Y[n, w, f] = sum_{i, c} X[n, w + i, c] W[i, c, f]",
        suite="ML",
        split="train",
        extents=("n", "w", "f", "c"),
        train=((2, 256, 64, 32), (1, 512, 32, 64), (4, 256, 32, 32)),
        test=((2, 320, 48, 32), (3, 231, 45, 37)),
        arguments=_conv1d_arguments,
        mlir=tensor_module(_conv1d_arguments, _write_conv1d),
        reference=_conv1d_reference,
        flops=lambda extents: 2 * _WINDOW * math.prod(extents.values()),
        error_terms=lambda extents: _WINDOW * extents["c"],
    ),
    Program(
        name="max_pool_nhwc",
        env_id="MaxPoolNhwc",
        summary="Largest of 2 x 2 neighbours that do not overlap, channels last: "
        "Y[n, h, w, c] = max_{i, j < 2} X[n, 2h + i, 2w + j, c]",
        suite="ML",
        split="train",
        extents=("n", "h", "w", "c"),
        train=((4, 64, 64, 32), (2, 64, 32, 64), (8, 64, 64, 16)),
        test=((2, 56, 56, 48), (3, 57, 53, 35)),
        arguments=_max_pool_arguments,
        mlir=tensor_module(_max_pool_arguments, _write_max_pool),
        reference=_max_pool_reference,
        flops=lambda extents: 3 * math.prod(extents.values()),
        error_terms=lambda extents: 0,
    ),
    Program(
        name="avg_pool_nhwc",
        env_id="AvgPoolNhwc",
        summary="Mean of 3 x 3 neighbours at every place, channels last: "
        "Y[n, h, w, c] = sum_{i, j < 3} X[n, h + i, w + j, c] / 9",
        suite="ML",
        split="test",
        extents=("n", "h", "w", "c"),
        train=((4, 64, 64, 32), (2, 64, 64, 64), (8, 64, 64, 16)),
        test=((4, 56, 72, 48), (3, 61, 67, 35)),
        arguments=_avg_pool_arguments,
        mlir=tensor_module(_avg_pool_arguments, _write_avg_pool),
        reference=_avg_pool_reference,
        # Sums along rows serve three results, and half-sums two: at least an addition in each direction, and
        # the scaling.
        flops=lambda extents: 3 * math.prod(extents.values()),
        error_terms=lambda extents: _WINDOW**2 + 1,
    ),
)
"""The programs of this file."""
