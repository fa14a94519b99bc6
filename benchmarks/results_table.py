"""Turns the results of an experiment into Markdown: every method against random search, with intervals.

    python benchmarks/results_table.py EXPERIMENT -o docs/results/tuners_kernels.md

EXPERIMENT is the folder that ``solgym experiment`` wrote. Figures over tasks are made again from the
final scores in ``comparison.json``, over all tasks, those of the training split, and those held out, by
the definitions of ``docs/comparing.md``. It measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from solgym.baselines.comparison_page import DATA_NAME, interval_text, spent_text
from solgym.baselines.experiment import RECORD_NAME
from solgym.baselines.statistics import interquartile_mean_interval, probability_of_improvement
from solgym.baselines.task_splits import is_training_task
from solgym.errors import SolgymError
from solgym.hardware.atomic_files import write_atomically

RANDOM = "random"
Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""Final scores by method and task."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("experiment", type=Path, help="folder of an experiment")
    parser.add_argument("-o", "--out", type=Path, help="Markdown file; printed if left out")
    options = parser.parse_args()
    comparison = read(options.experiment / DATA_NAME)
    experiment = read(options.experiment / RECORD_NAME)
    command = shlex.join(["python", "benchmarks/results_table.py", *sys.argv[1:]])
    text = page(comparison, experiment, command)
    if options.out is None:
        print(text, end="")
    else:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, text)


def read(path: Path) -> dict[str, Any]:
    """A JSON file of an experiment's folder."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read {path}: {error}; give the folder of an experiment that is finished")
    return found


def page(comparison: Mapping[str, Any], experiment: Mapping[str, Any], command: str) -> str:
    """Everything as Markdown."""
    common = comparison["common_tasks"]
    scores = final_scores(comparison)
    train = [task for task in common if is_training_task(env_of(task, experiment), task.split()[-1])]
    held_out = [task for task in common if task not in train]
    parts = [heading(comparison, experiment, command)]
    for title, tasks in (
        (f"All {len(common)} tasks", common),
        (f"The {len(train)} tasks of the training split", train),
        (f"The {len(held_out)} held-out tasks", held_out),
    ):
        if tasks:
            parts.append(f"## {title}\n\n" + overall(comparison, scores, tasks))
    parts.append("## By task\n\n" + by_task(comparison, scores))
    return "\n\n".join(parts) + "\n"


def env_of(label: str, experiment: Mapping[str, Any]) -> str:
    """The environment of a task, by the folders of its runs.

    Labels are task ids, with the family before them where ids alone would be ambiguous.
    """
    *family, task = label.split()
    places = (Path(run["folder"]).parts[1:3] for run in experiment["runs"])
    return next(
        env for env, folder in places if folder == task.replace("/", "-") and env.startswith("".join(family))
    )


