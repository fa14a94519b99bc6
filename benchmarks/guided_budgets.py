"""What guided budgets would have saved in recorded runs, and what that would have cost.

    python benchmarks/guided_budgets.py RUNS... -o docs/results/guided_budgets

reads every finished run below the folders, stops each where the rule says (what precedes that point in
its trace is exactly what the guided run would have been), and compares with the whole run. It measures
nothing.

``--choose`` tries every setting of ``PATIENCE`` and ``PER_E_FOLD`` on the tasks of the training split,
and takes the one that saves most while every tuner keeps at least ``--keep`` of its geometric mean there;
what counts is what it does on the held-out tasks, which stand in a table of their own. Without
``--choose`` the rule is the one that ``solgym tune --guided`` follows.

Two other rules stand beside it. One gives every run the same smaller number of measurements, so many that
as many are spent in all; the other has the same patience everywhere, chosen likewise and on the very same
runs. What the speed of light adds is the difference to these.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from solgym.baselines.comparison_groups import read_runs
from solgym.baselines.guided_budget import DEFAULT_RULE, GuidedRule, stopping_point
from solgym.baselines.recorded_runs import RecordedRun, find_traces
from solgym.baselines.search import trials_of
from solgym.baselines.task_splits import is_training_task
from solgym.baselines.trace import COMPRESSED_TRACE_NAME, read_trace
from solgym.errors import SolgymError
from solgym.hardware.atomic_files import write_atomically

PATIENCE = (5, 10, 15, 20, 30, 40, 60, 80)
PER_E_FOLD = (0.0, 10.0, 20.0, 40.0, 80.0)
Stop = Callable[[RecordedRun], int]


@dataclass(frozen=True)
class Outcome:
    """What a rule makes of some runs.

    Attributes:
        runs: how many.
        tasks: on how many tasks.
        measurements: spent without the rule.
        spent: with it.
        geomean: speedup over the baseline, geometric mean over the runs, without the rule.
        guided_geomean: with it.
        worst_task: the smallest share of the geometric mean of a single task.
    """

    runs: int
    tasks: int
    measurements: int
    spent: int
    geomean: float
    guided_geomean: float
    worst_task: tuple[str, float]

    @property
    def saved(self) -> float:
        """Share of the measurements that the rule saves."""
        return 1 - self.spent / self.measurements

    @property
    def kept(self) -> float:
        """Share of the geometric mean that is left."""
        return self.guided_geomean / self.geomean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, or ones above them")
    parser.add_argument("-o", "--out", type=Path, help="write OUT.md and OUT.json")
    parser.add_argument("--choose", action="store_true", help="choose the constants on the training split")
    parser.add_argument("--keep", type=float, default=0.99, help="share to keep when choosing (0.99)")
    parser.add_argument("--tuner", action="append", help="only these tuners; can be repeated")
    options = parser.parse_args()
    runs = [run for run in finished(options.runs) if not options.tuner or run.header.tuner in options.tuner]
    train = [run for run in runs if split_of(run) == "train"]
    test = [run for run in runs if split_of(run) == "test"]
    if not train or not test:
        sys.exit(f"{len(train)} runs of training tasks and {len(test)} of held-out ones; give runs of both")
    rule = choose(train, options.keep) if options.choose else DEFAULT_RULE
    command = shlex.join(["python", "benchmarks/guided_budgets.py", *sys.argv[1:]])
    text, data = report(rule, train, test, command, options.keep if options.choose else None)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out.with_suffix(".md"), text)
        write_atomically(options.out.with_suffix(".json"), json.dumps(data, indent=1, allow_nan=False) + "\n")


def finished(folders: Sequence[Path]) -> list[RecordedRun]:
    """Runs that ended by their budget; those that are being made now are left out."""
    traces = [path for path in find_traces(folders) if path.name == COMPRESSED_TRACE_NAME]
    runs, notes = read_runs(traces or find_traces(folders))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return [run for run in runs if run.finished and not run.header.budget_guided]


def split_of(run: RecordedRun) -> str:
    """Whether agents may train on a run's task; shapes of no split count as held out."""
    return "train" if is_training_task(run.header.env_id, run.header.task) else "test"


@functools.cache
def best_times(trace: Path) -> tuple[float | None, ...]:
    """The best time in seconds after each measurement of a recorded run, None while none is ``ok``."""
    return tuple(record.best_s for record in trials_of(read_trace(trace)[1]))


def guided(rule: GuidedRule) -> Stop:
    """Where the rule stops a run."""

    def stop(run: RecordedRun) -> int:
        assert run.header.sol_s is not None
        return stopping_point(best_times(run.path), run.header.sol_s, rule)

    return stop


