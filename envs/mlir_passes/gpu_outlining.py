"""Splits a function of loops into kernels for a GPU and steps for the host.

A loop nest of ``scf.parallel`` becomes a kernel with a thread for each iteration; a sequential loop around
one becomes a loop of the host that launches it; whatever stands between becomes a kernel of a single thread,
since the host never touches the data. Every allocation becomes a buffer that lives as long as the run does.
Values that one kernel computes for another travel through buffers of one element. Runs in the pass worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import arith, memref

from solgym.envs.mlir_passes.gpu_code import ELEMENT_BYTES, Buffer, Kernel, Step
from solgym.envs.mlir_passes.gpu_operations import (
    ALLOCATIONS,
    VIEWS,
    bytes_of,
    function_around,
    is_contiguous,
    is_pure,
    is_within,
    walk,
)
from solgym.envs.mlir_passes.gpu_ranges import Ranges, constant_of, defining, expression_of
from solgym.envs.mlir_passes.gpu_threads import MAX_GRID, Dimension, both, guarded, place_threads
from solgym.envs.mlir_passes.programs.program import Role

__all__ = ["MAX_STACK_BYTES", "CannotOutline", "outline"]

MAX_LAUNCHES: Final = 100_000
"""A host loop that would launch more often runs inside one thread instead, as the host is slow."""

MAX_STACK_BYTES: Final = 16384
"""Memory of its own that a thread may have: the registers and caches that back it are shared by thousands."""

_NOTHING: Final = frozenset({"memref.dealloc", "memref.prefetch", "bufferization.dealloc"})
_ESCAPES: Final = frozenset(
    {"scf.yield", "scf.condition", "scf.for", "scf.while", "arith.select", "func.return", "scf.reduce.return"}
)


class CannotOutline(Exception):
    """A function has a form that has no kernels and host steps; the message says which."""


def outline(
    function: ir.Operation, roles: Sequence[Role]
) -> tuple[ir.Module, list[Kernel], list[Buffer], list[Step]]:
    """Split a function of scf loops, arith and memref.

    Args:
        function: a ``func.func`` without results; what is in it moves out.
        roles: of its arguments: whether the host brings data, fetches it, or both.

    Returns:
        A module with one ``func.func`` for each kernel, the kernels, the buffers and the steps.

    Raises:
        CannotOutline: the function cannot be split.
    """
    with function.context, ir.Location.unknown():
        return _Outliner(function, roles).run()


@dataclass(frozen=True)
class _Nest:
    """Parallel loops each of which holds nothing but the next and index arithmetic."""

    loops: tuple[ir.Operation, ...]
    dimensions: tuple[Dimension, ...]


class _KernelDraft:
    """A kernel's function while it is filled: what it takes from outside becomes its parameters."""

    def __init__(self, module: ir.Module, name: str) -> None:
        self.name = name
        self.parameters: list[str] = []
        self.arguments: dict[str, ir.Value] = {}
        self.captured: dict[ir.Value, ir.Value] = {}
        self.grid = self.block = (1, 1, 1)
        text = f"func.func @{name}() {{ return }}"
        self.function = ir.Operation.parse(text)
        module.body.append(self.function)
        self.entry = self.function.regions[0].blocks[0]
        # Captured values are computed before this operation, the kernel's own come after it.
        self.prologue_end = arith.ConstantOp(
            ir.IndexType.get(), 0, ip=ir.InsertionPoint(self.entry.operations[0])
        ).operation

    def parameter(self, name: str, kind: ir.Type) -> ir.Value:
        """The argument that stands for a buffer or a loop's variable; made at first use."""
        if name not in self.arguments:
            self.parameters.append(name)
            self.arguments[name] = self.entry.add_argument(kind, ir.Location.unknown())
        return self.arguments[name]

    def close(self) -> None:
        """Write down the function's type."""
        kinds = [argument.type for argument in self.entry.arguments]
        self.function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kinds, []))


