"""The best known pass sequences, per program and overall, found by search and shipped as data.

``experts.json`` was written by ``benchmarks/search_experts.py``. A sequence is found at one shape; at another
some of its actions may not be offered or may fail, and those are skipped.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import TYPE_CHECKING

from solgym.envs.mlir_passes.catalogue import ACTION_INDEX
from solgym.envs.mlir_passes.client import PassFailure, default_pass_worker

if TYPE_CHECKING:
    from solgym.envs.mlir_passes.client import ModuleSource

__all__ = ["applicable", "known_sequence", "overall_sequence"]


@functools.cache
def _data() -> dict[str, dict[str, list[str]]]:
    text = resources.files("solgym.envs.mlir_passes").joinpath("experts.json").read_text()
    data: dict[str, dict[str, list[str]]] = json.loads(text)
    return data


def overall_sequence() -> tuple[str, ...]:
    """The best fixed sequence over the training programs."""
    return tuple(_data()["overall"]["sequence"])


def known_sequence(task_id: str) -> tuple[str, ...]:
    """The best known sequence for a task: its own, or its program's in its element type, or the overall
    one.
    """
    program, dtype, *_ = task_id.split("/")
    known = _data()["programs"]
    for key in (task_id, f"{program}/{dtype}"):
        if key in known:
            return tuple(known[key])
    return overall_sequence()


def applicable(source: ModuleSource, sequence: tuple[str, ...]) -> tuple[str, ...]:
    """Those actions of a sequence, in order, that are offered on a module, succeed and change something."""
    worker = default_pass_worker()
    taken: tuple[str, ...] = ()
    for action in sequence:
        if action not in ACTION_INDEX:
            continue
        view = worker.step(source, taken, action)
        if not isinstance(view, PassFailure) and view.changed:
            taken = (*taken, action)
    return taken
