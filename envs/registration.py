"""The table of environments, and their registration with Gymnasium.

``import solgym`` calls ``register_envs()``; nothing else happens then: entry points are imported when an
environment is made.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from solgym.envs.kernel_dsl.kernels import KERNELS
from solgym.envs.mlir_passes.programs.table import PROGRAMS, SUITES
from solgym.errors import InvalidOption, UnknownTask

if TYPE_CHECKING:
    from solgym.envs.base import TuningEnv

__all__ = ["RegisteredEnv", "env_class", "environment_of", "environments", "option_names", "register_envs"]


@dataclass(frozen=True)
class RegisteredEnv:
    """One environment id and what is behind it.

    Attributes:
        id: as given to ``gymnasium.make``.
        family: ``KernelDSL`` or ``MLIRPasses``.
        summary: one line for people.
        entry_point: ``module:class``.
        default_task: id of the task that it offers unless told otherwise; empty if that depends on arguments.
        train: ids of the tasks of its train split.
        test: ids of the tasks of its test split.
        arguments: passed to the class.
        computes: what its task ids begin with; empty where it offers tasks of several kinds.
    """

    id: str
    family: str
    summary: str
    entry_point: str
    default_task: str
    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    computes: str = ""


_MLIR_PASSES = "solgym.envs.mlir_passes.env:MLIRPassesEnv"
_SUITE_SUMMARIES = {
    "PolyBench": "Programs of PolyBench, some held out",
    "ML": "Programs of machine learning and image processing, some held out",
    "All": "Programs of both suites, some held out",
}


@functools.cache
def environments() -> tuple[RegisteredEnv, ...]:
    """Every environment: kernels, then programs, suites and a user's own program."""
    return (*_of_kernels(), *_of_programs(), *_of_suites(), _OWN_PROGRAM)


def _of_kernels() -> tuple[RegisteredEnv, ...]:
    return tuple(
        RegisteredEnv(
            id=f"KernelDSL-{kernel.env_id}-v0",
            family="KernelDSL",
            summary=kernel.summary,
            entry_point="solgym.envs.kernel_dsl.env:KernelDSLEnv",
            default_task=kernel.default_task_id,
            train=kernel.task_ids("train"),
            test=kernel.task_ids("test"),
            arguments={"kernel": kernel.name},
            computes=kernel.name,
        )
        for kernel in KERNELS.values()
    )


def _of_programs() -> tuple[RegisteredEnv, ...]:
    return tuple(
        RegisteredEnv(
            id=f"MLIRPasses-{program.env_id}-v0",
            family="MLIRPasses",
            summary=program.summary,
            entry_point=_MLIR_PASSES,
            default_task=program.default_task_id,
            train=program.task_ids("train"),
            test=program.task_ids("test"),
            arguments={"program": program.name},
            computes=program.name,
        )
        for program in PROGRAMS.values()
    )


def _of_suites() -> tuple[RegisteredEnv, ...]:
    """The suites; an environment of one draws a program at each reset."""
    return tuple(
        RegisteredEnv(
            id=f"MLIRPasses-{suite}-v0",
            family="MLIRPasses",
            summary=_SUITE_SUMMARIES[suite],
            entry_point=_MLIR_PASSES,
            default_task=programs[0].default_task_id,
            train=tuple(task for p in programs if p.split == "train" for task in p.task_ids("train")),
            test=tuple(
                task
                for p in programs
                if p.split == "test"
                for task in (*p.task_ids("train"), *p.task_ids("test"))
            ),
            arguments={"suite": suite},
        )
        for suite, programs in SUITES.items()
        if programs
    )


_OWN_PROGRAM = RegisteredEnv(
    id="MLIRPasses-v0",
    family="MLIRPasses",
    summary="Your own program: program=FILE; --program FILE on the command line",
    entry_point=_MLIR_PASSES,
    default_task="",
)


def register_envs() -> None:
    """Register every environment that Gymnasium does not know yet.

    Measured times differ from run to run, so all are registered as not deterministic.
    """
    for environment in environments():
        if environment.id not in gym.registry:
            gym.register(
                environment.id,
                entry_point=environment.entry_point,
                kwargs=dict(environment.arguments),
                nondeterministic=True,
            )


def env_class(env_id: str) -> type[TuningEnv[Any]]:
    """The class behind an id, of this package or of a user who registered a ``TuningEnv``.

    Raises:
        InvalidOption: there is no such environment; the message names those that are similar.
    """
    from gymnasium.envs.registration import load_env_creator

    from solgym.envs.base import TuningEnv

    spec = gym.registry.get(env_id)
    if spec is not None and spec.entry_point is not None:
        entry = spec.entry_point
        found: object = load_env_creator(entry) if isinstance(entry, str) else entry
        if isinstance(found, type) and issubclass(found, TuningEnv):
            return found
    near = difflib.get_close_matches(env_id, [e.id for e in environments()], n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}" if near else ""
    raise InvalidOption(f"there is no environment {env_id!r}{hint}; `solgym list` names them all")


def option_names(env_id: str) -> frozenset[str]:
    """The names of the arguments that an environment takes, but for those that make it what it is.

    Raises:
        InvalidOption: there is no such environment.
    """
    named = {
        name
        for part in env_class(env_id).__mro__
        if (made := vars(part).get("__init__")) is not None
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }
    return frozenset(named - {"self"} - gym.registry[env_id].kwargs.keys())


def environment_of(task_id: str, family: str | None = None) -> RegisteredEnv:
    """The environment that offers a task, by what the task's id begins with.

    Where both families have tasks of that name, it is the kernel unless ``family`` says otherwise.

    Raises:
        InvalidOption: there is no such family.
        UnknownTask: no environment offers such tasks.
    """
    families = list(dict.fromkeys(environment.family for environment in environments()))
    if family is not None and family not in families:
        raise InvalidOption(f"there is no family {family!r}; choose {' or '.join(families)}")
    name = task_id.split("/")[0]
    for environment in environments():
        if environment.computes == name and family in (None, environment.family):
            return environment
    if family is not None:
        raise UnknownTask(f"{family} has no tasks called {name!r}; `solgym list` names them all")
    raise UnknownTask(
        f"there is no kernel {name!r} in task {task_id!r}, and no program of that name; "
        "`solgym list` names them all"
    )
