"""Monte-Carlo tree search: spend measurements where random episodes have done well so far."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from solgym.baselines.proposing import MAX_REPEATS
from solgym.baselines.tree_tuner import Place, TreeTuner
from solgym.envs.proposals import ProposalSource
from solgym.hardware.target import Candidate

__all__ = ["Mcts"]

EXPLORATION: Final = 1 / math.sqrt(2)
"""Weight of what is little visited against what is good; values lie between 0 and 1."""


class _Branch:
    """A place that the search has reached, and how the episodes through it ended.

    Attributes:
        untried: actions that were not followed yet, in the order in which they will be; None before the first
            is needed.
        visits: episodes that went through here; those not measured yet count as failed, which keeps a batch
            of proposals apart.
        correct: how many of them were correct.
        logs: the sum of the logarithms of their times.
        spent: whether every candidate from here on was proposed.
    """

    def __init__(self, place: Place, parent: _Branch | None) -> None:
        self.place = place
        self.parent = parent
        self.children: list[_Branch] = []
        self.untried: list[int] | None = None
        self.visits = 0
        self.correct = 0
        self.logs = 0.0
        self.spent = False

    def path(self) -> Iterator[_Branch]:
        """This branch and those above it."""
        branch: _Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent


class Mcts(TreeTuner):
    """UCT (Kocsis and Szepesvari 2006) with progressive widening.

    Every proposal ends an episode that follows the tree by upper confidence bounds, adds one branch to it,
    and goes on with random actions, any number of them up to the longest episode, until it is at a new
    candidate. The second episode through a branch ends right there. The value of an episode is the logarithm
    of its speedup over the slowest correct candidate, as a fraction of the fastest one's; of a failed one it
    is 0. A branch may have as many children as the square root of its visits. The initial candidates are
    children of the root.
    """

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        super().__init__(source, seed, initial=initial)
        self._root = _Branch(self._start, None)
        self._open: dict[str, list[_Branch]] = {}
        self._range = (math.inf, -math.inf)
        for place in self._given:
            branch = _Branch(place, self._root)
            self._root.children.append(branch)
            self._visit(branch)
            self._open.setdefault(self._digest(place), []).append(branch)

    def _propose(self) -> Candidate | None:
        for _ in range(MAX_REPEATS):
            branch = self._selected()
            if branch is None:
                break
            candidate = self._rollout(branch)
            self._visit(branch)
            if candidate.digest in self._costs:
                self._credit(branch, self._costs[candidate.digest])
                continue
            self._open.setdefault(candidate.digest, []).append(branch)
            if candidate.digest not in self._proposed:
                return candidate
        return None

    def _learn(self, digest: str) -> None:
        for branch in self._open.pop(digest, ()):
            self._credit(branch, self._costs[digest])

    def _rollout(self, branch: _Branch) -> Candidate:
        """The candidate at the end of random actions: of none if that is new and the branch was visited
        before, else of any number.
        """
        place = branch.place
        left = self._space.depth - place.taken
        end = place.taken + (0 if branch.visits else int(self._rng.integers(left + 1)))
        while place.taken < end or self._digest(place) in self._proposed:
            further = self._step(place)
            if further is None:
                break
            place = further
        return self._space.candidate_at(place.node)

    def _selected(self) -> _Branch | None:
        """The branch to go on from, a new one as a rule; None if everything was proposed."""
        branch = self._root
        while not self._root.spent:
            if branch is not self._root and self._digest(branch.place) not in self._proposed:
                return branch
            children = [child for child in branch.children if not child.spent]
            if not children or len(branch.children) < math.ceil(math.sqrt(branch.visits + 1)):
                added = self._widened(branch)
                if added is not None:
                    return added
            branch.spent = not children
            branch = max(children, key=self._bound) if children else self._root
        return None

    def _widened(self, branch: _Branch) -> _Branch | None:
        """A new child, or None if every action was followed or is refused."""
        if branch.place.taken >= self._space.depth:
            return None
        if branch.untried is None:
            actions = self._space.actions(branch.place.node)
            branch.untried = [actions[place] for place in self._rng.permutation(len(actions))]
        while branch.untried:
            successor = self._space.successor(branch.place.node, branch.untried.pop())
            if successor is not None:
                branch.children.append(_Branch(Place(successor, branch.place.taken + 1), branch))
                return branch.children[-1]
        return None

    def _bound(self, branch: _Branch) -> float:
        """The upper confidence bound of a branch's value."""
        if branch.visits == 0 or branch.parent is None:
            return math.inf
        low, high = self._range
        won = branch.correct * high - branch.logs if branch.correct else 0.0
        value = (won / (high - low) if high > low else branch.correct) / branch.visits
        return value + EXPLORATION * math.sqrt(math.log(branch.parent.visits) / branch.visits)

    def _visit(self, branch: _Branch) -> None:
        for above in branch.path():
            above.visits += 1

    def _credit(self, branch: _Branch, cost: float) -> None:
        """Enter the time of an episode whose visit was counted before."""
        if not math.isfinite(cost):
            return
        log = math.log(cost)
        self._range = (min(self._range[0], log), max(self._range[1], log))
        for above in branch.path():
            above.correct += 1
            above.logs += log
