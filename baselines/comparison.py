"""Compares search methods under equal budgets: from the traces of many runs to figures with intervals.

Runs are grouped by task and method, checked for what would make them incomparable, and cut at the budget that
all of them spent. The figures are rliable's, see ``solgym.baselines.statistics``; how they are shown is for
``solgym.baselines.comparison_page`` and ``solgym compare``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from solgym.baselines.comparison_groups import (
    Groups,
    check_conditions,
    conditions,
    doubts,
    grouped,
    ordered,
    read_runs,
    some,
)
from solgym.baselines.recorded_runs import AXES, Axis, RecordedRun, find_traces
from solgym.baselines.statistics import (
    Interval,
    band,
    interquartile_mean_interval,
    probability_of_improvement,
)
from solgym.errors import InvalidOption
from solgym.hardware.speed_of_light import has_headroom

__all__ = [
    "DEFAULT_TARGET",
    "Comparison",
    "Curve",
    "MethodFigures",
    "MethodOnTask",
    "Quartiles",
    "RunFigures",
    "TargetFigures",
    "TaskFigures",
    "compare",
    "figures",
]

DEFAULT_TARGET = 0.9
"""Which part of the best known score counts as having reached it."""

_CURVE_POINTS = 200
_OVERALL_POINTS = 40
_OVERALL_REPETITIONS = 2_000


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of a score over the runs of one method on one task."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """A score against what was spent: its middle, and the ends of a band around it.

    On one task these are median and quartiles over the runs; over all tasks the interquartile mean and its
    95% interval, whose ends equal the middle where there is no interval.
    """

    spent: tuple[float, ...]
    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class TargetFigures:
    """What it took to reach the target.

    Attributes:
        runs: how many runs there are.
        reached: how many of them reached the target within the common budget.
        median: what the median run spent until then, where those that never arrive count as infinitely long;
            None if it never arrives.
    """

    runs: int
    reached: int
    median: float | None


@dataclass(frozen=True)
class MethodOnTask:
    """One method on one task; figures by axis hold at the task's common budget.

    Attributes:
        seeds: of its runs.
        final: score at the common budget.
        curves: score against what was spent.
        target: what it took to reach the task's target; empty if the task has none.
        best_s: the best time of all its runs; None if nothing was ok.
        retimed: median score of the winners when timed again after the whole run; None if none was.
        failed: share of its trials that failed.
    """

    seeds: tuple[int, ...]
    final: dict[Axis, Quartiles]
    curves: dict[Axis, Curve]
    target: dict[Axis, TargetFigures]
    best_s: float | None
    retimed: float | None
    failed: float


@dataclass(frozen=True)
class TaskFigures:
    """One task and every method that ran on it.

    Attributes:
        label: the task id, with the family before it where ids alone would be ambiguous.
        baseline_s: median time of the untouched candidate over the runs.
        sol_s: median speed of light over the runs (they agree under equal profiles).
        headroom: whether there was anything to win; if not, its scores enter no figure over tasks.
        expert: median score of the best known candidate; None if there is none.
        best_known: the best score of any run, at any budget, or of the expert.
        target: the score that counts as reaching it; None if nobody beat the baseline.
        budget: the budget at which its curves are cut.
        methods: by label.
    """

    label: str
    baseline_s: float
    sol_s: float
    headroom: bool
    expert: float | None
    best_known: float
    target: float | None
    budget: dict[Axis, float]
    methods: dict[str, MethodOnTask]


@dataclass(frozen=True)
class MethodFigures:
    """One method over all common tasks.

    Attributes:
        runs: its runs on them.
        final: interquartile mean of the scores at the common budgets, with its 95% interval.
        curves: interquartile mean against what was spent.
        target: what it took to reach the targets, over all runs of all tasks that have one.
    """

    runs: int
    final: dict[Axis, Interval]
    curves: dict[Axis, Curve]
    target: dict[Axis, TargetFigures]


@dataclass(frozen=True)
class RunFigures:
    """One run, so that every figure can be traced back to it."""

    path: str
    task: str
    method: str
    seed: int
    created: str
    measurements: int
    seconds: float
    failed: int
    finished: bool
    best_s: float | None
    final: dict[Axis, float]
    retimed: float | None


@dataclass(frozen=True)
class Comparison:
    """Everything that is shown.

    Attributes:
        fraction: which part of the best known score is the target.
        machine: what the runs have in common: device, toolchain and so on, by name; several values where
            tasks differ.
        methods: labels in a fixed order, random search first.
        tasks: in the order of their labels.
        common_tasks: labels of the tasks that figures over tasks rest on: with headroom, and run by every
            method.
        overall: by method; empty without common tasks.
        improvement: by axis, the probability that the first method beats the second.
        notes: sentences that a reader must know.
        runs: all of them.
    """

    fraction: float
    machine: dict[str, tuple[str, ...]]
    methods: tuple[str, ...]
    tasks: tuple[TaskFigures, ...]
    common_tasks: tuple[str, ...]
    overall: dict[str, MethodFigures]
    improvement: dict[Axis, dict[str, dict[str, Interval]]]
    notes: tuple[str, ...]
    runs: tuple[RunFigures, ...]


def compare(
    paths: Sequence[str | Path], *, target: float = DEFAULT_TARGET, anyway: bool = False
) -> Comparison:
    """Compare the methods whose runs lie in these folders.

    Args:
        paths: folders of runs, or folders above them.
        target: which part of the best known score counts as having reached it.
        anyway: compare what should not be compared, with a note.

    Raises:
        InvalidOption: ``target`` lies outside (0, 1].
        InvalidTrace: there is no run, one is damaged, or those of a task were made differently.
    """
    if not 0 < target <= 1:
        raise InvalidOption(f"a target of {target} of the best known score is none; give one in (0, 1]")
    runs, notes = read_runs(find_traces(paths))
    return figures(runs, target=target, anyway=anyway, notes=notes)


def figures(
    runs: Sequence[RecordedRun], *, target: float, anyway: bool = False, notes: Sequence[str] = ()
) -> Comparison:
    """The figures of runs that were read; see ``compare`` for the arguments and errors."""
    groups = grouped(runs)
    methods = ordered({method for of_task in groups.values() for method in of_task})
    said = [*notes, *check_conditions(groups, anyway), *doubts(groups)]
    tasks = {label: _task_figures(label, of_task, target) for label, of_task in groups.items()}
    common = [label for label, task in tasks.items() if task.headroom and len(task.methods) == len(methods)]
    said.extend(_tasks_left_out(tasks.values(), common, len(methods)))
    return Comparison(
        fraction=target,
        machine=conditions(runs),
        methods=methods,
        tasks=tuple(tasks.values()),
        common_tasks=tuple(common),
        overall={m: _overall(m, common, groups, tasks) for m in methods} if common else {},
        improvement=_improvement(methods, common, groups, tasks) if common else {},
        notes=tuple(said),
        runs=tuple(
            _run_figures(run, label, method, tasks[label].budget)
            for label, of_task in groups.items()
            for method, of_method in of_task.items()
            for run in of_method
        ),
    )


def _tasks_left_out(tasks: Iterable[TaskFigures], common: Sequence[str], methods: int) -> list[str]:
    notes = []
    flat = [task.label for task in tasks if not task.headroom]
    partial = [task.label for task in tasks if task.headroom and len(task.methods) < methods]
    if flat:
        notes.append(
            f"There is nothing to win on {some(flat)}, whose baseline is at the speed of light; left out of "
            "all figures over tasks."
        )
    if partial and common:
        notes.append(f"Not every method ran on {some(partial)}; left out of all figures over tasks.")
    elif not common:
        notes.append("No task with headroom was run by every method, so there are no figures over tasks.")
    return notes


def _task_figures(label: str, of_task: Mapping[str, Sequence[RecordedRun]], fraction: float) -> TaskFigures:
    runs = [run for of_method in of_task.values() for run in of_method]
    budget = {axis: _common_budget(runs, axis) for axis in AXES}
    experts = [run.expert for run in runs if run.expert is not None]
    best_known = max([*experts, *(run.scores[-1] for run in runs)])
    target = fraction * best_known if best_known > 0 else None
    baseline_s = float(np.median([run.baseline_s for run in runs]))
    sol_s = float(np.median([run.header.sol_s or math.nan for run in runs]))
    return TaskFigures(
        label=label,
        baseline_s=baseline_s,
        sol_s=sol_s,
        headroom=has_headroom(baseline_s, sol_s),
        expert=float(np.median(experts)) if experts else None,
        best_known=best_known,
        target=target,
        budget=budget,
        methods={method: _method_on_task(own, budget, target) for method, own in of_task.items()},
    )


def _common_budget(runs: Sequence[RecordedRun], axis: Axis) -> float:
    """The smallest budget that a run's score is known for; that of the longest if all tried everything."""
    smallest = min(run.extent(axis) for run in runs)
    return smallest if math.isfinite(smallest) else max(run.spent(axis) for run in runs)


