"""How commands find the environment of a task that a user names, and what they ask about programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from solgym.baselines.trace import Option
    from solgym.envs.base import TuningEnv

__all__ = ["EnvOption", "FunctionOption", "ProgramOption", "open_task", "program_options"]

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
    str | None, typer.Option(help="The function of --program; main if left out.", metavar="NAME")
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
        env_id = "MLIRPasses-v0"
    elif task_id is not None:
        env_id = environment_of(task_id, env).id
    else:
        raise InvalidOption("give a task id such as gemm/f32/m512n512k512, or --env, or --program")
    made = make_env(env_id, task=task_id, threads=threads, options=options)
    made.choose_task()
    return made
