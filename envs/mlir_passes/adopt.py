"""A user's module made into one that environments take: in the pass worker, from text to text.

The function to run may take memrefs, or tensors and return tensors. Tensors become memrefs at the boundary:
each argument is read from one, each result is written to one, in that order. Everything that cannot be run is
refused with one sentence.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

from torch_mlir import ir

from solgym.envs.mlir_passes.diagnostics import parser_problem
from solgym.envs.mlir_passes.entry_point import ENTRY
from solgym.envs.mlir_passes.finishing import KNOWN_SYMBOLS, body_of, first_line

__all__ = ["Adopted", "CannotAdopt", "adopt"]

_ELEMENTS: Final = ("f32", "f64")
_VIEWS: Final = frozenset(
    {"memref.subview", "memref.cast", "memref.reinterpret_cast", "memref.expand_shape"}
    | {"memref.collapse_shape", "memref.transpose", "memref.view", "memref.assume_alignment"}
    | {"memref.extract_strided_metadata"}
)
_READS: Final = frozenset(
    {"memref.load", "affine.load", "vector.load", "vector.transfer_read", "bufferization.to_tensor"}
)
_WRITES: Final = frozenset(
    {"memref.store", "affine.store", "vector.store", "vector.transfer_write"}
    | {"bufferization.materialize_in_destination", "linalg.fill"}
)
_NEITHER: Final = frozenset({"memref.dim", "memref.prefetch"})

MAX_BYTES: Final = 1 << 30
"""Largest size of all arguments together."""

MAX_RANK: Final = 16

_NAME: Final = re.compile(r"[^\W\d][\w.-]{0,63}")
"""Names of arguments."""

_RESERVED: Final = frozenset(
    {"malloc", "free", "memcpy", "memset", "memmove", ENTRY, "solgym_malloc", "solgym_free"}
)
"""Functions that a file may not define, beside those that LLVM would take for the C library's."""


class CannotAdopt(Exception):
    """The module cannot be run; the message says why and what to do."""


@dataclass(frozen=True)
class Adopted:
    """A module with a function whose arguments are memrefs.

    Attributes:
        text: the module.
        function: the function's name.
        arguments: for each argument its name, shape, element type and role.
    """

    text: str
    function: str
    arguments: tuple[tuple[str, tuple[int, ...], str, str], ...]


def adopt(context: ir.Context, text: str, function: str | None) -> Adopted:
    """Read a module and find out how to call it.

    Args:
        context: where to parse it.
        text: MLIR.
        function: the function to run; None where there is only one public function with a body.

    Raises:
        CannotAdopt: it is no module, or its function cannot be called.
    """
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise CannotAdopt(f"is no valid MLIR ({parser_problem(str(error))})") from error
        _refuse_unrunnable(module.operation)
        _forget_other_targets(module.operation)
        chosen = _function(module.operation, function)
        name = _name(chosen)
        arguments = [
            (
                f"{_argument_name(chosen, i)}",
                *_checked(value.type, f"argument {i} of @{name}"),
                _role(chosen, i),
            )
            for i, value in enumerate(chosen.regions[0].blocks[0].arguments)
        ]
        kind = ir.FunctionType(ir.TypeAttr(chosen.attributes["function_type"]).value)
        results = [_checked(result, f"result {i} of @{name}") for i, result in enumerate(kind.results)]
        if any(not isinstance(result, ir.RankedTensorType) for result in kind.results):
            raise CannotAdopt(
                f"has a function @{name} that returns a memref; let it take that as an argument and write it"
            )
        on_tensors = any(isinstance(kind_, ir.RankedTensorType) for kind_ in (*kind.inputs, *kind.results))
        arguments += [(f"result{i}", shape, element, "out") for i, (shape, element) in enumerate(results)]
        size = sum(math.prod(shape) * (8 if element == "f64" else 4) for _, shape, element, _ in arguments)
        if size > MAX_BYTES:
            raise CannotAdopt(
                f"has a function @{name} with arguments and results of {size >> 20} MiB, more than "
                f"{MAX_BYTES >> 20} MiB; make them smaller"
            )
        if not any(role != "in" for *_, role in arguments):
            raise CannotAdopt(
                f"has a function @{name} that writes nothing; it has to return or write a result"
            )
        if on_tensors:
            module = _with_memrefs(module, name, kind, arguments)
            name = "solgym_main"
        try:
            module.operation.verify()
        except ir.MLIRError as error:
            raise CannotAdopt(f"is no valid MLIR ({parser_problem(str(error))})") from error
        return Adopted(str(module), name, tuple(arguments))


