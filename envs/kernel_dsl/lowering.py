"""From loop nest to LLVM IR text.

Each stage that is computed on its own becomes one function; stages attached to it are written into its loops.
Every extent is known when code is written: a loop whose stride does not divide what it covers is followed
by one peeled trip for the remainder, and vector tails use constant masks. So no guard, ``min`` or bounds
check is left at run time, except where zero padding asks for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from solgym.envs.kernel_dsl.emission import FunctionWriter, Linear, LineCounter, Symbol, Value, float_literal
from solgym.envs.kernel_dsl.expression import Binary, Const, Expr, Load, Unary
from solgym.envs.kernel_dsl.loads import LoadWriter, Point
from solgym.envs.kernel_dsl.math_functions import UNARY_FUNCTIONS
from solgym.envs.kernel_dsl.nest import LoopKind, ProgramNest, StageNest
from solgym.envs.kernel_dsl.regions import Buffer, Range, largest_extents, region_of
from solgym.errors import IllegalSchedule
from solgym.hardware.target import LoweredKernel, TargetSpec

__all__ = ["lower"]

MAX_WORKSPACE_BYTES = 1 << 28
ENTRY = "kernel"
_IDENTITY = {"sum": 0.0, "max": float("-inf")}


def lower(program: ProgramNest, target: TargetSpec) -> LoweredKernel:
    """Write a program for a target.

    Raises:
        IllegalSchedule: the code or the scratch memory would become too large.
    """
    return _Program(program, target).lower()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


class _Program:
    """Places buffers and writes the functions of a program."""

    def __init__(self, program: ProgramNest, target: TargetSpec) -> None:
        self.program = program
        self.target = target
        self.dtype = program.computation.dtype
        self.counter = LineCounter()
        self.element_bytes = {"f32": 4, "f64": 8}[self.dtype]
        self.sizes = largest_extents(program)
        self.buffers: dict[str, Buffer] = {t.name: Buffer(t.shape, None) for t in program.computation.inputs}
        self.arguments = [t.name for t in program.computation.inputs] + list(program.computation.outputs)
        self.shared: dict[str, int] = {}
        self.private: dict[str, int] = {}
        self.shared_bytes = self.private_bytes = 0
        for nest in program.stages:
            buffer = Buffer(self.sizes[nest.name], nest.layout)
            self.buffers[nest.name] = buffer
            if nest.name in self.arguments:
                continue
            nbytes = _aligned(buffer.elements * self.element_bytes)
            if nest.attachment is None:
                self.shared[nest.name] = self.shared_bytes
                self.shared_bytes += nbytes
            else:
                self.private[nest.name] = self.private_bytes
                self.private_bytes += nbytes
        total = self.shared_bytes + self.private_bytes * target.threads
        if total > MAX_WORKSPACE_BYTES:
            raise IllegalSchedule(
                f"the schedule needs {total >> 20} MiB of scratch memory, more than "
                f"{MAX_WORKSPACE_BYTES >> 20}; pack smaller blocks"
            )

    def lower(self) -> LoweredKernel:
        functions: list[str] = []
        calls: list[str] = []
        for number, nest in enumerate(n for n in self.program.stages if n.attachment is None):
            parallel = self.target.threads > 1 and nest.loops[0:1] and nest.loops[0].kind is LoopKind.PARALLEL
            text, trips = _StageFunction(self, nest, bool(parallel)).write(f"stage{number}")
            functions.append(text)
            if trips is None:
                functions.append(self._trampoline(number, parallel=False))
                calls.append(f"  call void @call{number}(ptr %context, i64 0, i64 0, i64 0)")
            else:
                functions.append(self._trampoline(number, parallel=True))
                arguments = f"ptr @call{number}, ptr %context, i64 {trips}, i64 {self.target.threads}"
                calls.append(f"  call void %parallel_for({arguments})")
        runtime = (
            "  %parallel_for = load ptr, ptr %runtime\n" if any("%parallel_for" in c for c in calls) else ""
        )
        entry = (
            f"define void @{ENTRY}(ptr %buffers, ptr %workspace, ptr %runtime) {{\n"
            "  %context = alloca [2 x ptr]\n"
            "  store ptr %buffers, ptr %context\n"
            "  %second = getelementptr i8, ptr %context, i64 8\n"
            "  store ptr %workspace, ptr %second\n" + runtime + "\n".join(calls) + "\n  ret void\n}\n"
        )
        ir = "\n".join([*functions, entry, "!0 = !{i32 1}\n"])
        return LoweredKernel(ir, ENTRY, self.shared_bytes, self.private_bytes, self.target.threads)

    def _trampoline(self, number: int, parallel: bool) -> str:
        """Unpacks the pointers of all buffers and calls a stage's function with them."""
        lines = [f"define internal void @call{number}(ptr %context, i64 %begin, i64 %end, i64 %thread) {{"]
        lines += [
            "  %buffers = load ptr, ptr %context",
            "  %second = getelementptr i8, ptr %context, i64 8",
            "  %shared = load ptr, ptr %second",
            f"  %mine = mul i64 %thread, {self.private_bytes}",
            f"  %start = add i64 %mine, {self.shared_bytes}",
            "  %private = getelementptr i8, ptr %shared, i64 %start",
        ]
        names = []
        for index, _ in enumerate(self.arguments):
            lines.append(f"  %a{index} = getelementptr ptr, ptr %buffers, i64 {index}")
            lines.append(f"  %b{index} = load ptr, ptr %a{index}")
            names.append(f"ptr %b{index}")
        for index, (base, offset) in enumerate(self._scratch()):
            lines.append(f"  %s{index} = getelementptr i8, ptr %{base}, i64 {offset}")
            names.append(f"ptr %s{index}")
        extra = ", i64 %begin, i64 %end" if parallel else ""
        lines.append(f"  call void @stage{number}({', '.join(names)}{extra})")
        return "\n".join([*lines, "  ret void", "}"])

    def _scratch(self) -> Iterator[tuple[str, int]]:
        for offset in self.shared.values():
            yield "shared", offset
        for offset in self.private.values():
            yield "private", offset

    def pointers(self) -> dict[str, str]:
        """The parameter of a stage's function that points to each tensor."""
        names = self.arguments + list(self.shared) + list(self.private)
        return {name: f"%p{index}" for index, name in enumerate(names)}


