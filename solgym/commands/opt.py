"""``solgym opt``: apply actions of the pass catalogue to an MLIR file."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from solgym.commands.terminal import open_console

if TYPE_CHECKING:
    from solgym.envs.mlir_passes.client import ModuleSource, PassWorker
    from solgym.envs.mlir_passes.modes import ArgumentShape

__all__ = ["opt"]


def opt(
    file: Annotated[Path, typer.Argument(help="An MLIR file.", metavar="IN.mlir")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write the result; printed if left out.", metavar="FILE"),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(help="Actions of the catalogue to apply, separated by commas.", metavar="A,B,C"),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Apply the best sequence of a run (its folder or trace), or of a candidate's file.",
            metavar="FILE",
        ),
    ] = None,
    function: Annotated[
        str | None, typer.Option(help="The function that --emit lowers, if the file has several.")
    ] = None,
    emit: Annotated[
        str, typer.Option(help="What to write: the module, or what becomes of it.", metavar="mlir|llvm|asm")
    ] = "mlir",
    force: Annotated[
        bool, typer.Option("--force", help="Apply also what the masks refuse; the result may be wrong.")
    ] = False,
) -> None:
    """Apply actions to a module, verify it after each, and say what each did and took."""
    from solgym.envs.mlir_passes.client import PassFailure, PassWorker
    from solgym.errors import InvalidOption
    from solgym.hardware.profile_store import write_atomically

    if (passes is None) == (trace is None):
        raise InvalidOption("give either --passes, the names of actions, or --trace, a run to take them from")
    if emit not in ("mlir", "llvm", "asm"):
        raise InvalidOption(f"there is no form {emit!r}; give --emit mlir, llvm or asm")
    actions = _named(passes) if passes is not None else _recorded(trace)
    worker = PassWorker()
    try:
        source = _source(file, function, worker, lowered=emit != "mlir")
        table = _apply(worker, source, actions, force)
        text = worker.code(source, actions, emit)  # type: ignore[arg-type]
    finally:
        worker.close()
    if isinstance(text, PassFailure):
        raise InvalidOption(f"after all actions the module cannot be lowered: {text.error}")
    text = text.removesuffix("\n") + "\n"
    if out is None:
        open_console(stderr=True).print(table)
        typer.echo(text, nl=False)
        return
    write_atomically(out, text)
    console = open_console()
    console.print(table)
    console.print(f"written to {out}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class _File:
    """A module as it stands in a file; it need not have a function that could be run."""

    id: str
    module_text: str
    function: str = ""
    signature: tuple[ArgumentShape, ...] = ()


def _source(file: Path, function: str | None, worker: PassWorker, lowered: bool) -> ModuleSource:
    from solgym.envs.mlir_passes.user_program import load_program
    from solgym.errors import InvalidOption, InvalidSchedule

    if lowered:
        return load_program(file, function)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"cannot read {file} ({error}); give an MLIR file") from error
    source = _File(f"{file.name}/{hashlib.sha256(text.encode()).hexdigest()}", text)
    try:
        worker.view(source, ())
    except InvalidSchedule as error:
        problem = str(error.__cause__ or error).splitlines()[:2]
        raise InvalidOption(f"{file} is no MLIR that can be read: {' '.join(problem)}") from error
    return source


def _named(passes: str) -> tuple[str, ...]:
    return _checked(name.strip() for name in passes.split(",") if name.strip())


def _checked(names: Any) -> tuple[str, ...]:
    import difflib

    from solgym.envs.mlir_passes.catalogue import ACTION_INDEX
    from solgym.errors import InvalidOption

    known = tuple(names)
    for name in known:
        if name not in ACTION_INDEX or name == "finish":
            near = difflib.get_close_matches(name, ACTION_INDEX, n=3)
            hint = f"; did you mean {' or '.join(near)}" if near else ""
            raise InvalidOption(f"there is no action {name!r} in the catalogue{hint}")
    return known


def _recorded(trace: Path | None) -> tuple[str, ...]:
    """The actions of the best candidate of a trace, or of the candidate in a file."""
    from solgym.baselines.replay import best_record
    from solgym.baselines.trace import read_trace
    from solgym.envs.mlir_passes.sequence import PassSequence
    from solgym.errors import InvalidOption

    assert trace is not None
    candidate: object = None
    if trace.is_file():
        try:
            candidate = json.loads(trace.read_text())
        except (OSError, ValueError, RecursionError):
            candidate = None  # several lines: a trace
    if not isinstance(candidate, dict) or "actions" not in candidate:
        header, records, _ = read_trace(trace)
        best = best_record(records)
        if best is None:
            raise InvalidOption(f"{trace} holds no correct, timed candidate yet")
        if "actions" not in best.candidate:
            raise InvalidOption(f"{trace} is of {header.env_id}, which has no passes; give one of MLIRPasses")
        candidate = best.candidate
    return PassSequence.from_json(candidate).actions


def _apply(worker: PassWorker, source: ModuleSource, actions: tuple[str, ...], force: bool) -> Table:
    """Apply actions one after the other; returns what each changed and took."""
    from solgym.baselines.plots import format_seconds
    from solgym.envs.mlir_passes.client import PassFailure
    from solgym.errors import InvalidOption
    from solgym.hardware.measurement import Status

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("step", justify="right")
    table.add_column("action", overflow="fold")
    table.add_column("changed")
    table.add_column("operations", justify="right", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    before = worker.view(source, ())
    for number, action in enumerate(actions):
        started = time.perf_counter()
        after = worker.step(source, actions[:number], action, enforce_masks=not force)
        took = time.perf_counter() - started
        if isinstance(after, PassFailure) or isinstance(before, PassFailure):
            failure = after if isinstance(after, PassFailure) else before
            assert isinstance(failure, PassFailure)
            hint = "; --force applies it all the same" if failure.status is Status.ILLEGAL else ""
            where = f"step {number + 1} ({action})"
            raise InvalidOption(f"{where} fails, nothing is written: {failure.error.rstrip('.')}{hint}")
        table.add_row(
            str(number + 1),
            action,
            "yes" if after.changed else "[dim]no[/]",
            f"{before.operations} → {after.operations}",
            format_seconds(took),
        )
        before = after
    return table
