"""Hill climbing with restarts: move to the first neighbour that is faster, begin elsewhere where none is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from solgym.baselines.proposing import VectorTuner
from solgym.envs.proposals import ProposalSource
from solgym.envs.spaces import Vector
from solgym.hardware.target import Candidate

__all__ = ["HillClimb"]

MAX_PATIENCE: Final = 32
"""Most neighbours that are tried before a climb ends; episodes have thousands."""


class HillClimb(VectorTuner):
    """Climbs from random vectors that are ``ok``, and first from the best of those given.

    A climb ends after as many different neighbours that are no faster as there are vectors one change away,
    at most ``MAX_PATIENCE``.
    """

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        super().__init__(source, seed, initial=initial)
        space = self._space
        one_change = (
            min(size - 1, 2) if ordered else size - 1
            for size, ordered in zip(space.sizes, space.ordered, strict=True)
        )
        self._patience = min(sum(one_change), MAX_PATIENCE)
        self._climb = 0
        self._climbs: dict[Vector, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._climb += 1
        self._here: Vector | None = None
        self._cost = math.inf
        self._tried: set[Vector] = set()

    def _suggest(self) -> Vector:
        if len(self._tried) >= self._patience:
            self._begin()
        if self._here is None:
            vector = self._space.sample(self._rng)
        else:
            vector = self._space.mutate(self._here, self._rng)
        self._climbs[vector] = self._climb
        return vector

    def _learn(self, vector: Vector, cost: float) -> None:
        # Of a batch, some may come back after their climb has ended.
        if self._climbs.pop(vector, self._climb) == self._climb:
            self._revisit(vector, cost)

    def _revisit(self, vector: Vector, cost: float) -> None:
        if cost < self._cost:
            self._here, self._cost = vector, cost
            self._tried.clear()
        elif self._here is not None:
            self._tried.add(vector)
