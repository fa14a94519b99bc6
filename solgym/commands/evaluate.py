"""``solgym evaluate``: let a trained policy act once per task, and compare what comes out with experts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.table import Table

from solgym.commands.terminal import CountingBar, open_console, print_as_is, print_table

if TYPE_CHECKING:
    from solgym.baselines.rl.evaluation import Evaluation, EvaluationRow
    from solgym.baselines.rl.policy import Policy
    from solgym.envs.base import Split

__all__ = ["evaluate"]


def evaluate(
    policy: Annotated[
        str,
        typer.Argument(help="A policy file, or the name of one that comes with SOLGym.", metavar="POLICY"),
    ],
    env: Annotated[
        str,
        typer.Argument(
            help="An environment id such as KernelDSL-GEMM-v0 or MLIRPasses-All-v0.", metavar="ENV"
        ),
    ],
    split: Annotated[str, typer.Option(help="Whose tasks to play.", metavar="train|test")] = "test",
    task: Annotated[
        list[str] | None,
        typer.Option(help="A task to play instead of a split's; can be repeated.", metavar="ID"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the results; runs/... if left out.", metavar="DIR"),
    ] = None,
) -> None:
    """Play one episode per task without any search, and time the results against experts and fixed pipelines.

    The same command again goes on where it was interrupted, and repeats no finished task.
    """
    from solgym.baselines.rl.evaluation import evaluate_policy
    from solgym.baselines.rl.evaluation_plot import draw_evaluation
    from solgym.baselines.rl.policy import Policy
    from solgym.commands.profiles import calibrated_profile
    from solgym.commands.tasks import OWN_PROGRAM
    from solgym.envs.registration import env_class
    from solgym.errors import InvalidOption
    from solgym.hardware.atomic_files import write_atomically

    console = open_console()
    # Mistakes show before the machine is calibrated, which takes a while.
    if split not in ("train", "test"):
        raise InvalidOption(f"there is no split {split!r}; give --split train or test")
    loaded = Policy.load(policy)
    env_class(env)
    if env == OWN_PROGRAM:
        raise InvalidOption(f"for a program of your own use `solgym opt FILE --policy {policy}`")
    folder = out if out is not None else _default_folder(loaded, policy, env, split, task, seed)
    if folder.exists() and not folder.is_dir():
        raise InvalidOption(f"{folder} is a file; --out takes a folder")
    calibrated_profile(console)
    try:
        with _Bar(console) as bar:
            evaluation = evaluate_policy(
                loaded,
                env,
                split=cast("Split", split),
                tasks=task or None,
                seed=seed,
                out=folder,
                listener=bar,
            )
    except KeyboardInterrupt:
        print_as_is(console, f"interrupted; finished tasks are in {folder}: repeat the command to go on")
        raise
    files = {"results": folder / "evaluation.json", "plot": folder / "evaluation.png"}
    write_atomically(files["results"], evaluation.to_json() + "\n")
    draw_evaluation(evaluation, files["plot"])
    print_table(console, _table(evaluation))
    console.print()
    print_table(console, _summaries(evaluation))
    console.print()
    for name, path in files.items():
        print_as_is(console, f"{name:<8} {path}")


class _Bar(CountingBar):
    """How far the evaluation is."""

    def task(self, task_id: str, number: int, count: int) -> None:
        """Name the task."""
        self.count(number, count)
        self.describe(task_id)

    def done(self, row: EvaluationRow, number: int, count: int) -> None:
        """Move the bar by a task."""
        self.finished(number, count, f"{row.task}  {row.status}")


def _default_folder(
    policy: Policy, name: str, env: str, split: str, tasks: list[str] | None, seed: int
) -> Path:
    what = "tasks" if tasks else split
    return Path("runs", env, f"evaluate-{Path(name).stem}-{policy.digest[:8]}-{what}-seed{seed}")


def _table(evaluation: Evaluation) -> Table:
    from solgym.baselines.plots import format_seconds
    from solgym.baselines.rl.evaluation import REFERENCES

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", no_wrap=True)
    for name in ("status", "steps", "failed", "time", "gap closed"):
        table.add_column(name, justify="left" if name == "status" else "right", no_wrap=True)
    shown = [reference for reference in REFERENCES if evaluation.summary(reference) is not None]
    for reference in shown:
        table.add_column(f"x {reference}", justify="right", no_wrap=True)
    for row in evaluation.rows:
        ratios = [row.ratio(reference) for reference in shown]
        table.add_row(
            row.task,
            row.status.value,
            str(row.steps),
            str(row.failures),
            format_seconds(row.time_s),
            f"{row.gap_closed:.3f}",
            *("-" if ratio is None or not math.isfinite(ratio) else f"{ratio:.3f}" for ratio in ratios),
        )
    return table


def _summaries(evaluation: Evaluation) -> Table:
    from solgym.baselines.rl.evaluation import REFERENCES
    from solgym.baselines.rl.evaluation_plot import LABELS

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("times as fast as", no_wrap=True)
    for name in ("tasks", "geomean", "programs", "geomean"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("best program", no_wrap=True)
    for reference in REFERENCES:
        summary = evaluation.summary(reference)
        if summary is not None:
            program, best = summary.best_program
            table.add_row(
                LABELS[reference],
                str(summary.tasks),
                f"{summary.geomean_tasks:.3f}",
                str(summary.programs),
                f"{summary.geomean_programs:.3f}",
                f"{program} {best:.3f}",
            )
    return table
