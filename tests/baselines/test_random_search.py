from collections import Counter

import pytest

from solgym.baselines.random_search import RandomSearch
from solgym.baselines.tuner import make_tuner
from solgym.errors import InvalidOption
from tests.baselines.fakes import NumberedSource, number_of, timed


def test_equal_seeds_propose_equal_candidates_and_others_do_not():
    def first(seed):
        return [c.digest for c in RandomSearch(NumberedSource(1000), seed).ask(20)]

    assert first(3) == first(3)
    assert first(3) != first(4)


def test_proposals_depend_on_how_many_were_asked_for_not_on_batches_or_results():
    at_once = RandomSearch(NumberedSource(50), 7).ask(50)
    in_parts = RandomSearch(NumberedSource(50), 7)
    proposals = []
    for count in (1, 2, 5, 10, 32):
        batch = in_parts.ask(count)
        in_parts.tell([(candidate, timed(1e-3)) for candidate in batch])
        proposals += batch
    assert proposals == at_once


@pytest.mark.parametrize("size", [1, 7, 200])
def test_every_candidate_of_a_space_is_proposed_once_and_then_none(size):
    tuner = RandomSearch(NumberedSource(size), 0)
    proposals = tuner.ask(size + 50)
    assert sorted(number_of(c) for c in proposals) == list(range(size))
    assert tuner.ask(1) == []


def test_a_source_that_cannot_be_listed_ends_when_nothing_new_comes():
    tuner = RandomSearch(NumberedSource(5, listed=False), 0)
    assert sorted(number_of(c) for c in tuner.ask(100)) == list(range(5))
    assert tuner.ask(1) == []


def test_the_first_proposal_is_uniform_over_the_space():
    counts = Counter(number_of(RandomSearch(NumberedSource(4), seed).ask(1)[0]) for seed in range(4000))
    # Each count is binomial with n = 4000, p = 1/4: mean 1000, standard deviation 27.4; five deviations.
    assert all(abs(count - 1000) < 137 for count in counts.values())


def test_an_unknown_tuner_is_refused_with_the_names_that_exist():
    with pytest.raises(InvalidOption, match="random"):
        make_tuner("oracle", NumberedSource(4), 0)
    with pytest.raises(InvalidOption, match="negative"):
        make_tuner("random", NumberedSource(4), -1)
