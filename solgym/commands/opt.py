"""``solgym opt``: apply actions of the pass catalogue to an MLIR file."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer
from rich.table import Table

from solgym.commands.terminal import open_console, print_table

if TYPE_CHECKING:
    from solgym.envs.mlir_passes.client import ModuleSource, PassWorker
    from solgym.envs.mlir_passes.modes import ArgumentShape, Form

__all__ = ["Step", "apply_actions", "named_actions", "opt"]

MAX_FILE_BYTES: Final = 64 << 20


def opt(
    file: Annotated[Path, typer.Argument(help="An MLIR file; - is standard input.", metavar="IN.mlir")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write the result; printed if left out.", metavar="FILE"),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            help="Actions of the catalogue, separated by commas; `solgym list --actions` names them.",
            metavar="A,B,C",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Apply the best sequence of a run (its folder or trace), or of a candidate's file.",
            metavar="FILE",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Let a trained policy choose the passes, measuring as it was trained to: its file, or the "
            "name of one that comes with SOLGym.",
            metavar="POLICY",
        ),
    ] = None,
    function: Annotated[
        str | None,
        typer.Option(
            help="The function that --emit lowers or --policy runs, if the file has several.", metavar="NAME"
        ),
    ] = None,
    emit: Annotated[
        str,
        typer.Option(help="What to write: the module, its LLVM IR or assembly.", metavar="mlir|llvm|asm"),
    ] = "mlir",
    force: Annotated[
        bool,
        typer.Option("--force", help="Try also what is not offered: it may crash, or change the result."),
    ] = False,
) -> None:
    """Apply passes to an MLIR file, verify it after each, and say what each changed and took.

    Nothing is written unless all of them succeed.
    """
    from solgym.envs.mlir_passes.client import PassFailure, PassWorker
    from solgym.errors import InvalidOption
    from solgym.hardware.atomic_files import write_atomically

    if sum(given is not None for given in (passes, trace, policy)) != 1:
        raise InvalidOption(
            "give one of --passes, the names of actions, --trace, a run to take them from, and --policy, "
            "what chooses them"
        )
    if emit not in ("mlir", "llvm", "asm"):
        raise InvalidOption(f"there is no form {emit!r}; give --emit mlir, llvm or asm")
    if function is not None and emit == "mlir" and policy is None:
        raise InvalidOption("--function says what --emit llvm or asm lowers; the module is written whole")
    if policy is not None:
        actions = _chosen_by(policy, file, function)
    else:
        actions = named_actions(passes) if passes is not None else _recorded(cast(Path, trace))
    worker = PassWorker()
    try:
        source = _source(file, function, worker, lowered=emit != "mlir")
        steps = apply_actions(
            worker, source, actions, force, "" if force else "; --force tries it all the same"
        )
        text = worker.code(source, actions, cast("Form", emit))
    finally:
        worker.close()
    if isinstance(text, PassFailure):
        raise InvalidOption(f"after all actions the module cannot be lowered: {text.error}")
    text = text.removesuffix("\n") + "\n"
    if out is not None:
        write_atomically(out, text)
    console = open_console(stderr=out is None)
    if steps:
        print_table(console, _table(steps))
    if out is None:
        typer.echo(text, nl=False)
    else:
        console.print(f"written to {out}", highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Step:
    """What one action did to a module.

    Attributes:
        action: its name.
        changed: whether the module's text is another now.
        before: operations of the module before it.
        after: and after it.
        took_s: seconds, the message to the pass worker and back included.
    """

    action: str
    changed: bool
    before: int
    after: int
    took_s: float


def named_actions(passes: str) -> tuple[str, ...]:
    """The actions that a comma-separated list names; empty places are passed over.

    Raises:
        InvalidOption: there is no such action; the message has those that are similar.
    """
    import difflib

    from solgym.envs.mlir_passes.catalogue import ACTION_INDEX
    from solgym.errors import InvalidOption

    names = tuple(name for part in passes.split(",") if (name := part.strip()))
    for name in names:
        if name == "finish":
            raise InvalidOption("finish only ends an episode and changes no module; leave it out")
        if name not in ACTION_INDEX:
            near = difflib.get_close_matches(name.lower(), ACTION_INDEX, n=3)
            hint = f"did you mean {' or '.join(near)}" if near else "`solgym list --actions` names them all"
            raise InvalidOption(f"there is no action {name!r} in the catalogue; {hint}")
    return names


def apply_actions(
    worker: PassWorker, source: ModuleSource, actions: tuple[str, ...], force: bool = False, advice: str = ""
) -> tuple[Step, ...]:
    """Apply actions one after the other.

    Args:
        worker: where.
        source: the untouched module.
        actions: names.
        force: apply also what the masks leave out.
        advice: what to do about an action that is not offered.

    Raises:
        InvalidOption: one is not offered, or fails; says which and why.
    """
    from solgym.envs.mlir_passes.client import PassFailure
    from solgym.errors import InvalidOption
    from solgym.hardware.measurement import Status

    steps: list[Step] = []
    untouched = worker.view(source, ())
    if isinstance(untouched, PassFailure):
        raise InvalidOption(f"the module cannot be read: {untouched.error}")
    operations = untouched.operations
    for number, action in enumerate(actions):
        started = time.perf_counter()
        after = worker.step(source, actions[:number], action, enforce_masks=not force)
        took_s = time.perf_counter() - started
        if isinstance(after, PassFailure):
            refused = after.status is Status.ILLEGAL
            why = after.error.rstrip(".") + (advice if refused else "")
            what = "is not offered" if refused else "fails"
            raise InvalidOption(f"step {number + 1} ({action}) {what}, nothing is written: {why}")
        steps.append(Step(action, after.changed, operations, after.operations, took_s))
        operations = after.operations
    return tuple(steps)


@dataclass(frozen=True)
class _File:
    """A module as it stands in a file; it need not have a function that could be run."""

    id: str
    module_text: str
    function: str = ""
    signature: tuple[ArgumentShape, ...] = ()


def _source(file: Path, function: str | None, worker: PassWorker, lowered: bool) -> ModuleSource:
    from solgym.envs.mlir_passes.diagnostics import parser_problem
    from solgym.envs.mlir_passes.user_program import program_from_text, read_module
    from solgym.errors import InvalidOption, InvalidSchedule
    from solgym.hardware.process import WorkerDied, WorkerSilent

    text = read_module(Path("/dev/stdin") if str(file) == "-" else file, MAX_FILE_BYTES)
    if lowered:
        return program_from_text(text, "module", function, str(file))
    source = _File(f"{file.name}/{hashlib.sha256(text.encode()).hexdigest()}", text)
    try:
        worker.view(source, ())
    except InvalidSchedule as error:
        problem = parser_problem(str(error.__cause__ or error))
        if isinstance(error.__cause__, WorkerDied):
            problem = "MLIR's parser crashes on it"
        elif isinstance(error.__cause__, WorkerSilent):
            problem = "MLIR's parser takes too long"
        raise InvalidOption(f"{file} is no MLIR that can be read: {problem}") from error
    return source


def _recorded(trace: Path) -> tuple[str, ...]:
    """The actions of the best candidate of a trace, or of the candidate in a file."""
    from solgym.baselines.replay import best_record
    from solgym.baselines.trace import read_trace
    from solgym.envs.mlir_passes.sequence import PassSequence
    from solgym.errors import InvalidOption

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


def _chosen_by(policy: str, file: Path, function: str | None) -> tuple[str, ...]:
    """The actions that are in force after an episode in which a policy acts on the program of a file."""
    from contextlib import closing

    from solgym.baselines.plots import format_seconds
    from solgym.baselines.rl.episodes import play
    from solgym.baselines.rl.policy import Policy
    from solgym.baselines.runner import make_env
    from solgym.commands.profiles import calibrated_profile
    from solgym.commands.tasks import OWN_PROGRAM, program_options
    from solgym.envs.mlir_passes.sequence import PassSequence
    from solgym.errors import InvalidOption

    if str(file) == "-":
        raise InvalidOption("a policy runs the program again and again; give a file in place of -")
    loaded = Policy.load(policy)
    options = loaded.options_for(OWN_PROGRAM) | program_options(file, function)
    options.pop("threads", None)  # programs run on one
    with closing(make_env(OWN_PROGRAM, options=options)) as env:
        loaded.check(env)
        console = open_console(stderr=True)
        calibrated_profile(console)
        with console.status("the policy acts"):
            episode = play(loaded, env, env.tasks[0])
    assert isinstance(episode.candidate, PassSequence)
    console.print(
        f"{episode.steps} steps, {episode.failures} failed; {format_seconds(episode.baseline_s)} untouched, "
        f"{format_seconds(episode.baseline_s / episode.speedup)} now, gap closed {episode.gap_closed:.3f}",
        highlight=False,
    )
    return episode.candidate.actions


def _table(steps: Iterable[Step]) -> Table:
    from solgym.baselines.plots import format_seconds

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("action", no_wrap=True)
    table.add_column("changed", no_wrap=True)
    table.add_column("operations", justify="right", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    for number, step in enumerate(steps, start=1):
        changed = "yes" if step.changed else "[dim]no[/]"
        operations = f"{step.before} → {step.after}"
        table.add_row(str(number), step.action, changed, operations, format_seconds(step.took_s))
    return table