def outcome(runs: Sequence[RecordedRun], stop: Stop) -> Outcome:
    """What stopping these runs so would have meant."""
    points = [min(stop(run), run.measurements) for run in runs]
    tasks = sorted({run.header.task for run in runs})
    whole = [log_speedup(run, run.measurements) for run in runs]
    cut = [log_speedup(run, point) for run, point in zip(runs, points, strict=True)]
    shares = {
        task: math.exp(
            np.mean([c - w for run, c, w in zip(runs, cut, whole, strict=True) if run.header.task == task])
        )
        for task in tasks
    }
    worst = min(tasks, key=shares.__getitem__)
    return Outcome(
        runs=len(runs),
        tasks=len(tasks),
        measurements=sum(run.measurements for run in runs),
        spent=sum(points),
        geomean=math.exp(np.mean(whole)),
        guided_geomean=math.exp(np.mean(cut)),
        worst_task=(worst, shares[worst]),
    )


def log_speedup(run: RecordedRun, measurements: int) -> float:
    """ln of the speedup over the baseline of the best candidate so far; the baseline can be kept."""
    assert run.header.sol_s is not None
    return run.scores[measurements] * math.log(run.baseline_s / run.header.sol_s)


def choose(runs: Sequence[RecordedRun], keep: float) -> GuidedRule:
    """The rule that saves most while every tuner keeps this share of its geometric mean."""
    by_tuner = grouped(runs)
    best, best_saved = None, -1.0
    for patience, growth in product(PATIENCE, PER_E_FOLD):
        rule = replace(DEFAULT_RULE, patience=patience, patience_per_e_fold=growth)
        found = [outcome(own, guided(rule)) for own in by_tuner.values()]
        saved = float(np.mean([each.saved for each in found]))
        if saved > best_saved and all(each.kept >= keep for each in found):
            best, best_saved = rule, saved
    if best is None:
        sys.exit(f"no setting keeps {keep:.0%} of every tuner's geometric mean; give a smaller --keep")
    return best


def grouped(runs: Iterable[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """Runs by tuner, random search first."""
    names = sorted({run.header.tuner for run in runs}, key=lambda name: (name != "random", name))
    return {name: [run for run in runs if run.header.tuner == name] for name in names}


def equal_number(runs: Sequence[RecordedRun], spent: int) -> Stop:
    """Every run gets the same number of measurements, about as many in all."""
    number = max(1, round(spent / len(runs)))
    return lambda run: min(number, run.measurements)


def equal_patience(runs: Sequence[RecordedRun], spent: int) -> Stop:
    """The patience that does not depend on the bound and spends most nearly as much in all."""
    rules = [GuidedRule(stop_at=1.0, patience=p, patience_per_e_fold=0.0) for p in range(1, 200)]
    totals = [sum(guided(rule)(run) for run in runs) for rule in rules]
    return guided(rules[int(np.argmin(np.abs(np.array(totals) - spent)))])


def report(
    rule: GuidedRule,
    train: Sequence[RecordedRun],
    test: Sequence[RecordedRun],
    command: str,
    keep: float | None,
) -> tuple[str, dict[str, Any]]:
    """The tables as Markdown, and everything as data."""
    lines = [
        "# Guided budgets",
        "",
        f"Written by `{command}`.",
        "",
        f"The rule: stop at {rule.stop_at:.0%} of the speed of light; elsewhere after {rule.patience} + "
        f"{rule.patience_per_e_fold:g} ln(T / T_sol) measurements in a row that brought less than "
        f"{rule.least_gain:.0%}.",
    ]
    if keep is not None:
        lines.append(
            f"Its patience was chosen on the training shapes: the setting that saves most while every tuner "
            f"keeps {keep:.0%} of its geometric mean there."
        )
    data: dict[str, Any] = {"command": command, "rule": asdict(rule), "keep": keep, "splits": {}}
    for title, runs in (("Held-out shapes", test), ("Training shapes", train)):
        rows, entries = [], {}
        for tuner, own in grouped(runs).items():
            found = outcome(own, guided(rule))
            number = outcome(own, equal_number(own, found.spent))
            patience = outcome(own, equal_patience(own, found.spent))
            task, share = found.worst_task
            rows.append(
                f"| {tuner} | {found.runs} | {found.spent / found.runs:.0f} of "
                f"{found.measurements / found.runs:.0f} | {found.saved:.0%} | {found.guided_geomean:.1f} of "
                f"{found.geomean:.1f} | {found.kept:.1%} | {share:.1%} ({task}) | {number.kept:.1%} | "
                f"{patience.kept:.1%} |"
            )
            entries[tuner] = {
                name: asdict(each) | {"saved": each.saved, "kept": each.kept}
                for name, each in (
                    ("guided", found), ("equal_number", number), ("equal_patience", patience)
                )
            }  # fmt: skip
        lines += [
            "",
            f"## {title}",
            "",
            "| tuner | runs | measurements | saved | geomean speedup | kept | least kept on a task | "
            "same number for all | same patience for all |",
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
        ]
        data["splits"]["test" if runs is test else "train"] = entries
    data["runs"] = {
        split: sorted({f"{r.header.task} {r.header.tuner} seed {r.header.seed}" for r in runs})
        for split, runs in (("train", train), ("test", test))
    }
    first = (train or test)[0].header
    data |= {"device": first.device, "toolchain": first.toolchain, "profile": first.profile}
    return "\n".join(lines) + "\n", data


if __name__ == "__main__":
    try:
        main()
    except SolgymError as error:
        sys.exit(str(error))
