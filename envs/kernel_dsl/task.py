"""Kernel tasks; they live in ``kernels.task``."""

from solgym.envs.kernel_dsl.kernels.task import KernelTask, parse_task

__all__ = ["KernelTask", "parse_task"]
