"""Observations of the schedule language: named, bounded numbers, the same for every kernel and machine.

All values lie in [-1, 1], mostly logarithms divided by a fixed range. Positions are slots, as in the action
table: ``loop_2_*`` describes the third loop from outside of the stage in focus.
"""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from solgym.envs.kernel_dsl.actions import MAX_TENSORS
from solgym.envs.kernel_dsl.kernels import Family, KernelTask
from solgym.envs.kernel_dsl.kernels.work import reduction_length
from solgym.envs.kernel_dsl.nest import Loop, LoopKind, ProgramNest, Scope, StageNest
from solgym.envs.kernel_dsl.rules import ELEMENT_BITS, MAX_LOOPS, MAX_STAGES
from solgym.envs.kernel_dsl.state import ScheduleState
from solgym.envs.machine_features import (
    ATTEMPT,
    BOUND,
    EPISODE,
    MACHINE,
    SCORE,
    FeatureGroup,
    attempt_features,
    bound_features,
    group_limits,
    group_names,
    group_table,
    log2_scaled,
    machine_features,
    score_features,
    signed,
    unit,
)
from solgym.envs.rewards import Timing
from solgym.hardware.measurement import Measurement
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.speed_of_light import Bound
from solgym.hardware.target import TargetSpec
from solgym.hardware.task import NUMPY_DTYPES

__all__ = [
    "FEATURE_GROUPS",
    "FEATURE_NAMES",
    "feature_limits",
    "feature_table",
    "static_features",
    "step_features",
]

MAX_EXTENTS = 8
FAMILIES: tuple[str, ...] = get_args(Family)
DTYPES = ("f32", "f64")


_LOOP_KINDS = ("serial", "unrolled", "vector", "parallel", "device")

FEATURE_GROUPS: tuple[FeatureGroup, ...] = (
    FeatureGroup("kernel", 1, unit(*FAMILIES, *DTYPES), "one-hot: family of the kernel, element type"),
    FeatureGroup("extent", MAX_EXTENTS, unit("log2"), "log2 / 24, in the order of the task id; 0 if none"),
    FeatureGroup(
        "work",
        1,
        (*unit("log2_flops", "log2_bytes"), *signed("log2_intensity"), *unit("log2_terms", "stages")),
        "log2 of flops / 42, of compulsory bytes / 32, of flop per byte / 12, of summed terms / 24; "
        "number of stages / 16",
    ),
    MACHINE,
    BOUND,
    ATTEMPT,
    SCORE,
    EPISODE,
    FeatureGroup(
        "loop",
        MAX_LOOPS,
        unit(
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
        unit(
            "present", "copy", "intermediate", "padded", "transposed", "sliding", "prefetched",
            "log2_bytes", "invariant", "contiguous", "strided",
        ),
        "tensors that the stage in focus reads: present, flags, log2(bytes) / 32, one-hot: how the innermost "
        "loop walks through it",
    ),
    FeatureGroup(
        "stage",
        MAX_STAGES,
        unit(
            "present", "focus", "attached", "copy", "output", "sum", "max", "vectorised", "accumulates",
            "parallel", "streams", "loops", "log2_points",
        ),
        "stages in the order of computation: present, flags, loops / 14, log2(points) / 40",
    ),
)  # fmt: skip
"""All features, in the order of the observation."""

FEATURE_NAMES: tuple[str, ...] = group_names(FEATURE_GROUPS)
"""The name of every number of an observation."""

_OFFSETS: dict[str, int] = {}
for _group in FEATURE_GROUPS:
    _OFFSETS[_group.prefix] = sum(g.size for g in FEATURE_GROUPS[: len(_OFFSETS)])
_STATIC = _OFFSETS["attempt"]


def feature_table() -> str:
    """All features as a Markdown table: indices, names, least and largest value, meaning.

    In names, ``#`` stands for a slot; a group with slots repeats all its names for each of them.
    """
    return group_table(FEATURE_GROUPS)


def feature_limits() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Least and largest value of every feature."""
    return group_limits(FEATURE_GROUPS)


def static_features(
    task: KernelTask, spec: TargetSpec, profile: HardwareProfile, bound: Bound, baseline_s: float
) -> NDArray[np.float32]:
    """The first part of the observation, which stays the same throughout an episode."""
    work = task.work
    values: list[float] = [float(task.kernel.family == family) for family in FAMILIES]
    values += [float(task.dtype == dtype) for dtype in DTYPES]
    extents = [log2_scaled(extent, 24) for extent in task.extents.values()]
    values += extents + [0.0] * (MAX_EXTENTS - len(extents))
    intensity = work.flops / work.compulsory_bytes
    values += [
        log2_scaled(work.flops, 42),
        log2_scaled(work.compulsory_bytes, 32),
        math.log2(max(intensity, 2**-12)) / 12,
    ]
    values += [log2_scaled(reduction_length(task.computation), 24), len(task.computation.stages) / MAX_STAGES]
    values += machine_features(profile, spec, ELEMENT_BITS[task.dtype])
    values += bound_features(bound, baseline_s)
    return np.array(values, dtype=np.float32)


def step_features(
    static: NDArray[np.float32], state: ScheduleState, timing: Timing, last: Measurement, steps_left: float
) -> NDArray[np.float32]:
    """A fresh observation: the static part, the measurements, and the state of the schedule."""
    values = np.zeros(len(FEATURE_NAMES), dtype=np.float32)
    values[:_STATIC] = static
    _put(values, "attempt", 0, attempt_features(last, timing))
    _put(values, "score", 0, score_features(timing))
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
        log2_scaled(loop.trips, 24),
        log2_scaled(loop.stride, 24),
        log2_scaled(loop.span, 24),
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
        log2_scaled(size, 32),
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
        log2_scaled(math.prod(axis.extent for axis in stage.stage.all_axes), 40),
    ]
