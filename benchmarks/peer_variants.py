"""The ways in which a peer can compute a task: those of ``solgym.baselines``, and others that may be faster.

A comparison takes the fastest of them, so that no claim rests on a peer used badly. Layouts that a peer likes
better are prepared beforehand and cost it nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from solgym.baselines.peers import NUMPY_PEERS, Arrays
from solgym.baselines.peers_torch import TORCH_PEERS
from solgym.envs.kernel_dsl.kernels.task import KernelTask

__all__ = ["peer_calls"]

Maker = Callable[[Mapping[str, int], Arrays], Callable[[], Any]]

NAMES = {
    "gemm": "matmul",
    "batched_gemm": "matmul",
    "gemv": "matmul",
    "gemm_bias_gelu": "gelu(addmm)",
    "mlp": "addmm, relu, addmm",
    "conv2d": "conv2d, channels last",
    "depthwise_conv2d": "conv2d, channels last",
    "stencil2d": "shifted sums",
    "stencil3d": "shifted sums",
    "reduction": "sum",
    "softmax": "softmax",
    "layernorm": "layer_norm",
    "attention": "scaled_dot_product_attention",
    "transpose": "copy_(x.t())",
    "elementwise": "addcmul, relu, add",
}
"""What ``solgym.baselines.peers_torch`` does for each kernel, in torch's words."""


def _torch_attention_in_three(extents: Mapping[str, int], inputs: Arrays) -> Callable[[], Any]:
    import torch

    q, k, v = (torch.from_numpy(array) for array in inputs)
    scores = torch.empty(q.shape[0], k.shape[0], dtype=q.dtype)
    weights, out, scale = torch.empty_like(scores), torch.empty_like(q), 1.0 / math.sqrt(q.shape[1])

    def call() -> Any:
        torch.matmul(q, k.t(), out=scores).mul_(scale)
        torch.softmax(scores, 1, out=weights)
        return torch.matmul(weights, v, out=out)

    return call


def _torch_contiguous(extents: Mapping[str, int], inputs: Arrays) -> Callable[[], Any]:
    import torch

    x = torch.from_numpy(inputs[0])
    return lambda: x.t().contiguous()


def _torch_convolution_nchw(extents: Mapping[str, int], inputs: Arrays) -> Callable[[], Any]:
    import torch

    image, weights = (torch.from_numpy(array) for array in inputs)
    nchw, filters = image.permute(0, 3, 1, 2).contiguous(), weights.permute(3, 2, 0, 1).contiguous()
    padding, conv2d = (extents["r"] // 2, extents["s"] // 2), torch.nn.functional.conv2d
    return lambda: conv2d(nchw, filters, padding=padding).permute(0, 2, 3, 1)


def _torch_softmax_out(extents: Mapping[str, int], inputs: Arrays) -> Callable[[], Any]:
    import torch

    x = torch.from_numpy(inputs[0])
    out = torch.empty_like(x)
    return lambda: torch.softmax(x, 1, out=out)


def _torch_gelu_of_linear(extents: Mapping[str, int], inputs: Arrays) -> Callable[[], Any]:
    """The layer as models store it: weights of shape (out, in)."""
    import torch

    x, w, bias = (torch.from_numpy(array) for array in inputs)
    weight = w.t().contiguous()
    linear, gelu = torch.nn.functional.linear, torch.nn.functional.gelu
    return lambda: gelu(linear(x, weight, bias))


def _torch_mlp_of_linear(extents: Mapping[str, int], inputs: Arrays) -> Callable[[], Any]:
    import torch

    x, w1, b1, w2, b2 = (torch.from_numpy(array) for array in inputs)
    first, second = w1.t().contiguous(), w2.t().contiguous()
    linear = torch.nn.functional.linear
    return lambda: linear(linear(x, first, b1).relu_(), second, b2)


_MORE: dict[str, dict[str, Maker]] = {
    "attention": {"matmul, softmax, matmul": _torch_attention_in_three},
    "transpose": {"x.t().contiguous()": _torch_contiguous},
    "conv2d": {"conv2d, NCHW": _torch_convolution_nchw},
    "softmax": {"softmax(out=)": _torch_softmax_out},
    "gemm_bias_gelu": {"gelu(linear)": _torch_gelu_of_linear},
    "mlp": {"linear, relu, linear": _torch_mlp_of_linear},
}


def peer_calls(library: str, task: KernelTask, inputs: Arrays) -> dict[str, Callable[[], Any]]:
    """Prepare every way in which a library can compute a task; only the calls returned are to be timed.

    Args:
        library: ``numpy`` or ``torch``.
        task: what to compute.
        inputs: its inputs.
    """
    kernel = task.kernel.name
    if library == "numpy":
        return {"numpy": NUMPY_PEERS[kernel](task.extents, inputs)}
    makers: dict[str, Maker] = {NAMES[kernel]: TORCH_PEERS[kernel], **_MORE.get(kernel, {})}
    return {f"torch {name}": make(task.extents, inputs) for name, make in makers.items()}
