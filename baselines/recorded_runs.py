"""Finished and unfinished runs as they stand in their traces: the best score so far against what was spent.

Nothing is measured here, and no machine is needed: whoever has the traces gets the same numbers.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from solgym.baselines.replay import best_record
from solgym.baselines.search import trials_of
from solgym.baselines.trace import COMPRESSED_TRACE_NAME, TRACE_NAME, TraceHeader, TraceRecord, read_trace
from solgym.envs.measuring import BASELINE_TIMEOUT_S
from solgym.errors import InvalidTrace
from solgym.hardware.speed_of_light import gap_closed

__all__ = ["AXES", "Axis", "RecordedRun", "find_traces", "read_run"]

Axis = Literal["measurements", "seconds"]
"""What a budget is counted in."""

AXES: tuple[Axis, ...] = get_args(Axis)


@dataclass(frozen=True)
class RecordedRun:
    """One run's way from the baseline to its best candidate.

    A score is the gap closed (0 at the baseline, 1 at the speed of light) of the best time so far. The
    untouched candidate can always be kept, so a score is never below 0.

    Attributes:
        path: of the trace file.
        digest: hash of the trace; equal for copies.
        header: what was run.
        baseline_s: the time that its scores refer to.
        scores: the score after each number of measurements; the first, after none, is 0.
        elapsed_s: seconds of the budget spent by then, never falling; the first is 0.
        best_s: the best time among the trials that are ``ok``; None if none is.
        failed: how many trials are not ``ok``.
        finished: whether the run spent its budget, ran out of candidates or was stopped by its guide.
        retimed: the score of the winner when timed again after the search; None if it was not.
        expert: the score of the best known candidate, timed in the same turns; None if there is none.
    """

    path: Path
    digest: str
    header: TraceHeader
    baseline_s: float
    scores: tuple[float, ...]
    elapsed_s: tuple[float, ...]
    best_s: float | None
    failed: int
    finished: bool
    retimed: float | None
    expert: float | None

    @property
    def measurements(self) -> int:
        """How many candidates were tried."""
        return len(self.scores) - 1

    def spent(self, axis: Axis) -> float:
        """How much was spent; a trial that ended after a budget in seconds does not lengthen it."""
        if axis == "measurements":
            return self.measurements
        limit = self.header.budget_seconds
        return self.elapsed_s[-1] if limit is None else min(limit, self.elapsed_s[-1])

    def extent(self, axis: Axis) -> float:
        """Up to which budget the score is known: what was spent, or any budget if the run ended before.

        It did so if no candidate was left, or if its budget was guided.
        """
        exhausted = self.finished and not self.header.budget.exhausted(self.measurements, self.elapsed_s[-1])
        return math.inf if exhausted else self.spent(axis)

    def score_at(self, axis: Axis, budget: float) -> float:
        """The score when this much was spent; after the end of the run it stays what it was."""
        return self.scores[int(np.searchsorted(self._positions(axis), budget, side="right")) - 1]

    def spent_until(self, axis: Axis, score: float) -> float:
        """How much was spent when a score was reached first; infinite if it never was."""
        reached = int(np.searchsorted(self.scores, score, side="left"))
        return float(self._positions(axis)[reached]) if reached < len(self.scores) else math.inf

    def _positions(self, axis: Axis) -> Sequence[float]:
        return range(len(self.scores)) if axis == "measurements" else self.elapsed_s


def find_traces(folders: Sequence[str | Path]) -> tuple[Path, ...]:
    """Every trace in these folders and below them, compressed ones included, each file once.

    Where a folder holds a trace and a compressed one, they are taken for the same run.

    Raises:
        InvalidTrace: one of the folders does not exist, or holds no trace.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        traces = list(_traces_in(folder))
        if not traces:
            reason = "holds no trace.jsonl" if folder.exists() else "does not exist"
            raise InvalidTrace(
                f"{folder} {reason}; give folders that `solgym tune` wrote, or ones above them"
            )
        for trace in traces:
            found.setdefault(trace.resolve(), trace)
    return tuple(found.values())


def _traces_in(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
        return
    for where, folders, names in os.walk(folder):
        folders.sort()
        name = next((name for name in (TRACE_NAME, COMPRESSED_TRACE_NAME) if name in names), None)
        if name is not None:
            yield Path(where, name)


def read_run(path: Path) -> RecordedRun:
    """Read a run's trace and score it.

    Raises:
        InvalidTrace: the trace is damaged, does not begin with a baseline, or does not say what the speed of
            light is.
    """
    header, records, _ = read_trace(path)
    if header.sol_s is None:
        raise InvalidTrace(
            f"{path} does not say what the speed of light is, as it was recorded by an early version; "
            "make it again with another --out"
        )
    if not records or records[0].role != "baseline":
        raise InvalidTrace(f"{path} does not begin with a baseline; leave it out, or make it again")
    results = [(record, record.result) for record in records]
    baseline_s = results[0][1].time_s or BASELINE_TIMEOUT_S

    def score(time_s: float | None) -> float:
        return 0.0 if time_s is None else max(0.0, gap_closed(time_s, baseline_s, header.sol_s or 0.0))

    scores, elapsed_s, best_s, failed = [0.0], [0.0], None, 0
    for record, result in results:
        if record.role == "trial":
            if not result.ok:
                failed += 1
            elif best_s is None or (result.time_s or math.inf) < best_s:
                best_s = result.time_s
            scores.append(score(best_s))
            elapsed_s.append(max(elapsed_s[-1], record.elapsed_s))
    winner, expert = _retimed(records)
    return RecordedRun(
        path=path,
        digest=hashlib.sha256("\n".join(map(repr, (header, *records))).encode()).hexdigest(),
        header=header,
        baseline_s=baseline_s,
        scores=tuple(scores),
        elapsed_s=tuple(elapsed_s),
        best_s=best_s,
        failed=failed,
        finished=records[-1].role in ("final", "expert")
        or header.budget.exhausted(len(scores) - 1, elapsed_s[-1]),
        retimed=None if winner is None else score(winner.result.time_s),
        expert=None if expert is None else score(expert.result.time_s),
    )


def _retimed(records: Sequence[TraceRecord]) -> tuple[TraceRecord | None, TraceRecord | None]:
    """The winner and the expert as they were timed in turns after the last trial."""
    best = best_record(tuple(records))
    last_trial = max((record.index for record in trials_of(records)), default=-1)
    experts = [r for r in records if r.role == "expert" and r.index > last_trial and r.result.ok]
    winner = best if best is not None and best.role == "final" else None
    return winner, experts[-1] if experts else None
