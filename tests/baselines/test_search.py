import pytest

from solgym.baselines.budget import Budget
from solgym.baselines.random_search import RandomSearch
from solgym.baselines.search import MAX_FINALISTS, SilentListener, finalists, search, trials_of, winner
from solgym.baselines.trace import Trace
from solgym.errors import InvalidTrace
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.fakes import NumberedSource, header, number_of, record, schedule, timed

SIZE = 40


def evaluate(candidate):
    """Candidate 7 is the fastest; every fifth fails."""
    number = number_of(candidate)
    if number % 5 == 0:
        return Measurement.failed(Status.ILLEGAL, "refused")
    return timed(1e-3 + abs(number - 7) * 1e-5)


class Recorder(SilentListener):
    def __init__(self):
        self.seen = []
        self.notices = []

    def progress(self, progress):
        self.seen.append(progress)

    def notice(self, text):
        self.notices.append(text)


def run(folder, measurements, evaluate=evaluate, seed=0, listener=None, size=SIZE, clock=None):
    budget = Budget(measurements)
    with Trace.open(folder, header(seed=seed, budget_measurements=measurements)) as trace:
        extra = {} if clock is None else {"clock": clock}
        search(RandomSearch(NumberedSource(size), seed), evaluate, budget, trace, listener, **extra)
        return trace.records


def candidates(records):
    return [r.candidate for r in records]


def test_a_search_spends_its_budget_and_records_every_trial(tmp_path):
    records = run(tmp_path, 12)
    assert len(records) == 12
    assert [r.trial for r in records] == list(range(12))
    assert all(r.role == "trial" for r in records)


def test_best_so_far_is_the_running_minimum_of_trials_that_are_ok(tmp_path):
    best = None
    for item in run(tmp_path, SIZE):
        if item.result.ok:
            best = item.result.time_s if best is None else min(best, item.result.time_s)
        assert item.best_s == best
    assert best == 1e-3


def test_an_unstable_time_is_never_the_best(tmp_path):
    def unstable(candidate):
        fast = timed(1e-9)
        return Measurement(
            Status.UNSTABLE, fast.samples_s, fast.time_s, fast.min_s, fast.ci_low_s, fast.ci_high_s
        )

    assert all(r.best_s is None for r in run(tmp_path, 3, unstable))
    assert finalists(run(tmp_path, 3, unstable)) == ()


def test_a_failed_candidate_counts_towards_the_budget(tmp_path):
    listener = Recorder()
    run(tmp_path, SIZE, listener=listener)
    last = listener.seen[-1]
    assert last.trials == SIZE
    assert last.statuses == {Status.OK: 32, Status.ILLEGAL: 8}


def test_the_seconds_of_a_budget_end_a_run(tmp_path):
    ticks = iter(range(1000))
    budget = Budget(seconds=10)
    with Trace.open(tmp_path, header(budget_measurements=None, budget_seconds=10.0)) as trace:
        result = search(
            RandomSearch(NumberedSource(SIZE), 0), evaluate, budget, trace, clock=lambda: float(next(ticks))
        )
    assert result.elapsed_s == 10


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(tmp_path):
    whole = run(tmp_path / "whole", 30)
    calls = []

    def interrupted(candidate):
        if len(calls) == 11:
            raise KeyboardInterrupt
        calls.append(candidate)
        return evaluate(candidate)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", 30, interrupted)
    measured = []
    parts = run(tmp_path / "parts", 30, lambda c: measured.append(c) or evaluate(c))
    assert candidates(parts) == candidates(whole)
    assert len(measured) == 30 - 11


def test_a_finished_run_measures_nothing_more_and_a_larger_budget_goes_on(tmp_path):
    first = run(tmp_path, 10)

    def never(candidate):
        raise AssertionError

    assert run(tmp_path, 10, never) == first
    assert candidates(run(tmp_path, 15)) == candidates(run(tmp_path / "other", 15))


def test_time_spent_before_an_interruption_counts(tmp_path):
    run(tmp_path, 3, clock=iter([float(t) for t in range(100)]).__next__)
    records = run(tmp_path, 6, clock=iter([1000.0 + t for t in range(100)]).__next__)
    elapsed = [r.elapsed_s for r in records]
    assert elapsed == [1, 2, 3, 4, 5, 6]


def test_a_trace_with_another_candidate_than_the_tuners_is_refused(tmp_path):
    run(tmp_path, 5)
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    proposed = record(0).model_validate_json(lines[3])
    other = next(c for c in map(schedule, range(SIZE)) if c.to_json() != proposed.candidate)
    lines[3] = proposed.model_copy(update={"candidate": other.to_json()}).model_dump_json()
    (tmp_path / "trace.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidTrace, match="line 4: trial 2 is not what the tuner proposes"):
        run(tmp_path, 8)


def test_a_trial_with_another_number_is_refused(tmp_path):
    run(tmp_path, 5)
    lines = (tmp_path / "trace.jsonl").read_text().splitlines()
    lines[3] = record(0).model_validate_json(lines[3]).model_copy(update={"trial": 7}).model_dump_json()
    (tmp_path / "trace.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidTrace, match="line 4: trial 7 is not"):
        run(tmp_path, 8)


def test_the_winner_is_the_fastest_finalist_or_the_best_trial_if_none_was_stable():
    failed = Measurement.failed(Status.TIMEOUT, "busy").to_json()
    trials = (record(1, 1.0e-3), record(2, 2.0e-3))
    finals = (record(3, 1.3e-3, role="final"), record(4, 1.2e-3, role="final"))
    assert winner(finals, trials) == finals[1]
    assert winner((record(3, role="final", measurement=failed),), trials) == trials[0]
    assert winner((), (record(1, measurement=failed),)) is None


def test_an_exhausted_space_ends_a_run_with_a_notice(tmp_path):
    listener = Recorder()
    assert len(run(tmp_path, 100, listener=listener, size=6)) == 6
    assert "exhausted" in listener.notices[0]


def test_the_finalists_are_those_that_tie_with_the_best():
    def trial(index, time_s, spread, digest):
        return record(index, measurement=timed(time_s, spread, digest).to_json())

    records = [
        trial(0, 1.00e-3, 0.01, "a"),
        trial(1, 1.01e-3, 0.01, "b"),
        trial(2, 1.50e-3, 0.01, "c"),
        trial(3, 1.005e-3, 0.01, "a"),
        record(4, measurement=Measurement.failed(Status.CRASHED, "signal 11").to_json()),
    ]
    assert [r.index for r in finalists(records)] == [0, 1]
    many = [trial(i, 1e-3, 0.01, str(i)) for i in range(20)]
    assert len(finalists(many)) == MAX_FINALISTS
    assert finalists(records[4:]) == ()


def test_only_trials_are_trials():
    records = [record(0, role="baseline"), record(1), record(2, role="final"), record(3, role="expert")]
    assert [r.index for r in trials_of(records)] == [1]
