"""The curriculum: from easy tasks to all of them, as episodes succeed.

How hard a task is follows from two numbers that are known before anything is learned. One is its headroom,
``ln(T_0 / T_sol)``: how far the untouched candidate is from the speed of light. The other is its arithmetic
intensity, flop per compulsory byte: where it is low a few steps bring a candidate to what memory allows,
where it is high loops must be tiled for caches and registers first. Tasks are sorted by the mean of their
ranks in both.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from solgym.baselines.rl.settings import CurriculumSettings
from solgym.envs.base import TuningEnv
from solgym.errors import InvalidRun
from solgym.hardware.atomic_files import write_atomically

__all__ = ["Curriculum", "TaskDifficulty", "levels_of", "measure_difficulty"]

TASKS_NAME: Final = "tasks.json"


@dataclass(frozen=True)
class TaskDifficulty:
    """What the order of tasks follows from.

    Attributes:
        task: its id.
        baseline_s: time of the untouched candidate.
        sol_s: speed of light.
        intensity: flop per compulsory byte.
    """

    task: str
    baseline_s: float
    sol_s: float
    intensity: float

    @property
    def headroom(self) -> float:
        """``ln(T_0 / T_sol)``; 0 where the baseline is at the speed of light or measured to be below."""
        return max(math.log(self.baseline_s / self.sol_s), 0.0)


def levels_of(tasks: Sequence[TaskDifficulty], levels: int) -> tuple[tuple[str, ...], ...]:
    """Group tasks from easy to hard.

    Args:
        tasks: at least one.
        levels: how many groups to make, as equal as possible; fewer if there are fewer tasks.

    Returns:
        Task ids; equally hard ones in the order of their ids.
    """
    headroom, intensity = _ranks([t.headroom for t in tasks]), _ranks([t.intensity for t in tasks])
    ordered = sorted(range(len(tasks)), key=lambda i: (headroom[i] + intensity[i], tasks[i].task))
    count = min(levels, len(tasks))
    bounds = [round(level * len(tasks) / count) for level in range(count + 1)]
    return tuple(
        tuple(tasks[i].task for i in ordered[begin:end]) for begin, end in itertools.pairwise(bounds)
    )


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 0; equal values share the mean of theirs."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


class Curriculum:
    """Which tasks episodes draw from.

    Args:
        levels: groups of tasks, from easy to hard.
        settings: when the next group joins.
    """

    def __init__(self, levels: Sequence[Sequence[str]], settings: CurriculumSettings) -> None:
        self.levels = tuple(tuple(level) for level in levels)
        self.level = 0
        self._settings = settings
        self._outcomes: list[bool] = []

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of the current level and of those before it, so that they are not forgotten."""
        return tuple(task for level in self.levels[: self.level + 1] for task in level)

    def finished(self, task: str, gap_closed: float) -> bool:
        """Take note of an episode that ended; returns whether that begins the next level.

        Episodes of tasks that are not offered yet do not count.
        """
        if self.level == len(self.levels) - 1 or task not in self.tasks:
            return False
        settings = self._settings
        self._outcomes = [*self._outcomes, gap_closed >= settings.threshold][-settings.window :]
        is_full = len(self._outcomes) == settings.window
        if not is_full or sum(self._outcomes) < settings.success_rate * settings.window:
            return False
        self.level += 1
        self._outcomes = []
        return True

    def state(self) -> dict[str, Any]:
        """What ``restore`` takes, as JSON data."""
        return {"level": self.level, "outcomes": list(self._outcomes)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where another curriculum with the same levels was."""
        self.level = int(state["level"])
        self._outcomes = [bool(outcome) for outcome in state["outcomes"]]


def measure_difficulty(
    env: TuningEnv[Any],
    tasks: Sequence[str],
    folder: Path,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[TaskDifficulty, ...]:
    """Measure the baseline of every task, once per run: the results are kept in the run's folder.

    Args:
        env: offers the tasks.
        tasks: whose difficulty is asked for.
        folder: of the run.
        progress: told how many tasks are done.

    Raises:
        InvalidRun: what is in the folder is damaged.
    """
    path = folder / TASKS_NAME
    if path.exists():
        try:
            known = {row["task"]: TaskDifficulty(**row) for row in json.loads(path.read_bytes())}
            return tuple(known[task] for task in tasks)
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidRun(f"{path} is damaged; restore the file, or give another --out") from error
    found = []
    for number, task in enumerate(tasks, 1):
        _, info = env.reset(seed=0, options={"task": task})
        intensity = env.bound.arithmetic_intensity
        found.append(TaskDifficulty(task, info["baseline_s"], info["sol_time_s"], min(intensity, 1e18)))
        progress(number)
    write_atomically(path, json.dumps([asdict(row) for row in found], indent=1) + "\n")
    return tuple(found)
