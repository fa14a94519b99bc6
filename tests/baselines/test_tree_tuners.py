"""Greedy, beam and Monte-Carlo tree search: what each does, on a corridor whose shape is known."""

import numpy as np
import pytest

from solgym.baselines.beam import TRIED, WIDTH, Beam
from solgym.baselines.greedy import Greedy
from solgym.baselines.mcts import Mcts
from solgym.baselines.tuner import make_tuner
from solgym.envs.proposals import EpisodeSource
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.fakes import timed
from tests.baselines.synthetic import Bowl, Corridor, Path, run, values_of

TREE_TUNERS = ("greedy", "beam", "mcts")


def actions_of(trials):
    return [values_of(candidate) for candidate, _ in trials]


def told(tuner, space, count, batch=1):
    trials = []
    while len(trials) < count and (proposals := tuner.ask(batch)):
        results = [(candidate, space.evaluate(candidate)) for candidate in proposals]
        tuner.tell(results)
        trials += results
    return trials


@pytest.mark.parametrize("name", TREE_TUNERS)
def test_a_tree_is_exhausted_before_nothing_is_proposed(name):
    proposals = actions_of(run(name, Corridor(max_steps=3), 500))
    # Only greedy search measures the root, to know what improves on it.
    assert len(proposals) == Corridor(max_steps=3).count() + (name == "greedy")
    assert (() in proposals) == (name == "greedy")


@pytest.mark.parametrize("name", TREE_TUNERS)
def test_settings_of_knobs_are_no_episodes(name):
    with pytest.raises(InvalidOption, match="choose another mode or tuner"):
        make_tuner(name, Bowl(), 0)


@pytest.mark.parametrize("name", TREE_TUNERS)
def test_asked_again_before_it_is_told_anything_a_tuner_still_has_proposals(name):
    tuner = make_tuner(name, Corridor(), 0)
    proposals = [candidate for _ in range(20) for candidate in tuner.ask(5)]
    assert len(proposals) >= 20
    assert len({candidate.digest for candidate in proposals}) == len(proposals)


# ------------------------------------------------------------------ greedy


def test_greedy_search_measures_all_successors_and_follows_the_best():
    # At first only 1 and 2 lead somewhere, later 1, 2 and 3; the best is the next of (1, 3, 2, 2, 1).
    expected = [()]
    for taken in range(5):
        choices = (1, 2, 3) if taken else (1, 2)
        expected += [(*Corridor.best[:taken], action) for action in choices]
    assert actions_of(run("greedy", Corridor(), len(expected))) == expected


def test_greedy_search_starts_at_the_fastest_candidate_given():
    space = Corridor()
    slow, fast, failing = (Path(actions).candidate for actions in ((1, 1), (1, 3, 2), (2, 2, 1)))
    trials = actions_of(run("greedy", space, 9, initial=[slow, failing, fast]))
    assert trials[:3] == [(1, 1), (2, 2, 1), (1, 3, 2)]
    assert trials[3:6] == [(1, 3, 2, 1), (1, 3, 2, 2), (1, 3, 2, 3)]
    assert trials[6:9] == [(1, 3, 2, 2, 1), (1, 3, 2, 2, 2), (1, 3, 2, 2, 3)]


def test_greedy_search_goes_on_from_random_prefixes():
    space = Corridor()
    tuner = Greedy(space, 0)
    trials = told(tuner, space, 200)
    assert len(trials) == 200
    assert len({actions[:2] for actions in actions_of(trials) if len(actions) >= 3}) > 1


class Facing(EpisodeSource[Path]):
    """Actions 2 and 3 work only after action 1, which changes nothing about the candidate itself."""

    def __init__(self):
        super().__init__(Turned(), self._act, lambda state: np.arange(4), 4, actions=4)

    @staticmethod
    def _act(state, action):
        from solgym.envs.design import Move

        if action == 1:
            return Move(Turned(state.actions, True))
        if not state.turned:
            return Move(None, illegal_because="face it first")
        return Move(Turned((*state.actions, action), False))


class Turned:
    """Actions that count, and whether one may come next."""

    def __init__(self, actions=(), turned=False):
        self.actions, self.turned = actions, turned

    @property
    def candidate(self):
        return Path(self.actions).candidate


@pytest.mark.parametrize("name", TREE_TUNERS)
def test_actions_that_change_the_state_but_not_the_candidate_are_seen_through(name):
    space = Facing()
    space.evaluate = lambda candidate: timed(1e-3 / (1 + sum(values_of(candidate))))
    best = max(actions_of(run(name, space, 40)), key=sum)
    assert best == (3, 3)