@dataclass
class _Accumulators:
    """Stack slots that hold one register tile: by spatial position and partial sum."""

    slots: dict[tuple[tuple[int, ...], tuple[int, ...]], str]


class _StageFunction:
    """Writes one stage and all that is attached to it."""

    def __init__(self, owner: _Program, nest: StageNest, parallel: bool) -> None:
        self.owner = owner
        self.program = owner.program
        self.nest = nest
        self.parallel = parallel
        self.writer = FunctionWriter(owner.dtype, owner.counter)
        self.pointers = owner.pointers()
        self.loads = LoadWriter(self.writer, self.program, owner.buffers, self.pointers)
        self.accumulators: _Accumulators | None = None
        self.streamed = False

    def write(self, name: str) -> tuple[str, int | None]:
        """The function's text, and the number of parallel trips if it is to be called in chunks."""
        vals = {axis.name: Linear() for axis in self.nest.stage.all_axes}
        rem = {axis.name: axis.extent for axis in self.nest.stage.all_axes}
        trips: int | None = None
        self._begin(self.nest, vals)
        point = Point(vals, rem)
        if self.parallel:
            trips = self._parallel(point)
        else:
            self._loops(self.nest, 0, point)
        if self.streamed:  # such stores are not ordered with others before a fence
            self.writer.raw("fence seq_cst")
        parameters = [f"ptr noalias nonnull align 64 {p}" for p in self.pointers.values()]
        if trips is not None:
            parameters += ["i64 %begin", "i64 %end"]
        bits = max(self.owner.target.vector_bits, 128)
        text = (
            f"define internal void @{name}({', '.join(parameters)}) "
            f'noinline "prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}" {{\n'
            f"entry:\n{self.writer.text()}\n  ret void\n}}\n"
        )
        return text, trips

    # --------------------------------------------------------------------------------------------- loops

    def _begin(self, nest: StageNest, vals: dict[str, Linear]) -> None:
        """Start a stage: where its region begins, and the vector width of its values."""
        self.loads.start_region(nest.name, [vals[axis.name] for axis in nest.stage.axes])
        vector = nest.vector_loop
        self.writer.lanes = vector.lanes if vector else 0

    def _parallel(self, point: Point) -> int:
        loop = self.nest.loops[0]
        w = self.writer

        def chunk() -> None:
            with w.loop("%begin", "%end", 1, loop.trips - 1) as trip:
                self._dispatch(self.nest, 0, point, trip)

        w.branch(w.define("icmp ult i64 %begin, %end"), chunk, lambda: None)
        return loop.trips

    def _loops(self, nest: StageNest, position: int, point: Point) -> None:
        """Write the loops from ``position`` on, and the statement inside them."""
        if position == len(nest.loops):
            self._statement(nest, point)
            return
        loop = nest.loops[position]
        if position == nest.accumulate_position and self.accumulators is None:
            self._accumulate(nest, position, point)
            return
        in_memory = nest.stage.combiner is not None and nest.accumulate is None and nest.is_reduction(loop)
        if in_memory and not any(nest.is_reduction(outer) for outer in nest.loops[:position]):
            self._initialise(nest, position, point)
        self._loop(nest, position, point)

    def _loop(self, nest: StageNest, position: int, point: Point) -> None:
        loop = nest.loops[position]
        w = self.writer
        if loop.kind is LoopKind.VECTOR:
            active = point.rem[loop.axis]
            self._loops(nest, position + 1, replace(point, vector=loop.axis, active=active))
            return
        if loop.fused:
            trips = 1
            for part in loop.parts:
                trips *= -(-point.rem[part.axis] // part.stride)
            if trips == 1:  # many loops of one trip, merged by LLVM, take it seconds
                for part in loop.parts:
                    point = point.advanced(part.axis, Linear(), point.rem[part.axis])
                self._body(nest, position, point)
                return
            with w.loop("0", str(trips), 1, trips - 1) as trip:
                self._dispatch(nest, position, point, trip)
            return
        axis, stride, extent = loop.axis, loop.stride, point.rem[loop.axis]
        full, tail = divmod(extent, stride)
        if loop.kind is LoopKind.UNROLLED:
            trips = full + (tail > 0)
            for number in range(trips):
                inner = point.advanced(axis, Linear((), number * stride), stride if number < full else tail)
                inner = inner.unrolled_at(loop, number, trips, extent)
                self._loops(nest, position + 1, inner)
            return
        if full == 1:
            self._body(nest, position, point.advanced(axis, Linear(), stride))
        elif full:
            with w.loop("0", str(full * stride), stride, (full - 1) * stride) as counter:
                self._body(nest, position, point.advanced(axis, Linear(((counter, 1),)), stride))
        if tail:
            self._body(nest, position, point.advanced(axis, Linear((), full * stride), tail))

    def _dispatch(self, nest: StageNest, position: int, point: Point, trip: Symbol) -> None:
        """One trip of a loop whose number is known at run time only: choose between full and peeled parts."""
        w = self.writer
        loop = nest.loops[position]
        numbers: list[str] = []
        rest = trip.name
        counts = [-(-point.rem[part.axis] // part.stride) for part in loop.parts]
        for count in reversed(counts[1:]):
            if count == 1:
                numbers.insert(0, "")
                continue
            numbers.insert(0, w.define(f"urem i64 {rest}, {count}"))
            rest = w.define(f"udiv i64 {rest}, {count}")
        numbers.insert(0, rest)

        def choose(part_number: int, inner: Point) -> None:
            if part_number == len(loop.parts):
                self._body(nest, position, inner)
                return
            part = loop.parts[part_number]
            if counts[part_number] == 1:
                choose(part_number + 1, inner.advanced(part.axis, Linear(), point.rem[part.axis]))
                return
            full, tail = divmod(point.rem[part.axis], part.stride)
            number = numbers[part_number]

            def whole() -> None:
                scaled = number if part.stride == 1 else w.define(f"mul i64 {number}, {part.stride}")
                counter = Symbol(scaled, w.depth, part.stride, (full - 1) * part.stride)
                choose(part_number + 1, inner.advanced(part.axis, Linear(((counter, 1),)), part.stride))

            def remainder() -> None:
                choose(part_number + 1, inner.advanced(part.axis, Linear((), full * part.stride), tail))

            if not tail:
                whole()
            else:
                w.branch(w.define(f"icmp ult i64 {number}, {full}"), whole, remainder)

        choose(0, point)

    def _body(self, nest: StageNest, position: int, point: Point) -> None:
        """One trip of a serial or parallel loop: attached stages, prefetches, then the inner loops."""
        loop = nest.loops[position]
        for inner in self.program.attached.get((nest.name, loop.name), ()):
            self._attached(inner, nest, point)
        for touched in nest.prefetches:
            if touched.loop == loop.name:
                self.loads.prefetch(nest, touched.tensor, loop, touched.distance, point)
        self._loops(nest, position + 1, point)

    def _attached(self, inner: StageNest, host: StageNest, point: Point) -> None:
        at_loop = {axis: Range(point.vals[axis], point.rem[axis]) for axis in host.axes}
        region = region_of(self.program, inner, host, at_loop)
        vals = {axis.name: r.start for axis, r in zip(inner.stage.axes, region, strict=True)}
        rem = {axis.name: r.extent for axis, r in zip(inner.stage.axes, region, strict=True)}
        for axis in inner.stage.reduction_axes:
            vals[axis.name], rem[axis.name] = Linear(), axis.extent
        outer_lanes, outer_accumulators = self.writer.lanes, self.accumulators
        self.accumulators = None
        self._begin(inner, vals)
        self._loops(inner, 0, Point(vals, rem))
        self.loads.written(inner.name)
        self.writer.lanes, self.accumulators = outer_lanes, outer_accumulators

    # ---------------------------------------------------------------------------------------- reductions

    def _initialise(self, nest: StageNest, position: int, point: Point) -> None:
        """Store the neutral element wherever the loops from ``position`` on will accumulate in memory."""
        spatial = tuple(loop for loop in nest.loops[position:] if not nest.is_reduction(loop))
        plain = tuple(
            loop._replace(kind=LoopKind.SERIAL) if loop.kind is LoopKind.UNROLLED else loop
            for loop in spatial
        )
        identity = Const(_IDENTITY[nest.stage.combiner or "sum"])
        filler = replace(
            nest,
            stage=replace(nest.stage, combiner=None, expr=identity),
            loops=(*nest.loops[:position], *plain),
            prefetches=(),
        )
        attached_elsewhere = self.program
        self.program = replace(attached_elsewhere, stages=())
        self._loops(filler, position, point)
        self.program = attached_elsewhere

    def _accumulate(self, nest: StageNest, position: int, point: Point) -> None:
        """Hold a register tile around the loops from ``position`` on."""
        w = self.writer
        combiner = nest.stage.combiner or "sum"
        vector = nest.vector_loop
        kind = w.type_of(vector is not None)
        identity = w.constant(_IDENTITY[combiner])
        initial = w.splat(identity).name if vector else identity.name
        tiles = list(_tiles(nest, position, point))
        partial_loops = [loop for loop in nest.loops[position:] if loop.partial]
        partials = list(product(*(range(loop.trips) for loop in partial_loops)))
        slots = {(_key(nest, tile), partial): w.alloca(kind) for tile in tiles for partial in partials}
        lanes_are_partial = vector is not None and nest.is_reduction(vector)
        first = self._first(nest, point)

        def fill(from_memory: bool) -> None:
            for tile in tiles:
                for number, partial in enumerate(partials):
                    value = initial
                    if from_memory and number == 0:
                        value = self.loads.own(nest, tile, scalar=lanes_are_partial)
                        if lanes_are_partial:
                            value = w.define(f"insertelement {kind} {initial}, {w.scalar} {value}, i64 0")
                    w.raw(f"store {kind} {value}, ptr {slots[_key(nest, tile), partial]}")

        if first is None:
            fill(from_memory=True)
        elif first == "":
            fill(from_memory=False)
        else:
            w.branch(first, lambda: fill(False), lambda: fill(True))
        self.accumulators = _Accumulators(slots)
        self._loop(nest, position, point)
        self.accumulators = None
        for tile in tiles:
            values = []
            for partial in partials:
                values.append(w.define(f"load {kind}, ptr {slots[_key(nest, tile), partial]}"))
            while len(values) > 1:
                paired = [
                    self._combine(combiner, kind, a, b)
                    for a, b in zip(values[::2], values[1::2], strict=False)
                ]
                values = paired + values[len(paired) * 2 :]
            self._finish(nest, tile, values[0], lanes_are_partial)

    def _finish(self, nest: StageNest, tile: Point, value: str, across_lanes: bool) -> None:
        """Store one finished accumulator, after combining its lanes where they hold partial results."""
        w = self.writer
        if not across_lanes:
            self._store(nest, tile, Value(value, w.depth, tile.vector is not None))
            return
        suffix = f"v{w.lanes}{w.dtype}"
        if nest.stage.combiner == "sum":
            zero = float_literal(-0.0, w.dtype)
            arguments = f"{w.scalar} {zero}, {w.vector_type} {value}"
            call = f"call reassoc {w.scalar} @llvm.vector.reduce.fadd.{suffix}({arguments})"
        else:
            call = f"call nnan {w.scalar} @llvm.vector.reduce.fmax.{suffix}({w.vector_type} {value})"
        self._store(nest, replace(tile, vector=None), Value(w.define(call), w.depth))

    def _first(self, nest: StageNest, point: Point) -> str | None:
        """Whether no outer reduction loop has advanced: "" always, None never, else an i1."""
        conditions = []
        for axis in nest.stage.reduction_axes:
            value = point.vals[axis.name]
            if value.constant:
                return None
            conditions += [f"icmp eq i64 {symbol.name}, 0" for symbol, _ in value.terms]
        names = [self.writer.define(text) for text in conditions]
        while len(names) > 1:
            names = [self.writer.define(f"and i1 {names[0]}, {names[1]}"), *names[2:]]
        return names[0] if names else ""

    def _combine(self, combiner: str, kind: str, left: str, right: str) -> str:
        if combiner == "sum":
            return self.writer.define(f"fadd contract {kind} {left}, {right}")
        condition = self.writer.define(f"fcmp ogt {kind} {left}, {right}")
        mask = kind.replace(self.writer.scalar, "i1") if kind.startswith("<") else "i1"
        return self.writer.define(f"select {mask} {condition}, {kind} {left}, {kind} {right}")

    # ---------------------------------------------------------------------------------------- statements

    def _statement(self, nest: StageNest, point: Point) -> None:
        w = self.writer
        stage = nest.stage
        if stage.combiner is None:
            self._store(nest, point, self._value(nest, stage.expr, point))
            return
        across_lanes = nest.vector_loop is not None and nest.is_reduction(nest.vector_loop)
        kind = w.type_of(nest.vector_loop is not None)
        slot = ""
        if self.accumulators is not None:
            slot = self.accumulators.slots[_key(nest, point), point.partial]
            before = w.define(f"load {kind}, ptr {slot}")
        else:
            before = self.loads.own(nest, point, scalar=nest.vector_loop is None)
        old = Value(before, w.depth, nest.vector_loop is not None)
        if stage.combiner == "sum" and isinstance(stage.expr, Binary) and stage.expr.operator == "mul":
            left, right = (self._value(nest, side, point) for side in (stage.expr.left, stage.expr.right))
            new = w.fma(left, right, old)
        else:
            value = self._value(nest, stage.expr, point)
            new = w.arithmetic("fadd", old, value) if stage.combiner == "sum" else w.larger(value, old)
        if across_lanes and point.active < w.lanes:
            mask = Value(self.loads.mask(point.active), 0, True)
            new = w.select(mask, new, old)
        if slot:
            w.raw(f"store {kind} {w.splat(new).name if kind.startswith('<') else new.name}, ptr {slot}")
        else:
            self._store(nest, point, new)

    def _value(self, nest: StageNest, expr: Expr, point: Point) -> Value:
        w = self.writer
        if isinstance(expr, Const):
            return w.constant(expr.value)
        if isinstance(expr, Load):
            return self.loads.load(nest, expr, point)
        if isinstance(expr, Unary):
            return UNARY_FUNCTIONS[expr.operator](w, self._value(nest, expr.argument, point))
        assert isinstance(expr, Binary)
        if expr.operator == "add":
            for product_side, other in ((expr.left, expr.right), (expr.right, expr.left)):
                if isinstance(product_side, Binary) and product_side.operator == "mul":
                    left = self._value(nest, product_side.left, point)
                    right = self._value(nest, product_side.right, point)
                    return w.fma(left, right, self._value(nest, other, point))
        left, right = self._value(nest, expr.left, point), self._value(nest, expr.right, point)
        if expr.operator in ("max", "min"):
            return w.larger(left, right, "ogt" if expr.operator == "max" else "olt")
        return w.arithmetic(f"f{expr.operator}", left, right)

    def _store(self, nest: StageNest, point: Point, value: Value) -> None:
        if point.vector is not None:
            value = self.writer.splat(value)
        self.streamed = self.loads.store(nest, point, value) or self.streamed


def _tiles(nest: StageNest, position: int, point: Point) -> Iterator[Point]:
    """The statement instances of a register tile: every trip of its unrolled and vector spatial loops."""
    if position == len(nest.loops):
        yield point
        return
    loop = nest.loops[position]
    if loop.kind is LoopKind.VECTOR:
        yield from _tiles(nest, position + 1, replace(point, vector=loop.axis, active=point.rem[loop.axis]))
    elif nest.is_reduction(loop):
        yield from _tiles(nest, position + 1, point)
    else:
        full, tail = divmod(point.rem[loop.axis], loop.stride)
        for trip in range(full + (tail > 0)):
            extent = loop.stride if trip < full else tail
            yield from _tiles(
                nest, position + 1, point.advanced(loop.axis, Linear((), trip * loop.stride), extent)
            )


def _key(nest: StageNest, point: Point) -> tuple[int, ...]:
    return tuple(point.vals[axis.name].constant for axis in nest.stage.axes)
