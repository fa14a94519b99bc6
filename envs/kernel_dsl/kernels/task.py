"""A kernel at one shape and element type: what ``hardware`` measures and what environments offer.

Task ids read ``<kernel>/<dtype>/<named extents>``, for example ``gemm/f32/m512n512k512``. Any shape is
accepted within ``MAX_BYTES`` and ``MAX_FLOPS``, not only the named train and test shapes.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from solgym.envs.kernel_dsl.expression import Computation
from solgym.envs.kernel_dsl.kernels.kernel import Kernel
from solgym.envs.kernel_dsl.kernels.table import KERNELS
from solgym.envs.kernel_dsl.kernels.work import count_work, reduction_length
from solgym.errors import UnknownTask
from solgym.hardware.task import NUMPY_DTYPES, Array, DType, TensorSpec, Work

__all__ = ["MAX_BYTES", "MAX_FLOPS", "KernelTask", "parse_task"]

MAX_BYTES = 1 << 30
"""Largest size of all tensors of a task together, intermediates included."""

MAX_FLOPS = 2 * 10**12
"""Largest number of floating-point operations of a task: minutes of untiled code."""


class KernelTask:
    """One kernel at one shape and element type; immutable, hashable, pickled by its id.

    Attributes:
        kernel: the kernel's record.
        dtype: element type of every tensor, ``f32`` or ``f64``.
        extents: the named extents in the kernel's order.
    """

    def __init__(self, kernel: Kernel, dtype: DType, extents: Mapping[str, int]) -> None:
        """Check and keep the parameters.

        Raises:
            UnknownTask: the kernel has no such element type or extents, or the task is too large.
        """
        _check(kernel, dtype, extents)
        self.kernel = kernel
        self.dtype: DType = dtype
        self.extents = {name: int(extents[name]) for name in kernel.extents}
        size = sum(t.size for t in self.computation.inputs) + sum(
            s.tensor.size for s in self.computation.stages
        )
        if size * NUMPY_DTYPES[dtype].itemsize > MAX_BYTES or self.work.flops > MAX_FLOPS:
            raise UnknownTask(
                f"Task {self.id!r} needs {size * NUMPY_DTYPES[dtype].itemsize / 2**20:.0f} MiB and "
                f"{self.work.flops:.2g} operations, more than {MAX_BYTES >> 20} MiB or {MAX_FLOPS:.0g} "
                "operations; choose smaller extents."
            )

    @property
    def id(self) -> str:
        """For example ``gemm/f32/m512n512k512``."""
        shape = "".join(f"{name}{extent}" for name, extent in self.extents.items())
        return f"{self.kernel.name}/{self.dtype}/{shape}"

    @functools.cached_property
    def computation(self) -> Computation:
        """What is to be computed, without a word about how."""
        return self.kernel.build(self.dtype, **self.extents)

    @functools.cached_property
    def work(self) -> Work:
        """Floating-point operations and compulsory bytes, see ``kernels.work``."""
        return count_work(self.computation)

    @functools.cached_property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The inputs, in the order in which candidates receive them."""
        return tuple(TensorSpec(t.name, t.shape, self.dtype) for t in self.computation.inputs)

    @functools.cached_property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The outputs, in the order in which candidates receive them, after the inputs."""
        return tuple(
            TensorSpec(name, self.computation.tensor(name).shape, self.dtype)
            for name in self.computation.outputs
        )

    @property
    def relative_tolerance(self) -> float:
        """Largest accepted error relative to the scale of the output: ``16 eps (4 + sqrt(n))``.

        ``n`` is the number of summed terms. A sequential sum of ``n`` random terms has partial sums that
        grow as ``sqrt(t)``, each rounded with a deviation of about ``0.2 eps`` of its size, hence an error of
        deviation ``0.14 sqrt(n) eps`` relative to the result's own deviation (Higham, Accuracy and
        Stability of Numerical Algorithms, 2.8). Any other order or fused multiply-add only lowers it. The
        factor 16 leaves six deviations for the largest of many elements, and a factor of 19 above that; the 4
        leaves room for vector functions with a relative error of 2e-7 in f32. Leaving out one of the ``n``
        terms is an error of ``1 / sqrt(n)``, which this still rejects while ``n < 1 / (16 eps)``, half a
        million in f32.
        """
        eps = float(np.finfo(np.float32 if self.dtype == "f32" else np.float64).eps)
        return 16.0 * eps * (4.0 + float(np.sqrt(reduction_length(self.computation))))

    def make_inputs(self, seed: int) -> tuple[Array, ...]:
        """Draw uniform inputs; the task's id goes into the seed, so tasks do not share numbers."""
        generator = np.random.default_rng([seed, zlib.crc32(self.id.encode())])
        ranges = self.kernel.ranges(self.extents)
        inputs: list[Array] = []
        for spec in self.input_specs:
            low, high = ranges.get(spec.name, (-1.0, 1.0))
            values = generator.random(spec.shape, dtype=NUMPY_DTYPES[self.dtype].type)  # type: ignore[arg-type]
            values *= high - low
            values += low
            inputs.append(values)
        return tuple(inputs)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[NDArray[np.float64], ...]:
        """Compute the outputs in float64 with the kernel's hand-written numpy reference."""
        exact = (np.asarray(x, dtype=np.float64) for x in inputs)
        return (np.ascontiguousarray(self.kernel.reference(self.extents, *exact)),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelTask) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"KernelTask({self.id!r})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return parse_task, (self.id,)


