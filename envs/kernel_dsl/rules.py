"""What every loop nest must keep to, whatever led to it.

Primitives call these after each change; whoever reads them knows what lowering may rely on. Each rule raises
``IllegalSchedule`` with the reason.
"""

from __future__ import annotations

import math
from typing import Protocol

from solgym.envs.kernel_dsl.expression import Load
from solgym.envs.kernel_dsl.nest import Loop, LoopKind, ProgramNest, StageNest
from solgym.errors import IllegalSchedule

__all__ = [
    "ELEMENT_BITS", "MAX_NAME", "Limits", "check_attached", "checked", "find_loop", "find_stage",
    "is_referenced", "require_kind", "require_target", "slide_reach", "transpose_loop",
]  # fmt: skip

MAX_LOOPS = 14
MAX_NAME = 200
MAX_UNROLLED = 512
MAX_ACCUMULATORS = 64
MAX_VECTOR_BITS = 512
MAX_STAGES = 16
ELEMENT_BITS = {"f32": 32, "f64": 64}


class Limits(Protocol):
    """The part of a ``TargetSpec`` that primitives ask for."""

    @property
    def loop_kinds(self) -> frozenset[str]:
        """Loop kinds that the target can run."""

    @property
    def scopes(self) -> frozenset[str]:
        """Where the target can keep buffers."""


def find_stage(program: ProgramNest, name: str) -> StageNest:
    """The stage of a name; refuses if there is none."""
    nest = program.by_name.get(name)
    if nest is None:
        raise IllegalSchedule(f"there is no stage '{name}'; the stages are {', '.join(program.by_name)}")
    return nest


def find_loop(nest: StageNest, name: str) -> Loop:
    """The loop of a name; refuses if the stage has none."""
    position = nest.positions.get(name)
    if position is None:
        raise IllegalSchedule(
            f"stage {nest.name} has no loop '{name}'; its loops are {', '.join(nest.positions)}"
        )
    return nest.loops[position]


def require_kind(loop: Loop, kind: LoopKind, verb: str) -> None:
    """Refuse a loop of another kind."""
    if loop.kind is not kind:
        raise IllegalSchedule(f"loop {loop} is {loop.kind.value}; only {kind.value} loops {verb}")


def require_target(limits: Limits, kind: LoopKind) -> None:
    """Refuse a loop kind that the target does not have."""
    if kind.value not in limits.loop_kinds:
        raise IllegalSchedule(
            f"this target has no {kind.value} loops; it has {', '.join(sorted(limits.loop_kinds))}"
        )


def is_referenced(program: ProgramNest, nest: StageNest, loop: str) -> bool:
    """Whether stages are computed, or tensors prefetched, in a loop."""
    return (nest.name, loop) in program.attached or any(p.loop == loop for p in nest.prefetches)


def checked(program: ProgramNest, name: str) -> ProgramNest:
    """Hold the changed stage, and what depends on its loops, against the rules."""
    nest = program.by_name[name]
    _check_loops(nest, program.computation.dtype)
    _check_accumulators(nest)
    _check_layouts(program, nest)
    for inner in program.stages:
        if inner.attachment is not None and _inside(program, inner, name, 0):
            _check_layouts(program, inner)
    return program


def _check_loops(nest: StageNest, dtype: str) -> None:
    if len(nest.loops) > MAX_LOOPS:
        raise IllegalSchedule(f"stage {nest.name} would have {len(nest.loops)} loops, more than {MAX_LOOPS}")
    last_stride: dict[str, int] = {}
    unrolled = 1
    for position, loop in enumerate(nest.loops):
        if len(loop.name) > MAX_NAME:  # splitting and fusing in turns doubles it
            raise IllegalSchedule(
                f"loop '{loop.name[:40]}...' would have a name of {len(loop.name)} characters"
            )
        for part in loop.parts:
            if part.axis in last_stride and part.stride >= last_stride[part.axis]:
                raise IllegalSchedule(
                    f"loop {loop} advances {part.axis} in steps of {part.stride} inside steps of "
                    f"{last_stride[part.axis]}; keep the coarser loop of an axis outside"
                )
            last_stride[part.axis] = part.stride
        if loop.kind is LoopKind.VECTOR and position != len(nest.loops) - 1:
            raise IllegalSchedule(f"vector loop {loop} must stay innermost")
        if loop.kind is LoopKind.PARALLEL and position != 0:
            raise IllegalSchedule(f"parallel loop {loop} must stay outermost")
        if loop.kind is LoopKind.UNROLLED:
            unrolled *= loop.trips
    if unrolled > MAX_UNROLLED:
        raise IllegalSchedule(
            f"stage {nest.name} would be unrolled {unrolled} times, more than {MAX_UNROLLED}; "
            "tile it smaller first"
        )
    vector = nest.vector_loop
    if vector is not None and nest.is_reduction(vector) and nest.accumulate is None:
        raise IllegalSchedule(
            f"vector loop {vector} sums over lanes; accumulate {nest.name} in registers first"
        )


