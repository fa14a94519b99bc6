"""Where tuners' proposals come from: a protocol, and the source that every family has, random episodes.

Drawing a proposal times nothing, so it takes no part of the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from solgym.envs.design import Move, StateT
from solgym.errors import InvalidOption
from solgym.hardware.target import Candidate

__all__ = ["EpisodeSource", "ProposalSource"]


@runtime_checkable
class ProposalSource(Protocol):
    """Where proposals come from: a knob space, or episodes in an environment."""

    def draw(self, rng: np.random.Generator) -> Candidate:
        """Draw one candidate; equal generator states give equal candidates."""

    def enumerate(self) -> Iterator[Candidate] | None:
        """Every candidate in a fixed order, or None where they cannot be listed."""


class EpisodeSource(Generic[StateT]):
    """What episodes of random legal actions end with.

    An episode takes a number of actions that is uniform between 1 and ``max_steps``, each uniform over the
    actions that are legal in its state and lead somewhere; those that finish are left out, as the length
    decides when it ends.

    Args:
        start: the state that episodes begin in.
        move: what an action, by its index, amounts to in a state.
        offered: the indices of the actions to try in a state; some may turn out to be illegal.
        max_steps: the longest episode.
    """

    def __init__(
        self,
        start: StateT,
        move: Callable[[StateT, int], Move[StateT]],
        offered: Callable[[StateT], NDArray[np.int_]],
        max_steps: int,
    ) -> None:
        if max_steps < 1:
            raise InvalidOption(f"an episode of {max_steps} steps does nothing; give max_steps of 1 or more")
        self._start = start
        self._move = move
        self._offered = offered
        self._max_steps = max_steps

    def draw(self, rng: np.random.Generator) -> Candidate:
        """The candidate at the end of one episode."""
        state = self._start
        for _ in range(int(rng.integers(1, self._max_steps + 1))):
            successor = self._random_step(state, rng)
            if successor is None:
                break
            state = successor
        return state.candidate

    def enumerate(self) -> None:
        """Episodes cannot be listed."""

    def _random_step(self, state: StateT, rng: np.random.Generator) -> StateT | None:
        """The state after a random legal action, or None if there is none."""
        # Trying actions in random order until one is accepted is uniform over the legal ones, and cheaper
        # than trying them all first.
        for index in rng.permutation(self._offered(state)):
            move = self._move(state, int(index))
            if move.state is not None and move.state is not state and not move.finishes:
                return move.state
        return None
