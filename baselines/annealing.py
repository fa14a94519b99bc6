"""Simulated annealing: a walk that takes steps to slower candidates too, ever more seldom.

Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing", Science 220 (1983).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from solgym.baselines.proposing import VectorTuner
from solgym.envs.proposals import ProposalSource
from solgym.envs.spaces import Vector
from solgym.hardware.target import Candidate

__all__ = ["Annealing"]

START_TEMPERATURE: Final = 0.5
END_TEMPERATURE: Final = 0.01
CYCLE: Final = 200
"""Measurements from the highest temperature to the lowest; then the walk is heated again."""


class Annealing(VectorTuner):
    """Walks from neighbour to neighbour.

    A step from time ``t`` to a longer one ``u`` is taken with probability ``exp(-ln(u / t) / temperature)``,
    so that times of any scale are treated alike: at first a candidate that takes 1.65 times as long is
    accepted with probability 1 / e, at the end one that takes 1% longer. Failed candidates never are. Each
    cycle begins at the best vector so far.
    """

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        super().__init__(source, seed, initial=initial)
        self._here: Vector | None = None
        self._best: Vector | None = None
        self._cost = self._best_cost = math.inf
        self._cycle = 0

    @property
    def _temperature(self) -> float:
        done = len(self._costs) % CYCLE / (CYCLE - 1)
        return float(START_TEMPERATURE * (END_TEMPERATURE / START_TEMPERATURE) ** done)

    def _suggest(self) -> Vector:
        if len(self._costs) // CYCLE > self._cycle:
            self._cycle = len(self._costs) // CYCLE
            self._here, self._cost = self._best, self._best_cost
        if self._here is None:
            return self._space.sample(self._rng)
        return self._space.mutate(self._here, self._rng)

    def _learn(self, vector: Vector, cost: float) -> None:
        if cost < self._best_cost:
            self._best, self._best_cost = vector, cost
        if self._accepts(cost):
            self._here, self._cost = vector, cost

    def _learn_initial(self, vector: Vector, cost: float) -> None:
        # The walk begins at the best of them.
        if cost < self._cost:
            self._learn(vector, cost)

    def _accepts(self, cost: float) -> bool:
        if math.isinf(cost):
            return False
        if cost <= self._cost:
            return True
        return bool(self._rng.random() < (self._cost / cost) ** (1 / self._temperature))
