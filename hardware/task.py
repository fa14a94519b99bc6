"""What is to be computed, as the measuring code sees it: work, inputs, and a float64 reference.

Families of environments provide the tasks; ``hardware`` only needs this protocol, so the same machinery
serves schedules, MLIR programs and, later, devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

DType = Literal["f32", "f64"]
Array = NDArray[np.generic]

NUMPY_DTYPES: dict[str, np.dtype[np.generic]] = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and element type of one input or output; row-major, 64-byte aligned."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape)) * NUMPY_DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Work:
    """The least that any implementation of a task must do.

    ``flops`` counts a multiply-add as two and every elementwise function (exp, erf, ...) as one, so that
    the bound stays a bound. Compulsory bytes: each input read once, each output written once.
    """

    dtype: DType
    flops: int
    read_bytes: int
    written_bytes: int

    @property
    def compulsory_bytes(self) -> int:
        """Bytes that must cross every memory level that does not hold the working set."""
        return self.read_bytes + self.written_bytes

    @property
    def working_set_bytes(self) -> int:
        """Bytes touched by one call; decides in which memory level the task stays resident."""
        return self.read_bytes + self.written_bytes


@runtime_checkable
class Task(Protocol):
    """One computation at one shape and element type."""

    @property
    def id(self) -> str:
        """For example ``gemm/f32/m512n512k512``."""

    @property
    def work(self) -> Work:
        """Floating-point operations and compulsory bytes."""

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The inputs, in the order in which candidates receive them."""

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The outputs, in the order in which candidates receive them (after the inputs)."""

    @property
    def relative_tolerance(self) -> float:
        """Largest accepted error, relative to the scale of each output; see ``hardware.checking``."""

    def make_inputs(self, seed: int) -> tuple[Array, ...]:
        """Draw inputs of the task's shapes and dtypes; equal seeds give equal arrays."""

    def reference(self, inputs: tuple[Array, ...]) -> tuple[NDArray[np.float64], ...]:
        """Compute the outputs in float64."""
