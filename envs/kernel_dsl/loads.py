"""Reading and writing tensors: addresses, masks, padding, gathers, transposed blocks, prefetches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from solgym.envs.kernel_dsl.emission import FunctionWriter, Linear, Symbol, Value
from solgym.envs.kernel_dsl.expression import Affine, Load
from solgym.envs.kernel_dsl.nest import Loop, ProgramNest, StageNest
from solgym.envs.kernel_dsl.regions import Buffer
from solgym.envs.kernel_dsl.rules import transpose_loop

__all__ = ["LoadWriter", "Point"]

CACHE_LINE_BYTES = 64
MAX_PREFETCHES = 64


@dataclass(frozen=True)
class Point:
    """Where in the iteration space code is being written.

    Attributes:
        vals: value of every axis so far, linear in the open loops.
        rem: how far every axis still extends from there.
        vector: the axis along the lanes, if the code is in vectors.
        active: lanes in use.
        unrolled: trip number and trip count of the unrolled loops around.
        following: elements that the unrolled loops around still cover behind the current trip, by axis.
        partial: trip numbers of the loops that keep partial sums.
    """

    vals: dict[str, Linear]
    rem: dict[str, int]
    vector: str | None = None
    active: int = 0
    unrolled: dict[str, tuple[int, int]] = field(default_factory=dict)
    following: dict[str, int] = field(default_factory=dict)
    partial: tuple[int, ...] = ()

    def advanced(self, axis: str, by: Linear, extent: int) -> Point:
        """The point after entering a trip of a loop."""
        vals, rem = dict(self.vals), dict(self.rem)
        vals[axis] = vals[axis].plus(by)
        rem[axis] = extent
        return Point(vals, rem, self.vector, self.active, self.unrolled, self.following, self.partial)

    def unrolled_at(self, loop: Loop, trip: int, trips: int, extent: int) -> Point:
        """The point inside a trip of an unrolled loop that covers ``extent`` elements in all."""
        return replace(
            self,
            unrolled={**self.unrolled, loop.name: (trip, trips)},
            following={**self.following, loop.axis: max(0, extent - (trip + 1) * loop.stride)},
            partial=(*self.partial, trip) if loop.partial else self.partial,
        )

    def index(self, index: Affine) -> Linear:
        """Value of an affine index in lane 0."""
        total = Linear((), index.constant)
        for axis, coefficient in index.terms:
            total = total.plus(self.vals[axis], coefficient)
        return total


class LoadWriter:
    """Writes loads and stores of one function, and knows which loaded values may be shared."""

    def __init__(
        self,
        writer: FunctionWriter,
        program: ProgramNest,
        buffers: dict[str, Buffer],
        pointers: dict[str, str],
    ) -> None:
        self.writer = writer
        self.program = program
        self.buffers = buffers
        self.pointers = pointers
        self.starts: dict[str, list[Linear]] = {}
        self.versions: dict[str, int] = {}
        self.depths: dict[str, int] = {}

    def start_region(self, tensor: str, start: list[Linear]) -> None:
        """From here on, the buffer of ``tensor`` holds the region that begins at ``start``."""
        self.starts[tensor] = start

    def written(self, tensor: str) -> None:
        """The buffer was filled anew here: nothing loaded from it before is valid, or may move above."""
        self.versions[tensor] = self.versions.get(tensor, 0) + 1
        self.depths[tensor] = self.writer.depth

    # ------------------------------------------------------------------------------------------- pieces

    def mask(self, active: int) -> str:
        """A constant mask of the first ``active`` lanes."""
        bits = ", ".join("i1 1" if lane < active else "i1 0" for lane in range(self.writer.lanes))
        return f"<{bits}>"

    def _offset(self, tensor: str, indices: list[Linear]) -> Linear:
        start = self.starts.get(tensor)
        if start is not None:
            indices = [index.plus(base, -1) for index, base in zip(indices, start, strict=True)]
        return self.buffers[tensor].offset(indices)

    def _lane_stride(self, tensor: str, coefficients: list[int]) -> int:
        buffer = self.buffers[tensor]
        return sum(c * buffer.stride(dimension) for dimension, c in enumerate(coefficients) if c)

    def _own_offset(self, nest: StageNest, point: Point) -> tuple[Linear, int]:
        """Offset of the element that a statement defines, and the distance between lanes."""
        offset = self._offset(nest.name, [point.vals[axis.name] for axis in nest.stage.axes])
        coefficients = [int(axis.name == point.vector) for axis in nest.stage.axes]
        return offset, self._lane_stride(nest.name, coefficients)

    def _shared(self, tensor: str, address: Value, text: str) -> tuple[str, int]:
        """A load that may be shared and hoisted as far as the tensor's contents allow."""
        depth = max(address.depth, self.depths.get(tensor, 0))
        return self.writer.place(depth, text, f"{text} #{tensor}.{self.versions.get(tensor, 0)}"), depth

    # -------------------------------------------------------------------------------------------- loads

    def load(self, nest: StageNest, load: Load, point: Point) -> Value:
        """The value of a load at a point; scalar where all lanes read the same element."""
        w = self.writer
        indices = [point.index(index) for index in load.index]
        coefficients = [index.coefficient(point.vector) if point.vector else 0 for index in load.index]
        checks = self._checks(load, indices, coefficients, point.active if point.vector else 1)
        if load.tensor in nest.transposed and point.vector and not checks:
            block = self._transposed(nest, load, indices, coefficients, point)
            if block is not None:
                return block
        lane_stride = self._lane_stride(load.tensor, coefficients)
        if load.tensor in nest.sliding and point.vector and lane_stride == 1:
            return self._sliding(nest, load, indices, point)
        address = w.address(self.pointers[load.tensor], self._offset(load.tensor, indices))
        if not any(coefficients) or not point.vector:
            return self._scalar(load.tensor, address, checks)
        if lane_stride == 1:
            return self._contiguous(load.tensor, address, checks, point.active)
        return self._gathered(load.tensor, address, lane_stride, checks, point.active)

    def _scalar(self, tensor: str, address: Value, checks: list[_Check]) -> Value:
        w = self.writer
        if not checks:
            name, depth = self._shared(tensor, address, f"load {w.scalar}, ptr {address.name}")
            return Value(name, depth)
        inside = self._scalar_condition(checks, 0)
        safe = self._safe_address(tensor, address, checks)
        name, depth = self._shared(tensor, safe, f"load {w.scalar}, ptr {safe.name}")
        return w.select(inside, Value(name, depth), w.constant(0.0))

    def _safe_address(self, tensor: str, address: Value, checks: list[_Check]) -> Value:
        """The address, or the tensor's start where conditions that hold for all lanes say it lies outside.

        A load whose lanes are all masked off is harmless anywhere, but takes hundreds of cycles where no
        memory is mapped.
        """
        w = self.writer
        steady = [check for check in checks if not check.lane_coefficient]
        if not steady:
            return address
        inside = self._scalar_condition(steady, 0)
        depth = max(address.depth, inside.depth)
        text = f"select i1 {inside.name}, ptr {address.name}, ptr {self.pointers[tensor]}"
        return Value(w.place(depth, text), depth)

    def _contiguous(self, tensor: str, address: Value, checks: list[_Check], active: int) -> Value:
        w = self.writer
        kind = w.vector_type
        if active == w.lanes and not checks:
            text = f"load {kind}, ptr {address.name}, align {w.element_bytes}"
            name, depth = self._shared(tensor, address, text)
            return Value(name, depth, True)
        mask = Value(self.mask(active), 0, True)
        if checks:
            address = self._safe_address(tensor, address, checks)
            inside = self._vector_condition(checks)
            if active < w.lanes:
                depth, both = inside.depth, f"and <{w.lanes} x i1> {inside.name}, {mask.name}"
                inside = Value(w.place(depth, both), depth, True)
            mask = inside
        depth = max(address.depth, mask.depth)
        text = self._masked_load(kind, address.name, mask.name)
        name, depth = self._shared(tensor, Value(address.name, depth), text)
        return Value(name, depth, True)

    def _masked_load(self, kind: str, pointer: str, mask: str) -> str:
        w = self.writer
        return (
            f"call {kind} @llvm.masked.load.v{w.lanes}{w.dtype}.p0("
            f"ptr align {w.element_bytes} {pointer}, <{w.lanes} x i1> {mask}, {kind} zeroinitializer)"
        )

    def _gathered(self, tensor: str, address: Value, stride: int, checks: list[_Check], active: int) -> Value:
        """One scalar load per lane; lanes past the end stay zero."""
        w = self.writer
        vector, depth = "zeroinitializer", 0
        for lane in range(active):
            pointer = address.name
            if lane:
                step = lane * stride * w.element_bytes
                pointer = w.place(address.depth, f"getelementptr i8, ptr {address.name}, i64 {step}")
            element = self._scalar(
                tensor, Value(pointer, address.depth), [check.at_lane(lane) for check in checks]
            )
            depth = max(depth, element.depth)
            text = f"insertelement {w.vector_type} {vector}, {w.scalar} {element.name}, i64 {lane}"
            vector = w.place(depth, text)
        return Value(vector, depth, True)

    # ------------------------------------------------------------------------------------------ padding

    def _checks(
        self, load: Load, indices: list[Linear], coefficients: list[int], active: int
    ) -> list[_Check]:
        """The dimensions in which a padded load may leave its tensor, by the bounds of the open loops."""
        if not load.padded:
            return []
        checks = []
        for index, coefficient, extent in zip(
            indices, coefficients, self.program.shape(load.tensor), strict=True
        ):
            low, high = index.bounds()
            if low < 0 or high + coefficient * (active - 1) >= extent:
                checks.append(_Check(index, coefficient, extent))
        return checks

    def _scalar_condition(self, checks: list[_Check], lane: int) -> Value:
        w = self.writer
        total: Value | None = None
        for check in checks:
            index = w.integer(check.index.shifted(lane * check.lane_coefficient))
            inside = Value(w.place(index.depth, f"icmp ult i64 {index.name}, {check.extent}"), index.depth)
            if total is None:
                total = inside
            else:
                depth = max(total.depth, inside.depth)
                total = Value(w.place(depth, f"and i1 {total.name}, {inside.name}"), depth)
        assert total is not None
        return total

    def _vector_condition(self, checks: list[_Check]) -> Value:
        """Which lanes lie inside, from one i1 per lane."""
        w = self.writer
        kind = f"<{w.lanes} x i1>"
        steady = [check for check in checks if not check.lane_coefficient]
        moving = [check for check in checks if check.lane_coefficient]
        total: Value | None = None
        if steady:
            one = self._scalar_condition(steady, 0)
            first = w.place(one.depth, f"insertelement {kind} poison, i1 {one.name}, i64 0")
            text = f"shufflevector {kind} {first}, {kind} poison, <{w.lanes} x i32> zeroinitializer"
            total = Value(w.place(one.depth, text), one.depth, True)
        for check in moving:
            index = w.integer(check.index)
            wide = f"<{w.lanes} x i64>"
            first = w.place(index.depth, f"insertelement {wide} poison, i64 {index.name}, i64 0")
            text = f"shufflevector {wide} {first}, {wide} poison, <{w.lanes} x i32> zeroinitializer"
            base = w.place(index.depth, text)
            steps = ", ".join(f"i64 {lane * check.lane_coefficient}" for lane in range(w.lanes))
            lanes = w.place(index.depth, f"add {wide} {base}, <{steps}>")
            inside = w.place(index.depth, f"icmp ult {wide} {lanes}, splat (i64 {check.extent})")
            if total is None:
                total = Value(inside, index.depth, True)
            else:
                depth = max(total.depth, index.depth)
                total = Value(w.place(depth, f"and {kind} {total.name}, {inside}"), depth, True)
        assert total is not None
        return total

    # ------------------------------------------------------------------------------- transposed blocks

    def _transposed(
        self, nest: StageNest, load: Load, indices: list[Linear], coefficients: list[int], point: Point
    ) -> Value | None:
        """One column of a square block: its rows are loaded along the tensor's rows, then transposed."""
        w = self.writer
        loop = transpose_loop(self.program, nest, load.tensor)
        if loop is None:
            return None
        trip, trips = point.unrolled[loop.name]
        corner = self._offset(load.tensor, [*indices[:-1], indices[-1].shifted(-trip)])
        row_stride = self._lane_stride(load.tensor, coefficients)
        address = w.address(self.pointers[load.tensor], corner)
        depth = max(address.depth, self.depths.get(load.tensor, 0))
        # Stages that share a function may cut different blocks with the same corner.
        shape = f"{point.active} x {trips} of {w.vector_type} by {row_stride}"
        key = f"block {address.name} {shape} #{load.tensor}.{self.versions.get(load.tensor, 0)}"
        known = w.frames[depth].known
        if f"{key}.0" not in known:
            rows = []
            for row in range(w.lanes):
                if row >= point.active:
                    rows.append("zeroinitializer")
                    continue
                pointer = w.address(self.pointers[load.tensor], corner.shifted(row * row_stride))
                rows.append(self._contiguous(load.tensor, pointer, [], trips).name)
            for column, name in enumerate(self._transpose_rows(rows, depth)):
                known[f"{key}.{column}"] = name
        return Value(known[f"{key}.{trip}"], depth, True)

    def _transpose_rows(self, rows: list[str], depth: int) -> list[str]:
        """Columns of a square block from its rows, by interleaving ever wider pieces.

        Pieces are interleaved within 128-bit lanes first and the lanes themselves after, which is what the
        unpack and lane-shuffle instructions of x86 do in one step each. The contents of every register are
        followed, so any lane count works.
        """
        w = self.writer
        lanes, kind = w.lanes, w.vector_type
        per_lane = max(1, min(lanes, 16 // w.element_bytes))
        registers = [(name, [(row, column) for column in range(lanes)]) for row, name in enumerate(rows)]

        def shuffle(
            a: tuple[str, list[tuple[int, int]]], b: tuple[str, list[tuple[int, int]]], pick: list[int]
        ) -> None:
            indices = ", ".join(f"i32 {p}" for p in pick)
            text = f"shufflevector {kind} {a[0]}, {kind} {b[0]}, <{lanes} x i32> <{indices}>"
            both = a[1] + b[1]
            produced.append((w.place(depth, text), [both[p] for p in pick]))

        width = 1
        while width < per_lane:
            produced: list[tuple[str, list[tuple[int, int]]]] = []
            for pair in range(0, lanes, 2 * width):
                for k in range(width):
                    a, b = registers[pair + k], registers[pair + k + width]
                    for half in range(2):
                        pick = []
                        for lane in range(0, lanes, per_lane):
                            for piece in range(per_lane // (2 * width)):
                                source = lane + half * (per_lane // 2) + piece * width
                                pick += [source + e for e in range(width)]
                                pick += [lanes + source + e for e in range(width)]
                        shuffle(a, b, pick)
            registers = _ordered(produced, width)
            width *= 2
        while width < lanes:
            produced = []
            blocks = lanes // per_lane
            for pair in range(0, lanes, 2 * width):
                for k in range(width):
                    a, b = registers[pair + k], registers[pair + k + width]
                    for half in range(2):
                        chosen = [2 * block + half for block in range(blocks // 2)]
                        pick = [block * per_lane + e for block in chosen for e in range(per_lane)]
                        pick += [lanes + p for p in pick]
                        shuffle(a, b, pick)
            registers = _ordered(produced, width)
            width *= 2
        return self._in_row_order(registers, depth)

    def _in_row_order(self, registers: list[tuple[str, list[tuple[int, int]]]], depth: int) -> list[str]:
        """Sort the columns, and their lanes by row where the interleaving left them permuted."""
        w = self.writer
        columns: dict[int, str] = {}
        for name, contents in registers:
            column = contents[0][1]
            rows = [row for row, _ in contents]
            if rows != sorted(rows):
                order = ", ".join(f"i32 {rows.index(row)}" for row in range(w.lanes))
                kind, indices = w.vector_type, f"<{w.lanes} x i32> <{order}>"
                text = f"shufflevector {kind} {name}, {kind} poison, {indices}"
                name = w.place(depth, text)
            columns[column] = name
        return [columns[column] for column in range(w.lanes)]

    def _sliding(self, nest: StageNest, load: Load, indices: list[Linear], point: Point) -> Value:
        """A vector cut out of two neighbouring ones, which all loads of the same row share.

        The row's leftmost load says where the two begin. What is read is what the row's loads need at this
        point and at those of the unrolled loops behind it, and no element more.
        """
        w = self.writer
        places = [other.index[-1].constant for other in nest.stage.loads_of(load.tensor)]
        shift = load.index[-1].constant - min(places)
        assert point.vector is not None
        needed = point.active + point.following.get(point.vector, 0) + max(places) - min(places)
        row = self._offset(load.tensor, [*indices[:-1], indices[-1].shifted(-shift)])
        first = self._contiguous(
            load.tensor, w.address(self.pointers[load.tensor], row), [], min(w.lanes, needed)
        )
        if shift == 0 or needed <= w.lanes:
            second = first
        else:
            behind = w.address(self.pointers[load.tensor], row.shifted(w.lanes))
            second = self._contiguous(load.tensor, behind, [], min(w.lanes, needed - w.lanes))
        if shift == 0:
            return first
        depth = max(first.depth, second.depth)
        lanes = ", ".join(f"i32 {shift + lane}" for lane in range(w.lanes))
        kind, indices_type = w.vector_type, f"<{w.lanes} x i32> <{lanes}>"
        text = f"shufflevector {kind} {first.name}, {kind} {second.name}, {indices_type}"
        return Value(w.place(depth, text), depth, True)

    # ------------------------------------------------------------------------------------------- stores

    def own(self, nest: StageNest, point: Point, scalar: bool) -> str:
        """The value that the statement's own element has now; never shared, as it is about to change."""
        w = self.writer
        offset, stride = self._own_offset(nest, point)
        address = w.address(self.pointers[nest.name], offset)
        if scalar or point.vector is None:
            return w.define(f"load {w.scalar}, ptr {address.name}")
        if stride == 1:
            if point.active == w.lanes:
                return w.define(f"load {w.vector_type}, ptr {address.name}, align {w.element_bytes}")
            return w.define(self._masked_load(w.vector_type, address.name, self.mask(point.active)))
        vector = "zeroinitializer"
        for lane in range(point.active):
            pointer = w.address(self.pointers[nest.name], offset.shifted(lane * stride)).name
            element = w.define(f"load {w.scalar}, ptr {pointer}")
            vector = w.define(f"insertelement {w.vector_type} {vector}, {w.scalar} {element}, i64 {lane}")
        return vector

    def store(self, nest: StageNest, point: Point, value: Value) -> bool:
        """Store a statement's value; True if the store bypasses the caches."""
        w = self.writer
        offset, stride = self._own_offset(nest, point)
        address = w.address(self.pointers[nest.name], offset)
        if point.vector is None:
            w.raw(f"store {w.scalar} {value.name}, ptr {address.name}")
            return False
        kind = w.vector_type
        if stride == 1:
            if point.active < w.lanes:
                w.raw(
                    f"call void @llvm.masked.store.v{w.lanes}{w.dtype}.p0({kind} {value.name}, "
                    f"ptr align {w.element_bytes} {address.name}, <{w.lanes} x i1> {self.mask(point.active)})"
                )
                return False
            nbytes = w.lanes * w.element_bytes
            if nest.stream and nbytes >= 16 and self._alignment(offset) % nbytes == 0:
                w.raw(f"store {kind} {value.name}, ptr {address.name}, align {nbytes}, !nontemporal !0")
                return True
            w.raw(f"store {kind} {value.name}, ptr {address.name}, align {w.element_bytes}")
            return False
        for lane in range(point.active):
            pointer = w.address(self.pointers[nest.name], offset.shifted(lane * stride)).name
            element = w.define(f"extractelement {kind} {value.name}, i64 {lane}")
            w.raw(f"store {w.scalar} {element}, ptr {pointer}")
        return False

    def _alignment(self, offset: Linear) -> int:
        """The largest power of two, at most 64, that divides an offset in bytes at any loop counters."""
        divisor = (
            math.gcd(offset.constant, *(c * symbol.stride for symbol, c in offset.terms))
            * self.writer.element_bytes
        )
        return math.gcd(divisor, CACHE_LINE_BYTES)

    def prefetch(self, nest: StageNest, tensor: str, loop: Loop, distance: int, point: Point) -> None:
        """Touch the cache lines that the body of ``loop`` reads of a tensor ``distance`` trips later."""
        w = self.writer
        starts: dict[tuple[tuple[Symbol, int], ...], set[int]] = {}
        for load in nest.stage.loads_of(tensor):
            ahead = point.advanced(loop.axis, Linear((), distance * loop.stride), point.rem[loop.axis])
            start = self._offset(tensor, [ahead.index(index) for index in load.index])
            offsets = {start.constant}
            for dimension, index in enumerate(load.index):
                extent = 1 + sum(c * (point.rem[a] - 1) for a, c in index.terms)
                stride = self.buffers[tensor].stride(dimension)
                line = max(1, CACHE_LINE_BYTES // (stride * w.element_bytes))
                steps = range(0, extent, line)
                if len(offsets) * len(steps) > MAX_PREFETCHES:
                    break
                offsets = {offset + step * stride for offset in offsets for step in steps}
            starts.setdefault(start.terms, set()).update(offsets)
        for terms, offsets in starts.items():
            last = -CACHE_LINE_BYTES
            for offset in sorted(offsets):
                if (offset - last) * w.element_bytes >= CACHE_LINE_BYTES:
                    pointer = w.address(self.pointers[tensor], Linear(terms, offset)).name
                    w.raw(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")
                    last = offset


@dataclass(frozen=True)
class _Check:
    """``0 <= index + lane * lane_coefficient < extent`` has to be tested at run time."""

    index: Linear
    lane_coefficient: int
    extent: int

    def at_lane(self, lane: int) -> _Check:
        """The same test for one lane."""
        return _Check(self.index.shifted(lane * self.lane_coefficient), 0, self.extent)


def _ordered(
    produced: list[tuple[str, list[tuple[int, int]]]], width: int
) -> list[tuple[str, list[tuple[int, int]]]]:
    """Arrange registers so that the next step pairs those that hold the same columns of further rows."""
    return sorted(produced, key=lambda register: (register[1][0][0] // (2 * width), register[1][0][1]))
