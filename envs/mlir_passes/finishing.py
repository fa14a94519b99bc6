"""From a module at any level to LLVM: the finishing pipeline, and the entry point that candidates run through.

Everything here runs in the pass worker (``session``), never in the user's process. The finishing pipeline is the
same for every candidate; on the untouched module it is the *plain pipeline*, the baseline of the environments.
Whatever is left that LLVM could not translate or link is refused here, as translating a residual operation, or
calling a symbol that does not exist, would crash the process.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final, Literal

from torch_mlir import ir, passmanager
from torch_mlir.dialects import linalg

__all__ = [
    "ENTRY",
    "KNOWN_SYMBOLS",
    "CannotFinish",
    "FloatMode",
    "Role",
    "add_entry",
    "arena_bytes",
    "body_of",
    "first_line",
    "lower_to_llvm_dialect",
    "run_passes",
    "set_float_mode",
    "to_buffers",
]

Role = Literal["in", "out", "inout"]
FloatMode = Literal["contract,reassoc", "contract", "strict"]

ENTRY: Final = "solgym_entry"

_MATH = "acos asin atan atan2 cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax fmin fmod log"
_MATH += " log10 log1p log2 nearbyint pow rint round roundeven sin sinh sqrt tan tanh trunc"
KNOWN_SYMBOLS: Final = frozenset(
    {"malloc", "free", "memcpy", "memset", "memmove"}
    | {name + suffix for name in _MATH.split() for suffix in ("", "f")}
)
"""What generated code may call: the C library and its mathematical functions, which every worker has."""

_BUFFERIZE: Final = (
    "convert-elementwise-to-linalg,convert-tensor-to-linalg,empty-tensor-to-alloc-tensor,"
    "one-shot-bufferize{bufferize-function-boundaries=true allow-return-allocs-from-loops=true},"
    "canonicalize,cse"
)
_DEALLOCATE: Final = "buffer-deallocation-pipeline,convert-bufferization-to-memref"
_TO_LOOPS: Final = (
    "func.func(convert-linalg-to-loops,scf-forall-to-for,lower-vector-multi-reduction),convert-vector-to-scf,"
    "canonicalize,lower-affine,expand-strided-metadata,lower-affine,convert-scf-to-cf,memref-expand,arith-expand,"
    "convert-vector-to-llvm{vector-contract-lowering=outerproduct reassociate-fp-reductions=true},"
    "math-expand-ops,convert-math-to-llvm,convert-math-to-libm,finalize-memref-to-llvm,convert-ub-to-llvm,"
    "convert-index-to-llvm,convert-arith-to-llvm,convert-cf-to-llvm,convert-func-to-llvm,canonicalize,cse,"
    "reconcile-unrealized-casts"
)


class CannotFinish(Exception):
    """The finishing pipeline fails on a module, or leaves something that cannot be run."""


@functools.cache
def _pipeline(context: ir.Context, passes: str) -> passmanager.PassManager:
    manager = passmanager.PassManager.parse(f"builtin.module({passes})", context)
    manager.enable_verifier(True)
    return manager


def run_passes(module: ir.Operation, passes: str) -> None:
    """Run a pipeline in place.

    Raises:
        ir.MLIRError: a pass failed; the module is then in no particular state.
    """
    _pipeline(module.context, passes).run(module)


def lower_to_llvm_dialect(module: ir.Operation) -> ir.Operation:
    """A copy of the module lowered to the LLVM dialect; the module itself stays as it is.

    Raises:
        CannotFinish: a pass failed or an operation is left over; says which.
    """
    lowered = module.clone().operation
    try:
        to_buffers(lowered)
        lowered = _deallocated(lowered)
        _replace_strided_copies(lowered)
        run_passes(lowered, _TO_LOOPS)
    except ir.MLIRError as error:
        raise CannotFinish(f"the finishing pipeline fails: {first_line(error)}") from error
    _refuse_leftovers(lowered)
    return lowered


def first_line(error: ir.MLIRError) -> str:
    """The first message of an MLIR error, on one line."""
    return " ".join(str(error).split())[:400]


def to_buffers(module: ir.Operation) -> None:
    """Lower packs and turn tensors into buffers, in place; these are not freed yet.

    Raises:
        ir.MLIRError: a pass failed.
    """
    if _has(module, _packs):
        _lower_packs(module)
    if _has(module, _is_on_tensors):
        run_passes(module, _BUFFERIZE)


def body_of(module: ir.Operation) -> list[ir.Operation]:
    """The operations at the top level of a module."""
    return [operation.operation for operation in module.regions[0].blocks[0].operations]


def _has(module: ir.Operation, matches: object) -> bool:
    found = False

    def look(operation: ir.Operation) -> ir.WalkResult:
        nonlocal found
        if matches(operation):  # type: ignore[operator]
            found = True
            return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    module.walk(look)
    return found


def _packs(operation: ir.Operation) -> bool:
    return operation.name in ("linalg.pack", "linalg.unpack")


def _is_on_tensors(operation: ir.Operation) -> bool:
    return any(
        isinstance(value.type, ir.RankedTensorType) for value in (*operation.results, *operation.operands)
    )


_LOWER_PACKS: Final = """
module attributes {transform.with_named_sequence} {
  transform.named_sequence @__transform_main(%root: !transform.any_op) {
    %packs = transform.structured.match ops{["linalg.pack"]} in %root : (!transform.any_op) -> !transform.op<"linalg.pack">
    transform.foreach %packs : !transform.op<"linalg.pack"> {
    ^bb0(%pack: !transform.op<"linalg.pack">):
      %pad, %expand, %transpose = transform.structured.lower_pack %pack : (!transform.op<"linalg.pack">)
        -> (!transform.op<"tensor.pad">, !transform.op<"tensor.expand_shape">, !transform.op<"linalg.transpose">)
    }
    %unpacks = transform.structured.match ops{["linalg.unpack"]} in %root
      : (!transform.any_op) -> !transform.op<"linalg.unpack">
    transform.foreach %unpacks : !transform.op<"linalg.unpack"> {
    ^bb0(%unpack: !transform.op<"linalg.unpack">):
      %empty, %transpose, %collapse, %slice, %copy = transform.structured.lower_unpack %unpack
        : (!transform.op<"linalg.unpack">) -> (!transform.op<"tensor.empty">, !transform.op<"linalg.transpose">,
        !transform.op<"tensor.collapse_shape">, !transform.op<"tensor.extract_slice">, !transform.op<"linalg.copy">)
    }
    transform.yield
  }
}
"""


def _lower_packs(module: ir.Operation) -> None:
    from torch_mlir.dialects.transform import interpreter

    with module.context, ir.Location.unknown():
        script = ir.Module.parse(_LOWER_PACKS)
        interpreter.apply_named_sequence(module, script.body.operations[0], script)


def _deallocated(module: ir.Operation) -> ir.Operation:
    """The module with buffers freed, or as it was where the pipeline for that fails."""
    kept = module.clone().operation
    try:
        run_passes(module, _DEALLOCATE)
        return module
    except ir.MLIRError:
        return kept


def _is_contiguous(value: ir.Value) -> bool:
    """Whether a memref has the identity layout: then its type prints without one."""
    kind = ir.MemRefType(value.type)
    return bool(kind.layout == ir.MemRefType.get(kind.shape, kind.element_type).layout)


def _replace_strided_copies(module: ir.Operation) -> None:
    """Make loops of copies between views; they would become calls into a runtime library that is not there."""
    copies: list[ir.Operation] = []

    def look(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "memref.copy" and not all(map(_is_contiguous, operation.operands)):
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.walk(look)
    for copy in copies:
        source, destination = copy.operands
        with module.context, copy.location, ir.InsertionPoint(copy):
            linalg.copy(source, outs=[destination])
        copy.erase()


def _refuse_leftovers(module: ir.Operation) -> None:
    leftovers: set[str] = set()

    def look(operation: ir.Operation) -> ir.WalkResult:
        name = operation.name
        if not name.startswith("llvm.") and name != "builtin.module":
            leftovers.add(name)
        return ir.WalkResult.ADVANCE

    module.walk(look)
    if leftovers:
        raise CannotFinish(
            f"the finishing pipeline leaves {', '.join(sorted(leftovers))}, which LLVM cannot translate"
        )
    for operation in body_of(module):
        if operation.operation.name == "llvm.func" and not operation.operation.regions[0].blocks:
            name = ir.StringAttr(operation.operation.attributes["sym_name"]).value
            if name not in KNOWN_SYMBOLS:
                raise CannotFinish(f"the code calls {name!r}, which does not exist at run time")


def set_float_mode(module: ir.Operation, mode: FloatMode) -> None:
    """Give every floating-point operation of an LLVM-dialect module the same fast-math flags.

    All candidates share one mode: ``contract`` fuses multiply-adds, ``reassoc`` lets sums be reordered. Else
    flags that passes happen to set would be confounded with what the passes did.
    """
    flags = {"contract,reassoc": "contract, reassoc", "contract": "contract", "strict": "none"}[mode]
    attribute = ir.Attribute.parse(f"#llvm.fastmath<{flags}>", module.context)

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if "fastmathFlags" in operation.attributes:
            operation.attributes["fastmathFlags"] = attribute
        return ir.WalkResult.ADVANCE

    module.walk(visit)


# Memory that a module allocates comes from the candidate's workspace, which is guarded, poisoned before each run
# and reset at each call, so nothing leaks from one timed call into the next. The last block can be given back;
# what does not fit comes from the C library.
_ARENA: Final = """
  llvm.mlir.global internal @solgym_arena_start() : !llvm.ptr { %0 = llvm.mlir.zero : !llvm.ptr llvm.return %0 : !llvm.ptr }
  llvm.mlir.global internal @solgym_arena_top() : !llvm.ptr { %0 = llvm.mlir.zero : !llvm.ptr llvm.return %0 : !llvm.ptr }
  llvm.mlir.global internal @solgym_arena_last() : !llvm.ptr { %0 = llvm.mlir.zero : !llvm.ptr llvm.return %0 : !llvm.ptr }
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

