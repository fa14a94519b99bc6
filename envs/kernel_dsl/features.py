"""Observations of the schedule language: named, bounded numbers, the same for every kernel and machine.

All values lie in [-1, 1], mostly logarithms divided by a fixed range. Positions are slots, as in the action
table: ``loop_2_*`` describes the third loop from outside of the stage in focus.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from solgym.envs.kernel_dsl.actions import MAX_TENSORS
from solgym.envs.kernel_dsl.kernels import Family, KernelTask
from solgym.envs.kernel_dsl.kernels.work import reduction_length
from solgym.envs.kernel_dsl.nest import Loop, LoopKind, ProgramNest, Scope, StageNest
from solgym.envs.kernel_dsl.rules import ELEMENT_BITS, MAX_LOOPS, MAX_STAGES
from solgym.envs.kernel_dsl.state import ScheduleState
from solgym.envs.rewards import Timing
from solgym.hardware.measurement import Measurement, Status
from solgym.hardware.profile import FEATURE_NAMES as PROFILE_FEATURES
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.speed_of_light import Bound, sol_fraction, speedup
from solgym.hardware.target import TargetSpec
from solgym.hardware.task import NUMPY_DTYPES

__all__ = [
    "FEATURE_GROUPS",
    "FEATURE_NAMES",
    "Feature",
    "FeatureGroup",
    "feature_limits",
    "feature_table",
    "static_features",
    "step_features",
]

MAX_EXTENTS = 8
FAMILIES: tuple[str, ...] = get_args(Family)
DTYPES = ("f32", "f64")


@dataclass(frozen=True)
class Feature:
    """One number of an observation, with the range that it keeps to."""

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class FeatureGroup:
    """Neighbouring features, repeated for each of some slots."""

    prefix: str
    slots: int
    features: tuple[Feature, ...]
    description: str

    @property
    def size(self) -> int:
        """Numbers that the group takes."""
        return self.slots * len(self.features)

    def names(self) -> Iterator[str]:
        """Full names in order."""
        for slot in range(self.slots):
            place = f"{slot}_" if self.slots > 1 else ""
            for feature in self.features:
                yield f"{self.prefix}_{place}{feature.name}"


def _unit(*names: str) -> tuple[Feature, ...]:
    return tuple(Feature(name, 0.0, 1.0) for name in names)


def _signed(*names: str) -> tuple[Feature, ...]:
    return tuple(Feature(name, -1.0, 1.0) for name in names)


_LOOP_KINDS = ("serial", "unrolled", "vector", "parallel", "device")

FEATURE_GROUPS: tuple[FeatureGroup, ...] = (
    FeatureGroup("kernel", 1, _unit(*FAMILIES, *DTYPES), "one-hot: family of the kernel, element type"),
    FeatureGroup("extent", MAX_EXTENTS, _unit("log2"), "log2 / 24, in the order of the task id; 0 if none"),
    FeatureGroup(
        "work",
        1,
        (*_unit("log2_flops", "log2_bytes"), *_signed("log2_intensity"), *_unit("log2_terms", "stages")),
        "log2 of flops / 42, of compulsory bytes / 32, of flop per byte / 12, of summed terms / 24; "
        "number of stages / 16",
    ),
    FeatureGroup(
        "machine",
        1,
        _signed(*PROFILE_FEATURES, "log2_threads", "log2_lanes", "vector_registers"),
        "the profile's log10 values / 20; log2(threads) / 8, log2(vector lanes) / 8, vector registers / 64",
    ),
    FeatureGroup(
        "bound",
        1,
        (*_unit("compute", "memory", "log10_time"), *_signed("log10_balance"), *_unit("log10_room")),
        "one-hot: what binds; -log10(speed of light in s) / 9; log10(compute / memory term) / 4; "
        "log10(baseline / speed of light) / 5",
    ),
    FeatureGroup(
        "attempt",
        1,
        (*_unit(*(status.value for status in Status)), *_signed("log10_speedup"), *_unit("spread")),
        "one-hot: status of the last candidate tried; log10(its speedup over the baseline) / 5; its relative "
        "interval",
    ),
    FeatureGroup(
        "score",
        1,
        (*_signed("gap_closed"), *_unit("sol_fraction", "log10_distance"), *_signed("log10_speedup")),
        "of the schedule in force: gap closed, fraction of the speed of light, "
        "log10(time / speed of light) / 5, log10(speedup) / 5",
    ),
    FeatureGroup("episode", 1, _unit("steps_left"), "steps left / steps of an episode"),
    FeatureGroup(
        "loop",
        MAX_LOOPS,
        _unit(
            "present", *_LOOP_KINDS, "reduction", "fused", "accumulates", "partial", "hosts", "prefetches",
            "axis", "log2_trips", "log2_stride", "log2_span",
        ),
        "loops of the stage in focus, outermost first: present, one-hot kind, flags (reduction, fused, "
        "accumulators begin here, partial sums, stages computed inside, prefetches inside), axis / 8, log2 "
        "of trips, stride and span / 24",
    ),
    FeatureGroup(
        "tensor",
        MAX_TENSORS,
        _unit(
            "present", "copy", "intermediate", "padded", "transposed", "sliding", "prefetched",
            "log2_bytes", "invariant", "contiguous", "strided",
        ),
        "tensors that the stage in focus reads: present, flags, log2(bytes) / 32, one-hot: how the innermost "
        "loop walks through it",
    ),
    FeatureGroup(
        "stage",
        MAX_STAGES,
        _unit(
            "present", "focus", "attached", "copy", "output", "sum", "max", "vectorised", "accumulates",
            "parallel", "streams", "loops", "log2_points",
        ),
        "stages in the order of computation: present, flags, loops / 14, log2(points) / 40",
    ),
)  # fmt: skip
"""All features, in the order of the observation."""

FEATURE_NAMES: tuple[str, ...] = tuple(name for group in FEATURE_GROUPS for name in group.names())
"""The name of every number of an observation."""

_OFFSETS: dict[str, int] = {}
for _group in FEATURE_GROUPS:
    _OFFSETS[_group.prefix] = sum(g.size for g in FEATURE_GROUPS[: len(_OFFSETS)])
_STATIC = _OFFSETS["attempt"]


def feature_table() -> str:
    """All features as a Markdown table: indices, names, least and largest value, meaning.

    In names, ``#`` stands for a slot; a group with slots repeats all its names for each of them.
    """
    lines = ["| index | name | min | max | meaning |", "|---|---|---|---|---|"]
    start = 0
    for group in FEATURE_GROUPS:
        place = "_#" if group.slots > 1 else ""
        names = ", ".join(feature.name for feature in group.features)
        low, high = min(f.low for f in group.features), max(f.high for f in group.features)
        index = f"{start}-{start + group.size - 1}" if group.size > 1 else f"{start}"
        slots = f" (# from 0 to {group.slots - 1})" if group.slots > 1 else ""
        lines.append(
            f"| {index} | `{group.prefix}{place}_`: {names} | {low:g} | {high:g} "
            f"| {group.description}{slots} |"
        )
        start += group.size
    return "\n".join(lines)


def feature_limits() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Least and largest value of every feature."""
    features = [f for group in FEATURE_GROUPS for _ in range(group.slots) for f in group.features]
    return (
        np.array([f.low for f in features], dtype=np.float32),
        np.array([f.high for f in features], dtype=np.float32),
    )


