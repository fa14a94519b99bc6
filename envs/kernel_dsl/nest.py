"""Loop nests: how a computation is carried out at some point of its scheduling.

Every stage has an ordered list of loops, outermost first. There is no tree of splits: a loop runs over
one axis with a stride, and the value of an axis is the sum of its loops. Wherever a stride does not divide
what encloses it, lowering peels the remainder, so every extent is known when code is generated. All
classes are immutable; ``primitives`` makes new nests from old ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from solgym.envs.kernel_dsl.expression import Axis, Computation, Stage

__all__ = [
    "Attachment", "Layout", "Loop", "LoopKind", "LoopPart", "Prefetch", "ProgramNest", "Scope", "StageNest",
]  # fmt: skip

Layout = tuple[tuple[int, int], ...]
"""Storage order of a buffer, outermost first: pairs (dimension, tile).

``((1, 64), (0, 1), (1, 1))`` stores panels of 64 columns, in each panel row after row. The last entry of
every dimension has tile 1.
"""


class LoopKind(str, Enum):
    """How the iterations of a loop are carried out. What a target allows is in its specification."""

    SERIAL = "serial"
    UNROLLED = "unrolled"
    VECTOR = "vector"
    PARALLEL = "parallel"
    BLOCK_X = "block_x"
    BLOCK_Y = "block_y"
    BLOCK_Z = "block_z"
    THREAD_X = "thread_x"
    THREAD_Y = "thread_y"
    THREAD_Z = "thread_z"


class Scope(str, Enum):
    """Where a buffer lives: a CPU has global, packed and register; a GPU also shared."""

    GLOBAL = "global"
    PACKED = "packed"
    SHARED = "shared"
    REGISTER = "register"


class LoopPart(NamedTuple):
    """One axis that a loop advances: by ``stride`` elements a trip, over ``span`` elements in all."""

    axis: str
    stride: int
    span: int

    @property
    def trips(self) -> int:
        """Number of trips, the last of which may be partial."""
        return -(-self.span // self.stride)


class Loop(NamedTuple):
    """A loop over one axis, or over several at once after ``fuse``. ``lanes`` is for vector loops."""

    name: str
    parts: tuple[LoopPart, ...]
    kind: LoopKind = LoopKind.SERIAL
    lanes: int = 0
    partial: bool = False

    @property
    def axis(self) -> str:
        """The axis of a loop with one part."""
        return self.parts[0].axis

    @property
    def stride(self) -> int:
        """Elements that one trip advances, for a loop with one part."""
        return self.parts[0].stride

    @property
    def span(self) -> int:
        """Elements that the whole loop covers at most, for a loop with one part."""
        return self.parts[0].span

    @property
    def fused(self) -> bool:
        """Whether the loop advances several axes."""
        return len(self.parts) > 1

    @property
    def trips(self) -> int:
        """Number of trips where nothing is peeled off."""
        total = 1
        for part in self.parts:
            total *= part.trips
        return total

    def __str__(self) -> str:
        return f"'{self.name}' ({self.trips} trips)"


@dataclass(frozen=True)
class Attachment:
    """Where a stage is computed: at the start of every iteration of a loop of a later stage."""

    stage: str
    loop: str


@dataclass(frozen=True)
class Prefetch:
    """Touch the part of ``tensor`` that ``loop`` will read ``distance`` trips later."""

    tensor: str
    loop: str
    distance: int


@dataclass(frozen=True)
class StageNest:
    """The loops of one stage and what goes with them.

    Attributes:
        stage: what is computed; its loads may have been redirected to packed copies.
        loops: outermost first.
        accumulate: the loop around which the results are held in registers, if any.
        attachment: None for a stage that is computed on its own, before its consumers.
        layout: storage order of the tensor, None for row-major.
        scope: where the tensor lives.
        copies: the tensor that this stage is a packed copy of, if it is one.
        transposed: tensors that are read in square blocks and transposed in registers.
        sliding: tensors whose overlapping vectors are read once and shifted in registers.
        prefetches: what is touched ahead of its use.
        stream: stores bypass the caches where they can.
    """

    stage: Stage
    loops: tuple[Loop, ...]
    accumulate: str | None = None
    attachment: Attachment | None = None
    layout: Layout | None = None
    scope: Scope = Scope.GLOBAL
    copies: str | None = None
    transposed: tuple[str, ...] = ()
    sliding: tuple[str, ...] = ()
    prefetches: tuple[Prefetch, ...] = ()
    stream: bool = False

    @property
    def name(self) -> str:
        """Name of the stage and of its tensor."""
        return self.stage.name

    @cached_property
    def axes(self) -> dict[str, Axis]:
        """All axes by name."""
        return {axis.name: axis for axis in self.stage.all_axes}

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position of every loop by name."""
        return {loop.name: position for position, loop in enumerate(self.loops)}

    def is_reduction(self, loop: Loop) -> bool:
        """Whether a loop advances a reduction axis."""
        return any(self.axes[part.axis].reduction for part in loop.parts)

    @cached_property
    def vector_loop(self) -> Loop | None:
        """The vector loop, if there is one; it is innermost."""
        if self.loops and self.loops[-1].kind is LoopKind.VECTOR:
            return self.loops[-1]
        return None

    @cached_property
    def accumulate_position(self) -> int | None:
        """Position of the loop around which results stay in registers."""
        return None if self.accumulate is None else self.positions[self.accumulate]

    def remaining(self, depth: int) -> dict[str, int]:
        """Extent of every axis that the loops from position ``depth`` on cover at most."""
        extents = {axis.name: axis.extent for axis in self.stage.all_axes}
        for loop in self.loops[:depth]:
            for part in loop.parts:
                extents[part.axis] = min(part.stride, extents[part.axis])
        return extents


