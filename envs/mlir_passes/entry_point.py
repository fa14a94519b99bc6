"""The entry point of SOLGym's kernel ABI (docs/measuring.md) for modules in the LLVM dialect, and its memory.

Runs in the pass worker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from torch_mlir import ir

from solgym.envs.mlir_passes.finishing import body_of
from solgym.envs.mlir_passes.modes import ArgumentShape
from solgym.hardware.buffers import ALIGNMENT

__all__ = ["ENTRY", "add_entry", "arena_bytes"]

ENTRY: Final = "solgym_entry"

# Memory that a module allocates comes from the candidate's workspace, which is guarded, poisoned before each
# run and reset at each call, so nothing leaks from one timed call into the next. The last block can be given
# back; what does not fit comes from the C library.
_ARENA: Final = """
  llvm.mlir.global internal @solgym_arena_start() : !llvm.ptr {
    %0 = llvm.mlir.zero : !llvm.ptr
    llvm.return %0 : !llvm.ptr
  }
  llvm.mlir.global internal @solgym_arena_top() : !llvm.ptr {
    %0 = llvm.mlir.zero : !llvm.ptr
    llvm.return %0 : !llvm.ptr
  }
  llvm.mlir.global internal @solgym_arena_last() : !llvm.ptr {
    %0 = llvm.mlir.zero : !llvm.ptr
    llvm.return %0 : !llvm.ptr
  }
  llvm.func internal @solgym_malloc(%wanted: i64) -> (!llvm.ptr {llvm.noalias}) attributes {no_inline} {
    %c63 = llvm.mlir.constant(63 : i64) : i64
    %mask = llvm.mlir.constant(-64 : i64) : i64
    %bytes = llvm.mlir.constant(ARENA_BYTES : i64) : i64
    %start_at = llvm.mlir.addressof @solgym_arena_start : !llvm.ptr
    %top_at = llvm.mlir.addressof @solgym_arena_top : !llvm.ptr
    %last_at = llvm.mlir.addressof @solgym_arena_last : !llvm.ptr
    %padded = llvm.add %wanted, %c63 : i64
    %size = llvm.and %padded, %mask : i64
    %start = llvm.load %start_at : !llvm.ptr -> !llvm.ptr
    %top = llvm.load %top_at : !llvm.ptr -> !llvm.ptr
    %start_number = llvm.ptrtoint %start : !llvm.ptr to i64
    %top_number = llvm.ptrtoint %top : !llvm.ptr to i64
    %used = llvm.sub %top_number, %start_number : i64
    %left = llvm.sub %bytes, %used : i64
    %fits = llvm.icmp "ule" %size, %left : i64
    llvm.cond_br %fits, ^inside, ^outside
  ^inside:
    %next = llvm.getelementptr %top[%size] : (!llvm.ptr, i64) -> !llvm.ptr, i8
    llvm.store %next, %top_at : !llvm.ptr, !llvm.ptr
    llvm.store %top, %last_at : !llvm.ptr, !llvm.ptr
    llvm.return %top : !llvm.ptr
  ^outside:
    %other = llvm.call @malloc(%wanted) : (i64) -> !llvm.ptr
    llvm.return %other : !llvm.ptr
  }
  llvm.func internal @solgym_free(%block: !llvm.ptr) attributes {no_inline} {
    %bytes = llvm.mlir.constant(ARENA_BYTES : i64) : i64
    %start_at = llvm.mlir.addressof @solgym_arena_start : !llvm.ptr
    %top_at = llvm.mlir.addressof @solgym_arena_top : !llvm.ptr
    %last_at = llvm.mlir.addressof @solgym_arena_last : !llvm.ptr
    %start = llvm.load %start_at : !llvm.ptr -> !llvm.ptr
    %last = llvm.load %last_at : !llvm.ptr -> !llvm.ptr
    %start_number = llvm.ptrtoint %start : !llvm.ptr to i64
    %number = llvm.ptrtoint %block : !llvm.ptr to i64
    %offset = llvm.sub %number, %start_number : i64
    %is_inside = llvm.icmp "ult" %offset, %bytes : i64
    llvm.cond_br %is_inside, ^inside, ^outside
  ^inside:
    %is_last = llvm.icmp "eq" %block, %last : !llvm.ptr
    llvm.cond_br %is_last, ^pop, ^done
  ^pop:
    llvm.store %block, %top_at : !llvm.ptr, !llvm.ptr
    llvm.br ^done
  ^outside:
    llvm.call @free(%block) : (!llvm.ptr) -> ()
    llvm.br ^done
  ^done:
    llvm.return
  }
