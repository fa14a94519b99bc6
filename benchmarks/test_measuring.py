"""What measuring costs beyond compiling and running: per artifact, and per parallel region."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.scoreboard import QuantityRow, Report
from solgym.hardware.jit import LoadedObject, compile_object
from solgym.hardware.measurement import MeasurePolicy
from solgym.hardware.pool import WorkerPool
from solgym.hardware.target import Artifact, CpuTarget
from solgym.hardware.thread_runtime import ThreadRuntime
from tests.hardware.ir_candidates import AddTask, add_candidate

REGIONS = """
define internal void @body(ptr %context, i64 %begin, i64 %end, i64 %thread) { ret void }
define void @regions(ptr %runtime, i64 %count, i64 %threads) {
entry:
  %parallel_for = load ptr, ptr %runtime
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  call void %parallel_for(ptr @body, ptr null, i64 64, i64 %threads)
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %count
  br i1 %more, label %next, label %done
done:
  ret void
}
"""


@pytest.fixture
def target() -> Iterator[CpuTarget]:
    with CpuTarget(1, WorkerPool()) as made:
        yield made


def test_overhead_of_a_measurement(target: CpuTarget, benchmark: BenchmarkFixture, report: Report) -> None:
    """Three arrays of 256 kB, as GEMM 256 has; the calls themselves do not count."""
    task = AddTask(1 << 16)
    artifact = target.compile(add_candidate(count=task.count), task)
    assert isinstance(artifact, Artifact)
    # As many calls as are timed in any case: no batches and no search for precision.
    policy = MeasurePolicy(batch_below_s=0.0, max_repeats=11, unstable_ci=1e9, target_ci=1e9)
    target.measure(artifact, task, policy)
    overheads = []

    def once() -> None:
        started = time.perf_counter()
        measurement = target.measure(artifact, task, policy)
        total = time.perf_counter() - started
        assert measurement.time_s is not None
        calls = 1 + measurement.warmup + len(measurement.samples_s) + 1
        overheads.append(total - calls * measurement.time_s)

    benchmark.pedantic(once, rounds=60)
    benchmark.extra_info["overhead_ms"] = 1e3 * median(overheads)
    report.quantities.append(
        QuantityRow(
            name="overhead of a measurement",
            value=1e3 * median(overheads),
            unit="ms",
            limit=3,
            detail=f"median of {len(overheads)} of one artifact on three arrays of 256 kB, less its calls",
        )
    )


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_parallel_region(benchmark: BenchmarkFixture, report: Report) -> None:
    count = 1000
    with LoadedObject(compile_object(REGIONS), ("regions",)) as loaded, ThreadRuntime(2) as runtime:
        regions = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
            loaded.addresses["regions"]
        )
        benchmark(regions, runtime.pointer, count, 2)
    assert benchmark.stats is not None
    stats = benchmark.stats.stats
    report.quantities.append(
        QuantityRow(
            name="parallel region, 2 threads",
            value=1e6 * stats.min / count,
            unit="us",
            limit=2,
            detail=f"{count} empty regions in a row, the fastest of {stats.rounds} times",
        )
    )
