"""Shows a training run in the terminal: a bar with returns, scores and what disturbs the timing."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from solgym.baselines.rl.training import Standing

__all__ = ["ConsoleTrainingListener", "standing_line"]

TENTHS = 10


def standing_line(standing: Standing) -> str:
    """Where a run stands, in one line."""
    parts = [f"{standing.steps}/{standing.total} steps", f"{standing.episodes} episodes"]
    for name, value in (
        ("return", standing.mean_return),
        ("gap closed", standing.mean_gap_closed),
        ("test", standing.test_gap_closed),
    ):
        if value is not None:
            parts.append(f"{name} {value:.3f}")
    if standing.level is not None:
        parts.append(f"level {standing.level[0]} of {standing.level[1]}")
    if standing.discarded_share:
        parts.append(f"{standing.discarded_share:.1%} samples discarded")
    if standing.restarts:
        parts.append(f"{standing.restarts} restarts")
    return "  ".join(parts)


class ConsoleTrainingListener:
    """Reports to a terminal; use it with ``with``. Where the output is no terminal it prints tenths."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[standing]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=1.0, standing="")
        self._tenths = -1
        self._stage = ""

    def __enter__(self) -> ConsoleTrainingListener:
        if self._console.is_interactive:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._console.is_interactive:
            self._bar.stop()

    def stage(self, text: str) -> None:
        """Show what is being done."""
        self._bar.update(self._task, description=text)
        what = text.split(",")[0]
        if not self._console.is_interactive and what != self._stage:
            self._stage = what
            self._console.print(f"{what} ...", highlight=False)

    def standing(self, standing: Standing) -> None:
        """Move the bar."""
        fraction = min(standing.steps / standing.total, 1.0)
        line = standing_line(standing)
        self._bar.update(self._task, completed=fraction, standing=line)
        if not self._console.is_interactive and int(fraction * TENTHS) > self._tenths:
            self._tenths = int(fraction * TENTHS)
            self._console.print(f"{line}  {standing.seconds:.0f} s", highlight=False)

    def notice(self, text: str) -> None:
        """Print a sentence above the bar."""
        self._console.print("[yellow]note:[/]", Text(text), highlight=False)
