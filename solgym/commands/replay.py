"""``solgym replay``: measure the best candidate of a trace again and say whether its time holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from solgym.commands.terminal import open_console

__all__ = ["replay"]

DOES_NOT_HOLD = 1


def replay(
    trace: Annotated[Path, typer.Argument(help="A trace file, or the folder of a run.", metavar="TRACE")],
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Relative slowdown that still counts as the same.")
    ] = 0.05,
) -> None:
    """Measure a run's best candidate again. Exit code 0 if it holds, 1 if it does not."""
    from solgym.baselines.plots import format_seconds
    from solgym.baselines.replay import replay as run
    from solgym.baselines.trace import read_trace
    from solgym.commands.profiles import calibrated_profile
    from solgym.hardware.measurement import Measurement

    def words(measurement: Measurement | None) -> str:
        if measurement is None:
            return "not recorded"
        if measurement.time_s is None or measurement.ci_low_s is None or measurement.ci_high_s is None:
            return f"{measurement.status}: {measurement.error}"
        interval = f"{format_seconds(measurement.ci_low_s)} to {format_seconds(measurement.ci_high_s)}"
        state = "" if measurement.ok else f" [{measurement.status}]"
        return f"{format_seconds(measurement.time_s)} ({interval}){state}"

    console = open_console()
    read_trace(trace)  # a mistake shows before the machine is calibrated, which takes a while
    calibrated_profile(console)
    result = run(trace, tolerance)
    lines = [
        f"{result.header.task} on {result.header.env_id}, {result.header.tuner}, seed {result.header.seed}",
        f"  baseline   recorded {words(result.recorded_baseline)}",
        f"             now      {words(result.repeated_baseline)}",
        f"  best       recorded {words(result.recorded)}",
        f"             now      {words(result.repeated)}",
    ]
    if not result.same_fingerprint:
        lines.append(
            "  note: recorded on another machine or by another compiler, so the times need not agree"
        )
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    if result.holds:
        console.print(
            f"[green]holds[/]: correct, and as fast as recorded within {tolerance:.0%} or its interval"
        )
        return
    console.print(
        "[red]does not hold[/]: "
        + ("slower than recorded" if result.repeated.ok else f"{result.repeated.status}")
    )
    raise typer.Exit(DOES_NOT_HOLD)
