import json
import math
import multiprocessing
import warnings
from pathlib import Path

import pytest

from solgym.errors import InvalidOption, InvalidProfile
from solgym.hardware import calibration
from solgym.hardware.fingerprint import calibration_fingerprint
from solgym.hardware.profile import (
    FEATURE_NAMES,
    HardwareProfile,
    host_profile,
    load_profile,
    profile_path,
    published_profiles,
    save_profile,
)
from solgym.hardware.profile_store import best_of
from tests.hardware.synthetic_profile import KIB, MIB, synthetic_content, synthetic_profile


@pytest.mark.parametrize("name", published_profiles())
def test_published_profiles_load_and_source_their_numbers(name: str) -> None:
    profile = load_profile(name)
    assert profile.kind == "published"
    assert "peak_flops_per_s" in profile.sources
    assert any(field.startswith("levels.DRAM") for field in profile.sources)
    assert profile.peak_flops("f32") >= profile.peak_flops("f64") > 0


def test_published_peaks_follow_from_the_datasheet() -> None:
    # Zen 5: 2 pipes x 16 lanes x 2 flops at 5.7 GHz; DDR5-5600 on 2 channels of 8 bytes.
    ryzen = load_profile("ryzen-9950x")
    assert ryzen.peak_flops("f32") == pytest.approx(2 * 16 * 2 * 5.7e9)
    assert ryzen.levels[-1].read_bytes_per_s["all"] == pytest.approx(2 * 8 * 5600e6)
    # H100 SXM5: 132 SMs x 128 lanes x 2 flops at 1.98 GHz.
    assert load_profile("h100-sxm").peak_flops("f32") == pytest.approx(132 * 128 * 2 * 1.98e9, rel=1e-3)


