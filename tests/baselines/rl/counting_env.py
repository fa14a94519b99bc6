"""An environment whose every number follows from its seed and actions; registered when this is imported."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

ID = "SolgymTests/Counting-v0"


class CountingEnv(gym.Env[NDArray[np.float32], int]):
    """Counts its steps; observation (step, task, a number drawn at reset); the reward is the action.

    Args:
        length: steps of an episode.
        truncates: whether it ends as truncated and not as terminated.
        dies: file whose existence makes the next step kill the process, once; ``reset`` likewise with its
            name plus ``.reset``.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, length: int = 3, truncates: bool = False, dies: str = "", size: int = 3) -> None:
        self.length, self.truncates, self.dies = length, truncates, dies
        self.observation_space = gym.spaces.Box(-1e9, 1e9, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        self.render_mode = None
        self.steps = self.task = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._die(self.dies + ".reset")
        self.steps, self.task = 0, int((options or {}).get("task", -1))
        self.number = float(self.np_random.integers(1 << 20))
        return self._observation(), {"task": str(self.task), "gap_closed": 0.0}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._die(self.dies)
        if not self.action_masks()[action]:
            raise ValueError(f"action {action} is not legal after {self.steps} steps")
        self.steps += 1
        ended = self.steps == self.length
        info = {"task": str(self.task), "gap_closed": self.steps / self.length}
        return (
            self._observation(),
            float(action),
            ended and not self.truncates,
            ended and self.truncates,
            info,
        )

    def action_masks(self) -> NDArray[np.bool_]:
        """Action 3 is legal at the beginning only."""
        return np.array([True, True, True, self.steps == 0])

    def double(self, value: int) -> int:
        return 2 * value

    def _observation(self) -> NDArray[np.float32]:
        full = np.zeros(self.observation_space.shape, np.float32)
        full[:3] = self.steps, self.task, self.number
        return full

    def _die(self, file: str) -> None:
        if not self.dies or not os.path.exists(file):
            return
        how = Path(file).read_text()
        if how != "always":
            os.unlink(file)
        if how == "hang":
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGKILL)


if ID not in gym.registry:
    gym.register(ID, CountingEnv)
