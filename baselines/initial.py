"""Candidates that a run is to propose first: read from files, and checked against the task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from solgym.errors import InvalidOption, InvalidSchedule
from solgym.hardware.target import Candidate

__all__ = ["check_initial", "read_initial"]


def read_initial(paths: Iterable[Path], read_candidate: Callable[[object], Candidate]) -> list[Candidate]:
    """The candidates in files, each a JSON object or a list of them, in order.

    Args:
        paths: the files.
        read_candidate: makes a candidate of JSON data, as an environment's method of that name.

    Raises:
        InvalidSchedule: a file cannot be read or holds no candidates of that family; the message names it.
    """
    candidates = []
    for path in paths:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidSchedule(f"cannot read candidates from {path} ({reason}); give JSON") from error
        for item in data if isinstance(data, list) else [data]:
            try:
                candidates.append(read_candidate(item))
            except InvalidSchedule as error:
                raise InvalidSchedule(f"{path} holds what is no candidate here: {error}") from error
    return candidates


def check_initial(candidates: Sequence[Candidate], task_id: str) -> None:
    """Check that candidates are for a task.

    Raises:
        InvalidOption: one is for another task.
    """
    for candidate in candidates:
        other = candidate.to_json()["task"]
        if other != task_id:
            raise InvalidOption(
                f"a candidate to begin with is for {other}, but the run is for {task_id}; leave it out, or "
                f"give --task {other}"
            )
