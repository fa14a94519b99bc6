"""Random search: uniform proposals without replacement. The method that every other one must beat.

What it proposes depends on its seed and on how many proposals were asked for, never on how they did.
"""

from __future__ import annotations

from collections.abc import Sequence

from solgym.baselines.proposing import ProposingTuner
from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

__all__ = ["RandomSearch"]


class RandomSearch(ProposingTuner):
    """Draws candidates from a source until each has been proposed once."""

    def tell(self, results: Sequence[tuple[Candidate, Measurement]]) -> None:
        """Ignore how proposals did; that is what makes it the baseline."""

    def _next(self) -> Candidate | None:
        return self._unseen()
