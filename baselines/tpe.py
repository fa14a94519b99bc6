"""Optuna's tree-structured Parzen estimator (Bergstra et al. 2011) as a tuner.

It needs the packages of ``pip install 'solgym[tuners]'``, which are imported when a search begins.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from solgym.baselines.proposing import MANY_CHOICES, VectorTuner
from solgym.envs.proposals import ProposalSource
from solgym.envs.spaces import Vector
from solgym.errors import InvalidOption
from solgym.hardware.target import Candidate

if TYPE_CHECKING:
    import optuna

__all__ = ["TreeParzen"]

MAX_DETOUR: Final = 32
"""Most changes that lead away from a vector that was proposed before."""
PRIOR: Final = 4
"""What Optuna's prior weighs at a position of many choices, where a trial weighs 1."""


class TreeParzen(VectorTuner):
    """Models which vectors are among the fastest, all positions together, and proposes where that is likely.

    A failed candidate is infinitely slow to the model, and so is a vector that is not valid. Where the model
    draws what was proposed before, the first new vector on a random way from there takes its place.

    In a space of actions it begins with ``RANDOM_FIRST`` random candidates and a lighter prior: Optuna's own
    weighs 1 at each choice, which adds up to 178 for one of 178 actions and drowns what the trials say.
    """

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        super().__init__(source, seed, initial=initial)
        self._optuna = _import_optuna()
        self._choices: dict[str, Any] = {}
        for name, size, ordered in zip(
            self._space.names, self._space.sizes, self._space.ordered, strict=True
        ):
            distributions = self._optuna.distributions
            self._choices[name] = (
                distributions.IntDistribution(0, size - 1)
                if ordered
                else distributions.CategoricalDistribution(range(size))
            )
        with self._quiet():
            # A batch of proposals keeps its distance: what is still being measured counts as slow.
            most = self._most_choices
            prior = PRIOR / most if most > MANY_CHOICES else 1.0
            sampler = self._optuna.samplers.TPESampler(
                seed=seed, multivariate=True, constant_liar=True, prior_weight=prior
            )
            self._study = self._optuna.create_study(sampler=sampler)
        self._trials: dict[Vector, optuna.Trial] = {}
        self._told: set[Vector] = set()

    def _suggest(self) -> Vector | None:
        if self._begins_at_random:
            return None
        with self._quiet():
            trial = self._study.ask(self._choices)
            vector = tuple(int(trial.params[name]) for name in self._space.names)
            if self._is_new(vector):
                self._trials[vector] = trial
                return vector
            cost = self._known_cost(vector)
            if cost is None or vector in self._told:
                self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
            else:
                self._told.add(vector)
                self._study.tell(trial, cost)
        for _ in range(MAX_DETOUR):
            if self._space.candidate(vector) is None:
                return vector
            vector = self._space.mutate(vector, self._rng)
            if self._is_new(vector):
                return vector
        return None

    def _known_cost(self, vector: Vector) -> float | None:
        """What a vector costs as far as that is known; what is not valid costs infinitely much."""
        candidate = self._space.candidate(vector)
        return math.inf if candidate is None else self._costs.get(candidate.digest)

    def _learn(self, vector: Vector, cost: float) -> None:
        self._told.add(vector)
        trial = self._trials.pop(vector, None)
        with self._quiet():
            if trial is not None:
                self._study.tell(trial, cost)
                return
            params = dict(zip(self._space.names, vector, strict=True))
            self._study.add_trial(
                self._optuna.create_trial(params=params, distributions=self._choices, value=cost)
            )

    def _revisit(self, vector: Vector, cost: float) -> None:
        """The model knows already."""

    def _is_new(self, vector: Vector) -> bool:
        candidate = self._space.candidate(vector)
        return candidate is not None and candidate.digest not in self._proposed

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Keep Optuna from reporting every trial, and from warning of options that it calls experimental."""
        logging = self._optuna.logging
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.set_verbosity(verbosity)


def _import_optuna() -> ModuleType:
    try:
        import optuna
    except ImportError as error:
        raise InvalidOption(
            f"the tuner tpe needs packages that are not installed ({error}); "
            "install them: pip install 'solgym[tuners]'"
        ) from error
    return optuna
