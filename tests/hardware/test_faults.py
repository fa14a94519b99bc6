"""Candidates that misbehave: each gets its status and a reason, and the target goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from solgym.hardware.measurement import Measurement, MeasurePolicy, Status
from solgym.hardware.pool import WorkerPool
from solgym.hardware.target import Artifact, CpuTarget
from tests.hardware.ir_candidates import ROW, AddTask, IrCandidate, add_candidate

# With two threads on a busy machine every sample may be disturbed, and a right candidate then is unstable.
RIGHT = (Status.OK, Status.UNSTABLE)

QUICK = MeasurePolicy(timeout_s=0.5, max_seconds=0.05, unstable_ci=1e9)

THREADS = [1, 2]


@pytest.fixture(scope="module", params=THREADS, ids=["serial", "two_threads"])
def target(request: pytest.FixtureRequest) -> Iterator[CpuTarget]:
    with CpuTarget(request.param, WorkerPool(workers=1, threads=request.param)) as made:
        yield made


def outcome(
    target: CpuTarget, candidate: IrCandidate, task: AddTask | None = None, **policy: object
) -> Measurement:
    """Measure a candidate, then show that the target still measures a good one."""
    task = task or AddTask()
    rules = replace(QUICK, **policy)  # type: ignore[arg-type]
    measurement = target.evaluate(candidate, task, rules)
    good = target.evaluate(
        add_candidate(count=task.count, dtype=task.dtype, threads=target.threads), task, QUICK
    )
    assert good.status in RIGHT, good
    return measurement


def test_a_correct_candidate_is_accepted(target: CpuTarget) -> None:
    for count in (ROW, 1, 7, 1023):
        task = AddTask(count)
        measurement = target.evaluate(add_candidate(count=count, threads=target.threads), task, QUICK)
        assert measurement.status in RIGHT, measurement
        assert measurement.clock == ("thread_cpu" if target.threads == 1 else "wall")
        assert measurement.max_error is not None
        assert measurement.max_error < 1


def test_a_correct_candidate_is_accepted_in_double_precision(target: CpuTarget) -> None:
    task = AddTask(513, "f64")
    candidate = add_candidate(count=513, dtype="f64", threads=target.threads)
    assert target.evaluate(candidate, task, QUICK).status in RIGHT


def test_null_pointer(target: CpuTarget) -> None:
    measurement = outcome(target, add_candidate(threads=target.threads, before="store float 0.0, ptr null\n"))
    assert measurement.status is Status.CRASHED
    assert measurement.error is not None
    assert "SIGSEGV" in measurement.error
    assert "null" in measurement.error
    assert measurement.time_s is None


def test_a_crash_on_a_helper_thread(target: CpuTarget) -> None:
    crash = "%p = inttoptr i64 12345678 to ptr\n store i64 %thread, ptr %p\n"
    measurement = outcome(target, add_candidate(threads=target.threads, in_chunk=crash))
    assert measurement.status is Status.CRASHED
    assert "far from every buffer" in str(measurement.error)


def test_an_illegal_instruction(target: CpuTarget) -> None:
    trap = add_candidate(
        threads=target.threads, declarations="declare void @llvm.trap()\n", before="call void @llvm.trap()\n"
    )
    measurement = outcome(target, trap)
    assert measurement.status is Status.CRASHED
    assert "SIGILL" in str(measurement.error)


@pytest.mark.parametrize("where", ["before", "in_chunk"])
def test_an_endless_loop_is_a_timeout(target: CpuTarget, where: str) -> None:
    ir = "br label %spin\nspin:\nbr label %spin\nnever:\n"
    measurement = outcome(target, add_candidate(threads=target.threads, **{where: ir}), timeout_s=0.2)  # type: ignore[arg-type]
    assert measurement.status is Status.TIMEOUT
    assert "0.2 s" in str(measurement.error)


def test_a_candidate_many_times_slower_than_the_baseline_is_stopped(target: CpuTarget) -> None:
    endless = "br label %spin\nspin:\nbr label %spin\nnever:\n"
    slow = add_candidate(threads=target.threads, before=endless)
    measurement = outcome(target, slow, timeout_s=1000.0, baseline_s=0.01, slow_factor=8.0)
    assert measurement.status is Status.TIMEOUT
    assert measurement.error == (
        "too slow: the first run was stopped after 0.08 s of CPU time, 8 times the baseline's 0.01 s"
    )


def test_time_in_which_others_have_the_core_is_not_slowness(target: CpuTarget) -> None:
    sleepy = add_candidate(
        threads=target.threads,
        declarations="declare i32 @usleep(i32)\n",
        before="%slept = call i32 @usleep(i32 150000)\n",
    )
    measurement = outcome(target, sleepy, timeout_s=10.0, baseline_s=1e-3, batch_below_s=0.0)
    assert measurement.status in RIGHT
    assert outcome(target, sleepy, timeout_s=0.1, baseline_s=1e-3).status is Status.TIMEOUT


def test_recursion_without_end_crashes(target: CpuTarget) -> None:
    declarations = """
    define internal i64 @dig(i64 %n) noinline {
      %hole = alloca [512 x i64]
      %first = getelementptr [512 x i64], ptr %hole, i64 0, i64 %n
      store volatile i64 %n, ptr %first
      %deeper = call i64 @dig(i64 %n)
      %back = load volatile i64, ptr %first
      %sum = add i64 %deeper, %back
      ret i64 %sum
    }
    """
    candidate = add_candidate(
        threads=target.threads, declarations=declarations, before="%ignored = call i64 @dig(i64 1)\n"
    )
    assert outcome(target, candidate).status is Status.CRASHED


@pytest.mark.parametrize(
    ("element", "words"),
    [(ROW, "past the end of buffer 'C'"), (ROW + 5000, "past the end of buffer 'C'"), (-5000, "buffer")],
)
def test_a_store_beyond_an_array_hits_a_guard_page(target: CpuTarget, element: int, words: str) -> None:
    ir = f"\n%q = getelementptr float, ptr %c, i64 {element}\nstore float 1.0, ptr %q\n"
    measurement = outcome(target, add_candidate(threads=target.threads, after=ir))
    assert measurement.status is Status.CRASHED
    assert words in str(measurement.error)


@pytest.mark.parametrize("element", [1001, 1007, -1])
def test_a_store_just_beyond_an_array_is_found_by_the_canary(target: CpuTarget, element: int) -> None:
    """1001 floats end 28 bytes before the guard page: elements 1001 to 1007 are within the alignment."""
    ir = f"\n%q = getelementptr float, ptr %c, i64 {element}\nstore float 1.0, ptr %q\n"
    candidate = add_candidate(count=1001, threads=target.threads, after=ir)
    measurement = outcome(target, candidate, AddTask(1001))
    assert measurement.status is Status.WRONG_RESULT
    assert "wrote outside its buffer: next to 'C'" in str(measurement.error)


def test_a_load_just_beyond_an_array_shows_in_the_result(target: CpuTarget) -> None:
    ir = """
    %q = getelementptr float, ptr %a, i64 1003
    %v = load float, ptr %q
    %last = getelementptr float, ptr %c, i64 1000
    store float %v, ptr %last
    """
    candidate = add_candidate(count=1001, threads=target.threads, after=ir)
    assert outcome(target, candidate, AddTask(1001)).status is Status.WRONG_RESULT


@pytest.mark.parametrize(("offset", "status"), [(128, Status.CRASHED), (-1, Status.WRONG_RESULT)])
def test_a_store_beyond_the_workspace(target: CpuTarget, offset: int, status: Status) -> None:
    ir = f"%w = getelementptr i8, ptr %workspace, i64 {offset}\nstore i8 0, ptr %w\n"
    measurement = outcome(target, add_candidate(threads=target.threads, workspace_bytes=128, before=ir))
    assert measurement.status is status
    assert "'workspace'" in str(measurement.error)


def test_each_thread_has_its_workspace(target: CpuTarget) -> None:
    """The last byte of the last thread's share may be written, the one after it may not."""
    size = 64 + target.threads * 128
    for offset, expected in ((size - 1, RIGHT), (size, (Status.CRASHED,))):
        ir = f"%w = getelementptr i8, ptr %workspace, i64 {offset}\nstore i8 0, ptr %w\n"
        candidate = add_candidate(
            threads=target.threads, workspace_bytes=64, thread_workspace_bytes=128, before=ir
        )
        assert outcome(target, candidate).status in expected


