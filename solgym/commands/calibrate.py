"""``solgym calibrate``: measure this machine's peaks, or show what was measured before."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from solgym.commands.terminal import open_console

__all__ = ["calibrate"]


def calibrate(
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Measure anew even if there is a profile.")
    ] = False,
) -> None:
    """Measure this machine's peaks (about 20 seconds), and show them."""
    from solgym.baselines.plots import format_seconds
    from solgym.commands.profiles import calibrated_profile
    from solgym.hardware.profile import profile_path

    console = open_console()
    profile = calibrated_profile(console, refresh)
    console.print(
        f"[bold]{profile.name}[/], {profile.cores} cores, {profile.vector_bits}-bit vectors", highlight=False
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for column in ("size", "1 thread", "all threads"):
        table.add_column(column, justify="right")
    for unit, by_dtype in profile.peak_flops_per_s.items():
        for dtype, rates in by_dtype.items():
            table.add_row(f"{unit} peak, {dtype}", "", *_columns(rates, 1e9, "GFLOP/s"))
    for level in profile.levels:
        size = "" if level.size_bytes is None else _size(level.size_bytes)
        table.add_row(f"{level.name} read", size, *_columns(level.read_bytes_per_s, 1e9, "GB/s"))
        table.add_row(f"{level.name} copy", "", *_columns(level.copy_bytes_per_s, 1e9, "GB/s"))
    for name, seconds in profile.launch_overhead_s.items():
        table.add_row(f"{name.replace('_', ' ')} overhead", "", format_seconds(seconds), "")
    console.print(table)
    if profile_path().is_file():
        console.print(f"kept in {profile_path()}", highlight=False, soft_wrap=True)


def _columns(rates: object, scale: float, unit: str) -> tuple[str, str]:
    table = dict(rates)  # type: ignore[call-overload]
    one, whole = table.get("1"), table.get("all")
    return tuple("" if rate is None else f"{rate / scale:.0f} {unit}" for rate in (one, whole))  # type: ignore[return-value]


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB" if size_bytes >= 2**20 else f"{size_bytes / 2**10:.0f} KiB"
