"""Calibration: what its parts compute from made-up timings, and one real calibration of this machine."""

import math
import struct
from itertools import pairwise

import numpy as np
import pytest

from solgym.hardware import cache_levels, kernel_timing
from solgym.hardware.cache_levels import Level, SweepPoint, SweepSize
from solgym.hardware.fingerprint import calibration_fingerprint, check_threads, host_device
from solgym.hardware.jit import host_cpu
from solgym.hardware.kernel_timing import Kernel, Load, Pass, WorkingMemory, overlapping_rate
from solgym.hardware.microkernels import STREAMS, StreamKernel, StreamKind, fma_kernel, library_kernel
from solgym.hardware.profile import HardwareProfile, Threads, host_profile

KIB, MIB = 1 << 10, 1 << 20
LEVELS = (
    Level("L1", 32 * KIB, 2),
    Level("L2", MIB, 2),
    Level("L3", 32 * MIB, 1, shared=True),
    Level("DRAM", None, 1, shared=True),
)
TABLES: tuple[Threads, ...] = ("1", "all")
KINDS: tuple[StreamKind, ...] = ("read", "copy", "add", "write")


@pytest.fixture(scope="session")
def calibrated() -> HardwareProfile:
    """The session's one calibration: from the tests' cache folder if another test needed it before."""
    fractions: list[float] = []
    profile = host_profile(progress=lambda fraction, _: fractions.append(fraction))
    if fractions:
        assert fractions == sorted(fractions)
        assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    return profile


# What the kernels compute.


