"""What a module becomes for a GPU: kernels in PTX, buffers, and the steps of the host as data.

Nothing here runs anything on a device or needs MLIR. A runner brings the functions that allocate, copy and
launch; ``run_host_steps`` walks through the steps and calls them in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Protocol

__all__ = [
    "CHIPS",
    "ELEMENT_BYTES",
    "Buffer",
    "Device",
    "GpuCode",
    "Kernel",
    "Step",
    "evaluate",
    "run_host_steps",
]

CHIPS: Final = ("sm_80", "sm_90")
"""Architectures that code is made for: A100, and H100 and H200."""

ELEMENT_BYTES: Final[Mapping[str, int]] = {
    "f16": 2,
    "bf16": 2,
    "f32": 4,
    "f64": 8,
    "i1": 1,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
}
"""Bytes of an element by its type; an MLIR ``index`` is an ``i64``, an ``i1`` takes a byte."""

Step = dict[str, Any]
"""One step of the host; ``GpuCode`` lists the forms."""


@dataclass(frozen=True)
class Buffer:
    """Memory on the device.

    Attributes:
        name: as steps and kernels call it.
        shape: extents, row-major and contiguous; empty for a single number.
        dtype: element type, a key of ``ELEMENT_BYTES``.
        kind: an argument of the function, a temporary of unknown contents, or a constant.
        argument: position among the function's arguments, for those.
        data: the contents in hexadecimal, little-endian, for constants.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Literal["argument", "temporary", "constant"]
    argument: int | None = None
    data: str | None = None

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Kernel:
    """One entry point of the PTX.

    Attributes:
        name: of the entry point.
        grid: blocks along x, y and z.
        block: threads of a block along x, y and z.
        parameters: in order, either the name of a buffer (a device pointer) or of a host loop's variable (an
            ``i64``).
        shared_bytes: static shared memory of a block.
    """

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: tuple[str, ...]
    shared_bytes: int = 0


