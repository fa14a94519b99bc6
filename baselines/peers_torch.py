"""What people run today instead of a tuned kernel: torch's way of computing each kernel.

Only benchmarks use this table; torch is no dependency of the package. Layouts are what torch likes best
for the data it is given (weights are rearranged beforehand), and results go to tensors made beforehand
where torch's interface allows it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from solgym.baselines.peers import Arrays
from solgym.envs.kernel_dsl.kernels.rows import LAYERNORM_EPSILON
from solgym.envs.kernel_dsl.kernels.stencils import WEIGHTS_5, WEIGHTS_7, WEIGHTS_9

__all__ = ["TORCH_PEERS", "TorchCall", "TorchPeer"]

TorchCall = Callable[[], Any]
TorchPeer = Callable[[Mapping[str, int], Arrays], TorchCall]


def _tensors(inputs: Arrays) -> tuple[Any, ...]:
    import torch

    return tuple(torch.from_numpy(array) for array in inputs)


def _matmul(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    import torch

    left, right = _tensors(inputs)
    out = torch.empty_like(left @ right)
    return lambda: torch.matmul(left, right, out=out)


def _gemm_bias_gelu(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    import torch

    left, right, bias = _tensors(inputs)
    out = torch.empty(left.shape[0], right.shape[1], dtype=left.dtype)
    gelu = torch.nn.functional.gelu
    return lambda: gelu(torch.addmm(bias, left, right, out=out))


def _mlp(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    import torch

    x, w1, b1, w2, b2 = _tensors(inputs)
    hidden = torch.empty(x.shape[0], w1.shape[1], dtype=x.dtype)
    out = torch.empty(x.shape[0], w2.shape[1], dtype=x.dtype)
    return lambda: torch.addmm(b2, torch.addmm(b1, x, w1, out=hidden).relu_(), w2, out=out)


def _convolution(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    """``Y`` in NHWC: torch's channels_last format of an NCHW tensor is the same memory."""
    import torch

    image, weights = _tensors(inputs)
    groups = 1
    if weights.ndim == 3:  # depthwise: one filter per channel
        groups = weights.shape[2]
        weights = weights.permute(2, 0, 1).unsqueeze(1)
    else:
        weights = weights.permute(3, 2, 0, 1)
    nchw = image.permute(0, 3, 1, 2)
    filters = weights.contiguous(memory_format=torch.channels_last)
    padding = (extents["r"] // 2, extents["s"] // 2)
    conv2d = torch.nn.functional.conv2d
    return lambda: conv2d(nchw, filters, padding=padding, groups=groups).permute(0, 2, 3, 1)


def _stencil(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    """Sums of shifted views, which torch does much faster than a convolution with one channel."""
    import torch

    (x,) = _tensors(inputs)
    if x.ndim == 3:
        weights: tuple[float, ...] = (*WEIGHTS_7, 0.0, 0.0)
    else:
        weights = WEIGHTS_5 if extents["points"] == 5 else WEIGHTS_9
    windows = []
    for position in itertools.product(range(3), repeat=x.ndim):
        weight = weights[sum(abs(p - 1) for p in position)]
        if weight:
            window = tuple(slice(p, p + size - 2) for p, size in zip(position, x.shape, strict=True))
            windows.append((x[window], weight))
    (first, first_weight), *others = windows
    out = torch.empty(first.shape, dtype=x.dtype)

    def call() -> Any:
        torch.mul(first, first_weight, out=out)
        for view, weight in others:
            out.add_(view, alpha=weight)
        return out

    return call


def _reduction(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    import torch

    (x,) = _tensors(inputs)
    out = torch.empty(x.shape[0], dtype=x.dtype)
    return lambda: torch.sum(x, 1, out=out)


def _softmax(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    import torch

    (x,) = _tensors(inputs)
    return lambda: torch.softmax(x, 1)


def _layernorm(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    import torch

    x, gamma, beta = _tensors(inputs)
    shape = (x.shape[1],)
    return lambda: torch.nn.functional.layer_norm(x, shape, gamma, beta, LAYERNORM_EPSILON)


def _attention(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    import torch

    q, k, v = (tensor[None, None] for tensor in _tensors(inputs))
    attend, scale = torch.nn.functional.scaled_dot_product_attention, 1.0 / math.sqrt(extents["dim"])
    return lambda: attend(q, k, v, scale=scale)[0, 0]


def _transpose(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    import torch

    (x,) = _tensors(inputs)
    out = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype)
    return lambda: out.copy_(x.t())


def _elementwise(extents: Mapping[str, int], inputs: Arrays) -> TorchCall:
    import torch

    x, residual, scale, shift = _tensors(inputs)
    out = torch.empty_like(x)
    return lambda: torch.addcmul(shift, x, scale, out=out).relu_().add_(residual)


TORCH_PEERS: dict[str, TorchPeer] = {
    "gemm": _matmul,
    "batched_gemm": _matmul,
    "gemv": _matmul,
    "gemm_bias_gelu": _gemm_bias_gelu,
    "mlp": _mlp,
    "conv2d": _convolution,
    "depthwise_conv2d": _convolution,
    "stencil2d": _stencil,
    "stencil3d": _stencil,
    "reduction": _reduction,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "attention": _attention,
    "transpose": _transpose,
    "elementwise": _elementwise,
}
"""How torch computes each kernel, by the kernel's name."""
