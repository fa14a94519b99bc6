"""When to stop a search before its budget is spent, by what the speed of light leaves to win.

A search near the speed of light has little to gain from another measurement; one far from it may have more.
The rule here stops at once near the bound, and elsewhere when too many measurements in a row brought nothing,
where "too many" grows with the distance to the bound. It reads times alone, so what it would have done can be
told from any recorded run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from solgym.errors import InvalidOption
from solgym.hardware.speed_of_light import sol_fraction

__all__ = ["DEFAULT_RULE", "Guide", "GuidedRule", "stopping_point"]


def _require(condition: bool, name: str, value: float, expected: str) -> None:
    if not condition:
        raise InvalidOption(f"{name} of a guided budget is {value!r}; it must be {expected}")


@dataclass(frozen=True)
class GuidedRule:
    """The constants of the rule.

    Attributes:
        stop_at: the fraction of the speed of light that ends a search at once, in (0, 1].
        patience: measurements in a row without a gain after which a search at the speed of light would end.
        patience_per_e_fold: how many more it may take for each factor of e between the best time and the
            speed of light.
        least_gain: by which part the best time must fall to count as a gain, in [0, 1); timing noise should
            not buy measurements.

    Raises:
        InvalidOption: one of them lies outside its range.
    """

    stop_at: float = 0.95
    patience: int = 60
    patience_per_e_fold: float = 80.0
    least_gain: float = 0.01

    def __post_init__(self) -> None:
        _require(0 < self.stop_at <= 1, "stop_at", self.stop_at, "a fraction in (0, 1]")
        _require(self.patience >= 1, "patience", self.patience, "at least 1")
        growth = self.patience_per_e_fold
        _require(0 <= growth < math.inf, "patience_per_e_fold", growth, "a finite number, at least 0")
        _require(0 <= self.least_gain < 1, "least_gain", self.least_gain, "a part in [0, 1)")

    def patience_at(self, fraction: float) -> int:
        """How many measurements without a gain are borne at a fraction of the speed of light above 0."""
        headroom = max(0.0, -math.log(fraction))
        return self.patience + round(self.patience_per_e_fold * headroom)


DEFAULT_RULE = GuidedRule()
"""What ``solgym tune --guided`` follows. ``benchmarks/guided_budgets.py`` chose the two kinds of patience."""


class Guide:
    """The rule at work on one search.

    While no candidate is correct it never stops: nothing is known of the task then.

    Args:
        sol_s: the task's speed of light in seconds.
        rule: the constants.
    """

    def __init__(self, sol_s: float, rule: GuidedRule = DEFAULT_RULE) -> None:
        self._sol_s = sol_s
        self._rule = rule
        self._gained_s: float | None = None
        self._best_s: float | None = None
        self._without_gain = 0

    def tell(self, best_s: float | None) -> None:
        """One more measurement was made, and the best time of all is now this; None if none is ``ok``."""
        self._best_s = best_s
        if best_s is None:
            return
        if self._gained_s is None or best_s < self._gained_s * (1 - self._rule.least_gain):
            self._gained_s, self._without_gain = best_s, 0
        else:
            self._without_gain += 1

    @property
    def reason(self) -> str | None:
        """Why the search should stop now, or None if it should go on."""
        if self._best_s is None:
            return None
        fraction = sol_fraction(self._best_s, self._sol_s)
        if fraction >= self._rule.stop_at:
            return f"{fraction:.0%} of the speed of light are reached"
        if self._without_gain >= self._rule.patience_at(fraction):
            return (
                f"{self._without_gain} measurements in a row brought less than {self._rule.least_gain:.0%}, "
                f"at {fraction:.0%} of the speed of light"
            )
        return None


def stopping_point(best_s: Iterable[float | None], sol_s: float, rule: GuidedRule = DEFAULT_RULE) -> int:
    """After how many measurements a recorded search would have stopped.

    Args:
        best_s: the best time after each measurement, in seconds, None while none is ``ok``.
        sol_s: the task's speed of light in seconds.
        rule: the constants.

    Returns:
        The number of measurements; that of all if the rule would not have stopped it.
    """
    guide, count = Guide(sol_s, rule), 0
    for best in best_s:
        count += 1
        guide.tell(best)
        if guide.reason is not None:
            break
    return count
