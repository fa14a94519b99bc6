"""Schedule primitives: pure functions from loop nest to loop nest.

Each refuses, with a reason, what it cannot do safely, so that every nest that can be reached computes the
right thing. They are target-neutral: what a target allows (loop kinds, scopes, vector width) comes from
its ``TargetSpec``. A step of a schedule is a dict: the primitive under ``"op"``, its arguments by name, for
example ``{"op": "split", "stage": "C", "loop": "i", "factor": 6}``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from solgym.envs.kernel_dsl.nest import (
    Attachment,
    Loop,
    LoopKind,
    LoopPart,
    Prefetch,
    ProgramNest,
    Scope,
    StageNest,
)
from solgym.envs.kernel_dsl.packing import copy_stage, fresh_name, lowest_indices, redirect
from solgym.envs.kernel_dsl.rules import (
    ELEMENT_BITS,
    MAX_NAME,
    MAX_STAGES,
    MAX_VECTOR_BITS,
    Limits,
    check_attached,
    checked,
    find_loop,
    find_stage,
    is_referenced,
    require_kind,
    require_target,
    slide_reach,
    transpose_loop,
)
from solgym.errors import IllegalSchedule, InvalidSchedule

__all__ = ["PRIMITIVES", "Primitive", "Step", "apply_step"]

Step = Mapping[str, Any]


@dataclass(frozen=True)
class Primitive:
    """A registered primitive: its function, and the names of its arguments after nest and limits."""

    name: str
    function: Callable[..., ProgramNest]
    arguments: tuple[str, ...]
    optional: tuple[str, ...]

    @property
    def summary(self) -> str:
        """First line of its documentation."""
        return (inspect.getdoc(self.function) or "").splitlines()[0]


PRIMITIVES: dict[str, Primitive] = {}


def primitive(function: Callable[..., ProgramNest]) -> Callable[..., ProgramNest]:
    """Register a function ``(program, limits, **arguments) -> program`` under its name."""
    parameters = list(inspect.signature(function).parameters.values())[2:]
    names = tuple(p.name for p in parameters)
    optional = tuple(p.name for p in parameters if p.default is not inspect.Parameter.empty)
    PRIMITIVES[function.__name__] = Primitive(function.__name__, function, names, optional)
    return function


def apply_step(program: ProgramNest, step: Step, limits: Limits) -> ProgramNest:
    """Apply one step of a schedule.

    Raises:
        IllegalSchedule: the primitive refuses; the message is its reason.
        InvalidSchedule: the step does not have the form of a step.
    """
    if not isinstance(step, Mapping):
        raise InvalidSchedule(f"a step is an object with an 'op', not {type(step).__name__}")
    name = step.get("op")
    entry = PRIMITIVES.get(name) if isinstance(name, str) else None
    if entry is None:
        raise InvalidSchedule(f"unknown primitive {name!r}; expected one of {', '.join(sorted(PRIMITIVES))}")
    arguments = {key: value for key, value in step.items() if key != "op"}
    unknown = set(arguments) - set(entry.arguments)
    missing = set(entry.arguments) - set(entry.optional) - set(arguments)
    if unknown or missing:
        raise InvalidSchedule(
            f"a step of {_listed(arguments)} does not fit {name}; it takes {', '.join(entry.arguments)}"
            + (f" ({', '.join(entry.optional)} optional)" if entry.optional else "")
        )
    for key, value in arguments.items():
        fits, form = _FORMS.get(key, _NAME)
        if not fits(value) and not (value is None and key in entry.optional):
            raise InvalidSchedule(f"{key} of a {name} step must be {form}{_unlike(value)}")
    return entry.function(program, limits, **arguments)


def _listed(arguments: Mapping[str, object]) -> str:
    """Names of arguments, a few of them, for an error message."""
    names = [str(name)[:40] for name in list(arguments)[:6]]
    return ", ".join(names) or "nothing"


def _unlike(value: object) -> str:
    """What was given instead, where that is short to say."""
    short = isinstance(value, (float, bool, type(None))) or (isinstance(value, str) and len(value) < 40)
    return f", not {value!r}" if short else ""


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 31


def _is_names(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_name, value))


_NAME = (_is_name, f"a name of at most {MAX_NAME} characters")
_INTEGER = (_is_integer, "an integer of at most 31 bits")
_FORMS = {
    "factor": _INTEGER,
    "lanes": _INTEGER,
    "distance": _INTEGER,
    "loops": (_is_names, "a list of loop names"),
}


# -------------------------------------------------------------------------------------------- primitives


@primitive
def split(program: ProgramNest, limits: Limits, stage: str, loop: str, factor: int) -> ProgramNest:
    """Split a loop in two: ``<loop>.o`` outside, ``<loop>.i`` with ``factor`` trips inside."""
    nest = find_stage(program, stage)
    target = find_loop(nest, loop)
    require_kind(target, LoopKind.SERIAL, "split")
    if target.fused:
        raise IllegalSchedule(f"loop {target} is fused; split before fusing")
    if not 2 <= factor < target.trips:
        raise IllegalSchedule(
            f"cannot split loop {target} by {factor}; the factor must be from 2 to {target.trips - 1}"
        )
    stride = target.stride * factor
    outer = Loop(f"{loop}.o", (LoopPart(target.axis, stride, target.span),))
    inner = Loop(f"{loop}.i", (LoopPart(target.axis, target.stride, stride),))
    position = nest.positions[loop]
    loops = (*nest.loops[:position], outer, inner, *nest.loops[position + 1 :])
    accumulate_at = outer.name if nest.accumulate == loop else nest.accumulate
    changed = replace(nest, loops=loops, accumulate=accumulate_at)
    return checked(_renamed(program, changed, loop, inner.name), stage)


@primitive
def reorder(
    program: ProgramNest, limits: Limits, stage: str, loops: tuple[str, ...] | list[str]
) -> ProgramNest:
    """Put the named loops into the given order, in the places that they hold together."""
    nest = find_stage(program, stage)
    wanted = [find_loop(nest, name) for name in loops]
    if len(set(loops)) != len(loops) or len(loops) < 2:
        raise IllegalSchedule("reorder takes two or more different loops")
    places = sorted(nest.positions[name] for name in loops)
    order = list(nest.loops)
    for place, loop in zip(places, wanted, strict=True):
        order[place] = loop
    if tuple(order) == nest.loops:
        raise IllegalSchedule("the loops already have this order")
    changed = program.with_stage(replace(nest, loops=tuple(order)))
    return checked(check_attached(changed, stage), stage)


@primitive
def unroll(program: ProgramNest, limits: Limits, stage: str, loop: str) -> ProgramNest:
    """Unroll a loop completely."""
    nest = find_stage(program, stage)
    target = find_loop(nest, loop)
    require_kind(target, LoopKind.SERIAL, "unroll")
    require_target(limits, LoopKind.UNROLLED)
    if target.fused:
        raise IllegalSchedule(f"loop {target} is fused; fused loops do not unroll")
    if is_referenced(program, nest, loop):
        raise IllegalSchedule(f"loop {target} has stages or prefetches inside; unroll an inner loop")
    return checked(_with_loop(program, nest, target._replace(kind=LoopKind.UNROLLED)), stage)


@primitive
def vectorize(program: ProgramNest, limits: Limits, stage: str, loop: str, lanes: int) -> ProgramNest:
    """Run the innermost loop in vectors of ``lanes`` elements, tails masked; splits it if it is longer."""
    nest = find_stage(program, stage)
    target = find_loop(nest, loop)
    require_kind(target, LoopKind.SERIAL, "vectorise")
    require_target(limits, LoopKind.VECTOR)
    if target.fused:
        raise IllegalSchedule(f"loop {target} is fused; fused loops do not vectorise")
    if nest.positions[loop] != len(nest.loops) - 1:
        raise IllegalSchedule(f"loop {target} is not innermost; reorder first")
    if target.stride != 1:
        raise IllegalSchedule(
            f"loop {target} advances {target.stride} elements a trip; vectors need single elements"
        )
    bits = lanes * ELEMENT_BITS[program.computation.dtype]
    if lanes < 2 or lanes & (lanes - 1) or bits > MAX_VECTOR_BITS:
        raise IllegalSchedule(
            f"{lanes} lanes are not possible; expected a power of two, and at most {MAX_VECTOR_BITS} bits "
            "a vector"
        )
    if is_referenced(program, nest, loop):
        raise IllegalSchedule(f"loop {target} has stages or prefetches inside; vectorise an inner loop")
    if target.trips > lanes:
        program = split(program, limits, stage, loop, lanes)
        nest = find_stage(program, stage)
        target = find_loop(nest, f"{loop}.i")
    return checked(_with_loop(program, nest, target._replace(kind=LoopKind.VECTOR, lanes=lanes)), stage)


@primitive
def parallel(program: ProgramNest, limits: Limits, stage: str, loop: str) -> ProgramNest:
    """Distribute the outermost loop of a stage over the threads."""
    nest = find_stage(program, stage)
    target = find_loop(nest, loop)
    require_kind(target, LoopKind.SERIAL, "run in parallel")
    require_target(limits, LoopKind.PARALLEL)
    if nest.attachment is not None:
        raise IllegalSchedule(
            f"stage {stage} is computed inside {nest.attachment.stage}; parallelise that one"
        )
    if nest.is_reduction(target):
        raise IllegalSchedule(f"loop {target} carries a reduction; only spatial loops run in parallel")
    if nest.positions[loop] != 0:
        raise IllegalSchedule(f"loop {target} is not outermost; reorder or fuse first")
    if nest.accumulate_position == 0:
        raise IllegalSchedule(f"loop {target} lies inside the accumulators of {stage}")
    return checked(_with_loop(program, nest, target._replace(kind=LoopKind.PARALLEL)), stage)


@primitive
def fuse(program: ProgramNest, limits: Limits, stage: str, loop: str) -> ProgramNest:
    """Make one loop of a loop and the next one inside it."""
    nest = find_stage(program, stage)
    outer = find_loop(nest, loop)
    position = nest.positions[loop]
    if position + 1 == len(nest.loops):
        raise IllegalSchedule(f"loop {outer} is innermost; there is nothing to fuse it with")
    inner = nest.loops[position + 1]
    for target in (outer, inner):
        require_kind(target, LoopKind.SERIAL, "fuse")
    if is_referenced(program, nest, outer.name):
        raise IllegalSchedule(f"stages are computed or prefetched between {outer} and {inner}")
    if nest.accumulate in (outer.name, inner.name):
        raise IllegalSchedule(f"the accumulators of {stage} begin at '{nest.accumulate}'; fuse other loops")
    if nest.is_reduction(outer) != nest.is_reduction(inner):
        raise IllegalSchedule(f"cannot fuse a reduction loop with a spatial loop ({outer} and {inner})")
    name = f"{outer.name}+{inner.name}"
    if {p.axis for p in outer.parts} & {p.axis for p in inner.parts}:
        if outer.fused or inner.fused or inner.span != outer.stride:
            raise IllegalSchedule(f"loops {outer} and {inner} share an axis but do not nest exactly")
        merged = Loop(name, (LoopPart(outer.axis, inner.stride, outer.span),))
    else:
        merged = Loop(name, outer.parts + inner.parts)
    loops = (*nest.loops[:position], merged, *nest.loops[position + 2 :])
    changed = _renamed(program, replace(nest, loops=loops), inner.name, name)
    return checked(check_attached(changed, stage), stage)


@primitive
def bind(program: ProgramNest, limits: Limits, stage: str, loop: str, to: str) -> ProgramNest:
    """Bind a loop to the blocks or threads of a device grid."""
    nest = find_stage(program, stage)
    target = find_loop(nest, loop)
    kinds = {kind.value: kind for kind in LoopKind if kind.value.startswith(("block", "thread"))}
    if to not in kinds:
        raise IllegalSchedule(f"cannot bind to '{to}'; expected one of {', '.join(kinds)}")
    require_kind(target, LoopKind.SERIAL, "bind")
    require_target(limits, kinds[to])
    if nest.is_reduction(target):
        raise IllegalSchedule(f"loop {target} carries a reduction; only spatial loops bind")
    if any(other.kind is kinds[to] for other in nest.loops):
        raise IllegalSchedule(f"stage {stage} already has a loop bound to {to}")
    return checked(_with_loop(program, nest, target._replace(kind=kinds[to])), stage)


@primitive
def accumulate(program: ProgramNest, limits: Limits, stage: str, loop: str) -> ProgramNest:
    """Hold the results in registers from before ``loop`` until after it."""
    nest = find_stage(program, stage)
    find_loop(nest, loop)
    if nest.stage.combiner is None:
        raise IllegalSchedule(f"stage {stage} reduces nothing; there is nothing to accumulate")
    if nest.accumulate is not None:
        raise IllegalSchedule(f"stage {stage} already accumulates at '{nest.accumulate}'")
    return checked(program.with_stage(replace(nest, accumulate=loop)), stage)


@primitive
def split_reduction(
    program: ProgramNest, limits: Limits, stage: str, loop: str, factor: int | None = None
) -> ProgramNest:
    """Give an unrolled reduction loop accumulators of its own, combined at the end.

    With ``factor`` the loop is split by it first and the inner loop unrolled.
    """
    nest = find_stage(program, stage)
    target = find_loop(nest, loop)
    if not nest.is_reduction(target):
        raise IllegalSchedule(f"loop {target} is spatial; only reduction loops keep partial sums")
    if nest.accumulate is None:
        raise IllegalSchedule(f"partial sums live in registers; accumulate {stage} first")
    if target.partial:
        raise IllegalSchedule(f"loop {target} keeps partial sums already")
    if factor is not None:
        program = split(program, limits, stage, loop, factor)
        loop = f"{loop}.i"
        nest = find_stage(program, stage)
        target = find_loop(nest, loop)
    if target.kind is LoopKind.SERIAL:
        program = unroll(program, limits, stage, loop)
        nest = find_stage(program, stage)
        target = find_loop(nest, loop)
    require_kind(target, LoopKind.UNROLLED, "keep partial sums")
    return checked(_with_loop(program, nest, target._replace(partial=True)), stage)


@primitive
def compute_at(program: ProgramNest, limits: Limits, stage: str, at: str, loop: str) -> ProgramNest:
    """Compute a stage piece by piece, at the start of every iteration of a loop of a later stage."""
    nest = find_stage(program, stage)
    consumer = find_stage(program, at)
    target = find_loop(consumer, loop)
    if stage in program.computation.outputs:
        raise IllegalSchedule(f"stage {stage} is an output; only intermediate results move into other stages")
    if stage not in program.consumers:
        raise IllegalSchedule(f"nothing reads stage {stage}, so there is no place to move it to")
    if nest.attachment is not None:
        raise IllegalSchedule(f"stage {stage} is already computed inside {nest.attachment.stage}")
    if any(other.kind is LoopKind.PARALLEL for other in nest.loops):
        raise IllegalSchedule(f"stage {stage} has a parallel loop of its own")
    if nest.layout is not None:
        raise IllegalSchedule(f"stage {stage} has a packed layout; pack after moving it")
    if any(p.tensor == stage for reader in program.stages for p in reader.prefetches):
        raise IllegalSchedule(f"{stage} is prefetched by its reader; move it before prefetching")
    if target.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL):
        raise IllegalSchedule(
            f"loop {target} is {target.kind.value}; stages move into serial or parallel loops"
        )
    moved = program.with_stage(replace(nest, attachment=Attachment(at, loop)))
    return checked(check_attached(moved, at), stage)


@primitive
def cache_read(
    program: ProgramNest,
    limits: Limits,
    stage: str,
    tensor: str,
    loop: str | None = None,
    scope: str = "packed",
) -> ProgramNest:
    """Copy what a loop's body reads of a tensor into a contiguous buffer at the start of its iterations.

    The buffer is laid out in the order in which the loops below read it. Without ``loop`` the whole tensor
    is copied once, before the stage. The copy is a stage with loops of its own, called ``<tensor>.<scope>``.
    """
    nest = find_stage(program, stage)
    if scope not in {s.value for s in Scope} - {"global", "register"}:
        raise IllegalSchedule(f"cannot copy into scope '{scope}'; expected packed or shared")
    if scope not in limits.scopes:
        raise IllegalSchedule(
            f"this target has no {scope} buffers; it has {', '.join(sorted(limits.scopes))}"
        )
    loads = nest.stage.loads_of(tensor)
    if not loads:
        raise IllegalSchedule(f"stage {stage} does not read '{tensor}'")
    if len(loads) > 1 and loop is not None and any(len(i.terms) > 1 for load in loads for i in load.index):
        raise IllegalSchedule(f"stage {stage} reads {tensor} in several ways; it cannot be packed")
    if len({load.padded for load in loads}) > 1:
        raise IllegalSchedule(f"stage {stage} reads {tensor} with and without padding; it cannot be packed")
    if nest.copies == tensor or ((producer := program.by_name.get(tensor)) is not None and producer.copies):
        raise IllegalSchedule(f"{tensor} in stage {stage} is a packed copy already")
    if any(p.tensor == tensor for p in nest.prefetches):
        raise IllegalSchedule(f"{tensor} is prefetched in stage {stage}; pack before prefetching")
    if len(program.stages) >= MAX_STAGES:
        raise IllegalSchedule(f"a program has at most {MAX_STAGES} stages, copies included")
    if producer is not None and producer.attachment is not None:
        raise IllegalSchedule(f"{tensor} is computed inside {producer.attachment.stage}; it is local already")
    depth = 0
    if loop is not None:
        target = find_loop(nest, loop)
        if target.kind not in (LoopKind.SERIAL, LoopKind.PARALLEL):
            raise IllegalSchedule(
                f"loop {target} is {target.kind.value}; buffers are filled in serial or parallel loops"
            )
        depth = nest.positions[loop] + 1
    name = fresh_name(program, f"{tensor}.{scope}")
    copy = copy_stage(program, nest, loads, name, depth, Scope(scope))
    if loop is not None:
        copy = replace(copy, attachment=Attachment(stage, loop))
    lows = lowest_indices(nest, loads)
    changed = replace(nest, stage=replace(nest.stage, expr=redirect(nest.stage.expr, tensor, name, lows)))
    grown = program.with_stage(changed).with_stage_before(copy, stage)
    return checked(check_attached(checked(grown, name), stage), stage)


@primitive
def prefetch(
    program: ProgramNest, limits: Limits, stage: str, tensor: str, loop: str, distance: int
) -> ProgramNest:
    """Ask for the part of a tensor that a serial loop reads ``distance`` trips later."""
    nest = find_stage(program, stage)
    target = find_loop(nest, loop)
    require_kind(target, LoopKind.SERIAL, "prefetch")
    if target.fused:
        raise IllegalSchedule(f"loop {target} is fused; prefetch in a plain loop")
    if not 1 <= distance <= 64:
        raise IllegalSchedule(f"a distance of {distance} trips is not possible; expected 1 to 64")
    loads = nest.stage.loads_of(tensor)
    if not loads:
        raise IllegalSchedule(f"stage {stage} does not read '{tensor}'")
    if any(p.tensor == tensor for p in nest.prefetches):
        raise IllegalSchedule(f"{tensor} is prefetched in stage {stage} already")
    producer = program.by_name.get(tensor)
    if producer is not None and producer.attachment is not None:
        raise IllegalSchedule(
            f"{tensor} is computed inside {producer.attachment.stage}; it is in the cache already"
        )
    if all(index.coefficient(target.axis) == 0 for load in loads for index in load.index):
        raise IllegalSchedule(f"what {stage} reads of {tensor} does not change with loop {target}")
    return program.with_stage(replace(nest, prefetches=(*nest.prefetches, Prefetch(tensor, loop, distance))))


@primitive
def transpose(program: ProgramNest, limits: Limits, stage: str, tensor: str) -> ProgramNest:
    """Read square blocks of a tensor along its rows and transpose them in registers.

    Needs a vector loop across the tensor's rows and an unrolled loop of as many trips along them.
    """
    nest = find_stage(program, stage)
    loads = nest.stage.loads_of(tensor)
    if not loads:
        raise IllegalSchedule(f"stage {stage} does not read '{tensor}'")
    if tensor in nest.transposed:
        raise IllegalSchedule(f"{tensor} is transposed in stage {stage} already")
    if transpose_loop(program, nest, tensor) is None:
        raise IllegalSchedule(
            f"transposing {tensor} needs a vector loop across its rows and an unrolled loop of as many trips "
            "along them"
        )
    return program.with_stage(replace(nest, transposed=(*nest.transposed, tensor)))


@primitive
def slide(program: ProgramNest, limits: Limits, stage: str, tensor: str) -> ProgramNest:
    """Read the overlapping vectors of a tensor's rows once and shift them in registers.

    Serves stencils: neighbours along the vector loop come from two vectors instead of one load each.
    """
    nest = find_stage(program, stage)
    loads = nest.stage.loads_of(tensor)
    vector = nest.vector_loop
    if not loads:
        raise IllegalSchedule(f"stage {stage} does not read '{tensor}'")
    if tensor in nest.sliding:
        raise IllegalSchedule(f"{tensor} slides in stage {stage} already")
    if vector is None or not 0 < slide_reach(nest, tensor) < vector.lanes:
        raise IllegalSchedule(
            f"sliding needs a vector loop along the rows of {tensor}, and loads that overlap along it"
        )
    return program.with_stage(replace(nest, sliding=(*nest.sliding, tensor)))


@primitive
def stream(program: ProgramNest, limits: Limits, stage: str) -> ProgramNest:
    """Store past the caches (non-temporal) wherever whole aligned vectors are written."""
    nest = find_stage(program, stage)
    vector = nest.vector_loop
    if nest.stream:
        raise IllegalSchedule(f"stage {stage} streams already")
    if vector is None or vector.axis != nest.stage.axes[-1].name:
        raise IllegalSchedule(f"streaming {stage} needs a vector loop along '{nest.stage.axes[-1].name}'")
    if stage not in program.computation.outputs:
        raise IllegalSchedule(f"stage {stage} is read again; only outputs stream")
    if nest.stage.combiner is not None and nest.accumulate_position is None:
        raise IllegalSchedule(f"stage {stage} reads back what it stores; accumulate in registers first")
    return program.with_stage(replace(nest, stream=True))


def _with_loop(program: ProgramNest, nest: StageNest, loop: Loop) -> ProgramNest:
    return program.with_stage(
        replace(nest, loops=tuple(loop if o.name == loop.name else o for o in nest.loops))
    )


def _renamed(program: ProgramNest, nest: StageNest, old: str, new: str) -> ProgramNest:
    """Follow a loop that now goes by another name wherever stages are attached to it."""
    if not is_referenced(program, nest, old):
        return program.with_stage(nest)
    stages = tuple(
        replace(s, attachment=Attachment(nest.name, new)) if s.attachment == Attachment(nest.name, old) else s
        for s in program.stages
    )
    prefetches = tuple(replace(p, loop=new) if p.loop == old else p for p in nest.prefetches)
    return replace(program, stages=stages).with_stage(replace(nest, prefetches=prefetches))
