"""What a reward that knows the speed of light is worth: PPO with ``gap_closed`` against raw ``1/T``.

    python benchmarks/ablation_reward.py -o runs/ablation_reward

Trains the same agent with the hyperparameters of ``ablation_reward.toml`` under each reward, several
seeds each, arms taking turns. Both arms get equal environments but for two things:

* ``sol``: reward ``gap_closed``, and an episode ends at 95% of the speed of light.
* ``raw``: reward ``inverse_time``, and nothing ends an episode but the agent and the step limit.
* ``gap`` (only if asked for with ``--arm``): ``gap_closed`` without stopping, which tells the two apart.

Whatever the reward, an episode's score is the speed of the schedule that it ends with, over the best that
any run or the expert reached on its task. Counted are environment steps until the mean score of the latest
20 episodes is 80%; a run that does not get there counts with all its steps, which flatters it. The same
command again continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from solgym.baselines.rl.run_folder import EPISODES_NAME, PROGRESS_NAME, SETTINGS_NAME, read_lines
from solgym.baselines.rl.settings import Settings, read_settings
from solgym.baselines.runner import make_env
from solgym.errors import SolgymError
from solgym.hardware.atomic_files import write_atomically
from solgym.hardware.fingerprint import device_fingerprint
from solgym.hardware.speed_of_light import gap_closed

ARMS: Mapping[str, Mapping[str, str | float]] = {
    "sol": {"reward": "gap_closed", "stop_at": 0.95},
    "raw": {"reward": "inverse_time", "stop_at": 1.0},
    "gap": {"reward": "gap_closed", "stop_at": 1.0},
}
WANTED = (0.8, 0.9)
"""Parts of the best known speed; the first is the one that counts."""
WINDOW = 20
COMMON = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Reachable:
    """The best that was ever seen on a task.

    Attributes:
        gap_closed: by it.
        room: ln of the baseline's time over the speed of light, which turns gaps into speeds.
    """

    gap_closed: float
    room: float

    def part(self, gap_closed: float) -> float:
        """The speed of a schedule over the best one's."""
        return math.exp((gap_closed - self.gap_closed) * self.room)


