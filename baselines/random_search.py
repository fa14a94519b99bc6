"""Random search: uniform proposals without replacement. The method that every other one must beat.

What it proposes depends on its seed and on how many proposals were asked for, never on how they did.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from solgym.envs.proposals import ProposalSource
from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

__all__ = ["RandomSearch"]

# So many draws in a row that were all proposed before mean that the source is nearly exhausted: at 64, more
# than 90% of a uniform source must be used up for this to happen once in a thousand proposals.
MAX_REPEATED_DRAWS = 64


class RandomSearch:
    """Draws candidates from a source until each has been proposed once.

    Candidates count as equal when their content hashes are, so two knob settings that mean the same
    schedule cost one measurement. A source that cannot be listed counts as exhausted after
    ``MAX_REPEATED_DRAWS`` draws in a row that gave nothing new.
    """

    def __init__(self, source: ProposalSource, seed: int) -> None:
        self._source = source
        self._rng = np.random.default_rng(seed)
        self._proposed: set[str] = set()
        self._remaining: list[Candidate] | None = None

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` candidates that were never proposed before."""
        proposals: list[Candidate] = []
        while len(proposals) < count:
            candidate = self._next()
            if candidate is None:
                break
            self._proposed.add(candidate.digest)
            proposals.append(candidate)
        return proposals

    def tell(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Ignore how proposals did; that is what makes it the baseline."""

    def _next(self) -> Candidate | None:
        if self._remaining is None:
            for _ in range(MAX_REPEATED_DRAWS):
                candidate = self._source.draw(self._rng)
                if candidate.digest not in self._proposed:
                    return candidate
            self._remaining = self._shuffled_rest()
        return self._remaining.pop() if self._remaining else None

    def _shuffled_rest(self) -> list[Candidate]:
        everything = self._source.enumerate()
        if everything is None:
            return []
        rest = {c.digest: c for c in everything if c.digest not in self._proposed}
        candidates = list(rest.values())
        return [candidates[i] for i in self._rng.permutation(len(candidates))]
