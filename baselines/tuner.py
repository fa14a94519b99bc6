"""What a search method is: something that proposes candidates and is told how they did.

The runner owns measuring, budgets and records, so a tuner is a few lines and every method is compared by
the same code. A tuner must be a deterministic function of its seed and of what it was told: an interrupted
run is continued by asking the same questions again and answering them from the trace.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from solgym.envs.proposals import ProposalSource
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

__all__ = ["TUNERS", "Tuner", "TunerFactory", "check_tuner", "cost_of", "make_tuner"]


@runtime_checkable
class Tuner(Protocol):
    """A search method."""

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` candidates to try next; fewer, or none, when the space is exhausted.

        No candidate is proposed twice, whatever the method: equal content hashes are one candidate.
        """

    def tell(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Learn how proposals did, failures included, in the order in which they were proposed."""


class TunerFactory(Protocol):
    """Makes a fresh tuner; tuner classes are factories themselves."""

    def __call__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> Tuner:
        """Make a tuner.

        Args:
            source: where its proposals come from.
            seed: of everything random.
            initial: candidates of the task to propose first. Methods with a population take them into it,
                and fill at least half of it at random.

        Raises:
            InvalidOption: the method has no meaning for this source.
        """


def cost_of(result: Measurement) -> float:
    """What tuners minimise: the median time in seconds, or infinity unless the measurement is ``ok``."""
    return result.time_s if result.ok and result.time_s is not None else math.inf


def _lazy(module: str, name: str) -> TunerFactory:
    """A factory that imports its module when it is called: some methods need packages that take a while."""

    def make(source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> Tuner:
        factory: TunerFactory = getattr(importlib.import_module(f"solgym.baselines.{module}"), name)
        return factory(source, seed, initial=initial)

    return make


TUNERS: dict[str, TunerFactory] = {
    "random": _lazy("random_search", "RandomSearch"),
    "exhaustive": _lazy("exhaustive", "Exhaustive"),
    "hill-climb": _lazy("hill_climb", "HillClimb"),
    "annealing": _lazy("annealing", "Annealing"),
    "evolution": _lazy("evolution", "Evolution"),
    "opentuner": _lazy("opentuner_search", "OpenTunerSearch"),
    "tpe": _lazy("tpe", "TreeParzen"),
    "greedy": _lazy("greedy", "Greedy"),
    "beam": _lazy("beam", "Beam"),
    "mcts": _lazy("mcts", "Mcts"),
}
"""Every tuner by name."""


def check_tuner(name: str, seed: int) -> None:
    """Check what ``make_tuner`` will be given.

    Raises:
        InvalidOption: there is no such tuner, or the seed is negative.
    """
    if name not in TUNERS:
        raise InvalidOption(f"there is no tuner {name!r}; choose one of: {', '.join(sorted(TUNERS))}")
    if seed < 0:
        raise InvalidOption(f"seed {seed} is negative; give 0 or more")


def make_tuner(name: str, source: ProposalSource, seed: int, initial: Sequence[Candidate] = ()) -> Tuner:
    """Make a tuner by its name; raises as ``check_tuner`` does, and as ``TunerFactory`` says."""
    check_tuner(name, seed)
    return TUNERS[name](source, seed, initial=initial)
