"""Writes traces by hand: a baseline of one second, then trials of given times, None for one that failed."""

import gzip
from collections.abc import Sequence
from pathlib import Path

from solgym.baselines.trace import COMPRESSED_TRACE_NAME, TRACE_NAME, TraceHeader, TraceRecord
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.fakes import header, timed

FIRST = "gemm/f32/m8n8k8"
SECOND = "gemm/f32/m16n16k16"
BASELINE_S = 1.0
FAILED = Measurement.failed(Status.WRONG_RESULT, "not the sum")


def write_run(
    folder: Path,
    times_s: Sequence[float | None],
    *,
    elapsed_s: Sequence[float] | None = None,
    ending: Sequence[tuple[str, float]] = (),
    baseline: Measurement | None = None,
    compressed: bool = False,
    **changes: object,
) -> Path:
    """Write the trace of a run that had a second for each trial; ``ending`` holds roles and times."""
    spent = [float(i + 1) for i in range(len(times_s))] if elapsed_s is None else list(elapsed_s)
    made = header(**{"task": FIRST, "sol_s": 1 / 16, "budget_measurements": len(times_s) or 1} | changes)
    results = [("baseline", baseline or timed(BASELINE_S), 0.0)]
    results += [("trial", FAILED if t is None else timed(t), s) for t, s in zip(times_s, spent, strict=True)]
    results += [(role, timed(t), spent[-1]) for role, t in ending]
    records = [
        TraceRecord(
            index=index,
            role=role,
            candidate={"version": 1, "task": made.task, "steps": []},
            measurement=result.to_json(),
            elapsed_s=second,
        )
        for index, (role, result, second) in enumerate(results)
    ]
    folder.mkdir(parents=True)
    text = "".join(_line(model) for model in (made, *records))
    path = folder / (COMPRESSED_TRACE_NAME if compressed else TRACE_NAME)
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    return path


def _line(model: TraceHeader | TraceRecord) -> str:
    return model.model_dump_json() + "\n"


def write_two_methods(folder: Path) -> Path:
    """Two methods, two seeds each, on two tasks; every score that follows is a multiple of a quarter.

    On the first task the speed of light is 1/16 s, so halving the time closes a quarter of the gap; on the
    second it is 1/4 s, so it closes a half.
    """
    half, quarter, eighth = 1 / 2, 1 / 4, 1 / 8
    write_run(folder / "a/random/0", [half, None, quarter, half], seed=0)
    write_run(folder / "a/random/1", [None, 2.0, half, half], seed=1)
    write_run(
        folder / "a/tpe/0", [quarter, eighth, eighth, half], elapsed_s=[3, 6, 9, 12], tuner="tpe", seed=0
    )
    write_run(
        folder / "a/tpe/1", [half, quarter, quarter, quarter, eighth], elapsed_s=[2, 4, 6, 8, 10],
        tuner="tpe", seed=1, compressed=True,
    )  # fmt: skip
    second = {"task": SECOND, "sol_s": 1 / 4}
    write_run(folder / "b/random/0", [half] * 4, seed=0, **second)
    write_run(folder / "b/random/1", [None] * 4, seed=1, **second)
    write_run(folder / "b/tpe/0", [half, quarter, half, half], tuner="tpe", seed=0, **second)
    write_run(folder / "b/tpe/1", [None, quarter, None, None], tuner="tpe", seed=1, **second)
    return folder
