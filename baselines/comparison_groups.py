"""Sorts runs by task and method, and says whether they may be compared at all.

Times are only comparable under equal conditions: what must agree within a task is one table here, and what
merely should be known comes back as sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from solgym.baselines.recorded_runs import RecordedRun, read_run
from solgym.errors import InvalidTrace

__all__ = [
    "Groups",
    "check_conditions",
    "conditions",
    "count",
    "doubts",
    "grouped",
    "ordered",
    "read_runs",
    "some",
]

BASELINE_DRIFT = 0.10
"""Baselines of one task that differ by more than this were not measured on an undisturbed machine."""

Groups: TypeAlias = dict[str, dict[str, list[RecordedRun]]]
"""Runs by task label, then by method label."""


def read_runs(traces: Iterable[Path]) -> tuple[tuple[RecordedRun, ...], list[str]]:
    """Read traces, leaving out copies and runs in which nothing was tried, with a note about each kind.

    Raises:
        InvalidTrace: one is damaged, or nothing is left.
    """
    runs: dict[str, RecordedRun] = {}
    copies, empty = [], []
    for run in map(read_run, traces):
        if not run.measurements:
            empty.append(run)
        elif run.digest in runs:
            copies.append(run)
        else:
            runs[run.digest] = run
    if not runs:
        raise InvalidTrace("no run has tried a candidate yet; continue one with `solgym tune`")
    notes = []
    if copies:
        notes.append(f"{count(copies, 'trace')} left out as a copy of another: {_paths(copies)}.")
    if empty:
        notes.append(f"{count(empty, 'run')} left out, as nothing was tried yet: {_paths(empty)}.")
    return tuple(runs.values()), notes


def count(things: Sequence[object], noun: str) -> str:
    """How many things there are, in words: ``1 run``, ``2 runs``."""
    return f"{len(things)} {noun}{'s' if len(things) != 1 else ''}"


def _paths(runs: Sequence[RecordedRun]) -> str:
    names = ", ".join(str(run.path) for run in runs[:3])
    return names if len(runs) <= 3 else f"{names} and {len(runs) - 3} more"


def grouped(runs: Sequence[RecordedRun]) -> Groups:
    """Tasks and methods with labels as short as is clear.

    A method is a tuner, a mode, whether it was given candidates to begin with, and whether its budget was
    guided. The mode goes unsaid where no tuner ran in two modes on one task, so that one method can go over
    families of environments whose modes have different names.
    """
    modes: dict[tuple[str, str, str], set[str]] = {}
    families: dict[str, set[str]] = {}
    for run in runs:
        modes.setdefault((*_task_of(run), run.header.tuner), set()).add(run.header.mode)
        families.setdefault(run.header.task, set()).add(_task_of(run)[0])
    plain = all(len(found) == 1 for found in modes.values())
    groups: Groups = {}
    for run in runs:
        family, task = _task_of(run)
        label = task if len(families[task]) == 1 else f"{family} {task}"
        method = run.header.tuner if plain else f"{run.header.tuner}, {run.header.mode}"
        if run.header.initial:
            method += ", seeded"
        if run.header.budget_guided:
            method += ", guided"
        groups.setdefault(label, {}).setdefault(method, []).append(run)
    return {
        label: {m: sorted(groups[label][m], key=_seed_and_path) for m in ordered(groups[label])}
        for label in sorted(groups, key=_numbers_by_size)
    }


def _numbers_by_size(label: str) -> list[tuple[bool, int, str]]:
    """A key to sort by in which ``m64`` comes before ``m512``."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", label)]


def _task_of(run: RecordedRun) -> tuple[str, str]:
    return run.header.env_id.partition("-")[0], run.header.task


def _seed_and_path(run: RecordedRun) -> tuple[int, str]:
    return run.header.seed, str(run.path)


def ordered(methods: Iterable[str]) -> tuple[str, ...]:
    """By name, but random search first, as every other method is held against it."""
    return tuple(sorted(methods, key=lambda method: (not method.startswith("random"), method)))