def _refuse_unrunnable(module: ir.Operation) -> None:
    """Refuse what code generation would take for something else, or end its process on."""
    for operation in body_of(module):
        if "sym_name" in operation.attributes and any(region.blocks for region in operation.regions):
            name = _name(operation)
            if (
                name in _RESERVED
                or name.startswith("llvm.")
                or (name in KNOWN_SYMBOLS and _is_scalar(operation))
            ):
                raise CannotAdopt(f"defines @{name}, which exists already; give it another name")
    names: set[str] = set()

    def look(operation: ir.Operation) -> ir.WalkResult:
        names.add(operation.name)
        return ir.WalkResult.ADVANCE

    module.walk(look)
    if "llvm.inline_asm" in names:
        raise CannotAdopt("has inline assembly (llvm.inline_asm), which cannot be compiled; leave it out")


def _is_scalar(function: ir.Operation) -> bool:
    """Whether a function takes numbers alone, as those of the C library do."""
    return not any(
        isinstance(argument.type, ir.ShapedType) for argument in function.regions[0].blocks[0].arguments
    )


def _forget_other_targets(module: ir.Operation) -> None:
    """Drop what the file says about the machine and the conventions that it was written for, in place."""
    functions = [operation for operation in body_of(module) if operation.name == "func.func"]
    for operation in (module, *functions):
        for name in list(operation.attributes):
            if name.startswith(("llvm.", "dlti.")) or name == "passthrough":
                del operation.attributes[name]


def _name(function: ir.Operation) -> str:
    return str(ir.StringAttr(function.attributes["sym_name"]).value)


def _function(module: ir.Operation, wanted: str | None) -> ir.Operation:
    functions = [operation for operation in body_of(module) if operation.name == "func.func"]
    if wanted is not None:
        for function in functions:
            if _name(function) == wanted:
                if not function.regions[0].blocks:
                    raise CannotAdopt(f"only declares @{wanted}; it has to define it")
                return function
        names = ", ".join(f"@{_name(function)}" for function in functions) or "none"
        raise CannotAdopt(f"has no function @{wanted}; it has {names}")
    candidates = [
        function
        for function in functions
        if function.regions[0].blocks
        and not (
            "sym_visibility" in function.attributes
            and ir.StringAttr(function.attributes["sym_visibility"]).value == "private"
        )
    ]
    if len(candidates) != 1:
        names = ", ".join(f"@{_name(function)}" for function in candidates) or "none"
        raise CannotAdopt(f"needs exactly one public function, or the name of one (function); it has {names}")
    return candidates[0]


def _checked(kind: ir.Type, what: str) -> tuple[tuple[int, ...], str]:
    """Shape and element type of an argument or result that can be passed."""
    expected = "it must be a memref or tensor of f32 or f64 with a static shape"
    if isinstance(kind, ir.MemRefType):
        if kind.layout != ir.MemRefType.get(kind.shape, kind.element_type).layout:
            raise CannotAdopt(f"has {what} with the layout of {kind}; it must be contiguous")
        if kind.memory_space is not None:
            raise CannotAdopt(f"has {what} in a memory space, {kind}; leave that out")
    elif not isinstance(kind, ir.RankedTensorType):
        raise CannotAdopt(f"has {what} of type {kind}; {expected}")
    if not kind.has_static_shape or str(kind.element_type) not in _ELEMENTS:
        raise CannotAdopt(f"has {what} of type {kind}; {expected}")
    if len(kind.shape) > MAX_RANK:
        raise CannotAdopt(f"has {what} with {len(kind.shape)} extents, more than {MAX_RANK}")
    if 0 in kind.shape:
        raise CannotAdopt(f"has {what} of type {kind}, which is empty; {expected}")
    return tuple(kind.shape), str(kind.element_type)


def _argument_attribute(function: ir.Operation, index: int, name: str) -> ir.Attribute | None:
    if "arg_attrs" not in function.attributes:
        return None
    given = ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[index])
    return given[name] if name in given else None  # noqa: SIM401 (MLIR's dictionaries have no get)


def _argument_name(function: ir.Operation, index: int) -> str:
    given = _argument_attribute(function, index, "solgym.name")
    if given is None:
        return f"arg{index}"
    name = str(ir.StringAttr(given).value) if isinstance(given, ir.StringAttr) else ""
    if not _NAME.fullmatch(name):
        raise CannotAdopt(f'has solgym.name = {given} on argument {index}; it must be a name such as "A"')
    return name


