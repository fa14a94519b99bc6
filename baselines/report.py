"""What a finished run leaves behind: a table, two pictures, the best candidate and its code.

Every score comes from ``solgym.hardware.speed_of_light``; here is only their presentation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from solgym.baselines.peer_timing import PeerTime
from solgym.baselines.plots import ReferenceTime, draw_progress, format_seconds
from solgym.baselines.runner import TuneResult, make_env
from solgym.baselines.trace import TraceHeader, TraceRecord
from solgym.envs.design import CodeText
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement
from solgym.hardware.roofline import draw_roofline
from solgym.hardware.speed_of_light import Bound, gap_closed, sol_fraction, speedup

__all__ = ["Row", "comparison", "comparison_table", "rate_of", "write_report"]


@dataclass(frozen=True)
class Row:
    """One line of the comparison.

    Attributes:
        label: who took the time.
        time_s: median in seconds.
        low_s: lower end of its 95% interval; equal to ``time_s`` for bounds.
        high_s: upper end.
        rate: operations or bytes per second, see ``rate_of``.
        speedup: against the baseline.
        gap_closed: 0 at the baseline, 1 at the speed of light.
        sol_fraction: the speed of light over the time.
    """

    label: str
    time_s: float
    low_s: float
    high_s: float
    rate: float
    speedup: float
    gap_closed: float
    sol_fraction: float


def rate_of(bound: Bound, time_s: float) -> tuple[float, str]:
    """The rate that suits a task: FLOP/s where compute binds, else compulsory bytes per second."""
    if bound.binding == "compute":
        return bound.work.flops / time_s, "FLOP/s"
    return bound.work.compulsory_bytes / time_s, "B/s"


def comparison(result: TuneResult, peers: Sequence[PeerTime] = ()) -> tuple[Row, ...]:
    """The lines to compare, slowest first: baseline, best, expert, peers and the speed of light."""
    timed: list[tuple[str, Measurement]] = [("baseline", result.baseline)]
    if result.best is not None:
        timed.append(("best", result.best.result))
    if result.expert is not None:
        timed.append(("expert", result.expert.result))
    timed.extend((peer.label, peer.measurement) for peer in peers)
    rows = [
        _row(result, label, measurement) for label, measurement in timed if measurement.time_s is not None
    ]
    sol = result.bound.time_s
    rows.append(_scored(result, "speed of light", sol, sol, sol))
    return tuple(sorted(rows, key=lambda row: -row.time_s))


def _row(result: TuneResult, label: str, measurement: Measurement) -> Row:
    time_s = measurement.time_s or 0.0
    return _scored(result, label, time_s, measurement.ci_low_s or time_s, measurement.ci_high_s or time_s)


def _scored(result: TuneResult, label: str, time_s: float, low_s: float, high_s: float) -> Row:
    baseline_s, sol_s = result.baseline_s, result.bound.time_s
    return Row(
        label=label,
        time_s=time_s,
        low_s=low_s,
        high_s=high_s,
        rate=rate_of(result.bound, time_s)[0],
        speedup=speedup(time_s, baseline_s),
        gap_closed=gap_closed(time_s, baseline_s, sol_s),
        sol_fraction=sol_fraction(time_s, sol_s),
    )


# What a terminal leaves to the names of the rows at least; longer ones are wrapped.
_LABEL_WIDTH = 16
_STYLES = {"best": "bold green", "speed of light": "yellow", "baseline": "dim"}


def comparison_table(result: TuneResult, rows: Sequence[Row], width: int = 80) -> Table:
    """The comparison as a table for a terminal of that width; on narrow ones the lesser columns give way."""
    rate = f"G{rate_of(result.bound, 1.0)[1]}"
    columns = {
        "time": [format_seconds(row.time_s) for row in rows],
        "±": [_half_width(row) for row in rows],
        rate: [f"{row.rate / 1e9:.1f}" for row in rows],
        "speedup": [f"{row.speedup:.1f} x" for row in rows],
        "gap closed": [f"{row.gap_closed:.3f}" for row in rows],
        "of light": [f"{row.sol_fraction:.1%}" for row in rows],
    }
    for lesser in ("±", rate, "of light", "speedup"):
        if _LABEL_WIDTH + sum(2 + max(map(len, (name, *cells))) for name, cells in columns.items()) > width:
            del columns[lesser]
    threads = f", {result.header.threads} threads" if result.header.threads > 1 else ""
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        header_style="bold",
        title=f"{result.task.id}{threads}",
        title_style="bold",
        title_justify="left",
    )
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row, *cells in zip(rows, *columns.values(), strict=True):
        table.add_row(Text(row.label), *cells, style=_STYLES.get(row.label, ""))
    return table


def _half_width(row: Row) -> str:
    part = max(row.high_s - row.time_s, row.time_s - row.low_s) / row.time_s
    return f"{part:.1%}" if part else ""


def write_report(result: TuneResult, peers: Sequence[PeerTime]) -> dict[str, Path]:
    """Write everything a run leaves behind into its folder.

    Returns:
        The files that were written, by what they are.

    Raises:
        InvalidOption: a file cannot be written.
    """
    folder = result.directory
    rows = comparison(result, peers)
    references = [ReferenceTime(row.label, row.time_s) for row in rows if row.label != "best"]
    title = f"{result.header.tuner} search ({result.header.mode}) on {result.task.id}"
    files = {"progress": folder / "progress.png", "roofline": folder / "roofline.png"}
    draw_progress(title, result.trials, references, files["progress"])
    intensity, work = result.bound.arithmetic_intensity, result.bound.work
    points = [
        (row.label, intensity, work.flops / row.time_s) for row in rows if row.label != "speed of light"
    ]
    draw_roofline(result.profile, points, threads=result.header.threads, path=files["roofline"])
    if result.best is not None:
        files["candidate"] = folder / "best.json"
        _write(files["candidate"], json.dumps(result.best.candidate, indent=1) + "\n")
        for code in _code(result.header, result.best):
            files[code.title] = folder / f"best{code.suffix}"
            _write(files[code.title], code.text.removesuffix("\n") + "\n")
    files["summary"] = folder / "report.json"
    summary = {
        "task": result.task.id,
        "unit": rate_of(result.bound, 1.0)[1],
        "trials": len(result.trials),
        "tied_with_best": result.tied_with,
        "rows": [asdict(row) for row in rows],
    }
    _write(files["summary"], json.dumps(summary, indent=1) + "\n")
    return files


def _code(header: TraceHeader, best: TraceRecord) -> tuple[CodeText, ...]:
    made = make_env(header.env_id, task=header.task, threads=header.threads, options=header.options)
    with closing(made) as env:
        env.choose_task()
        return env.code_of(env.read_candidate(best.candidate))


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InvalidOption(f"cannot write {path}: {error.strerror}; give another --out") from error