def test_saved_profile_loads_equal(tmp_path: Path) -> None:
    profile = synthetic_profile()
    save_profile(profile, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == profile
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.json"]


def test_unknown_name_lists_published_profiles() -> None:
    with pytest.raises(InvalidProfile, match="a100-sxm-80gb"):
        load_profile("a-machine-of-dreams")


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ({"cores": 0}, "cores"),
        ({"peak_flops_per_s": {"fma": {"f32": {"1": -1.0}}}}, "greater than"),
        ({"peak_flops_per_s": {"fma": {"f32": {"1": 1e308}}}}, "less than"),
        ({"peak_flops_per_s": {"fma": {"f32": {"1": math.nan}}}}, "peak_flops_per_s"),
        ({"launch_overhead_s": {"call": math.inf}}, "launch_overhead_s"),
        ({"peak_flops_per_s": {}}, "at least one number"),
        ({"peak_flops_per_s": {"fma": {"f32": {"1": 2e9, "all": 1e9}}}}, "below the one for 1 thread"),
        ({"levels": []}, "levels"),
        ({"levels": synthetic_content()["levels"][:2]}, "exactly the last"),
        ({"levels": synthetic_content()["levels"][1::-1] + synthetic_content()["levels"][2:]}, "nearest"),
        ({"sources": {}}, "sources"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_contradictory_profiles_are_refused_in_one_sentence(
    tmp_path: Path, damage: dict[str, object], complaint: str
) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(synthetic_content(**damage)))
    with pytest.raises(InvalidProfile, match=complaint) as caught:
        load_profile(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe\x00", b'{"name": "x"}'])
def test_damaged_files_are_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    with pytest.raises(InvalidProfile) as caught:
        load_profile(path)
    assert "\n" not in str(caught.value)


def test_a_missing_peak_names_those_there_are() -> None:
    with pytest.raises(InvalidOption, match="fma/f32"):
        synthetic_profile().peak_flops("f16")
    with pytest.raises(InvalidOption, match="at least 1"):
        synthetic_profile().peak_flops("f32", threads=0)


def test_rates_between_one_and_all_threads_grow_no_faster_than_threads() -> None:
    profile = synthetic_profile(cores=8, peak_flops_per_s={"fma": {"f32": {"1": 100e9, "all": 300e9}}})
    assert [profile.peak_flops("f32", threads=n) for n in (1, 2, 3, 4, 8, 16)] == [
        100e9, 200e9, 300e9, 300e9, 300e9, 300e9,
    ]  # fmt: skip


def test_the_level_is_the_nearest_that_holds_the_working_set() -> None:
    profile = synthetic_profile()
    assert profile.level_for(32 * KIB).name == "L1"
    assert profile.level_for(32 * KIB + 1).name == "L2"
    # Victim caches do not hold again what nearer ones hold.
    assert profile.level_for(MIB + 32 * KIB).name == "L2"
    assert profile.level_for(MIB + 32 * KIB + 1).name == "DRAM"
    # Two threads have two private caches.
    assert profile.level_for(64 * KIB, threads=2).name == "L1"


def test_features_have_fixed_names_and_finite_values() -> None:
    for profile in (synthetic_profile(), *map(load_profile, published_profiles())):
        features = profile.features()
        assert tuple(name for name, _ in features) == FEATURE_NAMES
        assert all(math.isfinite(value) for _, value in features)
    assert dict(synthetic_profile().features())["log10_peak_f32_flops_per_s_1"] == 11.0


def test_a_profile_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        synthetic_profile().cores = 4


class _Calibrations:
    """Stands in for the calibration: counts calls and gives a synthetic profile."""

    def __init__(self) -> None:
        self.calls = 0
        self.peak = 100e9

    def __call__(self, threads: int | None = None, progress: object = None) -> HardwareProfile:
        self.calls += 1
        return synthetic_profile(
            kind="calibrated",
            fingerprint=calibration_fingerprint(threads),
            peak_flops_per_s={"fma": {"f32": {"1": self.peak, "all": 2 * self.peak}}},
        )


@pytest.fixture
def calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Calibrations:
    fake = _Calibrations()
    monkeypatch.setenv("SOLGYM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(calibration, "calibrate", fake)
    return fake


def test_the_host_is_calibrated_once_and_then_cached(calibrations: _Calibrations, tmp_path: Path) -> None:
    first = host_profile()
    assert profile_path().is_relative_to(tmp_path)
    assert profile_path().is_file()
    assert host_profile() == first
    assert calibrations.calls == 1


def test_refresh_calibrates_again_and_keeps_the_better_figure(calibrations: _Calibrations) -> None:
    host_profile()
    calibrations.peak = 120e9
    assert host_profile(refresh=True).peak_flops("f32") == 120e9
    calibrations.peak = 90e9
    assert host_profile(refresh=True).peak_flops("f32") == 120e9
    assert calibrations.calls == 3


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": 3}'])
def test_a_damaged_cache_is_replaced_with_a_warning(calibrations: _Calibrations, content: str) -> None:
    profile_path().parent.mkdir(parents=True)
    profile_path().write_text(content)
    with pytest.warns(RuntimeWarning, match="calibrating again"):
        profile = host_profile()
    assert calibrations.calls == 1
    assert load_profile(profile_path()) == profile


def test_a_profile_of_another_device_or_version_is_not_used(calibrations: _Calibrations) -> None:
    save_profile(synthetic_profile(kind="calibrated", fingerprint="another machine"), profile_path())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert host_profile().fingerprint == calibration_fingerprint()
    assert calibrations.calls == 1


def test_a_cache_that_cannot_be_written_is_only_a_warning(
    calibrations: _Calibrations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    monkeypatch.setenv("SOLGYM_CACHE_DIR", str(blocker))
    with pytest.warns(RuntimeWarning, match="SOLGYM_CACHE_DIR"):
        assert host_profile().kind == "calibrated"
    assert calibrations.calls == 1
    # This process at least knows it: an environment that asks next must not calibrate again.
    host_profile()
    assert calibrations.calls == 1


def _ask(folder: str, log: str) -> None:
    """In another process: ask for the profile with a calibration that takes a moment and leaves a trace."""
    import os
    import time

    os.environ["SOLGYM_CACHE_DIR"] = folder
    fake = _Calibrations()

    def slow(threads: int | None = None, progress: object = None) -> HardwareProfile:
        with open(log, "a", encoding="utf-8") as file:
            file.write("calibrated\n")
        time.sleep(0.3)
        return fake(threads)

    calibration.calibrate = slow
    host_profile()


def test_processes_that_ask_at_once_calibrate_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_ask, args=(str(tmp_path), str(log))) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert log.read_text().splitlines() == ["calibrated"]


def test_best_of_ignores_calibrations_that_do_not_match() -> None:
    new, other = synthetic_profile(fingerprint="a"), synthetic_profile(fingerprint="b")
    assert best_of(new, other) is new
    same = synthetic_profile(fingerprint="a", launch_overhead_s={"call": 5e-10, "parallel_region": 2e-6})
    assert best_of(new, same).launch_overhead_s == {"call": 5e-10, "parallel_region": 1e-6}
