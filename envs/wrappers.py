"""Wrappers for agents that do not know about masks or budgets."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from solgym.envs.base import TuningEnv
from solgym.errors import InvalidOption

__all__ = ["LegalActions", "MeasurementBudget"]


class LegalActions(gym.Wrapper[Any, Any, Any, Any]):
    """Replaces an illegal action by a random legal one, for algorithms without masking.

    ``info["replaced_action"]`` holds the action that was applied instead, or -1. The random numbers are the
    environment's own, so episodes repeat under a seed. Only for flat action spaces.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, gym.spaces.Discrete):
            raise InvalidOption(f"LegalActions needs a Discrete action space, got {env.action_space}.")

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply the action, or a random legal one if it is illegal."""
        mask = _tuning(self).action_masks()
        replaced = -1
        if self.action_space.contains(action) and not mask[int(action)]:
            action = replaced = int(self.np_random.choice(np.flatnonzero(mask)))
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "replaced_action": replaced}


class MeasurementBudget(gym.Wrapper[Any, Any, Any, Any]):
    """Truncates episodes once so many measurements are used up, over all episodes together.

    Agents are to be compared under equal budgets; an agent whose steps measure nothing pays nothing.
    """

    def __init__(self, env: gym.Env[Any, Any], measurements: int) -> None:
        super().__init__(env)
        if measurements < 1:
            raise InvalidOption(f"measurements is {measurements}; it must be at least 1.")
        self._measurements = measurements

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to spend."""
        return _tuning(self).measurements_used >= self._measurements

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Pass the action on; truncate if that used up the budget."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated or (not terminated and self.exhausted), info


def _tuning(wrapper: gym.Wrapper[Any, Any, Any, Any]) -> TuningEnv[Any]:
    env = wrapper.unwrapped
    if not isinstance(env, TuningEnv):
        raise InvalidOption(f"{type(wrapper).__name__} wraps tuning environments, got {type(env).__name__}.")
    return env
