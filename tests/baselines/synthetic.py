"""Made-up spaces whose optimum is known, with measurements that take no time: what tests of tuners search.

``best`` of every space is its optimum. Candidates are schedules that no compiler sees, so traces hold them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from solgym.baselines.tuner import make_tuner
from solgym.envs.design import Move
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.envs.proposals import EpisodeSource
from solgym.errors import IllegalSchedule
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.fakes import TASK, timed

OPTIMUM_S = 1e-3
STEP_S = 1e-4


def _schedule(op: str, values: tuple[int, ...]) -> Schedule:
    return Schedule(TASK, tuple({"op": op, "value": int(value)} for value in values))


ELSEWHERE = _schedule("elsewhere", (1, 2))
"""A candidate that is in none of the spaces, and slow."""


def values_of(candidate: Schedule) -> tuple[int, ...]:
    """The choices of a vector, or the actions of an episode."""
    return tuple(step["value"] for step in candidate.steps)


class Bowl:
    """A vector space with one valley: time grows with the distance from ``best``.

    Three positions have an order, and ``width`` choices; the last has none: any other choice is one away.
    Settings whose first two choices are both the last one are not valid. When measured, those whose first
    choice is 0 fail, and those whose first choice is the last are unstable, with times that would be by far
    the best.
    """

    names = ("a", "b", "c", "word")
    ordered = (True, True, True, False)

    def __init__(self, width: int = 12) -> None:
        self.sizes = (width, width, width, 3)
        self.best = (width * 2 // 3, width // 4, width // 2, 2)

    def draw(self, rng):
        return self.candidate(self.sample(rng))

    def enumerate(self):
        every = map(self.candidate, itertools.product(*map(range, self.sizes)))
        return (candidate for candidate in every if candidate is not None)

    def sample(self, rng):
        while True:
            vector = tuple(int(rng.integers(size)) for size in self.sizes)
            if self.candidate(vector) is not None:
                return vector

    def candidate(self, vector):
        last = self.sizes[0] - 1
        return None if vector[:2] == (last, last) else _schedule("set", vector)

    def mutate(self, vector, rng):
        while True:
            position = int(rng.integers(4))
            move = int(rng.integers(1, self.sizes[3])) if position == 3 else int(rng.choice([-1, 1]))
            place = vector[position] + move
            place = place % self.sizes[3] if position == 3 else place
            changed = (*vector[:position], place, *vector[position + 1 :])
            if 0 <= place < self.sizes[position] and self.candidate(changed) is not None:
                return changed

    def cross(self, first, second, rng):
        while True:
            mixed = tuple(b if rng.integers(2) else a for a, b in zip(first, second, strict=True))
            if self.candidate(mixed) is not None:
                return mixed

    def vector_of(self, candidate):
        return None if candidate == ELSEWHERE else values_of(candidate)

    def distance(self, candidate) -> int:
        """How far a candidate is from the optimum."""
        values = values_of(candidate)
        near = sum(abs(a - b) for a, b in zip(values[:3], self.best[:3], strict=True))
        return near + (values[3] != self.best[3])

    def evaluate(self, candidate) -> Measurement:
        """Time of a setting, or a failure."""
        if candidate == ELSEWHERE:
            return timed(100 * OPTIMUM_S)
        first = values_of(candidate)[0]
        if first == 0:
            return Measurement.failed(Status.WRONG_RESULT, "made to fail")
        if first == self.sizes[0] - 1:
            return replace(timed(OPTIMUM_S / 1000), status=Status.UNSTABLE)
        return timed(OPTIMUM_S + STEP_S * self.distance(candidate))

    def count(self) -> int:
        """How many candidates there are."""
        return len(list(self.enumerate()))

    def is_best(self, candidate) -> bool:
        return values_of(candidate) == self.best


@dataclass(frozen=True)
class Path:
    """The actions taken so far."""

    actions: tuple[int, ...] = ()

    @property
    def candidate(self) -> Schedule:
        return _schedule("do", self.actions)


class Corridor(EpisodeSource[Path]):
    """Episodes of 4 actions that should be ``best``: each that agrees with it, up to the first that does not,
    saves time, and each further one costs a little.

    Action 4 fails everywhere, action 3 is refused at first, action 0 finishes. ``best`` can be found step by
    step.
    """

    best = (1, 3, 2, 2, 1)

    def __init__(self, max_steps: int = 7) -> None:
        super().__init__(
            Path(),
            self._act,
            lambda state: np.arange(5),
            max_steps,
            actions=5,
            legal=lambda state: np.array([0, 1, 2, 4] if not state.actions else [0, 1, 2, 3, 4]),
            state_of=self._path,
            actions_of=lambda candidate: None if candidate == ELSEWHERE else values_of(candidate),
        )

    @staticmethod
    def _path(candidate: Schedule) -> Path:
        if candidate == ELSEWHERE:
            raise IllegalSchedule("it is from elsewhere")
        return Path(values_of(candidate))

    @staticmethod
    def _act(state: Path, action: int) -> Move[Path]:
        if action == 0:
            return Move(state, finishes=True)
        if action == 4:
            return Move(None, failed=Measurement.failed(Status.CRASHED, "made to fail"))
        if action == 3 and not state.actions:
            return Move(None, illegal_because="not at first")
        return Move(Path((*state.actions, action)))

    def evaluate(self, candidate) -> Measurement:
        """Time of an episode's end. Those that begin with 2, 2 fail."""
        if candidate == ELSEWHERE:
            return timed(100 * OPTIMUM_S)
        actions = values_of(candidate)
        if actions[:2] == (2, 2):
            return Measurement.failed(Status.TIMEOUT, "made to fail")
        agreeing = sum(
            1
            for _ in itertools.takewhile(
                lambda pair: pair[0] == pair[1], zip(actions, self.best, strict=False)
            )
        )
        missing = len(self.best) - agreeing
        return timed(OPTIMUM_S + STEP_S * (2 * missing + len(actions) - agreeing))

    def count(self) -> int:
        """How many candidates there are: two choices at first, three at each later step, or none."""
        return sum(2 * 3 ** (length - 1) for length in range(1, self.depth + 1))

    def is_best(self, candidate) -> bool:
        return values_of(candidate) == self.best


SPACES = {"vectors": Bowl, "episodes": Corridor}


def run(name, space, budget, seed=0, initial=(), batch=1, until=lambda candidate: False):
    """Let a tuner spend a budget, at most ``until`` holds; the proposals and their measurements in order."""
    tuner = make_tuner(name, space, seed, initial)
    trials = []
    while len(trials) < budget:
        proposals = tuner.ask(min(batch, budget - len(trials)))
        if not proposals:
            break
        results = [(candidate, space.evaluate(candidate)) for candidate in proposals]
        tuner.tell(results)
        trials += results
        if any(until(candidate) for candidate in proposals):
            break
    return trials
