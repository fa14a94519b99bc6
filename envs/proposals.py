"""Where tuners' proposals come from: a protocol, and the source that every family has, random episodes.

Drawing a proposal times nothing, so it takes no part of the measurements.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from solgym.envs.design import Move, StateT
from solgym.envs.spaces import Vector
from solgym.errors import IllegalSchedule, InvalidOption
from solgym.hardware.measurement import Status
from solgym.hardware.target import Candidate

__all__ = ["MAX_VECTOR_LENGTH", "EpisodeSource", "ProposalSource"]

MAX_VECTOR_LENGTH: Final = 16
"""Most actions of an episode that is a vector: the best known ones need fewer."""
STATES_MAX: Final = 4096
"""States that a source remembers, so that vectors with a common beginning share its cost."""
MAX_TRIES: Final = 16
"""How often a random change is tried before a vector is given back as it was."""
FATAL: Final = frozenset({Status.CRASHED, Status.TIMEOUT})
"""How actions fail that cost seconds each."""
FATAL_MAX: Final = 3
"""Actions that may fail so in a state before no further action is tried in it."""
ANOTHER_CHANGE: Final = 0.25
"""How likely a mutation goes on to a further change, after each."""


@runtime_checkable
class ProposalSource(Protocol):
    """Where proposals come from: a knob space, or episodes in an environment.

    A source may be a ``VectorSpace`` or a ``TreeSpace`` (see ``envs.spaces``) as well.
    """

    def draw(self, rng: np.random.Generator) -> Candidate:
        """Draw one candidate; equal generator states give equal candidates."""

    def enumerate(self) -> Iterator[Candidate] | None:
        """Every candidate in a fixed order, or None where they cannot be listed."""


class EpisodeSource(Generic[StateT]):
    """What episodes of legal actions end with: random ones, a tree of them, or vectors.

    An episode that is drawn takes a number of actions that is uniform between 1 and ``max_steps``, each
    uniform over the actions that are legal in its state and lead somewhere; those that finish are left out,
    as the length decides when it ends.

    A state in which ``FATAL_MAX`` different actions crashed or hung is left alone: no further action is tried
    in it, as others would mostly do the same, each for seconds. An episode that is drawn ends there. The
    state that episodes begin in is never given up.

    As a vector an episode is its length, less one, and ``MAX_VECTOR_LENGTH`` positions, or ``max_steps`` if
    that is less. A position holds an action, or 0 for none; what stands behind the length does not count. An
    action that is not possible where it stands means another that is, chosen by its index modulo their
    number, as codons do in grammatical evolution (O'Neill and Ryan 2001). So what is drawn blindly has all
    lengths, and all actions. A vector that changes nothing stands for no candidate. What ``sample``,
    ``mutate`` and ``cross`` return has its actions in front, all of them possible; what a change makes
    impossible falls away.

    Args:
        start: the state that episodes begin in.
        move: what an action, by its index, amounts to in a state.
        offered: the indices of the actions to try in a state; some may turn out to be illegal.
        max_steps: the longest episode.
        actions: how many actions there are. Action 0 is one that finishes.
        legal: the indices of the actions that are legal in a state, as exactly as is known without trying
            them; by default those that are offered.
        state_of: the state of a candidate from elsewhere; raises ``IllegalSchedule`` if it does not apply.
        actions_of: the actions that lead to a candidate from elsewhere, or None if there are none.
    """

    def __init__(
        self,
        start: StateT,
        move: Callable[[StateT, int], Move[StateT]],
        offered: Callable[[StateT], NDArray[np.int_]],
        max_steps: int,
        *,
        actions: int,
        legal: Callable[[StateT], NDArray[np.int_]] | None = None,
        state_of: Callable[[Candidate], StateT] | None = None,
        actions_of: Callable[[Candidate], Sequence[int] | None] | None = None,
    ) -> None:
        if max_steps < 1:
            raise InvalidOption(f"an episode of {max_steps} steps does nothing; give max_steps of 1 or more")
        self._start = start
        self._move = move
        self._offered = offered
        self._legal = legal or offered
        self._max_steps = max_steps
        self._length = min(max_steps, MAX_VECTOR_LENGTH)
        self._actions = actions
        self._state_of = state_of
        self._actions_of = actions_of
        self._known: OrderedDict[Vector, StateT | None] = OrderedDict()
        self._fatal: dict[str, set[int]] = {}
        """Actions that crashed or hung, by the state's candidate."""

    def draw(self, rng: np.random.Generator) -> Candidate:
        """The candidate at the end of one episode."""
        _, state = self._episode(self._max_steps, rng)
        return state.candidate

    def enumerate(self) -> None:
        """Episodes cannot be listed."""

    # ------------------------------------------------------------------ as a tree

    @property
    def root(self) -> StateT:
        """The state that episodes begin in."""
        return self._start

    @property
    def depth(self) -> int:
        """The most actions that an episode takes."""
        return self._max_steps

    def actions(self, state: StateT) -> Sequence[int]:
        """The actions offered in a state, those that finish left out."""
        return [int(index) for index in np.sort(self._legal(state)) if index != 0]

    def successor(self, state: StateT, action: int) -> StateT | None:
        """The state after an action; None if it is refused, fails, changes nothing or cannot be tried any
        more, see the class.
        """
        if action == 0 or action not in self._offered(state):
            return None
        return self._tried(state, action)

    def candidate_at(self, state: StateT) -> Candidate:
        """The candidate in a state."""
        return state.candidate

    def state_of(self, candidate: Candidate) -> StateT | None:
        """The state of a candidate from elsewhere, or None if it does not apply."""
        if self._state_of is None:
            return None
        try:
            return self._state_of(candidate)
        except IllegalSchedule:
            return None

    def actions_to(self, candidate: Candidate) -> int:
        """After how many actions an episode is at a candidate, at most ``depth``; 0 if that is unknown."""
        actions = self._actions_of(candidate) if self._actions_of is not None else None
        return min(len(actions or ()), self._max_steps)

    # ------------------------------------------------------------------ as vectors

    @property
    def sizes(self) -> tuple[int, ...]:
        """Any length; then at each position any action, or 0 for none."""
        return (self._length, *(self._actions,) * self._length)

    @property
    def names(self) -> tuple[str, ...]:
        """The length, and the positions counted from 1."""
        return ("length", *(f"step {number}" for number in range(1, self._length + 1)))

    @property
    def ordered(self) -> tuple[bool, ...]:
        """Lengths have an order, actions have none."""
        return (True, *(False,) * self._length)

    def sample(self, rng: np.random.Generator) -> Vector:
        """A random episode, shorter ones as likely as longer ones."""
        taken: Vector = ()
        for _ in range(MAX_TRIES):
            taken, state = self._episode(self._length, rng)
            if state.candidate != self._start.candidate:
                break
        return self._vector(taken)

    def candidate(self, vector: Vector) -> Candidate | None:
        """What the actions of a vector lead to; None if they change nothing."""
        _, state = self._read(vector)
        return None if state.candidate == self._start.candidate else state.candidate

    def mutate(self, vector: Vector, rng: np.random.Generator) -> Vector:
        """The vector with an action replaced, inserted, deleted or swapped with the next, sometimes several.

        New actions are legal where they are put; later ones that are not any more fall away.
        """
        actions, _ = self._read(vector)
        for _ in range(MAX_TRIES):
            changed = self._edited(actions, rng)
            while rng.random() < ANOTHER_CHANGE:
                changed = self._edited(changed, rng)
            taken, state = self._follow(changed)
            if taken != actions and state.candidate != self._start.candidate:
                return self._vector(taken)
        return self._vector(actions)

    def cross(self, first: Vector, second: Vector, rng: np.random.Generator) -> Vector:
        """The beginning of one episode followed by the end of another, as far as that is legal."""
        (head, _), (tail, _) = self._read(first), self._read(second)
        for _ in range(MAX_TRIES):
            cut, start = int(rng.integers(len(head) + 1)), int(rng.integers(len(tail) + 1))
            taken, state = self._follow(head[:cut] + tail[start:])
            if state.candidate != self._start.candidate:
                return self._vector(taken)
        return self._vector(head)

    def vector_of(self, candidate: Candidate) -> Vector | None:
        """The actions that lead to a candidate from elsewhere; None if there are none, or too many."""
        actions = self._actions_of(candidate) if self._actions_of is not None else None
        if actions is None or len(actions) > self._length:
            return None
        taken, state = self._follow(actions)
        return self._vector(taken) if state.candidate == candidate else None

    # ------------------------------------------------------------------ as an example

    def path_to(self, candidate: Candidate) -> tuple[int, ...] | None:
        """The actions of an episode that does what a candidate from elsewhere does, less one that finishes.

        Actions that change nothing are left out. None if there is no such episode, or if it is too long.
        """
        actions = self._actions_of(candidate) if self._actions_of is not None else None
        taken, state = [], self._start
        for action in actions or ():
            move = self._move(state, action)
            if move.state is None or move.finishes:
                return None
            if move.state is not state:
                taken.append(action)
                state = move.state
        return tuple(taken) if actions is not None and len(taken) <= self._max_steps else None

    # ------------------------------------------------------------------ how it works

    def _episode(self, max_steps: int, rng: np.random.Generator) -> tuple[Vector, StateT]:
        """The actions of a random episode and the state that it ends in."""
        taken: Vector = ()
        state = self._start
        for _ in range(int(rng.integers(1, max_steps + 1))):
            step = self._random_step(state, rng)
            if step is None:
                break
            taken, state = (*taken, step[0]), step[1]
        return taken, state

    def _random_step(self, state: StateT, rng: np.random.Generator) -> tuple[int, StateT] | None:
        """A random legal action and the state after it; None if there is none, or too many failed badly."""
        # Trying actions in random order until one is accepted is uniform over the legal ones, and cheaper
        # than trying them all first.
        for index in rng.permutation(self._offered(state)):
            following = self._tried(state, int(index))
            if following is not None:
                return int(index), following
            if self._is_unsafe(state):
                break
        return None

    def _tried(self, state: StateT, action: int) -> StateT | None:
        """The state that an action leads to, if it leads to another and the episode goes on there."""
        if self._is_unsafe(state):
            return None
        move = self._move(state, action)
        if move.failed is not None and move.failed.status in FATAL:
            self._fatal.setdefault(state.candidate.digest, set()).add(action)
        return None if move.finishes or move.state is state else move.state

    def _is_unsafe(self, state: StateT) -> bool:
        if not self._fatal or state is self._start:
            return False
        return len(self._fatal.get(state.candidate.digest, ())) >= FATAL_MAX

    def _read(self, vector: Vector) -> tuple[Vector, StateT]:
        """What the actions of a vector are where they stand, and where they lead to."""
        taken: Vector = ()
        state = self._start
        for action in filter(None, vector[1 : vector[0] + 2]):
            for possible in self._from(state, action):
                following = self._after(taken, state, possible)
                if following is not None:
                    taken, state = (*taken, possible), following
                    break
            else:
                break  # nothing is possible any more
        return taken, state

    def _from(self, state: StateT, action: int) -> Iterator[int]:
        """An action, then all others that are legal in a state, from its index modulo their number on."""
        yield action
        others = [other for other in self.actions(state) if other != action]
        if others:
            first = action % len(others)
            yield from others[first:] + others[:first]

    def _follow(self, actions: Iterable[int]) -> tuple[Vector, StateT]:
        """Take actions in order, those that are possible where they stand: which, and where they lead to."""
        taken: Vector = ()
        state = self._start
        for action in actions:
            if action != 0 and len(taken) < self._length:
                following = self._after(taken, state, action)
                if following is not None:
                    taken, state = (*taken, action), following
        return taken, state

    def _after(self, taken: Vector, state: StateT, action: int) -> StateT | None:
        """The state after one more action, remembered by the actions that lead to it."""
        key = (*taken, action)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        following = self.successor(state, action)
        self._known[key] = following
        if len(self._known) > STATES_MAX:
            self._known.popitem(last=False)
        return following

    def _edited(self, actions: Vector, rng: np.random.Generator) -> Vector:
        """The actions after one random change; the same if the change drawn is not possible."""
        edits = ["insert"] if len(actions) < self._length else []
        edits += ["replace", "delete"] if actions else []
        edits += ["swap"] if len(actions) > 1 else []
        edit = edits[int(rng.integers(len(edits)))]
        if edit == "swap":
            place = int(rng.integers(len(actions) - 1))
            return (*actions[:place], actions[place + 1], actions[place], *actions[place + 2 :])
        place = int(rng.integers(len(actions) + (edit == "insert")))
        if edit == "delete":
            return actions[:place] + actions[place + 1 :]
        _, state = self._follow(actions[:place])
        step = self._random_step(state, rng)
        if step is None:
            return actions
        return (*actions[:place], step[0], *actions[place + (edit == "replace") :])

    def _vector(self, actions: Vector) -> Vector:
        return (max(len(actions), 1) - 1, *actions, *(0,) * (self._length - len(actions)))
