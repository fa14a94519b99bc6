"""Statistics of scores over seeds and tasks, by the definitions of rliable (Agarwal et al. 2021).

"Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021. Scores come as strata,
one array per task with one score per run; nothing here knows what a score or a run is. Every interval is a
percentile interval over resamples drawn from a fixed seed, so equal scores always give equal figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import trim_mean

from solgym.errors import InvalidOption

__all__ = [
    "CONFIDENCE",
    "Band",
    "Interval",
    "Strata",
    "band",
    "interquartile_mean",
    "interquartile_mean_interval",
    "probability_of_improvement",
]

Scores: TypeAlias = NDArray[np.float64]
Strata: TypeAlias = Sequence[ArrayLike]
"""One array of scores per task; the tasks may differ in their number of runs."""

CONFIDENCE = 0.95
REPETITIONS = 10_000
"""Resamples per interval: the ends of a 95% interval are then known to about 1% of its width."""

_TRIMMED = 0.25
_SEED = 0


@dataclass(frozen=True)
class Interval:
    """A figure and its 95% interval.

    Attributes:
        value: the figure itself.
        low: lower end of the interval; None where it cannot be known, as there is one run per task.
        high: upper end; None likewise.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def excludes(self, value: float) -> bool:
        """Whether a value lies outside the interval; False where the interval is not known."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


@dataclass(frozen=True)
class Band:
    """Median and quartiles of several series, position by position."""

    median: Scores
    low: Scores
    high: Scores


def band(series: Sequence[ArrayLike]) -> Band:
    """Median and quartiles, interpolated linearly, over series of equal length, one per run."""
    low, median, high = np.percentile(np.asarray(series, dtype=float), (25, 50, 75), axis=0)
    return Band(median, low, high)


def interquartile_mean(scores: ArrayLike) -> float:
    """The mean of what is left when a quarter of the scores is cut off at either end.

    As ``scipy.stats.trim_mean(scores, 0.25)``: the quarter is rounded down to a whole number of scores.
    """
    return float(trim_mean(np.ravel(np.asarray(scores, dtype=float)), _TRIMMED))


def interquartile_mean_interval(strata: Strata, repetitions: int = REPETITIONS) -> Interval:
    """The interquartile mean over all runs of all tasks, with its stratified bootstrap interval.

    Each resample draws, with replacement and within each task, as many runs as the task has.

    Raises:
        InvalidOption: there is no task, or a task without a run.
    """
    arrays = _arrays(strata)
    rng = np.random.default_rng(_SEED)

    def resampled() -> Scores:
        drawn = [scores[_draws(rng, repetitions, scores.size)] for scores in arrays]
        return np.asarray(trim_mean(np.concatenate(drawn, axis=1), _TRIMMED, axis=1))

    return _interval(interquartile_mean(np.concatenate(arrays)), arrays, resampled)


def probability_of_improvement(first: Strata, second: Strata, repetitions: int = REPETITIONS) -> Interval:
    """How probable it is that a run of ``first`` beats one of ``second`` on a task drawn at random.

    For each task the share of pairs of runs in which ``first`` scores higher, ties counting one half (the
    Mann-Whitney statistic over the number of pairs); averaged over the tasks. Each resample draws the runs of
    either method apart, within each task.

    Args:
        first: scores by task.
        second: scores of the same tasks in the same order.
        repetitions: resamples.

    Raises:
        InvalidOption: the two have not the same number of tasks, or a task has no run.
    """
    ours, theirs = _arrays(first), _arrays(second)
    if len(ours) != len(theirs):
        raise InvalidOption(f"{len(ours)} tasks cannot be paired with {len(theirs)}; give the same tasks")
    wins = [_wins(a, b) for a, b in zip(ours, theirs, strict=True)]
    rng = np.random.default_rng(_SEED)

    def resampled() -> Scores:
        shares = []
        for table in wins:
            # How often each run was drawn weighs its rows and columns of the table of pairs.
            rows = _weights(rng, repetitions, table.shape[0])
            columns = _weights(rng, repetitions, table.shape[1])
            shares.append(np.einsum("ri,ij,rj->r", rows, table, columns, optimize=True))
        return np.asarray(np.mean(shares, axis=0))

    return _interval(float(np.mean([table.mean() for table in wins])), [*ours, *theirs], resampled)


def _arrays(strata: Strata) -> list[Scores]:
    arrays = [np.asarray(scores, dtype=float) for scores in strata]
    if not arrays or any(scores.ndim != 1 or scores.size == 0 for scores in arrays):
        raise InvalidOption("statistics over tasks need at least one task, and one score of a run for each")
    return arrays


def _draws(rng: np.random.Generator, repetitions: int, runs: int) -> NDArray[np.int64]:
    return rng.integers(runs, size=(repetitions, runs))


def _weights(rng: np.random.Generator, repetitions: int, runs: int) -> Scores:
    """How often each run is drawn in each resample, as a share of the draws."""
    return np.asarray(rng.multinomial(runs, np.full(runs, 1 / runs), size=repetitions) / runs)


def _wins(ours: Scores, theirs: Scores) -> Scores:
    above = ours[:, None] > theirs[None, :]
    equal = ours[:, None] == theirs[None, :]
    return np.asarray(above + 0.5 * equal)


def _interval(value: float, strata: Sequence[Scores], resampled: Callable[[], Scores]) -> Interval:
    if all(scores.size == 1 for scores in strata):
        return Interval(value)  # every resample would be the sample itself
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(resampled(), (tail, 100 - tail))
    return Interval(value, float(low), float(high))
