import math

import pytest

from solgym.baselines.budget import Budget
from solgym.errors import InvalidOption


@pytest.mark.parametrize(
    ("measurements", "seconds"),
    [(None, None), (0, None), (-3, None), (None, 0.0), (None, -1.0), (5, math.inf), (5, math.nan)],
)
def test_budgets_that_allow_nothing_or_everything_are_refused(measurements, seconds):
    with pytest.raises(InvalidOption):
        Budget(measurements, seconds)


def test_whichever_part_is_used_up_first_ends_a_run():
    budget = Budget(measurements=10, seconds=2.0)
    assert not budget.exhausted(9, 1.9)
    assert budget.exhausted(10, 0.0)
    assert budget.exhausted(0, 2.0)


def test_the_fraction_spent_is_that_of_the_part_nearer_to_its_end():
    budget = Budget(measurements=10, seconds=2.0)
    assert budget.fraction_spent(1, 1.0) == 0.5
    assert budget.fraction_spent(9, 1.0) == 0.9
    assert budget.fraction_spent(50, 1.0) == 1.0


def test_a_budget_reads_as_a_sentence_part():
    assert str(Budget(10, 2.5)) == "10 measurements or 2.5 s"
    assert str(Budget(seconds=60)) == "60 s"
