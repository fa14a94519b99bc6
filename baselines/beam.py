"""Beam search: carry several candidates along and lengthen each of them by some of the possible actions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from solgym.baselines.tree_tuner import LevelTuner, Node

__all__ = ["Beam"]

WIDTH: Final = 4
"""Nodes that are carried along at first."""
TRIED: Final = 32
"""Candidates that are measured to choose the next ones from."""


class Beam(LevelTuner):
    """Keeps the fastest of the candidates that one more action makes of those kept before.

    A step measures at most ``TRIED`` candidates that are new, drawn alike from the successors of each node;
    successors whose time is known already take part for nothing. At the greatest depth, or when every
    successor fails, it starts again at the root and goes wherever that leads with all that is known by then;
    twice as wide each time that there was nothing new on the way.
    The initial candidates compete for up to half the places of the first step.
    """

    def _search(self) -> Iterator[list[Node]]:
        yield self._given
        width = WIDTH
        while True:
            beam: list[Node] = [self._space.root]
            measured = len(self._costs)
            for depth in range(self._space.depth):
                families = [self._offspring(node) for node in beam]
                share = math.ceil(TRIED / len(beam))
                yield [node for family in families for node in self._drawn(family, share)]
                beam = self._fastest([node for family in families for node in family], width)
                if depth == 0:
                    kept = self._fastest(self._given, width // 2)
                    beam = kept + self._fastest(beam, width - len(kept), without=kept)
                if not beam:
                    break
            if len(self._costs) == measured:
                width *= 2

    def _drawn(self, family: list[Node], count: int) -> list[Node]:
        """Up to ``count`` nodes whose candidates were never measured."""
        fresh = [node for node in family if self._digest(node) not in self._costs]
        return [fresh[place] for place in self._rng.permutation(len(fresh))[:count]]

    def _fastest(self, nodes: list[Node], count: int, without: list[Node] | None = None) -> list[Node]:
        """The fastest nodes of different candidates, fastest first; failed ones are left out."""
        others = {self._digest(node) for node in without or ()}
        distinct = {self._digest(node): node for node in nodes if self._digest(node) not in others}
        timed = [node for node in distinct.values() if math.isfinite(self._cost(node))]
        return sorted(timed, key=self._cost)[:count]