def _check_accumulators(nest: StageNest) -> None:
    start = nest.accumulate_position
    if start is None:
        partial = next((loop for loop in nest.loops if loop.partial), None)
        if partial is not None:
            raise IllegalSchedule(f"loop {partial} keeps partial sums, which needs accumulators in registers")
        return
    accumulators = 1
    reduces = False
    for loop in nest.loops[start:]:
        reduction = nest.is_reduction(loop)
        reduces = reduces or reduction
        if loop.fused:
            raise IllegalSchedule(f"fused loop {loop} must stay outside the accumulators of {nest.name}")
        if not reduction and loop.kind not in (LoopKind.UNROLLED, LoopKind.VECTOR):
            raise IllegalSchedule(
                f"loop {loop} lies inside the accumulators of {nest.name}; unroll or vectorise it, "
                "or move it outside"
            )
        if loop.kind is LoopKind.UNROLLED and (not reduction or loop.partial):
            accumulators *= loop.trips
    if not reduces:
        raise IllegalSchedule(f"no reduction loop of {nest.name} lies inside '{nest.accumulate}'")
    if accumulators > MAX_ACCUMULATORS:
        raise IllegalSchedule(
            f"{nest.name} would need {accumulators} accumulators, more than {MAX_ACCUMULATORS}"
        )
    for loop in nest.loops[:start]:
        if loop.partial:
            raise IllegalSchedule(f"loop {loop} keeps partial sums and must stay inside the accumulators")


def _check_layouts(program: ProgramNest, nest: StageNest) -> None:
    """Every loop must step whole tiles of a tiled buffer, or stay inside one."""
    if nest.layout is not None:
        for dimension, tile in nest.layout:
            if tile > 1:
                _check_tile(nest, 0, nest.stage.axes[dimension].name, tile, nest.name)
    for load in nest.stage.loads:
        producer = program.by_name.get(load.tensor)
        if producer is None or producer.layout is None:
            continue
        depth = _shared_depth(program, nest, producer)
        for dimension, tile in producer.layout:
            if tile == 1:
                continue
            index = load.index[dimension]
            if len(index.terms) != 1 or index.terms[0][1] != 1 or (index.constant and depth == 0):
                raise IllegalSchedule(
                    f"{producer.name} is stored in tiles of {tile}, which {index} would cross"
                )
            _check_tile(nest, depth, index.terms[0][0], tile, producer.name)
            if depth == 0 and _start_step(program, nest, index.terms[0][0]) % tile:
                raise IllegalSchedule(
                    f"{nest.name} is computed in pieces that do not start at tiles of {tile} of "
                    f"{producer.name}"
                )


def _check_tile(nest: StageNest, depth: int, axis: str, tile: int, buffer: str) -> None:
    for loop in nest.loops[depth:]:
        for part in loop.parts:
            if part.axis != axis:
                continue
            if part.stride >= tile and part.stride % tile:
                raise IllegalSchedule(
                    f"loop {loop} steps by {part.stride}, which cuts tiles of {tile} of {buffer}"
                )
            if part.stride < tile < part.span:
                raise IllegalSchedule(f"loop {loop} would cross the edge of a tile of {tile} of {buffer}")


def _start_step(program: ProgramNest, nest: StageNest, axis: str) -> int:
    """What divides the values at which an axis of an attached stage can start; 0 if that is always 0."""
    if nest.attachment is None or nest.axes[axis].reduction:
        return 0
    host = program.by_name[nest.attachment.stage]
    depth = host.positions[nest.attachment.loop] + 1
    dimension = [a.name for a in nest.stage.axes].index(axis)
    step = 0
    for reader_name in program.consumers.get(nest.name, ()):
        reader = program.by_name[reader_name]
        for load in reader.stage.loads_of(nest.name):
            index = load.index[dimension]
            step = math.gcd(step, index.constant)
            for term, coefficient in index.terms:
                inner = _start_step(program, reader, term)
                if reader is host:
                    strides = (p.stride for loop in host.loops[:depth] for p in loop.parts if p.axis == term)
                    inner = math.gcd(inner, *strides)
                step = math.gcd(step, coefficient * inner)
    return step


def _shared_depth(program: ProgramNest, nest: StageNest, producer: StageNest) -> int:
    """How many outer loops of ``nest`` enclose the point where ``producer`` is computed."""
    attachment = producer.attachment
    if attachment is None or attachment.stage != nest.name:
        return 0
    return nest.positions[attachment.loop] + 1


