"""The kernels that the schedule language comes with: the table ``KERNELS``, and tasks made from it."""

from __future__ import annotations

from solgym.envs.kernel_dsl.kernels.kernel import Extents, Family, Float64Array, Kernel
from solgym.envs.kernel_dsl.kernels.table import KERNELS
from solgym.envs.kernel_dsl.kernels.task import MAX_BYTES, MAX_FLOPS, KernelTask, parse_task

__all__ = [
    "KERNELS",
    "MAX_BYTES",
    "MAX_FLOPS",
    "Extents",
    "Family",
    "Float64Array",
    "Kernel",
    "KernelTask",
    "parse_task",
]
