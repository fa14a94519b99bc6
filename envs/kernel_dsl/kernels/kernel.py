"""The record that describes one kernel for every shape: expression, reference, inputs, named shapes.

A kernel plus extents plus an element type is a ``KernelTask`` (``task``). Adding a kernel means
writing one ``Kernel`` in one of this package's modules and listing it there; ids, environments, splits and
tests follow from the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from solgym.envs.kernel_dsl.expression import Computation
from solgym.hardware.task import DType

__all__ = ["Extents", "Family", "Float64Array", "Kernel", "Ranges", "fan_in_range"]

Extents = Mapping[str, int]
Ranges = Mapping[str, tuple[float, float]]
Float64Array = NDArray[np.float64]
Family = Literal["contraction", "convolution", "stencil", "rows", "pointwise"]


def no_special_ranges(extents: Extents) -> Ranges:
    """Every input is uniform in [-1, 1)."""
    return {}


def fan_in_range(terms: int, deviation: float = 1.5) -> tuple[float, float]:
    """A range for weights that gives sums of ``terms`` products a given standard deviation.

    With data uniform in [-1, 1) and weights uniform in [-w, w) the sum's variance is ``terms * w^2 / 9``.
    Activations are only exercised where they bend, so their arguments must not grow with the shape.
    """
    limit = 3.0 * deviation / math.sqrt(terms)
    return (-limit, limit)


@dataclass(frozen=True)
class Kernel:
    """One kernel for any shape.

    Attributes:
        name: as in task ids, ``gemm``.
        env_id: as in environment ids, ``GEMM``.
        family: the kind of loop nest, which decides what patterns apply.
        summary: one line for people.
        extents: names of the extents, in the order in which task ids write them.
        build: ``build(dtype, **extents)`` gives the computation.
        reference: ``reference(extents, *inputs)`` gives the output in float64, written in plain numpy and
            independent of the expression.
        default: ``dtype/extents`` of the task that an environment offers unless told otherwise.
        train: the same for tasks that may be drawn while learning.
        test: the same for held-out tasks; no shape is in both.
        dtypes: element types that make sense.
        minimum: smallest extents, where smaller ones would make a trivial output correct; 1 elsewhere.
        allowed: the only values of an extent, where not every number makes sense.
        ranges: ``ranges(extents)`` gives the half-open range of each uniform input; [-1, 1) elsewhere.
    """

    name: str
    env_id: str
    family: Family
    summary: str
    extents: tuple[str, ...]
    build: Callable[..., Computation]
    reference: Callable[..., Float64Array]
    default: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    dtypes: tuple[DType, ...] = ("f32", "f64")
    minimum: Extents = field(default_factory=dict)
    allowed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Callable[[Extents], Ranges] = no_special_ranges

    def task_ids(self, split: str) -> tuple[str, ...]:
        """Full task ids of a split, ``train`` or ``test``."""
        return tuple(f"{self.name}/{shape}" for shape in (self.train if split == "train" else self.test))

    @property
    def default_task_id(self) -> str:
        """The full id of the default task."""
        return f"{self.name}/{self.default}"
