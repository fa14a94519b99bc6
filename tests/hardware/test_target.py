"""The CPU target: compiling, remembering, measuring, and saying what it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from solgym.errors import ClosedEnvironment, IllegalSchedule, InvalidOption, UnsupportedTarget
from solgym.hardware.jit import host_cpu
from solgym.hardware.measurement import MeasurePolicy, Status
from solgym.hardware.pool import WorkerPool
from solgym.hardware.target import (
    Artifact,
    Candidate,
    CompilationFailed,
    CpuTarget,
    Failure,
    LoweredKernel,
    TargetSpec,
    cpu_spec,
    interleaved,
    parse_target,
)
from solgym.hardware.task import Task
from tests.hardware.ir_candidates import AddTask, IrCandidate, add_candidate

QUICK = MeasurePolicy(max_seconds=0.02, unstable_ci=1e9)


@pytest.fixture
def target() -> Iterator[CpuTarget]:
    with CpuTarget(1, WorkerPool()) as made:
        yield made


@dataclass(frozen=True)
class Counting:
    """A candidate that counts how often it is lowered."""

    inner: IrCandidate
    calls: list[str] = field(default_factory=list)
    refusal: str | None = None

    @property
    def digest(self) -> str:
        return self.inner.digest

    def lower(self, task: Task, target: TargetSpec) -> LoweredKernel:
        self.calls.append(task.id)
        if self.refusal:
            raise IllegalSchedule(self.refusal)
        return self.inner.lower(task, target)


def test_test_candidates_follow_the_protocol() -> None:
    assert isinstance(add_candidate(), Candidate)
    assert isinstance(AddTask(), Task)


def test_compiling_is_pure(target: CpuTarget) -> None:
    with CpuTarget() as other:
        first, second = target.compile(add_candidate(), AddTask()), other.compile(add_candidate(), AddTask())
    assert isinstance(first, Artifact)
    assert isinstance(second, Artifact)
    assert (first.code, first.digest, first.toolchain) == (second.code, second.digest, second.toolchain)
    assert first.compile_s > 0


def test_the_digest_covers_the_layout(target: CpuTarget) -> None:
    candidates = [
        add_candidate(),
        replace(add_candidate(), workspace_bytes=64),
        replace(add_candidate(), thread_workspace_bytes=64),
    ]
    artifacts = [target.compile(candidate, AddTask()) for candidate in candidates]
    assert len({artifact.digest for artifact in artifacts if isinstance(artifact, Artifact)}) == 3


def test_artifacts_are_remembered_by_candidate_and_task(target: CpuTarget) -> None:
    candidate = Counting(add_candidate())
    first = target.compile(candidate, AddTask())
    again = target.compile(candidate, AddTask())
    assert candidate.calls == ["add/f32/n1024"]
    assert isinstance(first, Artifact)
    assert again == replace(first, compile_s=0.0)
    target.compile(candidate, AddTask(name="sum"))
    assert candidate.calls == ["add/f32/n1024", "sum/f32/n1024"]


def test_a_refused_candidate_is_illegal(target: CpuTarget) -> None:
    candidate = Counting(add_candidate(), refusal="loop i is parallel; only serial loops unroll")
    failure = target.compile(candidate, AddTask())
    assert isinstance(failure, Failure)
    measurement = target.evaluate(candidate, AddTask(), QUICK)
    assert measurement.status is Status.ILLEGAL
    assert measurement.error == "loop i is parallel; only serial loops unroll"


def test_a_compiler_that_ran_out_of_time_is_asked_again(target: CpuTarget) -> None:
    @dataclass(frozen=True)
    class Late(Counting):
        def lower(self, task: Task, target: TargetSpec) -> LoweredKernel:
            if not self.calls:
                self.calls.append(task.id)
                raise CompilationFailed(Status.TIMEOUT, "the machine was busy")
            return super().lower(task, target)

    candidate = Late(add_candidate())
    first = target.compile(candidate, AddTask())
    assert isinstance(first, Failure)
    assert first.status is Status.TIMEOUT
    assert isinstance(target.compile(candidate, AddTask()), Artifact)


@pytest.mark.parametrize("ir", ["this is not LLVM IR", "define void @kernel(ptr %a) { ret i32 0 }"])
def test_code_that_llvm_rejects_is_a_compile_error(target: CpuTarget, ir: str) -> None:
    measurement = target.evaluate(IrCandidate(ir), AddTask(), QUICK)
    assert measurement.status is Status.COMPILE_ERROR
    assert "LLVM rejected" in str(measurement.error)


def test_a_missing_entry_is_a_runtime_error(target: CpuTarget) -> None:
    measurement = target.evaluate(replace(add_candidate(), entry="main"), AddTask(), QUICK)
    assert measurement.status is Status.RUNTIME_ERROR
    assert "'main'" in str(measurement.error)


def test_a_measurement_carries_its_statistics(target: CpuTarget) -> None:
    measurement = target.evaluate(add_candidate(), AddTask(), replace(QUICK, max_seconds=5.0))
    assert measurement.ok
    assert len(measurement.samples_s) >= 11
    assert measurement.min_s == min(measurement.samples_s)
    assert measurement.time_s in measurement.samples_s
    assert measurement.ci_low_s is not None
    assert measurement.ci_high_s is not None
    assert measurement.time_s is not None
    assert measurement.min_s <= measurement.ci_low_s <= measurement.time_s <= measurement.ci_high_s
    assert measurement.warmup >= 2
    assert measurement.clock == "thread_cpu"
    artifact = target.compile(add_candidate(), AddTask())
    assert isinstance(artifact, Artifact)
    assert measurement.artifact_digest == artifact.digest


def test_a_wide_interval_is_unstable_and_keeps_its_times(
    target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    from solgym.hardware.timing import Interval

    monkeypatch.setattr("solgym.hardware.measuring.median_interval", lambda samples: Interval(1.0, 0.7, 1.1))
    measurement = target.evaluate(add_candidate(), AddTask(), replace(QUICK, unstable_ci=0.2))
    assert measurement.status is Status.UNSTABLE
    assert measurement.samples_s
    assert "30%" in str(measurement.error)


def test_flushed_caches(target: CpuTarget) -> None:
    assert target.evaluate(add_candidate(), AddTask(), replace(QUICK, flush_cache=True)).ok


def test_the_seed_draws_the_inputs(target: CpuTarget) -> None:
    """A kernel that is right on the inputs of one seed only."""
    first = AddTask().reference(AddTask().make_inputs(0))[0][0]
    constant = f"\n%x = fptrunc double {first:.17e} to float\nstore float %x, ptr %c\n"
    candidate = add_candidate(after=constant)
    assert target.evaluate(candidate, AddTask(), QUICK, seed=0).ok
    assert target.evaluate(candidate, AddTask(), QUICK, seed=1).status is Status.WRONG_RESULT


def test_interleaved_timing_of_finalists(target: CpuTarget) -> None:
    task = AddTask(4096)
    good = target.compile(add_candidate(count=4096), task)
    other = target.compile(add_candidate(count=4096, declarations="@tag = global i64 1\n"), task)
    wrong = target.compile(add_candidate(count=4096, done=4000), task)
    crash = target.compile(add_candidate(count=4096, before="store float 0.0, ptr null\n"), task)
    artifacts = [made for made in (good, wrong, other, crash, good) if isinstance(made, Artifact)]
    assert len(artifacts) == 5
    measurements = interleaved(target, artifacts, task, QUICK)
    assert [m.status for m in measurements] == ["ok", "wrong_result", "ok", "crashed", "ok"]
    assert [m.artifact_digest for m in measurements] == [artifact.digest for artifact in artifacts]
    assert interleaved(target, [], task, QUICK) == []


def test_a_finalist_that_ends_the_worker_takes_nobody_along(target: CpuTarget) -> None:
    late = (
        "%n = load i64, ptr @calls\n%m = add i64 %n, 1\nstore i64 %m, ptr @calls\n"
        "%late = icmp uge i64 %n, 3\nbr i1 %late, label %bad, label %good\n"
        "bad:\nstore float 0.0, ptr null\nbr label %good\ngood:\n"
    )
    bad = add_candidate(declarations="@calls = internal global i64 0\n", before=late)
    artifacts = [target.compile(candidate, AddTask()) for candidate in (add_candidate(), bad)]
    measurements = interleaved(target, [a for a in artifacts if isinstance(a, Artifact)], AddTask(), QUICK)
    assert [m.status for m in measurements] == ["ok", "crashed"]


def test_finalists_with_different_workspaces(target: CpuTarget) -> None:
    """The worker's scratch memory grows for the largest before anybody is given its address."""
    made = []
    for size in (64, 8 << 20, 4096):
        touch = f"%w = getelementptr i8, ptr %workspace, i64 {size - 1}\nstore i8 0, ptr %w\n"
        made.append(target.compile(add_candidate(workspace_bytes=size, before=touch), AddTask()))
    measurements = interleaved(target, [m for m in made if isinstance(m, Artifact)], AddTask(), QUICK)
    assert [m.status for m in measurements] == ["ok", "ok", "ok"]


