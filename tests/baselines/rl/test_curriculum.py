"""The curriculum: easy tasks first, and the next ones when episodes succeed."""

from pathlib import Path

import gymnasium as gym
import pytest

from solgym.baselines.rl.curriculum import Curriculum, TaskDifficulty, levels_of, measure_difficulty
from solgym.baselines.rl.settings import CurriculumSettings
from solgym.errors import InvalidRun

pytest.importorskip("stable_baselines3")
from tests.baselines.rl import fakes


def difficulty(task: str, headroom: float, intensity: float) -> TaskDifficulty:
    return TaskDifficulty(task, baseline_s=headroom, sol_s=1.0, intensity=intensity)


def test_tasks_with_little_headroom_and_intensity_come_first() -> None:
    tasks = [
        difficulty("both", 100.0, 50.0),
        difficulty("neither", 2.0, 1.0),
        difficulty("room", 50.0, 2.0),
        difficulty("intensity", 3.0, 20.0),
    ]
    assert levels_of(tasks, 4) == (("neither",), ("intensity",), ("room",), ("both",))
    assert levels_of(tasks, 2) == (("neither", "intensity"), ("room", "both"))


def test_levels_hold_every_task_once_and_are_equally_large() -> None:
    tasks = [difficulty(str(number), 1.0 + number, 1.0) for number in range(10)]
    levels = levels_of(tasks, 3)
    assert sorted(task for level in levels for task in level) == sorted(task.task for task in tasks)
    assert {len(level) for level in levels} <= {3, 4}
    assert len(levels_of(tasks[:2], 5)) == 2


def curriculum(**settings: object) -> Curriculum:
    chosen = CurriculumSettings(enabled=True, threshold=0.5, success_rate=0.5, window=4, **settings)
    return Curriculum([("a",), ("b",), ("c",)], chosen)


def test_the_next_level_begins_at_the_rate_of_success_and_keeps_the_old_tasks() -> None:
    lessons = curriculum()
    assert lessons.tasks == ("a",)
    assert [lessons.finished("a", score) for score in (0.6, 0.4, 0.4)] == [False, False, False]
    assert lessons.finished("a", 0.5)  # 2 of 4
    assert lessons.tasks == ("a", "b")


def test_only_the_last_episodes_of_the_level_count() -> None:
    lessons = curriculum()
    for score in (0.9, 0.0, 0.0, 0.0, 0.0):
        assert not lessons.finished("a", score)
    assert not lessons.finished("a", 0.9)
    assert not lessons.finished("c", 0.9)  # not offered yet, so it does not count
    assert lessons.finished("a", 0.9)
    assert [lessons.finished("b", 0.9) for _ in range(4)] == [False, False, False, True]
    assert lessons.tasks == ("a", "b", "c")
    assert not any(lessons.finished("c", 0.9) for _ in range(20))


def test_it_goes_on_where_it_was() -> None:
    lessons, again = curriculum(), curriculum()
    for score in (0.9, 0.9, 0.0, 0.0, 0.9, 0.0):
        lessons.finished("a", score)
    again.restore(lessons.state())
    for score in (0.9, 0.9):
        assert lessons.finished("b", score) == again.finished("b", score)
    assert lessons.state() == again.state()


def test_difficulties_are_measured_once_per_run(tmp_path: Path) -> None:
    env = gym.make(fakes.ENV_ID, disable_env_checker=True).unwrapped
    tasks = fakes.TASKS["train"]
    first = measure_difficulty(env, tasks, tmp_path)
    assert [row.task for row in first] == list(tasks)
    assert all(row.headroom > 0 for row in first)
    measured = len(env.target.measured)
    assert measure_difficulty(env, tasks, tmp_path) == first
    assert len(env.target.measured) == measured
    (tmp_path / "tasks.json").write_text("[{}]")
    with pytest.raises(InvalidRun, match="damaged"):
        measure_difficulty(env, tasks, tmp_path)