@dataclass(frozen=True)
class Learned:
    """When one run was good enough.

    Attributes:
        arm: a name in ``ARMS``.
        seed: of the run.
        total: its environment steps.
        steps: until the mean score was that of ``WANTED``, in that order; None where it never was.
        first_score: mean score of its first 20 episodes.
        last_score: mean score of its last 20 episodes.
    """

    arm: str
    seed: int
    total: int
    steps: tuple[int | None, ...]
    first_score: float
    last_score: float

    def spent(self, level: int) -> int:
        """Steps until a level of ``WANTED``, or all of them."""
        found = self.steps[level]
        return self.total if found is None else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/ablation_reward"), help="folder")
    parser.add_argument("--config", type=Path, default=COMMON, help="what the arms have in common, as TOML")
    parser.add_argument(
        "--arm", action="append", choices=ARMS, help="can be repeated; sol and raw if left out"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of each run; the file's if left out")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    arms = options.arm or ["sol", "raw"]
    command = shlex.join(["python", "benchmarks/ablation_reward.py", *sys.argv[1:]])
    wanted = []
    for seed in range(options.seeds):
        turn = seed % len(arms)
        wanted += [(arm, seed) for arm in arms[turn:] + arms[:turn]]
    for number, (arm, seed) in enumerate(wanted, 1):
        settings = settings_of(options.config, arm, seed, options.steps)
        folder = options.out / f"{arm}-seed{seed}"
        if not is_finished(folder, settings):
            from solgym.baselines.rl.training import train

            print(f"{number}/{len(wanted)}  {arm}  seed {seed}", file=sys.stderr)
            train(settings, folder, command=command)
    best = reachable(options.out, wanted, settings_of(options.config, arms[0], 0, options.steps))
    found = [when_good(options.out, arm, seed, best) for arm, seed in sorted(wanted)]
    text, data = report(found, arms, best, command)
    print(text)
    write_atomically(options.out / "ablation_reward.md", text)
    write_atomically(options.out / "ablation_reward.json", json.dumps(data, indent=1, allow_nan=False) + "\n")


def settings_of(config: Path, arm: str, seed: int, steps: int | None) -> Settings:
    """The common settings with an arm's reward and a seed."""
    common = read_settings(config).env
    return read_settings(
        config,
        {
            "env": {"options": {**common.options, **ARMS[arm]}},
            "training": {"seed": seed, "steps": steps},
        },
    )


def is_finished(folder: Path, settings: Settings) -> bool:
    """Whether a folder holds this very run, complete."""
    if not (folder / SETTINGS_NAME).exists() or read_settings(folder / SETTINGS_NAME) != settings:
        return False
    lines = read_lines(folder / PROGRESS_NAME)
    return bool(lines) and lines[-1]["steps"] >= settings.training.steps


def reachable(out: Path, runs: Sequence[tuple[str, int]], settings: Settings) -> dict[str, Reachable]:
    """The best of each task: of any step of any run, or the expert, which is timed for it."""
    best: dict[str, float] = {}
    for arm, seed in runs:
        for episode in read_lines(out / f"{arm}-seed{seed}" / EPISODES_NAME):
            task = episode["task"]
            best[task] = max(best.get(task, 0.0), episode["best_gap_closed"] or 0.0)
    found = {}
    for task, highest in best.items():
        with closing(make_env(settings.env.id, task=task)) as env:
            env.reset(seed=0)
            expert, baseline = env.expert, env.baseline
            assert expert is not None
            assert baseline.time_s is not None
            timed, sol_s = env.evaluate(expert), env.bound.time_s
            if timed.ok and timed.time_s:
                highest = max(highest, gap_closed(timed.time_s, baseline.time_s, sol_s))
            found[task] = Reachable(highest, math.log(baseline.time_s / sol_s))
    return found


def when_good(out: Path, arm: str, seed: int, best: Mapping[str, Reachable]) -> Learned:
    """When the mean score of the latest episodes of a run was good enough."""
    episodes = read_lines(out / f"{arm}-seed{seed}" / EPISODES_NAME)
    scores = [best[episode["task"]].part(episode["gap_closed"] or 0.0) for episode in episodes]
    means = np.convolve(scores, np.full(WINDOW, 1 / WINDOW), "valid")
    steps: list[int | None] = []
    for wanted in WANTED:
        good = np.flatnonzero(means >= wanted)
        steps.append(int(episodes[int(good[0]) + WINDOW - 1]["step"]) if good.size else None)
    return Learned(
        arm=arm,
        seed=seed,
        total=int(read_lines(out / f"{arm}-seed{seed}" / PROGRESS_NAME)[-1]["steps"]),
        steps=tuple(steps),
        first_score=float(means[0]),
        last_score=float(means[-1]),
    )


def report(
    found: Sequence[Learned], arms: Sequence[str], best: Mapping[str, Reachable], command: str
) -> tuple[str, dict[str, Any]]:
    """The table as Markdown, and everything as data."""
    by = {arm: [each for each in found if each.arm == arm] for arm in arms}
    levels = range(len(WANTED))
    lines = [
        "# Rewards",
        "",
        f"Written by `{command}`. Environment steps until the mean score of the latest {WINDOW} episodes is "
        f"{' and '.join(f'{wanted:.0%}' for wanted in WANTED)} of the best known speed: mean over seeds, "
        "each seed, and how many got there. Those that did not count with all their steps.",
        "",
        f"| arm | reward | stops at | {' | '.join(f'steps to {wanted:.0%}' for wanted in WANTED)} | "
        f"score of the first {WINDOW} episodes, of the last |",
        "|---" * (4 + len(WANTED)) + "|",
    ]
    for arm, own in by.items():
        cells = []
        for level in levels:
            each = [run.spent(level) for run in own]
            reached = sum(run.steps[level] is not None for run in own)
            cells.append(f"{np.mean(each):.0f} ({', '.join(map(str, each))}; {reached} of {len(own)})")
        first, last = (np.mean([getattr(run, name) for run in own]) for name in ("first_score", "last_score"))
        chosen = ARMS[arm]
        lines.append(
            f"| {arm} | `{chosen['reward']}` | {chosen['stop_at']} | {' | '.join(cells)} | "
            f"{first:.2f}, {last:.2f} |"
        )
    fewer: dict[str, Any] = {}
    for other in arms[1:]:
        for level in levels:
            value, low, high = fewer_steps(by[arms[0]], by[other], level)
            fewer[f"{arms[0]} against {other}, {WANTED[level]:.0%}"] = {
                "value": value,
                "low": low,
                "high": high,
            }
            lines += [
                "",
                f"To {WANTED[level]:.0%}, `{arms[0]}` takes {value:.0%} fewer steps than `{other}` "
                f"(95% interval over seeds: {low:.0%} to {high:.0%}).",
            ]
    data = {
        "command": command,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_fingerprint(),
        "wanted": WANTED,
        "reachable": {task: asdict(each) for task, each in best.items()},
        "fewer_steps": fewer,
        "runs": [asdict(each) for each in found],
    }
    return "\n".join(lines) + "\n", data


def fewer_steps(ours: Sequence[Learned], theirs: Sequence[Learned], level: int) -> tuple[float, float, float]:
    """By how much fewer steps in the mean, and the 95% bootstrap interval over seeds."""
    rng = np.random.default_rng(0)
    means = []
    for own in (ours, theirs):
        steps = np.array([each.spent(level) for each in own], dtype=float)
        drawn = steps[rng.integers(len(steps), size=(10_000, len(steps)))]
        means.append((steps.mean(), drawn.mean(axis=1)))
    low, high = np.percentile(1 - means[0][1] / means[1][1], (2.5, 97.5))
    return float(1 - means[0][0] / means[1][0]), float(low), float(high)


if __name__ == "__main__":
    try:
        main()
    except SolgymError as error:
        sys.exit(str(error))
