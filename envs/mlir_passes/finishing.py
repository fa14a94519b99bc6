"""From a module at any level to LLVM: the finishing pipeline.

Everything here runs in the pass worker (``session``), never in the user's process. The finishing pipeline is
the same for every candidate; on the untouched module it is the *plain pipeline*, the baseline of the
environments. Whatever is left that LLVM could not translate or link is refused here, as translating a
residual operation, or calling a symbol that does not exist, would crash the process.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Final

from torch_mlir import ir, passmanager
from torch_mlir.dialects import linalg

from solgym.envs.mlir_passes.modes import FloatMode

__all__ = [
    "KNOWN_SYMBOLS",
    "CannotFinish",
    "body_of",
    "first_line",
    "lower_packs",
    "lower_to_llvm_dialect",
    "run_passes",
    "set_float_mode",
    "to_buffers",
]


_MATH: Final = (
    "acos asin atan atan2 cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax fmin fmod "
    "log log10 log1p log2 nearbyint pow rint round roundeven sin sinh sqrt tan tanh trunc"
)
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

_HOISTED_BYTES_MAX: Final = 1 << 20
_ADDRESS_ARITHMETIC: Final = (
    "llvm.getelementptr",
    "llvm.insertvalue",
    "llvm.extractvalue",
    "llvm.bitcast",
    "llvm.select",
)
_READS_AND_WRITES: Final[dict[str, tuple[int, ...]]] = {
    "llvm.load": (0,),
    "llvm.store": (1,),
    "llvm.atomicrmw": (0,),
    "llvm.intr.masked.load": (0,),
    "llvm.intr.masked.store": (1,),
    "llvm.intr.memcpy": (0, 1),
    "llvm.intr.memmove": (0, 1),
    "llvm.intr.memset": (0,),
}
"""Operations that use an address and keep none, with the operands that are addresses."""


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
        _hoist_stack_memory(lowered)
    except ir.MLIRError as error:
        raise CannotFinish(f"the finishing pipeline fails: {first_line(error)}") from error
    _refuse_leftovers(lowered)
    return lowered


def first_line(error: Exception) -> str:
    """The beginning of what MLIR's bindings raised, on one line."""
    return " ".join(str(error).split())[:400]


def to_buffers(module: ir.Operation) -> None:
    """Lower packs and turn tensors into buffers, in place; these are not freed yet.

    Raises:
        ir.MLIRError: a pass failed.
    """
    if _has(module, _packs):
        lower_packs(module)
    if _has(module, _is_on_tensors):
        run_passes(module, _BUFFERIZE)


def body_of(module: ir.Operation) -> list[ir.Operation]:
    """The operations at the top level of a module."""
    return [operation.operation for operation in module.regions[0].blocks[0].operations]