@pytest.mark.parametrize("name", TREE_TUNERS)
def test_what_follows_a_given_candidate_is_no_longer_than_an_episode(name):
    space = Corridor(max_steps=4)
    given = [Path((1, 3, 2)).candidate, Path((1, 3, 1, 1)).candidate]
    trials = actions_of(run(name, space, 60, initial=given))
    assert trials[:2] == [(1, 3, 2), (1, 3, 1, 1)]
    assert (1, 3, 2, 2) in trials
    assert max(map(len, trials)) == 4


# ------------------------------------------------------------------ beam


class Wide(EpisodeSource[Path]):
    """Forty actions; the time falls with their sum."""

    def __init__(self, max_steps=4):
        super().__init__(
            Path(), self._act, lambda state: np.arange(41), max_steps, actions=41,
            state_of=lambda candidate: Path(values_of(candidate)),
        )  # fmt: skip

    @staticmethod
    def _act(state, action):
        from solgym.envs.design import Move

        return Move(state, finishes=True) if action == 0 else Move(Path((*state.actions, action)))

    def evaluate(self, candidate):
        return timed(1.0 / (1 + sum(values_of(candidate))))


def test_a_beam_keeps_the_fastest_and_tries_successors_of_each():
    space = Wide()
    trials = actions_of(run("beam", space, 2 * TRIED))
    first, second = trials[:TRIED], trials[TRIED:]
    assert all(len(actions) == 1 for actions in first)
    kept = sorted(first, key=sum, reverse=True)[:WIDTH]
    assert sorted(actions[:1] for actions in second) == sorted(kept * (TRIED // WIDTH))


def test_at_least_half_of_the_first_beam_is_the_tuners_own():
    space = Wide()
    given = [Path((40, 40, 40 - number)).candidate for number in range(WIDTH)]
    trials = actions_of(run("beam", space, WIDTH + 2 * TRIED, initial=given))
    beam = {actions[:-1] for actions in trials[WIDTH + TRIED :]}
    assert {actions for actions in beam if len(actions) == 3} == {(40, 40, 40), (40, 40, 39)}
    assert len({actions for actions in beam if len(actions) == 1}) == WIDTH - WIDTH // 2


def test_a_beam_starts_again_where_all_successors_fail():
    space = Wide()
    space.evaluate = lambda candidate: (
        timed(1e-3) if len(candidate.steps) < 2 else Measurement.failed(Status.CRASHED, "made to fail")
    )
    trials = told(Beam(space, 0), space, 40 + 4 * TRIED)
    assert {len(actions) for actions in actions_of(trials)} == {1, 2}
    assert sum(len(actions) == 1 for actions in actions_of(trials)) == 40


# ------------------------------------------------------------------ Monte-Carlo tree search


def test_measurements_go_where_episodes_did_well():
    # Of forty first actions, those above 20 make the better half of all episodes.
    space = Wide(max_steps=1)
    space.evaluate = lambda candidate: timed(1e-3 if values_of(candidate)[0] <= 20 else 1e-4)
    deep = Wide(max_steps=3)
    deep.evaluate = lambda candidate: timed(1e-3 if values_of(candidate)[0] <= 20 else 1e-4)
    trials = actions_of(told(Mcts(deep, 0), deep, 200))
    later = [actions[0] > 20 for actions in trials[100:]]
    assert sum(later) > len(later) / 2


def test_a_failed_episode_counts_less_than_any_correct_one_that_is_not_the_slowest():
    space = Corridor()
    tuner = Mcts(space, 0)
    told(tuner, space, 60)
    children = {branch.place.node.actions: branch for branch in tuner._root.children}
    assert tuner._bound(children[(1,)]) > 0
    failing = next((child for child in children[(2,)].children if child.place.node.actions == (2, 2)), None)
    assert failing is None or failing.correct == 0


def test_the_second_episode_through_a_branch_ends_there():
    space = Corridor()
    tuner = Mcts(space, 0)
    told(tuner, space, 150)
    waiting = list(tuner._root.children)
    proposed = tuner._proposed
    while waiting:
        branch = waiting.pop()
        waiting += branch.children
        assert branch.visits < 2 or branch.place.node.candidate.digest in proposed


def test_initial_candidates_are_branches_of_the_root():
    space = Corridor()
    given = Path((1, 3, 2)).candidate
    tuner = Mcts(space, 0, initial=[given])
    told(tuner, space, 30)
    (branch,) = (child for child in tuner._root.children if child.place.node.actions == (1, 3, 2))
    assert branch.visits > 1
    assert branch.correct > 0


def test_a_batch_is_spread_over_branches():
    tuner = Mcts(Wide(), 0)
    assert len({values_of(candidate)[0] for candidate in tuner.ask(9)}) > 1