def static_features(
    task: KernelTask, spec: TargetSpec, profile: HardwareProfile, bound: Bound, baseline_s: float
) -> NDArray[np.float32]:
    """The first part of the observation, which stays the same throughout an episode."""
    work = task.work
    values: list[float] = [float(task.kernel.family == family) for family in FAMILIES]
    values += [float(task.dtype == dtype) for dtype in DTYPES]
    extents = [_log2(extent, 24) for extent in task.extents.values()]
    values += extents + [0.0] * (MAX_EXTENTS - len(extents))
    intensity = work.flops / work.compulsory_bytes
    values += [
        _log2(work.flops, 42),
        _log2(work.compulsory_bytes, 32),
        math.log2(max(intensity, 2**-12)) / 12,
    ]
    values += [_log2(reduction_length(task.computation), 24), len(task.computation.stages) / MAX_STAGES]
    values += [value / 20 for _, value in profile.features()]
    lanes = spec.vector_bits // ELEMENT_BITS[task.dtype]
    values += [_log2(spec.threads, 8), _log2(lanes, 8), spec.vector_registers / 64]
    memory_s = max(s for name, s in bound.terms.items() if name not in ("compute", "launch"))
    balance = math.log10(max(bound.terms["compute"], 1e-12) / max(memory_s, 1e-12))
    values += [float(bound.binding == "compute"), float(bound.binding != "compute")]
    values += [-math.log10(bound.time_s) / 9, balance / 4, math.log10(baseline_s / bound.time_s) / 5]
    return np.array(values, dtype=np.float32)


