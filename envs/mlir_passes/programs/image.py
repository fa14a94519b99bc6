"""Programs of image processing: filters, edges, corners, a pyramid, a colour conversion.

Images are h x w numbers; filters need more of the input than they write, by the window less one, so nothing
is padded. Extents are those of the (last) result. Filters with fixed weights count what is left to do when
neighbours share sums, as a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from solgym.envs.mlir_passes.programs.program import Argument, Extents, Program
from solgym.envs.mlir_passes.programs.tensor_function import Tensor, TensorFunction, tensor_module

__all__ = ["PROGRAMS"]

_Array = NDArray[np.float64]

_SHARPENING = 0.75
_CORNER_FACTOR = 0.04
"""Harris's constant: what the squared trace weighs against the determinant."""
_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luma of ITU-R BT.601."""


def _image_to_image(margin: int) -> Callable[[Extents], tuple[Argument, ...]]:
    """Arguments of a filter whose input is larger by a margin in both directions."""

    def arguments(extents: Extents) -> tuple[Argument, ...]:
        h, w = extents["h"], extents["w"]
        return Argument("X", (h + margin, w + margin)), Argument("Y", (h, w), "out")

    return arguments


def _box_sum(function: TensorFunction, image: Tensor, size: int) -> Tensor:
    """Sums of ``size`` x ``size`` neighbours: along rows, then along columns."""
    rows, columns = image.shape[0], image.shape[1] - size + 1
    # Nothing reads the window; its shape says how far the last loop runs.
    window = function.empty((size,))
    along_rows = function.generic(
        "i, j, k",
        {"x": (image, "i, j + k"), "window": (window, "k")},
        (function.filled((rows, columns), 0.0), "i, j"),
        ["%sum = arith.addf %out, %x"],
    )
    return function.generic(
        "i, j, k",
        {"x": (along_rows, "i + k, j"), "window": (window, "k")},
        (function.filled((rows - size + 1, columns), 0.0), "i, j"),
        ["%sum = arith.addf %out, %x"],
    )


def _separable(function: TensorFunction, image: Tensor, weights: Sequence[float]) -> Tensor:
    """The same weights along rows, then along columns."""
    taps = function.constants(weights)
    rows, columns = image.shape[0], image.shape[1] - len(weights) + 1
    body = ["%term = arith.mulf %x, %tap", "%sum = arith.addf %out, %term"]
    along_rows = function.generic(
        "i, j, k",
        {"x": (image, "i, j + k"), "tap": (taps, "k")},
        (function.filled((rows, columns), 0.0), "i, j"),
        body,
    )
    return function.generic(
        "i, j, k",
        {"x": (along_rows, "i + k, j"), "tap": (taps, "k")},
        (function.filled((rows - len(weights) + 1, columns), 0.0), "i, j"),
        body,
    )


def _gradients(function: TensorFunction, image: Tensor) -> tuple[Tensor, Tensor]:
    """Sobel's derivatives along rows and along columns."""
    shape = image.shape[0] - 2, image.shape[1] - 2
    views = {
        (row, column): function.slice(image, (row, column), shape)
        for row in range(3)
        for column in range(3)
        if (row, column) != (1, 1)
    }
    two = function.constant(2.0)

    def derivative(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> Tensor:
        names = dict(zip("abcdef", (*before, *after), strict=True))
        return function.elementwise(
            {name: (views[place], "i, j") for name, place in names.items()},
            shape,
            "%first = arith.subf %d, %a",
            "%middle = arith.subf %e, %b",
            "%last = arith.subf %f, %c",
            f"%twice = arith.mulf %middle, {two}",
            "%outer = arith.addf %first, %last",
            "%slope = arith.addf %outer, %twice",
        )

    along_rows = derivative([(0, 0), (1, 0), (2, 0)], [(0, 2), (1, 2), (2, 2)])
    along_columns = derivative([(0, 0), (0, 1), (0, 2)], [(2, 0), (2, 1), (2, 2)])
    return along_rows, along_columns


def _filtered(image: _Array, weights: _Array) -> _Array:
    """Correlation with a two-dimensional filter: what the references are written with."""
    filtered: _Array = np.einsum("hwij,ij->hw", sliding_window_view(image, weights.shape), weights)
    return filtered


_SOBEL = np.outer([1.0, 2.0, 1.0], [-1.0, 0.0, 1.0])


# --- box_blur


def _write_box_blur(function: TensorFunction, extents: Extents) -> None:
    total = _box_sum(function, function.read("X"), 3)
    share = function.constant(1.0 / 9.0)
    function.write(
        function.elementwise({"s": (total, "i, j")}, total.shape, f"%mean = arith.mulf %s, {share}"), "Y"
    )


def _box_blur_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    return (_filtered(x, np.full((3, 3), 1.0 / 9.0)),)


# --- gaussian_blur


def _write_gaussian_blur(function: TensorFunction, extents: Extents) -> None:
    weights = [math.comb(4, place) / 16.0 for place in range(5)]
    function.write(_separable(function, function.read("X"), weights), "Y")


def _gaussian_blur_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    weights = np.array([1.0, 4.0, 6.0, 4.0, 1.0]) / 16.0
    return (_filtered(x, np.outer(weights, weights)),)


# --- unsharp_mask


def _write_unsharp_mask(function: TensorFunction, extents: Extents) -> None:
    image = function.read("X")
    blurred = _separable(function, image, (0.25, 0.5, 0.25))
    middle = function.slice(image, (1, 1), blurred.shape)
    amount = function.constant(_SHARPENING)
    detail = function.elementwise(
        {"x": (middle, "i, j"), "b": (blurred, "i, j")}, blurred.shape, "%detail = arith.subf %x, %b"
    )
    sharp = function.elementwise(
        {"x": (middle, "i, j"), "d": (detail, "i, j")},
        blurred.shape,
        f"%more = arith.mulf %d, {amount}",
        "%sharp = arith.addf %x, %more",
    )
    function.write(sharp, "Y")


def _unsharp_mask_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    weights = -_SHARPENING * np.outer([1.0, 2.0, 1.0], [1.0, 2.0, 1.0]) / 16.0
    weights[1, 1] += 1.0 + _SHARPENING
    return (_filtered(x, weights),)


# --- sobel


def _write_sobel(function: TensorFunction, extents: Extents) -> None:
    along_rows, along_columns = _gradients(function, function.read("X"))
    magnitude = function.elementwise(
        {"u": (along_rows, "i, j"), "v": (along_columns, "i, j")},
        along_rows.shape,
        "%first = arith.mulf %u, %u",
        "%second = arith.mulf %v, %v",
        "%sum = arith.addf %first, %second",
        "%root = math.sqrt %sum",
    )
    function.write(magnitude, "Y")


def _sobel_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    return (np.hypot(_filtered(x, _SOBEL), _filtered(x, _SOBEL.T)),)


# --- harris


def _write_harris(function: TensorFunction, extents: Extents) -> None:
    along_rows, along_columns = _gradients(function, function.read("X"))

    def product(left: Tensor, right: Tensor) -> Tensor:
        return function.elementwise(
            {"u": (left, "i, j"), "v": (right, "i, j")}, left.shape, "%p = arith.mulf %u, %v"
        )

    squares = product(along_rows, along_rows), product(along_columns, along_columns)
    sums = [_box_sum(function, image, 3) for image in (*squares, product(along_rows, along_columns))]
    factor = function.constant(_CORNER_FACTOR)
    response = function.elementwise(
        {name: (image, "i, j") for name, image in zip("uvm", sums, strict=True)},
        sums[0].shape,
        "%both = arith.mulf %u, %v",
        "%mixed = arith.mulf %m, %m",
        "%determinant = arith.subf %both, %mixed",
        "%trace = arith.addf %u, %v",
        "%square = arith.mulf %trace, %trace",
        f"%weighed = arith.mulf %square, {factor}",
        "%response = arith.subf %determinant, %weighed",
    )
    function.write(response, "Y")


def _harris_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    slopes = _filtered(x, _SOBEL), _filtered(x, _SOBEL.T)
    tensor = np.array([[_filtered(a * b, np.ones((3, 3))) for a in slopes] for b in slopes])
    trace = np.trace(tensor)
    return (tensor[0, 0] * tensor[1, 1] - tensor[0, 1] * tensor[1, 0] - _CORNER_FACTOR * trace**2,)


# --- pyramid


def _pyramid_arguments(extents: Extents) -> tuple[Argument, ...]:
    h, w = extents["h"], extents["w"]
    return (
        Argument("X", (4 * h, 4 * w)),
        Argument("Y", (2 * h, 2 * w), "out"),
        Argument("Z", (h, w), "out"),
    )


def _halved(function: TensorFunction, image: Tensor) -> Tensor:
    shape = image.shape[0] // 2, image.shape[1] // 2
    total = function.generic(
        "i, j, k, l",
        {"x": (image, "2 * i + k, 2 * j + l"), "window": (function.empty((2, 2)), "k, l")},
        (function.filled(shape, 0.0), "i, j"),
        ["%sum = arith.addf %out, %x"],
    )
    quarter = function.constant(0.25)
    return function.elementwise({"s": (total, "i, j")}, shape, f"%mean = arith.mulf %s, {quarter}")


def _write_pyramid(function: TensorFunction, extents: Extents) -> None:
    first = _halved(function, function.read("X"))
    second = _halved(function, first)
    function.write(first, "Y")
    function.write(second, "Z")


def _pyramid_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    h, w = extents["h"], extents["w"]
    return x.reshape(2 * h, 2, 2 * w, 2).mean(axis=(1, 3)), x.reshape(h, 4, w, 4).mean(axis=(1, 3))


# --- rgb_to_gray


def _gray_arguments(extents: Extents) -> tuple[Argument, ...]:
    h, w = extents["h"], extents["w"]
    return Argument("X", (h, w, 3)), Argument("Y", (h, w), "out")


def _write_gray(function: TensorFunction, extents: Extents) -> None:
    gray = function.generic(
        "i, j, k",
        {"x": (function.read("X"), "i, j, k"), "weight": (function.constants(_LUMA), "k")},
        (function.filled((extents["h"], extents["w"]), 0.0), "i, j"),
        ["%term = arith.mulf %x, %weight", "%sum = arith.addf %out, %term"],
    )
    function.write(gray, "Y")


def _gray_reference(extents: Extents, x: _Array) -> tuple[_Array, ...]:
    red, green, blue = np.moveaxis(x, 2, 0)
    return (0.299 * red + 0.587 * green + 0.114 * blue,)


def _each_pixel(operations: int) -> Callable[[Extents], int]:
    return lambda extents: operations * extents["h"] * extents["w"]


PROGRAMS: tuple[Program, ...] = (
    Program(
        name="box_blur",
        env_id="BoxBlur",
        summary="Mean of 3 x 3 neighbours, as sums along rows, sums along columns and a scaling",
        suite="ML",
        split="train",
        extents=("h", "w"),
        train=((1024, 512), (512, 1024), (2048, 256)),
        test=((768, 640), (733, 715)),
        arguments=_image_to_image(2),
        mlir=tensor_module(_image_to_image(2), _write_box_blur),
        reference=_box_blur_reference,
        # Neighbours share half-sums: at least an addition in each direction, and the scaling.
        flops=_each_pixel(3),
        error_terms=lambda extents: 10,
    ),
    Program(
        name="gaussian_blur",
        env_id="GaussianBlur",
        summary="5 x 5 binomial filter, weights 1 4 6 4 1 over 16 along rows, then along columns",
        suite="ML",
        split="train",
        extents=("h", "w"),
        train=((1024, 512), (512, 1024), (2048, 256)),
        test=((768, 640), (727, 711)),
        arguments=_image_to_image(4),
        mlir=tensor_module(_image_to_image(4), _write_gaussian_blur),
        reference=_gaussian_blur_reference,
        # Adding neighbours four times over gives the weights, in each direction; then the scaling.
        flops=_each_pixel(9),
        error_terms=lambda extents: 12,
    ),
    Program(
        name="unsharp_mask",
        env_id="UnsharpMask",
        summary="Sharpening: Y = X + 0.75 (X - blurred X), blurred by weights 1 2 1 over 4 each way",
        suite="ML",
        split="test",
        extents=("h", "w"),
        train=((1024, 512), (512, 1024), (2048, 256)),
        test=((768, 640), (731, 717)),
        arguments=_image_to_image(2),
        mlir=tensor_module(_image_to_image(2), _write_unsharp_mask),
        reference=_unsharp_mask_reference,
        # Two additions in each direction, then 1.75 x - 0.75/16 b.
        flops=_each_pixel(7),
        error_terms=lambda extents: 12,
    ),
    Program(
        name="sobel",
        env_id="Sobel",
        summary="Magnitude of the gradient by Sobel's 3 x 3 filters: Y = sqrt(G_x^2 + G_y^2)",
        suite="ML",
        split="train",
        extents=("h", "w"),
        train=((1024, 512), (512, 1024), (2048, 256)),
        test=((768, 640), (739, 721)),
        arguments=_image_to_image(2),
        mlir=tensor_module(_image_to_image(2), _write_sobel),
        reference=_sobel_reference,
        # Both filters start from sums of 2 x 2 neighbours (two additions); then each is the sum or the
        # difference of two differences (four); squares, sum and root take another four.
        flops=_each_pixel(10),
        error_terms=lambda extents: 10,
    ),
    Program(
        name="harris",
        env_id="Harris",
        summary="Harris's corners: Y = det M - 0.04 trace(M)^2, M 3 x 3 sums of products of gradients",
        suite="ML",
        split="test",
        extents=("h", "w"),
        train=((512, 512), (256, 1024), (1024, 256)),
        test=((384, 640), (523, 517)),
        arguments=_image_to_image(4),
        mlir=tensor_module(_image_to_image(4), _write_harris),
        reference=_harris_reference,
        # Six for the gradients, three products, two additions for each of three sums, seven for the response.
        flops=_each_pixel(22),
        error_terms=lambda extents: 40,
    ),
    Program(
        name="pyramid",
        env_id="Pyramid",
        summary="Two levels of an image pyramid: Y is the mean of 2 x 2 pixels of X, Z that of Y",
        suite="ML",
        split="train",
        extents=("h", "w"),
        train=((256, 512), (512, 256), (128, 1024)),
        test=((192, 640), (317, 323)),
        arguments=_pyramid_arguments,
        mlir=tensor_module(_pyramid_arguments, _write_pyramid),
        reference=_pyramid_reference,
        # Three additions and a scaling for each of five means.
        flops=_each_pixel(20),
        error_terms=lambda extents: 8,
    ),
    Program(
        name="rgb_to_gray",
        env_id="RgbToGray",
        summary="Luma of interleaved red, green and blue: Y = 0.299 R + 0.587 G + 0.114 B",
        suite="ML",
        split="train",
        extents=("h", "w"),
        train=((1024, 1024), (512, 1024), (2048, 256)),
        test=((768, 1152), (917, 923)),
        arguments=_gray_arguments,
        mlir=tensor_module(_gray_arguments, _write_gray),
        reference=_gray_reference,
        flops=_each_pixel(5),
        error_terms=lambda extents: 5,
    ),
)
"""The programs of this file."""
