"""``solgym list``: the environments and their tasks."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from solgym.commands.terminal import open_console
from solgym.errors import InvalidOption

__all__ = ["list_environments"]


def list_environments(
    name: Annotated[
        str | None, typer.Argument(help="Only environments, kernels and programs with this in their name.")
    ] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="List the tasks of each, train and test.")] = False,
) -> None:
    """List the environments, or with --tasks what each can be asked to do."""
    from solgym.envs.registration import environments

    chosen = [
        environment
        for environment in environments()
        if name is None or name.lower() in f"{environment.id} {environment.computes}".lower()
    ]
    if not chosen:
        raise InvalidOption(
            f"no environment, kernel or program has {name!r} in its name; `solgym list` names them all"
        )
    console = open_console()
    if tasks:
        for environment in chosen:
            console.print(f"[bold]{environment.id}[/]  ", Text(environment.summary), highlight=False, sep="")
            for split, ids in (("train", environment.train), ("test", environment.test)):
                for task in ids:
                    default = "  (default)" if task == environment.default_task else ""
                    console.print(f"  {split:<5}  {task}{default}", highlight=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("environment", no_wrap=True)
    table.add_column("train", justify="right")
    table.add_column("test", justify="right")
    table.add_column("what it computes")
    for environment in chosen:
        counts = str(len(environment.train)), str(len(environment.test))
        table.add_row(environment.id, *counts, Text(environment.summary))
    console.print(table)
    console.print(
        "\nThe numbers count named tasks, see --tasks. Any other shape works too: `solgym tune` --task.",
        highlight=False,
    )
