"""The outcome of trying a candidate once, and the policy by which it was timed.

A failed candidate is a value like any other: a ``Measurement`` with a status and a sentence. These classes
travel between targets, environments, traces and leaderboards, so they hold plain data and know nothing of
how the numbers were obtained (see ``hardware.pool`` and ``hardware.timing`` for that).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, Literal

from solgym.errors import InvalidOption, InvalidTrace

__all__ = ["SLOW_FLOOR_S", "Clock", "MeasurePolicy", "Measurement", "Status", "tied"]

Clock = Literal["thread_cpu", "wall", "device"]

CLOCKS: Final[tuple[Clock, ...]] = ("thread_cpu", "wall", "device")


class Status(str, Enum):
    """Everything that can become of a candidate.

    ``OK`` is the only success. ``UNSTABLE`` and ``FASTER_THAN_LIGHT`` keep their times, to be looked at, but
    earn nothing; every other status comes with an error text and no times.
    """

    OK = "ok"
    ILLEGAL = "illegal"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"
    FASTER_THAN_LIGHT = "faster_than_light"
    UNSTABLE = "unstable"

    def __str__(self) -> str:
        return self.value


TIMED: Final[frozenset[Status]] = frozenset({Status.OK, Status.UNSTABLE, Status.FASTER_THAN_LIGHT})
"""The statuses that carry times."""


_INFINITY: Final = "infinity"
"""How an infinite error is written, as JSON has no number for it."""


@dataclass(frozen=True)
class Measurement:
    """One trial of one candidate.

    Attributes:
        status: what became of the candidate.
        samples_s: every timed sample that was kept, in the order taken, in seconds per call.
        time_s: the median of ``samples_s``; None when the candidate was not timed.
        min_s: the smallest sample.
        ci_low_s: lower end of the 95% bootstrap interval of the median.
        ci_high_s: upper end of that interval.
        warmup: calls made before the first sample, not timed.
        clock: ``thread_cpu`` (CPU time of the calling thread), ``wall`` or ``device``.
        discarded: samples thrown away because the process lost its core while they ran.
        error: one sentence that says what went wrong, or None.
        compile_s: seconds spent to lower and compile the candidate; 0 when the artifact was cached.
        artifact_digest: hash of what was run; equal digests are equal machine code.
        max_error: largest error against the reference in units of the allowed error (at most 1 when
            accepted), or None when the outputs were not compared.
    """

    status: Status
    samples_s: tuple[float, ...] = ()
    time_s: float | None = None
    min_s: float | None = None
    ci_low_s: float | None = None
    ci_high_s: float | None = None
    warmup: int = 0
    clock: Clock = "thread_cpu"
    discarded: int = 0
    error: str | None = None
    compile_s: float = 0.0
    artifact_digest: str | None = None
    max_error: float | None = None

    def __post_init__(self) -> None:
        times = (self.time_s, self.min_s, self.ci_low_s, self.ci_high_s)
        if self.status in TIMED:
            if not self.samples_s or any(time is None or not 0 < time < math.inf for time in times):
                raise InvalidOption(
                    f"a measurement that is {self.status} needs positive, finite times; got {times}"
                )
        elif self.samples_s or any(time is not None for time in times):
            raise InvalidOption(f"a measurement that is {self.status} has no times; got {times}")

    @classmethod
    def failed(
        cls,
        status: Status,
        error: str,
        *,
        compile_s: float = 0.0,
        artifact_digest: str | None = None,
        max_error: float | None = None,
    ) -> Measurement:
        """Make the measurement of a candidate that was not timed."""
        return cls(
            status, error=error, compile_s=compile_s, artifact_digest=artifact_digest, max_error=max_error
        )

    @property
    def ok(self) -> bool:
        """Whether the candidate is correct and its time can be relied on."""
        return self.status is Status.OK

    @property
    def spread(self) -> float | None:
        """How far the interval reaches from the median, as a fraction of the median; None without times."""
        if self.time_s is None or self.ci_low_s is None or self.ci_high_s is None:
            return None
        return max(self.ci_high_s - self.time_s, self.time_s - self.ci_low_s) / self.time_s

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as plain JSON data; ``from_json`` gives back an equal one."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.max_error == math.inf:
            data["max_error"] = _INFINITY
        return data | {"status": self.status.value, "samples_s": list(self.samples_s)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Read what ``to_json`` wrote.

        Raises:
            InvalidTrace: a field is missing, unknown or of the wrong type.
        """
        names = {field.name for field in fields(cls)}
        if unknown := sorted(set(data) - names):
            raise InvalidTrace(f"a measurement has unknown fields {unknown}; expected {sorted(names)}")
        try:
            values = {name: _READERS[name](value) for name, value in data.items()}
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise InvalidTrace(
                f"a measurement cannot be read: {error}; restore the file or measure again"
            ) from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"expected a number, got {value!r}")
    return float(value)


def _optional_number(value: Any) -> float | None:
    return None if value is None else _number(value)