@dataclass(frozen=True)
class GpuCode:
    """A function compiled for one chip.

    ``steps`` is a list of dictionaries, told apart by their ``op``:

    * ``{"op": "allocate" | "free", "buffer": NAME}``: all buffers, first and last;
    * ``{"op": "upload" | "download", "buffer": NAME}``: what arguments hold before, the data of constants,
      and what arguments hold afterwards;
    * ``{"op": "copy", "from": NAME, "to": NAME}`` on the device, both of the same size;
    * ``{"op": "launch", "kernel": NAME}``;
    * ``{"op": "loop", "variable": NAME, "from": E, "to": E, "step": N, "body": [...]}``: ``to`` is exclusive;
    * ``{"op": "if", "condition": E, "then": [...], "else": [...]}``.

    ``E`` is an expression for ``evaluate``.

    Attributes:
        chip: the architecture, such as ``sm_90``.
        function: the function's name in its module.
        buffers: all memory that the steps name.
        kernels: in the order in which they were found.
        steps: what the host does.
        ptx: one PTX module with every kernel.
        llvm_ir: what it was made from.
    """

    chip: str
    function: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    ptx: str
    llvm_ir: str

    @property
    def launches(self) -> int:
        """How many launches one run makes."""
        return count_launches(self.steps)

    def host_json(self) -> dict[str, Any]:
        """All but the code, as JSON."""
        return {
            "version": 1,
            "chip": self.chip,
            "function": self.function,
            "buffers": [asdict(buffer) for buffer in self.buffers],
            "kernels": [asdict(kernel) for kernel in self.kernels],
            "steps": list(self.steps),
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {**self.host_json(), "ptx": self.ptx, "llvm_ir": self.llvm_ir}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GpuCode:
        """Read what ``to_json`` wrote."""
        return cls(
            data["chip"],
            data["function"],
            tuple(Buffer(**{**each, "shape": tuple(each["shape"])}) for each in data["buffers"]),
            tuple(
                Kernel(
                    each["name"],
                    tuple(each["grid"]),
                    tuple(each["block"]),
                    tuple(each["parameters"]),
                    each["shared_bytes"],
                )
                for each in data["kernels"]
            ),
            tuple(data["steps"]),
            data["ptx"],
            data["llvm_ir"],
        )


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


OPERATORS: Final[Mapping[str, Callable[..., int]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _truncated,
    "floordiv": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
    "rem": lambda a, b: a - b * _truncated(a, b),
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "gt": lambda a, b: int(a > b),
    "ge": lambda a, b: int(a >= b),
    "select": lambda condition, a, b: a if condition else b,
}
"""What the host can compute: signed, and ``div`` and ``rem`` round towards zero."""


def evaluate(expression: Any, variables: Mapping[str, int]) -> int:
    """The value of an expression: a number, a loop's variable, or ``[operator, operand, ...]``.

    Args:
        expression: as in steps.
        variables: the loops' variables at this moment.
    """
    if isinstance(expression, str):
        return variables[expression]
    if isinstance(expression, int):
        return int(expression)
    operator, *operands = expression
    return OPERATORS[operator](*(evaluate(operand, variables) for operand in operands))


class Device(Protocol):
    """What a runner does for the host's steps."""

    def allocate(self, buffer: Buffer) -> None:
        """Make room for a buffer."""

    def free(self, buffer: Buffer) -> None:
        """Give it back."""

    def upload(self, buffer: Buffer) -> None:
        """Bring an argument or the data of a constant to the device."""

    def download(self, buffer: Buffer) -> None:
        """Bring an argument back."""

    def copy(self, source: Buffer, destination: Buffer) -> None:
        """Copy on the device."""

    def launch(self, kernel: Kernel, parameters: Sequence[Buffer | int]) -> None:
        """Run a kernel; the next step may begin only when it has finished."""


def run_host_steps(code: GpuCode, device: Device) -> None:
    """Do what the host does for one run of the function."""
    buffers = {buffer.name: buffer for buffer in code.buffers}
    kernels = {kernel.name: kernel for kernel in code.kernels}

    def run(steps: Sequence[Step], variables: Mapping[str, int]) -> None:
        for step in steps:
            match step["op"]:
                case "launch":
                    kernel = kernels[step["kernel"]]
                    device.launch(
                        kernel,
                        [buffers[name] if name in buffers else variables[name] for name in kernel.parameters],
                    )
                case "loop":
                    first, end = evaluate(step["from"], variables), evaluate(step["to"], variables)
                    for value in range(first, end, step["step"]):
                        run(step["body"], {**variables, step["variable"]: value})
                case "if":
                    run(step["then" if evaluate(step["condition"], variables) else "else"], variables)
                case "copy":
                    device.copy(buffers[step["from"]], buffers[step["to"]])
                case "allocate":
                    device.allocate(buffers[step["buffer"]])
                case "free":
                    device.free(buffers[step["buffer"]])
                case "upload":
                    device.upload(buffers[step["buffer"]])
                case "download":
                    device.download(buffers[step["buffer"]])

    run(code.steps, {})


def count_launches(steps: Sequence[Step]) -> int:
    """How many launches a run of these steps makes."""

    def count(steps: Sequence[Step], variables: Mapping[str, int]) -> int:
        total = 0
        for step in steps:
            if step["op"] == "launch":
                total += 1
            elif step["op"] == "if":
                total += count(step["then" if evaluate(step["condition"], variables) else "else"], variables)
            elif step["op"] == "loop":
                first, end = evaluate(step["from"], variables), evaluate(step["to"], variables)
                values = range(first, end, step["step"])
                if not _mentions(step["body"], step["variable"]):
                    total += len(values) * count(step["body"], {**variables, step["variable"]: first})
                else:
                    total += sum(
                        count(step["body"], {**variables, step["variable"]: value}) for value in values
                    )
        return total

    return count(steps, {})


def _mentions(steps: Sequence[Step], variable: str) -> bool:
    return any(
        _uses(step.get("from"), variable)
        or _uses(step.get("to"), variable)
        or _uses(step.get("condition"), variable)
        or _mentions(step.get("body", ()), variable)
        or _mentions(step.get("then", ()), variable)
        or _mentions(step.get("else", ()), variable)
        for step in steps
        if step["op"] in ("loop", "if")
    )


def _uses(expression: Any, variable: str) -> bool:
    if isinstance(expression, (list, tuple)):
        return any(_uses(operand, variable) for operand in expression[1:])
    return bool(expression == variable)
