"""How much a run may spend, in measurements and in seconds.

Methods are only comparable under equal budgets, so a budget is part of a run's record. Compiling, checking
and timing candidates count; calibrating the machine, measuring the baseline and re-timing the finalists
do not, as every method needs them alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from solgym.errors import InvalidOption

__all__ = ["Budget"]


@dataclass(frozen=True)
class Budget:
    """An upper limit for one run; whichever part is used up first ends it.

    Attributes:
        measurements: the number of candidates that may be tried, failed ones included; None is no limit.
        seconds: wall-clock seconds that may be spent on trying them, summed over interruptions; None is
            no limit.
        guided: whether the search may end before, as ``solgym.baselines.guided_budget`` says.

    Raises:
        InvalidOption: neither part is given, or one is not positive and finite.
    """

    measurements: int | None = None
    seconds: float | None = None
    guided: bool = False

    def __post_init__(self) -> None:
        if self.measurements is None and self.seconds is None:
            raise InvalidOption("a budget needs a number of measurements, a number of seconds, or both")
        if self.measurements is not None and self.measurements < 1:
            raise InvalidOption(
                f"a budget of {self.measurements} measurements tries nothing; give at least 1"
            )
        if self.seconds is not None and not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise InvalidOption(f"a budget of {self.seconds} seconds is not a positive, finite time")

    def exhausted(self, measurements: int, seconds: float) -> bool:
        """Whether a run that has spent this much must stop."""
        return (self.measurements is not None and measurements >= self.measurements) or (
            self.seconds is not None and seconds >= self.seconds
        )

    def fraction_spent(self, measurements: int, seconds: float) -> float:
        """How much of the budget is gone, between 0 and 1, by the part that is nearer to its end."""
        parts = []
        if self.measurements is not None:
            parts.append(measurements / self.measurements)
        if self.seconds is not None:
            parts.append(seconds / self.seconds)
        return min(1.0, max(parts))

    def __str__(self) -> str:
        parts = []
        if self.measurements is not None:
            parts.append(f"{self.measurements} measurements")
        if self.seconds is not None:
            parts.append(f"{self.seconds:g} s")
        return " or ".join(parts) + (", guided" if self.guided else "")
