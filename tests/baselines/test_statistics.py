import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from solgym.baselines.statistics import (
    Interval,
    band,
    interquartile_mean,
    interquartile_mean_interval,
    probability_of_improvement,
)
from solgym.errors import InvalidOption


def test_the_interquartile_mean_leaves_out_a_quarter_at_either_end():
    assert interquartile_mean([9.0, 1.0, 3.0, -50.0]) == 2.0
    assert interquartile_mean([8, 7, 6, 5, 4, 3, 2, 1]) == (3 + 4 + 5 + 6) / 4


def test_a_quarter_of_scores_that_is_no_whole_number_is_rounded_down():
    assert interquartile_mean([0.0, 1.0, 2.0, 6.0, 100.0]) == 3.0  # a quarter of 5 is 1
    assert interquartile_mean([1.0, 5.0, 9.0]) == 5.0  # and of 3 is 0
    assert interquartile_mean([7.0]) == 7.0


def test_the_interquartile_mean_is_over_all_runs_of_all_tasks():
    assert interquartile_mean_interval([[0.5, 0.25], [0.5, 0.0]]).value == 0.375
    assert interquartile_mean_interval([[0.0], [1.0, 2.0, 9.0]]).value == 1.5


def test_intervals_come_from_resampling_the_runs_within_each_task():
    # Each task has two runs, so one resample in 16 holds the worse run of both tasks twice, and one in 16 the
    # better: more than the 2.5% at either end, which therefore are those resamples. Without strata the ends
    # would be 0 and 0.5.
    found = interquartile_mean_interval([[0.5, 0.25], [0.5, 0.0]])
    assert found == Interval(0.375, (0.0 + 0.25) / 2, 0.5)


def test_equal_scores_give_equal_intervals():
    scores = np.random.default_rng(1).normal(size=(4, 5))
    assert interquartile_mean_interval(scores) == interquartile_mean_interval(scores)


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    # The interquartile mean of a symmetric distribution is its centre. Percentile intervals of few scores are
    # known to be a little short, so this asks for most of the 95%.
    rng = np.random.default_rng(0)
    intervals = [
        interquartile_mean_interval(rng.normal(3.0, 1.0, size=(5, 10)), repetitions=500) for _ in range(200)
    ]
    assert sum(found.low <= 3.0 <= found.high for found in intervals) >= 0.85 * 200


def test_one_run_per_task_has_no_interval():
    assert interquartile_mean_interval([[0.1], [0.3]]) == Interval(0.2)
    assert probability_of_improvement([[0.1]], [[0.3]]) == Interval(0.0)
    assert not Interval(0.0).excludes(0.5)


def test_the_probability_of_improvement_counts_pairs_within_tasks():
    # First task: 0.75 beats both, 0.5 beats one and ties with the other: 3.5 of 4. Second task: all 4.
    found = probability_of_improvement([[0.75, 0.5], [1.0, 1.0]], [[0.5, 0.25], [0.5, 0.0]])
    assert found.value == (3.5 / 4 + 1) / 2
    # The worst resample (0.5, 0.5 against 0.5, 0.5) and the best come once in 16, so they are the ends.
    assert (found.low, found.high) == ((0.5 + 1) / 2, 1.0)


def test_the_probability_of_improvement_is_that_of_mann_and_whitney():
    rng = np.random.default_rng(3)
    ours, theirs = rng.integers(0, 6, size=(3, 7)), rng.integers(0, 6, size=(3, 4))
    expected = [mannwhitneyu(a, b).statistic / (7 * 4) for a, b in zip(ours, theirs, strict=True)]
    assert probability_of_improvement(ours, theirs).value == pytest.approx(np.mean(expected))


def test_equal_methods_improve_on_each_other_half_the_time():
    assert probability_of_improvement([[0.3, 0.3]], [[0.3, 0.3]]) == Interval(0.5, 0.5, 0.5)


def test_an_interval_excludes_what_lies_outside():
    assert Interval(0.7, 0.6, 0.8).excludes(0.5)
    assert not Interval(0.7, 0.5, 0.8).excludes(0.5)


def test_a_band_has_the_median_and_the_quartiles_at_each_position():
    found = band([[0, 0], [1, 4], [2, 8]])
    assert found.median.tolist() == [1, 4]
    assert found.low.tolist() == [0.5, 2]
    assert found.high.tolist() == [1.5, 6]


@pytest.mark.parametrize("strata", [[], [[0.1], []]])
def test_no_scores_are_refused(strata):
    with pytest.raises(InvalidOption, match="at least one task"):
        interquartile_mean_interval(strata)


def test_methods_on_different_numbers_of_tasks_cannot_be_paired():
    with pytest.raises(InvalidOption, match="same tasks"):
        probability_of_improvement([[0.1]], [[0.1], [0.2]])
