"""Settings of schedule knobs as proposals for tuners."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from solgym.envs.kernel_dsl.knobs import KnobSpace
from solgym.envs.kernel_dsl.schedule import Schedule

__all__ = ["KnobSource"]


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