def test_the_spec_describes_the_host() -> None:
    spec = cpu_spec(threads=2)
    assert (spec.name, spec.threads, spec.vector_bits) == ("cpu", 2, host_cpu().vector_bits)
    assert {"serial", "unrolled", "vector", "parallel"} == spec.loop_kinds
    assert {"global", "packed", "register"} == spec.scopes
    assert spec.vector_registers in (16, 32)
    assert list(spec.cache_sizes) == sorted(spec.cache_sizes)
    assert parse_target("cpu", 2) == spec
    assert CpuTarget(2).spec == spec


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "opencl", "opencl:0", "recorded:space.json"])
def test_targets_of_later_releases_say_so(name: str) -> None:
    with pytest.raises(UnsupportedTarget, match="later release"):
        parse_target(name)


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(InvalidOption, match="choose 'cpu'"):
        parse_target("abacus")


def test_misuse_is_refused() -> None:
    with pytest.raises(InvalidOption, match="threads"):
        CpuTarget(0)
    with WorkerPool(threads=2) as pool, pytest.raises(InvalidOption, match="equal"):
        CpuTarget(1, pool)
    target = CpuTarget()
    target.close()
    target.close()
    with pytest.raises(ClosedEnvironment):
        target.evaluate(add_candidate(), AddTask(), QUICK)


def test_fingerprints_tell_threads_apart() -> None:
    assert CpuTarget(1).fingerprint == CpuTarget(1).fingerprint
    assert CpuTarget(1).fingerprint != CpuTarget(2).fingerprint