def check_attached(program: ProgramNest, at: str) -> ProgramNest:
    """Every stage computed inside ``at``, or deeper, must be read only there, and by regions of one shape."""
    order = {nest.name: position for position, nest in enumerate(program.stages)}
    for (stage, loop), inner in program.attached.items():
        if stage != at and not _inside(program, program.by_name[stage], at, 0):
            continue
        host = program.by_name[stage]
        depth = host.positions[loop]
        for nest in inner:
            for reader in program.consumers.get(nest.name, ()):
                if reader != stage and not _inside(program, program.by_name[reader], stage, depth):
                    raise IllegalSchedule(f"{reader} reads {nest.name} outside loop '{loop}' of {stage}")
                for load in program.by_name[reader].stage.loads_of(nest.name):
                    if load.padded:
                        raise IllegalSchedule(f"{reader} pads {nest.name}; compute {nest.name} on its own")
            if order[nest.name] > order[stage]:
                raise IllegalSchedule(f"stage {nest.name} comes after {stage}")
        _check_regions(program, host, loop, inner)
    return program


def _inside(program: ProgramNest, nest: StageNest, stage: str, depth: int) -> bool:
    """Whether ``nest`` is computed inside loop ``depth`` of ``stage``, or deeper."""
    while nest.attachment is not None:
        host = program.by_name[nest.attachment.stage]
        if host.name == stage:
            return host.positions[nest.attachment.loop] >= depth
        nest = host
    return False


def _check_regions(program: ProgramNest, host: StageNest, loop: str, inner: tuple[StageNest, ...]) -> None:
    """Readers of an attached stage must agree on where its region starts: same axes outside the loop."""
    for nest in inner:
        starts = set()
        for reader in program.consumers.get(nest.name, ()):
            for load in program.by_name[reader].stage.loads_of(nest.name):
                starts.add(_region_start(program, program.by_name[reader], load, host, loop))
        if len(starts) > 1:
            raise IllegalSchedule(
                f"the stages that read {nest.name} need different parts of it in loop '{loop}'"
            )


Start = tuple[tuple[tuple[str, int], ...], ...]


def _region_start(program: ProgramNest, reader: StageNest, load: Load, host: StageNest, loop: str) -> Start:
    """Per dimension, the coefficients of the host's axes that the region's start moves with."""
    depth = host.positions[loop] + 1
    moving = {part.axis for part_loop in host.loops[:depth] for part in part_loop.parts}
    if host.attachment is not None:
        moving |= {axis.name for axis in host.stage.axes if _start_step(program, host, axis.name)}
    if reader.name == host.name:
        return tuple(tuple(sorted((a, c) for a, c in index.terms if a in moving)) for index in load.index)
    starts = _axis_starts(program, reader, host, loop)
    result = []
    for index in load.index:
        sums: dict[str, int] = {}
        for axis, coefficient in index.terms:
            for host_axis, inner in starts.get(axis, ()):
                sums[host_axis] = sums.get(host_axis, 0) + inner * coefficient
        result.append(tuple(sorted(sums.items())))
    return tuple(result)


def _axis_starts(
    program: ProgramNest, nest: StageNest, host: StageNest, loop: str
) -> dict[str, tuple[tuple[str, int], ...]]:
    """For every spatial axis of a stage computed inside ``host``, what its start moves with."""
    readers = program.consumers.get(nest.name, ())
    if not readers:
        return {}
    reader = program.by_name[readers[0]]
    start = _region_start(program, reader, reader.stage.loads_of(nest.name)[0], host, loop)
    return {axis.name: moves for axis, moves in zip(nest.stage.axes, start, strict=True)}


def transpose_loop(program: ProgramNest, nest: StageNest, tensor: str) -> Loop | None:
    """The unrolled loop along the rows of ``tensor`` that makes square blocks with the vector loop."""
    vector = nest.vector_loop
    loads = nest.stage.loads_of(tensor)
    producer = program.by_name.get(tensor)
    if (
        vector is None
        or len(loads) != 1
        or loads[0].padded
        or (producer is not None and producer.layout is not None)
    ):
        return None
    *outer, last = loads[0].index
    if last.coefficient(vector.axis) or not any(index.coefficient(vector.axis) for index in outer):
        return None
    for loop in nest.loops:
        if loop.kind is LoopKind.UNROLLED and loop.stride == 1 and last.coefficient(loop.axis) == 1:
            along_rows_only = not any(index.coefficient(loop.axis) for index in outer)
            if loop.trips == vector.lanes and along_rows_only:
                return loop
    return None


def slide_reach(nest: StageNest, tensor: str) -> int:
    """How far the loads of a tensor lie apart along its rows, in elements; 0 if they cannot be shared.

    They can if the vector loop runs along the rows, element by element, and along nothing else.
    """
    vector, loads = nest.vector_loop, nest.stage.loads_of(tensor)
    if vector is None or any(load.padded for load in loads):
        return 0
    for load in loads:
        *outer, last = load.index
        if last.coefficient(vector.axis) != 1 or any(index.coefficient(vector.axis) for index in outer):
            return 0
        if last.terms != loads[0].index[-1].terms:
            return 0
    places = [load.index[-1].constant for load in loads]
    return max(places) - min(places)