def test_a_workspace_is_poisoned(target: CpuTarget) -> None:
    ir = "\n%v = load float, ptr %workspace\nstore float %v, ptr %c\n"
    measurement = outcome(target, add_candidate(threads=target.threads, workspace_bytes=64, after=ir))
    assert measurement.status is Status.WRONG_RESULT
    assert "memory that never was" in str(measurement.error)


@pytest.mark.parametrize("value", ["0x7FF8000000000000", "0x7FF0000000000000", "0xFFF0000000000000"])
def test_nan_and_infinity_fail(target: CpuTarget, value: str) -> None:
    candidate = add_candidate(threads=target.threads, after=f"\nstore float {value}, ptr %c\n")
    measurement = outcome(target, candidate)
    assert measurement.status is Status.WRONG_RESULT
    assert measurement.max_error == np.inf


@pytest.mark.parametrize("done", [ROW - 1, ROW // 2, 0])
def test_elements_left_unwritten(target: CpuTarget, done: int) -> None:
    """Also the candidate that returns too early, having done part of the work or none."""
    measurement = outcome(target, add_candidate(done=done, threads=target.threads))
    assert measurement.status is Status.WRONG_RESULT
    assert f"{ROW - done} of {ROW} elements were never written" in str(measurement.error)
    assert f"first is at [{done}]" in str(measurement.error)


def test_a_wrong_value_is_named(target: CpuTarget) -> None:
    ir = "\n%q = getelementptr float, ptr %c, i64 17\nstore float 1000.0, ptr %q\n"
    measurement = outcome(target, add_candidate(threads=target.threads, after=ir))
    assert measurement.status is Status.WRONG_RESULT
    assert "1 of 1024 elements are wrong; the first at [17] is 1000, expected" in str(measurement.error)


def test_modified_inputs(target: CpuTarget) -> None:
    ir = "\n%q = getelementptr float, ptr %b, i64 3\nstore float 1000.0, ptr %q\n"
    measurement = outcome(target, add_candidate(threads=target.threads, after=ir))
    assert measurement.status is Status.WRONG_RESULT
    assert "modified its input 'B', first at [3]" in str(measurement.error)


# A counter in the module: its first call is the checked one in the child, and again the first in the worker.
_COUNTER = "@calls = internal global i64 0\n"
_COUNT = "%n = load i64, ptr @calls\n%m = add i64 %n, 1\nstore i64 %m, ptr @calls\n"


def late_fault(threads: int, fault: str, calls: int) -> IrCandidate:
    """A candidate that is good for ``calls`` calls in one process."""
    branch = f"%late = icmp uge i64 %n, {calls}\nbr i1 %late, label %bad, label %good\n"
    return add_candidate(
        threads=threads, declarations=_COUNTER, before=f"{_COUNT}{branch}bad:\n{fault}\ngood:\n"
    )


@pytest.mark.parametrize("calls", [1, 4])
def test_correct_only_at_first(target: CpuTarget, calls: int) -> None:
    measurement = outcome(target, late_fault(target.threads, "ret void", calls))
    assert measurement.status is Status.WRONG_RESULT
    assert "right in its first run, wrong after" in str(measurement.error)


def test_a_crash_while_timed(target: CpuTarget) -> None:
    measurement = outcome(target, late_fault(target.threads, "store float 0.0, ptr null\nbr label %good", 3))
    assert measurement.status is Status.CRASHED
    assert "SIGSEGV while timed" in str(measurement.error)


def test_an_endless_loop_while_timed(target: CpuTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("solgym.hardware.measuring.GRACE_S", 0.2)
    measurement = outcome(target, late_fault(target.threads, "br label %bad", 3), timeout_s=0.2)
    assert measurement.status is Status.TIMEOUT
    assert "while timed" in str(measurement.error)


def test_inputs_modified_while_timed(target: CpuTarget) -> None:
    measurement = outcome(target, late_fault(target.threads, "store float 1000.0, ptr %b\nbr label %good", 3))
    assert measurement.status is Status.WRONG_RESULT
    assert "while timed, the candidate modified its input 'B'" in str(measurement.error)


@pytest.mark.parametrize("calls", [0, 3])
def test_exit_is_not_success(target: CpuTarget, calls: int) -> None:
    candidate = late_fault(target.threads, "call void @exit(i32 0)\nunreachable", calls)
    with_exit = replace(candidate, ir="declare void @exit(i32)\n" + candidate.ir)
    measurement = outcome(target, with_exit)
    assert measurement.status is Status.RUNTIME_ERROR
    assert "ended its process" in str(measurement.error)
    assert "exit status 0" in str(measurement.error)


@pytest.mark.parametrize("calls", [0, 3])
def test_abort_is_named(target: CpuTarget, calls: int) -> None:
    candidate = late_fault(target.threads, "call void @abort()\nunreachable", calls)
    measurement = outcome(target, replace(candidate, ir="declare void @abort()\n" + candidate.ir))
    assert measurement.status is Status.CRASHED
    assert "SIGABRT" in str(measurement.error)


def test_last_words_are_kept(target: CpuTarget) -> None:
    text = "the lathe is on fire"
    declarations = (
        f'@words = internal constant [{len(text)} x i8] c"{text}"\ndeclare i64 @write(i32, ptr, i64)\n'
    )
    say = f"%said = call i64 @write(i32 2, ptr @words, i64 {len(text)})\nstore float 0.0, ptr null\n"
    measurement = outcome(
        target, add_candidate(threads=target.threads, declarations=declarations, before=say)
    )
    assert measurement.status is Status.CRASHED
    assert text in str(measurement.error)


def test_a_killed_process_is_a_runtime_error(target: CpuTarget) -> None:
    """As the system does when memory runs out."""
    declarations = "declare i32 @getpid()\ndeclare i32 @kill(i32, i32)\n"
    before = "%me = call i32 @getpid()\n%ignored = call i32 @kill(i32 %me, i32 9)\n"
    measurement = outcome(
        target, add_candidate(threads=target.threads, declarations=declarations, before=before)
    )
    assert measurement.status is Status.RUNTIME_ERROR
    assert "memory ran out" in str(measurement.error)


def test_a_workspace_that_is_too_large(target: CpuTarget) -> None:
    measurement = outcome(
        target, add_candidate(threads=target.threads, workspace_bytes=1 << 20), memory_bytes=1 << 20
    )
    assert measurement.status is Status.RUNTIME_ERROR
    assert "out of memory" in str(measurement.error)


@pytest.mark.parametrize("calls", [0, 3])
def test_memory_that_a_candidate_asks_for_is_capped(target: CpuTarget, calls: int) -> None:
    """malloc refuses, and the candidate, which does not look, stores through a null pointer."""
    fault = "%p = call ptr @malloc(i64 1073741824)\nstore volatile float 0.0, ptr %p\nbr label %good"
    candidate = late_fault(target.threads, fault, calls)
    hungry = replace(candidate, ir="declare ptr @malloc(i64)\n" + candidate.ir)
    assert outcome(target, hungry, memory_bytes=256 << 20).status is Status.CRASHED


def test_a_damaged_artifact(target: CpuTarget) -> None:
    artifact = target.compile(add_candidate(threads=target.threads), AddTask())
    assert isinstance(artifact, Artifact)
    damaged = replace(artifact, code=artifact.code[:200], digest="damaged")
    measurement = target.measure(damaged, AddTask(), QUICK)
    assert measurement.status is Status.RUNTIME_ERROR
    assert "cannot be linked" in str(measurement.error)
    assert target.measure(artifact, AddTask(), QUICK).status in RIGHT


def test_an_unknown_symbol(target: CpuTarget) -> None:
    candidate = add_candidate(
        threads=target.threads,
        declarations="declare void @no_such_function()\n",
        before="call void @no_such_function()\n",
    )
    measurement = outcome(target, candidate)
    assert measurement.status is Status.RUNTIME_ERROR
    assert "no_such_function" in str(measurement.error)


def test_trivial_kernels_are_rejected(target: CpuTarget) -> None:
    """Zeros, a constant and copies of an input, as kernels of one ``memset`` or ``memcpy``."""
    declarations = (
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n"
    )
    size = 4 * ROW
    for trivial in (
        f"call void @llvm.memset.p0.i64(ptr %c, i8 0, i64 {size}, i1 false)",
        f"call void @llvm.memset.p0.i64(ptr %c, i8 63, i64 {size}, i1 false)",  # about 0.747 everywhere
        f"call void @llvm.memcpy.p0.p0.i64(ptr %c, ptr %a, i64 {size}, i1 false)",
        f"call void @llvm.memcpy.p0.p0.i64(ptr %c, ptr %b, i64 {size}, i1 false)",
    ):
        candidate = add_candidate(threads=target.threads, declarations=declarations, after=f"\n{trivial}\n")
        assert outcome(target, candidate).status is Status.WRONG_RESULT


def test_faster_than_light_keeps_its_times(target: CpuTarget) -> None:
    candidate = add_candidate(threads=target.threads)
    measurement = target.evaluate(candidate, AddTask(), QUICK, sol_time_s=1.0)
    assert measurement.status is Status.FASTER_THAN_LIGHT
    assert measurement.time_s is not None
    assert measurement.samples_s
    assert "speed of light" in str(measurement.error)
    assert not measurement.ok
