"""How commands find the environment of a task that a user names, and what they ask about programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from solgym.baselines.trace import Option
    from solgym.envs.base import TuningEnv

__all__ = ["EnvOption", "FunctionOption", "ProgramOption", "check_program", "open_task", "program_options"]

OWN_PROGRAM = "MLIRPasses-v0"

EnvOption = Annotated[
    str | None,
    typer.Option(
        help="An environment id or a family (KernelDSL, MLIRPasses), where a task id exists in both; "
        "kernels go first.",
        metavar="ENV|FAMILY",
    ),
]
ProgramOption = Annotated[
    Path | None, typer.Option(help="The MLIR file of MLIRPasses-v0, a program of your own.", metavar="FILE")
]
FunctionOption = Annotated[
    str | None,
    typer.Option(help="The function of --program to run; its only public one if left out.", metavar="NAME"),
]


def program_options(program: Path | None, function: str | None) -> dict[str, Option]:
    """The arguments that make an environment of a user's own program."""
    from solgym.errors import InvalidOption

    if program is None:
        if function is not None:
            raise InvalidOption("--function names a function of a --program; give that too")
        return {}
    given: dict[str, Option] = {"program": str(program.absolute())}
    return given if function is None else {**given, "function": function}


def check_program(env_id: str, options: Mapping[str, Option]) -> None:
    """Raise InvalidOption if an environment lacks a program of the user's, or has no use for one."""
    from solgym.errors import InvalidOption

    if "program" in options and env_id != OWN_PROGRAM:
        raise InvalidOption(f"--program goes with {OWN_PROGRAM}, not with {env_id}")
    if "program" not in options and env_id == OWN_PROGRAM:
        raise InvalidOption(f"{OWN_PROGRAM} runs a program of your own; give its file as --program")


def open_task(
    task_id: str | None,
    env: str | None = None,
    threads: int = 1,
    options: Mapping[str, Option] | None = None,
) -> TuningEnv[Any]:
    """An environment with a task chosen; nothing is measured or calibrated.

    Args:
        task_id: of any shape; None is the default of ``env``, or the only one of a user's program.
        env: an environment id or a family; None finds the environment by the task's id.
        threads: threads that candidates run on.
        options: further arguments of the environment, such as ``program_options``.

    Raises:
        InvalidOption: nothing says which task.
        SolgymError: there is no such task or environment.
    """
    from solgym.baselines.runner import make_env
    from solgym.envs.registration import environment_of, environments
    from solgym.errors import InvalidOption

    families = {environment.family for environment in environments()}
    if env is not None and env not in families:
        env_id = env
    elif options:
        env_id = OWN_PROGRAM
    elif task_id is None:
        where = "" if env is None else f"; {env} is a family"
        raise InvalidOption(
            f"give a task id such as gemm/f32/m512n512k512, or --env with an environment, or --program{where}"
        )
    elif task_id in {environment.id for environment in environments()}:
        raise InvalidOption(
            f"{task_id} is an environment, not a task; give --env {task_id} for its default task"
        )
    elif task_id.startswith("user/"):
        raise InvalidOption(f"{task_id} is a program of your own; give its file as --program too")
    else:
        env_id = environment_of(task_id, env).id
    check_program(env_id, options or {})
    made = make_env(env_id, task=task_id, threads=threads, options=options)
    made.choose_task()
    return made
