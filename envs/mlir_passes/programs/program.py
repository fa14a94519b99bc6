"""What a program of the suites is: MLIR text for every shape, with a float64 reference and a count of work.

A program's module holds one public function ``@main``. Its arguments are memrefs with the identity layout and
static shapes, in the order of ``Program.arguments``; each is read (``in``), written in full (``out``) or
changed in place (``inout``). No two arguments overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from solgym.hardware.task import DType

__all__ = ["Argument", "Extents", "Program", "Role", "Suite"]

Role = Literal["in", "out", "inout"]
Suite = Literal["PolyBench", "ML"]
Extents = Mapping[str, int]


@dataclass(frozen=True)
class Argument:
    """One argument of a program's function.

    Attributes:
        name: as in the definition of the program.
        shape: extents, row-major; empty for a single number.
        role: whether it is read, written in full, or changed in place.
        touched: elements that any implementation must read or write, where that is fewer than all (the lower
            triangle of a matrix, say); None for all.
    """

    name: str
    shape: tuple[int, ...]
    role: Role = "in"
    touched: int | None = None


@dataclass(frozen=True)
class Program:
    """One program of a suite.

    Attributes:
        name: as in task ids, ``2mm`` or ``conv2d_nhwc``.
        env_id: the part of the environment's id after ``MLIRPasses-``.
        summary: one line: what it computes, as a formula where there is one.
        suite: the suite it belongs to.
        split: whether suites draw it for training or hold it out.
        extents: names of its extents, in the order of the task id.
        train: shapes to train on; the first is the default.
        test: shapes held out.
        arguments: the function's arguments for a shape.
        mlir: the module's text for a shape and an element type.
        reference: from a shape and the ``in`` and ``inout`` arrays in order (float64) to the ``out`` and
            ``inout`` arrays in order (float64).
        flops: floating-point operations for a shape: a multiply-add is two, any function (exp, sqrt, a
            division, a maximum) is one. Never more than the fewest that an implementation needs.
        error_terms: the number of roundings in the longest chain that ends in an element of the result; sets
            the accepted error.
        inputs: special inputs, from a shape and a generator to float64 arrays by name (a diagonally dominant
            matrix, say); arguments that it leaves out, or all without it, are uniform in [-1, 1).
        dtypes: element types that it is offered in.
        minimum: least value of an extent, where that is not 1.
    """

    name: str
    env_id: str
    summary: str
    suite: Suite
    split: Literal["train", "test"]
    extents: tuple[str, ...]
    train: tuple[tuple[int, ...], ...]
    test: tuple[tuple[int, ...], ...]
    arguments: Callable[[Extents], tuple[Argument, ...]]
    mlir: Callable[[Extents, DType], str]
    reference: Callable[..., tuple[NDArray[np.float64], ...]]
    flops: Callable[[Extents], int]
    error_terms: Callable[[Extents], int]
    inputs: Callable[[Extents, np.random.Generator], Mapping[str, NDArray[np.float64]]] | None = None
    dtypes: tuple[DType, ...] = ("f32",)
    minimum: Mapping[str, int] = field(default_factory=dict)

    def task_id(self, shape: tuple[int, ...], dtype: DType | None = None) -> str:
        """The id of the task of a shape, in the first element type unless told otherwise."""
        named = "".join(f"{name}{extent}" for name, extent in zip(self.extents, shape, strict=True))
        return f"{self.name}/{dtype or self.dtypes[0]}/{named}"

    def task_ids(self, split: Literal["train", "test"]) -> tuple[str, ...]:
        """The ids of its named tasks: shapes of a split in every element type."""
        shapes = self.train if split == "train" else self.test
        return tuple(self.task_id(shape, dtype) for dtype in self.dtypes for shape in shapes)

    @property
    def default_task_id(self) -> str:
        """The task that its environment offers unless told otherwise."""
        return self.task_id(self.train[0])

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return _program_called, (self.name,)


def _program_called(name: str) -> Program:
    """The program of a name; what a pickled one holds."""
    from solgym.envs.mlir_passes.programs.table import PROGRAMS

    return PROGRAMS[name]