"""


def arena_bytes(module: ir.Operation) -> int:
    """Workspace for a module in the LLVM dialect: every allocation site of known size once.

    MLIR's lowering writes a size as the address of the last element of an array at address zero, plus the
    alignment.
    """
    total = 0

    def look(operation: ir.Operation) -> ir.WalkResult:
        nonlocal total
        if _callee(operation) == "malloc":
            size = _constant_size(operation.operands[0])
            total += 0 if size is None else -(-size // ALIGNMENT) * ALIGNMENT
        return ir.WalkResult.ADVANCE

    module.walk(look)
    return total


def _constant_size(value: ir.Value) -> int | None:
    operation = value.owner
    if not isinstance(operation, ir.Operation):
        operation = getattr(operation, "operation", None)
        if operation is None:
            return None
    name = operation.name
    if name == "llvm.mlir.constant":
        value_of = operation.attributes["value"]
        return int(value_of.value) if isinstance(value_of, ir.IntegerAttr) else None
    if name in ("llvm.add", "llvm.mul"):
        parts = [_constant_size(operand) for operand in operation.operands]
        if None in parts:
            return None
        return parts[0] + parts[1] if name == "llvm.add" else parts[0] * parts[1]  # type: ignore[operator]
    if name == "llvm.ptrtoint":
        return _constant_size(operation.operands[0])
    if name == "llvm.mlir.zero":
        return 0
    if name == "llvm.getelementptr" and len(operation.operands) == 1:
        indices = list(ir.DenseI32ArrayAttr(operation.attributes["rawConstantIndices"]))
        width = {"f32": 4, "f64": 8, "i1": 1, "i8": 1, "i32": 4, "i64": 8}.get(
            str(ir.TypeAttr(operation.attributes["elem_type"]).value)
        )
        base = _constant_size(operation.operands[0])
        if width is None or base is None or len(indices) != 1:
            return None
        return int(base + indices[0] * width)
    return None


def add_entry(
    module: ir.Operation,
    function: str,
    arguments: Sequence[ArgumentShape],
    workspace: int,
) -> None:
    """Add the entry point of SOLGym's kernel ABI (docs/measuring.md) to an LLVM-dialect module, in place.

    It takes the array of buffers (what is read, then what is written), copies what is changed in place from
    the one to the other, and calls the function with expanded descriptors. Pointers are known to be aligned
    to 64 bytes and not to alias.

    Args:
        module: in the LLVM dialect.
        function: the function to call; becomes internal.
        arguments: for each argument of the function its shape, bytes an element, and role.
        workspace: bytes of workspace from which the module's allocations come.
    """
    inputs = [i for i, (_, _, role) in enumerate(arguments) if role != "out"]
    outputs = [i for i, (_, _, role) in enumerate(arguments) if role != "in"]
    lines = [
        f"  llvm.func @{ENTRY}(%buffers: !llvm.ptr, %workspace: !llvm.ptr, %runtime: !llvm.ptr) {{",
        "    %zero = llvm.mlir.constant(0 : i64) : i64",
    ]
    if workspace:
        for name in ("start", "top"):
            lines.append(f"    %{name}_at = llvm.mlir.addressof @solgym_arena_{name} : !llvm.ptr")
            lines.append(f"    llvm.store %workspace, %{name}_at : !llvm.ptr, !llvm.ptr")

    def load(name: str, slot: int) -> None:
        lines.append(
            f"    %{name}_at = llvm.getelementptr %buffers[{slot}] : (!llvm.ptr) -> !llvm.ptr, !llvm.ptr"
        )
        lines.append(f"    %{name} = llvm.load %{name}_at : !llvm.ptr -> !llvm.ptr")

    operands: list[str] = []
    types: list[str] = []
    for number, (shape, width, role) in enumerate(arguments):
        if role != "out":
            load(f"in{number}", inputs.index(number))
        if role != "in":
            load(f"out{number}", len(inputs) + outputs.index(number))
        if role == "inout":
            lines.append(f"    %bytes{number} = llvm.mlir.constant({math.prod(shape) * width} : i64) : i64")
            lines.append(
                f'    "llvm.intr.memcpy"(%out{number}, %in{number}, %bytes{number}) <{{isVolatile = false}}> '
                ": (!llvm.ptr, !llvm.ptr, i64) -> ()"
            )
        pointer = f"%in{number}" if role == "in" else f"%out{number}"
        operands += [pointer, pointer, "%zero"]
        types += ["!llvm.ptr", "!llvm.ptr", "i64"]
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        for axis, value in enumerate((*shape, *strides)):
            lines.append(f"    %d{number}_{axis} = llvm.mlir.constant({value} : i64) : i64")
            operands.append(f"%d{number}_{axis}")
            types.append("i64")
    called = str(ir.FlatSymbolRefAttr.get(function, module.context))  # quoted where it has to be
    lines.append(f"    llvm.call {called}({', '.join(operands)}) : ({', '.join(types)}) -> ()")
    lines += ["    llvm.return", "  }"]
    declarations = "".join(
        f"  llvm.func {name}\n"
        for name in (f"{called}({', '.join(types)})", "@malloc(i64) -> !llvm.ptr", "@free(!llvm.ptr)")
    )
    arena = _ARENA.replace("ARENA_BYTES", str(workspace)) if workspace else ""
    context = module.context
    with context, ir.Location.unknown():
        added = ir.Module.parse("module {\n" + declarations + arena + "\n".join(lines) + "\n}")
        present = {_symbol(operation): operation for operation in body_of(module) if _symbol(operation)}
        if workspace:
            _redirect_allocations(module)
        for operation in list(added.body.operations):
            if _symbol(operation) in present:
                continue
            operation.operation.detach_from_parent()
            module.regions[0].blocks[0].append(operation)
        main = present[function].operation
        main.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
        _annotate_pointers(main, arguments)


def _callee(operation: ir.Operation) -> str:
    """The function that an operation calls by name, or nothing."""
    if operation.name != "llvm.call" or "callee" not in operation.attributes:
        return ""
    return str(ir.FlatSymbolRefAttr(operation.attributes["callee"]).value)


def _symbol(operation: ir.OpView | ir.Operation) -> str:
    attributes = operation.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else ""


def _redirect_allocations(module: ir.Operation) -> None:
    renamed = {
        name: ir.FlatSymbolRefAttr.get(f"solgym_{name}", module.context) for name in ("malloc", "free")
    }

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if (callee := _callee(operation)) in renamed:
            operation.attributes["callee"] = renamed[callee]
        return ir.WalkResult.ADVANCE

    module.walk(visit)


def _annotate_pointers(function: ir.Operation, arguments: Sequence[ArgumentShape]) -> None:
    """Say of each argument's data pointer (the second of its descriptor) that it is aligned and alone."""
    known = ir.Attribute.parse("{llvm.noalias, llvm.nonnull, llvm.align = 64 : i64}")
    nothing = ir.Attribute.parse("{}")
    attributes: list[ir.Attribute] = []
    for shape, _, _ in arguments:
        attributes += [nothing, known, nothing, *[nothing] * (2 * len(shape))]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
