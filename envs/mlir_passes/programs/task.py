"""A program at one shape and element type: what ``hardware`` measures and what environments offer."""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from solgym.envs.mlir_passes.programs.program import Argument, Program, Role
from solgym.envs.mlir_passes.programs.table import PROGRAMS
from solgym.errors import UnknownTask
from solgym.hardware.task import NUMPY_DTYPES, Array, DType, TensorSpec, Work

__all__ = ["MAX_BYTES", "MAX_FLOPS", "ProgramTask", "parse_task"]

MAX_BYTES = 1 << 30
"""Largest size of all arguments of a task together."""

MAX_FLOPS = 2 * 10**11
"""Largest number of floating-point operations of a task: a minute of unscheduled code."""


class ProgramTask:
    """One program at one shape and element type; immutable, hashable, pickled by its id.

    Attributes:
        program: the program's record.
        dtype: element type of every argument.
        extents: the named extents in the program's order.
    """

    function = "main"

    def __init__(self, program: Program, dtype: DType, extents: Mapping[str, int]) -> None:
        """Keep the parameters.

        Raises:
            UnknownTask: the program has no such element type, an extent is too small or the task too large.
        """
        self.program = program
        self.dtype: DType = dtype
        self.extents = {name: int(extents[name]) for name in program.extents}
        if dtype not in program.dtypes:
            raise UnknownTask(
                f"Program {program.name!r} has no dtype {dtype!r}; it has {', '.join(program.dtypes)}."
            )
        for name, extent in self.extents.items():
            least = program.minimum.get(name, 1)
            if extent < least:
                raise UnknownTask(
                    f"Extent {name} of program {program.name!r} is {extent}; it must be at least {least}."
                )
        size = self.work.read_bytes + self.work.written_bytes
        if size > MAX_BYTES or self.work.flops > MAX_FLOPS:
            raise UnknownTask(
                f"Task {self.id!r} needs {size / 2**20:.0f} MiB and {self.work.flops:.2g} operations, more "
                f"than {MAX_BYTES >> 20} MiB or {MAX_FLOPS:.0g} operations; choose smaller extents."
            )

    @property
    def id(self) -> str:
        """For example ``gemm/f32/m512n512k512``."""
        return self.program.task_id(tuple(self.extents.values()), self.dtype)

    @functools.cached_property
    def module_text(self) -> str:
        """The untouched module."""
        return self.program.mlir(self.extents, self.dtype)

    @functools.cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of the function, in order."""
        return self.program.arguments(self.extents)

    @functools.cached_property
    def signature(self) -> tuple[tuple[tuple[int, ...], int, Role], ...]:
        """For each argument its shape, bytes an element, and role."""
        width = NUMPY_DTYPES[self.dtype].itemsize
        return tuple((argument.shape, width, argument.role) for argument in self.arguments)

    @functools.cached_property
    def work(self) -> Work:
        """Floating-point operations and compulsory bytes."""
        width = NUMPY_DTYPES[self.dtype].itemsize
        touched = [
            (argument.role, math.prod(argument.shape) if argument.touched is None else argument.touched)
            for argument in self.arguments
        ]
        return Work(
            self.dtype,
            int(self.program.flops(self.extents)),
            width * sum(count for role, count in touched if role != "out"),
            width * sum(count for role, count in touched if role != "in"),
        )

    @functools.cached_property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """What is read: ``in`` and ``inout`` arguments in order."""
        return tuple(TensorSpec(a.name, a.shape, self.dtype) for a in self.arguments if a.role != "out")

    @functools.cached_property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """What is written: ``out`` and ``inout`` arguments in order."""
        return tuple(TensorSpec(a.name, a.shape, self.dtype) for a in self.arguments if a.role != "in")

    @property
    def relative_tolerance(self) -> float:
        """Largest accepted error relative to the scale of the output: ``16 eps (4 + sqrt(n))``.

        ``n`` is the program's ``error_terms``. See ``KernelTask.relative_tolerance`` for why.
        """
        eps = float(np.finfo(np.float32 if self.dtype == "f32" else np.float64).eps)
        return 16.0 * eps * (4.0 + math.sqrt(self.program.error_terms(self.extents)))

    def make_inputs(self, seed: int) -> tuple[Array, ...]:
        """Draw inputs; the task's id goes into the seed, so tasks do not share numbers."""
        generator = np.random.default_rng([seed, zlib.crc32(self.id.encode())])
        special = self.program.inputs(self.extents, generator) if self.program.inputs else {}
        return tuple(
            np.ascontiguousarray(
                special[spec.name] if spec.name in special else generator.uniform(-1.0, 1.0, spec.shape),
                dtype=NUMPY_DTYPES[spec.dtype],
            ).reshape(spec.shape)
            for spec in self.input_specs
        )

    def reference(self, inputs: tuple[Array, ...]) -> tuple[NDArray[np.float64], ...]:
        """Compute the outputs in float64 with the program's numpy reference."""
        exact = (np.array(x, dtype=np.float64) for x in inputs)
        return tuple(np.ascontiguousarray(y) for y in self.program.reference(self.extents, *exact))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramTask) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"ProgramTask({self.id!r})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return parse_task, (self.id,)


@functools.lru_cache(maxsize=256)
def parse_task(task_id: str) -> ProgramTask:
    """Make the task called ``task_id``, of any shape.

    Raises:
        UnknownTask: the id does not have the form ``<program>/<dtype>/<extents>``, or a part of it does not
            exist; the message says which and what does.
    """
    parts = task_id.split("/")
    if len(parts) != 3:
        example = next(iter(PROGRAMS.values())).default_task_id
        raise UnknownTask(
            f"Task {task_id!r} does not read <program>/<dtype>/<extents>; write it as in {example!r}."
        )
    name, dtype, shape = parts
    program = PROGRAMS.get(name)
    if program is None:
        raise UnknownTask(
            f"There is no program {name!r} in task {task_id!r}; there are {', '.join(sorted(PROGRAMS))}."
        )
    fields = re.findall(r"([a-z]+)([0-9]{1,18})", shape)
    if "".join(n + e for n, e in fields) != shape or [n for n, _ in fields] != list(program.extents):
        form = "".join(f"{name}<number>" for name in program.extents)
        raise UnknownTask(
            f"The extents {shape!r} of task {task_id!r} do not read {form}; "
            f"write them as in {program.default_task_id!r}."
        )
    return ProgramTask(program, dtype, {n: int(e) for n, e in fields})  # type: ignore[arg-type]