_MUST_AGREE: dict[str, str] = {
    "target": "give the runs of one target",
    "device": "times of different machines cannot be held against each other: give the runs of one machine",
    "threads": "give the runs with one number of threads",
    "toolchain": "the same candidate compiles to different code: make the runs again under one compiler",
    "profile": "the machine was calibrated in between, which moves every score: make the runs again under "
    "one calibration",
    "options": "the environments differ: give the runs of one",
}
"""What the runs of one task must have in common, and what to do where they do not."""


def check_conditions(groups: Groups, anyway: bool) -> list[str]:
    """Refuse runs of a task that were made under different conditions, or say so.

    Raises:
        InvalidTrace: they differ, and ``anyway`` is false.
    """
    notes = []
    for label, of_task in groups.items():
        runs = [run for of_method in of_task.values() for run in of_method]
        for field, remedy in _MUST_AGREE.items():
            first, other = (
                runs[0],
                next((r for r in runs if _value(r, field) != _value(runs[0], field)), None),
            )
            if other is None:
                continue
            differs = (
                f"the runs of {label} differ in {field}: {_value(first, field)!r} in {first.path} and "
                f"{_value(other, field)!r} in {other.path}"
            )
            if not anyway:
                raise InvalidTrace(f"{differs}; {remedy}, or add --anyway")
            notes.append(f"{differs[0].upper()}{differs[1:]}; compared anyway.")
    return notes


def _value(run: RecordedRun, field: str) -> Any:
    return getattr(run.header, field)


def doubts(groups: Groups) -> list[str]:
    """What does not forbid a comparison, but should be known."""
    runs = [run for of_task in groups.values() for of_method in of_task.values() for run in of_method]
    notes = []
    unfinished = [run for run in runs if not run.finished]
    if unfinished:
        notes.append(
            f"{count(unfinished, 'run')} not finished, and all curves of the task are cut where it stopped; "
            f"repeat the command that began it to go on: {_paths(unfinished)}."
        )
    unequal = [label for label, of_task in groups.items() if len(_budgets(of_task)) > 1]
    if unequal:
        notes.append(f"Budgets differ on {some(unequal)}: scores are compared at the smallest.")
    seeds = [label for label, of_task in groups.items() if len(_seed_lists(of_task)) > 1]
    if seeds:
        notes.append(f"Methods ran with different seeds on {some(seeds)}.")
    begun = [label for label, of_task in groups.items() if _begun_differently(of_task)]
    if begun:
        notes.append(f"Runs of one method were given different candidates to begin with on {some(begun)}.")
    drifted = [label for label, of_task in groups.items() if _drift(of_task) > BASELINE_DRIFT]
    if drifted:
        notes.append(
            f"The untouched candidate's time differs by more than {BASELINE_DRIFT:.0%} between runs of "
            f"{some(drifted)}: the machine was disturbed."
        )
    packages = {run.header.package for run in runs}
    if len(packages) > 1:
        notes.append(f"The runs were made by different versions of solgym: {', '.join(sorted(packages))}.")
    return notes


def _budgets(of_task: Mapping[str, Sequence[RecordedRun]]) -> set[str]:
    """How much runs may have spent; that some may end before is what the comparison is about."""
    budgets = {run.header.budget for of_method in of_task.values() for run in of_method}
    return {str(replace(budget, guided=False)) for budget in budgets}


def _seed_lists(of_task: Mapping[str, Sequence[RecordedRun]]) -> set[tuple[int, ...]]:
    return {tuple(run.header.seed for run in of_method) for of_method in of_task.values()}


def _begun_differently(of_task: Mapping[str, Sequence[RecordedRun]]) -> bool:
    return any(len({run.header.initial for run in of_method}) > 1 for of_method in of_task.values())


def _drift(of_task: Mapping[str, Sequence[RecordedRun]]) -> float:
    times = [run.baseline_s for of_method in of_task.values() for run in of_method]
    return max(times) / min(times) - 1


def some(labels: Sequence[str]) -> str:
    """The first three tasks by name, and how many more there are."""
    return ", ".join(labels[:3]) + (f" and {count(labels[3:], 'other task')}" if len(labels) > 3 else "")


def conditions(runs: Sequence[RecordedRun]) -> dict[str, tuple[str, ...]]:
    """Under which conditions runs were made: every value that occurs, by name."""
    fields = ("target", "device", "threads", "toolchain", "profile", "package", "mode")
    return {field: tuple(sorted({str(_value(run, field)) for run in runs})) for field in fields}
