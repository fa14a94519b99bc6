"""A loop nest in words that a person can read, at any point of its scheduling."""

from __future__ import annotations

from collections.abc import Iterator

from solgym.envs.kernel_dsl.nest import Loop, LoopKind, ProgramNest, Scope, StageNest
from solgym.envs.kernel_dsl.regions import largest_extents

__all__ = ["pseudocode"]

_KIND_WORDS = {LoopKind.SERIAL: "for", LoopKind.UNROLLED: "unrolled", LoopKind.PARALLEL: "parallel for"}
_COMBINER_SIGNS = {None: "=", "sum": "+=", "max": "max="}


def pseudocode(program: ProgramNest) -> str:
    """The whole program, one line per loop and statement.

    A stage that is computed inside another one shows how much of it one iteration covers; its loops then
    count from where that part starts, and loops of one trip are left out.
    """
    sizes = largest_extents(program)
    lines: list[str] = []
    for nest in program.stages:
        if nest.attachment is None:
            lines.extend(_stage(program, sizes, nest, 0))
    return "\n".join(lines)


def _stage(
    program: ProgramNest, sizes: dict[str, tuple[int, ...]], nest: StageNest, indent: int
) -> Iterator[str]:
    local = nest.attachment is not None
    covered = {axis.name: axis.extent for axis in nest.stage.all_axes}
    covered |= dict(zip((axis.name for axis in nest.stage.axes), sizes[nest.name], strict=True))
    if local or nest.copies is not None:
        yield "  " * indent + f"# {_buffer(nest, sizes[nest.name])}"
    held = ""
    for loop in nest.loops:
        if loop.name == nest.accumulate:
            yield "  " * indent + f"hold {nest.name} in registers:"
            indent, held = indent + 1, " (in registers)"
        spans = [min(part.span, covered[part.axis]) for part in loop.parts]
        for part, span in zip(loop.parts, spans, strict=True):
            covered[part.axis] = min(part.stride, span)
        once = all(span <= part.stride for part, span in zip(loop.parts, spans, strict=True))
        inside = program.attached.get((nest.name, loop.name), ())
        if not (local and once and loop.kind is LoopKind.SERIAL and not inside):
            yield "  " * indent + _loop(loop, spans)
            indent += 1
        for touched in nest.prefetches:
            if touched.loop == loop.name:
                yield "  " * indent + f"prefetch {touched.tensor}, {touched.distance} trips ahead"
        for inner in inside:
            yield from _stage(program, sizes, inner, indent)
    yield "  " * indent + _statement(nest) + held


def _loop(loop: Loop, spans: list[int]) -> str:
    ranges = ", ".join(
        f"{part.axis} below {span}" + (f" by {part.stride}" if part.stride > 1 else "")
        for part, span in zip(loop.parts, spans, strict=True)
    )
    word = (
        f"vector[{loop.lanes}]"
        if loop.kind is LoopKind.VECTOR
        else _KIND_WORDS.get(loop.kind, loop.kind.value)
    )
    return f"{word} {loop.name}: {ranges}" + (", partial results" if loop.partial else "")


def _statement(nest: StageNest) -> str:
    stage = nest.stage
    text = str(stage.expr)
    for tensor in nest.transposed:
        text = text.replace(f"{tensor}[", f"transposed {tensor}[")
    for tensor in nest.sliding:
        text = text.replace(f"{tensor}[", f"sliding {tensor}[")
    target = f"{stage.name}[{', '.join(axis.name for axis in stage.axes)}]"
    return f"{target} {_COMBINER_SIGNS[stage.combiner]} {text}" + (" (non-temporal)" if nest.stream else "")


def _buffer(nest: StageNest, size: tuple[int, ...]) -> str:
    shape = " x ".join(map(str, size))
    words = {
        Scope.GLOBAL: "here",
        Scope.PACKED: "packed",
        Scope.SHARED: "in shared memory",
        Scope.REGISTER: "held",
    }
    order = ""
    if nest.layout is not None:
        names = [axis.name for axis in nest.stage.axes]
        order = ", order " + "".join(
            f"[{names[d]}]" if tile == 1 else f"[{names[d]}/{tile}]" for d, tile in nest.layout
        )
    return f"{nest.name}: {shape} elements {words[nest.scope]}{order}"
