"""Random legal schedules over all kernels, dtypes and ragged shapes, against the reference.

Any number by ``python -m solgym.envs.kernel_dsl.fuzz``. The shares below add up to what CI must try.
"""

import pytest

from solgym.envs.kernel_dsl.fuzz import Failure, draw, fuzz, reduce
from solgym.envs.kernel_dsl.primitives import PRIMITIVES
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.hardware.measurement import Measurement, Status
from tests.envs.kernel_dsl.running import target

SHARES = 10
PER_SHARE = 150


@pytest.mark.parametrize("share", range(SHARES))
def test_random_legal_schedules_are_right(share: int) -> None:
    threads = 2 if share == 0 else 1
    report = fuzz(PER_SHARE, seed=1_000_000 + share * PER_SHARE, target=target(threads))
    assert not report.failures, [(f.seed, f.measurement.error) for f in report.failures]
    assert not report.without_reason
    assert report.statuses["ok"] + report.statuses["unstable"] >= 0.95 * PER_SHARE
    assert sum(report.refusals.values()) > 0


def test_the_fuzzer_reaches_every_primitive() -> None:
    report = fuzz(0, target=target())
    seen: set[str] = set()
    for seed in range(400):
        _, schedule = draw(seed, target(), report)
        seen.update(str(step["op"]) for step in schedule.steps)
    assert seen == set(PRIMITIVES) - {"bind"}, "all but what a CPU does not have"
    assert "bind" in report.refusals


def test_a_failure_is_reduced_to_the_steps_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a bug: every schedule that vectorises is called wrong."""
    chosen = target()

    def evaluate(schedule: Schedule, *_: object, **__: object) -> Measurement:
        guilty = any(step["op"] == "vectorize" for step in schedule.steps)
        return Measurement.failed(Status.WRONG_RESULT if guilty else Status.CRASHED, "stand-in")

    seed = next(n for n in range(1000) if any(s["op"] == "vectorize" for s in draw(n, chosen)[1].steps[3:]))
    task, schedule = draw(seed, chosen)
    monkeypatch.setattr(chosen, "evaluate", evaluate, raising=False)
    reduced = reduce(Failure(seed, schedule, evaluate(schedule)), task, chosen)
    assert [step["op"] for step in reduced.steps] == ["vectorize"]
