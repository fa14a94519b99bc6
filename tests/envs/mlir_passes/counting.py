"""Numbers that count the operations done on them, for plain definitions of programs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class Counter:
    """How many floating-point operations its numbers have done."""

    def __init__(self) -> None:
        self.operations = 0

    def array(self, values: np.ndarray) -> np.ndarray:
        """The same values as counting numbers."""
        result = np.empty(values.shape, dtype=object)
        for index in np.ndindex(values.shape):
            result[index] = Counted(self, float(values[index]))
        return result


class Counted:
    """A floating-point number; sums with a known 0 and products with a known 0 or 1 cost nothing."""

    def __init__(self, counter: Counter, value: float) -> None:
        self.counter, self.value = counter, value

    def _done(self, value: float) -> Counted:
        self.counter.operations += 1
        return Counted(self.counter, value)

    def __float__(self) -> float:
        return self.value

    def __neg__(self) -> Counted:
        # A sign costs nothing: it turns a sum into a difference.
        return Counted(self.counter, -self.value)

    def __add__(self, other: Any) -> Any:
        return self if _is_known(other, 0) else self._done(self.value + float(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self if _is_known(other, 0) else self._done(self.value - float(other))

    def __rsub__(self, other: Any) -> Any:
        return -self if _is_known(other, 0) else self._done(float(other) - self.value)

    def __mul__(self, other: Any) -> Any:
        if _is_known(other, 0):
            return 0
        return self if _is_known(other, 1) else self._done(self.value * float(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self if _is_known(other, 1) else self._done(self.value / float(other))

    def root(self) -> Counted:
        return self._done(math.sqrt(self.value))


def _is_known(number: Any, value: int) -> bool:
    return not isinstance(number, Counted) and number == value


def values(array: np.ndarray) -> np.ndarray:
    """The values of an array of counting numbers."""
    return array.astype(np.float64)
