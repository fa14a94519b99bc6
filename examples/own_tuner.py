"""A tuner of one's own: hill climbing over schedule knobs, run and recorded like the built-in ones.

Run it with: python examples/own_tuner.py
"""

from collections.abc import Sequence

import numpy as np

from solgym.baselines.budget import Budget
from solgym.baselines.runner import tune
from solgym.baselines.tuner import TUNERS
from solgym.envs.kernel_dsl.knob_source import KnobSource
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.envs.proposals import ProposalSource
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement
from solgym.hardware.speed_of_light import gap_closed


class HillClimb:
    """Tries the neighbours of the best setting in random order; restarts when none is better."""

    def __init__(self, source: ProposalSource, seed: int) -> None:
        if not isinstance(source, KnobSource):
            raise InvalidOption("hill climbing needs knobs; give mode='knobs'")
        self._space = source.space
        self._rng = np.random.default_rng(seed)
        self._pending: list[dict] = []
        self._asked: dict[str, dict] = {}
        self._best_s = float("inf")

    def ask(self, count: int) -> list[Schedule]:
        """Take the next neighbours, or a fresh start where there are none."""
        proposals = []
        for _ in range(count):
            if not self._pending:
                self._pending, self._best_s = [self._space.sample(self._rng)], float("inf")
            config = self._pending.pop()
            schedule = self._space.schedule_from(config)
            self._asked[schedule.digest] = config
            proposals.append(schedule)
        return proposals

    def tell(self, results: Sequence[tuple[Schedule, Measurement]]) -> None:
        """Move to whatever is better than everything since the last start."""
        for schedule, result in results:
            if result.ok and result.time_s < self._best_s:
                self._best_s = result.time_s
                neighbours = list(self._space.neighbours(self._asked[schedule.digest]))
                self._pending = [neighbours[i] for i in self._rng.permutation(len(neighbours))]


def main() -> None:
    TUNERS["hill-climb"] = HillClimb
    result = tune("KernelDSL-GEMM-v0", tuner="hill-climb", budget=Budget(60), out="runs/own-tuner")
    if result.best is None:
        print("no correct candidate was found; give a larger budget")
        return
    best_s = result.best.result.time_s
    print(f"best {best_s * 1e6:.0f} us after {len(result.trials)} trials")
    print(f"gap closed {gap_closed(best_s, result.baseline_s, result.bound.time_s):.3f}")


if __name__ == "__main__":
    main()
