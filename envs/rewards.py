"""Rewards by name: what a change of time is worth.

A reward is a small immutable object that compares the state before a step with the state after it. It
knows nothing of environments; ``TuningEnv`` decides when it is paid (at every step, or for the whole
episode at its end) and what a failed candidate costs. All scores come from ``hardware.speed_of_light``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from solgym.errors import InvalidOption
from solgym.hardware.speed_of_light import Bound, gap_closed

__all__ = [
    "REWARDS",
    "GapClosed",
    "InverseTime",
    "LogSpeedup",
    "Relative",
    "Reward",
    "SolWeighted",
    "Timing",
    "resolve_reward",
]


@dataclass(frozen=True)
class Timing:
    """A time and what it is measured against.

    Attributes:
        time_s: time of the schedule in force.
        baseline_s: time of the untouched candidate.
        bound: speed of light of the task.
    """

    time_s: float
    baseline_s: float
    bound: Bound

    @property
    def gap_closed(self) -> float:
        """The score of the time: 0 at the baseline, 1 at the speed of light."""
        return gap_closed(self.time_s, self.baseline_s, self.bound.time_s)


class Reward(Protocol):
    """What a reward must offer: a name, the range of one step without failures, and its value."""

    @property
    def name(self) -> str:
        """By which environments choose it."""

    @property
    def low(self) -> float:
        """Least value of one step, failures aside."""

    @property
    def high(self) -> float:
        """Largest value of one step."""

    @property
    def platform_dependent(self) -> bool:
        """Whether it depends on more of the machine than ratios of times taken on it, such as its peaks."""

    def __call__(self, before: Timing, after: Timing) -> float:
        """The reward of going from ``before`` to ``after``."""


@dataclass(frozen=True)
class GapClosed:
    """``g(after) - g(before)``; the return of an episode from the baseline is the final score."""

    name: str = "gap_closed"
    low: float = -math.inf
    high: float = math.inf
    platform_dependent: bool = True

    def __call__(self, before: Timing, after: Timing) -> float:
        """See the class."""
        return after.gap_closed - before.gap_closed


@dataclass(frozen=True)
class LogSpeedup:
    """``ln(before / after)``; the return is the logarithm of the speedup over the start."""

    name: str = "log_speedup"
    low: float = -math.inf
    high: float = math.inf
    platform_dependent: bool = False

    def __call__(self, before: Timing, after: Timing) -> float:
        """See the class."""
        return math.log(before.time_s / after.time_s)


@dataclass(frozen=True)
class Relative:
    """``(before - after) / before``, where changes of less than ``threshold`` count as 0.

    The threshold keeps timing noise out of the reward.
    """

    threshold: float = 0.005
    name: str = "relative"
    low: float = -math.inf
    high: float = 1.0
    platform_dependent: bool = False

    def __call__(self, before: Timing, after: Timing) -> float:
        """See the class."""
        change = (before.time_s - after.time_s) / before.time_s
        return change if abs(change) >= self.threshold else 0.0


@dataclass(frozen=True)
class SolWeighted:
    """``w1 * relative + w2 * compute utilisation + w3 * bandwidth utilisation`` of the state after a step.

    The utilisations are the compute and the memory term of the bound over the time: how much of the
    machine's peak arithmetic and bandwidth the schedule in force keeps busy. They are paid at every step.
    """

    relative_weight: float = 1.0
    compute_weight: float = 0.1
    bandwidth_weight: float = 0.1
    name: str = "sol_weighted"
    low: float = -math.inf
    high: float = math.inf
    platform_dependent: bool = True

    def __call__(self, before: Timing, after: Timing) -> float:
        """See the class."""
        terms = after.bound.terms
        compute_s = terms["compute"]
        memory_s = max(value for name, value in terms.items() if name not in ("compute", "launch"))
        return (
            self.relative_weight * Relative()(before, after)
            + self.compute_weight * compute_s / after.time_s
            + self.bandwidth_weight * memory_s / after.time_s
        )


@dataclass(frozen=True)
class InverseTime:
    """``1 / T`` of the state after a step, in 1/ms: how often it would run in a millisecond.

    This knows neither where the task began nor how fast it can become, so its scale changes from task to
    task by as much as their times do. It is here to be compared with. It is paid at every step that does
    not fail, also for a state that was in force before.
    """

    name: str = "inverse_time"
    low: float = 0.0
    high: float = math.inf
    platform_dependent: bool = True

    def __call__(self, before: Timing, after: Timing) -> float:
        """See the class."""
        return 1e-3 / after.time_s


REWARDS: dict[str, Reward] = {
    reward.name: reward for reward in (GapClosed(), LogSpeedup(), Relative(), SolWeighted(), InverseTime())
}
"""Every reward that environments can be asked for by name."""


def resolve_reward(reward: str | Reward) -> Reward:
    """The reward called so, or the object itself.

    Raises:
        InvalidOption: there is no reward of that name.
    """
    if callable(reward):
        return reward
    if reward not in REWARDS:
        raise InvalidOption(f"There is no reward {reward!r}; choose one of {', '.join(REWARDS)}.")
    return REWARDS[reward]