def _role(function: ir.Operation, index: int) -> str:
    """What an argument says of itself in ``solgym.role``, or what its uses say."""
    given = _argument_attribute(function, index, "solgym.role")
    value = function.regions[0].blocks[0].arguments[index]
    is_tensor = isinstance(value.type, ir.RankedTensorType)
    if given is not None:
        role = ir.StringAttr(given).value if isinstance(given, ir.StringAttr) else str(given)
        if role not in ("in", "out", "inout"):
            raise CannotAdopt(f'has solgym.role = "{role}" on argument {index}; it must be in, out or inout')
        if is_tensor and role != "in":
            raise CannotAdopt(f'has solgym.role = "{role}" on argument {index}, a tensor; those are "in"')
        return str(role)
    if is_tensor:
        return "in"
    reads, writes = _uses(value)
    return "inout" if reads and writes else "out" if writes else "in"


def _uses(value: ir.Value) -> tuple[bool, bool]:
    """Whether a buffer, or a view of it, is read and written; both where that is not known."""
    reads = writes = False
    for use in value.uses:
        operation, number = use.owner.operation, use.operand_number
        name = operation.name
        if name in _VIEWS:
            views = [result for result in operation.results if isinstance(result.type, ir.MemRefType)]
            more = [_uses(view) for view in views]
            reads, writes = reads or any(r for r, _ in more), writes or any(w for _, w in more)
        elif name in _NEITHER:
            continue
        elif name == "memref.copy":
            reads, writes = reads or number == 0, writes or number == 1
        elif name in _READS and "writable" not in operation.attributes:
            reads = True
        elif name in _WRITES:
            writes = True
        elif name.startswith("linalg."):
            reads = True
            writes = writes or number >= _inputs_of(operation)
        else:
            return True, True
    return reads, writes


def _inputs_of(operation: ir.Operation) -> int:
    name = "operandSegmentSizes"
    segments: Any = operation.attributes[name] if name in operation.attributes else None  # noqa: SIM401
    return len(operation.operands) - 1 if segments is None else int(ir.DenseI32ArrayAttr(segments)[0])


def _memref(shape: tuple[int, ...], element: str) -> str:
    return f"memref<{''.join(f'{extent}x' for extent in shape)}{element}>"


def _with_memrefs(
    module: ir.Module,
    name: str,
    kind: ir.FunctionType,
    arguments: list[tuple[str, tuple[int, ...], str, str]],
) -> ir.Module:
    """The module with a function @solgym_main around @name whose arguments are memrefs, inlined into it."""
    lines, operands, parameters = [], [], []
    called = str(ir.FlatSymbolRefAttr.get(name))  # quoted where it has to be
    for i, (_, shape, element, _) in enumerate(arguments):
        buffer = _memref(shape, element)
        parameters.append(f"%a{i}: {buffer}")
        if i < len(kind.inputs):
            if isinstance(kind.inputs[i], ir.RankedTensorType):
                lines.append(
                    f"  %t{i} = bufferization.to_tensor %a{i} restrict : {buffer} to {kind.inputs[i]}"
                )
                operands.append(f"%t{i}")
            else:
                operands.append(f"%a{i}")
    count = len(kind.results)
    results = f"%r:{count} = " if count else ""
    lines.append(
        f"  {results}func.call {called}({', '.join(operands)}) : ({', '.join(map(str, kind.inputs))}) -> "
        f"({', '.join(map(str, kind.results))})"
    )
    for i, result in enumerate(kind.results):
        where = len(kind.inputs) + i
        buffer = _memref(*arguments[where][1:3])
        lines.append(
            f"  bufferization.materialize_in_destination %r#{i} in restrict writable %a{where} : "
            f"({result}, {buffer}) -> ()"
        )
    inputs, outputs = (", ".join(map(str, types)) for types in (kind.inputs, kind.results))
    declared = f"func.func private {called}({inputs}) -> ({outputs})"
    wrapper = ir.Module.parse(
        f"{declared}\nfunc.func @solgym_main({', '.join(parameters)}) {{\n"
        + "\n".join(lines)
        + "\n  return\n}\n"
    )
    for operation in body_of(module.operation):
        if operation.name == "func.func":
            operation.attributes["sym_visibility"] = ir.StringAttr.get("private")
    main = wrapper.body.operations[1].operation
    main.detach_from_parent()
    module.body.append(main)
    from solgym.envs.mlir_passes.finishing import run_passes

    try:
        run_passes(module.operation, "inline,symbol-dce")
    except ir.MLIRError as error:
        raise CannotAdopt(f"cannot be called through memrefs ({first_line(error)})") from error
    return module
