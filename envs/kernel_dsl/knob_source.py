"""Settings of schedule knobs as proposals for tuners."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from solgym.envs.kernel_dsl.knobs import KnobSpace
from solgym.envs.kernel_dsl.primitives import Step
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.envs.spaces import Vector
from solgym.errors import IllegalSchedule
from solgym.hardware.target import Candidate

__all__ = ["KnobSource"]

SCHEDULES_MAX: Final = 4096
"""Settings whose schedule is remembered."""
MAX_TRIES: Final = 32
"""How often a random change is tried before a setting is given back as it was."""
ANOTHER_CHANGE: Final = 0.25
"""How likely a mutation goes on to a further knob, after each."""
DESCENTS: Final = 16
"""From how many settings the one that makes a given schedule is looked for; two in a row seldom miss it."""


class KnobSource:
    """Settings of a task's schedule knobs, uniform over those that the space allows.

    A vector has one position a knob and holds the place of the choice.

    Attributes:
        space: the knobs, for tuners that move from one setting to its neighbours.
    """

    def __init__(self, space: KnobSpace) -> None:
        self.space = space
        self._schedule: Callable[[Vector], Schedule | None] = functools.lru_cache(SCHEDULES_MAX)(self._made)

    def draw(self, rng: np.random.Generator) -> Schedule:
        """The schedule of one setting."""
        return self.space.schedule_from(self.space.sample(rng))

    def enumerate(self) -> Iterator[Schedule]:
        """The schedules of all settings, in the order of the space."""
        return map(self.space.schedule_from, self.space.enumerate())

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many choices each knob has."""
        return tuple(len(choices) for choices in self.space.knobs.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The knobs."""
        return tuple(self.space.knobs)

    @property
    def ordered(self) -> tuple[bool, ...]:
        """Numbers have an order, words have none."""
        return tuple(
            all(isinstance(choice, int) for choice in choices) for choices in self.space.knobs.values()
        )

    def sample(self, rng: np.random.Generator) -> Vector:
        """A valid setting, uniformly."""
        return tuple(self.space.encode(self.space.sample(rng)))

    def candidate(self, vector: Vector) -> Schedule | None:
        """The schedule of a setting; None if the combination is not possible."""
        return self._schedule(vector)

    def mutate(self, vector: Vector, rng: np.random.Generator) -> Vector:
        """The setting with a knob changed, sometimes several: numbers by one place, words to any other."""
        for _ in range(MAX_TRIES):
            changed = self._nudged(vector, rng)
            while rng.random() < ANOTHER_CHANGE:
                changed = self._nudged(changed, rng)
            if changed != vector and self.candidate(changed) is not None:
                return changed
        return vector

    def cross(self, first: Vector, second: Vector, rng: np.random.Generator) -> Vector:
        """A setting that has each knob from one of two others, at random."""
        for _ in range(MAX_TRIES):
            chosen = rng.integers(2, size=len(first))
            mixed = tuple(b if other else a for a, b, other in zip(first, second, chosen, strict=True))
            if self.candidate(mixed) is not None:
                return mixed
        return first

    def vector_of(self, candidate: Candidate) -> Vector | None:
        """A setting that makes a schedule, found by steepest descents towards its steps from random settings.

        Templates write steps and cannot be read backwards; changing one knob after the other so that more
        steps agree finds the way.
        """
        if not isinstance(candidate, Schedule) or candidate.task_id != self.space.task.id:
            return None
        wanted = _counted(candidate.steps)
        rng = np.random.default_rng(0)
        for _ in range(DESCENTS):
            vector = self._descended(self.sample(rng), wanted)
            if self._schedule(vector) == candidate:
                return vector
        return None

    def _made(self, vector: Vector) -> Schedule | None:
        try:
            return self.space.schedule_from(self.space.decode(list(vector)))
        except IllegalSchedule:
            return None

    def _nudged(self, vector: Vector, rng: np.random.Generator) -> Vector:
        """The setting with one knob changed."""
        sizes = self.sizes
        free = [position for position, size in enumerate(sizes) if size > 1]
        if not free:
            return vector
        position = free[int(rng.integers(len(free)))]
        here, size = vector[position], sizes[position]
        if self.ordered[position]:
            others = [place for place in (here - 1, here + 1) if 0 <= place < size]
        else:
            others = [place for place in range(size) if place != here]
        return (*vector[:position], others[int(rng.integers(len(others)))], *vector[position + 1 :])

    def _descended(self, vector: Vector, wanted: Counter[str]) -> Vector:
        """The last of the settings that each differ in one knob and agree with the steps better."""
        distance = self._distance(vector, wanted)
        while distance:
            neighbours = [
                (*vector[:position], place, *vector[position + 1 :])
                for position, size in enumerate(self.sizes)
                for place in range(size)
            ]
            nearest = min(neighbours, key=lambda neighbour: self._distance(neighbour, wanted))
            if self._distance(nearest, wanted) >= distance:
                break
            vector, distance = nearest, self._distance(nearest, wanted)
        return vector

    def _distance(self, vector: Vector, wanted: Counter[str]) -> float:
        """How many steps a setting's schedule has that are not wanted, or lacks; infinite if it has none."""
        schedule = self._schedule(vector)
        if schedule is None:
            return float("inf")
        made = _counted(schedule.steps)
        return sum(((wanted - made) + (made - wanted)).values())


def _counted(steps: Sequence[Step]) -> Counter[str]:
    return Counter(json.dumps(step, sort_keys=True) for step in steps)
