"""Optuna's TPE as a tuner."""

import logging
import math
import sys
import warnings

import numpy as np
import pytest

from solgym.baselines.tpe import TreeParzen
from solgym.baselines.tuner import make_tuner
from solgym.errors import InvalidOption
from tests.baselines.fakes import NumberedSource
from tests.baselines.synthetic import ELSEWHERE, Bowl, Corridor, run, values_of

optuna = pytest.importorskip("optuna")


def searched(space, count, initial=(), batch=1):
    """A tuner that has spent a budget, and its trials."""
    tuner = TreeParzen(space, 0, initial=initial)
    trials = []
    while len(trials) < count:
        results = [(candidate, space.evaluate(candidate)) for candidate in tuner.ask(batch)]
        tuner.tell(results)
        trials += results
    return tuner, trials


def known_to_the_model(tuner):
    """Value by vector of every trial that the sampler models."""
    names = tuner._space.names
    complete = (trial for trial in tuner._study.trials if trial.state is optuna.trial.TrialState.COMPLETE)
    return {tuple(trial.params[name] for name in names): trial.value for trial in complete}


class Narrow(Bowl):
    """A bowl of which three quarters are not valid."""

    def candidate(self, vector):
        return super().candidate(vector) if (vector[0] + vector[1]) % 4 == 1 else None

    def mutate(self, vector, rng):
        while True:
            changed = self.sample(rng)
            if changed != vector:
                return changed


@pytest.mark.parametrize("space", [Bowl, Corridor, Narrow])
def test_the_model_knows_every_result_and_that_failed_and_invalid_vectors_are_the_worst(space):
    made = space()
    tuner, trials = searched(made, 60)
    model = known_to_the_model(tuner)
    costs = {candidate.digest: result.time_s if result.ok else math.inf for candidate, result in trials}
    seen = set()
    for vector, value in model.items():
        candidate = made.candidate(vector)
        assert value == (math.inf if candidate is None else costs[candidate.digest])
        seen.add(candidate and candidate.digest)
    assert set(costs) <= seen


def test_vectors_that_are_not_valid_cost_no_measurement():
    space = Narrow()
    tuner, trials = searched(space, 40)
    assert any(space.candidate(vector) is None for vector in known_to_the_model(tuner))
    assert len(trials) == 40


def test_candidates_given_are_in_the_model_as_far_as_a_vector_stands_for_them():
    space = Bowl()
    tuner, _ = searched(space, 4, initial=[ELSEWHERE, space.candidate(space.best)])
    assert space.best in known_to_the_model(tuner)


def test_a_space_is_exhausted_before_nothing_is_proposed():
    assert len(run("tpe", Bowl(2), Bowl(2).count() + 10)) == Bowl(2).count()
    assert len(run("tpe", Corridor(max_steps=2), 100)) == Corridor(max_steps=2).count()


def test_after_what_is_known_the_model_draws_near_the_best():
    space = Bowl()
    _, trials = searched(space, 120)
    distances = [space.distance(candidate) for candidate, _ in trials]
    assert np.mean(distances[-40:]) < np.mean(distances[:10])


def test_two_tuners_in_one_process_do_not_disturb_each_other():
    first, second = TreeParzen(Bowl(), 1), TreeParzen(Bowl(), 2)
    together = []
    for _ in range(40):
        for tuner in (first, second):
            (candidate,) = tuner.ask(1)
            tuner.tell([(candidate, Bowl().evaluate(candidate))])
            together += [values_of(candidate)] if tuner is first else []
    assert together == [values_of(candidate) for candidate, _ in run("tpe", Bowl(), 40, seed=1)]


def test_it_neither_warns_nor_reports_nor_changes_how_loud_optuna_is(capfd):
    before = (optuna.logging.get_verbosity(), logging.getLogger().level, list(logging.getLogger().handlers))
    state = np.random.get_state()[1].tolist()  # noqa: NPY002  others may use it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        space = Bowl()
        searched(space, 30, initial=[space.candidate(space.best)], batch=4)
    after = (optuna.logging.get_verbosity(), logging.getLogger().level, list(logging.getLogger().handlers))
    assert before == after
    assert state == np.random.get_state()[1].tolist()  # noqa: NPY002
    assert capfd.readouterr() == ("", "")


def test_a_missing_package_is_named_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InvalidOption, match=r"optuna.*pip install 'solgym\[tuners\]'"):
        make_tuner("tpe", Bowl(), 0)


def test_proposals_without_vectors_are_refused():
    with pytest.raises(InvalidOption, match="choose another tuner"):
        make_tuner("tpe", NumberedSource(4), 0)
