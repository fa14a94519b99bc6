"""Which tasks agents may train on, and which are held out, for tables that keep the two apart."""

from __future__ import annotations

import functools
from contextlib import closing

from solgym.baselines.runner import make_env

__all__ = ["is_training_task"]


def is_training_task(env_id: str, task: str) -> bool:
    """Whether a task is of the training split; all else counts as held out.

    Of kernels shapes are held out; of programs whole programs, and other shapes of the rest.

    Raises:
        InvalidOption: there is no such environment.
    """
    suite = "MLIRPasses-All-v0" if env_id.startswith("MLIRPasses-") else env_id
    return task in _training_tasks(suite)


@functools.cache
def _training_tasks(env_id: str) -> frozenset[str]:
    with closing(make_env(env_id, options={"split": "train"})) as env:
        return frozenset(env.tasks)