_ALIGN = 64


def arena_bytes(module: ir.Operation) -> int:
    """Workspace for a module in the LLVM dialect: every allocation site of known size once.

    MLIR's lowering writes a size as the address of the last element of an array at address zero, plus the
    alignment.
    """
    total = 0

    def look(operation: ir.Operation) -> ir.WalkResult:
        nonlocal total
        if operation.name == "llvm.call" and "callee" in operation.attributes:
            if ir.FlatSymbolRefAttr(operation.attributes["callee"]).value == "malloc":
                size = _constant_size(operation.operands[0])
                total += 0 if size is None else -(-size // _ALIGN) * _ALIGN
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
        return ir.IntegerAttr(operation.attributes["value"]).value
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
        return base + indices[0] * width
    return None


def add_entry(
    module: ir.Operation,
    function: str,
    arguments: Sequence[tuple[tuple[int, ...], int, Role]],
    workspace: int,
) -> None:
    """Add the entry point of SOLGym's kernel ABI (docs/measuring.md) to an LLVM-dialect module, in place.

    It takes the array of buffers (what is read, then what is written), copies what is changed in place from the
    one to the other, and calls the function with expanded descriptors. Pointers are known to be aligned to 64
    bytes and not to alias.

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
    lines.append(f"    llvm.call @{function}({', '.join(operands)}) : ({', '.join(types)}) -> ()")
    lines += ["    llvm.return", "  }"]
    declarations = "".join(
        f"  llvm.func @{name}\n"
        for name in (f"{function}({', '.join(types)})", "malloc(i64) -> !llvm.ptr", "free(!llvm.ptr)")
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


def _symbol(operation: ir.OpView | ir.Operation) -> str:
    attributes = operation.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else ""


def _redirect_allocations(module: ir.Operation) -> None:
    renamed = {
        name: ir.FlatSymbolRefAttr.get(f"solgym_{name}", module.context) for name in ("malloc", "free")
    }

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "llvm.call" and "callee" in operation.attributes:
            callee = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
            if callee in renamed:
                operation.attributes["callee"] = renamed[callee]
        return ir.WalkResult.ADVANCE

    module.walk(visit)


def _annotate_pointers(
    function: ir.Operation, arguments: Sequence[tuple[tuple[int, ...], int, Role]]
) -> None:
    """Say of each argument's data pointer (the second of its descriptor) that it is aligned and alone."""
    known = ir.Attribute.parse("{llvm.noalias, llvm.nonnull, llvm.align = 64 : i64}")
    nothing = ir.Attribute.parse("{}")
    attributes: list[ir.Attribute] = []
    for shape, _, _ in arguments:
        attributes += [nothing, known, nothing, *[nothing] * (2 * len(shape))]
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
