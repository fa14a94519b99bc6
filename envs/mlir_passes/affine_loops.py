"""What can be read off affine loops: trip counts, the subscripts of a counter, plain independence of steps.

Upstream's affine passes trust their caller in places: super-vectorisation assumes trip counts that divide,
unrolling and jamming assumes independent steps. Masks and scripts need those answers, cheaply and on the
safe side. Runs in the pass worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch_mlir import ir

__all__ = ["ACCESSES", "AffineLoop", "affine_loops", "analyse", "may_tile"]

ACCESSES = frozenset(
    {
        "affine.load",
        "affine.store",
        "affine.vector_load",
        "affine.vector_store",
        "vector.transfer_read",
        "vector.transfer_write",
    }
)
"""Accesses to memory whose subscripts are understood."""

_STORES = frozenset({"affine.store", "affine.vector_store", "vector.transfer_write"})
_VIEWS = frozenset(
    {
        "memref.subview",
        "memref.cast",
        "memref.reinterpret_cast",
        "memref.collapse_shape",
        "memref.expand_shape",
        "memref.view",
    }
)


_Expression = tuple[bool, tuple[int, ...], tuple[int, ...]]
_Maps = dict[ir.AffineMap, tuple[_Expression, ...]]


@dataclass
class AffineLoop:
    """One ``affine.for``.

    Attributes:
        operation: the loop.
        parent: index of the loop around it; -1 if there is none.
        step: what its counter grows by.
        trips: number of steps; -1 where it is not constant.
        in_last: whether its counter stands in the last subscript of an access.
        in_others: whether its counter stands in another subscript.
        is_strided: whether its counter is scaled, negated or divided in the last subscript of an access.
        is_innermost: whether no affine loop is inside it.
        is_parallel: whether its steps are plainly independent: whatever is stored inside is subscripted in
        one
            place with the counter itself, by all accesses to that memory inside.
        bounds_others: whether the bounds of a loop inside depend on its counter.
        is_perfect: whether its body is one other loop and nothing else.
    """

    operation: ir.Operation
    parent: int
    step: int
    trips: int
    in_last: bool = False
    in_others: bool = False
    is_strided: bool = False
    is_innermost: bool = True
    is_parallel: bool = True
    bounds_others: bool = False
    is_perfect: bool = False


@dataclass(frozen=True)
class _Access:
    memory: ir.Value
    is_store: bool
    subscripts: tuple[tuple[bool, frozenset[int], frozenset[int]], ...]
    """For each subscript: whether it is a counter itself, loops whose counters it uses, those it scales."""


def affine_loops(module: ir.Operation) -> list[AffineLoop]:
    """The affine loops of a module in order, analysed."""
    loops: list[ir.Operation] = []
    accesses: list[ir.Operation] = []
    others: list[ir.Operation] = []

    def look(operation: ir.Operation) -> ir.WalkResult:
        name = operation.name
        if name == "affine.for":
            loops.append(operation)
        elif name in ACCESSES:
            accesses.append(operation)
        elif name.startswith(("memref.", "linalg.", "func.call", "bufferization.")):
            others.append(operation)
        return ir.WalkResult.ADVANCE

    module.walk(look, ir.WalkOrder.PRE_ORDER)
    return analyse(loops, accesses, others)


def analyse(
    loops: Sequence[ir.Operation], accesses: Iterable[ir.Operation], others: Iterable[ir.Operation]
) -> list[AffineLoop]:
    """Analyse loops.

    Args:
        loops: every ``affine.for`` in pre-order.
        accesses: every operation whose name is in ``ACCESSES``.
        others: every other operation that may touch memory.
    """
    found: list[AffineLoop] = []
    number: dict[ir.Value, int] = {}
    counters: list[ir.Value] = []
    for index, operation in enumerate(loops):
        counter = operation.regions[0].blocks[0].arguments[0]
        number[counter] = index
        counters.append(counter)
        found.append(_loop(operation, -1))
        for operand in operation.operands:
            around = number.get(operand)
            if around is not None:
                found[around].bounds_others = True
        if len(operation.results):
            found[index].is_parallel = False
    by_block = {loop.regions[0].blocks[0]: index for index, loop in enumerate(loops)} if loops else {}
    for index, operation in enumerate(loops):
        parent = _enclosing(operation, by_block)
        found[index].parent = parent
        if parent >= 0:
            found[parent].is_innermost = False
            found[parent].is_perfect = len(operation.block.operations) == 2
    kept: list[tuple[_Access, list[int]]] = []
    maps: _Maps = {}
    for operation in accesses:
        loops_around = _chain(operation, by_block, found)
        if not loops_around:
            continue
        access = _access(operation, number, maps)
        kept.append((access, loops_around))
        last = len(access.subscripts) - 1
        for position, (_, used, scaled) in enumerate(access.subscripts):
            for loop in used:
                if position == last:
                    found[loop].in_last = True
                    found[loop].is_strided |= loop in scaled
                else:
                    found[loop].in_others = True
    for operation in others:
        if operation.name in ("memref.alloc", "memref.alloca", "memref.dealloc", "memref.dim"):
            continue
        for loop in _chain(operation, by_block, found):
            found[loop].is_parallel = False
    _find_dependences(found, kept)
    return found


def may_tile(loops: Sequence[AffineLoop]) -> bool:
    """Whether every band of perfectly nested outermost loops may be tiled.

    With one loop at most whose steps depend on each other, the loops of a band can be interchanged freely,
    and so tiled. Upstream's tiling does not ask.
    """
    dependent: dict[int, int] = {}
    root: list[int] = []
    for index, loop in enumerate(loops):
        if loop.parent < 0:
            root.append(index)
        else:
            root.append(root[loop.parent] if loops[loop.parent].is_perfect else -1)
        if root[index] >= 0 and not loop.is_parallel:
            dependent[root[index]] = dependent.get(root[index], 0) + 1
    return all(count <= 1 for count in dependent.values())


def _find_dependences(found: list[AffineLoop], kept: list[tuple[_Access, list[int]]]) -> None:
    """Clear ``is_parallel`` of loops in which different steps may touch the same memory."""
    stored: dict[ir.Value, set[int]] = {}
    for access, around in kept:
        if access.is_store:
            stored.setdefault(access.memory, set()).update(around)
    # For each loop and memory: the subscripts that are the loop's counter itself in all accesses so far.
    places: dict[tuple[int, ir.Value], set[int]] = {}
    for access, around in kept:
        for loop in around:
            if loop not in stored.get(access.memory, ()) or not found[loop].is_parallel:
                continue
            own = {
                position
                for position, (is_single, used, _) in enumerate(access.subscripts)
                if is_single and used == {loop}
            }
            key = (loop, access.memory)
            places[key] = own if key not in places else places[key] & own
    for (loop, memory), subscripts in places.items():
        if not subscripts or _is_view(memory):
            found[loop].is_parallel = False


def _is_view(memory: ir.Value) -> bool:
    owner = memory.owner
    return isinstance(owner, ir.Operation | ir.OpView) and owner.operation.name in _VIEWS


def _chain(operation: ir.Operation, by_block: dict[ir.Block, int], found: list[AffineLoop]) -> list[int]:
    """The loops around an operation, innermost first."""
    around: list[int] = []
    loop = _enclosing(operation, by_block)
    while loop >= 0:
        around.append(loop)
        loop = found[loop].parent
    return around


def _enclosing(operation: ir.Operation, by_block: dict[ir.Block, int]) -> int:
    block = operation.block
    while block is not None:
        index = by_block.get(block)
        if index is not None:
            return index
        owner = block.owner
        if owner is None or owner.operation.name in ("func.func", "builtin.module"):
            return -1
        block = owner.operation.block
    return -1


def _loop(operation: ir.Operation, parent: int) -> AffineLoop:
    attributes = operation.attributes
    lower = ir.AffineMapAttr(attributes["lowerBoundMap"]).value.results
    upper = ir.AffineMapAttr(attributes["upperBoundMap"]).value.results
    step = ir.IntegerAttr(attributes["step"]).value
    span = -1
    if len(lower) == 1 and len(upper) == 1:
        low, high = lower[0], upper[0]
        if isinstance(low, ir.AffineConstantExpr) and isinstance(high, ir.AffineConstantExpr):
            span = max(0, high.value - low.value)
        elif (
            isinstance(high, ir.AffineAddExpr)
            and high.lhs == low
            and isinstance(high.rhs, ir.AffineConstantExpr)
        ):
            operands = list(operation.operands)
            half = len(operands) // 2
            if operands[:half] == operands[half:]:
                span = max(0, high.rhs.value)
    return AffineLoop(operation, parent, step, -1 if span < 0 else -(-span // step))


def _access(
    operation: ir.Operation,
    number: dict[ir.Value, int],
    maps: _Maps,
) -> _Access:
    name = operation.name
    operands = list(operation.operands)
    is_store = name in _STORES
    if is_store:
        operands = operands[1:]
    memory, indices = operands[0], operands[1:]
    subscripts: list[tuple[bool, frozenset[int], frozenset[int]]] = []

    def loops_of(places: Iterable[int]) -> frozenset[int]:
        return frozenset(number[indices[place]] for place in places if indices[place] in number)

    if name.startswith("affine."):
        attribute = ir.AffineMapAttr(operation.attributes["map"]).value
        shape = maps.get(attribute)
        if shape is None:
            shape = maps[attribute] = tuple(
                _expression(result, attribute.n_dims) for result in attribute.results
            )
        for is_single, places, scaled in shape:
            subscripts.append((is_single, loops_of(places), loops_of(scaled)))
    else:
        rank = len(memory.type.shape) if isinstance(memory.type, ir.MemRefType) else 0
        for index in indices[:rank]:
            loop = number.get(index)
            subscripts.append((loop is not None, frozenset(() if loop is None else (loop,)), frozenset()))
    return _Access(memory, is_store, tuple(subscripts))


def _expression(expression: ir.AffineExpr, dimensions: int) -> _Expression:
    """Whether an expression is one operand itself, the operands that it uses, and those that it scales."""
    if isinstance(expression, ir.AffineDimExpr):
        return True, (expression.position,), ()
    places: list[int] = []
    scaled: list[int] = []
    pending = [(expression, False)]
    while pending:
        part, is_scaled = pending.pop()
        if isinstance(part, ir.AffineDimExpr | ir.AffineSymbolExpr):
            place = part.position + (dimensions if isinstance(part, ir.AffineSymbolExpr) else 0)
            places.append(place)
            if is_scaled:
                scaled.append(place)
        elif isinstance(part, ir.AffineBinaryExpr):
            inside = is_scaled or not isinstance(part, ir.AffineAddExpr)
            pending += [(part.lhs, inside), (part.rhs, inside)]
    return False, tuple(places), tuple(scaled)
