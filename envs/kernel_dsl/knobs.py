"""Knob spaces: for each kernel a finite, named set of schedule parameters.

For tuners and one-shot agents, a kernel is a handful of choices instead of a sequence of primitives. Each
configuration stands for one schedule, made of the patterns in ``patterns``. One table, ``KNOBS``, holds the
choices and the function that writes the schedule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from solgym.envs.kernel_dsl.kernels import KernelTask
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.patterns import (
    Blocking,
    ScheduleWriter,
    contraction,
    pack,
    pack_transposed,
    pointwise,
    prefetch_ahead,
    row_reduction,
    rows_inside,
    square_transpose,
)
from solgym.envs.kernel_dsl.primitives import Step
from solgym.envs.kernel_dsl.rules import ELEMENT_BITS
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.errors import IllegalSchedule, InvalidOption
from solgym.hardware.target import TargetSpec

__all__ = ["KNOBS", "Choice", "Config", "KnobSpace", "PatternAction", "knob_space", "pattern_actions"]

Choice = int | str
Config = Mapping[str, Choice]


@dataclass(frozen=True)
class Template:
    """The choices of a kernel, and the function that turns a configuration into steps.

    ``patterns`` are the knobs, and their choices, that the pattern actions vary; the others stay at their
    first.
    """

    knobs: Mapping[str, tuple[Choice, ...]]
    write: Callable[[ScheduleWriter, Mapping[str, Any], int], None]
    patterns: Mapping[str, tuple[Choice, ...]]


@dataclass(frozen=True)
class PatternAction:
    """A whole schedule skeleton as one action: its label, and its steps or the reason why there are none."""

    label: str
    steps: tuple[Step, ...] | None
    reason: str | None = None


@dataclass(frozen=True)
class KnobSpace:
    """The configurations of one task on one target.

    Attributes:
        task: the task that the schedules are for.
        target: what the schedules may use.
        knobs: name of each knob and its choices, numbers in ascending order.
    """

    task: KernelTask
    target: TargetSpec
    knobs: Mapping[str, tuple[Choice, ...]]
    template: Template

    @cached_property
    def size(self) -> int:
        """Number of configurations before constraints."""
        return math.prod(len(choices) for choices in self.knobs.values())

    def why_invalid(self, config: Config) -> str | None:
        """The reason why a configuration has no schedule, or None.

        Raises:
            InvalidOption: a knob is missing, unknown, or set to what is not among its choices.
        """
        try:
            self.schedule_from(config)
        except IllegalSchedule as error:
            return str(error)
        return None

    def is_valid(self, config: Config) -> bool:
        """Whether a configuration has a schedule."""
        return self.why_invalid(config) is None

    def schedule_from(self, config: Config) -> Schedule:
        """The schedule of a configuration.

        Raises:
            IllegalSchedule: the combination is not possible; the message says why.
            InvalidOption: a knob is missing, unknown, or set to what is not among its choices.
        """
        return self.scheduled(config)[0]

    def scheduled(self, config: Config) -> tuple[Schedule, ProgramNest]:
        """The schedule of a configuration and the nest that it makes; raises as ``schedule_from`` does."""
        self._check(config)
        writer = ScheduleWriter(ProgramNest.initial(self.task.computation), self.target)
        lanes = int(config["lanes"])
        self.template.write(writer, config, lanes)
        return Schedule(self.task.id, tuple(writer.steps)), writer.nest

    def sample(self, rng: np.random.Generator) -> dict[str, Choice]:
        """A valid configuration, uniformly."""
        for _ in range(10_000):
            config = self.decode([int(rng.integers(len(choices))) for choices in self.knobs.values()])
            if self.is_valid(config):
                return config
        raise InvalidOption(f"no valid configuration of {self.task.id} was found in 10,000 draws")

    def enumerate(self) -> Iterator[dict[str, Choice]]:
        """All valid configurations, in the order of the choices."""
        for values in itertools.product(*self.knobs.values()):
            config = dict(zip(self.knobs, values, strict=True))
            if self.is_valid(config):
                yield config

    def neighbours(self, config: Config) -> Iterator[dict[str, Choice]]:
        """All valid configurations that differ in one knob: numbers by one place, words by any."""
        self._check(config)
        for name, choices in self.knobs.items():
            place = choices.index(config[name])
            ordered = all(isinstance(choice, int) for choice in choices)
            for other, choice in enumerate(choices):
                if other == place or (ordered and abs(other - place) != 1):
                    continue
                changed = {**config, name: choice}
                if self.is_valid(changed):
                    yield changed

    def encode(self, config: Config) -> list[int]:
        """Places of the choices, in the order of the knobs: what a ``MultiDiscrete`` action holds."""
        self._check(config)
        return [choices.index(config[name]) for name, choices in self.knobs.items()]

    def decode(self, places: list[int] | np.ndarray[Any, Any]) -> dict[str, Choice]:
        """The configuration of a ``MultiDiscrete`` action."""
        return {name: choices[int(p)] for (name, choices), p in zip(self.knobs.items(), places, strict=True)}

    def _check(self, config: Config) -> None:
        if set(config) != set(self.knobs):
            raise InvalidOption(
                f"a configuration of {self.task.id} sets {', '.join(self.knobs)}; got {dict(config)}"
            )
        for name, choices in self.knobs.items():
            if config[name] not in choices:
                raise InvalidOption(
                    f"knob {name} is one of {', '.join(map(str, choices))}; got {config[name]!r}"
                )


def knob_space(task: KernelTask, target: TargetSpec) -> KnobSpace:
    """The knob space of a task on a target; vector lengths follow from the target."""
    template = KNOBS[task.kernel.name]
    native = target.vector_bits // ELEMENT_BITS[task.dtype]
    lanes: tuple[Choice, ...] = tuple(sorted({max(2, native // 2), native}))
    return KnobSpace(task, target, {**template.knobs, "lanes": lanes}, template)


def pattern_actions(task: KernelTask, target: TargetSpec) -> list[PatternAction]:
    """The skeletons of a kernel with their main parameters; labels and order depend on the kernel only.

    They apply to the untouched nest; the primitives can refine what they make.
    """
    space = knob_space(task, target)
    base: dict[str, Choice] = {name: choices[0] for name, choices in space.knobs.items()}
    base["lanes"] = space.knobs["lanes"][-1]
    actions = []
    for values in itertools.product(*space.template.patterns.values()):
        varied = dict(zip(space.template.patterns, values, strict=True))
        label = "pattern(" + ", ".join(f"{name}={value}" for name, value in varied.items()) + ")"
        try:
            schedule = space.schedule_from({**base, **varied})
        except IllegalSchedule as error:
            actions.append(PatternAction(label, None, str(error)))
        else:
            actions.append(PatternAction(label, schedule.steps))
    return actions


# ------------------------------------------------------------------------------------------ the templates


def _threads(w: ScheduleWriter) -> int:
    return int(getattr(w.limits, "threads", 1))


_TILE: dict[str, tuple[Choice, ...]] = {
    "tile_rows": (1, 2, 3, 4, 6, 8, 12, 14),
    "tile_vectors": (1, 2, 3, 4),
}
_VECTORS: tuple[Choice, ...] = (1, 2, 4, 8)
_ORDER: tuple[Choice, ...] = ("columns", "rows")
MAX_TILE_VECTORS = 42
"""Largest register tile that knobs offer, in vectors: a little beyond what fits, so that the cliff is
there."""


def _check_tile(config: Mapping[str, Any]) -> None:
    vectors = config["tile_rows"] * config["tile_vectors"]
    if vectors > MAX_TILE_VECTORS:
        raise IllegalSchedule(
            f"a register tile of {vectors} vectors is out of proportion (more than {MAX_TILE_VECTORS})"
        )


def _pack_right(
    w: ScheduleWriter, stage: str, tensor: str, blocking: Blocking, where: str, lanes: int
) -> None:
    """Pack the operand that is read in vectors: one panel at a time, a cache block, or all of it."""
    if where == "none":
        return
    if where == "whole":
        pack(w, stage, tensor, None, lanes=lanes, threads=_threads(w))
        return
    loop = blocking.column_panel if where == "panel" else blocking.reduction_block or blocking.column_block
    if loop is None:
        raise IllegalSchedule(f"there is no {where} loop to pack {tensor} in with these blocks")
    pack(w, stage, tensor, loop, lanes=lanes)


def _gemm(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
    _check_tile(c)
    blocking = contraction(
        w, "C", rows="i", columns="j", lanes=lanes, tile_rows=c["tile_rows"], tile_vectors=c["tile_vectors"],
        block_rows=c["block_rows"], block_columns=c["block_columns"], block_reduction=c["block_reduction"],
        order=c["order"], threads=_threads(w),
    )  # fmt: skip
    _pack_right(w, "C", "B", blocking, c["pack_b"], lanes)
    if c["pack_a"] == "block":
        loop = blocking.row_block or blocking.reduction_block
        if loop is None:
            raise IllegalSchedule("packing A takes a block of rows or of the reduction")
        pack(w, "C", "A", loop, lanes=lanes)


def _batched_gemm(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
    _check_tile(c)
    blocking = contraction(
        w, "C", rows="i", columns="j", lanes=lanes, tile_rows=c["tile_rows"], tile_vectors=c["tile_vectors"],
        order=c["order"], threads=_threads(w),
    )  # fmt: skip
    _pack_right(w, "C", "B", blocking, c["pack_b"], lanes)


def _row_sums(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
    row_reduction(w, "y", lanes=lanes, tile_rows=c["tile_rows"], partial=c["partial"], threads=_threads(w))
    if c["prefetch"]:
        prefetch_ahead(w, "y", w.nest.computation.inputs[0].name, c["prefetch"])


def _fused_product(
    w: ScheduleWriter, product: str, epilogue: str, right: str, c: Mapping[str, Any], lanes: int
) -> None:
    """A product and the elementwise stage after it, one register tile at a time or one after the other."""
    rows, columns = (axis.name for axis in w.stage(epilogue).stage.axes)
    if c["fuse"] == "tile":
        column_panel, column_tile = w.tile(epilogue, columns, lanes * c["tile_vectors"])
        row_panel, row_tile = w.tile(epilogue, rows, c["tile_rows"])
        panels = [column_panel, row_panel] if c["order"] == "columns" else [row_panel, column_panel]
        w.order(epilogue, [*panels, row_tile, column_tile])
        inner = [loop for loop in panels if loop is not None]
        if not inner:
            raise IllegalSchedule("the register tile covers everything; there is no loop to fuse in")
        w.do("compute_at", product, at=epilogue, loop=inner[-1])
    product_rows, product_columns = (axis.name for axis in w.stage(product).stage.axes)
    blocking = contraction(
        w, product, rows=product_rows, columns=product_columns, lanes=lanes, tile_rows=c["tile_rows"],
        tile_vectors=c["tile_vectors"], order=c["order"], threads=_threads(w),
    )  # fmt: skip
    pointwise(w, epilogue, lanes=lanes, tile_vectors=4, threads=_threads(w))
    if c["pack_b"] == "panel" and c["fuse"] == "tile":
        raise IllegalSchedule("a fused tile has no panel of its own to pack; pack the whole operand")
    _pack_right(w, product, right, blocking, c["pack_b"], lanes)


def _gemm_bias_gelu(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
    _check_tile(c)
    _fused_product(w, "acc", "out", "B", c, lanes)


def _mlp(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
    _check_tile(c)
    _fused_product(w, "acc1", "H", "W1", c, lanes)
    _fused_product(w, "acc2", "Y", "W2", c, lanes)


def _conv2d(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
    _check_tile(c)
    contraction(
        w, "Y", rows="x", columns="k", lanes=lanes, tile_rows=c["tile_rows"], tile_vectors=c["tile_vectors"],
        block_reduction=c["block_reduction"], order=c["order"], threads=_threads(w),
    )  # fmt: skip
    if c["pack_x"] == "whole":
        pack(w, "Y", "X", None, lanes=lanes, threads=_threads(w))
    elif c["pack_x"] == "row":
        loop = w.stage("Y").loops[w.stage("Y").positions["y"]]
        pack(w, "Y", "X", loop.name, lanes=lanes)


def _pointwise(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
    if c["tile_rows"] * c["tile_vectors"] > MAX_TILE_VECTORS:
        raise IllegalSchedule("so many rows and vectors at once are out of proportion")
    pointwise(
        w, "Y", lanes=lanes, tile_rows=c["tile_rows"], tile_vectors=c["tile_vectors"],
        stream=c["stream"] == "yes", threads=_threads(w),
    )  # fmt: skip
    if c["prefetch"]:
        prefetch_ahead(w, "Y", w.nest.computation.inputs[0].name, c["prefetch"])


def _stencil(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
    _pointwise(w, c, lanes)
    if c["slide"] == "yes":
        w.do("slide", "Y", tensor="X")


def _rows(stages: Mapping[str, str], host: str) -> Callable[[ScheduleWriter, Mapping[str, Any], int], None]:
    """Row-wise kernels: reductions and elementwise stages, for a few rows at a time or one after the other.

    Prefetching touches the next row of the input while the second of the stages works on the current one.
    """

    def write(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
        rows = w.stage(host).stage.axes[0].name
        if c["fuse"] == "rows" and rows_inside(w, host, rows, c["tile_rows"], list(stages)) is None:
            raise IllegalSchedule(f"{c['tile_rows']} rows are all there are; there is no loop to fuse in")
        threads = _threads(w)
        for stage, kind in stages.items():
            if kind == "reduction":
                row_reduction(
                    w, stage, lanes=lanes, tile_rows=c["tile_rows"], partial=c["partial"], threads=threads
                )
            else:
                pointwise(w, stage, lanes=lanes, tile_vectors=c["tile_vectors"], threads=threads)
        stream = c["stream"] == "yes"
        pointwise(w, host, lanes=lanes, tile_vectors=c["tile_vectors"], stream=stream, threads=threads)
        if c["prefetch"] == "next row":
            prefetch_ahead(w, list(stages)[1], w.nest.computation.inputs[0].name, 0)

    return write


def _attention(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
    _check_tile(c)
    inner = ["S", "m", "P", "l", "O"]
    rows_inside(w, "out", "i", c["tile_rows"] * c["row_tiles"], inner)
    tile = {"lanes": lanes, "tile_rows": c["tile_rows"], "tile_vectors": c["tile_vectors"]}
    contraction(w, "S", rows="i", columns="j", **tile)
    if c["pack_k"] == "transposed":
        pack_transposed(w, "S", "K", lanes=lanes, threads=_threads(w))
    row_reduction(w, "m", lanes=lanes, partial=c["partial"])
    pointwise(w, "P", lanes=lanes, tile_vectors=c["partial"])
    row_reduction(w, "l", lanes=lanes, partial=c["partial"])
    contraction(w, "O", rows="i", columns="d", **tile)
    pointwise(w, "out", lanes=lanes, tile_vectors=4, threads=_threads(w))


def _transpose(w: ScheduleWriter, c: Mapping[str, Any], lanes: int) -> None:
    square_transpose(
        w, "Y", "X", lanes=lanes, block_rows=c["block_rows"], block_columns=c["block_columns"],
        order=c["order"], stream=c["stream"] == "yes", threads=_threads(w),
    )  # fmt: skip


_STREAM: tuple[Choice, ...] = ("no", "yes")
_FUSED: dict[str, tuple[Choice, ...]] = {
    **_TILE, "order": _ORDER, "fuse": ("none", "tile"), "pack_b": ("none", "panel", "whole"),
}  # fmt: skip
_ELEMENTWISE: dict[str, tuple[Choice, ...]] = {
    "tile_rows": (1, 2, 3, 4, 6, 8), "tile_vectors": _VECTORS, "stream": _STREAM,
    "prefetch": (0, 2, 4, 8, 16),
}  # fmt: skip
_STENCIL: dict[str, tuple[Choice, ...]] = {**_ELEMENTWISE, "slide": ("no", "yes")}
_ROWS: dict[str, tuple[Choice, ...]] = {
    "fuse": ("none", "rows"), "tile_rows": (1, 2, 4, 8), "partial": _VECTORS, "tile_vectors": _VECTORS,
    "stream": _STREAM, "prefetch": ("none", "next row"),
}  # fmt: skip
_REDUCTION: dict[str, tuple[Choice, ...]] = {
    "tile_rows": (1, 2, 4, 8), "partial": (1, 2, 4, 8, 16), "prefetch": (0, 2, 4, 8, 16, 32),
}  # fmt: skip
_BLOCKS: tuple[Choice, ...] = (0, 16, 32, 48, 64, 96, 128, 192, 256, 512)

_TILES: dict[str, tuple[Choice, ...]] = {"tile_rows": (4, 6, 8, 12, 14), "tile_vectors": (1, 2, 3, 4)}
_POINTS: dict[str, tuple[Choice, ...]] = {
    "tile_rows": (1, 2, 4),
    "tile_vectors": (1, 2, 4),
    "stream": _STREAM,
}
_SUMS: dict[str, tuple[Choice, ...]] = {"tile_rows": (1, 2, 4), "partial": (1, 2, 4, 8)}
_SKELETON: dict[str, tuple[Choice, ...]] = {
    "fuse": ("none", "rows"), "tile_rows": (1, 4), "partial": (1, 4), "tile_vectors": (1, 4),
}  # fmt: skip

KNOBS: dict[str, Template] = {
    "gemm": Template(
        {
            **_TILE, "block_rows": (0, 48, 96, 144, 288), "block_columns": (0, 128, 256, 384, 512),
            "block_reduction": (0, 64, 128, 256, 512), "order": _ORDER,
            "pack_b": ("none", "panel", "block", "whole"), "pack_a": ("none", "block"),
        },
        _gemm,
        {**_TILES, "pack_b": ("none", "whole")},
    ),
    "batched_gemm": Template(
        {**_TILE, "order": _ORDER, "pack_b": ("none", "panel", "whole")}, _batched_gemm, _TILES
    ),
    "gemv": Template(_REDUCTION, _row_sums, _SUMS),
    "gemm_bias_gelu": Template(_FUSED, _gemm_bias_gelu, {**_TILES, "fuse": ("none", "tile")}),
    "mlp": Template(_FUSED, _mlp, {**_TILES, "fuse": ("none", "tile")}),
    "conv2d": Template(
        {**_TILE, "block_reduction": (0, 8, 16, 32, 64), "order": _ORDER, "pack_x": ("none", "row", "whole")},
        _conv2d,
        {**_TILES, "pack_x": ("none", "whole")},
    ),
    "depthwise_conv2d": Template(_ELEMENTWISE, _pointwise, _POINTS),
    "stencil2d": Template(_STENCIL, _stencil, _POINTS),
    "stencil3d": Template(_STENCIL, _stencil, _POINTS),
    "reduction": Template(_REDUCTION, _row_sums, _SUMS),
    "softmax": Template(_ROWS, _rows({"m": "reduction", "e": "pointwise", "s": "reduction"}, "Y"), _SKELETON),
    "layernorm": Template(_ROWS, _rows({"total": "reduction", "squares": "reduction"}, "Y"), _SKELETON),
    "attention": Template(
        {**_TILE, "row_tiles": (1, 2, 4, 8), "partial": _VECTORS, "pack_k": ("none", "transposed")},
        _attention,
        {**_TILES, "pack_k": ("none", "transposed")},
    ),
    "transpose": Template(
        {"block_rows": _BLOCKS, "block_columns": _BLOCKS, "order": _ORDER, "stream": _STREAM},
        _transpose,
        {"block_rows": (0, 64), "block_columns": (0, 64), "order": _ORDER, "stream": _STREAM},
    ),
    "elementwise": Template(_ELEMENTWISE, _pointwise, _POINTS),
}  # fmt: skip