def step_features(
    static: NDArray[np.float32], state: ScheduleState, timing: Timing, last: Measurement, steps_left: float
) -> NDArray[np.float32]:
    """A fresh observation: the static part, the measurements, and the state of the schedule."""
    values = np.zeros(len(FEATURE_NAMES), dtype=np.float32)
    values[:_STATIC] = static
    _put(values, "attempt", 0, _attempt(last, timing))
    _put(values, "score", 0, _score(timing))
    _put(values, "episode", 0, [steps_left])
    stage = state.stage
    for slot, loop in enumerate(stage.loops[:MAX_LOOPS]):
        _put(values, "loop", slot, _loop(state.nest, stage, loop))
    for slot, tensor in enumerate(state.tensors[:MAX_TENSORS]):
        _put(values, "tensor", slot, _tensor(state.nest, stage, tensor))
    for slot, other in enumerate(state.nest.stages[:MAX_STAGES]):
        _put(values, "stage", slot, _stage(state.nest, other, other.name == state.focus))
    low, high = _LIMITS
    return np.clip(values, low, high)


_LIMITS = feature_limits()
_WIDTHS = {group.prefix: len(group.features) for group in FEATURE_GROUPS}


def _put(values: NDArray[np.float32], prefix: str, slot: int, numbers: list[float]) -> None:
    start = _OFFSETS[prefix] + slot * _WIDTHS[prefix]
    values[start : start + len(numbers)] = numbers


def _log2(value: float, scale: float) -> float:
    return math.log2(value) / scale if value > 1 else 0.0


def _attempt(last: Measurement, timing: Timing) -> list[float]:
    gain = 0.0 if last.time_s is None else math.log10(speedup(last.time_s, timing.baseline_s)) / 5
    return [*(float(last.status is status) for status in Status), gain, last.spread or 0.0]


def _score(timing: Timing) -> list[float]:
    sol_s = timing.bound.time_s
    return [
        timing.gap_closed,
        sol_fraction(timing.time_s, sol_s),
        math.log10(timing.time_s / sol_s) / 5,
        math.log10(speedup(timing.time_s, timing.baseline_s)) / 5,
    ]


def _loop(nest: ProgramNest, stage: StageNest, loop: Loop) -> list[float]:
    kind = loop.kind.value if loop.kind.value in _LOOP_KINDS else "device"
    axes = list(stage.axes)
    return [
        1.0,
        *(float(kind == name) for name in _LOOP_KINDS),
        float(stage.is_reduction(loop)),
        float(loop.fused),
        float(stage.accumulate == loop.name),
        float(loop.partial),
        float((stage.name, loop.name) in nest.attached),
        float(any(prefetch.loop == loop.name for prefetch in stage.prefetches)),
        (axes.index(loop.axis) + 1) / 8,
        _log2(loop.trips, 24),
        _log2(loop.stride, 24),
        _log2(loop.span, 24),
    ]


def _tensor(nest: ProgramNest, stage: StageNest, tensor: str) -> list[float]:
    producer = nest.by_name.get(tensor)
    loads = stage.stage.loads_of(tensor)
    axis = stage.loops[-1].axis
    moving = [[index.coefficient(axis) for index in load.index] for load in loads]
    strided = any(any(steps[:-1]) or steps[-1] > 1 for steps in moving)
    contiguous = not strided and any(steps[-1] for steps in moving)
    size = math.prod(nest.shape(tensor)) * NUMPY_DTYPES[nest.computation.dtype].itemsize
    return [
        1.0,
        float(producer is not None and producer.copies is not None),
        float(producer is not None and producer.copies is None),
        float(any(load.padded for load in loads)),
        float(tensor in stage.transposed),
        float(tensor in stage.sliding),
        float(any(prefetch.tensor == tensor for prefetch in stage.prefetches)),
        _log2(size, 32),
        float(not strided and not contiguous),
        float(contiguous),
        float(strided),
    ]


def _stage(nest: ProgramNest, stage: StageNest, in_focus: bool) -> list[float]:
    return [
        1.0,
        float(in_focus),
        float(stage.attachment is not None),
        float(stage.scope is not Scope.GLOBAL),
        float(stage.name in nest.computation.outputs),
        float(stage.stage.combiner == "sum"),
        float(stage.stage.combiner == "max"),
        float(stage.vector_loop is not None),
        float(stage.accumulate is not None),
        float(any(loop.kind is LoopKind.PARALLEL for loop in stage.loops)),
        float(stage.stream),
        len(stage.loops) / MAX_LOOPS,
        _log2(math.prod(axis.extent for axis in stage.stage.all_axes), 40),
    ]
