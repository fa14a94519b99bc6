"""How commands obtain a hardware profile: a named or stored one, or this machine's, calibrated if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from solgym.hardware.profile import HardwareProfile

__all__ = ["calibrated_profile", "chosen_profile"]


def chosen_profile(name: str | None, console: Console) -> HardwareProfile:
    """The profile of that name or file, or this machine's if ``name`` is None."""
    from solgym.hardware.profile import load_profile

    return calibrated_profile(console) if name is None else load_profile(name)


def calibrated_profile(console: Console, refresh: bool = False) -> HardwareProfile:
    """This machine's profile; a bar shows the calibration if there has to be one."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from solgym.hardware.profile import host_profile

    with Progress(
        TextColumn("calibrating this machine"),
        BarColumn(bar_width=30),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    ) as bar:
        task = bar.add_task("", total=1.0, visible=False)

        def report(fraction: float, text: str) -> None:
            bar.update(task, completed=fraction, description=text, visible=True)

        return host_profile(refresh=refresh, progress=report)
