"""Random pass sequences over the suite, played through the environment: what becomes of them.

Upstream passes crash, hang and miscompile now and then. An episode must survive all of that, and no wrong
result may be taken for right: whatever is ``ok`` is run again on other inputs, and must be ``ok`` there too.
Run ``python -m solgym.envs.mlir_passes.fuzz --count 2000``; the table in docs/mlir_passes.md comes from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import typer

from solgym.envs.measuring import evaluate
from solgym.envs.mlir_passes.catalogue import ACTIONS
from solgym.envs.mlir_passes.env import MLIRPassesEnv
from solgym.envs.mlir_passes.programs import PROGRAMS
from solgym.envs.mlir_passes.sequence import PassSequence
from solgym.hardware.measurement import MeasurePolicy, Status
from solgym.hardware.profile import HardwareProfile

__all__ = ["Report", "Trial", "fuzz"]

ONCE = MeasurePolicy(
    warmup=1, slow_repeats=1, min_repeats=1, max_repeats=1, batch_below_s=0.0, unstable_ci=1e9, timeout_s=5.0
)
LONGEST = 12
"""Actions of a sequence, at most."""


@dataclass(frozen=True)
class Trial:
    """One sequence and its end.

    Attributes:
        seed: from which it was drawn.
        candidate: what was measured at the end.
        steps: the statuses of its actions that did not lead anywhere, by action.
        status: of the module at the end.
        error: what was wrong with it, or empty.
        missed: what was wrong on other inputs although it was ``ok``, or empty.
    """

    seed: int
    candidate: PassSequence
    steps: tuple[tuple[str, str], ...]
    status: str
    error: str
    missed: str


@dataclass
class Report:
    """What a run saw.

    Attributes:
        actions: how many actions ended in which status; ``unchanged`` did nothing.
        sequences: how many sequences ended in which status.
        failed_actions: the same by action, for those that failed, crashed or hung.
        trials: those that did not end well.
    """

    actions: Counter[str] = field(default_factory=Counter)
    sequences: Counter[str] = field(default_factory=Counter)
    failed_actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    trials: list[Trial] = field(default_factory=list)

    @property
    def missed(self) -> list[Trial]:
        """Wrong results that were taken for right."""
        return [trial for trial in self.trials if trial.missed]


def fuzz(
    count: int,
    seed: int = 0,
    masks: bool = True,
    profile: HardwareProfile | None = None,
    programs: tuple[str, ...] = tuple(PROGRAMS),
    progress: Callable[[int, Report], None] = lambda done, report: None,
) -> Report:
    """Play ``count`` random sequences.

    Args:
        count: number of sequences.
        seed: sequence number n is drawn from ``seed + n`` alone.
        masks: whether only offered actions are drawn.
        profile: peaks for the scores, which do not matter here; None is this machine's.
        programs: names of the programs to draw from.
        progress: called after each with the number done and the report so far.
    """
    report = Report()
    env = MLIRPassesEnv(
        suite="All",
        reward_at="end",
        observation="mqss",
        enforce_masks=masks,
        max_steps=LONGEST,
        policy=ONCE,
        profile=profile,
    )
    for number in range(count):
        trial = _play(env, seed + number, programs, report)
        report.sequences[trial.status] += 1
        if trial.status != Status.OK.value or trial.missed:
            report.trials.append(trial)
        progress(number + 1, report)
    env.close()
    return report


def _play(env: MLIRPassesEnv, seed: int, programs: tuple[str, ...], report: Report) -> Trial:
    rng = np.random.default_rng(seed)
    program = PROGRAMS[programs[int(rng.integers(len(programs)))]]
    shape = program.train[0] if rng.random() < 0.5 else program.test[-1]
    _, info = env.reset(seed=seed, options={"task": program.task_id(shape)})
    bad: list[tuple[str, str]] = []
    for _ in range(int(rng.integers(1, LONGEST + 1)) - 1):
        offered = np.flatnonzero(info["action_mask"][1:]) + 1
        if not len(offered):
            break
        action = int(rng.choice(offered))
        *_, info = env.step(action)
        outcome = "unchanged" if info["unchanged"] else info["status"]
        report.actions[outcome] += 1
        if info["status"] != Status.OK.value:
            bad.append((ACTIONS[action].name, info["status"]))
            report.failed_actions[ACTIONS[action].name, info["status"]] += 1
    candidate = env.state.candidate
    *_, info = env.step(0)
    missed = ""
    if info["status"] == Status.OK.value:
        again = evaluate(env.target, candidate, env.task, ONCE, seed + 1, env.bound.time_s)
        missed = (
            "" if again.status in (Status.OK, Status.FASTER_THAN_LIGHT) else again.error or str(again.status)
        )
    return Trial(seed, candidate, tuple(bad), info["status"], info["error"], missed)


def main(
    count: Annotated[int, typer.Option(help="Number of sequences.")] = 200,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    masks: Annotated[bool, typer.Option(help="Draw only what the masks offer.")] = True,
) -> None:
    """Play random sequences; exit code 1 if a wrong result was taken for right."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console()
    with Progress(console=console) as bar:
        line = bar.add_task("sequences", total=count)
        report = fuzz(count, seed, masks, progress=lambda done, _: bar.update(line, completed=done))
    for trial in report.trials:
        console.print(
            f"seed {trial.seed}: {trial.candidate.task_id}: {trial.missed or trial.status}: "
            f"{trial.error[:200]}\n  {' '.join(trial.candidate.actions)}",
            highlight=False,
        )
    for title, counts in (("sequences", report.sequences), ("actions", report.actions)):
        total = sum(counts.values())
        console.print(f"{title}: " + ", ".join(f"{k} {v} ({v / total:.1%})" for k, v in counts.most_common()))
    console.print(
        "failed actions: " + ", ".join(f"{a} {s} {n}" for (a, s), n in report.failed_actions.most_common())
    )
    raise typer.Exit(1 if report.missed else 0)


if __name__ == "__main__":
    typer.run(main)
