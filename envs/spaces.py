"""What tuners can know of a space beyond drawing from it: vectors of choices, and trees of actions.

Both are protocols that a source of proposals may keep. Knob spaces are vectors; episodes of actions are both:
a tree to search action by action, and vectors of a fixed length for methods that change a whole candidate.
Nothing here is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from solgym.hardware.target import Candidate

__all__ = ["TreeSpace", "Vector", "VectorSpace"]

Vector = tuple[int, ...]
"""One choice a position, as numbers from 0."""

NodeT = TypeVar("NodeT")


@runtime_checkable
class VectorSpace(Protocol):
    """Candidates as vectors of choices. Several vectors may stand for one candidate, or none."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many choices each position has."""

    @property
    def names(self) -> tuple[str, ...]:
        """What each position is called; no two alike."""

    @property
    def ordered(self) -> tuple[bool, ...]:
        """Whether choices of a position that are near in number are near in meaning."""

    def sample(self, rng: np.random.Generator) -> Vector:
        """A random valid vector; equal generator states give equal vectors."""

    def candidate(self, vector: Vector) -> Candidate | None:
        """What a vector stands for; None if it is not valid."""

    def mutate(self, vector: Vector, rng: np.random.Generator) -> Vector:
        """A valid vector near a valid one, and another one where that can be found."""

    def cross(self, first: Vector, second: Vector, rng: np.random.Generator) -> Vector:
        """A valid vector made of parts of two valid ones; one of these where no mixture is valid."""

    def vector_of(self, candidate: Candidate) -> Vector | None:
        """A vector that stands for a candidate from elsewhere; None if there is none, or none is found."""

    def enumerate(self) -> Iterator[Candidate] | None:
        """Every candidate in a fixed order, or None where they cannot be listed."""


@runtime_checkable
class TreeSpace(Protocol[NodeT]):
    """Candidates as ends of episodes: nodes of a tree whose edges are actions."""

    @property
    def root(self) -> NodeT:
        """The node before any action."""

    @property
    def depth(self) -> int:
        """The most actions that an episode takes."""

    def actions(self, state: NodeT) -> Sequence[int]:
        """The actions offered at a node, by index and in ascending order; those that finish are left out."""

    def successor(self, state: NodeT, action: int) -> NodeT | None:
        """The node after an action; None if it is refused, fails or changes nothing."""

    def candidate_at(self, state: NodeT) -> Candidate:
        """The candidate at a node; nodes may share one."""

    def state_of(self, candidate: Candidate) -> NodeT | None:
        """The node of a candidate from elsewhere, or None if it does not apply."""

    def actions_to(self, candidate: Candidate) -> int:
        """After how many actions an episode is at a candidate, at most ``depth``; 0 if that is unknown."""
