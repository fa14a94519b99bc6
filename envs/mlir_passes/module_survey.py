"""One walk over a module that collects what its features are made of. Runs in the pass worker.

Loops are those of the module's loop operations, those that structured operations (linalg) stand for, and,
where there are only branches, the spans of blocks that a backward branch closes. Trip counts that are not
constant are estimated with every outer loop in the middle of its range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import linalg

from solgym.envs.mlir_passes.kinds import KINDS, kind_of

__all__ = ["DEPTHS", "LoopLevel", "Survey", "survey"]

DEPTHS: Final = 8
"""Loop depths that are told apart; what lies deeper counts for the last."""

REGISTER_BITS: Final = 512


@dataclass(frozen=True)
class LoopLevel:
    """The loops at one depth.

    Attributes:
        loops: how many.
        structured: how many of them a structured operation stands for.
        estimated: how many have a trip count that is not constant.
        trips: the largest trip count.
        iterations: the largest product of a loop's trip count with those of the loops around it.
        footprint_bytes: the most bytes of different memory that one run of a loop touches.
    """

    loops: int = 0
    structured: int = 0
    estimated: int = 0
    trips: float = 0.0
    iterations: float = 0.0
    footprint_bytes: float = 0.0


@dataclass(frozen=True)
class Survey:
    """What one walk found.

    Attributes:
        histogram: operations by loop depth, then by kind as in ``KINDS``.
        functions: functions.
        blocks: blocks.
        block_arguments: arguments of blocks, those of functions not counted.
        loops: loops.
        max_loop_depth: the deepest nest.
        vectorisable: floating-point operations on single numbers inside loops.
        largest_elements: elements of the largest tensor or buffer.
        smallest_elements: elements of the smallest one with at least one extent.
        largest_rank: most extents of one.
        mean_log2_innermost: mean over all of them of log2 of the last extent.
        element_bits: bits of the widest floating-point number.
        vector_bits: bits of the largest vector.
        largest_integer: largest absolute value of an integer constant.
        largest_float: largest absolute value of a finite floating-point constant.
        levels: the loops by depth; without entries unless detailed.
        vector_pressure: most registers of 512 bits that floating-point values and vectors need at one place.
        integer_pressure: most integers and indices that are alive at one place.
    """

    histogram: tuple[tuple[int, ...], ...]
    functions: int
    blocks: int
    block_arguments: int
    loops: int
    max_loop_depth: int
    vectorisable: int
    largest_elements: int
    smallest_elements: int
    largest_rank: int
    mean_log2_innermost: float
    element_bits: int
    vector_bits: int
    largest_integer: int
    largest_float: float
    levels: tuple[LoopLevel, ...]
    vector_pressure: int
    integer_pressure: int

    @property
    def operations(self) -> int:
        """All operations."""
        return sum(map(sum, self.histogram))

    def count(self, *kinds: str) -> int:
        """Operations of some kinds, at every depth."""
        columns = [KINDS.index(kind) for kind in kinds]
        return sum(row[column] for row in self.histogram for column in columns)


def survey(module: ir.Operation, detailed: bool = True) -> Survey:
    """Walk a module.

    Args:
        module: the module; it is not changed.
        detailed: whether to find trip counts, footprints and register pressure, which takes longer.
    """
    return _Surveyor(detailed).of(module)


class _Kind(NamedTuple):
    """What there is to know of a type; an extent that it leaves open is -1 and counts as one element."""

    what: Literal["float", "integer", "vector", "shaped", "other"]
    bits: int
    shape: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        return math.prod(max(extent, 1) for extent in self.shape)

    @property
    def bytes(self) -> float:
        return self.elements * self.bits / 8


class _Number(NamedTuple):
    """What is known of an integer: its value or an estimate, if any, and the loops that it varies with."""

    value: int | None
    exact: bool
    loops: frozenset[int]


class _Buffer(NamedTuple):
    """The memory that a tensor or buffer lies in, and the loops that move it there."""

    root: int
    loops: frozenset[int]


@dataclass(slots=True)
class _Loop:
    depth: int
    trips: int | None
    exact: bool
    structured: bool
    iterations: float
    end: int = 0
    touched: dict[int, float] = field(default_factory=dict)


_NOWHERE: Final[frozenset[int]] = frozenset()
_UNKNOWN: Final = _Number(None, False, _NOWHERE)
_CONSTANT: Final = KINDS.index("constant")
_LOAD, _STORE = KINDS.index("load"), KINDS.index("store")
_VIEW, _STRUCTURED = KINDS.index("view"), KINDS.index("structured")
_INTEGER: Final = KINDS.index("integer")
_ARITHMETIC: Final = (KINDS.index("float"), KINDS.index("function"))
_FUNCTIONS: Final = ("func.func", "llvm.func")
_DYNAMIC: Final = ir.ShapedType.get_dynamic_size()


class _Surveyor:
    def __init__(self, detailed: bool) -> None:
        self.detailed = detailed
        self.histogram = [[0] * len(KINDS) for _ in range(DEPTHS)]
        self.functions = self.blocks = self.block_arguments = self.vectorisable = 0
        self.largest_integer, self.largest_float = 0, 0.0
        self.types: dict[ir.Type, list[int]] = {}
        self.known_types: dict[ir.Type, _Kind] = {}
        self.shaped: dict[ir.Type, int] = {}
        self.loops: list[_Loop] = []
        self.numbers: dict[ir.Value, _Number] = {}
        self.buffers: dict[ir.Value, _Buffer] = {}
        self.root_bytes: list[float] = []
        self.position = 0
        # Values in registers: where they begin, how many registers, whether vectors, how many loops around.
        self.born: dict[ir.Value, tuple[int, int, bool, int]] = {}
        # Where they are used last: a position, or the complement of a loop that needs them to its end.
        self.last: dict[ir.Value, int] = {}

    def of(self, module: ir.Operation) -> Survey:
        self.histogram[0][kind_of(module.name)] += 1
        for region in module.regions:
            self._region(region, (), is_function=False)
        shapes = [(self._kind(kind), count) for kind, count in self.shaped.items()]
        with_extents = [(kind, count) for kind, count in shapes if kind.shape]
        total = sum(count for _, count in with_extents)
        log2_innermost = sum(count * math.log2(max(kind.shape[-1], 1)) for kind, count in with_extents)
        kinds = self.known_types.values()
        vector_pressure, integer_pressure = self._pressure() if self.detailed else (0, 0)
        return Survey(
            histogram=tuple(map(tuple, self.histogram)),
            functions=self.functions,
            blocks=self.blocks,
            block_arguments=self.block_arguments,
            loops=len(self.loops),
            max_loop_depth=max((loop.depth + 1 for loop in self.loops), default=0),
            vectorisable=self.vectorisable,
            largest_elements=max((kind.elements for kind, _ in shapes), default=0),
            smallest_elements=min((kind.elements for kind, _ in with_extents), default=0),
            largest_rank=max((len(kind.shape) for kind, _ in shapes), default=0),
            mean_log2_innermost=log2_innermost / total if total else 0.0,
            element_bits=max((kind.bits for kind in kinds if kind.what == "float"), default=0),
            vector_bits=max(
                (kind.bits * kind.elements for kind in kinds if kind.what == "vector"), default=0
            ),
            largest_integer=self.largest_integer,
            largest_float=self.largest_float,
            levels=self._levels() if self.detailed else (),
            vector_pressure=vector_pressure,
            integer_pressure=integer_pressure,
        )

    # ------------------------------------------------------------------ walking

    def _region(self, region: ir.Region, loops: tuple[int, ...], is_function: bool) -> None:
        blocks = list(region.blocks)
        if len(blocks) == 1:
            self._block(blocks[0], loops, is_function)
            return
        spans = self._branch_loops(blocks, loops)
        for number, block in enumerate(blocks):
            around = [loop for loop, (first, last) in spans.items() if first <= number <= last]
            self._block(block, (*loops, *around), is_function and number == 0)
            for loop in around:
                self.loops[loop].end = self.position

    def _branch_loops(self, blocks: list[ir.Block], loops: tuple[int, ...]) -> dict[int, tuple[int, int]]:
        """Loops that backward branches close, outermost first, each with its first and last block."""
        numbers = {block: number for number, block in enumerate(blocks)}
        spans: dict[int, int] = {}
        for number, block in enumerate(blocks):
            operations = block.operations
            if not len(operations):
                continue
            for successor in operations[len(operations) - 1].operation.successors:
                if numbers[successor] <= number:
                    spans[numbers[successor]] = number
        made: dict[int, tuple[int, int]] = {}
        for first, last in sorted(spans.items(), key=lambda span: (span[0], -span[1])):
            outer = sum(1 for start, end in made.values() if start <= first <= end)
            made[self._new_loop(len(loops) + outer, None, False, False, 1.0)] = (first, last)
        return made

    def _block(self, block: ir.Block, loops: tuple[int, ...], is_function: bool) -> None:
        self.blocks += 1
        depth = len(loops)
        row = self.histogram[min(depth, DEPTHS - 1)]
        arguments = list(block.arguments)
        if not is_function:
            self.block_arguments += len(arguments)
        for argument in arguments:
            kind = self._note(argument.type)
            if self.detailed:
                self._bear(argument, kind, depth)
        for view in block.operations:
            operation = view.operation
            name = operation.name
            number = kind_of(name)
            row[number] += 1
            types = operation.results.types
            result = None
            for kind_of_result in types:
                result = self._note(kind_of_result)
            if number == _CONSTANT:
                self._constant(operation, name)
                continue
            if depth and number in _ARITHMETIC and result is not None and result.what == "float":
                self.vectorisable += 1
            operands: list[ir.Value] = []
            if self.detailed:
                self.position += 1
                operands = list(operation.operands)
                self._use(operands, loops)
            if number == _STRUCTURED:
                self._structured(operation, operands, loops)
            elif name in _LOOP_COUNTS:
                self._loop(operation, name, operands, loops)
            else:
                if len(operation.regions):
                    if name in _FUNCTIONS:
                        self.functions += 1
                    for region in operation.regions:
                        self._region(region, loops, name in _FUNCTIONS)
                elif self.detailed:
                    self._plain(operation, name, number, operands, loops, result)
            if self.detailed:
                for value in operation.results:
                    self._bear(value, self._kind(value.type), depth)

    def _note(self, kind: ir.Type) -> _Kind:
        known = self._kind(kind)
        if known.what == "shaped":
            self.shaped[kind] = self.shaped.get(kind, 0) + 1
        return known

    def _kind(self, kind: ir.Type) -> _Kind:
        known = self.known_types.get(kind)
        if known is None:
            known = self.known_types[kind] = _classified(kind)
        return known

    def _constant(self, operation: ir.Operation, name: str) -> None:
        if name != "arith.constant":
            return
        value = operation.attributes["value"]
        if isinstance(value, ir.IntegerAttr):
            number = int(value.value)
            self.largest_integer = max(self.largest_integer, abs(number))
            if self.detailed:
                self.numbers[operation.results[0]] = _Number(number, True, _NOWHERE)
            return
        if isinstance(value, ir.DenseFPElementsAttr) and value.is_splat:
            value = value.get_splat_value()
        if isinstance(value, ir.FloatAttr) and math.isfinite(value.value):
            self.largest_float = max(self.largest_float, abs(value.value))

    # ------------------------------------------------------------------ loops

    def _new_loop(self, depth: int, trips: int | None, exact: bool, structured: bool, outer: float) -> int:
        self.loops.append(_Loop(depth, trips, exact, structured, outer * (1 if trips is None else trips)))
        return len(self.loops) - 1

    def _nest(
        self, counts: Sequence[tuple[int | None, bool]], loops: tuple[int, ...], structured: bool
    ) -> tuple[int, ...]:
        """New loops inside of each other, with their trip counts and whether those are exact."""
        for trips, exact in counts:
            outer = self.loops[loops[-1]].iterations if loops else 1.0
            loops = (*loops, self._new_loop(len(loops), trips, exact, structured, outer))
        return loops

    def _structured(self, operation: ir.Operation, operands: list[ir.Value], loops: tuple[int, ...]) -> None:
        maps = linalg.get_indexing_maps(operation) or []
        inner = loops
        if len(maps):
            affine_maps = [attribute.value for attribute in maps]
            if self.detailed:
                inner = self._structured_loops(affine_maps, operands, loops)
            else:
                inner = self._nest([(None, False)] * affine_maps[0].n_dims, loops, structured=True)
        for region in operation.regions:
            self._region(region, inner, is_function=False)
        for loop in inner[len(loops) :]:
            self.loops[loop].end = self.position
        if not self.detailed:
            return
        for operand in operands:
            self._touch(operand, self._kind(operand.type).bytes, _NOWHERE, loops)
        results = list(operation.results)
        for result, operand in zip(results, operands[len(operands) - len(results) :], strict=False):
            if operand in self.buffers:
                self.buffers[result] = self.buffers[operand]

    def _structured_loops(
        self, maps: list[ir.AffineMap], operands: list[ir.Value], loops: tuple[int, ...]
    ) -> tuple[int, ...]:
        """The loops that a structured operation stands for, from the extents that its operands give them."""
        extents: list[int | None] = [None] * maps[0].n_dims
        dimensions_of: list[list[int]] = []
        for one, operand in zip(maps, operands, strict=False):
            shape = self._kind(operand.type).shape
            used: list[int] = []
            for expression, extent in zip(one.results, shape, strict=False):
                found = _dimensions(expression)
                used += found
                if isinstance(expression, ir.AffineDimExpr) and extent >= 0:
                    extents[found[0]] = extent
            dimensions_of.append(used)
        inner = self._nest([(extent, extent is not None) for extent in extents], loops, structured=True)
        own = inner[len(loops) :]
        for operand, used in zip(operands, dimensions_of, strict=False):
            buffer, kind = self.buffers.get(operand), self._kind(operand.type)
            if buffer is None:
                continue
            for level, loop in enumerate(own):
                size = kind.bits / 8 * math.prod(extents[axis] or 1 for axis in {*used} if axis >= level)
                self._enlarge(loop, buffer.root, min(size, kind.bytes))
        return inner

    def _loop(
        self, operation: ir.Operation, name: str, operands: list[ir.Value], loops: tuple[int, ...]
    ) -> None:
        ranges: list[tuple[_Number, _Number, _Number]] = []
        if self.detailed:
            ranges = self._ranges(operation, name, operands)
        count = _LOOP_COUNTS[name](operation)
        ranges += [(_UNKNOWN, _UNKNOWN, _UNKNOWN)] * (count - len(ranges))
        inner = self._nest([_trips(*one) for one in ranges], loops, structured=False)
        if self.detailed:
            self._enter(operation, name, operands, ranges, inner[len(loops) :])
        for region in operation.regions:
            self._region(region, inner, is_function=False)
        for loop in inner[len(loops) :]:
            self.loops[loop].end = self.position

    def _ranges(
        self, operation: ir.Operation, name: str, operands: list[ir.Value]
    ) -> list[tuple[_Number, _Number, _Number]]:
        """Lower bound, upper bound and step of each loop of a loop operation."""
        attributes = operation.attributes
        if name == "scf.for":
            low, high, step = (self._number(operand) for operand in operands[:3])
            return [(low, high, step)]
        if name == "affine.for":
            lower, upper = attributes["lowerBoundMap"].value, attributes["upperBoundMap"].value
            step = _Number(int(attributes["step"].value), True, _NOWHERE)
            split = lower.n_inputs
            below, above = operands[:split], operands[split : split + upper.n_inputs]
            distance = _constant_distance(lower, upper, below, above)
            low = self._bound(lower, below, max)
            if distance is not None:
                known = (low.value or 0) + distance
                return [(_Number(low.value or 0, True, low.loops), _Number(known, True, low.loops), step)]
            return [(low, self._bound(upper, above, min), step)]
        if name == "scf.parallel":
            sizes = [int(size) for size in attributes["operandSegmentSizes"]]
            numbers = [self._number(operand) for operand in operands[: sum(sizes[:3])]]
            count = sizes[0]
            return list(zip(numbers[:count], numbers[count : 2 * count], numbers[2 * count :], strict=True))
        if name == "scf.forall":
            sizes = [int(size) for size in attributes["operandSegmentSizes"]]
            parts: list[list[_Number]] = []
            start = 0
            for key, size in zip(("staticLowerBound", "staticUpperBound", "staticStep"), sizes, strict=False):
                given = iter(operands[start : start + size])
                start += size
                parts.append(
                    [
                        self._number(next(given))
                        if value == _DYNAMIC
                        else _Number(int(value), True, _NOWHERE)
                        for value in attributes[key]
                    ]
                )
            return list(zip(*parts, strict=True))
        return []

    def _enter(
        self,
        operation: ir.Operation,
        name: str,
        operands: list[ir.Value],
        ranges: list[tuple[_Number, _Number, _Number]],
        own: tuple[int, ...],
    ) -> None:
        """Say what the arguments of a loop's body and its results are."""
        if name == "scf.while":
            return
        arguments = list(operation.regions[0].blocks[0].arguments)
        for argument, loop, (low, high, step) in zip(arguments, own, ranges, strict=False):
            middle = None
            if low.value is not None and high.value is not None and step.value:
                trips = max(-(-(high.value - low.value) // step.value), 0)
                middle = low.value + step.value * (trips // 2)
            self.numbers[argument] = _Number(middle, False, low.loops | {loop})
        carried = arguments[len(own) :]
        results = list(operation.results)
        if not carried or name in ("scf.parallel", "affine.parallel"):
            return
        starts = operands[len(operands) - len(carried) :]
        for argument, start in zip(carried, starts, strict=True):
            if start in self.buffers:
                self.buffers[argument] = self.buffers[start]
        for result, start in zip(results, starts, strict=False):
            if start in self.buffers:
                self.buffers[result] = self.buffers[start]

    # ------------------------------------------------------------------ integers

    def _number(self, value: ir.Value) -> _Number:
        return self.numbers.get(value, _UNKNOWN)

    def _bound(self, one: ir.AffineMap, operands: list[ir.Value], choose: Callable[..., int]) -> _Number:
        numbers = [self._number(operand) for operand in operands]
        loops = _NOWHERE.union(*(number.loops for number in numbers))
        if any(number.value is None for number in numbers):
            return _Number(None, False, loops)
        given = [number.value for number in numbers]
        values = [
            _evaluated(expression, given[: one.n_dims], given[one.n_dims :]) for expression in one.results
        ]
        return _Number(choose(values), all(number.exact for number in numbers), loops)

    def _arithmetic(self, operation: ir.Operation, name: str, operands: list[ir.Value]) -> _Number:
        if name in ("affine.apply", "affine.min", "affine.max"):
            return self._bound(
                operation.attributes["map"].value, operands, max if name == "affine.max" else min
            )
        if name in ("memref.dim", "tensor.dim"):
            shape, axis = self._kind(operands[0].type).shape, self._number(operands[1]).value
            known = axis is not None and axis < len(shape) and shape[axis] >= 0
            return _Number(shape[axis or 0] if known else None, known, _NOWHERE)
        numbers = [self._number(operand) for operand in operands]
        loops = _NOWHERE.union(*(number.loops for number in numbers))
        compute = _INTEGER_ARITHMETIC.get(name)
        values = [number.value for number in numbers]
        if compute is None or None in values:
            return _Number(None, False, loops)
        exact = all(number.exact for number in numbers)
        return _Number(compute(*values), exact, loops)

    # ------------------------------------------------------------------ memory

    def _plain(
        self,
        operation: ir.Operation,
        name: str,
        number: int,
        operands: list[ir.Value],
        loops: tuple[int, ...],
        result: _Kind | None,
    ) -> None:
        """An operation without regions: integers, views and accesses are followed."""
        if number == _INTEGER:
            if result is not None and result.what == "integer":
                self.numbers[operation.results[0]] = self._arithmetic(operation, name, operands)
        elif number == _LOAD:
            if operands and result is not None:
                self._touch(operands[0], result.bytes, self._varying(operands[1:]), loops)
        elif number == _STORE:
            if len(operands) < 2:
                return
            size = self._kind(operands[0].type).bytes
            self._touch(operands[1], size, self._varying(operands[2:]), loops)
            if result is not None and operands[1] in self.buffers:
                self.buffers[operation.results[0]] = self.buffers[operands[1]]
        elif number == _VIEW and operands:
            source = operands[1] if name == "tensor.insert_slice" else operands[0]
            buffer = self.buffers.get(source)
            if buffer is not None and result is not None:
                moved = buffer.loops | self._varying(operands[1:])
                self.buffers[operation.results[0]] = _Buffer(buffer.root, moved)

    def _varying(self, operands: list[ir.Value]) -> frozenset[int]:
        return _NOWHERE.union(*(self._number(operand).loops for operand in operands))

    def _touch(
        self, value: ir.Value, size_bytes: float, varies_with: frozenset[int], loops: tuple[int, ...]
    ) -> None:
        """Count an access of so many bytes for every loop around it."""
        buffer = self.buffers.get(value)
        if buffer is None:
            return
        varies_with = varies_with | buffer.loops
        for loop in reversed(loops):
            if loop in varies_with:
                size_bytes *= self.loops[loop].trips or 1
            self._enlarge(loop, buffer.root, size_bytes)

    def _enlarge(self, loop: int, root: int, size_bytes: float) -> None:
        touched = self.loops[loop].touched
        touched[root] = max(touched.get(root, 0.0), min(size_bytes, self.root_bytes[root]))

    # ------------------------------------------------------------------ registers

    def _bear(self, value: ir.Value, kind: _Kind, depth: int) -> None:
        """A value comes into being."""
        if kind.what == "shaped":
            if value not in self.buffers:
                self.buffers[value] = _Buffer(len(self.root_bytes), _NOWHERE)
                self.root_bytes.append(kind.bytes)
        elif kind.what == "integer":
            self.born[value] = (self.position, 1, False, depth)
        elif kind.what != "other":
            registers = max(-(-kind.bits * kind.elements // REGISTER_BITS), 1)
            self.born[value] = (self.position, registers, True, depth)

    def _use(self, operands: list[ir.Value], loops: tuple[int, ...]) -> None:
        for operand in operands:
            birth = self.born.get(operand)
            if birth is not None:
                # What comes from outside of a loop is needed again at its next iteration.
                self.last[operand] = ~loops[birth[3]] if birth[3] < len(loops) else self.position

    def _pressure(self) -> tuple[int, int]:
        changes = np.zeros((2, self.position + 2), dtype=np.int64)
        for value, last in self.last.items():
            start, registers, of_vectors, _ = self.born[value]
            end = self.loops[~last].end if last < 0 else last
            changes[0 if of_vectors else 1, start] += registers
            changes[0 if of_vectors else 1, max(end, start)] -= registers
        alive = changes.cumsum(axis=1).max(axis=1)
        return int(alive[0]), int(alive[1])

    def _levels(self) -> tuple[LoopLevel, ...]:
        by_depth: list[list[_Loop]] = [[] for _ in range(DEPTHS)]
        for loop in self.loops:
            by_depth[min(loop.depth, DEPTHS - 1)].append(loop)
        return tuple(
            LoopLevel(
                loops=len(loops),
                structured=sum(loop.structured for loop in loops),
                estimated=sum(not loop.exact for loop in loops),
                trips=max((loop.trips or 0 for loop in loops), default=0),
                iterations=max((loop.iterations for loop in loops), default=0.0),
                footprint_bytes=max((sum(loop.touched.values()) for loop in loops), default=0.0),
            )
            for loops in by_depth
        )


def _classified(kind: ir.Type) -> _Kind:
    if isinstance(kind, ir.FloatType):
        return _Kind("float", kind.width)
    if isinstance(kind, ir.IntegerType):
        return _Kind("integer", kind.width)
    if isinstance(kind, ir.IndexType):
        return _Kind("integer", 64)
    if isinstance(kind, ir.VectorType | ir.RankedTensorType | ir.MemRefType):
        element = _classified(kind.element_type)
        shape = tuple(-1 if extent == _DYNAMIC else int(extent) for extent in kind.shape)
        return _Kind("vector" if isinstance(kind, ir.VectorType) else "shaped", element.bits, shape)
    return _Kind("other", 0)


def _trips(low: _Number, high: _Number, step: _Number) -> tuple[int | None, bool]:
    if low.value is None or high.value is None or not step.value:
        return None, False
    return max(-(-(high.value - low.value) // step.value), 0), low.exact and high.exact and step.exact


def _dimensions(expression: ir.AffineExpr) -> list[int]:
    if isinstance(expression, ir.AffineDimExpr):
        return [expression.position]
    if isinstance(expression, ir.AffineBinaryExpr):
        return _dimensions(expression.lhs) + _dimensions(expression.rhs)
    return []


def _evaluated(expression: ir.AffineExpr, dims: Sequence[int | None], symbols: Sequence[int | None]) -> int:
    if isinstance(expression, ir.AffineConstantExpr):
        return int(expression.value)
    if isinstance(expression, ir.AffineDimExpr):
        return dims[expression.position] or 0
    if isinstance(expression, ir.AffineSymbolExpr):
        return symbols[expression.position] or 0
    left = _evaluated(expression.lhs, dims, symbols)
    right = _evaluated(expression.rhs, dims, symbols)
    if isinstance(expression, ir.AffineAddExpr):
        return left + right
    if isinstance(expression, ir.AffineMulExpr):
        return left * right
    if right == 0:
        return 0
    if isinstance(expression, ir.AffineModExpr):
        return left % right
    return left // right if isinstance(expression, ir.AffineFloorDivExpr) else -(-left // right)


def _constant_distance(
    lower: ir.AffineMap, upper: ir.AffineMap, below: list[ir.Value], above: list[ir.Value]
) -> int | None:
    """Upper less lower bound where both move together, as in a loop over one tile; None if they do not."""
    if below != above or not below or len(lower.results) != 1 or len(upper.results) != 1:
        return None
    if (lower.n_dims, lower.n_symbols) != (upper.n_dims, upper.n_symbols):
        return None
    negated = ir.AffineExpr.get_mul(lower.results[0], -1)
    difference = ir.AffineExpr.get_add(upper.results[0], negated)
    difference = ir.AffineExpr.simplify_affine_expr(
        difference, lower.n_dims, lower.n_symbols
    ).maybe_downcast()
    return int(difference.value) if isinstance(difference, ir.AffineConstantExpr) else None


_LOOP_COUNTS: Final[dict[str, Callable[[ir.Operation], int]]] = {
    "affine.for": lambda operation: 1,
    "scf.for": lambda operation: 1,
    "scf.while": lambda operation: 1,
    "scf.parallel": lambda operation: len(operation.regions[0].blocks[0].arguments),
    "scf.forall": lambda operation: len(list(operation.attributes["staticUpperBound"])),
    "affine.parallel": lambda operation: len(operation.regions[0].blocks[0].arguments),
}
_INTEGER_ARITHMETIC: Final[dict[str, Callable[..., int]]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.minsi": min,
    "arith.maxsi": max,
    "arith.divsi": lambda a, b: int(a / b) if b else 0,
    "arith.floordivsi": lambda a, b: a // b if b else 0,
    "arith.ceildivsi": lambda a, b: -(-a // b) if b else 0,
    "arith.remsi": lambda a, b: int(math.fmod(a, b)) if b else 0,
    "arith.index_cast": lambda a: a,
}
