"""What tuners that search a tree of actions have in common.

They walk through a ``TreeSpace`` from node to node, which is free, and propose the candidates at some of the
nodes. A candidate that several nodes share is measured once, and what is known of it counts for all of them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from solgym.baselines.proposing import MAX_REPEATS, ProposingTuner
from solgym.baselines.tuner import cost_of
from solgym.envs.proposals import ProposalSource
from solgym.envs.spaces import TreeSpace
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

__all__ = ["LevelTuner", "Node", "Place", "TreeTuner"]

Node = Any
"""A node of the space that is searched."""


class Place(NamedTuple):
    """A node, and after how many actions an episode has come there."""

    node: Node
    taken: int


class TreeTuner(ProposingTuner):
    """Base class of methods over trees: what is known of nodes, walks, and what to do when stuck.

    Where a method has nothing to propose until it is told more, ``ask`` returns fewer than were asked for,
    but at least one while there is any: then the end of a random episode.
    """

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        if not isinstance(source, TreeSpace):
            raise InvalidOption(
                f"{type(self).__name__} searches episodes of actions, and these proposals "
                f"({type(source).__name__}) are none; choose another mode or tuner"
            )
        super().__init__(source, seed, initial=initial)
        self._space: TreeSpace[Node] = source
        self._start = Place(self._space.root, 0)
        self._given = [
            Place(node, self._space.actions_to(candidate))
            for candidate in self._initial
            if (node := self._space.state_of(candidate)) is not None
        ]
        self._costs: dict[str, float] = {}
        self._proposed_before = 0

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` candidates that were never proposed before."""
        self._proposed_before = len(self._proposed)
        return super().ask(count)

    def tell(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Learn how proposals did; a failed one costs infinitely much."""
        for candidate, result in results:
            self._costs[candidate.digest] = cost_of(result)
            self._learn(candidate.digest)

    @abstractmethod
    def _propose(self) -> Candidate | None:
        """A candidate that was never proposed, or None if the method has none at present."""

    def _learn(self, digest: str) -> None:
        """Take note that a cost has become known; most methods look costs up when they need them."""

    def _next(self) -> Candidate | None:
        candidate = self._propose()
        if candidate is None and len(self._proposed) == self._proposed_before:
            return self._unseen()
        return candidate

    # ------------------------------------------------------------------ for the methods

    def _digest(self, place: Place) -> str:
        return self._space.candidate_at(place.node).digest

    def _cost(self, place: Place) -> float:
        """The time of the candidate there; infinite if it failed or is unknown."""
        return self._costs.get(self._digest(place), math.inf)

    def _offspring(self, place: Place) -> list[Place]:
        """Where one change of the candidate leads, one place for each candidate.

        An action that changes the node but not its candidate, such as turning to another loop nest, is
        followed by one more action.
        """
        here = self._digest(place)
        found: dict[str, Place] = {}
        for successor in self._successors(place):
            if self._digest(successor) != here:
                found.setdefault(self._digest(successor), successor)
                continue
            for second in self._successors(successor):
                found.setdefault(self._digest(second), second)
        found.pop(here, None)
        return list(found.values())

    def _successors(self, place: Place) -> Iterator[Place]:
        if place.taken >= self._space.depth:
            return
        for action in self._space.actions(place.node):
            successor = self._space.successor(place.node, action)
            if successor is not None:
                yield Place(successor, place.taken + 1)

    def _step(self, place: Place) -> Place | None:
        """Where a random action leads, or None if there is none."""
        if place.taken >= self._space.depth:
            return None
        actions = self._space.actions(place.node)
        for index in self._rng.permutation(len(actions)):
            successor = self._space.successor(place.node, actions[index])
            if successor is not None:
                return Place(successor, place.taken + 1)
        return None


class LevelTuner(TreeTuner):
    """Base class of methods that need the times of many nodes at once before they go on."""

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        super().__init__(source, seed, initial=initial)
        self._levels = self._search()
        self._level: list[Candidate] = []
        self._next_in_level = 0

    @abstractmethod
    def _search(self) -> Iterator[list[Place]]:
        """Yield places whose costs are needed next; when asked for more, all of them are known."""

    def _propose(self) -> Candidate | None:
        for _ in range(MAX_REPEATS):
            while self._next_in_level < len(self._level):
                candidate = self._level[self._next_in_level]
                self._next_in_level += 1
                if candidate.digest not in self._proposed:
                    return candidate
            if any(candidate.digest not in self._costs for candidate in self._level):
                return None
            following = next(self._levels, None)
            if following is None:
                return None
            self._level, self._next_in_level = (
                [self._space.candidate_at(place.node) for place in following],
                0,
            )
        return None
