"""The loop that every search method runs in: ask, measure, record, tell, until the budget is spent.

It also continues an interrupted run: the tuner is asked the same questions again and answered from the
trace, so that it goes on exactly where it stopped. What to measure with comes in as a function, so the loop
knows no environment and no hardware.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from solgym.baselines.budget import Budget
from solgym.baselines.guided_budget import Guide
from solgym.baselines.trace import Trace, TraceRecord
from solgym.baselines.tuner import Tuner
from solgym.errors import InvalidOption, InvalidTrace
from solgym.hardware.measurement import Measurement, Status, tied
from solgym.hardware.target import Candidate

__all__ = ["Listener", "Progress", "SilentListener", "finalists", "search", "trials_of", "winner"]

# Timing more contenders again costs time and seldom changes the winner.
MAX_FINALISTS = 5


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    Attributes:
        trials: candidates tried so far, failed ones included.
        elapsed_s: seconds of the budget spent.
        budget: what may be spent.
        best: the fastest trial that is ``ok``, or None.
        statuses: how many trials ended in which status.
    """

    trials: int
    elapsed_s: float
    budget: Budget
    best: TraceRecord | None
    statuses: Counter[Status]


class Listener(Protocol):
    """Whom a run reports to while it goes on."""

    def stage(self, text: str) -> None:
        """Something that takes a while begins; ``text`` says what."""

    def scale(self, task_id: str, baseline_s: float, sol_s: float) -> None:
        """The search is about to begin: its task, and the times between which scores lie."""

    def progress(self, progress: Progress) -> None:
        """One more candidate was tried, or an interrupted run was taken up."""

    def notice(self, text: str) -> None:
        """A sentence that the user should read."""


class SilentListener:
    """Reports to nobody."""

    def stage(self, text: str) -> None:
        """Do nothing."""

    def scale(self, task_id: str, baseline_s: float, sol_s: float) -> None:
        """Do nothing."""

    def progress(self, progress: Progress) -> None:
        """Do nothing."""

    def notice(self, text: str) -> None:
        """Do nothing."""


def trials_of(records: Sequence[TraceRecord]) -> tuple[TraceRecord, ...]:
    """Only the records of trials, in order."""
    return tuple(record for record in records if record.role == "trial")


class _Standing:
    """The running totals of a search."""

    def __init__(self, budget: Budget, guide: Guide | None) -> None:
        self.budget = budget
        self.guide = guide
        self.trials = 0
        self.elapsed_s = 0.0
        self.best: TraceRecord | None = None
        self.best_s: float | None = None
        self.statuses: Counter[Status] = Counter()

    def count(self, record: TraceRecord, result: Measurement) -> None:
        self.trials += 1
        self.elapsed_s = record.elapsed_s
        self.statuses[result.status] += 1
        if improves(result, self.best_s):
            self.best, self.best_s = record, result.time_s
        if self.guide is not None:
            self.guide.tell(self.best_s)

    @property
    def may_go_on(self) -> bool:
        """Whether neither the budget is spent nor the guide sees no more to win."""
        stopped = self.guide is not None and self.guide.reason is not None
        return not stopped and not self.budget.exhausted(self.trials, self.elapsed_s)

    def snapshot(self) -> Progress:
        return Progress(self.trials, self.elapsed_s, self.budget, self.best, Counter(self.statuses))


def improves(result: Measurement, best_s: float | None) -> bool:
    """Whether a measurement can be relied on and beats the best time so far."""
    return result.ok and result.time_s is not None and (best_s is None or result.time_s < best_s)


