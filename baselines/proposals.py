"""Where tuners' proposals come from: a space of schedule knobs, or random episodes of primitive actions.

Neither compiles or times anything, so drawing a proposal takes no part of the measurements and is the same
on every machine with the same kind of CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.envs.kernel_dsl.state import ScheduleState
from solgym.errors import IllegalSchedule, InvalidOption

if TYPE_CHECKING:
    from solgym.envs.kernel_dsl.actions import ActionTable, Pattern
    from solgym.envs.kernel_dsl.kernels import KernelTask
    from solgym.envs.kernel_dsl.knobs import KnobSpace
    from solgym.envs.kernel_dsl.rules import Limits

__all__ = ["EpisodeSource", "KnobSource"]


class KnobSource:
    """Settings of a task's schedule knobs, uniform over those that the space allows.

    Attributes:
        space: the knobs, for tuners that move from one setting to its neighbours.
    """

    def __init__(self, space: KnobSpace) -> None:
        self.space = space

    def draw(self, rng: np.random.Generator) -> Schedule:
        """The schedule of one setting."""
        return self.space.schedule_from(self.space.sample(rng))

    def enumerate(self) -> Iterator[Schedule]:
        """The schedules of all settings, in the order of the space."""
        return map(self.space.schedule_from, self.space.enumerate())


class EpisodeSource:
    """What episodes of random legal actions end with.

    An episode takes a number of actions that is uniform between 1 and ``max_steps``, each uniform over the
    actions that are legal in its state; ``finish`` is left out, as the length decides when it ends.

    Args:
        task: whose loop nest is transformed.
        table: the actions of the environment.
        limits: what the target allows.
        patterns: the whole schedules that the environment offers as single actions.
        max_steps: the longest episode.
    """

    def __init__(
        self,
        task: KernelTask,
        table: ActionTable,
        limits: Limits,
        patterns: tuple[Pattern, ...],
        max_steps: int,
    ) -> None:
        if max_steps < 1:
            raise InvalidOption(f"an episode of {max_steps} steps does nothing; give max_steps of 1 or more")
        self._task = task
        self._table = table
        self._limits = limits
        self._patterns = patterns
        self._max_steps = max_steps
        self._finish = next(i for i, action in enumerate(table.actions) if action.kind == "finish")

    def draw(self, rng: np.random.Generator) -> Schedule:
        """The schedule at the end of one episode."""
        state = ScheduleState.untouched(self._task)
        for _ in range(int(rng.integers(1, self._max_steps + 1))):
            successor = self._random_step(state, rng)
            if successor is None:
                break
            state = successor
        return state.candidate

    def enumerate(self) -> None:
        """Episodes cannot be listed."""

    def _random_step(self, state: ScheduleState, rng: np.random.Generator) -> ScheduleState | None:
        """The state after a random legal action, or None if there is none."""
        # Trying actions in random order until one is accepted is uniform over the legal ones, and cheaper
        # than trying them all first.
        for index in rng.permutation(len(self._table)):
            if index == self._finish:
                continue
            try:
                return self._table.apply(int(index), state, self._limits, self._patterns)
            except IllegalSchedule:
                continue
        return None
