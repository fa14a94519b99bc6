"""Greedy search: take the action that helps most, again and again.

It measures every candidate that one more action makes, which finds good first actions surely but spends much
on each step.
"""

from __future__ import annotations

from collections.abc import Iterator

from solgym.baselines.tree_tuner import LevelTuner, Place

__all__ = ["Greedy"]


class Greedy(LevelTuner):
    """Goes on to the best successor as long as that is faster.

    It starts at the initial candidates, the fastest first, then at the root, and after that at the ends of
    random episodes.
    """

    def _search(self) -> Iterator[list[Place]]:
        yield self._given
        for start in (*sorted(self._given, key=self._cost), self._start):
            yield from self._climb(start)
        while True:
            place = self._start
            for _ in range(int(self._rng.integers(1, max(self._space.depth, 2)))):
                place = self._step(place) or place
            yield from self._climb(place)

    def _climb(self, place: Place) -> Iterator[list[Place]]:
        yield [place]
        while True:
            successors = self._offspring(place)
            yield successors
            best = min(successors, key=self._cost, default=place)
            if self._cost(best) >= self._cost(place):
                break
            place = best
