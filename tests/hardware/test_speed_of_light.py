import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solgym.errors import InvalidOption, InvalidProfile
from solgym.hardware.profile import Streams, load_profile
from solgym.hardware.speed_of_light import (
    gap_closed,
    has_headroom,
    sol_fraction,
    speed_of_light,
    speedup,
    transfer_time_s,
)
from solgym.hardware.task import Work
from tests.hardware.synthetic_profile import KIB, MIB, synthetic_profile

CALL_S = 1e-9
REGION_S = 1e-6
SIZES = st.integers(min_value=0, max_value=1 << 34)


def test_compute_binds_above_the_ridge_point() -> None:
    bound = speed_of_light(Work("f32", 10**9, 8 * KIB, 8 * KIB), synthetic_profile())
    assert bound.binding == "compute"
    assert bound.time_s == pytest.approx(1e9 / 100e9 + CALL_S)
    assert bound.level == "L1"
    assert bound.ridge_point == pytest.approx(100 / 400)
    assert bound.arithmetic_intensity == pytest.approx(1e9 / (16 * KIB))
    assert bound.arithmetic_intensity > bound.ridge_point


def test_memory_binds_below_the_ridge_point() -> None:
    bound = speed_of_light(Work("f32", 1000, 256 * KIB, 256 * KIB), synthetic_profile())
    assert bound.binding == bound.level == "L2"
    # Of 512 KiB, 32 KiB may stay in L1, so the rest crosses to L2.
    assert bound.time_s == pytest.approx(480 * KIB / 200e9 + CALL_S)
    assert set(bound.terms) == {"compute", "L2", "launch"}


def test_a_working_set_just_beyond_a_cache_is_charged_for_what_does_not_fit() -> None:
    profile = synthetic_profile()
    inside = speed_of_light(Work("f32", 0, MIB, 0), profile)
    beyond = speed_of_light(Work("f32", 0, MIB + 64 * KIB, 0), profile)
    assert inside.level == "L2"
    assert beyond.time_s == pytest.approx((MIB + 32 * KIB) / 200e9 + CALL_S)
    far = speed_of_light(Work("f32", 0, 64 * MIB, 0), profile)
    assert far.level == "DRAM"
    assert far.time_s == pytest.approx((64 * MIB - MIB - 32 * KIB) / 20e9 + CALL_S)
    assert far.cached_bytes == MIB + 32 * KIB


def test_flushed_caches_charge_reads_to_the_last_level() -> None:
    work = Work("f32", 0, 8 * KIB, 8 * KIB)
    warm, cold = (speed_of_light(work, synthetic_profile(), flushed=flushed) for flushed in (False, True))
    assert warm.level == "L1"
    assert cold.level == "DRAM"
    assert cold.time_s == pytest.approx(8 * KIB / 20e9 + CALL_S)


def test_several_threads_pay_for_a_parallel_region_or_do_without() -> None:
    profile = synthetic_profile()
    large = speed_of_light(Work("f32", 10**9, 0, 0), profile, threads=2)
    assert large.threads == 2
    assert large.time_s == pytest.approx(1e9 / 200e9 + CALL_S + REGION_S)
    small = speed_of_light(Work("f32", 1000, 0, 0), profile, threads=2)
    assert small.threads == 1
    assert small.time_s == pytest.approx(1000 / 100e9 + CALL_S)


def test_a_calibrated_curve_takes_the_place_of_level_sizes() -> None:
    def point(size: int, level: str, rate: float) -> dict[str, object]:
        rates = {f"{kind}_bytes_per_s": rate for kind in ("read", "copy", "add", "write")}
        return {"working_set_bytes": size, "level": level, **rates}

    curve = [point(16 * KIB, "L1", 400e9), point(64 * KIB, "L2", 150e9), point(2 * MIB, "DRAM", 25e9)]
    profile = synthetic_profile(bandwidth_curve={"1": curve, "all": curve})
    for size, rate in ((KIB, 400e9), (63 * KIB, 400e9), (64 * KIB, 150e9), (MIB, 150e9), (8 * MIB, 25e9)):
        bound = speed_of_light(Work("f32", 0, size, 0), profile)
        assert bound.time_s == pytest.approx(size / rate + CALL_S)


def test_tensor_units_bound_only_those_who_ask_for_them() -> None:
    h100, work = load_profile("h100-sxm"), Work("f64", 10**12, 10**6, 10**6)
    assert speed_of_light(work, h100).terms["compute"] == pytest.approx(1e12 / 33.5e12)
    assert speed_of_light(work, h100, unit="tensor").terms["compute"] == pytest.approx(1e12 / 66.9e12)


