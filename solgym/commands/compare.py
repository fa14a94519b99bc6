"""``solgym compare``: search methods under equal budgets, as a table, pictures and one web page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from solgym.commands.terminal import open_console, print_as_is

if TYPE_CHECKING:
    from rich.table import Table

    from solgym.baselines.comparison import Comparison

__all__ = ["compare"]

_LESSER = ("seconds to target", "measurements to target", "beats random", "at equal seconds", "runs")
"""Columns that give way on a narrow terminal, in this order."""


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs, or folders above them.", metavar="DIR..."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the page, the pictures and the data.", metavar="DIR"),
    ] = None,
    target: Annotated[
        float, typer.Option(help="Which part of the best known score counts as having reached it.")
    ] = 0.9,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs that were made under different conditions.")
    ] = False,
) -> None:
    """Compare tuners by their recorded runs: equal budgets, all seeds, intervals. Measures nothing."""
    from solgym.baselines.comparison import compare as run
    from solgym.baselines.comparison_page import write_comparison

    console = open_console()
    with console.status("reading the runs"):
        comparison = run(folders, target=target, anyway=anyway)
    for note in comparison.notes:
        console.print("[yellow]note:[/]", Text(note), highlight=False)
    if comparison.common_tasks:
        console.print(_overall_table(comparison, console.width))
    for table in _task_tables(comparison, console.width):
        console.print()
        console.print(table)
    if out is not None:
        with console.status("drawing"):
            files = write_comparison(comparison, out, shlex.join(["solgym", *sys.argv[1:]]))
        console.print()
        for name, path in files.items():
            print_as_is(console, f"{name:<21} {path}")


def _table(title: str) -> Table:
    from rich.table import Table

    return Table(
        box=None,
        padding=(0, 2, 0, 0),
        header_style="bold",
        title=title,
        title_style="bold",
        title_justify="left",
    )


def _overall_table(comparison: Comparison, width: int) -> Table:
    """Methods by their interquartile mean, best first."""
    from rich.text import Text

    from solgym.baselines.comparison_page import interval_text, spent_text
    from solgym.baselines.recorded_runs import AXES

    overall = comparison.overall
    ranked = sorted(comparison.methods, key=lambda method: -overall[method].final["measurements"].value)
    columns = {"runs": [str(overall[method].runs) for method in ranked]}
    for axis in AXES:
        columns[f"at equal {axis}"] = [interval_text(overall[method].final[axis]) for method in ranked]
    if "random" in comparison.methods and len(ranked) > 1:
        chances = comparison.improvement["measurements"]
        columns["beats random"] = [
            "" if method == "random" else interval_text(chances[method]["random"]) for method in ranked
        ]
    for axis in AXES:
        columns[f"{axis} to target"] = [
            spent_text(axis, overall[method].target[axis].median) if overall[method].target else "no target"
            for method in ranked
        ]
    names = max(map(len, ranked))
    for lesser in _LESSER:
        if names + 2 + sum(2 + _width(name, cells) for name, cells in columns.items()) > width:
            columns.pop(lesser, None)
    count = len(comparison.common_tasks)
    table = _table(
        f"gap closed over {count} task{'s' if count > 1 else ''}: interquartile mean [95% interval]"
    )
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for method, *cells in zip(ranked, *columns.values(), strict=True):
        table.add_row(Text(method), *map(Text, cells))
    return table


def _width(name: str, cells: list[str]) -> int:
    """What a column needs at least: its cells whole, its name by words."""
    return max(max(map(len, cells)), *map(len, name.split()))


def _task_tables(comparison: Comparison, width: int) -> list[Table]:
    """The median score of each method on each task, in as many tables as the terminal's width asks for."""
    from rich.text import Text

    labels = max([len(task.label) for task in comparison.tasks] + [len("task")])
    each = max(max(map(len, comparison.methods)), 6) + 2
    per_table = max(1, (width - labels - 2 - len("expert") - 2) // each)
    tables = []
    for start in range(0, len(comparison.methods), per_table):
        methods = comparison.methods[start : start + per_table]
        table = _table("gap closed at equal measurements: median over seeds")
        table.add_column("")
        for name in (*methods, "expert"):
            table.add_column(name, justify="right", no_wrap=True)
        for task in comparison.tasks:
            medians = {m: found.final["measurements"].median for m, found in task.methods.items()}
            best = max(medians.values())
            cells = [
                Text(f"{medians[m]:.3f}", style="bold green" if medians[m] == best else "")
                if m in medians
                else Text("")
                for m in methods
            ]
            expert = "" if task.expert is None else f"{task.expert:.3f}"
            table.add_row(Text(task.label), *cells, Text(expert, style="dim"))
        tables.append(table)
    return tables
