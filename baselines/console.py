"""Shows a running search in the terminal: a bar with the best time, the gap closed and the statuses."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from solgym.baselines import search
from solgym.baselines.plots import format_seconds
from solgym.hardware.measurement import Status
from solgym.hardware.speed_of_light import gap_closed

__all__ = ["ConsoleBar", "ConsoleListener", "standing"]


def standing(progress: search.Progress, baseline_s: float, sol_s: float) -> str:
    """Where a run stands in one line: trials, best time, gap closed, and what failed how often."""
    limit = progress.budget.measurements
    parts = [
        f"{progress.trials}/{limit}" if limit else f"{progress.trials} tried, {progress.elapsed_s:.0f} s"
    ]
    best = progress.best.result.time_s if progress.best is not None else None
    if best is None:
        parts.append("no correct candidate yet")
    else:
        parts.append(f"best {format_seconds(best)}")
        parts.append(f"gap closed {gap_closed(best, baseline_s, sol_s):.3f}")
    failures = {status: n for status, n in progress.statuses.items() if status is not Status.OK}
    parts.append(f"{progress.statuses[Status.OK]} ok")
    parts.extend(f"{n} {status.value}" for status, n in sorted(failures.items(), key=lambda item: -item[1]))
    return "  ".join(parts)


class _Elapsed(ProgressColumn):
    """Seconds spent, over interruptions too."""

    def render(self, task: Task) -> Text:
        seconds = int(task.fields.get("elapsed_s", 0.0))
        return Text(f"{seconds // 60}:{seconds % 60:02d}", style="progress.elapsed")


class ConsoleBar:
    """A bar of what goes on in a terminal; use it with ``with``. Where the output is no terminal it prints a
    line for every tenth.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[standing]}"),
            _Elapsed(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=None, standing="", elapsed_s=0.0)
        self._tenths = 0

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._console.is_interactive:
            self._bar.stop()

    def _move(self, fraction: float, line: str, elapsed_s: float, printed_too: str = "") -> None:
        """Move the bar, and say where things stand; ``printed_too`` is what the bar shows otherwise."""
        self._bar.update(self._task, completed=fraction, standing=line, elapsed_s=elapsed_s, refresh=True)
        if not self._console.is_interactive and int(fraction * 10) > self._tenths:
            self._tenths = int(fraction * 10)
            self._console.print(line + printed_too, highlight=False)

    def notice(self, text: str) -> None:
        """Print a sentence above the bar."""
        self._console.print("[yellow]note:[/]", Text(text), highlight=False)


class ConsoleListener(ConsoleBar):
    """Reports on a search."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._scale = (1.0, 1.0)

    def stage(self, text: str) -> None:
        """Show what is being done."""
        self._bar.update(self._task, description=text, total=None, standing="")
        if not self._console.is_interactive:
            self._console.print(f"{text} ...", highlight=False)

    def scale(self, task_id: str, baseline_s: float, sol_s: float) -> None:
        """Show the task, and remember what scores refer to."""
        self._scale = (baseline_s, sol_s)
        ends = f"baseline {format_seconds(baseline_s)}, speed of light {format_seconds(sol_s)}"
        self._console.print(f"[bold]{task_id}[/]  {ends}", highlight=False)
        self._bar.update(self._task, description="searching", total=1.0, completed=0.0, standing="")

    def progress(self, progress: search.Progress) -> None:
        """Move the bar."""
        fraction = progress.budget.fraction_spent(progress.trials, progress.elapsed_s)
        self._move(fraction, standing(progress, *self._scale), progress.elapsed_s)
