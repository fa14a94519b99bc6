"""One episode of a policy, without any search: what it chose, and how fast the result is."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

if TYPE_CHECKING:
    from solgym.baselines.rl.policy import Policy
    from solgym.envs.base import TuningEnv

__all__ = ["Episode", "features_of", "play"]


@dataclass(frozen=True)
class Episode:
    """What became of one episode.

    Attributes:
        task: id of the task.
        actions: what the policy chose, in words, those that failed included.
        candidate: the candidate in force at the end.
        measurement: its measurement; that of the untouched candidate where nothing else was in force.
        baseline_s: the untouched candidate's time in seconds.
        sol_s: the speed of light in seconds.
        gap_closed: the score at the end.
        speedup: baseline over the time at the end.
        sol_fraction: speed of light over the time at the end.
        reward: the sum of all rewards.
        steps: how many actions were taken.
        failures: how many of them were illegal or failed.
        decision_s: median seconds per decision: to assemble the features, look up the mask and run the
            network, without applying or measuring anything.
    """

    task: str
    actions: tuple[str, ...]
    candidate: Candidate
    measurement: Measurement
    baseline_s: float
    sol_s: float
    gap_closed: float
    speedup: float
    sol_fraction: float
    reward: float
    steps: int
    failures: int
    decision_s: float


def play(
    policy: Policy,
    env: TuningEnv[Any],
    task: str,
    *,
    rng: np.random.Generator | None = None,
    seed: int | None = 0,
) -> Episode:
    """Let a policy act for one episode, from the untouched candidate to the end.

    Args:
        policy: what chooses.
        env: where; it keeps its options (``reward_at``, ``max_steps``, ...).
        task: id of a task of the environment.
        rng: draws actions from the policy; None takes the best one each time.
        seed: of the environment, and so of the inputs; None goes on with its own generator.

    Raises:
        InvalidPolicy: the policy is not made for this environment.
        UnknownTask: the task does not exist or belongs to another environment.
    """
    policy.check(env)
    observation, info = env.reset(seed=seed, options={"task": task})
    measurement, meanings = env.baseline, env.action_meanings()
    begins = (0, *np.cumsum(policy.info.branches)[:-1])
    actions: list[str] = []
    decisions: list[float] = []
    reward, failures, is_over = 0.0, 0, False
    while not is_over:
        # Features are made inside step(), between what is applied and measured, so they are made once more.
        started = time.perf_counter()
        observation = env._observation()
        action = policy.act(features_of(observation), env.action_masks(), rng)
        decisions.append(time.perf_counter() - started)
        parts = np.atleast_1d(action)
        actions.append(", ".join(meanings[begin + part] for begin, part in zip(begins, parts, strict=True)))
        observation, earned, terminated, truncated, info = env.step(action)
        reward += earned
        failures += info["status"] != "ok"
        if info["status"] == "ok" and not math.isnan(info["attempt_s"]):
            measurement = env.last_measurement
        is_over = terminated or truncated
    return Episode(
        task=env.task.id,
        actions=tuple(actions),
        candidate=env.state.candidate,
        measurement=measurement,
        baseline_s=info["baseline_s"],
        sol_s=info["sol_time_s"],
        gap_closed=info["gap_closed"],
        speedup=info["speedup"],
        sol_fraction=info["sol_fraction"],
        reward=reward,
        steps=info["steps"],
        failures=failures,
        decision_s=statistics.median(decisions),
    )


def features_of(observation: Any) -> NDArray[np.float32]:
    """The features of an observation, with or without the action mask beside them; shape (features,)."""
    features: NDArray[np.float32] = (
        observation["features"] if isinstance(observation, dict) else np.asarray(observation)
    )
    return features
