"""OpenTuner (Ansel et al. 2014) as a tuner: a bandit over evolution, mutation and simplex methods.

It needs the packages of ``pip install 'solgym[tuners]'``, which are imported when a search begins.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from solgym.baselines.proposing import VectorTuner
from solgym.envs.proposals import ProposalSource
from solgym.envs.spaces import Vector
from solgym.errors import InvalidOption
from solgym.hardware.target import Candidate

if TYPE_CHECKING:
    from solgym.baselines.opentuner_engine import Engine, Request

__all__ = ["OpenTunerSearch"]

MAX_ANSWERS: Final = 16
"""So many requests in a row that are answered at once, or missing, and a random candidate is proposed."""


class OpenTunerSearch(VectorTuner):
    """Proposes what OpenTuner asks for, as far as it is valid and new.

    Whatever else it asks for is answered at once: what is not valid has failed, and what was measured before
    costs what it did then. Where OpenTuner asks for nothing new for a while, a random candidate is proposed
    and OpenTuner learns of it. In a space of actions the first ``RANDOM_FIRST`` are of that kind.
    """

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        super().__init__(source, seed, initial=initial)
        self._engine = _engine(self._space.sizes, self._space.ordered, seed)
        self._requests: dict[str, list[Request]] = {}

    def _suggest(self) -> Vector | None:
        if self._begins_at_random:
            return None
        for _ in range(MAX_ANSWERS):
            asked = self._engine.ask()
            if asked is None:
                continue
            request, vector = asked
            candidate = self._space.candidate(vector)
            if candidate is None:
                self._engine.tell(request, math.inf)
            elif candidate.digest in self._costs:
                self._engine.tell(request, self._costs[candidate.digest])
            else:
                self._requests.setdefault(candidate.digest, []).append(request)
                if candidate.digest not in self._proposed:
                    return vector
        return None

    def _learn(self, vector: Vector, cost: float) -> None:
        candidate = self._space.candidate(vector)
        assert candidate is not None
        requests = self._requests.pop(candidate.digest, [])
        if not requests:
            request = self._engine.ask_for(vector)
            requests = [] if request is None else [request]
        for request in requests:
            self._engine.tell(request, cost)


def _engine(sizes: Sequence[int], ordered: Sequence[bool], seed: int) -> Engine:
    # OpenTuner replaces the standard library's formatter when it is imported.
    formatter = logging.Formatter
    try:
        with warnings.catch_warnings():
            # SQLAlchemy warns that OpenTuner will not work with its version 2.
            warnings.simplefilter("ignore")
            from solgym.baselines.opentuner_engine import Engine
    except ImportError as error:
        raise InvalidOption(
            f"the tuner opentuner needs packages that are not installed ({error}); "
            "install them: pip install 'solgym[tuners]'"
        ) from error
    finally:
        logging.Formatter = formatter  # type: ignore[misc]
    return Engine(sizes, ordered, seed)