@dataclass(frozen=True)
class ProgramNest:
    """All stages of a computation in the order in which they are computed."""

    computation: Computation
    stages: tuple[StageNest, ...]

    @classmethod
    def initial(cls, computation: Computation) -> ProgramNest:
        """The untouched nest: one serial loop per axis, in the order in which the axes are declared."""
        return cls(
            computation,
            tuple(
                StageNest(
                    stage,
                    tuple(Loop(a.name, (LoopPart(a.name, 1, a.extent),)) for a in stage.all_axes),
                )
                for stage in computation.stages
            ),
        )

    @cached_property
    def by_name(self) -> dict[str, StageNest]:
        """Stages by name."""
        return {nest.name: nest for nest in self.stages}

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """Names of the stages that read each tensor, in order."""
        readers: dict[str, list[str]] = {}
        for nest in self.stages:
            for tensor in nest.stage.reads:
                readers.setdefault(tensor, []).append(nest.name)
        return {tensor: tuple(names) for tensor, names in readers.items()}

    @cached_property
    def attached(self) -> dict[tuple[str, str], tuple[StageNest, ...]]:
        """Stages computed inside each (stage, loop), in order."""
        found: dict[tuple[str, str], list[StageNest]] = {}
        for nest in self.stages:
            if nest.attachment is not None:
                found.setdefault((nest.attachment.stage, nest.attachment.loop), []).append(nest)
        return {key: tuple(nests) for key, nests in found.items()}

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Shape of an input or of a stage's tensor."""
        nest = self.by_name.get(tensor)
        return nest.stage.tensor.shape if nest else self.computation.tensor(tensor).shape

    def with_stage(self, nest: StageNest) -> ProgramNest:
        """Replace the stage of the same name."""
        return replace(self, stages=tuple(nest if s.name == nest.name else s for s in self.stages))

    def with_stage_before(self, nest: StageNest, successor: str) -> ProgramNest:
        """Insert a stage in front of another one."""
        position = [s.name for s in self.stages].index(successor)
        return replace(self, stages=(*self.stages[:position], nest, *self.stages[position:]))

    def __str__(self) -> str:
        """Readable pseudocode of the whole program; see ``pseudocode``."""
        from solgym.envs.kernel_dsl.pseudocode import pseudocode  # it needs this module

        return pseudocode(self)