class _Outliner:
    def __init__(self, function: ir.Operation, roles: Sequence[Role]) -> None:
        self._function = function
        self._roles = roles
        self._module = ir.Module.create()
        self._ranges = Ranges()
        self._computable: dict[ir.Value, bool] = {}
        self._drafts: dict[str, _KernelDraft] = {}
        self._buffers: dict[str, Buffer] = {}
        self._types: dict[str, ir.Type] = {}
        self._memory: dict[ir.Value, str] = {}
        self._globals: dict[str, str] = {}
        self._loops: dict[ir.Value, str] = {}

    def run(self) -> tuple[ir.Module, list[Kernel], list[Buffer], list[Step]]:
        blocks = list(self._function.regions[0].blocks)
        if len(blocks) != 1:
            raise CannotOutline(
                "the function branches between blocks; kernels are made of loops of scf or affine"
            )
        for number, argument in enumerate(blocks[0].arguments):
            name = self._new_buffer(argument.type, "argument", f"arg{number}", argument=number)
            self._memory[argument] = name
        steps = list(self._steps(blocks[0], 1))
        for draft in self._drafts.values():
            draft.close()
        kernels = [
            Kernel(draft.name, draft.grid, draft.block, tuple(draft.parameters))
            for draft in self._drafts.values()
        ]
        return self._module, kernels, list(self._buffers.values()), self._with_memory(steps)

    # ------------------------------------------------------------------ buffers

    def _new_buffer(
        self,
        kind: ir.Type,
        origin: Literal["argument", "temporary", "constant"],
        name: str,
        argument: int | None = None,
        data: str | None = None,
    ) -> str:
        if not isinstance(kind, ir.MemRefType):
            raise CannotOutline(f"the function takes a {kind}; kernels here are made of functions on memrefs")
        if not kind.has_static_shape:
            raise CannotOutline(f"a buffer of type {kind} has no constant size")
        if not is_contiguous(kind):
            raise CannotOutline(f"a buffer of type {kind} is not contiguous")
        shape, element = tuple(kind.shape), kind.element_type
        if isinstance(element, ir.VectorType):
            shape, element = (*shape, *element.shape), element.element_type
        dtype = "i64" if isinstance(element, ir.IndexType) else str(element)
        if dtype not in ELEMENT_BYTES:
            raise CannotOutline(
                f"a buffer holds elements of type {dtype}, which is none of {', '.join(ELEMENT_BYTES)}"
            )
        self._buffers[name] = Buffer(name, shape, dtype, origin, argument, data)
        self._types[name] = kind
        return name

    def _temporary(self, kind: ir.Type, prefix: str = "temporary") -> str:
        return self._new_buffer(kind, "temporary", f"{prefix}{len(self._buffers)}")

    def _constant(self, operation: ir.Operation) -> str:
        """The buffer of a ``memref.get_global``."""
        symbol = ir.FlatSymbolRefAttr(operation.attributes["name"]).value
        if symbol in self._globals:
            return self._globals[symbol]
        module = self._function.parent
        found = [
            each.operation
            for each in module.regions[0].blocks[0].operations
            if each.operation.name == "memref.global"
            and ir.StringAttr(each.operation.attributes["sym_name"]).value == symbol
        ]
        value = found[0].attributes.get("initial_value", None)
        if not isinstance(value, ir.DenseElementsAttr):
            raise CannotOutline(f"the global {symbol!r} has no values that are known")
        if str(value.type.element_type) == "i1":
            raise CannotOutline(f"the global {symbol!r} holds truth values, which are packed")
        data = np.ascontiguousarray(np.array(value)).tobytes().hex()
        name = f"constant{len(self._buffers)}"
        self._globals[symbol] = self._new_buffer(operation.results[0].type, "constant", name, data=data)
        return name

    def _buffer_of(self, value: ir.Value) -> str | None:
        """The buffer that a memref is all of, or None."""
        if value in self._memory:
            return self._memory[value]
        operation = defining(value)
        if operation is None:
            return None
        if operation.name in ALLOCATIONS:
            self._refuse_escape(value)
            self._memory[value] = self._temporary(value.type)
        elif operation.name == "memref.get_global":
            self._memory[value] = self._constant(operation)
        return self._memory.get(value)

    def _refuse_escape(self, value: ir.Value) -> None:
        """Two allocations of one place in the code may both be alive where loops carry them along."""
        for use in value.uses:
            user = use.owner.operation
            if user.name in _ESCAPES:
                raise CannotOutline(f"{user.name} chooses a buffer while the program runs")
            if user.name in VIEWS:
                for result in user.results:
                    if isinstance(result.type, ir.MemRefType):
                        self._refuse_escape(result)

    def _with_memory(self, steps: list[Step]) -> list[Step]:
        """The steps, between those that allocate and bring data and those that bring data back and free."""
        buffers = list(self._buffers.values())

        def each(op: str, *chosen: Buffer) -> list[Step]:
            return [{"op": op, "buffer": buffer.name} for buffer in chosen]

        def arguments(idle: Role) -> list[Buffer]:
            return [b for b in buffers if b.argument is not None and self._roles[b.argument] != idle]

        constants = [buffer for buffer in buffers if buffer.kind == "constant"]
        before = each("allocate", *buffers) + each("upload", *arguments("out"), *constants)
        return before + steps + each("download", *arguments("in")) + each("free", *buffers)

    # ------------------------------------------------------------------ steps

    def _steps(self, block: ir.Block, launches: int) -> Iterator[Step]:
        """The steps of a block that runs ``launches`` times."""
        pending: list[ir.Operation] = []
        for operation in [each.operation for each in block.operations]:
            step = self._step(operation, launches, pending)
            if step is None:
                continue
            if pending:
                yield self._single_thread(pending)
                pending.clear()
            yield step()
        if pending:
            yield self._single_thread(pending)

    def _step(self, operation: ir.Operation, launches: int, pending: list[ir.Operation]) -> Any | None:
        """What makes the step of an operation; None if it has none of its own."""
        name = operation.name
        if name in ("func.return", "scf.yield") or name in _NOTHING or self._is_computable(operation):
            return None
        if name in ALLOCATIONS or name == "memref.get_global":
            self._buffer_of(operation.results[0])
            return None
        if name == "memref.copy":
            source, destination = (self._buffer_of(operand) for operand in operation.operands)
            if source and destination:
                return lambda: {"op": "copy", "from": source, "to": destination}
        nest = self._nest(operation)
        if nest is not None:
            return lambda: self._launch(nest)
        if name == "scf.for" and self._runs_on_host(operation, launches):
            return lambda: self._loop(operation, launches)
        if name == "scf.if" and self._runs_on_host(operation, launches):
            return lambda: self._choice(operation, launches)
        pending.append(operation)
        return None

    def _is_computable(self, operation: ir.Operation) -> bool:
        """Whether every kernel can compute an operation anew, as nothing that memory holds goes into it."""
        if not is_pure(operation):
            return False
        result = operation.results[0]
        if result not in self._computable:
            self._computable[result] = all(
                source is None
                or source.name in ALLOCATIONS
                or source.name == "memref.get_global"
                or (function_around(source) == self._function and self._is_computable(source))
                for source in map(defining, operation.operands)
            )
        return self._computable[result]

    def _runs_on_host(self, operation: ir.Operation, launches: int) -> bool:
        """Whether a loop or choice is worth the host's steps: only if it launches threads side by side."""
        if len(operation.results):
            return False
        operands = list(operation.operands)
        variables = dict(self._loops)
        if operation.name == "scf.for":
            step = constant_of(operands[2])
            if step is None or step <= 0 or any(expression_of(x, variables) is None for x in operands[:2]):
                return False
            trips = self._ranges.extent(operands[0], operands[1], step)
            if trips is None or launches * trips > MAX_LAUNCHES:
                return False
            launches *= trips
            self._loops[operation.regions[0].blocks[0].arguments[0]] = "?"
        elif expression_of(operands[0], variables) is None:
            return False
        try:
            return any(
                self._nest(inner.operation) is not None
                or (
                    inner.operation.name in ("scf.for", "scf.if")
                    and self._runs_on_host(inner.operation, launches)
                )
                for region in operation.regions
                for block in region.blocks
                for inner in block.operations
            )
        finally:
            self._loops = variables

    def _loop(self, operation: ir.Operation, launches: int) -> Step:
        lower, upper, step = list(operation.operands)[:3]
        body = operation.regions[0].blocks[0]
        variable = f"i{len(self._loops)}"
        first, end = expression_of(lower, self._loops), expression_of(upper, self._loops)
        trips = self._ranges.extent(lower, upper, constant_of(step) or 1) or 0
        self._loops[body.arguments[0]] = variable
        steps = list(self._steps(body, launches * trips))
        del self._loops[body.arguments[0]]
        return {
            "op": "loop",
            "variable": variable,
            "from": first,
            "to": end,
            "step": constant_of(step),
            "body": steps,
        }

    def _choice(self, operation: ir.Operation, launches: int) -> Step:
        branches = [
            list(self._steps(region.blocks[0], launches)) if len(region.blocks) else []
            for region in operation.regions
        ]
        condition = expression_of(operation.operands[0], self._loops)
        return {"op": "if", "condition": condition, "then": branches[0], "else": branches[1]}

    # ------------------------------------------------------------------ kernels

    def _new_draft(self) -> _KernelDraft:
        draft = _KernelDraft(self._module, f"kernel{len(self._drafts)}")
        self._drafts[draft.name] = draft
        return draft

    def _single_thread(self, operations: Sequence[ir.Operation]) -> Step:
        """A kernel of one thread that does what these operations do."""
        draft = self._new_draft()
        end = draft.entry.operations[len(draft.entry.operations) - 1]
        for operation in operations:
            operation.move_before(end)
        self._place_allocations(draft, private=False)
        self._capture_all(draft)
        return {"op": "launch", "kernel": draft.name}

    def _nest(self, operation: ir.Operation) -> _Nest | None:
        """The parallel nest that begins with an operation, or None where there is none to launch."""
        if operation.name != "scf.parallel":
            return None
        loops: list[ir.Operation] = []
        dimensions: list[Dimension] = []
        loop: ir.Operation | None = operation
        while loop is not None:
            more = self._dimensions(loop, len(loops))
            if more is None or math.prod(d.extent for d in (*dimensions, *more)) > MAX_GRID[0]:
                break
            loops.append(loop)
            dimensions += more
            loop = _only_loop_inside(loop)
        return _Nest(tuple(loops), tuple(dimensions)) if loops else None

    def _dimensions(self, loop: ir.Operation, level: int) -> list[Dimension] | None:
        if len(loop.results):
            return None
        count = len(loop.regions[0].blocks[0].arguments)
        operands = list(loop.operands)
        found = []
        for position in range(count):
            step = constant_of(operands[2 * count + position])
            if step is None or step <= 0:
                return None
            extent = self._ranges.extent(operands[position], operands[count + position], step)
            if extent is None:
                return None
            found.append(Dimension(level, position, max(extent, 1)))
        return found

    def _launch(self, nest: _Nest) -> Step:
        """A kernel with a thread for each iteration of a nest."""
        draft = self._new_draft()
        with ir.InsertionPoint(draft.entry.operations[len(draft.entry.operations) - 1]) as point:
            threads = place_threads(nest.dimensions)
        draft.grid, draft.block = threads.grid, threads.block
        inside: ir.Value | None = threads.inside
        for level, loop in enumerate(nest.loops):
            point = self._enter(point, inside, loop, level, threads.places)
            inside = None
        for loop in reversed(nest.loops):
            loop.erase()
        self._ranges = (
            Ranges()
        )  # what it knew of the loops' variables must not pass to values that come later
        self._place_allocations(draft, private=True)
        self._capture_all(draft)
        return {"op": "launch", "kernel": draft.name}

    def _enter(
        self,
        point: ir.InsertionPoint,
        inside: ir.Value | None,
        loop: ir.Operation,
        level: int,
        places: Mapping[tuple[int, int], ir.Value],
    ) -> ir.InsertionPoint:
        """Move a parallel loop's body to where one iteration runs; returns where the next loop's goes."""
        body = loop.regions[0].blocks[0]
        count = len(body.arguments)
        operands = list(loop.operands)
        with point:
            if inside is not None:
                point = guarded(inside)
        with point:
            guard: ir.Value | None = None
            for position, argument in enumerate(body.arguments):
                lower, upper, step = (operands[part * count + position] for part in range(3))
                value = arith.addi(lower, arith.muli(places[level, position], step))
                argument.replace_all_uses_with(value)
                guard = both(guard, arith.cmpi(arith.CmpIPredicate.slt, value, upper))
            assert guard is not None
            point = guarded(guard)
        anchor = point.block.operations[len(point.block.operations) - 1]
        for operation in [each.operation for each in body.operations]:
            if operation.name not in ("scf.reduce", "scf.yield"):
                operation.move_before(anchor)
        return _before_inner(anchor) or ir.InsertionPoint(anchor)

    def _place_allocations(self, draft: _KernelDraft, private: bool) -> None:
        """Make what a kernel allocates its threads' own memory, or a buffer if it has a single thread."""
        stack = 0
        for operation in list(walk(draft.function)):
            if operation.name in ("memref.dealloc", "bufferization.dealloc"):
                if any(True for result in operation.results for _ in result.uses):
                    raise CannotOutline("a deallocation decides at run time what to free")
                operation.erase()
            elif operation.name in ALLOCATIONS:
                value = operation.results[0]
                self._refuse_escape(value)
                if not private:
                    name = self._temporary(value.type)
                    value.replace_all_uses_with(draft.parameter(name, self._types[name]))
                else:
                    kind = ir.MemRefType(value.type)
                    if not kind.has_static_shape:
                        raise CannotOutline(
                            f"a thread allocates a buffer of type {kind}, whose size is not constant"
                        )
                    stack += bytes_of(kind)
                    if stack > MAX_STACK_BYTES:
                        raise CannotOutline(
                            f"a thread needs {stack} bytes of memory of its own, more than {MAX_STACK_BYTES}"
                        )
                    own = memref.AllocaOp(kind, [], [], ip=ir.InsertionPoint(draft.prologue_end))
                    value.replace_all_uses_with(own.results[0])
                operation.erase()

    # ------------------------------------------------------------------ values from outside

    def _capture_all(self, draft: _KernelDraft) -> None:
        for operation in list(walk(draft.function)):
            for number, operand in enumerate(operation.operands):
                if not is_within(operand, draft.function):
                    operation.operands[number] = self._capture(draft, operand)

    def _capture(self, draft: _KernelDraft, value: ir.Value) -> ir.Value:
        """The value inside a kernel that stands for one outside."""
        if value not in draft.captured:
            draft.captured[value] = self._captured(draft, value)
        return draft.captured[value]

    def _captured(self, draft: _KernelDraft, value: ir.Value) -> ir.Value:
        if value in self._loops:
            return draft.parameter(self._loops[value], ir.IndexType.get())
        buffer = self._buffer_of(value) if isinstance(value.type, ir.MemRefType) else None
        if buffer is not None:
            return draft.parameter(buffer, self._types[buffer])
        operation = defining(value)
        is_memory = isinstance(value.type, ir.MemRefType)
        if operation is not None and (self._is_computable(operation) or (is_memory and is_pure(operation))):
            inner = [self._capture(draft, operand) for operand in operation.operands]
            copy = operation.clone(ir.InsertionPoint(draft.prologue_end)).operation
            for number, operand in enumerate(inner):
                copy.operands[number] = operand
            results = list(operation.results)
            for outer, result in zip(results, copy.results, strict=True):
                draft.captured[outer] = result
            return draft.captured[value]
        return self._through_memory(draft, value)

    def _through_memory(self, draft: _KernelDraft, value: ir.Value) -> ir.Value:
        """Have the kernel that computes a value leave it in a buffer, and read it from there."""
        operation = defining(value)
        owner = None if operation is None else function_around(operation)
        source = None
        if owner is not None and owner != self._function:
            source = self._drafts.get(ir.StringAttr(owner.attributes["sym_name"]).value)
        if operation is None or source is None or isinstance(value.type, ir.MemRefType):
            raise CannotOutline(
                f"a kernel needs a value of type {value.type} that is chosen while the program runs"
            )
        name = self._temporary(ir.MemRefType.get([], value.type), "scalar")
        target = source.parameter(name, self._types[name])
        memref.StoreOp(value, target, [], ip=ir.InsertionPoint.after(operation))
        parameter = draft.parameter(name, self._types[name])
        return memref.LoadOp(parameter, [], ip=ir.InsertionPoint(draft.prologue_end)).results[0]


# ---------------------------------------------------------------------- looking at operations


def _only_loop_inside(loop: ir.Operation) -> ir.Operation | None:
    """The parallel loop that a loop holds besides index arithmetic, if it holds nothing else."""
    inner: ir.Operation | None = None
    for operation in [each.operation for each in loop.regions[0].blocks[0].operations]:
        if operation.name in ("scf.reduce", "scf.yield") or is_pure(operation):
            continue
        if operation.name != "scf.parallel" or inner is not None:
            return None
        inner = operation
    return inner


def _before_inner(anchor: ir.OpView) -> ir.InsertionPoint | None:
    """Where a nested loop that was moved along stands, so that its body can go there."""
    for operation in anchor.operation.block.operations:
        if operation.operation.name == "scf.parallel":
            return ir.InsertionPoint(operation)
    return None
