"""Beam search: carry several candidates along and lengthen each of them by some of the possible actions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from solgym.baselines.tree_tuner import LevelTuner, Place

__all__ = ["Beam"]

WIDTH: Final = 4
"""Candidates that are carried along at first."""
TRIED: Final = 32
"""Candidates that are measured to choose the next ones from."""


class Beam(LevelTuner):
    """Keeps the fastest of the candidates that one more action makes of those kept before.

    A step measures at most ``TRIED`` candidates that are new, drawn alike from the successors of each;
    successors whose time is known already take part for nothing. At the greatest depth, or when every
    successor fails, it starts again at the root and goes wherever that leads with all that is known by then;
    twice as wide each time that there was nothing new on the way.
    The initial candidates compete for up to half the places of the first step.
    """

    def _search(self) -> Iterator[list[Place]]:
        yield self._given
        width = WIDTH
        while True:
            beam = [self._start]
            measured = len(self._costs)
            while beam:
                families = [self._offspring(place) for place in beam]
                share = math.ceil(TRIED / len(beam))
                yield [place for family in families for place in self._drawn(family, share)]
                is_first = beam == [self._start]
                beam = self._fastest([place for family in families for place in family], width)
                if is_first:
                    kept = self._fastest(self._given, width // 2)
                    beam = kept + self._fastest(beam, width - len(kept), without=kept)
            if len(self._costs) == measured:
                width *= 2

    def _drawn(self, family: list[Place], count: int) -> list[Place]:
        """Up to ``count`` places whose candidates were never measured."""
        fresh = [place for place in family if self._digest(place) not in self._costs]
        return [fresh[index] for index in self._rng.permutation(len(fresh))[:count]]

    def _fastest(self, places: list[Place], count: int, without: Sequence[Place] = ()) -> list[Place]:
        """The fastest places of different candidates, fastest first; failed ones are left out."""
        others = {self._digest(place) for place in without}
        distinct = {self._digest(place): place for place in places if self._digest(place) not in others}
        timed = [place for place in distinct.values() if math.isfinite(self._cost(place))]
        return sorted(timed, key=self._cost)[:count]
