"""A user's own MLIR file as a task.

The calling convention: one function whose arguments are memrefs or tensors of f32 or f64 with static shapes
and the identity layout. Results are returned tensors, or memrefs that the function writes. A memref is an
output if the function writes it and an input if it reads it, which ``{solgym.role = "in" | "out" | "inout"}``
on an argument overrides; ``{solgym.name = "..."}`` names it. Inputs are uniform in [-1, 1). The reference is
the untouched module through the plain pipeline.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from solgym.envs.mlir_passes.client import default_pass_worker
from solgym.envs.mlir_passes.modes import ArgumentShape
from solgym.envs.mlir_passes.programs.program import Role
from solgym.errors import InvalidOption
from solgym.hardware.process import WorkerDied, WorkerFailed, WorkerSilent
from solgym.hardware.task import NUMPY_DTYPES, Array, DType, TensorSpec, Work

__all__ = ["UserTask", "load_program", "read_module"]

MAX_FILE_BYTES: Final = 1 << 20
REFERENCE_TIMEOUT_S: Final = 60.0
ERROR_TERMS: Final = 4096
"""Roundings allowed for in a chain, see ``ProgramTask.relative_tolerance``: the program's own are not known,
and
the reference is computed in the program's own precision."""


@dataclass(frozen=True)
class UserTask:
    """A program from a file, at the shapes that it is written for; immutable, pickled with its text.

    Attributes:
        name: from the file's name.
        module_text: the module, with a function on memrefs.
        function: that function.
        arguments: for each argument its name, shape, element type and role.
    """

    name: str
    module_text: str
    function: str
    arguments: tuple[tuple[str, tuple[int, ...], DType, Role], ...]

    @functools.cached_property
    def id(self) -> str:
        """For example ``user/blur/3f786850e387``: the file's name, and a hash of module and arguments."""
        identity = f"{self.function}\0{self.arguments}\0{self.module_text}"
        digest = hashlib.sha256(identity.encode()).hexdigest()
        return f"user/{self.name}/{digest[:12]}"

    @property
    def signature(self) -> tuple[ArgumentShape, ...]:
        """For each argument its shape, bytes an element, and role."""
        return tuple((shape, NUMPY_DTYPES[dtype].itemsize, role) for _, shape, dtype, role in self.arguments)

    @property
    def dtype(self) -> DType:
        """The widest element type of an argument."""
        return max((dtype for _, _, dtype, _ in self.arguments), key=lambda d: NUMPY_DTYPES[d].itemsize)

    @property
    def work(self) -> Work:
        """Compulsory bytes. Operations are not counted: passes may remove some, and a bound must stay one."""
        sizes = [
            (role, math.prod(shape) * NUMPY_DTYPES[dtype].itemsize)
            for _, shape, dtype, role in self.arguments
        ]
        return Work(
            self.dtype,
            0,
            sum(size for role, size in sizes if role != "out"),
            sum(size for role, size in sizes if role != "in"),
        )

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """What is read: ``in`` and ``inout`` arguments in order."""
        return tuple(
            TensorSpec(name, shape, dtype) for name, shape, dtype, role in self.arguments if role != "out"
        )

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """What is written: ``out`` and ``inout`` arguments in order."""
        return tuple(
            TensorSpec(name, shape, dtype) for name, shape, dtype, role in self.arguments if role != "in"
        )

    @property
    def relative_tolerance(self) -> float:
        """Largest accepted error relative to the scale of the output: ``16 eps (4 + sqrt(ERROR_TERMS))``,
        with the precision of the least precise argument.
        """
        in_f32 = any(dtype == "f32" for _, _, dtype, _ in self.arguments)
        eps = float(np.finfo(np.float32 if in_f32 else np.float64).eps)
        return 16.0 * eps * (4.0 + math.sqrt(ERROR_TERMS))

    def make_inputs(self, seed: int) -> tuple[Array, ...]:
        """Draw uniform inputs; the task's id goes into the seed, so tasks do not share numbers."""
        generator = np.random.default_rng([seed, zlib.crc32(self.id.encode())])
        return tuple(
            np.asarray(generator.uniform(-1.0, 1.0, spec.shape), dtype=NUMPY_DTYPES[spec.dtype])
            for spec in self.input_specs
        )

    def reference(self, inputs: tuple[Array, ...]) -> tuple[NDArray[np.float64], ...]:
        """Run the untouched module, compiled by the plain pipeline, in the pass worker.

        Raises:
            InvalidOption: it cannot be compiled, crashes or does not end.
        """
        code: bytes | str
        try:
            code = default_pass_worker().run(self, inputs, REFERENCE_TIMEOUT_S)
        except WorkerDied as error:
            code = f"cannot be compiled or run ({error})"
        except WorkerSilent:
            code = f"does not end within {REFERENCE_TIMEOUT_S:.0f} s"
        if isinstance(code, str):
            raise InvalidOption(f"The program {self.name!r} {code}; mend it and try again.")
        outputs, start = [], 0
        for spec in self.output_specs:
            part = np.frombuffer(code[start : start + spec.nbytes], NUMPY_DTYPES[spec.dtype])
            outputs.append(part.reshape(spec.shape).astype(np.float64))
            start += spec.nbytes
        return tuple(outputs)


def load_program(path: str | Path, function: str | None = None) -> UserTask:
    """Read a program from a file.

    Args:
        path: an MLIR file.
        function: the function to run; None where it has only one public one.

    Raises:
        InvalidOption: the file cannot be read, is no MLIR, or its function cannot be called; says why.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise InvalidOption(f"The program {str(path)!r} cannot be read: it is no file; give an MLIR file.")
    text = read_module(path, MAX_FILE_BYTES)
    return program_from_text(
        text, re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem) or "program", function, str(path)
    )


def read_module(path: Path, max_bytes: int) -> str:
    """The text of an MLIR file, or of what a pipe gives.

    Raises:
        InvalidOption: it cannot be read, or is larger than ``max_bytes``; says which.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
        text = None if len(data) > max_bytes else data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidOption(f"The program {str(path)!r} is no text; give an MLIR file.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidOption(
            f"The program {str(path)!r} cannot be read: {reason}; give an MLIR file."
        ) from error
    if text is None:
        raise InvalidOption(f"The program {str(path)!r} is larger than {max_bytes >> 20} MiB; give less.")
    return text


def program_from_text(text: str, name: str, function: str | None = None, where: str = "") -> UserTask:
    """Make a task of a module's text; ``where`` names it in errors, which are those of ``load_program``."""
    where = where or name
    worker = default_pass_worker()
    try:
        reply, adopted = worker.request({"op": "adopt", "function": function}, text.encode(), 30.0)
    except WorkerFailed as error:
        reason = "takes too long" if isinstance(error, WorkerSilent) else "crashes"
        raise InvalidOption(f"The program {where!r} cannot be read: MLIR's parser {reason}.") from error
    if "error" in reply:
        raise InvalidOption(f"The program {where!r} {reply['error']}.")
    arguments = [
        (str(label), tuple(map(int, shape)), cast("DType", dtype), cast("Role", role))
        for label, shape, dtype, role in cast(
            "Sequence[tuple[str, Sequence[int], str, str]]", reply["arguments"]
        )
    ]
    return UserTask(name, adopted.decode(), reply["function"], tuple(arguments))
