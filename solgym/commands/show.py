"""``solgym show``: a candidate as a person reads it, as LLVM IR or as assembly."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solgym.commands.tasks import EnvOption, FunctionOption, ProgramOption, open_task, program_options

if TYPE_CHECKING:
    from solgym.envs.base import TuningEnv
    from solgym.hardware.target import Candidate

__all__ = ["show"]


def show(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A candidate's file (JSON), the folder of a run for its best one, or a task id for its "
            "untouched form; --program needs none.",
            metavar="FILE|DIR|TASK",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="Of a schedule: nest (loop nest, if left out), llvm, asm. Of passes: mlir (if left out), "
            "llvm, asm.",
            metavar="FORM",
        ),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Print the loop nest or module before and after every step.")
    ] = False,
    expert: Annotated[bool, typer.Option("--expert", help="Show the task's best known candidate.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads that the candidate runs on.")] = 1,
    env: EnvOption = None,
    program: ProgramOption = None,
    function: FunctionOption = None,
) -> None:
    """Print what a schedule or pass sequence makes of its task, or the untouched task."""
    from solgym.errors import IllegalSchedule, InvalidOption

    data = None if what is None else _data(what)
    task_id = what if data is None else _task_of(data, str(what))
    options = program_options(program, function)
    family = env if env is not None or data is None else _family_of(data)
    with closing(open_task(task_id, family, threads, options)) as opened:
        candidate = opened.untouched if data is None else opened.read_candidate(data)
        if expert:
            candidate = _expert(opened)
        try:
            if steps:
                _print_steps(opened, candidate, form)
            else:
                _print_form(opened, candidate, form)
        except IllegalSchedule as error:
            raise InvalidOption(
                f"{'the task' if data is None else what} cannot be shown for {opened.task.id}: {error}"
            ) from error


def _expert(env: TuningEnv[Any]) -> Candidate:
    from solgym.errors import InvalidOption

    if env.expert is None:
        raise InvalidOption(f"no expert is known for {env.task.id}; leave out --expert")
    return env.expert


def _print_steps(env: TuningEnv[Any], candidate: Candidate, form: str | None) -> None:
    from solgym.errors import InvalidOption

    usual = env.code_of(env.untouched)[0].form
    if form not in (None, usual):
        raise InvalidOption(f"--steps prints one form; leave out --as, or give --as {usual}")
    for label, text in env.history_of(candidate):
        typer.echo(f"{'//' if usual == 'mlir' else '#'} {label}")
        typer.echo(f"{text.removesuffix(chr(10))}\n")


def _print_form(env: TuningEnv[Any], candidate: Candidate, form: str | None) -> None:
    from solgym.errors import InvalidOption

    forms = {code.form: code.text for code in env.code_of(candidate)}
    chosen = next(iter(forms)) if form is None else form
    if chosen not in forms:
        raise InvalidOption(f"there is no form {form!r} here; give --as {', '.join(forms)}")
    typer.echo(forms[chosen].removesuffix("\n"))


def _data(what: str) -> dict[str, Any] | None:
    """What a file holds; None if ``what`` is no file but, by its looks, a task id."""
    from solgym.errors import InvalidSchedule

    path = Path(what)
    if path.is_dir():
        path /= "best.json"  # of a run
        if not path.is_file():
            raise InvalidSchedule(f"the folder {what} has no best.json; give a run's, or a candidate's file")
    if not path.is_file():
        if path.suffix or path.exists():
            raise InvalidSchedule(f"there is no file {what}; give a candidate's file or a task id")
        return None
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidSchedule(f"cannot read {path} ({error}); give a candidate as JSON") from error
    if not isinstance(data, dict):
        raise InvalidSchedule(f"{what} holds no candidate, which is a JSON object with version and task")
    return data


def _task_of(data: dict[str, Any], what: str) -> str:
    from solgym.errors import InvalidSchedule

    if not isinstance(data.get("task"), str):
        raise InvalidSchedule(f"{what} does not say which task it is for; a candidate has a task id")
    return str(data["task"])


def _family_of(data: dict[str, Any]) -> str:
    """The family whose candidates have the form of ``data``; schedules have steps, pass sequences actions."""
    return "MLIRPasses" if "actions" in data else "KernelDSL"
