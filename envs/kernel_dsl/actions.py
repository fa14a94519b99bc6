"""The flat action table of the schedule language: (primitive, loop slot, argument), with mask and reasons.

Slots are positions, so the table has the same size for every shape of every kernel: loop slot 2 is the
third loop from outside of the stage in focus, tensor slot 0 the first tensor that it reads. A ``focus``
action chooses the stage. Legality is found by trying each action on the nest, never by a second set of
rules, so a mask cannot disagree with the primitives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from solgym.envs.kernel_dsl.knobs import PatternAction
from solgym.envs.kernel_dsl.nest import Loop, LoopKind, StageNest
from solgym.envs.kernel_dsl.primitives import Step, apply_step
from solgym.envs.kernel_dsl.rules import MAX_LOOPS, MAX_STAGES, Limits
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.envs.kernel_dsl.state import ScheduleState
from solgym.errors import IllegalSchedule

__all__ = ["MAX_PATTERNS", "MAX_TENSORS", "SPLIT_FACTORS", "Action", "ActionTable", "Pattern"]

SPLIT_FACTORS = (2, 3, 4, 6, 8, 12, 14, 16, 24, 32, 48, 64, 96, 128, 192, 256)
VECTOR_LANES = (2, 4, 8, 16)
PARTIAL_SUMS = (2, 4, 8)
PREFETCH_DISTANCES = (2, 8)
MAX_TENSORS = 6
"""Tensor slots; no stage of any kernel reads more."""
MAX_PATTERNS = 48
"""Pattern slots; those that a task does not have are never legal."""

Argument = int | str | None
Pattern = PatternAction
"""A whole schedule as one action."""


@dataclass(frozen=True)
class Action:
    """One entry of the table.

    Attributes:
        kind: the primitive, or ``finish``, ``focus`` or ``pattern``.
        slot: position of the loop, stage or pattern that it acts on, if any.
        argument: a factor, number of lanes, place or distance, if any.
        tensor: position of the tensor that it acts on, if any.
    """

    kind: str
    slot: int | None = None
    argument: Argument = None
    tensor: int | None = None

    def __str__(self) -> str:
        words = [self.kind]
        if self.tensor is not None:
            words.append(f"tensor {self.tensor}")
        if self.slot is not None:
            words.append(f"{_SLOT_WORDS.get(self.kind, 'loop')} {self.slot}")
        if self.argument is not None:
            words.append(f"{_ARGUMENT_WORDS.get(self.kind, '')} {self.argument}".strip())
        return " ".join(words)


_SLOT_WORDS = {"focus": "stage", "pattern": "number"}
_ARGUMENT_WORDS = {
    "split": "by",
    "vectorize": "lanes",
    "split_reduction": "by",
    "compute_at": "of",
    "prefetch": "distance",
    "reorder": "to",
    "bind": "to",
}


class ActionTable:
    """All actions on a target, in a fixed order.

    Args:
        loop_kinds: what the target's loops can become; block and thread bindings add actions.
        scopes: where the target's buffers can live; each scope but global and register adds copies.
    """

    def __init__(self, loop_kinds: frozenset[str], scopes: frozenset[str]) -> None:
        self.actions: tuple[Action, ...] = tuple(_all_actions(loop_kinds, scopes))
        self.meanings: tuple[str, ...] = tuple(map(str, self.actions))
        on_loops = _STEPS.keys() - {"compute_at"}
        self._loop_slots = np.array([(a.slot or 0) if a.kind in on_loops else -1 for a in self.actions])
        self._tensor_slots = np.array([-1 if a.tensor is None else a.tensor for a in self.actions])
        self._moves_stage = np.array([a.kind == "compute_at" for a in self.actions])

    def __len__(self) -> int:
        return len(self.actions)

    def apply(
        self, index: int, state: ScheduleState, limits: Limits, patterns: tuple[Pattern, ...] = ()
    ) -> ScheduleState:
        """The state after an action; ``finish`` leaves it as it is.

        Raises:
            IllegalSchedule: the action is not possible now; says why.
        """
        action = self.actions[index]
        if action.kind == "finish":
            return state
        if action.kind == "focus":
            return _focused(state, action)
        if action.kind == "pattern":
            return state.restarted(_pattern(state, action, patterns), limits)
        return state.after((_STEPS[action.kind](state, action),), limits)

    def mask(
        self, state: ScheduleState, limits: Limits, patterns: tuple[Pattern, ...] = ()
    ) -> NDArray[np.bool_]:
        """Which actions are possible now, found by trying them.

        Patterns with steps are taken to be legal, and actions of one class (see ``_verdict_class``) share one
        attempt.
        """
        mask = np.zeros(len(self.actions), dtype=np.bool_)
        loops, tensors = len(state.stage.loops), len(state.tensors)
        tiled = any(nest.layout is not None for nest in state.nest.stages)
        reads = state.focus in state.nest.consumers
        verdicts: dict[Action, bool] = {}
        for index in np.flatnonzero(self._within(loops, tensors, reads)):
            action = self.actions[index]
            if _is_hopeless(action, state.stage):
                continue
            shared = _verdict_class(action, tiled)
            if shared not in verdicts:
                verdicts[shared] = self._is_possible(int(index), state, limits, patterns)
            mask[index] = verdicts[shared]
        return mask

    def _is_possible(
        self, index: int, state: ScheduleState, limits: Limits, patterns: tuple[Pattern, ...]
    ) -> bool:
        action = self.actions[index]
        try:
            if action.kind == "pattern":
                _pattern(state, action, patterns)
            elif action.kind in _STEPS:
                apply_step(state.nest, _STEPS[action.kind](state, action), limits)
            else:
                self.apply(index, state, limits, patterns)
        except IllegalSchedule:
            return False
        return True

    def _within(self, loops: int, tensors: int, is_read: bool) -> NDArray[np.bool_]:
        """Actions whose slots are not empty."""
        within: NDArray[np.bool_] = (self._loop_slots < loops) & (self._tensor_slots < tensors)
        return within if is_read else within & ~self._moves_stage

    def explain(
        self, index: int, state: ScheduleState, limits: Limits, patterns: tuple[Pattern, ...] = ()
    ) -> str | None:
        """Why an action is not possible now, or None if it is."""
        try:
            self.apply(index, state, limits, patterns)
        except IllegalSchedule as error:
            return str(error)
        return None

    def path_to(
        self, schedule: Schedule, start: ScheduleState, limits: Limits, patterns: tuple[Pattern, ...] = ()
    ) -> tuple[int, ...] | None:
        """The actions that write a schedule's steps one by one, after the longest pattern that begins it.

        None if the table has no action for some step; settings of knobs often have such steps.
        """
        state, path = start, []
        fitting = [p for p in patterns if p.steps and p.steps == schedule.steps[: len(p.steps)]]
        try:
            if fitting:
                longest = max(fitting, key=lambda pattern: len(pattern.steps or ()))
                path.append(self.actions.index(Action("pattern", patterns.index(longest))))
                state = self.apply(path[0], state, limits, patterns)
            for step in schedule.steps[len(state.candidate.steps) :]:
                if step.get("stage") != state.focus:
                    stages = [stage.name for stage in state.nest.stages]
                    path.append(self.actions.index(Action("focus", stages.index(str(step.get("stage"))))))
                    state = self.apply(path[-1], state, limits)
                path.append(next(index for index in range(len(self)) if self._writes(index, state, step)))
                state = self.apply(path[-1], state, limits)
        except (IllegalSchedule, ValueError, StopIteration):  # a step refused, a stage or an action missing
            return None
        return tuple(path)

    def _writes(self, index: int, state: ScheduleState, step: Step) -> bool:
        """Whether an action would append exactly this step."""
        action = self.actions[index]
        if action.kind != step["op"]:
            return False
        try:
            return _STEPS[action.kind](state, action) == step
        except IllegalSchedule:
            return False


def _all_actions(loop_kinds: frozenset[str], scopes: frozenset[str]) -> Iterator[Action]:
    loops, tensors = range(MAX_LOOPS), range(MAX_TENSORS)
    yield Action("finish")
    yield from (Action("focus", slot) for slot in range(MAX_STAGES))
    yield from (Action("pattern", slot) for slot in range(MAX_PATTERNS))
    yield from (Action("split", slot, factor) for slot in loops for factor in SPLIT_FACTORS)
    for place in ("outer", "outermost", "innermost"):
        yield from (Action("reorder", slot, place) for slot in loops)
    yield from (Action("unroll", slot) for slot in loops)
    yield from (Action("vectorize", None, lanes) for lanes in VECTOR_LANES)
    yield Action("parallel")
    yield from (Action("fuse", slot) for slot in loops)
    yield from (Action("accumulate", slot) for slot in loops)
    yield from (Action("split_reduction", slot, factor) for slot in loops for factor in (None, *PARTIAL_SUMS))
    yield from (Action("compute_at", slot, reader) for reader in ("reader", "output") for slot in loops)
    for scope in sorted(scopes - {"global", "register"}):
        yield from (
            Action("cache_read", slot, scope, tensor) for tensor in tensors for slot in (None, *loops)
        )
    for distance in PREFETCH_DISTANCES:
        yield from (Action("prefetch", slot, distance, tensor) for tensor in tensors for slot in loops)
    yield from (Action("transpose", None, None, tensor) for tensor in tensors)
    yield from (Action("slide", None, None, tensor) for tensor in tensors)
    yield Action("stream")
    for binding in sorted(kind for kind in loop_kinds if kind.startswith(("block", "thread"))):
        yield from (Action("bind", slot, binding) for slot in loops)


def _is_hopeless(action: Action, stage: StageNest) -> bool:
    """Refusals that are cheap to foresee and spare most attempts; the primitives refuse all of them, too."""
    if action.kind == "split":
        loop = stage.loops[action.slot or 0]
        return loop.kind is not LoopKind.SERIAL or loop.trips <= int(action.argument or 0)
    if action.kind == "split_reduction":
        return stage.accumulate is None or not stage.is_reduction(stage.loops[action.slot or 0])
    return action.kind == "compute_at" and stage.attachment is not None


def _verdict_class(action: Action, tiled: bool) -> Action:
    """The same for actions that are possible or not together.

    A prefetch is possible at any distance or at none, and a loop splits by every factor below its number
    of trips or by none, unless some buffer is stored in tiles that the factor may cut.
    """
    if action.kind == "prefetch" or (action.kind == "split" and not tiled):
        return replace(action, argument=None)
    return action


def _focused(state: ScheduleState, action: Action) -> ScheduleState:
    stages = state.nest.stages
    assert action.slot is not None
    if action.slot >= len(stages):
        raise IllegalSchedule(f"there are {len(stages)} stages; slot {action.slot} is empty")
    if stages[action.slot].name == state.focus:
        raise IllegalSchedule(f"stage {state.focus} is in focus already")
    return replace(state, focus=stages[action.slot].name)


def _pattern(state: ScheduleState, action: Action, patterns: tuple[Pattern, ...]) -> tuple[Step, ...]:
    assert action.slot is not None
    if action.slot >= len(patterns):
        raise IllegalSchedule(f"this task has {len(patterns)} patterns; slot {action.slot} is empty")
    steps = patterns[action.slot].steps
    if steps is None:
        raise IllegalSchedule(patterns[action.slot].reason or "this pattern does not fit the task")
    if state.candidate.steps == steps:
        raise IllegalSchedule("the schedule is this pattern already")
    return steps


def _loop(state: ScheduleState, action: Action) -> Loop:
    loops = state.stage.loops
    assert action.slot is not None
    if action.slot >= len(loops):
        raise IllegalSchedule(f"stage {state.focus} has {len(loops)} loops; slot {action.slot} is empty")
    return loops[action.slot]


def _tensor(state: ScheduleState, action: Action) -> str:
    tensors = state.tensors
    assert action.tensor is not None
    if action.tensor >= len(tensors):
        raise IllegalSchedule(
            f"stage {state.focus} reads {len(tensors)} tensors; slot {action.tensor} is empty"
        )
    return tensors[action.tensor]


def _split(state: ScheduleState, action: Action) -> Step:
    return {"op": "split", "stage": state.focus, "loop": _loop(state, action).name, "factor": action.argument}


def _reorder(state: ScheduleState, action: Action) -> Step:
    loop, loops = _loop(state, action), state.stage.loops
    assert action.slot is not None
    last = len(loops) - (state.stage.vector_loop is not None)
    before, after = loops[: action.slot], loops[action.slot + 1 : last]
    order = {
        "outer": (loop, *before[-1:]),
        "outermost": (loop, *before),
        "innermost": (*after, loop),
    }[str(action.argument)]
    if len(order) < 2 or action.slot >= last:
        raise IllegalSchedule(f"loop {loop} cannot move further")
    return {"op": "reorder", "stage": state.focus, "loops": [moved.name for moved in order]}


def _on_loop(op: Literal["unroll", "fuse", "accumulate"]) -> Callable[[ScheduleState, Action], Step]:
    def step(state: ScheduleState, action: Action) -> Step:
        return {"op": op, "stage": state.focus, "loop": _loop(state, action).name}

    return step


def _vectorize(state: ScheduleState, action: Action) -> Step:
    loop = state.stage.loops[-1]
    return {"op": "vectorize", "stage": state.focus, "loop": loop.name, "lanes": action.argument}


def _parallel(state: ScheduleState, action: Action) -> Step:
    return {"op": "parallel", "stage": state.focus, "loop": state.stage.loops[0].name}


def _split_reduction(state: ScheduleState, action: Action) -> Step:
    step = {"op": "split_reduction", "stage": state.focus, "loop": _loop(state, action).name}
    return step if action.argument is None else {**step, "factor": action.argument}


def _compute_at(state: ScheduleState, action: Action) -> Step:
    readers, output = state.nest.consumers.get(state.focus, ()), state.nest.computation.outputs[-1]
    if not readers:
        raise IllegalSchedule(
            f"stage {state.focus} is an output; only intermediate results move into other stages"
        )
    host = output if action.argument == "output" else readers[-1]
    if action.argument == "output" and host == readers[-1]:
        raise IllegalSchedule(f"{host} is the last stage that reads {state.focus}; choose 'of reader'")
    loops = state.nest.by_name[host].loops
    assert action.slot is not None
    if action.slot >= len(loops):
        raise IllegalSchedule(f"stage {host} has {len(loops)} loops; slot {action.slot} is empty")
    return {"op": "compute_at", "stage": state.focus, "at": host, "loop": loops[action.slot].name}


def _cache_read(state: ScheduleState, action: Action) -> Step:
    loop = None if action.slot is None else _loop(state, action).name
    return {
        "op": "cache_read",
        "stage": state.focus,
        "tensor": _tensor(state, action),
        "loop": loop,
        "scope": action.argument,
    }


def _prefetch(state: ScheduleState, action: Action) -> Step:
    tensor, loop = _tensor(state, action), _loop(state, action).name
    return {
        "op": "prefetch",
        "stage": state.focus,
        "tensor": tensor,
        "loop": loop,
        "distance": action.argument,
    }


def _transpose(state: ScheduleState, action: Action) -> Step:
    return {"op": "transpose", "stage": state.focus, "tensor": _tensor(state, action)}


def _slide(state: ScheduleState, action: Action) -> Step:
    return {"op": "slide", "stage": state.focus, "tensor": _tensor(state, action)}


def _stream(state: ScheduleState, action: Action) -> Step:
    return {"op": "stream", "stage": state.focus}


def _bind(state: ScheduleState, action: Action) -> Step:
    return {"op": "bind", "stage": state.focus, "loop": _loop(state, action).name, "to": action.argument}


_STEPS: dict[str, Callable[[ScheduleState, Action], Step]] = {
    "split": _split,
    "reorder": _reorder,
    "unroll": _on_loop("unroll"),
    "vectorize": _vectorize,
    "parallel": _parallel,
    "fuse": _on_loop("fuse"),
    "accumulate": _on_loop("accumulate"),
    "split_reduction": _split_reduction,
    "compute_at": _compute_at,
    "cache_read": _cache_read,
    "prefetch": _prefetch,
    "transpose": _transpose,
    "slide": _slide,
    "stream": _stream,
    "bind": _bind,
}