def final_scores(comparison: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Scores at equal measurements, by method and task."""
    found: dict[str, dict[str, list[float]]] = {method: {} for method in comparison["methods"]}
    for run in comparison["runs"]:
        found[run["method"]].setdefault(run["task"], []).append(run["final"]["measurements"])
    return found


def heading(comparison: Mapping[str, Any], experiment: Mapping[str, Any], command: str) -> str:
    """What was run, where, and how to make it again."""
    machine, versions, budget = experiment["machine"], experiment["versions"], experiment["budget"]
    limits = [f"{budget['measurements']} measurements"] if budget["measurements"] else []
    limits += [f"{budget['seconds']:g} s"] if budget["seconds"] else []
    dates = sorted(run["created"] for run in experiment["runs"])
    virtual = "a virtual machine, " if machine["virtual"] else ""
    notes = "".join(f"\n* {note}" for note in comparison["notes"])
    return (
        f"# {experiment['name']}\n\n"
        f"Written by `{command}`, from what `{experiment['command']}` measured.\n\n"
        f"| | |\n|---|---|\n"
        f"| runs | {len(experiment['runs'])}: {len(comparison['methods'])} methods, "
        f"{len(comparison['tasks'])} tasks, seeds {', '.join(map(str, experiment['seeds']))} |\n"
        f"| budget of each | {' or '.join(limits)} |\n"
        f"| machine | {machine['cpu']}, {virtual}{machine['cores']} cores, {machine['system']} |\n"
        f"| versions | solgym {', '.join(versions['solgym'])}; {', '.join(versions['toolchains'])}; "
        f"Python {versions['python']} |\n"
        f"| profile | {', '.join(machine['profiles'])} |\n"
        f"| from, to | {dates[0]}, {dates[-1]} |\n\n"
        "Scores are gap closed: 0 is the untouched candidate, 1 the speed of light. *IQM* is the "
        "interquartile mean over all runs, *beats random* the probability that a run ends better than one of "
        "random search, both with 95% intervals; bold where the interval lies on one side of one half. "
        f"*To the target*: measurements until {comparison['fraction']:.0%} of the best score that any run or "
        "the expert reached, of the median run of the median task."
        + (f"\n\nNotes of the comparison:\n{notes}" if notes else "")
    )


def overall(comparison: Mapping[str, Any], scores: Scores, tasks: Sequence[str]) -> str:
    """Methods over some tasks, best first."""
    rows = []
    for method in comparison["methods"]:
        strata = [scores[method][task] for task in tasks]
        mean = interquartile_mean_interval(strata)
        reached, median = to_target(comparison, method, tasks)
        rows.append(
            (
                mean.value,
                f"| {method} | {sum(map(len, strata))} | {interval_text(mean)} | "
                f"{chance(scores, method, tasks)} | {reached} | {median} |",
            )
        )
    head = ["| method | runs | IQM | beats random | reached the target | to the target |", "|---" * 6 + "|"]
    return "\n".join([*head, *(row for _, row in sorted(rows, key=lambda pair: -pair[0]))])


def chance(scores: Scores, method: str, tasks: Sequence[str]) -> str:
    """The probability of improvement over random search."""
    if method == RANDOM or RANDOM not in scores or any(task not in scores[RANDOM] for task in tasks):
        return ""
    found = probability_of_improvement(
        [scores[method][task] for task in tasks], [scores[RANDOM][task] for task in tasks]
    )
    text = interval_text(found)
    return f"**{text}**" if found.excludes(0.5) else text


def to_target(comparison: Mapping[str, Any], method: str, tasks: Sequence[str]) -> tuple[str, str]:
    """How many runs reached the target, and what that took the median run of the median task."""
    own = [
        task["methods"][method]["target"]["measurements"]
        for task in comparison["tasks"]
        if task["label"] in tasks and task["methods"][method]["target"]
    ]
    if not own:
        return "", ""
    reached = f"{sum(each['reached'] for each in own)} of {sum(each['runs'] for each in own)}"
    middle = median(math.inf if each["median"] is None else each["median"] for each in own)
    return reached, spent_text("measurements", middle if math.isfinite(middle) else None)


def by_task(comparison: Mapping[str, Any], scores: Scores) -> str:
    """Each method on each task: median and quartiles of its runs, and the expert's score."""
    methods = comparison["methods"]
    lines = [
        "Median over the seeds, with quartiles; in brackets the probability of improvement over random "
        "search, without an interval, as a task has but a few runs.",
        "",
        f"| task | {' | '.join(methods)} | expert |",
        "|---" * (len(methods) + 2) + "|",
    ]
    for task in comparison["tasks"]:
        cells = []
        for method in methods:
            found = task["methods"].get(method)
            if found is None:
                cells.append("")
                continue
            final = found["final"]["measurements"]
            text = f"{final['median']:.3f}, {final['low']:.3f} to {final['high']:.3f}"
            label = task["label"]
            if method != RANDOM and label in scores.get(RANDOM, {}):
                pair = [scores[method][label]], [scores[RANDOM][label]]
                text += f" ({probability_of_improvement(*pair).value:.2f})"
            cells.append(text)
        expert = "" if task["expert"] is None else f"{task['expert']:.3f}"
        lines.append(f"| `{task['label']}` | {' | '.join(cells)} | {expert} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main()
    except SolgymError as error:
        sys.exit(str(error))
