"""Parts of observations that every family shares: the machine, the speed of light, and what was measured.

A part is a ``FeatureGroup``, which names and bounds its numbers, and a function that computes them. All
numbers lie in [-1, 1], mostly logarithms divided by a fixed range. Families add groups of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solgym.envs.rewards import Timing
from solgym.hardware.measurement import Measurement, Status
from solgym.hardware.profile import FEATURE_NAMES as PROFILE_FEATURES
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.speed_of_light import Bound, sol_fraction, speedup
from solgym.hardware.target import TargetSpec

__all__ = [
    "ATTEMPT",
    "BOUND",
    "EPISODE",
    "MACHINE",
    "SCORE",
    "Feature",
    "FeatureGroup",
    "attempt_features",
    "bound_features",
    "group_limits",
    "group_names",
    "group_table",
    "log2_scaled",
    "machine_features",
    "score_features",
    "signed",
    "unit",
]


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


def unit(*names: str) -> tuple[Feature, ...]:
    """Features between 0 and 1."""
    return tuple(Feature(name, 0.0, 1.0) for name in names)


def signed(*names: str) -> tuple[Feature, ...]:
    """Features between -1 and 1."""
    return tuple(Feature(name, -1.0, 1.0) for name in names)


MACHINE = FeatureGroup(
    "machine",
    1,
    signed(*PROFILE_FEATURES, "log2_threads", "log2_lanes", "vector_registers"),
    "the profile's log10 values / 20; log2(threads) / 8, log2(vector lanes) / 8, vector registers / 64",
)
BOUND = FeatureGroup(
    "bound",
    1,
    (*unit("compute", "memory", "log10_time"), *signed("log10_balance"), *unit("log10_room")),
    "one-hot: what binds; -log10(speed of light in s) / 9; log10(compute / memory term) / 4; "
    "log10(baseline / speed of light) / 5",
)
ATTEMPT = FeatureGroup(
    "attempt",
    1,
    (*unit(*(status.value for status in Status)), *signed("log10_speedup"), *unit("spread")),
    "one-hot: status of the last candidate tried; log10(its speedup over the baseline) / 5; its relative "
    "interval",
)
SCORE = FeatureGroup(
    "score",
    1,
    (*signed("gap_closed"), *unit("sol_fraction", "log10_distance"), *signed("log10_speedup")),
    "of the schedule in force: gap closed, fraction of the speed of light, "
    "log10(time / speed of light) / 5, log10(speedup) / 5",
)
EPISODE = FeatureGroup("episode", 1, unit("steps_left"), "steps left / steps of an episode")


def group_names(groups: Sequence[FeatureGroup]) -> tuple[str, ...]:
    """The name of every number of some groups, in order."""
    return tuple(name for group in groups for name in group.names())


def group_limits(groups: Sequence[FeatureGroup]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Least and largest value of every feature of some groups."""
    features = [f for group in groups for _ in range(group.slots) for f in group.features]
    return (
        np.array([f.low for f in features], dtype=np.float32),
        np.array([f.high for f in features], dtype=np.float32),
    )


def group_table(groups: Sequence[FeatureGroup]) -> str:
    """Groups as a Markdown table: indices, names, least and largest value, meaning.

    In names, ``#`` stands for a slot; a group with slots repeats all its names for each of them.
    """
    lines = ["| index | name | min | max | meaning |", "|---|---|---|---|---|"]
    start = 0
    for group in groups:
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


def log2_scaled(value: float, scale: float) -> float:
    """``log2(value) / scale``; 0 for values up to 1."""
    return math.log2(value) / scale if value > 1 else 0.0


def machine_features(profile: HardwareProfile, spec: TargetSpec, element_bits: int) -> list[float]:
    """The numbers of ``MACHINE``."""
    lanes = spec.vector_bits // element_bits
    return [
        *(value / 20 for _, value in profile.features()),
        log2_scaled(spec.threads, 8),
        log2_scaled(lanes, 8),
        spec.vector_registers / 64,
    ]


def bound_features(bound: Bound, baseline_s: float) -> list[float]:
    """The numbers of ``BOUND``."""
    memory_s = max(s for name, s in bound.terms.items() if name not in ("compute", "launch"))
    balance = math.log10(max(bound.terms["compute"], 1e-12) / max(memory_s, 1e-12))
    return [
        float(bound.binding == "compute"),
        float(bound.binding != "compute"),
        -math.log10(bound.time_s) / 9,
        balance / 4,
        math.log10(baseline_s / bound.time_s) / 5,
    ]


def attempt_features(last: Measurement, timing: Timing) -> list[float]:
    """The numbers of ``ATTEMPT``."""
    gain = 0.0 if last.time_s is None else math.log10(speedup(last.time_s, timing.baseline_s)) / 5
    return [*(float(last.status is status) for status in Status), gain, last.spread or 0.0]


def score_features(timing: Timing) -> list[float]:
    """The numbers of ``SCORE``."""
    sol_s = timing.bound.time_s
    return [
        timing.gap_closed,
        sol_fraction(timing.time_s, sol_s),
        math.log10(timing.time_s / sol_s) / 5,
        math.log10(speedup(timing.time_s, timing.baseline_s)) / 5,
    ]