def search(
    tuner: Tuner,
    evaluate: Callable[[Candidate], Measurement],
    budget: Budget,
    trace: Trace,
    listener: Listener | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """Spend what is left of a budget, recording every trial in ``trace`` as it is made.

    Args:
        tuner: a fresh tuner; trials that the trace already holds are played back to it first.
        evaluate: compiles, checks and times one candidate; failures are values.
        budget: the whole budget of the run, including what the trace has spent already.
        trace: open for writing.
        listener: told about every trial.
        clock: seconds from any start; replaceable for tests.

    Raises:
        InvalidTrace: the tuner does not propose what the trace says it did, or the trace cannot be written.
        InvalidOption: the budget is guided, but the trace does not say what the speed of light is.
    """
    listener = listener or SilentListener()
    standing = _Standing(budget, _guide(budget, trace))
    _play_back(tuner, trace, standing)
    if standing.trials:
        listener.progress(standing.snapshot())
    started = clock() - standing.elapsed_s
    while standing.may_go_on:
        proposals = tuner.ask(1)
        if not proposals:
            listener.notice(f"every candidate has been tried: the space is exhausted after {standing.trials}")
            break
        (candidate,) = proposals
        result = evaluate(candidate)
        record = TraceRecord(
            index=len(trace.records),
            role="trial",
            trial=standing.trials,
            candidate=candidate.to_json(),
            measurement=result.to_json(),
            elapsed_s=clock() - started,
            best_s=result.time_s if improves(result, standing.best_s) else standing.best_s,
        )
        trace.append(record)
        tuner.tell([(candidate, result)])
        standing.count(record, result)
        listener.progress(standing.snapshot())
    if standing.guide is not None and standing.guide.reason is not None:
        listener.notice(f"stopped after {standing.trials} measurements: {standing.guide.reason}")
    return standing.snapshot()


def _guide(budget: Budget, trace: Trace) -> Guide | None:
    if not budget.guided:
        return None
    if trace.header.sol_s is None:
        raise InvalidOption(
            f"a guided budget needs the speed of light, which {trace.path} does not say; give another --out, "
            "or leave --guided out"
        )
    return Guide(trace.header.sol_s)


def _play_back(tuner: Tuner, trace: Trace, standing: _Standing) -> None:
    for record in trials_of(trace.records):
        result = record.result
        proposals = tuner.ask(1)
        same = bool(proposals) and _as_text(proposals[0].to_json()) == _as_text(record.candidate)
        if not same or record.trial != standing.trials:
            raise InvalidTrace(
                f"{trace.path}, line {record.index + 2}: trial {record.trial} is not what the tuner proposes "
                f"there under seed {trace.header.seed}, so the file was edited or the code has changed; "
                "start anew with another --out"
            )
        tuner.tell([(proposals[0], result)])
        standing.count(record, result)


def _as_text(data: dict[str, Any]) -> str:
    """Plain data in a form that is equal for equal data, also of what JSON read back."""
    return json.dumps(data, sort_keys=True)


def finalists(trials: Sequence[TraceRecord]) -> tuple[TraceRecord, ...]:
    """The trials that may be the fastest: the best one and those that tie with it, fastest first.

    Two trials tie when the intervals of their medians overlap. At most ``MAX_FINALISTS`` are returned; equal
    machine code counts once.
    """
    timed = [(record, record.result) for record in trials]
    ranked = sorted(
        ((record, result) for record, result in timed if result.ok),
        key=lambda pair: pair[1].time_s or 0.0,
    )
    chosen: list[TraceRecord] = []
    codes: set[str | None] = set()
    for record, result in ranked:
        if not tied(result, ranked[0][1]) or len(chosen) == MAX_FINALISTS:
            break
        if result.artifact_digest is None or result.artifact_digest not in codes:
            chosen.append(record)
            codes.add(result.artifact_digest)
    return tuple(chosen)


def winner(finals: Sequence[TraceRecord], trials: Sequence[TraceRecord]) -> TraceRecord | None:
    """The fastest of the finalists that were ``ok`` when timed again, or if none was, the best trial."""
    timed = [record for record in finals if record.result.ok]
    return min(timed or finalists(trials), key=lambda record: record.result.time_s or 0.0, default=None)
