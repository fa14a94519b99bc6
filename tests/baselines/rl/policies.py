"""Policies with random weights."""

import itertools
from typing import Any

import numpy as np

from solgym.baselines.rl.policy import Policy, PolicyInfo, action_names, branches_of
from solgym.envs.base import TuningEnv


def info(inputs: int = 4, branches: tuple[int, ...] = (3,), **changes: Any) -> PolicyInfo:
    fields: dict[str, Any] = {
        "algo": "maskable-ppo",
        "env_id": "KernelDSL-GEMM-v0",
        "features": tuple(f"feature {k}" for k in range(inputs)),
        "actions": tuple(f"action {k}" for k in range(sum(branches))),
        "branches": branches,
    }
    return PolicyInfo(**(fields | changes))


def layers(*sizes: int, seed: int = 0, scale: float = 0.5) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(outputs, inputs)) * scale, rng.normal(size=outputs) * scale)
        for inputs, outputs in itertools.pairwise(sizes)
    ]


def policy(*hidden: int, **changes: Any) -> Policy:
    made = info(**changes)
    return Policy(made, layers(len(made.features), *hidden, len(made.actions)))


def policy_for(env: TuningEnv[Any], hidden: tuple[int, ...] = (16,), seed: int = 0, **changes: Any) -> Policy:
    """A policy of random weights that fits an environment."""
    made = info(features=env.feature_names, actions=action_names(env), branches=branches_of(env), **changes)
    return Policy(made, layers(len(made.features), *hidden, len(made.actions), seed=seed))
