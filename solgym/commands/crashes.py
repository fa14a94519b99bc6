"""``solgym crashes``: what went wrong with MLIR passes here, and how to meet it again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from solgym.commands.terminal import open_console, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from solgym.envs.mlir_passes.crash_log import CrashRecord
    from solgym.envs.mlir_passes.crash_study import Failure

__all__ = ["crashes"]

GONE = 1
LISTED = 30

crashes = typer.Typer(
    help="List, minimise and export what went wrong with MLIR passes.", add_completion=False
)

Number = Annotated[int, typer.Argument(min=1, help="Its number in the list.", metavar="N")]
Seconds = Annotated[float, typer.Option(min=0.0, help="How long to try to make it smaller.")]


@crashes.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    """List, minimise and export what went wrong with MLIR passes."""
    if context.invoked_subcommand is None:
        list_crashes()


@crashes.command("list")
def list_crashes(
    everything: Annotated[
        bool, typer.Option("--all", help=f"All of them, not only the last {LISTED}.")
    ] = False,
    status: Annotated[
        str | None,
        typer.Option(help="Only those of a status: crashed, timeout, wrong_result, ...", metavar="STATUS"),
    ] = None,
) -> None:
    """List failures, the newest last."""
    from solgym.envs.mlir_passes.crash_log import crash_log_path, read_crashes
    from solgym.errors import InvalidOption
    from solgym.hardware.measurement import Status

    if status is not None and status not in list(Status):
        raise InvalidOption(f"there is no status {status!r}; give one of {', '.join(Status)}")
    known = read_crashes()
    records = [
        (number, record)
        for number, record in enumerate(known, start=1)
        if status is None or record.status.value == status
    ]
    console = open_console()
    if not records:
        text = f"nothing has failed here, as far as {crash_log_path()} knows"
        if known:
            text = f"nothing has ended in {status}, of {len(known)} in {crash_log_path()}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("N", justify="right", no_wrap=True)
    table.add_column("when", no_wrap=True)
    table.add_column("program", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("action", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True)
    shown = records if everything else records[-LISTED:]
    for number, record in shown:
        when = record.time[:16].replace("T", " ")
        row = (record.program, record.status.value, record.action, str(len(record.actions)))
        table.add_row(str(number), when, *map(Text, row))
    print_table(console, table)
    if len(shown) < len(records):
        console.print(
            f"\n{len(records) - len(shown)} older ones are left out, see `solgym crashes list --all`",
            highlight=False,
        )


@crashes.command()
def show(number: Number) -> None:
    """Print all that is known of a failure."""
    record = _record(number)
    console = open_console()
    lines = [
        f"program   {record.program}",
        f"actions   {','.join(record.actions) or '(none)'}",
        f"failing   {record.action}",
        f"status    {record.status.value}",
        f"outcome   {record.outcome}",
        f"time      {record.time}",
        f"versions  {', '.join(f'{name} {version}' for name, version in record.versions.items())}",
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


@crashes.command()
def minimise(number: Number, seconds: Seconds = 120.0) -> None:
    """Find a shorter sequence and smaller extents that fail alike; exit code 1 if nothing fails now."""
    console = open_console()
    _print(_smaller(_record(number), seconds, console), console)


@crashes.command()
def export(
    number: Number,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the files; crash-N if left out.", metavar="DIR")
    ] = None,
    seconds: Seconds = 0.0,
) -> None:
    """Write a failure's module and the command that fails on it, for those who work on MLIR.

    With --seconds it is minimised first. Exit code 1 if it does not fail any more.
    """
    from solgym.envs.mlir_passes.crash_study import open_study
    from solgym.hardware.atomic_files import write_all_atomically

    record = _record(number)
    folder = out if out is not None else Path(f"crash-{number}")
    console = open_console()
    failure = _smaller(record, seconds, console)
    with open_study() as study, console.status("looking for the action to blame"):
        exported = study.export(failure)
    module = folder / "module.mlir"
    files = {module: exported.module}
    if exported.after is not None:
        files[folder / "wrong.mlir"] = exported.after
    commands = _commands(module, exported.blamed, exported.pipeline)
    description = {
        "program": failure.task.id,
        "actions": list(failure.actions),
        "action": failure.action,
        "blamed": exported.blamed,
        "status": failure.status.value,
        "outcome": failure.outcome,
        "commands": commands,
        "versions": record.versions,
    }
    files[folder / "failure.json"] = json.dumps(description, indent=1) + "\n"
    write_all_atomically(files)
    _print(failure, console)
    for line in (f"blamed    {exported.blamed}", f"written   {', '.join(map(str, files))}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for command in commands:
        console.print(command, highlight=False, markup=False, soft_wrap=True)


def _commands(module: Path, blamed: str, pipeline: str) -> list[str]:
    """Command lines that fail on a module: LLVM's own where the action is a pipeline, and always ours."""
    file = shlex.quote(str(module))
    if blamed == "finish":
        return [f"solgym opt {file} --passes '' --emit llvm"]
    ours = f"solgym opt {file} --force --passes {shlex.quote(blamed)}"
    if not pipeline:
        return [ours]
    return [f"mlir-opt {file} --pass-pipeline={shlex.quote(f'builtin.module({pipeline})')}", ours]


def _record(number: int) -> CrashRecord:
    from solgym.envs.mlir_passes.crash_log import crash_log_path, read_crashes
    from solgym.errors import InvalidOption

    records = read_crashes()
    if number > len(records):
        raise InvalidOption(f"there is no failure {number}; {crash_log_path()} has {len(records)}")
    return records[number - 1]


def _smaller(record: CrashRecord, seconds: float, console: Console) -> Failure:
    from solgym.envs.mlir_passes.crash_study import open_study

    with open_study() as study:
        with console.status("repeating it"):
            failure = study.repeat(record)
        if failure is None:
            console.print("it does not fail any more", highlight=False)
            raise typer.Exit(GONE)
        if failure.status is not record.status:
            console.print(f"[yellow]note:[/] it is {failure.status.value} now", highlight=False)
        with console.status("minimising") as status:
            return study.minimise(failure, seconds, lambda text: status.update(f"minimising: {text}"))


def _print(failure: Failure, console: Console) -> None:
    lines = [
        f"program   {failure.task.id}",
        f"actions   {','.join(failure.actions) or '(none)'}",
        f"failing   {failure.action}",
        f"status    {failure.status.value}",
        f"outcome   {failure.outcome}",
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
