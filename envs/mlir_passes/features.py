"""Observations of MLIRPasses as numbers: named, bounded, the same for every program and machine.

``mqss`` is 28 numbers of the module; ``full`` adds what each loop depth holds, the machine, what was measured
and the last actions. All lie in [-1, 1], mostly logarithms divided by a fixed range. What depends on the
module (``mqss`` and ``module_part``) is computed in the pass worker, the rest in the user's process, which
imports names and limits from here without loading MLIR.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

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
from solgym.envs.mlir_passes.kinds import KINDS
from solgym.envs.rewards import Timing
from solgym.hardware.measurement import Measurement
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.speed_of_light import Bound
from solgym.hardware.target import TargetSpec
from solgym.hardware.task import NUMPY_DTYPES

if TYPE_CHECKING:
    from torch_mlir import ir

    from solgym.envs.mlir_passes.module_survey import Survey

__all__ = [
    "FULL_GROUPS",
    "FULL_NAMES",
    "LEVELS",
    "MQSS_GROUPS",
    "MQSS_NAMES",
    "Context",
    "feature_limits",
    "feature_table",
    "full",
    "module_part",
    "mqss",
    "survey",
]

LEVELS: Final = ("tensor", "linalg", "affine", "scf", "cf", "llvm")
"""Dialect levels of a module, from high to low."""

TARGETS: Final = ("cpu", "gpu")
DEPTHS: Final = 8
RECENT_ACTIONS: Final = 8

_COUNTED: Final[dict[str, tuple[str, ...]]] = {
    "loads": ("load",),
    "stores": ("store",),
    "float": ("float",),
    "function": ("function",),
    "integer": ("integer", "selection"),
    "structured": ("structured",),
    "view": ("view", "allocation"),
    "vector": ("contraction", "shuffle"),
}

MQSS_GROUPS: Final[tuple[FeatureGroup, ...]] = (
    FeatureGroup(
        "structure",
        1,
        unit(
            "max_loop_depth", "log2_blocks", "log2_block_arguments", "load_store_share", "vectorisable_share",
            "log2_operations", "log2_functions", "log2_loops",
        ),
        "deepest loop nest / 16; log2(1 + n) of blocks and of block arguments, which MLIR has in the place "
        "of phis, / 16; loads and stores, and floating-point operations on single numbers inside loops, as "
        "shares of all operations; log2(1 + n) of operations / 20, of functions / 8, of loops / 16, those "
        "that linalg operations stand for included",
    ),
    FeatureGroup(
        "count",
        1,
        unit(*_COUNTED),
        "log2(1 + n) / 16 of operations by kind: loads, stores, floating-point arithmetic, elementary "
        "functions, integers and comparisons, linalg operations, views and allocations, operations on "
        "whole vectors",
    ),
    FeatureGroup(
        "shape",
        1,
        unit("log2_largest", "log2_smallest", "rank", "log2_innermost"),
        "of the types of tensors and buffers, slices included: log2 of elements of the largest / 32 and of "
        "the smallest / 32; most extents / 8; mean log2 of the last extent / 24",
    ),
    FeatureGroup(
        "bits",
        1,
        unit("element", "log2_vector"),
        "bits of the widest floating-point number / 64; log2 of the bits of the largest vector / 20",
    ),
    FeatureGroup(
        "constant",
        1,
        (*unit("log2_integer"), *signed("log10_float")),
        "log2(1 + largest absolute integer constant) / 64; log10 of the largest absolute finite "
        "floating-point constant / 40",
    ),
    FeatureGroup(
        "context",
        1,
        unit("level", "target", "passes_hash", "log2_passes"),
        "dialect level: 0 tensor, 0.2 linalg on buffers, 0.4 affine, 0.6 scf, 0.8 cf, 1 llvm; target: 0 "
        "cpu, 1 gpu; CRC-32 of the names of the applied passes / 2**32, 0 without any; log2(1 + passes "
        "applied) / 8",
    ),
)  # fmt: skip
"""The features of ``observation="mqss"``: 8 of structure, 16 statistics, 4 of context."""

_MODULE_GROUPS: Final[tuple[FeatureGroup, ...]] = (
    FeatureGroup(
        "operations",
        DEPTHS,
        unit(*KINDS),
        "operations inside # loops (7: or more), by kind: log2(1 + n) / 16",
    ),
    FeatureGroup(
        "loops",
        DEPTHS,
        unit(
            "log2_count", "structured", "estimated", "log2_trips", "log2_iterations", "log2_footprint",
        ),
        "loops inside # others (7: or more): log2(1 + n) / 12; share that linalg operations stand for; "
        "share whose trip count is not constant; log2 of the largest trip count / 32, of iterations with "
        "the loops around / 64, of the bytes that one run of a loop touches / 40",
    ),
    FeatureGroup(
        "registers",
        1,
        unit("log2_vector", "log2_integer"),
        "log2(1 + n) / 12 of the most registers of 512 bits that floating-point values and vectors need at "
        "one place, and of the most integers and indices alive at one place",
    ),
)  # fmt: skip

FULL_GROUPS: Final[tuple[FeatureGroup, ...]] = (
    *MQSS_GROUPS,
    *_MODULE_GROUPS,
    MACHINE,
    BOUND,
    ATTEMPT,
    SCORE,
    EPISODE,
    FeatureGroup(
        "action",
        RECENT_ACTIONS,
        unit("index"),
        "the action taken # steps before the last one: (index + 1) / number of actions; 0 if there was none",
    ),
)
"""The features of ``observation="full"``."""

MQSS_NAMES: Final[tuple[str, ...]] = group_names(MQSS_GROUPS)
"""The name of every number of ``mqss``."""

FULL_NAMES: Final[tuple[str, ...]] = group_names(FULL_GROUPS)
"""The name of every number of ``full``; the first are those of ``mqss``."""

_MODULE_SIZE: Final = sum(group.size for group in _MODULE_GROUPS)
_MQSS_LIMITS: Final = group_limits(MQSS_GROUPS)
_MODULE_LIMITS: Final = group_limits(_MODULE_GROUPS)
_REST_LIMITS: Final = group_limits(FULL_GROUPS[len(MQSS_GROUPS) + len(_MODULE_GROUPS) :])


def feature_table() -> str:
    """All features of ``full`` as a Markdown table; the first 28 rows of indices are those of ``mqss``."""
    return group_table(FULL_GROUPS)


def feature_limits(names: Sequence[str] = FULL_NAMES) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Least and largest value of the features of ``full``, or of its first ``len(names)``."""
    low, high = group_limits(FULL_GROUPS)
    return low[: len(names)], high[: len(names)]


