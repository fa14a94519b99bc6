"""Measures the best candidate of a trace again and says whether its time holds here and now.

The baseline is measured again too: where it has moved, the machine is another one or busy, and the verdict
on the best time says little about the candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from solgym.baselines.runner import open_env
from solgym.baselines.search import trials_of
from solgym.baselines.trace import TraceHeader, TraceRecord, read_trace
from solgym.errors import InvalidTrace
from solgym.hardware.fingerprint import device_fingerprint
from solgym.hardware.measurement import Measurement, tied

__all__ = ["DEFAULT_TOLERANCE", "Replay", "best_record", "holds", "replay"]

DEFAULT_TOLERANCE = 0.05
"""Medians this close count as equal even when their intervals do not overlap: intervals describe the noise
within one measurement, not that between two, minutes or machines apart."""


@dataclass(frozen=True)
class Replay:
    """A recorded time beside the one measured again.

    Attributes:
        header: of the trace.
        recorded: the best candidate's measurement in the trace.
        repeated: the same candidate measured now.
        recorded_baseline: the untouched candidate's measurement in the trace; None if it holds none.
        repeated_baseline: the same, measured now.
        holds: whether the candidate is correct and as fast as recorded, see ``holds``.
        same_fingerprint: whether device and toolchain are those of the trace.
    """

    header: TraceHeader
    recorded: Measurement
    repeated: Measurement
    recorded_baseline: Measurement | None
    repeated_baseline: Measurement
    holds: bool
    same_fingerprint: bool


def best_record(records: tuple[TraceRecord, ...]) -> TraceRecord | None:
    """The record that a run's result rests on: the fastest finalist, or without finalists the best trial.

    Finalists count only if no trial came after them, as they do not know the trials of a larger budget.
    """
    last_trial = max((record.index for record in records if record.role == "trial"), default=-1)
    finals = [record for record in records[last_trial + 1 :] if record.role == "final"]
    for contenders in (finals, trials_of(records)):
        timed = [record for record in contenders if record.result.ok]
        if timed:
            return min(timed, key=lambda record: record.result.time_s or 0.0)
    return None


def holds(recorded: Measurement, repeated: Measurement, tolerance: float = DEFAULT_TOLERANCE) -> bool:
    """Whether a measurement confirms a recorded time: ``ok``, and not slower beyond noise and tolerance.

    A candidate that is faster than recorded holds: the claim was that it is this fast.
    """
    if not repeated.ok or repeated.time_s is None or recorded.time_s is None:
        return False
    return repeated.time_s <= recorded.time_s * (1 + tolerance) or tied(recorded, repeated)


def replay(path: str | Path, tolerance: float = DEFAULT_TOLERANCE) -> Replay:
    """Measure the best candidate of a trace, and the baseline, again.

    Args:
        path: a trace file or the folder of a run.
        tolerance: relative slowdown that still counts as the same time.

    Raises:
        InvalidTrace: the trace is damaged, or holds no candidate that is ``ok``.
    """
    header, records, _ = read_trace(path)
    best = best_record(records)
    if best is None:
        raise InvalidTrace(
            f"{path} holds no correct, timed candidate yet; continue the run with `solgym tune`"
        )
    baseline = next((record.result for record in records if record.role == "baseline"), None)
    with open_env(
        header.env_id, task=header.task, threads=header.threads, seed=header.seed, options=header.options
    ) as env:
        candidate = env.read_candidate(best.candidate)
        repeated = env.evaluate(candidate)
        if not holds(best.result, repeated, tolerance) and repeated.time_s is not None:
            # A busy moment must not condemn a candidate; one that is slower twice is slower.
            repeated = env.evaluate(candidate)
        return Replay(
            header=header,
            recorded=best.result,
            repeated=repeated,
            recorded_baseline=baseline,
            repeated_baseline=env.baseline,
            holds=holds(best.result, repeated, tolerance),
            same_fingerprint=(device_fingerprint(), env.toolchain) == (header.device, header.toolchain),
        )