def test_the_multiply_add_kernel_runs_its_chains() -> None:
    # Every chain maps x to x/2 + 1/2: after n steps x - 1 has shrunk by 2^n. The last chain is stored last.
    memory = WorkingMemory(1 << 16)
    for dtype, code, size in (("f32", "f", 4), ("f64", "d", 8)):
        bits = host_cpu().vector_bits
        Kernel(fma_kernel(dtype, bits, chains=3, unroll=2))(memory.address, 0, 5)  # type: ignore[arg-type]
        lanes = struct.unpack(f"{bits // 8 // size}{code}", _bytes(memory, bits // 8))
        assert lanes == pytest.approx([1 + (3 / 32) / 2**10] * len(lanes), rel=1e-6)


def _bytes(memory: WorkingMemory, count: int, start: int = 0) -> bytes:
    return bytes(memory._bytes[start : start + count])


@pytest.mark.parametrize("strands", [1, 4])
@pytest.mark.parametrize("nontemporal", [False, True])
def test_streams_touch_every_byte_of_their_arrays(strands: int, nontemporal: bool) -> None:
    memory = WorkingMemory(1 << 18)
    for kind in KINDS:
        memory.fill(0, memory.nbytes)
        kernel = StreamKernel(kind, host_cpu().vector_bits, strands, 4, nontemporal)
        arrays = sum(STREAMS[kind])
        nbytes = 3 * kernel.granule_bytes
        before = np.array(memory._bytes)
        Kernel(kernel.ir())(memory.address, nbytes, 2)
        after, piece = memory._bytes, nbytes // arrays
        parts = [before[i * piece : (i + 1) * piece] for i in range(arrays)]
        ones = np.frombuffer(np.ones(piece // 4, np.float32).tobytes(), np.uint8)
        expected = {
            "read": parts[0],
            "copy": parts[0],
            "add": parts[0] | parts[min(1, arrays - 1)],
            "write": ones,
        }[kind]
        assert (after[(arrays - 1) * piece : nbytes] == expected).all()
        assert (after[: (arrays - 1) * piece] == before[: (arrays - 1) * piece]).all()
        assert (after[nbytes:] == before[nbytes:]).all()


def test_library_streams_copy_and_set() -> None:
    memory = WorkingMemory(1 << 16)
    memory.fill(0, memory.nbytes)
    first = _bytes(memory, 4096)
    Kernel(library_kernel("copy"))(memory.address, 8192, 1)
    assert _bytes(memory, 4096, 4096) == first
    Kernel(library_kernel("write"))(memory.address, 8192, 1)
    assert _bytes(memory, 8192) == b"\1" * 8192
    with pytest.raises(ValueError, match="no function"):
        library_kernel("add")


def test_memory_is_not_zeros() -> None:
    memory = WorkingMemory(1 << 16)
    memory.fill(0, memory.nbytes)
    assert len(set(_bytes(memory, 4096))) > 100


def test_pieces_of_a_load_cover_it() -> None:
    load = Load(Kernel(library_kernel("write")), 0, 130 * MIB, 130.0 * MIB, granule_bytes=4096)
    pieces = load.pieces()
    assert len(pieces) == 4
    assert all(piece.nbytes % 4096 == 0 for piece in pieces)
    assert all(near.address + near.nbytes == far.address for near, far in pairwise(pieces))
    assert sum(piece.work for piece in pieces) == pytest.approx(load.work, rel=1e-3)


# Rates of all threads from logs of passes.


def test_threads_that_overlap_add_up() -> None:
    one = [Pass(t, t + 1.0, 1.0, 10.0) for t in (0.0, 1.0, 2.0, 3.0)]
    other = [Pass(t + 0.5, t + 1.5, 1.0, 20.0) for t in (0.0, 1.0, 2.0, 3.0)]
    assert overlapping_rate([one, other]) == pytest.approx(30)


def test_interrupted_passes_do_not_count() -> None:
    one = [Pass(t, t + 1.0, 1.0, 10.0) for t in (0.0, 1.0, 2.0)]
    # The other thread lost its core for the first two passes and crept.
    other = [Pass(0.0, 1.0, 0.2, 2.0), Pass(1.0, 2.0, 0.2, 2.0), Pass(2.0, 3.0, 1.0, 10.0)]
    assert overlapping_rate([one, other]) == pytest.approx(20)
    assert overlapping_rate([one, other[:2]]) is None


def test_threads_that_take_turns_do_not_add_up() -> None:
    assert overlapping_rate([[Pass(0.0, 1.0, 1.0, 10.0)], [Pass(2.0, 3.0, 1.0, 10.0)]]) is None


# Cache levels and the sweep.


def _sweep_of(*levels: tuple[float, float]) -> list[tuple[int, float]]:
    """A coarse read sweep on made-up levels of (size, rate): the rate of the first that holds a size."""
    sizes = cache_levels.coarse_sizes(512 * MIB)
    return [(size, next(rate for limit, rate in levels if size <= limit)) for size in sizes]


def test_reported_sizes_that_the_sweep_confirms_are_kept() -> None:
    sweep = _sweep_of((32 * KIB, 500.0), (MIB, 200.0), (32 * MIB, 100.0), (math.inf, 40.0))
    levels, remark = cache_levels.reconcile(LEVELS, sweep)
    assert levels == LEVELS
    assert "confirmed" in remark


def test_a_last_cache_that_a_virtual_machine_misreports_is_corrected() -> None:
    sweep = _sweep_of((32 * KIB, 500.0), (MIB, 200.0), (32 * MIB, 100.0), (math.inf, 40.0))
    odd = (*LEVELS[:2], Level("L3", 384 * MIB, 1, shared=True), LEVELS[3])
    levels, remark = cache_levels.reconcile(odd, sweep)
    assert 20 * MIB <= (levels[2].size_bytes or 0) <= 32 * MIB
    assert str(384 * MIB) in remark


def test_levels_are_found_where_nothing_is_reported() -> None:
    sweep = _sweep_of((32 * KIB, 500.0), (MIB, 200.0), (32 * MIB, 100.0), (math.inf, 40.0))
    levels, _ = cache_levels.reconcile((LEVELS[-1],), sweep)
    assert [level.name for level in levels] == ["L1", "L2", "L3", "DRAM"]
    for found, true in zip(levels[:3], LEVELS[:3], strict=True):
        assert (true.size_bytes or 0) / 2.3 <= (found.size_bytes or 0) <= (true.size_bytes or 0)


@pytest.mark.parametrize("members", [1, 2])
def test_the_sweep_covers_every_level_and_what_lies_between(members: int) -> None:
    limit = cache_levels.memory_wanted(LEVELS, members, 2048 * MIB)
    sizes = cache_levels.sweep_sizes(LEVELS, members, limit)
    assert all(a.working_set_bytes < b.working_set_bytes for a, b in pairwise(sizes))
    assert sizes[-1].working_set_bytes >= 8 * 33 * MIB
    for index, level in enumerate(LEVELS):
        own = [size for size in sizes if size.level == level.name]
        assert any(size.plateau for size in own)
        assert all(s.working_set_bytes <= cache_levels.resident_bytes(LEVELS, index, members) for s in own)
    # Neighbours are close where bandwidth falls.
    ratios = [b.working_set_bytes / a.working_set_bytes for a, b in pairwise(sizes)]
    assert max(ratios) < 2.2


def _points(*rates: float, level: str = "L3", plateau: bool = True) -> list[SweepPoint]:
    return [
        SweepPoint(SweepSize(MIB << i, level, 2, plateau), dict.fromkeys(KINDS, rate))  # type: ignore[arg-type]
        for i, rate in enumerate(rates)
    ]


def test_the_envelope_never_rises_and_lies_on_or_above_the_sweep() -> None:
    points = _points(100.0, 80.0, 95.0, 60.0, 70.0)
    rates = [point.rates["read"] for point in cache_levels.envelope(points)]
    assert rates == [100.0, 95.0, 95.0, 70.0, 70.0]


def test_all_threads_in_a_virtual_machine_get_at_least_their_own_rates() -> None:
    alone = cache_levels.envelope(_points(100.0, 100.0, 40.0, 40.0))
    together = cache_levels.envelope(_points(150.0, 150.0, 150.0, 50.0))
    spread = cache_levels.spread_over_dies(together, alone, 2)
    # Each of two threads has half the working set: 8 MiB are 4 MiB for each.
    assert [point.rates["read"] for point in spread] == [200.0, 200.0, 200.0, 80.0]


def test_an_uninterrupted_rate_replaces_an_upper_limit() -> None:
    kernel = StreamKernel("read", 512)
    point = SweepPoint(SweepSize(MIB, "L3", 2, True))
    point.credit(kernel, 90.0, clean=False)
    assert point.doubtful == {"read"}
    point.credit(kernel, 50.0, clean=True)
    assert (point.rates["read"], point.doubtful) == (50.0, set())
    point.credit(kernel, 90.0, clean=False)
    point.credit(kernel, 55.0, clean=True)
    assert point.rates["read"] == 55.0


def test_the_kernel_whose_passes_are_timed_returns_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 1_000_000, 2_000_000, 5_000_000, 6_000_000, 8_000_000, 9_000_000, 12_000_000])
    monkeypatch.setattr(kernel_timing, "_cpu_time_ns", lambda: next(clock))
    memory = WorkingMemory(4096)
    load = Load(Kernel(library_kernel("write")), memory.address, 4096, 6.0)
    # One pass to find the number of trips (1 ms), then passes of 3, 2 and 3 ms.
    assert kernel_timing.best_rate(load, repeats=3, pass_s=1e-3) == pytest.approx(6.0 / 2e-3)


# This machine.


@pytest.mark.slow
def test_a_calibration_is_complete_and_consistent(calibrated: HardwareProfile) -> None:
    assert calibrated.kind == "calibrated"
    assert calibrated.fingerprint == calibration_fingerprint()
    assert calibrated.cores == check_threads(None)
    assert calibrated.vector_bits == host_cpu().vector_bits
    assert set(calibrated.peak_flops_per_s["fma"]) == {"f32", "f64"}
    assert calibrated.peak_flops("f32") > calibrated.peak_flops("f64") > 1e9
    reported = [cache.name for cache in host_device().caches]
    assert [level.name for level in calibrated.levels] == [*reported, "DRAM"] or not reported
    assert 0 < calibrated.launch_overhead_s["call"] < 1e-5
    for table in TABLES:
        curve = calibrated.bandwidth_curve[table]
        for kind in KINDS:
            rates = [getattr(point, f"{kind}_bytes_per_s") for point in curve]
            if kind != "write":
                assert rates[0] == max(rates)
            assert min(rates) > 1e8


@pytest.mark.slow
def test_a_calibration_survives_a_round_trip(calibrated: HardwareProfile) -> None:
    assert HardwareProfile.model_validate_json(calibrated.model_dump_json()) == calibrated