def _has(module: ir.Operation, matches: Callable[[ir.Operation], bool]) -> bool:
    found = False

    def look(operation: ir.Operation) -> ir.WalkResult:
        nonlocal found
        if matches(operation):
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
!pack = !transform.op<"linalg.pack">
!unpack = !transform.op<"linalg.unpack">
!pad = !transform.op<"tensor.pad">
!expand = !transform.op<"tensor.expand_shape">
!transpose = !transform.op<"linalg.transpose">
!empty = !transform.op<"tensor.empty">
!collapse = !transform.op<"tensor.collapse_shape">
!slice = !transform.op<"tensor.extract_slice">
!copy = !transform.op<"linalg.copy">
module attributes {transform.with_named_sequence} {
  transform.named_sequence @__transform_main(%root: !transform.any_op) {
    %packs = transform.structured.match ops{["linalg.pack"]} in %root : (!transform.any_op) -> !pack
    transform.foreach %packs : !pack {
    ^bb0(%pack: !pack):
      %0:3 = transform.structured.lower_pack %pack : (!pack) -> (!pad, !expand, !transpose)
    }
    %unpacks = transform.structured.match ops{["linalg.unpack"]} in %root : (!transform.any_op) -> !unpack
    transform.foreach %unpacks : !unpack {
    ^bb0(%unpack: !unpack):
      %1:5 = transform.structured.lower_unpack %unpack
        : (!unpack) -> (!empty, !transpose, !collapse, !slice, !copy)
    }
    transform.yield
  }
}
"""


def lower_packs(module: ir.Operation) -> None:
    """Write packing and unpacking as padding, reshapes, transposes and copies, in place.

    Raises:
        ValueError: it cannot be done, on buffers for instance.
    """
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
    """Make loops of copies between views; they would become calls into a runtime library that is not
    there.
    """
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


def _hoist_stack_memory(module: ir.Operation) -> None:
    """Reserve the stack memory that an iteration of a loop keeps to itself once a call, where the function
    begins, in the LLVM dialect.

    Vectors that are split in memory take some in every iteration. MLIR has it end there, but its lowering of
    loops gives nothing back, so the stack would overflow. What a later iteration or another function could
    still see stays where it is, as do memory outside loops and pieces of more than ``_HOISTED_BYTES_MAX``:
    the branch that they stand in may never be taken.
    """
    for function in body_of(module):
        if function.name != "llvm.func" or not function.regions[0].blocks:
            continue
        begin = function.regions[0].blocks[0].operations[0]
        for block in list(function.regions[0].blocks)[1:]:
            allocas = [op.operation for op in block if op.operation.name == "llvm.alloca"]
            if not allocas or not _is_in_a_loop(block):
                continue
            for alloca in allocas:
                size = alloca.operands[0].owner
                if _fixed_bytes(alloca) > _HOISTED_BYTES_MAX or _escapes(alloca):
                    continue
                with module.context, alloca.location, ir.InsertionPoint(begin):
                    alloca.operands[0] = size.clone().results[0]
                alloca.move_before(begin)


def _is_in_a_loop(block: ir.Block) -> bool:
    """Whether control can come to a block again."""
    ahead, seen = list(block.successors), set()
    while ahead:
        following = ahead.pop()
        if following == block:
            return True
        if following not in seen:
            seen.add(following)
            ahead += following.successors
    return False


def _fixed_bytes(alloca: ir.Operation) -> float:
    """What an ``llvm.alloca`` reserves; infinite where that is not known before it runs."""
    count = alloca.operands[0].owner
    if isinstance(count, ir.Block) or count.name != "llvm.mlir.constant":
        return math.inf
    # A scalar, vector or array of them: f32, vector<16xf32>, !llvm.array<4 x vector<16xf32>>.
    element = str(ir.TypeAttr(alloca.attributes["elem_type"]).value)
    elements = ir.IntegerAttr(count.attributes["value"]).value
    if elements < 0 or "struct" in element or "ptr" in element:
        return math.inf
    parts = re.findall(r"\d+", re.sub(r"\bi1\b|(?<=x)i1\b", "i8", element))
    return float(elements * math.prod(map(int, parts)) / 8)


def _escapes(value: ir.Operation) -> bool:
    """Whether an address in the results of an operation goes where it cannot be followed: into memory,
    another block's arguments, a call.
    """
    for result in value.results:
        for use in result.uses:
            user = use.owner
            if user.name in _ADDRESS_ARITHMETIC:
                if _escapes(user):
                    return True
            elif use.operand_number not in _READS_AND_WRITES.get(user.name, ()):
                return True
    return False


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
        if operation.name in ("llvm.func", "llvm.mlir.global") and _is_declared_only(operation):
            name = ir.StringAttr(operation.attributes["sym_name"]).value
            if name not in KNOWN_SYMBOLS or operation.name != "llvm.func":
                raise CannotFinish(f"the code uses {name!r}, which does not exist at run time")


def _is_declared_only(operation: ir.Operation) -> bool:
    """Whether a function has no body, a global no value."""
    return not operation.regions[0].blocks and "value" not in operation.attributes


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
