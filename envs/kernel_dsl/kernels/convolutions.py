"""Convolutions with stride 1 and zero padding that keeps the image size, in NHWC layout."""

from __future__ import annotations

import numpy as np

from solgym.envs.kernel_dsl.expression import Builder, Computation
from solgym.envs.kernel_dsl.kernels.kernel import Extents, Float64Array, Kernel
from solgym.hardware.task import DType

__all__ = ["CONVOLUTIONS"]

FILTER_SIZES = (1, 3, 5, 7)


def conv2d(dtype: DType, n: int, h: int, w: int, ci: int, co: int, r: int, s: int) -> Computation:
    """``Y[n, h, w, co] = sum over r, s, ci of X[n, h + r - r/2, w + s - s/2, ci] W[r, s, ci, co]``."""
    b = Builder(dtype)
    image, weights = b.input("X", n, h, w, ci), b.input("W", r, s, ci, co)
    row, column, channel = b.reduce("r", r), b.reduce("s", s), b.reduce("c", ci)
    b.stage(
        "Y",
        {"n": n, "y": h, "x": w, "k": co},
        lambda nn, y, x, k: (
            image.pad[nn, y + row - r // 2, x + column - s // 2, channel] * weights[row, column, channel, k]
        ),
        over=[row, column, channel],
        combiner="sum",
    )
    return b.build()


def depthwise_conv2d(dtype: DType, n: int, h: int, w: int, c: int, r: int, s: int) -> Computation:
    """``Y[n, h, w, c] = sum over r, s of X[n, h + r - r/2, w + s - s/2, c] W[r, s, c]``."""
    b = Builder(dtype)
    image, weights = b.input("X", n, h, w, c), b.input("W", r, s, c)
    row, column = b.reduce("r", r), b.reduce("s", s)
    b.stage(
        "Y",
        {"n": n, "y": h, "x": w, "c": c},
        lambda nn, y, x, cc: (
            image.pad[nn, y + row - r // 2, x + column - s // 2, cc] * weights[row, column, cc]
        ),
        over=[row, column],
        combiner="sum",
    )
    return b.build()


def conv2d_reference(extents: Extents, image: Float64Array, weights: Float64Array) -> Float64Array:
    """One matrix product per filter position on the explicitly padded image."""
    _, h, w, _ = image.shape
    r, s, _, _ = weights.shape
    padded = np.pad(image, ((0, 0), (r // 2, r // 2), (s // 2, s // 2), (0, 0)))
    return np.asarray(
        sum(padded[:, y : y + h, x : x + w] @ weights[y, x] for y in range(r) for x in range(s))
    )


def depthwise_conv2d_reference(extents: Extents, image: Float64Array, weights: Float64Array) -> Float64Array:
    """One elementwise product per filter position on the explicitly padded image."""
    _, h, w, _ = image.shape
    r, s, _ = weights.shape
    padded = np.pad(image, ((0, 0), (r // 2, r // 2), (s // 2, s // 2), (0, 0)))
    return np.asarray(
        sum(padded[:, y : y + h, x : x + w] * weights[y, x] for y in range(r) for x in range(s))
    )


CONVOLUTIONS = (
    Kernel(
        name="conv2d",
        env_id="Conv2d",
        family="convolution",
        summary="2-D convolution, NHWC, stride 1, padded to keep the image size",
        extents=("n", "h", "w", "ci", "co", "r", "s"),
        build=conv2d,
        reference=conv2d_reference,
        default="f32/n1h56w56ci64co64r3s3",
        train=(
            "f32/n1h56w56ci64co64r3s3", "f32/n1h28w28ci128co128r3s3", "f32/n1h28w28ci64co256r1s1",
            "f32/n2h30w45ci24co40r3s3", "f32/n1h112w112ci3co32r3s3", "f64/n1h28w28ci64co64r3s3",
        ),
        test=(
            "f32/n1h14w14ci256co256r3s3", "f32/n1h27w27ci48co80r5s5", "f32/n1h56w56ci64co256r1s1",
            "f64/n1h14w14ci96co96r3s3",
        ),
        allowed={"r": FILTER_SIZES, "s": FILTER_SIZES},
    ),
    Kernel(
        name="depthwise_conv2d",
        env_id="DepthwiseConv2d",
        family="convolution",
        summary="Depthwise 2-D convolution, NHWC, stride 1, padded to keep the image size",
        extents=("n", "h", "w", "c", "r", "s"),
        build=depthwise_conv2d,
        reference=depthwise_conv2d_reference,
        default="f32/n1h56w56c128r3s3",
        train=(
            "f32/n1h56w56c128r3s3", "f32/n1h112w112c32r3s3", "f32/n1h28w28c256r5s5", "f32/n2h33w47c50r3s3",
            "f64/n1h56w56c64r3s3",
        ),
        test=(
            "f32/n1h112w112c64r3s3", "f32/n1h14w14c512r3s3", "f32/n3h19w21c77r5s5", "f64/n2h33w30c50r3s3",
        ),
        allowed={"r": FILTER_SIZES, "s": FILTER_SIZES},
    ),
)  # fmt: skip
