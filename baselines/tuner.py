"""What a search method is: something that proposes candidates and is told how they did.

The runner owns measuring, budgets and records, so a tuner is a few lines and every method is compared by
the same code. A tuner must be a deterministic function of its seed and of what it was told: an interrupted
run is continued by asking the same questions again and answering them from the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from solgym.envs.proposals import ProposalSource
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

__all__ = ["TUNERS", "Tuner", "check_tuner", "make_tuner"]


@runtime_checkable
class Tuner(Protocol):
    """A search method."""

    def ask(self, count: int) -> list[Candidate]:
        """Propose up to ``count`` candidates to try next; fewer, or none, when the space is exhausted."""

    def tell(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Learn how proposals did, failures included, in the order in which they were proposed."""


def _random(source: ProposalSource, seed: int) -> Tuner:
    from solgym.baselines.random_search import RandomSearch

    return RandomSearch(source, seed)


TUNERS: dict[str, Callable[[ProposalSource, int], Tuner]] = {"random": _random}
"""Every tuner by name: a function from a source of proposals and a seed to a fresh tuner."""


def check_tuner(name: str, seed: int) -> None:
    """Check what ``make_tuner`` will be given.

    Raises:
        InvalidOption: there is no such tuner, or the seed is negative.
    """
    if name not in TUNERS:
        raise InvalidOption(f"there is no tuner {name!r}; choose one of: {', '.join(sorted(TUNERS))}")
    if seed < 0:
        raise InvalidOption(f"seed {seed} is negative; give 0 or more")


def make_tuner(name: str, source: ProposalSource, seed: int) -> Tuner:
    """Make a tuner by its name; raises as ``check_tuner`` does."""
    check_tuner(name, seed)
    return TUNERS[name](source, seed)