def parse_task(task_id: str) -> KernelTask:
    """Make the task called ``task_id``, of any shape.

    Example:
        >>> parse_task("gemm/f32/m100n37k5").extents
        {'m': 100, 'n': 37, 'k': 5}

    Raises:
        UnknownTask: the id does not have the form ``<kernel>/<dtype>/<extents>``, or a part of it does not
            exist; the message says which and what does.
    """
    return _parse(task_id)


@functools.lru_cache(maxsize=256)
def _parse(task_id: str) -> KernelTask:
    parts = task_id.split("/")
    if len(parts) != 3:
        raise UnknownTask(
            f"Task {task_id!r} does not read <kernel>/<dtype>/<extents>; write it as in {_EXAMPLE!r}."
        )
    name, dtype, shape = parts
    kernel = KERNELS.get(name)
    if kernel is None:
        raise UnknownTask(
            f"There is no kernel {name!r} in task {task_id!r}; there are {', '.join(sorted(KERNELS))}."
        )
    fields = re.findall(r"([a-z]+)([0-9]{1,18})", shape)
    if "".join(n + e for n, e in fields) != shape or [n for n, _ in fields] != list(kernel.extents):
        raise UnknownTask(
            f"The extents {shape!r} of task {task_id!r} do not read {_shape_form(kernel)}; "
            f"write them as in {kernel.default_task_id!r}."
        )
    return KernelTask(kernel, dtype, {n: int(e) for n, e in fields})  # type: ignore[arg-type]


_EXAMPLE = KERNELS["gemm"].default_task_id


def _shape_form(kernel: Kernel) -> str:
    return "".join(f"{name}<number>" for name in kernel.extents)


def _check(kernel: Kernel, dtype: str, extents: Mapping[str, int]) -> None:
    if dtype not in kernel.dtypes:
        raise UnknownTask(
            f"Kernel {kernel.name!r} has no dtype {dtype!r}; it has {', '.join(kernel.dtypes)}."
        )
    if set(extents) != set(kernel.extents):
        raise UnknownTask(
            f"Kernel {kernel.name!r} has the extents {', '.join(kernel.extents)}, got {', '.join(extents)}."
        )
    for name, extent in extents.items():
        allowed, least = kernel.allowed.get(name), kernel.minimum.get(name, 1)
        if allowed is not None and extent not in allowed:
            raise UnknownTask(
                f"Extent {name} of kernel {kernel.name!r} is {extent}; it must be one of "
                f"{', '.join(map(str, allowed))}."
            )
        if extent < least:
            raise UnknownTask(
                f"Extent {name} of kernel {kernel.name!r} is {extent}; it must be at least {least}."
            )
