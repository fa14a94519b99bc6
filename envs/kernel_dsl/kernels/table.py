"""The one table of kernels."""

from __future__ import annotations

from solgym.envs.kernel_dsl.kernels.contractions import CONTRACTIONS
from solgym.envs.kernel_dsl.kernels.convolutions import CONVOLUTIONS
from solgym.envs.kernel_dsl.kernels.kernel import Kernel
from solgym.envs.kernel_dsl.kernels.pointwise import POINTWISE
from solgym.envs.kernel_dsl.kernels.rows import ROWS
from solgym.envs.kernel_dsl.kernels.stencils import STENCILS

__all__ = ["KERNELS"]

KERNELS: dict[str, Kernel] = {
    kernel.name: kernel for kernel in CONTRACTIONS + CONVOLUTIONS + STENCILS + ROWS + POINTWISE
}