def _error(value: Any) -> float | None:
    return math.inf if value == _INFINITY else _optional_number(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"expected a count, got {value!r}")
    return value


def _optional_text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"expected text or null, got {value!r}")
    return value


def _clock(value: Any) -> Clock:
    if value not in CLOCKS:
        raise ValueError(f"expected a clock among {CLOCKS}, got {value!r}")
    return value  # type: ignore[no-any-return]


_READERS: Final[dict[str, Any]] = {
    "status": Status,
    "samples_s": lambda values: tuple(_number(value) for value in values),
    "time_s": _optional_number,
    "min_s": _optional_number,
    "ci_low_s": _optional_number,
    "ci_high_s": _optional_number,
    "warmup": _count,
    "clock": _clock,
    "discarded": _count,
    "error": _optional_text,
    "compile_s": _number,
    "artifact_digest": _optional_text,
    "max_error": _error,
}


def tied(first: Measurement, second: Measurement) -> bool:
    """Whether two timed candidates cannot be told apart: the intervals of their medians overlap.

    Raises:
        InvalidOption: one of them has no times.
    """
    if (
        first.ci_low_s is None
        or first.ci_high_s is None
        or second.ci_low_s is None
        or second.ci_high_s is None
    ):
        raise InvalidOption(
            f"only timed measurements can tie; these are {first.status} and {second.status}: check .ok first"
        )
    return first.ci_low_s <= second.ci_high_s and second.ci_low_s <= first.ci_high_s


SLOW_FLOOR_S: Final = 0.05
"""No call counts as slow before it has used this much CPU time, however fast the baseline is."""


@dataclass(frozen=True)
class MeasurePolicy:
    """How a candidate is checked and timed. The defaults suit an agent's steps; see docs/measuring.md.

    Attributes:
        warmup: calls before the first sample that are not timed. A candidate so slow that they alone
            would take longer than ``max_seconds`` gets one.
        min_repeats: samples taken at least, unless ``max_seconds`` runs out first.
        slow_repeats: samples taken even after ``max_seconds``, so that slow candidates have a median.
        max_repeats: samples taken at most.
        batch_below_s: a sample of a faster candidate covers several calls and lasts about twice this.
        target_ci: sampling stops when the 95% interval of the median lies within this fraction of it.
        unstable_ci: an interval wider than this fraction of the median makes the measurement unstable.
        max_seconds: wall time for warm-up and samples together.
        timeout_s: longest time that one call may take before its process is killed.
        slow_factor: a candidate whose first run uses more CPU time than this many times ``baseline_s``, and
            more than ``SLOW_FLOOR_S``, is stopped: it is a ``timeout``.
        baseline_s: the untouched candidate's time in seconds, which environments fill in; None for no such
            limit.
        memory_bytes: most memory that one candidate may add to its process, buffers included.
        recycle_after: artifacts after which a worker process is replaced.
        flush_cache: evict the task's buffers from all caches before each sample (which is then one call).
        sol_floor: a median below this fraction of the speed of light is ``faster_than_light``.
    """

    warmup: int = 2
    min_repeats: int = 11
    slow_repeats: int = 3
    max_repeats: int = 101
    batch_below_s: float = 50e-6
    target_ci: float = 0.02
    unstable_ci: float = 0.20
    max_seconds: float = 0.15
    timeout_s: float = 10.0
    slow_factor: float = 50.0
    baseline_s: float | None = None
    memory_bytes: int = 2 << 30
    recycle_after: int = 500
    flush_cache: bool = False
    sol_floor: float = 0.95

    def __post_init__(self) -> None:
        requirements = {
            "warmup must be at least 1": self.warmup >= 1,
            "slow_repeats must be at least 1": self.slow_repeats >= 1,
            "min_repeats must be at least slow_repeats": self.min_repeats >= self.slow_repeats,
            "max_repeats must be at least min_repeats": self.max_repeats >= self.min_repeats,
            "batch_below_s must not be negative": self.batch_below_s >= 0,
            "target_ci must lie between 0 and unstable_ci": 0 < self.target_ci <= self.unstable_ci,
            "max_seconds must be positive": self.max_seconds > 0,
            "timeout_s must be positive": self.timeout_s > 0,
            "slow_factor must be greater than 1": self.slow_factor > 1,
            "baseline_s must be positive": self.baseline_s is None or self.baseline_s > 0,
            "memory_bytes must be positive": self.memory_bytes > 0,
            "recycle_after must be at least 1": self.recycle_after >= 1,
            "sol_floor must lie in [0, 1]": 0 <= self.sol_floor <= 1,
        }
        for requirement, met in requirements.items():
            if not met:
                name = requirement.split(" ", 1)[0]
                raise InvalidOption(f"measuring policy: {requirement}; got {name}={getattr(self, name)}")

    @property
    def slow_s(self) -> float | None:
        """CPU time of the first run, in seconds, from which on a candidate is too slow; None for no limit."""
        return None if self.baseline_s is None else max(SLOW_FLOOR_S, self.slow_factor * self.baseline_s)