@given(read=SIZES, written=SIZES)
def test_a_transfer_never_beats_the_fastest_stream(read: int, written: int) -> None:
    streams = Streams(read=40e9, copy=60e9, add=55e9, write=44e9)
    time_s = transfer_time_s(streams, read, written)
    assert (read + written) / 60e9 <= time_s * (1 + 1e-9)
    # Reading and writing one after the other is always possible.
    assert time_s <= (read / 40e9 + written / 44e9) * (1 + 1e-9)


def test_a_transfer_that_is_a_measured_stream_takes_its_time() -> None:
    streams = Streams(read=40e9, copy=60e9, add=55e9, write=44e9)
    assert transfer_time_s(streams, 40e9, 0) == pytest.approx(1)
    assert transfer_time_s(streams, 30e9, 30e9) == pytest.approx(1)
    assert transfer_time_s(streams, 36e9, 18e9) == pytest.approx(54 / 55)
    assert transfer_time_s(streams, 0, 44e9) == pytest.approx(1)
    # More reads than writes: a copy of all that is written, and a read of the rest.
    two = Streams(read=40e9, copy=60e9)
    assert transfer_time_s(two, 70e9, 30e9) == pytest.approx(2 * 30 / 60 + 40 / 40)


@given(read=SIZES, written=SIZES, more=SIZES, threads=st.integers(1, 4), flushed=st.booleans())
def test_more_work_never_lowers_the_bound(
    read: int, written: int, more: int, threads: int, flushed: bool
) -> None:
    profile = synthetic_profile()
    less_s = speed_of_light(Work("f32", read, read, written), profile, threads, flushed).time_s
    more_s = speed_of_light(Work("f32", read + more, read + more, written), profile, threads, flushed).time_s
    assert more_s >= less_s * (1 - 1e-9)
    flushed_s = speed_of_light(Work("f32", read, read, written), profile, threads, True).time_s
    assert flushed_s >= less_s * (1 - 1e-9)


def test_work_of_nothing_takes_only_the_launch() -> None:
    bound = speed_of_light(Work("f32", 0, 0, 0), synthetic_profile())
    assert bound.time_s == CALL_S
    assert "launch takes longer" in bound.explain()


def test_the_explanation_names_terms_binding_intensity_and_ridge_point() -> None:
    text = speed_of_light(Work("f32", 2 * 64**3, 32 * KIB, 16 * KIB), synthetic_profile()).explain()
    for part in ("compute", "launch", "<- binds", "intensity 10.7 flop/byte", "ridge point", "100 GFLOP/s"):
        assert part in text
    assert "[" not in text  # rich would take it for markup


def test_gap_closed_is_0_at_the_baseline_and_1_at_the_speed_of_light() -> None:
    assert gap_closed(8.0, 8.0, 2.0) == 0
    assert gap_closed(2.0, 8.0, 2.0) == pytest.approx(1)
    assert gap_closed(4.0, 8.0, 2.0) == pytest.approx(0.5)
    assert gap_closed(16.0, 8.0, 2.0) == pytest.approx(-0.5)
    assert gap_closed(1.0, 8.0, 2.0) == pytest.approx(1.5)  # nothing is clamped in silence


@given(st.lists(st.floats(1e-9, 1e3), min_size=2, max_size=6))
def test_gains_in_gap_closed_add_up(times: list[float]) -> None:
    steps = [gap_closed(b, 4.0, 1.0) - gap_closed(a, 4.0, 1.0) for a, b in pairwise(times)]
    assert sum(steps) == pytest.approx(
        gap_closed(times[-1], 4.0, 1.0) - gap_closed(times[0], 4.0, 1.0), abs=1e-9
    )


def test_a_baseline_at_the_speed_of_light_has_no_headroom_and_a_finite_score() -> None:
    assert not has_headroom(1.04, 1.0)
    assert has_headroom(1.05, 1.0)
    for baseline_s in (0.9, 1.0, 1.04):
        assert math.isfinite(gap_closed(0.95, baseline_s, 1.0))
    assert gap_closed(1.0, 1.05, 1.0) == pytest.approx(1)


def test_fraction_and_speedup() -> None:
    assert sol_fraction(4.0, 1.0) == 0.25
    assert speedup(2.0, 8.0) == 4


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_times_that_cannot_be_are_refused(bad: float) -> None:
    for call in (
        lambda: gap_closed(bad, 2.0, 1.0),
        lambda: gap_closed(1.0, bad, 1.0),
        lambda: has_headroom(1.0, bad),
        lambda: sol_fraction(bad, 1.0),
        lambda: speedup(1.0, bad),
    ):
        with pytest.raises(InvalidOption, match="positive, finite"):
            call()


def test_a_profile_that_bounds_nothing_is_refused_with_the_reason() -> None:
    """Moving data that stays in a cache whose bandwidth no datasheet gives."""
    with pytest.raises(InvalidProfile, match="no bandwidth for"):
        speed_of_light(Work("f32", 0, 1 << 16, 1 << 16), load_profile("h100-sxm"))
