"""A sequence of passes as a candidate: data that can be stored, replayed, hashed, compiled and measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, get_args

from solgym.envs.mlir_passes.catalogue import ACTION_INDEX
from solgym.envs.mlir_passes.client import PassFailure, default_pass_worker
from solgym.envs.mlir_passes.modes import FloatMode, Jit
from solgym.errors import IllegalSchedule, InvalidSchedule
from solgym.hardware.measurement import Status
from solgym.hardware.target import CompilationFailed, CompiledKernel

if TYPE_CHECKING:
    from solgym.hardware.target import TargetSpec
    from solgym.hardware.task import Task

__all__ = ["FORMAT_VERSION", "MAX_ACTIONS", "PassSequence"]

FORMAT_VERSION: Final = 1

MAX_ACTIONS: Final = 200
"""Longest sequence: several times what the best known ones need."""


@dataclass(frozen=True)
class PassSequence:
    """Actions of the catalogue to apply, one after the other, to the untouched module of a task.

    Attributes:
        task_id: the task that the sequence was written for.
        actions: names in ``catalogue.ACTIONS``; ``finish`` is none of them.
        jit: which code generator makes machine code of the result.
        float_mode: the fast-math flags of every floating-point operation.
    """

    task_id: str
    actions: tuple[str, ...] = ()
    jit: Jit = "llvmlite"
    float_mode: FloatMode = "contract,reassoc"

    def extended(self, *actions: str) -> PassSequence:
        """The same sequence with more actions at its end."""
        return replace(self, actions=self.actions + actions)

    def to_json(self) -> dict[str, Any]:
        """Plain data: format version, task id, actions, and how code is made."""
        return {
            "version": FORMAT_VERSION,
            "task": self.task_id,
            "actions": list(self.actions),
            "jit": self.jit,
            "float_mode": self.float_mode,
        }

    @classmethod
    def from_json(cls, data: object) -> PassSequence:
        """Read what ``to_json`` wrote, or its text.

        Raises:
            InvalidSchedule: the data does not have that form, or names an action that does not exist.
        """
        if isinstance(data, str):
            try:
                data = json.loads(data)
            except (ValueError, RecursionError) as error:
                raise InvalidSchedule(
                    f"the pass sequence is not JSON ({error}); expected what to_json() writes"
                ) from error
        if not isinstance(data, Mapping):
            raise InvalidSchedule("a pass sequence is a JSON object with version, task and actions")
        if data.get("version") != FORMAT_VERSION:
            raise InvalidSchedule(
                f"pass sequence version {data.get('version')!r} is unknown; expected {FORMAT_VERSION}"
            )
        task, actions = data.get("task"), data.get("actions")
        if not isinstance(task, str) or not isinstance(actions, list):
            raise InvalidSchedule("a pass sequence needs a task id (string) and actions (list)")
        if len(actions) > MAX_ACTIONS:
            raise InvalidSchedule(f"the sequence has {len(actions)} actions, more than {MAX_ACTIONS}")
        for action in actions:
            if action == "finish":
                raise InvalidSchedule("finish only ends an episode and changes no module; leave it out")
            if not isinstance(action, str) or action not in ACTION_INDEX:
                raise InvalidSchedule(
                    f"there is no action {action!r}; `solgym.envs.mlir_passes.catalogue.ACTIONS` has them all"
                )
        jit, mode = data.get("jit", "llvmlite"), data.get("float_mode", "contract,reassoc")
        for name, value, known in (("jit", jit, get_args(Jit)), ("float_mode", mode, get_args(FloatMode))):
            if value not in known:
                raise InvalidSchedule(f"{name} of a pass sequence is {value!r}; it must be one of {known}")
        return cls(task, tuple(actions), jit, mode)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def lower(self, task: Task, target: TargetSpec) -> CompiledKernel:
        """Apply the actions and compile the result for this host, in the pass worker.

        The masks are not asked: they keep agents away from what is known to go wrong, while a candidate
        answers for itself by its outputs.

        Raises:
            IllegalSchedule: the task is no program, or the target has several threads.
            InvalidSchedule: it is none that ``from_json`` would read.
            CompilationFailed: an action or the finishing pipeline fails, crashes or hangs.
        """
        self.from_json(self.to_json())
        for name in ("module_text", "function", "signature"):
            if not hasattr(task, name):
                raise IllegalSchedule(f"{task.id} is not given as an MLIR module")
        if target.threads != 1:
            raise IllegalSchedule(f"MLIR programs run on one thread, not {target.threads}")
        made = default_pass_worker().build(task, self.actions, self.jit, self.float_mode)  # type: ignore[arg-type]
        if isinstance(made, PassFailure):
            if made.status is Status.ILLEGAL:
                raise IllegalSchedule(made.error)
            raise CompilationFailed(made.status, made.error)
        return made
