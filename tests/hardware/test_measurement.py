"""Measurements and policies as data."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from solgym.errors import InvalidOption, InvalidTrace
from solgym.hardware.measurement import SLOW_FLOOR_S, Measurement, MeasurePolicy, Status, tied


def timed(low: float, median: float, high: float, status: Status = Status.OK) -> Measurement:
    return Measurement(status, (low, median, high), median, low, low, high, warmup=2, max_error=0.25)


FAILED = Measurement.failed(Status.CRASHED, "SIGSEGV in its first run", compile_s=0.5, artifact_digest="ab")


@pytest.mark.parametrize(
    "measurement", [timed(1.0, 2.0, 3.0), FAILED, timed(1e-9, 2e-9, 3e-9, Status.UNSTABLE)]
)
def test_json_gives_back_an_equal_measurement(measurement: Measurement) -> None:
    text = json.dumps(measurement.to_json(), allow_nan=False)
    assert Measurement.from_json(json.loads(text)) == measurement
    assert pickle.loads(pickle.dumps(measurement)) == measurement


def test_only_ok_is_ok() -> None:
    for status in Status:
        if status in (Status.OK, Status.UNSTABLE, Status.FASTER_THAN_LIGHT):
            assert timed(1.0, 2.0, 3.0, status).ok == (status is Status.OK)
        else:
            assert not Measurement.failed(status, "why").ok


def test_an_infinite_error_survives_json() -> None:
    wrong = Measurement.failed(Status.WRONG_RESULT, "NaN", max_error=float("inf"))
    assert Measurement.from_json(json.loads(json.dumps(wrong.to_json(), allow_nan=False))) == wrong


def test_overlapping_intervals_tie() -> None:
    assert tied(timed(1.0, 2.0, 3.0), timed(2.5, 3.5, 4.0))
    assert tied(timed(1.0, 2.0, 5.0), timed(2.5, 3.5, 4.0))
    assert tied(timed(1.0, 2.0, 3.0), timed(3.0, 3.5, 4.0))
    assert not tied(timed(1.0, 2.0, 2.4), timed(2.5, 3.5, 4.0))
    assert not tied(timed(2.5, 3.5, 4.0), timed(1.0, 2.0, 2.4))
    with pytest.raises(InvalidOption, match="crashed"):
        tied(timed(1.0, 2.0, 3.0), FAILED)


def test_spread_is_the_longer_arm_of_the_interval() -> None:
    assert timed(1.8, 2.0, 2.1).spread == pytest.approx(0.1)
    assert FAILED.spread is None


@pytest.mark.parametrize("time_s", [0.0, -1.0, float("inf"), float("nan"), None])
def test_impossible_times_are_refused(time_s: Any) -> None:
    with pytest.raises(InvalidOption, match="positive"):
        Measurement(Status.OK, (1.0,), time_s, 1.0, 1.0, 1.0)


def test_a_failure_has_no_times() -> None:
    with pytest.raises(InvalidOption, match="no times"):
        Measurement(Status.CRASHED, (1.0,), 1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "damage",
    [
        {"status": "excellent"},
        {"samples_s": ["a"]},
        {"samples_s": None},
        {"time_s": "1"},
        {"warmup": -1},
        {"clock": "sundial"},
        {"error": 3},
        {"surprise": 1},
        {"time_s": None},
        {"max_error": True},
    ],
)
def test_damaged_json_gives_one_clear_sentence(damage: dict[str, Any]) -> None:
    with pytest.raises(InvalidTrace, match="a measurement"):
        Measurement.from_json(timed(1.0, 2.0, 3.0).to_json() | damage)


@pytest.mark.parametrize(
    "settings",
    [
        {"warmup": 0},
        {"min_repeats": 0},
        {"min_repeats": 2},
        {"max_repeats": 5},
        {"target_ci": 0.0},
        {"target_ci": 0.5},
        {"max_seconds": 0.0},
        {"timeout_s": -1.0},
        {"slow_factor": 1.0},
        {"baseline_s": 0.0},
        {"memory_bytes": 0},
        {"recycle_after": 0},
        {"sol_floor": 2.0},
        {"batch_below_s": -1.0},
        {"slow_repeats": 0},
    ],
)
def test_impossible_policies_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="measuring policy"):
        MeasurePolicy(**settings)


def test_the_limit_for_slow_candidates_follows_the_baseline_above_a_floor() -> None:
    assert MeasurePolicy().slow_s is None
    assert MeasurePolicy(baseline_s=2.0, slow_factor=5.0).slow_s == 10.0
    assert MeasurePolicy(baseline_s=1e-6).slow_s == SLOW_FLOOR_S
