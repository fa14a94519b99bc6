import os
import platform
from pathlib import Path

import pytest

from solgym import __version__
from solgym.errors import InvalidOption
from solgym.hardware import fingerprint
from solgym.hardware.fingerprint import Cache, calibration_fingerprint, device_fingerprint, host_device
from solgym.hardware.jit import toolchain_fingerprint


def test_the_fingerprint_holds_device_threads_toolchain_and_version() -> None:
    text = calibration_fingerprint(1)
    assert device_fingerprint() in text
    assert toolchain_fingerprint() in text
    assert f"solgym-{__version__}" in text
    assert "threads-1" in text
    assert calibration_fingerprint() == calibration_fingerprint(host_device().cores)


def test_more_threads_than_cores_are_refused() -> None:
    for threads in (0, host_device().cores + 1):
        with pytest.raises(InvalidOption, match="physical cores"):
            calibration_fingerprint(threads)


@pytest.mark.parametrize(("text", "size"), [("48K", 49152), ("32M", 33554432), ("1G", 1 << 30), ("512", 512)])
def test_sizes_as_sysfs_writes_them(text: str, size: int) -> None:
    assert fingerprint.parse_size(text) == size


def _machine(root: Path, cpus: int, smt: int, l3_cpus: int) -> None:
    """A made-up /sys/devices/system/cpu: hyperthreads are neighbours, ``l3_cpus`` CPUs share an L3."""

    def group(cpu: int, size: int) -> str:
        first = cpu // size * size
        return f"{first}-{first + size - 1}" if size > 1 else str(first)

    for cpu in range(cpus):
        topology = root / f"cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(group(cpu, smt) + "\n")
        caches = [("1", "Data", "48K", smt), ("1", "Instruction", "32K", smt), ("2", "Unified", "1024K", smt)]
        for index, (level, kind, size, shared) in enumerate([*caches, ("3", "Unified", "32768K", l3_cpus)]):
            folder = root / f"cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, value in (("level", level), ("type", kind), ("size", size)):
                (folder / name).write_text(value + "\n")
            (folder / "shared_cpu_list").write_text(group(cpu, shared) + "\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    _machine(tmp_path, cpus=8, smt=2, l3_cpus=4)
    monkeypatch.setattr(fingerprint, "SYSFS_CPUS", tmp_path)
    monkeypatch.setattr(fingerprint, "CGROUP_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


def test_hyperthreads_count_as_one_core(machine: Path) -> None:
    assert fingerprint._usable_cpus() == (0, 2, 4, 6)


def test_the_affinity_mask_limits_the_cores(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3}, raising=False)
    assert fingerprint._usable_cpus() == (1, 2)


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 4), ("150000 100000", 2), ("10000 100000", 1)])
def test_the_cpu_quota_limits_the_cores(machine: Path, quota: str, cores: int) -> None:
    (machine / "cpu.max").write_text(quota)
    assert len(fingerprint._usable_cpus()) == cores


def test_caches_know_their_size_and_how_many_there_are(machine: Path) -> None:
    assert fingerprint._caches((0, 2, 4, 6)) == (
        Cache("L1", 48 << 10, 4, False),
        Cache("L2", 1 << 20, 4, False),
        Cache("L3", 32 << 20, 2, True),
    )


def test_a_machine_that_reports_nothing_has_no_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "SYSFS_CPUS", tmp_path / "nowhere")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert fingerprint._caches((0,)) == ()
