"""The target that measures equal machine code once."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from solgym.hardware.measurement import Measurement, MeasurePolicy, Status
from solgym.hardware.remembering import RememberingTarget
from solgym.hardware.target import Artifact, CpuTarget
from tests.hardware.ir_candidates import AddTask

POLICY = MeasurePolicy()


def artifact(digest: str) -> Artifact:
    return Artifact(b"", "kernel", 0, 0, 1, digest, "none", 0.5)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was really measured: digests in order. One that begins with a status has it."""
    seen: list[str] = []

    def measure(self: CpuTarget, artifact: Artifact, *rest: object) -> Measurement:
        seen.append(artifact.digest)
        status = Status(artifact.digest.split("-")[0])
        if status in (Status.OK, Status.UNSTABLE, Status.FASTER_THAN_LIGHT):
            return Measurement(status, (1.0,), 1.0, 1.0, 1.0, 1.0, compile_s=artifact.compile_s)
        return Measurement.failed(status, "so", compile_s=artifact.compile_s)

    monkeypatch.setattr(CpuTarget, "measure", measure)
    return seen


def test_equal_code_is_measured_once(measured: list[str]) -> None:
    target = RememberingTarget()
    first = target.measure(artifact("ok-a"), AddTask(), POLICY, seed=1)
    again = target.measure(replace(artifact("ok-a"), compile_s=0.0), AddTask(), POLICY, seed=2)
    assert measured == ["ok-a"]
    assert again == replace(first, compile_s=0.0)
    assert target.remembered == 1


def test_another_task_policy_or_code_is_another_measurement(measured: list[str]) -> None:
    target = RememberingTarget()
    target.measure(artifact("ok-a"), AddTask())
    target.measure(artifact("ok-a"), AddTask(2048))
    target.measure(artifact("ok-a"), AddTask(), replace(POLICY, timeout_s=1.0))
    target.measure(artifact("ok-b"), AddTask())
    assert len(measured) == 4
    target.measure(artifact("ok-a"), AddTask(), POLICY)
    assert len(measured) == 4, "no policy is the usual one"


@pytest.mark.parametrize("status", list(Status))
def test_only_what_the_candidate_answers_for_is_remembered(measured: list[str], status: Status) -> None:
    target = RememberingTarget()
    for _ in range(2):
        assert target.measure(artifact(status.value), AddTask()).status is status
    passing = {
        Status.UNSTABLE,
        Status.FASTER_THAN_LIGHT,
        Status.RUNTIME_ERROR,
        Status.ILLEGAL,
        Status.COMPILE_ERROR,
    }
    assert len(measured) == (2 if status in passing else 1)


def test_what_was_not_asked_for_longest_is_forgotten(measured: list[str]) -> None:
    target = RememberingTarget(capacity=2)
    for digest in ("ok-a", "ok-b", "ok-a", "ok-c", "ok-a", "ok-b"):
        target.measure(artifact(digest), AddTask())
    assert measured == ["ok-a", "ok-b", "ok-c", "ok-b"]


def test_a_copy_remembers_nothing(measured: list[str]) -> None:
    target = RememberingTarget(capacity=7)
    target.measure(artifact("ok-a"), AddTask())
    copy = pickle.loads(pickle.dumps(target))
    copy.measure(artifact("ok-a"), AddTask())
    assert measured == ["ok-a", "ok-a"]
    assert copy.remembered == 0
    target.measure(artifact("ok-a"), AddTask())
    assert target.remembered == 1
