"""How samples are taken and judged. The clock is a stand-in: nothing here depends on real time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import pytest

from solgym.hardware import timing
from solgym.hardware.measurement import Clock, MeasurePolicy
from solgym.hardware.timing import (
    Sample,
    SampleSet,
    TimerFault,
    checked_seconds,
    median_interval,
    sample_alone,
    sample_in_turns,
)


@dataclass
class FakeTimer:
    """A kernel whose calls take ``seconds`` each, varied by a pattern; only its calls advance the clock."""

    clock_s: list[float]
    seconds: float
    pattern: Sequence[float] = (1.0,)
    clock: Clock = "thread_cpu"
    disturbed: Sequence[bool] = (False,)
    taken: int = 0
    log: list[tuple[int, int]] = field(default_factory=list)

    def sample(self, calls: int, samples: int) -> list[Sample]:
        self.log.append((calls, samples))
        made = []
        for _ in range(samples):
            seconds = self.seconds * self.pattern[self.taken % len(self.pattern)]
            switches = int(self.disturbed[self.taken % len(self.disturbed)])
            self.taken += 1
            self.clock_s[0] += seconds * calls
            made.append(Sample(seconds, switches))
        return made


@pytest.fixture
def clock_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("solgym.hardware.timing.time.perf_counter", lambda: now[0])
    return now


NOISY = (1.0, 1.5, 0.7, 1.2, 0.9, 1.4, 0.6)


def nothing() -> None:
    """Nothing to do before a chunk."""


@pytest.mark.parametrize("count", [3, 5, 11, 12, 21, 40, 101])
def test_the_interval_is_the_bootstrap_interval(count: int) -> None:
    """The closed form equals what resampling approaches; with an even count it may only be wider."""
    rng = np.random.default_rng(count)
    samples = rng.lognormal(size=count)
    medians = np.median(rng.choice(samples, (40_000, count)), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975], method="inverted_cdf")
    interval = median_interval(list(samples))
    assert interval.median == pytest.approx(median(samples))
    ordered = sorted(samples)

    def rank(value: float) -> float:
        return float(np.searchsorted(ordered, value))

    # One rank either way where 2.5% falls between two ranks by less than resampling can tell.
    assert rank(interval.low) == pytest.approx(rank(low), abs=1)
    assert rank(interval.high) == pytest.approx(rank(high), abs=1)


def test_small_samples() -> None:
    assert median_interval([2.0]) == timing.Interval(2.0, 2.0, 2.0)
    assert median_interval([3.0, 1.0]) == timing.Interval(2.0, 1.0, 3.0)
    assert median_interval([3.0, 1.0, 2.0]) == timing.Interval(2.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def test_eleven_samples_by_hand() -> None:
    """P(median of a resample <= k-th smallest) = P(Bin(11, k/11) >= 6): 0.8% for k=2 and 3.1% for k=3."""
    tails = [
        sum(math.comb(11, j) * (k / 11) ** j * (1 - k / 11) ** (11 - j) for j in range(6, 12)) for k in (2, 3)
    ]
    assert tails[0] < 0.025 < tails[1]
    interval = median_interval([float(i) for i in range(1, 12)])
    assert (interval.low, interval.median, interval.high) == (3.0, 6.0, 9.0)


def test_a_steady_kernel_gets_the_fewest_repeats(clock_s: list[float]) -> None:
    timer = FakeTimer(clock_s, 1e-3)
    samples = sample_alone(timer, MeasurePolicy(), nothing)  # type: ignore[arg-type]
    assert len(samples.kept) == 11
    assert samples.warmup == 2
    assert timer.log[:2] == [(1, 1), (1, 1)]
    assert samples.calls == 1


def test_a_noisy_kernel_gets_repeats_up_to_the_cap(clock_s: list[float]) -> None:
    timer = FakeTimer(clock_s, 1e-4, NOISY)
    samples = sample_alone(timer, MeasurePolicy(max_repeats=51, max_seconds=10.0), nothing)  # type: ignore[arg-type]
    assert len(samples.kept) == 51


def test_repeats_stop_once_the_median_is_known(clock_s: list[float]) -> None:
    """Most samples agree to 1%, a few are far off: the median settles, whatever the others do."""
    timer = FakeTimer(clock_s, 1e-4, (1.0, 1.01, 0.99, 3.0, 1.0, 1.01, 0.995, 2.0))
    samples = sample_alone(timer, MeasurePolicy(max_seconds=10.0), nothing)  # type: ignore[arg-type]
    assert 11 <= len(samples.kept) < 101
    assert median_interval(samples.kept).spread <= 0.02


def test_a_fast_kernel_is_batched(clock_s: list[float]) -> None:
    policy = MeasurePolicy()
    for seconds in (1e-9, 1e-6, 20e-6, 49e-6):
        timer = FakeTimer(clock_s, seconds)
        samples = sample_alone(timer, policy, nothing)  # type: ignore[arg-type]
        assert samples.calls * seconds >= policy.batch_below_s
        assert samples.calls * seconds <= 4 * policy.batch_below_s
        assert samples.kept == [seconds] * 11
    assert sample_alone(FakeTimer(clock_s, 51e-6), policy, nothing).calls == 1  # type: ignore[arg-type]


def test_flushed_samples_are_single_calls(clock_s: list[float]) -> None:
    timer = FakeTimer(clock_s, 1e-6)
    assert sample_alone(timer, MeasurePolicy(flush_cache=True), nothing).calls == 1  # type: ignore[arg-type]


def test_time_runs_out_for_slow_kernels(clock_s: list[float]) -> None:
    policy = MeasurePolicy(max_seconds=0.15)
    slow = sample_alone(FakeTimer(clock_s, 0.02, NOISY), policy, nothing)  # type: ignore[arg-type]
    assert policy.slow_repeats <= len(slow.kept) < policy.min_repeats
    slower = sample_alone(FakeTimer(clock_s, 1.0), policy, nothing)  # type: ignore[arg-type]
    assert len(slower.kept) == policy.slow_repeats
    assert slower.warmup == 1


def test_outputs_are_poisoned_before_every_chunk(clock_s: list[float]) -> None:
    timer = FakeTimer(clock_s, 1e-4, NOISY)
    poisoned: list[int] = []
    sample_alone(timer, MeasurePolicy(max_seconds=10.0), lambda: poisoned.append(timer.taken))  # type: ignore[arg-type]
    chunks = [samples for _, samples in timer.log[2:]]
    assert len(poisoned) == len(chunks)
    assert poisoned[0] == 2


def test_disturbed_wall_clock_samples_are_thrown_away_and_counted(clock_s: list[float]) -> None:
    pattern = (1.0, 1.0, 1.0, 5.0)
    disturbed = (False, False, False, True)
    timer = FakeTimer(clock_s, 1e-3, pattern, "wall", disturbed)
    samples = sample_alone(timer, MeasurePolicy(), nothing)  # type: ignore[arg-type]
    assert set(samples.usable()) == {1e-3}
    assert samples.discarded > 0
    assert len(samples.kept) >= 11


def test_cpu_time_is_not_disturbed_by_others(clock_s: list[float]) -> None:
    timer = FakeTimer(clock_s, 1e-3, disturbed=(True,))
    samples = sample_alone(timer, MeasurePolicy(), nothing)  # type: ignore[arg-type]
    assert (len(samples.kept), samples.discarded) == (11, 0)


def test_a_busy_machine_ends_and_says_so(clock_s: list[float]) -> None:
    timer = FakeTimer(clock_s, 1e-4, clock="wall", disturbed=(True,))
    policy = MeasurePolicy(max_seconds=1e9)
    samples = sample_alone(timer, policy, nothing)  # type: ignore[arg-type]
    assert samples.too_disturbed
    assert samples.discarded == 0
    assert len(samples.usable()) >= policy.max_repeats


def test_turns_are_taken(clock_s: list[float]) -> None:
    """The machine slows down by half on the way: all kernels see it in equal shares."""
    order: list[str] = []

    @dataclass
    class Named(FakeTimer):
        name: str = ""

        def sample(self, calls: int, samples: int) -> list[Sample]:
            order.append(self.name)
            return super().sample(calls, samples)

    timers = [Named(clock_s, 1e-3, name="a"), Named(clock_s, 2e-3, name="b"), Named(clock_s, 3e-3, name="c")]
    sets = sample_in_turns(timers, MeasurePolicy(), nothing)  # type: ignore[arg-type]
    assert [len(samples.kept) for samples in sets] == [11, 11, 11]
    rounds = order[6:]  # after two warm-up calls each
    assert rounds[:6] == ["a", "a", "b", "b", "c", "c"]  # an untimed call, then a sample
    assert rounds == rounds[:6] * 11


def test_turns_end(clock_s: list[float]) -> None:
    timers = [FakeTimer(clock_s, 0.1, NOISY), FakeTimer(clock_s, 0.2, NOISY)]
    sets = sample_in_turns(timers, MeasurePolicy(max_seconds=0.1), nothing)  # type: ignore[arg-type]
    assert all(len(samples.kept) >= 3 for samples in sets)
    timers = [FakeTimer(clock_s, 1e-9, NOISY), FakeTimer(clock_s, 1e-9, NOISY)]
    sets = sample_in_turns(timers, MeasurePolicy(max_seconds=1e9), nothing)  # type: ignore[arg-type]
    assert max(len(samples.kept) for samples in sets) == 101


@pytest.mark.parametrize("seconds", [0.0, -1e-9, math.inf, math.nan])
def test_an_impossible_time_is_a_bug_of_the_timer(seconds: float) -> None:
    with pytest.raises(TimerFault, match="bug in the timer"):
        checked_seconds(seconds, "wall")


def test_chunks_keep_the_count_odd() -> None:
    samples = SampleSet(MeasurePolicy(), "thread_cpu")
    sizes = []
    while not samples.exhausted:
        size = samples.chunk(seconds_left=1.0, sample_s=1e-4)
        samples.add([Sample(1.0, 0)] * size)
        sizes.append(size)
    assert sizes == [11, *[10] * 9]
