"""Evolutionary search: a population whose members are crossed and mutated; the slowest make room.

A steady-state genetic algorithm with tournament selection (Syswerda 1991; Goldberg and Deb 1991).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from solgym.baselines.proposing import VectorTuner
from solgym.envs.proposals import ProposalSource
from solgym.envs.spaces import Vector
from solgym.hardware.target import Candidate

__all__ = ["Evolution"]

POPULATION: Final = 20
TOURNAMENT: Final = 3
CROSSED: Final = 0.5
"""How likely a child has two parents."""
MUTATED: Final = 0.5
"""How likely a child of two parents is mutated; one of a single parent always is."""


class Evolution(VectorTuner):
    """Keeps the ``POPULATION`` fastest vectors that it knows.

    At first the population is filled: with the best of the candidates given from outside, but at most half of
    it, and for the rest with random ones. Then each proposal is a child, and takes the place of the slowest
    member if it is faster. Failed members are the slowest.
    """

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        super().__init__(source, seed, initial=initial)
        self._members: list[tuple[float, Vector]] = []
        self._seeds: list[tuple[float, Vector]] = []

    @property
    def _is_full(self) -> bool:
        return len(self._members) + min(len(self._seeds), POPULATION // 2) >= POPULATION

    def _suggest(self) -> Vector:
        if not self._is_full:
            return self._space.sample(self._rng)
        self._take_in_seeds()
        first = self._parent()
        if self._rng.random() >= CROSSED:
            return self._space.mutate(first, self._rng)
        child = self._space.cross(first, self._parent(), self._rng)
        return self._space.mutate(child, self._rng) if self._rng.random() < MUTATED else child

    def _parent(self) -> Vector:
        """The fastest of a few random members."""
        chosen = self._rng.integers(len(self._members), size=TOURNAMENT)
        _, vector = min((self._members[int(i)] for i in chosen), key=itemgetter(0))
        return vector

    def _learn(self, vector: Vector, cost: float) -> None:
        if any(vector == known for _, known in (*self._members, *self._seeds)):
            return
        if not self._is_full:
            self._members.append((cost, vector))
            return
        self._take_in_seeds()
        slowest = max(range(len(self._members)), key=lambda i: self._members[i][0])
        if cost < self._members[slowest][0]:
            self._members[slowest] = (cost, vector)

    def _learn_initial(self, vector: Vector, cost: float) -> None:
        if math.isfinite(cost):
            self._seeds.append((cost, vector))

    def _take_in_seeds(self) -> None:
        """Once there are enough random members, the best seeds join them."""
        self._seeds.sort(key=itemgetter(0))
        self._members += self._seeds[: POPULATION // 2]
        self._seeds = []