def _method_on_task(
    runs: Sequence[RecordedRun], budget: Mapping[Axis, float], target: float | None
) -> MethodOnTask:
    times = [run.best_s for run in runs if run.best_s is not None]
    retimed = [run.retimed for run in runs if run.retimed is not None]
    return MethodOnTask(
        seeds=tuple(run.header.seed for run in runs),
        final={axis: _quartiles(run.score_at(axis, budget[axis]) for run in runs) for axis in AXES},
        curves={axis: _curve(runs, axis, budget[axis]) for axis in AXES},
        target={}
        if target is None
        else {axis: _target_figures([(run, target, budget) for run in runs], axis) for axis in AXES},
        best_s=min(times, default=None),
        retimed=float(np.median(retimed)) if retimed else None,
        failed=sum(run.failed for run in runs) / sum(run.measurements for run in runs),
    )


def _quartiles(scores: Iterable[float]) -> Quartiles:
    found = band([[score] for score in scores])
    return Quartiles(float(found.median[0]), float(found.low[0]), float(found.high[0]))


def _curve(runs: Sequence[RecordedRun], axis: Axis, budget: float) -> Curve:
    spent = _grid(axis, budget, _CURVE_POINTS)
    found = band([[run.score_at(axis, x) for x in spent] for run in runs])
    return Curve(spent, tuple(found.median.tolist()), tuple(found.low.tolist()), tuple(found.high.tolist()))


