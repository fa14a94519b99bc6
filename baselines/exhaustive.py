"""Exhaustive search: every candidate of a space that can be listed, in its order. It misses nothing."""

from __future__ import annotations

from collections.abc import Sequence

from solgym.baselines.proposing import ProposingTuner
from solgym.envs.proposals import ProposalSource
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

__all__ = ["Exhaustive"]


class Exhaustive(ProposingTuner):
    """Proposes everything that a source lists.

    Raises:
        InvalidOption: the source cannot be listed, as episodes.
    """

    def __init__(self, source: ProposalSource, seed: int, *, initial: Sequence[Candidate] = ()) -> None:
        super().__init__(source, seed, initial=initial)
        listed = source.enumerate()
        if listed is None:
            raise InvalidOption(
                "exhaustive search needs a space that can be listed, which episodes are not; choose another "
                "tuner, or for kernels mode knobs"
            )
        self._listed = listed

    def tell(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Ignore how proposals did."""

    def _next(self) -> Candidate | None:
        return next((c for c in self._listed if c.digest not in self._proposed), None)
