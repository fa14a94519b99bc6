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
        str | None, typer.Argument(help="Only environments and kernels with this in their name.")
    ] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="List the tasks of each, train and test.")] = False,
) -> None:
    """List the environments, or with --tasks what each can be asked to do."""
    from solgym.envs.kernel_dsl.kernels import KERNELS

    kernels = [
        kernel
        for kernel in KERNELS.values()
        if name is None or name.lower() in f"KernelDSL-{kernel.env_id}-v0 {kernel.name}".lower()
    ]
    if not kernels:
        raise InvalidOption(
            f"no environment or kernel has {name!r} in its name; `solgym list` names them all"
        )
    console = open_console()
    if tasks:
        for kernel in kernels:
            console.print(f"[bold]KernelDSL-{kernel.env_id}-v0[/]  {kernel.summary}", highlight=False)
            for split in ("train", "test"):
                for task in kernel.task_ids(split):
                    default = "  (default)" if task == kernel.default_task_id else ""
                    console.print(f"  {split:<5}  {task}{default}", highlight=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("environment", no_wrap=True)
    table.add_column("train", justify="right")
    table.add_column("test", justify="right")
    table.add_column("what it computes")
    for kernel in kernels:
        counts = str(len(kernel.train)), str(len(kernel.test))
        table.add_row(f"KernelDSL-{kernel.env_id}-v0", *counts, Text(kernel.summary))
    console.print(table)
    console.print(
        "\nThe numbers count named tasks, see --tasks. Any other shape works too: `solgym tune` --task.",
        highlight=False,
    )
