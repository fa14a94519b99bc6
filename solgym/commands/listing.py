"""``solgym list``: the environments and their tasks."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from solgym.commands.terminal import open_console, print_table
from solgym.errors import InvalidOption

__all__ = ["list_environments"]


def list_environments(
    name: Annotated[
        str | None,
        typer.Argument(help="Only what has this in its name, or in what it computes.", metavar="NAME"),
    ] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="List the tasks of each, train and test.")] = False,
    actions: Annotated[
        bool, typer.Option("--actions", help="List the pass catalogue of MLIRPasses instead.")
    ] = False,
) -> None:
    """List the environments, with --tasks what each can be asked to do, or the passes of MLIRPasses."""
    from solgym.envs.registration import environments

    if actions:
        if tasks:
            raise InvalidOption("give either --tasks or --actions")
        _list_actions(name)
        return
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
    table.add_column("train", justify="right", no_wrap=True)
    table.add_column("test", justify="right", no_wrap=True)
    table.add_column("what it computes", min_width=16)
    for environment in chosen:
        counts = (str(len(tasks)) if tasks else "" for tasks in (environment.train, environment.test))
        table.add_row(environment.id, *counts, Text(environment.summary))
    print_table(console, table)
    console.print("\nThe numbers count named tasks, see --tasks; any other shape works too.", highlight=False)


def _list_actions(name: str | None) -> None:
    from solgym.envs.mlir_passes.catalogue import ACTIONS

    chosen = [
        action
        for action in ACTIONS
        if name is None or name.lower() in f"{action.name} {action.level} {action.summary}".lower()
    ]
    if not chosen:
        raise InvalidOption(f"no action has {name!r} in its name; `solgym list --actions` names them all")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("action", no_wrap=True)
    table.add_column("level", no_wrap=True)
    table.add_column("what it does", min_width=16)
    for action in chosen:
        table.add_row(action.name, action.level, Text(action.summary))
    print_table(open_console(), table)
