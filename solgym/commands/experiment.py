"""``solgym experiment``: run a grid of methods, tasks and seeds, and compare the methods."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from solgym.commands.terminal import CountingBar, open_console, print_as_is

if TYPE_CHECKING:
    from rich.console import Console

    from solgym.baselines.experiment import Cell
    from solgym.baselines.search import Progress

__all__ = ["experiment"]


def experiment(
    file: Annotated[Path, typer.Argument(help="What to run, as TOML.", metavar="FILE.toml")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for the runs and results; runs/NAME if left out.", metavar="DIR"
        ),
    ] = None,
) -> None:
    """Run every method on every task with every seed. The same command again continues where it stopped."""
    from solgym.baselines.experiment import plan, read_experiment, run_experiment, unfinished
    from solgym.commands.profiles import calibrated_profile

    console = open_console()
    asked = read_experiment(file)
    folder = out if out is not None else Path("runs", asked.name)
    with console.status("looking at the tasks"):
        planned = plan(asked)
        todo = unfinished(planned, folder)
    skipped = len(planned.cells) - len(todo)
    finished = f", {skipped} of them finished already" if skipped else ""
    console.print(
        f"[bold]{asked.name}[/]  {len(planned.cells)} runs of {asked.limits}{finished}", highlight=False
    )
    if todo:
        calibrated_profile(console)
    try:
        with _Bar(console) as bar:
            comparison, files = run_experiment(
                planned, folder, command=shlex.join(["solgym", *sys.argv[1:]]), listener=bar
            )
    except KeyboardInterrupt:
        print_as_is(
            console, f"interrupted; everything up to here is in {folder}: repeat the command to go on"
        )
        raise
    for note in comparison.notes:
        console.print("[yellow]note:[/]", Text(note), highlight=False)
    for name, path in files.items():
        print_as_is(console, f"{name:<21} {path}")


class _Bar(CountingBar):
    """How far the experiment is, and the run that goes on."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._run = ""
        self._scale = (1.0, 1.0)

    def cell(self, cell: Cell, number: int, count: int) -> None:
        """Name the run."""
        self._run = str(cell)
        self.count(number, count)
        self.describe(self._run)

    def done(self, cell: Cell, number: int, count: int) -> None:
        """Move the bar by a whole run."""
        self.finished(number, count, str(cell))

    def stage(self, text: str) -> None:
        """Show what is being done."""
        self.describe(f"{self._run}  {text}".strip())

    def scale(self, task_id: str, baseline_s: float, sol_s: float) -> None:
        """Remember what scores refer to."""
        self._scale = (baseline_s, sol_s)

    def progress(self, progress: Progress) -> None:
        """Show where the run stands."""
        from solgym.baselines.console import standing

        self.describe(f"{self._run}  {standing(progress, *self._scale)}")

    def notice(self, text: str) -> None:
        """Print a sentence above the bar."""
        self.console.print("[yellow]note:[/]", Text(f"{self._run}: {text}"), highlight=False)
