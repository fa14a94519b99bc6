"""What training hears from the algorithm as it learns: episodes, the curriculum, and numbers for curves."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger

from solgym.baselines.rl.algorithms import Schedules
from solgym.baselines.rl.curriculum import Curriculum

__all__ = ["Recorder", "finite", "tensorboard_logger"]

_OK = "ok"


def finite(value: Any) -> float | None:
    """A number that JSON can hold; None for NaN and infinities."""
    number = float(value)
    return number if math.isfinite(number) else None


class Recorder(BaseCallback):
    """Keeps a record of every episode and lets the curriculum see how it ended.

    Args:
        schedules: of the model that it is the callback of.
        curriculum: chooses tasks; None draws from all.
        set_tasks: told what to draw from when that changes.
        rollout: called at the beginning of each rollout with the number of steps so far.
        notice: called with a sentence about each thing that the user should know.
    """

    def __init__(
        self,
        schedules: Schedules,
        curriculum: Curriculum | None,
        set_tasks: Callable[[tuple[str, ...]], None],
        rollout: Callable[[int], None],
        notice: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.episodes: list[dict[str, Any]] = []
        """Those that ended since it was emptied last."""
        self._schedules = schedules
        self._curriculum = curriculum
        self._set_tasks = set_tasks
        self._rollout = rollout
        self._notice = notice
        self._best: dict[int, float] = {}
        self._failures: dict[int, int] = {}

    def begin_segment(self) -> None:
        """Forget the episodes that are not finished; they are cut off."""
        self._best.clear()
        self._failures.clear()

    def _on_rollout_start(self) -> None:
        self._schedules.apply()
        self._rollout(self.num_timesteps)

    def _on_step(self) -> bool:
        for index, info in enumerate(self.locals["infos"]):
            score = float(info.get("gap_closed", math.nan))
            self._best[index] = max(self._best.get(index, 0.0), 0.0 if math.isnan(score) else score)
            self._failures[index] = self._failures.get(index, 0) + (info.get("status", _OK) != _OK)
            # Steps left are in the observation, so the last step is an end like any other: nothing follows.
            info["TimeLimit.truncated"] = False
            if self.locals["dones"][index]:
                self._end(index, info, score)
        return True

    def _end(self, index: int, info: Mapping[str, Any], score: float) -> None:
        best, failures = self._best.pop(index), self._failures.pop(index)
        episode = info.get("episode")
        if episode is None or math.isnan(score):
            return  # its process died, so there is nothing to tell
        task = str(info.get("task", ""))
        self.episodes.append(
            {
                "step": self.num_timesteps,
                "env": index,
                "task": task,
                "return": finite(episode["r"]),
                "length": int(episode["l"]),
                "gap_closed": finite(score),
                "best_gap_closed": finite(best),
                "failures": failures,
            }
        )
        if self._curriculum is not None and self._curriculum.finished(task, score):
            level, levels = self._curriculum.level, len(self._curriculum.levels)
            self._set_tasks(self._curriculum.tasks)
            self._notice(
                f"level {level + 1} of {levels} of the curriculum begins after {self.num_timesteps} steps"
            )


class _TensorBoard(KVWriter):
    """Writes to TensorBoard, without what an interrupted run wrote after its last checkpoint."""

    def __init__(self, folder: Path, steps: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=steps + 1 if steps else None)

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        for key, value in key_values.items():
            is_wanted = "tensorboard" not in key_excluded.get(key, ())
            if is_wanted and isinstance(value, numbers.Real):
                self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def tensorboard_logger(folder: Path, steps: int) -> Logger:
    """A logger that writes to TensorBoard only, from ``steps`` on."""
    return Logger(str(folder), [_TensorBoard(folder, steps)])