@dataclass(frozen=True)
class Context:
    """What ``full`` tells beside the module.

    Attributes:
        profile: peaks of the machine.
        spec: the target.
        bound: speed of light of the task.
        timing: of the candidate in force.
        last: what became of the candidate tried last.
        steps_left: steps left / steps of an episode.
        recent_actions: indices of the last actions, the last one at the end.
        actions: how many actions there are.
    """

    profile: HardwareProfile
    spec: TargetSpec
    bound: Bound
    timing: Timing
    last: Measurement
    steps_left: float
    recent_actions: tuple[int, ...]
    actions: int


def survey(module: ir.Operation, detailed: bool = True) -> Survey:
    """Walk a module once and collect what its features need.

    Args:
        module: the module.
        detailed: whether ``module_part`` will be asked for; ``mqss`` alone takes a third of the time.
    """
    from solgym.envs.mlir_passes import module_survey

    return module_survey.survey(module, detailed)


def mqss(survey: Survey, level: str, target: str, actions: Sequence[str]) -> NDArray[np.float32]:
    """The 28 features of ``MQSS_NAMES``.

    Args:
        survey: of the module.
        level: its dialect level, one of ``LEVELS``.
        target: ``cpu`` or ``gpu``.
        actions: names of the actions applied so far.
    """
    operations = survey.operations
    digest = zlib.crc32("\n".join(actions).encode()) if actions else 0
    values = [
        survey.max_loop_depth / 16,
        _count(survey.blocks, 16),
        _count(survey.block_arguments, 16),
        survey.count("load", "store") / operations,
        survey.vectorisable / operations,
        _count(operations, 20),
        _count(survey.functions, 8),
        _count(survey.loops, 16),
        *(_count(survey.count(*kinds), 16) for kinds in _COUNTED.values()),
        log2_scaled(survey.largest_elements, 32),
        log2_scaled(survey.smallest_elements, 32),
        survey.largest_rank / 8,
        survey.mean_log2_innermost / 24,
        survey.element_bits / 64,
        log2_scaled(survey.vector_bits, 20),
        _count(survey.largest_integer, 64),
        math.log10(survey.largest_float) / 40 if survey.largest_float else 0.0,
        LEVELS.index(level) / (len(LEVELS) - 1),
        float(TARGETS.index(target)),
        digest / 2**32,
        _count(len(actions), 8),
    ]
    return _bounded(values, _MQSS_LIMITS)


def module_part(survey: Survey) -> NDArray[np.float32]:
    """The features of ``full`` that depend on the module and are not in ``mqss``; needs a detailed survey."""
    values = [_count(count, 16) for row in survey.histogram for count in row]
    for level in survey.levels:
        loops = max(level.loops, 1)
        values += [
            _count(level.loops, 12),
            level.structured / loops,
            level.estimated / loops,
            log2_scaled(level.trips, 32),
            log2_scaled(level.iterations, 64),
            log2_scaled(level.footprint_bytes, 40),
        ]
    values += [_count(survey.vector_pressure, 12), _count(survey.integer_pressure, 12)]
    return _bounded(values, _MODULE_LIMITS)


def full(numbers: NDArray[np.float32], context: Context) -> NDArray[np.float32]:
    """All features of ``FULL_NAMES``.

    Args:
        numbers: ``mqss`` and ``module_part`` one after the other, as they come from the pass worker.
        context: the rest.
    """
    element_bits = 8 * NUMPY_DTYPES[context.bound.work.dtype].itemsize
    recent = [(index + 1) / context.actions for index in reversed(context.recent_actions)][:RECENT_ACTIONS]
    values = [
        *machine_features(context.profile, context.spec, element_bits),
        *bound_features(context.bound, context.timing.baseline_s),
        *attempt_features(context.last, context.timing),
        *score_features(context.timing),
        context.steps_left,
        *recent,
        *[0.0] * (RECENT_ACTIONS - len(recent)),
    ]
    assert len(numbers) == len(MQSS_NAMES) + _MODULE_SIZE, "the numbers of a module are those of full"
    return np.concatenate([numbers, _bounded(values, _REST_LIMITS)])


def _count(number: float, scale: float) -> float:
    return math.log2(1 + number) / scale


def _bounded(
    values: Sequence[float], limits: tuple[NDArray[np.float32], NDArray[np.float32]]
) -> NDArray[np.float32]:
    return np.clip(np.array(values, dtype=np.float32), *limits)
