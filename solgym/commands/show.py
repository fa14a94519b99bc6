"""``solgym show``: a schedule as a loop nest, as LLVM IR or as assembly."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from solgym.envs.kernel_dsl.schedule import Schedule

__all__ = ["show"]


class Form(StrEnum):
    """What to print."""

    NEST = "nest"
    LLVM = "llvm"
    ASM = "asm"


def show(
    what: Annotated[
        str,
        typer.Argument(
            help="A schedule file (JSON), or a task id for its untouched loops.", metavar="SCHEDULE|TASK"
        ),
    ],
    form: Annotated[Form, typer.Option("--as", help="Loop nest, LLVM IR or assembly.")] = Form.NEST,
    steps: Annotated[
        bool, typer.Option("--steps", help="Print the loop nest before and after every step.")
    ] = False,
    expert: Annotated[bool, typer.Option("--expert", help="Show the task's hand-written schedule.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads that the kernel runs on.")] = 1,
) -> None:
    """Print the loops or the code of a schedule, or of a task without one."""
    from solgym.baselines.code import code_of
    from solgym.envs.kernel_dsl.kernels.task import parse_task
    from solgym.envs.kernel_dsl.nest import ProgramNest
    from solgym.errors import IllegalSchedule, InvalidOption
    from solgym.hardware.target import cpu_spec

    schedule = _schedule(what)
    task, spec = parse_task(schedule.task_id), cpu_spec(threads)
    if expert:
        from solgym.envs.kernel_dsl.experts import expert_schedule

        schedule = expert_schedule(task, spec)
    try:
        if steps:
            if form is not Form.NEST:
                raise InvalidOption("--steps prints loop nests; leave out --as, or give --as nest")
            nests = schedule.nests(ProgramNest.initial(task.computation), spec)
            for number, nest in enumerate(nests):
                step = schedule.steps[number - 1] if number else None
                typer.echo(f"# {'untouched' if step is None else f'after step {number}: {_words(step)}'}")
                typer.echo(f"{nest}\n")
            return
        code = code_of(schedule, task, spec)
    except IllegalSchedule as error:
        raise InvalidOption(f"the schedule cannot be applied to {task.id}: {error}") from error
    typer.echo({Form.NEST: code.nest, Form.LLVM: code.llvm, Form.ASM: code.assembly}[form])


def _schedule(what: str) -> Schedule:
    from solgym.envs.kernel_dsl.schedule import Schedule
    from solgym.errors import InvalidSchedule

    path = Path(what)
    if not path.is_file():
        if path.suffix or path.exists():
            raise InvalidSchedule(f"there is no file {what}; give a schedule file or a task id")
        return Schedule(what)
    try:
        return Schedule.from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSchedule(f"cannot read {what} ({error}); give a schedule as JSON") from error


def _words(step: Mapping[str, object]) -> str:
    return " ".join(f"{key}={value}" if key != "op" else str(value) for key, value in step.items())
