"""Greedy search: take the action that helps most, again and again.

It measures every candidate that one more action makes, which finds good first actions surely but spends much
on each step.
"""

from __future__ import annotations

from collections.abc import Iterator

from solgym.baselines.tree_tuner import LevelTuner, Node

__all__ = ["Greedy"]


class Greedy(LevelTuner):
    """Goes from a node to its best successor as long as that is faster.

    It starts at the initial candidates, the fastest first, then at the root, and after that at the ends of
    random episodes.
    """

    def _search(self) -> Iterator[list[Node]]:
        yield self._given
        for start in (*sorted(self._given, key=self._cost), self._space.root):
            yield from self._climb(start, self._space.depth)
        while True:
            steps = int(self._rng.integers(1, max(self._space.depth, 2)))
            start, taken = self._walk(self._space.root, steps)
            yield from self._climb(start, self._space.depth - taken)

    def _climb(self, node: Node, steps: int) -> Iterator[list[Node]]:
        yield [node]
        for _ in range(steps):
            successors = self._offspring(node)
            yield successors
            best = min(successors, key=self._cost, default=node)
            if self._cost(best) >= self._cost(node):
                break
            node = best
