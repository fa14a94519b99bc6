"""Finds loops of scf whose iterations touch different memory, and makes them parallel.

MLIR's own analysis knows affine loads and stores only; after tiling and vectorisation there are vectors and
loops of scf. The test here is simple and errs towards sequential: along one subscript, what an iteration
touches of each array that is written must lie within one step of the loop. Runs in the pass worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch_mlir import ir

from solgym.envs.mlir_passes.gpu_operations import ALLOCATIONS, bytes_of, is_pure, walk
from solgym.envs.mlir_passes.gpu_outlining import MAX_STACK_BYTES
from solgym.envs.mlir_passes.gpu_ranges import Range, Ranges, constant_of, defining, linear

__all__ = ["mark_parallel_loops"]

_MEMORY_OPERAND: Final = {
    "memref.load": 0,
    "memref.store": 1,
    "vector.load": 0,
    "vector.store": 1,
    "vector.transfer_read": 0,
    "vector.transfer_write": 1,
}
_WRITES: Final = frozenset({"memref.store", "vector.store", "vector.transfer_write"})
_STRUCTURE: Final = frozenset(
    {"scf.for", "scf.if", "scf.parallel", "scf.reduce", "scf.yield", "scf.while", "scf.condition"}
)
_HARMLESS: Final = frozenset({"memref.dealloc", "memref.get_global"})


@dataclass(frozen=True)
class _Access:
    """What an operation may touch: a subscript and a count of elements from there for each dimension."""

    base: ir.Value
    writes: bool
    subscripts: tuple[ir.Value, ...]
    widths: tuple[int, ...]


@dataclass(frozen=True)
class _Subscript:
    """A subscript as ``factor * variable + outer + [low, high]``; all iterations have the same ``outer``."""

    factor: int
    outer: Mapping[ir.Value, int]
    low: float
    high: float


def mark_parallel_loops(function: ir.Operation) -> None:
    """Turn ``scf.for`` into ``scf.parallel`` where that is safe and of use, in place.

    Args:
        function: different arguments of it are different memory.
    """
    with function.context, ir.Location.unknown():
        for block in function.regions[0].blocks:
            _mark(block)


def _mark(block: ir.Block) -> None:
    for operation in [each.operation for each in block.operations]:
        if operation.name not in ("scf.for", "scf.if"):
            continue
        for region in operation.regions:
            for inner in region.blocks:
                _mark(inner)
        if operation.name == "scf.for" and _is_worthwhile(operation) and _is_independent(operation):
            _make_parallel(operation)


def _is_worthwhile(loop: ir.Operation) -> bool:
    """Whether a thread for each iteration is better than parallel loops inside, launched once an iteration.

    It is if the loop has more iterations than they have, or if both can be had.
    """
    inside = [each for each in walk(loop) if each.name == "scf.parallel"]
    if not inside:
        return True
    if len([each for each in _own(loop) if not is_pure(each)]) == 1 and inside[0] in _own(loop):
        return True
    return (_trips(loop) or 0) >= max(_trips(each) or 0 for each in inside)


def _trips(loop: ir.Operation) -> int | None:
    ranges = Ranges()
    operands = list(loop.operands)
    count = len(loop.regions[0].blocks[0].arguments) if loop.name == "scf.parallel" else 1
    total = 1
    for position in range(count):
        step = constant_of(operands[2 * count + position])
        trips = ranges.extent(operands[position], operands[count + position], step) if step else None
        if trips is None:
            return None
        total *= trips
    return total


def _is_independent(loop: ir.Operation) -> bool:
    """Whether no iteration touches what another one writes."""
    step = constant_of(loop.operands[2])
    if len(loop.results) or step is None or step <= 0:
        return False
    accesses: dict[ir.Value, list[_Access]] = {}
    own_bytes = 0
    for operation in walk(loop):
        if operation.name in ALLOCATIONS:
            kind = ir.MemRefType(operation.results[0].type)
            own_bytes += bytes_of(kind) if kind.has_static_shape else MAX_STACK_BYTES + 1
            if own_bytes > MAX_STACK_BYTES:
                return False
        if operation.name in _MEMORY_OPERAND:
            access = _access(operation)
            if access is None:
                return False
            accesses.setdefault(access.base, []).append(access)
        elif not (
            operation.name in _STRUCTURE
            or operation.name in ALLOCATIONS
            or operation.name in _HARMLESS
            or is_pure(operation)
        ):
            return False
    ranges = Ranges()
    variable = loop.regions[0].blocks[0].arguments[0]
    return all(
        _is_apart(loop, variable, step, touched, ranges)
        for base, touched in accesses.items()
        if any(access.writes for access in touched) and not _is_own(base, loop)
    )


def _is_apart(
    loop: ir.Operation, variable: ir.Value, step: int, touched: list[_Access], ranges: Ranges
) -> bool:
    """Whether different iterations touch different elements of one array, as seen along some subscript."""
    for dimension in range(len(touched[0].subscripts)):
        places = [_place(access.subscripts[dimension], loop, variable, ranges) for access in touched]
        first = places[0]
        if any((place.factor, place.outer) != (first.factor, first.outer) for place in places):
            continue
        low = min(place.low for place in places)
        ends = [place.high + access.widths[dimension] for place, access in zip(places, touched, strict=True)]
        if abs(first.factor) * step >= max(ends) - low:
            return True
    return False


def _place(value: ir.Value, loop: ir.Operation, variable: ir.Value, ranges: Ranges) -> _Subscript:
    """A subscript by how it varies with a loop's variable.

    The variable of a loop inside counts from its lower bound, which may itself vary with the outer variable.
    """
    constant, terms = linear(value)
    low = high = float(constant)
    factor = 0
    outer: dict[ir.Value, int] = {}
    pending = list(terms.items())
    while pending:
        atom, times = pending.pop()
        if atom == variable:
            factor += times
        elif not _is_own(atom, loop):
            outer[atom] = outer.get(atom, 0) + times
        else:
            bounds = _bounds(atom)
            if bounds is None:
                least, most = ranges.of(atom)
            else:
                start, more = linear(bounds[0])
                pending += [(each, times * count) for each, count in more.items()]
                extent = ranges.extent(bounds[0], bounds[1], 1)
                least, most = float(start), math.inf if extent is None else float(start + max(extent - 1, 0))
            low, high = _widened((low, high), times, (least, most))
    return _Subscript(factor, {atom: count for atom, count in outer.items() if count}, low, high)


def _widened(sum_: Range, times: int, term: Range) -> Range:
    ends = [times * end for end in term] if times else [0.0, 0.0]
    return sum_[0] + min(ends), sum_[1] + max(ends)


def _bounds(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """The bounds of the loop whose variable a value is."""
    if defining(value) is not None:
        return None
    block = value.owner
    loop = block.owner.operation
    position = list(block.arguments).index(value)
    operands = list(loop.operands)
    if loop.name == "scf.for" and position == 0:
        return operands[0], operands[1]
    if loop.name == "scf.parallel":
        return operands[position], operands[len(block.arguments) + position]
    return None


# ---------------------------------------------------------------------- accesses


def _access(operation: ir.Operation) -> _Access | None:
    """What a load or store may touch; None if that is not known."""
    operands = list(operation.operands)
    position = _MEMORY_OPERAND[operation.name]
    memory = operands[position]
    if not isinstance(memory.type, ir.MemRefType):
        return None
    rank = ir.MemRefType(memory.type).rank
    subscripts = tuple(operands[position + 1 : position + 1 + rank])
    widths = [1] * rank
    vector = operation.results[0].type if position == 0 else operands[0].type
    if operation.name.startswith("vector.transfer"):
        # The map says along which dimension of the array each dimension of the vector runs.
        affine_map = ir.AffineMapAttr(operation.attributes["permutation_map"]).value
        for extent, result in zip(ir.VectorType(vector).shape, affine_map.results, strict=True):
            if isinstance(result, ir.AffineDimExpr):
                widths[result.position] = extent
    elif isinstance(vector, ir.VectorType) and operation.name.startswith("vector."):
        shape = vector.shape
        widths[rank - len(shape) :] = shape
    base = memory
    source = defining(base)
    while source is not None and source.name == "memref.cast":
        base = source.operands[0]
        source = defining(base)
    known = source.name in ALLOCATIONS or source.name == "memref.get_global" if source is not None else True
    if not known or (source is None and base.owner.owner.operation.name != "func.func"):
        return None
    return _Access(base, operation.name in _WRITES, subscripts, tuple(widths))


def _is_own(value: ir.Value, loop: ir.Operation) -> bool:
    """Whether a value is defined inside a loop."""
    owner = value.owner
    operation = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation.parent.operation
    while operation is not None and operation != loop:
        parent = operation.parent
        operation = None if parent is None else parent.operation
    return operation is not None


def _own(loop: ir.Operation) -> list[ir.Operation]:
    """The operations directly inside a loop but for the last, which ends it."""
    return [each.operation for each in loop.regions[0].blocks[0].operations][:-1]


def _make_parallel(loop: ir.Operation) -> None:
    parallel = ir.Operation.create(
        "scf.parallel",
        operands=list(loop.operands)[:3],
        attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, 1, 0])},
        regions=1,
        ip=ir.InsertionPoint(loop),
    )
    body = loop.regions[0].blocks[0]
    block = ir.Block.create_at_start(parallel.regions[0], [ir.IndexType.get()])
    body.arguments[0].replace_all_uses_with(block.arguments[0])
    for operation in _own(loop):
        block.append(operation)
    ir.Operation.create("scf.reduce", ip=ir.InsertionPoint(block))
    loop.erase()
