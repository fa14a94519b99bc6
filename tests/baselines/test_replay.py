from solgym.baselines.replay import best_record, holds
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.fakes import record, timed

FAILED = Measurement.failed(Status.WRONG_RESULT, "wrong")


def test_a_time_holds_within_the_tolerance_or_if_the_intervals_overlap():
    assert holds(timed(1.00e-3), timed(1.04e-3), tolerance=0.05)
    assert not holds(timed(1.00e-3), timed(1.10e-3), tolerance=0.05)
    assert holds(timed(1.00e-3, 0.06), timed(1.10e-3, 0.06), tolerance=0.05)


def test_a_faster_time_holds_and_a_failure_does_not():
    assert holds(timed(1e-3), timed(0.5e-3))
    assert not holds(timed(1e-3), FAILED)


def test_the_best_record_is_the_fastest_finalist_though_a_trial_was_luckier():
    records = (
        record(0, 5e-3, role="baseline", trial=None),
        record(1, 1.0e-3, trial=0),
        record(2, 1.1e-3, trial=1),
        record(3, 1.2e-3, role="final", trial=0),
        record(4, 1.1e-3, role="final", trial=1),
        record(5, 0.9e-3, role="expert", trial=None),
    )
    assert best_record(records) == records[4]
    # After more trials the finalists are out of date.
    later = (*records, record(6, 1.05e-3, trial=2))
    assert best_record(later) == records[1]


def test_without_a_correct_trial_there_is_no_best():
    assert best_record((record(0, role="baseline"), record(1, measurement=FAILED.to_json()))) is None
