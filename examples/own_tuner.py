"""A tuner of one's own: coordinate search over schedule knobs, run and recorded like the built-in ones.

Run it with: python examples/own_tuner.py
"""

from solgym.baselines.budget import Budget
from solgym.baselines.proposing import VectorTuner
from solgym.baselines.runner import tune
from solgym.baselines.tuner import TUNERS
from solgym.envs.spaces import Vector
from solgym.hardware.speed_of_light import gap_closed


class CoordinateSearch(VectorTuner):
    """Tries every choice of one knob after the other, the others as in the best setting so far."""

    _best: Vector | None = None
    _best_s = float("inf")
    _turn = 0

    def _suggest(self) -> Vector:
        if self._best is None:
            return self._space.sample(self._rng)
        places = [(knob, place) for knob, size in enumerate(self._space.sizes) for place in range(size)]
        knob, place = places[self._turn % len(places)]
        self._turn += 1
        return (*self._best[:knob], place, *self._best[knob + 1 :])

    def _learn(self, vector: Vector, cost: float) -> None:
        if cost < self._best_s:
            self._best, self._best_s = vector, cost


def main() -> None:
    TUNERS["coordinates"] = CoordinateSearch
    result = tune("KernelDSL-GEMM-v0", tuner="coordinates", budget=Budget(60), out="runs/own-tuner")
    if result.best is None:
        print("no correct candidate was found; give a larger budget")
        return
    best_s = result.best.result.time_s
    print(f"best {best_s * 1e6:.0f} us after {len(result.trials)} trials")
    print(f"gap closed {gap_closed(best_s, result.baseline_s, result.bound.time_s):.3f}")


if __name__ == "__main__":
    main()
