"""What tuners have in common: candidates given from outside come first, and none is proposed twice.

Two base classes: ``ProposingTuner`` for any method that makes its proposals one by one, and ``VectorTuner``
for methods that move between vectors of choices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from solgym.baselines.tuner import cost_of
from solgym.envs.proposals import ProposalSource
from solgym.envs.spaces import Vector, VectorSpace
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

__all__ = [
    "MANY_CHOICES",
    "MAX_REPEATS",
    "RANDOM_FIRST",
    "ProposingTuner",
    "VectorTuner",
    "require_vectors",
]

MAX_REPEATS: Final = 64
"""So many draws in a row that were all proposed before mean that the source is nearly exhausted: more than
90% of a uniform source must be used up for this to happen once in a thousand proposals."""
MANY_CHOICES: Final = 64
"""With more choices at an unordered position, few trials say little: a space of actions, not of knobs."""
RANDOM_FIRST: Final = 50
"""Random candidates that methods which learn from trials alone begin with in such a space."""


def require_vectors(source: ProposalSource, method: str) -> VectorSpace:
    """The source as a vector space.

    Raises:
        InvalidOption: it is none.
    """
    if not isinstance(source, VectorSpace):
        raise InvalidOption(
            f"{method} changes vectors of choices, and these proposals ({type(source).__name__}) have none; "
            "choose another tuner"
        )
    return source


class ProposingTuner(ABC):
    """Proposes candidates one by one, those given first.

    Candidates count as equal when their content hashes are, so two settings that mean the same cost one
    measurement.

    Args:
        source: where proposals come from.
        seed: of everything random.
        initial: candidates to propose first.
    """

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        self._source = source
        self._rng = np.random.default_rng(seed)
        self._initial = deque({candidate.digest: candidate for candidate in initial}.values())
        self._proposed: set[str] = set()
        self._rest: list[Candidate] | None = None

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` candidates that were never proposed before."""
        proposals: list[Candidate] = []
        while len(proposals) < count:
            candidate = self._initial.popleft() if self._initial else self._next()
            if candidate is None:
                break
            self._proposed.add(candidate.digest)
            proposals.append(candidate)
        return proposals

    @abstractmethod
    def tell(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Learn how proposals did."""

    @abstractmethod
    def _next(self) -> Candidate | None:
        """A candidate whose digest is not among ``_proposed``, or None if there is none left."""

    def _draw(self) -> Candidate | None:
        """A random candidate, proposed before or not; None where the draw led to none."""
        return self._source.draw(self._rng)

    def _unseen(self) -> Candidate | None:
        """A random candidate that was never proposed before.

        A source that cannot be listed counts as exhausted after ``MAX_REPEATS`` draws in a row that gave
        nothing new.
        """
        if self._rest is None:
            for _ in range(MAX_REPEATS):
                candidate = self._draw()
                if candidate is not None and candidate.digest not in self._proposed:
                    return candidate
            self._rest = self._shuffled_rest()
        while self._rest:
            candidate = self._rest.pop()
            if candidate.digest not in self._proposed:
                return candidate
        return None

    def _shuffled_rest(self) -> list[Candidate]:
        everything = self._source.enumerate()
        if everything is None:
            return []
        rest = {c.digest: c for c in everything if c.digest not in self._proposed}
        candidates = list(rest.values())
        return [candidates[i] for i in self._rng.permutation(len(candidates))]


class VectorTuner(ProposingTuner):
    """A method that suggests vectors and learns what they cost.

    Suggestions that are not valid are passed over. Those that were measured before cost nothing: the method
    is told their cost again at once. After ``MAX_REPEATS`` suggestions in a row that gave nothing new, a
    random candidate is proposed instead.
    """

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        self._space = require_vectors(source, type(self).__name__)
        super().__init__(source, seed, initial=initial)
        self._given = {candidate.digest for candidate in self._initial}
        sizes = zip(self._space.sizes, self._space.ordered, strict=True)
        self._most_choices = max((size for size, ordered in sizes if not ordered), default=0)
        """Of any unordered position."""
        self._vectors: dict[str, Vector | None] = {}
        self._costs: dict[str, float] = {}

    def tell(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Learn how proposals did; a failed one costs infinitely much."""
        for candidate, result in results:
            cost = self._costs[candidate.digest] = cost_of(result)
            vector = self._vector(candidate)
            if vector is None:
                continue
            if candidate.digest in self._given:
                self._learn_initial(vector, cost)
            else:
                self._learn(vector, cost)

    @property
    def _begins_at_random(self) -> bool:
        """Whether a method that learns from trials alone has too few yet, which is so in spaces of actions.

        Candidates given from outside count, but for at most half of those that are needed.
        """
        needed = max(RANDOM_FIRST, RANDOM_FIRST // 2 + len(self._given))
        return self._most_choices > MANY_CHOICES and len(self._proposed) < needed

    @abstractmethod
    def _suggest(self) -> Vector | None:
        """The vector that the method would try next, or None if it has none, which makes it a random one."""

    @abstractmethod
    def _learn(self, vector: Vector, cost: float) -> None:
        """Take note of what a proposal cost."""

    def _revisit(self, vector: Vector, cost: float) -> None:
        """Take note again of a cost that is known, as the method has suggested the vector again."""
        self._learn(vector, cost)

    def _learn_initial(self, vector: Vector, cost: float) -> None:
        """The same for a candidate given from outside, told once."""
        self._learn(vector, cost)

    def _next(self) -> Candidate | None:
        for _ in range(MAX_REPEATS):
            vector = self._suggest()
            if vector is None:
                break
            candidate = self._space.candidate(vector)
            if candidate is None:
                continue
            digest = candidate.digest
            if digest not in self._proposed:
                self._vectors[digest] = vector
                return candidate
            known = self._vectors.get(digest)
            if known is not None and digest in self._costs:
                self._revisit(known, self._costs[digest])
        return self._unseen()

    def _draw(self) -> Candidate | None:
        vector = self._space.sample(self._rng)
        candidate = self._space.candidate(vector)
        if candidate is not None:
            self._vectors.setdefault(candidate.digest, vector)
        return candidate

    def _vector(self, candidate: Candidate) -> Vector | None:
        """The vector that a candidate was proposed as; looked for if it comes from elsewhere."""
        if candidate.digest not in self._vectors:
            self._vectors[candidate.digest] = self._space.vector_of(candidate)
        return self._vectors[candidate.digest]