def _grid(axis: Axis, budget: float, points: int) -> tuple[float, ...]:
    """Where curves are evaluated: from 0 to the budget, at whole measurements."""
    places = np.linspace(0, budget, points + 1)
    if axis == "measurements":
        places = np.unique(np.round(places)) if budget > points else np.arange(budget + 1)
    return tuple(places.tolist())


def _target_figures(
    aims: Sequence[tuple[RecordedRun, float, Mapping[Axis, float]]], axis: Axis
) -> TargetFigures:
    """Over runs, each with the score to reach and the budgets to reach it in."""
    spent = [(run.spent_until(axis, target), budget[axis]) for run, target, budget in aims]
    within = [x if x <= budget else math.inf for x, budget in spent]
    median = float(np.median(within))
    return TargetFigures(
        runs=len(aims),
        reached=sum(map(math.isfinite, within)),
        median=median if math.isfinite(median) else None,
    )


def _overall(
    method: str, common: Sequence[str], groups: Groups, tasks: Mapping[str, TaskFigures]
) -> MethodFigures:
    aims = [
        (run, target, tasks[label].budget)
        for label in common
        if (target := tasks[label].target) is not None
        for run in groups[label][method]
    ]
    return MethodFigures(
        runs=sum(len(groups[label][method]) for label in common),
        final={
            axis: interquartile_mean_interval(_strata(method, axis, groups, _budgets(axis, common, tasks)))
            for axis in AXES
        },
        curves={axis: _overall_curve(method, axis, common, groups, tasks) for axis in AXES},
        target={axis: _target_figures(aims, axis) for axis in AXES} if aims else {},
    )


def _budgets(axis: Axis, common: Sequence[str], tasks: Mapping[str, TaskFigures]) -> dict[str, float]:
    return {label: tasks[label].budget[axis] for label in common}


def _strata(method: str, axis: Axis, groups: Groups, budgets: Mapping[str, float]) -> list[list[float]]:
    """The scores of a method's runs, one list per task, when each task's budget was spent."""
    return [
        [run.score_at(axis, budget) for run in groups[label][method]] for label, budget in budgets.items()
    ]


def _overall_curve(
    method: str, axis: Axis, common: Sequence[str], groups: Groups, tasks: Mapping[str, TaskFigures]
) -> Curve:
    spent = _grid(axis, min(_budgets(axis, common, tasks).values()), _OVERALL_POINTS)
    points = [
        interquartile_mean_interval(
            _strata(method, axis, groups, dict.fromkeys(common, x)), _OVERALL_REPETITIONS
        )
        for x in spent
    ]
    return Curve(
        spent,
        tuple(point.value for point in points),
        tuple(point.value if point.low is None else point.low for point in points),
        tuple(point.value if point.high is None else point.high for point in points),
    )


def _improvement(
    methods: Sequence[str], common: Sequence[str], groups: Groups, tasks: Mapping[str, TaskFigures]
) -> dict[Axis, dict[str, dict[str, Interval]]]:
    found: dict[Axis, dict[str, dict[str, Interval]]] = {}
    for axis in AXES:
        budgets = _budgets(axis, common, tasks)
        scores = {method: _strata(method, axis, groups, budgets) for method in methods}
        table: dict[str, dict[str, Interval]] = {method: {} for method in methods}
        for first, second in combinations(methods, 2):
            chance = probability_of_improvement(scores[first], scores[second])
            table[first][second] = chance
            table[second][first] = _opposite(chance)
        found[axis] = table
    return found


def _opposite(chance: Interval) -> Interval:
    """The probability of improvement the other way round, as ties count one half either way."""
    if chance.low is None or chance.high is None:
        return Interval(1 - chance.value)
    return Interval(1 - chance.value, 1 - chance.high, 1 - chance.low)


def _run_figures(run: RecordedRun, label: str, method: str, budget: Mapping[Axis, float]) -> RunFigures:
    return RunFigures(
        path=str(run.path),
        task=label,
        method=method,
        seed=run.header.seed,
        created=run.header.created,
        measurements=run.measurements,
        seconds=run.elapsed_s[-1],
        failed=run.failed,
        finished=run.finished,
        best_s=run.best_s,
        final={axis: run.score_at(axis, budget[axis]) for axis in AXES},
        retimed=run.retimed,
    )
