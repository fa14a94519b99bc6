"""The table of environments, and their registration with Gymnasium.

``import solgym`` calls ``register_envs()``; nothing else happens then: entry points are imported when an
environment is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from solgym.envs.kernel_dsl.kernels import KERNELS

__all__ = ["RegisteredEnv", "environments", "register_envs"]


@dataclass(frozen=True)
class RegisteredEnv:
    """One environment id and what is behind it.

    Attributes:
        id: as given to ``gymnasium.make``.
        family: ``KernelDSL`` and, later, others.
        summary: one line for people.
        entry_point: ``module:class``.
        default_task: id of the task that it offers unless told otherwise.
        arguments: passed to the class.
    """

    id: str
    family: str
    summary: str
    entry_point: str
    default_task: str
    arguments: dict[str, Any] = field(default_factory=dict)


def environments() -> tuple[RegisteredEnv, ...]:
    """Every environment, in the order of the tables of kernels."""
    return tuple(
        RegisteredEnv(
            id=f"KernelDSL-{kernel.env_id}-v0",
            family="KernelDSL",
            summary=kernel.summary,
            entry_point="solgym.envs.kernel_dsl.env:KernelDSLEnv",
            default_task=kernel.default_task_id,
            arguments={"kernel": kernel.name},
        )
        for kernel in KERNELS.values()
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
