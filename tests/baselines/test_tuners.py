"""What holds for every tuner, on made-up spaces and on the real ones; nothing here is measured."""

import hashlib
import itertools
import json

import gymnasium as gym
import numpy as np
import pytest

from solgym.baselines.budget import Budget
from solgym.baselines.evolution import POPULATION
from solgym.baselines.proposing import RANDOM_FIRST
from solgym.baselines.search import search, trials_of
from solgym.baselines.trace import Trace
from solgym.baselines.tuner import TUNERS, Tuner, make_tuner
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.fakes import NumberedSource, header, timed
from tests.baselines.synthetic import ELSEWHERE, SPACES, Bowl, Corridor, run, values_of
from tests.envs.mlir_passes.settings import QUIET

MEANINGLESS = {("exhaustive", "episodes")} | {(name, "vectors") for name in ("greedy", "beam", "mcts")}
PAIRS = [(name, space) for name in sorted(TUNERS) for space in SPACES if (name, space) not in MEANINGLESS]
VECTOR_TUNERS = ("hill-climb", "annealing", "evolution")
ASKS = {name: 400 if name in ("random", "exhaustive", *VECTOR_TUNERS) else 120 for name in TUNERS}
"""How often tuners are asked; those that have more tests of their own less often."""


def proposed(trials):
    return [candidate.to_json() for candidate, _ in trials]


@pytest.mark.parametrize(("name", "kind"), [p for p in PAIRS if p[0] not in ("random", "exhaustive")])
def test_the_optimum_is_found_within_an_eighth_of_the_space(name, kind):
    # Random search manages that with probability 1/8, so three in a row are no luck.
    space = SPACES[kind]()
    for seed in range(3):
        *_, (candidate, _) = run(name, space, space.count() // 8, seed, until=space.is_best)
        assert space.is_best(candidate)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_equal_seeds_propose_the_same_and_no_candidate_twice(name, kind):
    first, again = (run(name, SPACES[kind](), ASKS[name], seed=3) for _ in range(2))
    assert proposed(first) == proposed(again)
    assert len({candidate.digest for candidate, _ in first}) == len(first)
    if name not in ("exhaustive", "greedy", "beam"):
        assert proposed(run(name, SPACES[kind](), ASKS[name], seed=4)) != proposed(first)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_batches_hold_no_duplicates_either(name, kind):
    trials = run(name, SPACES[kind](), ASKS[name] // 2, batch=7)
    assert len({candidate.digest for candidate, _ in trials}) == len(trials)
    assert proposed(trials) == proposed(run(name, SPACES[kind](), ASKS[name] // 2, batch=7))


@pytest.mark.parametrize("name", ["random", "exhaustive", *VECTOR_TUNERS])
def test_a_space_that_can_be_listed_is_exhausted_before_nothing_is_proposed(name):
    space = Bowl(6)
    trials = run(name, space, space.count() + 100)
    assert len(trials) == space.count()


@pytest.mark.parametrize("name", ["random", *VECTOR_TUNERS])
def test_a_space_that_cannot_be_listed_ends(name):
    assert len(run(name, Corridor(max_steps=2), 100)) == 2 + 2 * 3


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_candidates_given_are_proposed_first_and_once(name, kind):
    space = SPACES[kind]()
    ends = [c for c, _ in run("random", space, 30, seed=9)]
    initial = [ends[4], ends[20], ends[4], ends[7]]
    trials = run(name, space, 60, initial=initial)
    assert [c for c, _ in trials[:3]] == [ends[4], ends[20], ends[7]]
    assert len({c.digest for c, _ in trials}) == len(trials)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_candidates_that_no_vector_or_path_stands_for_are_proposed_all_the_same(name, kind):
    trials = run(name, SPACES[kind](), 30, initial=[ELSEWHERE])
    assert trials[0][0] == ELSEWHERE
    assert len(trials) == 30


@pytest.mark.parametrize(("name", "kind"), PAIRS)
@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_space_in_which_everything_fails_is_searched_on(name, kind, status, monkeypatch):
    if status in (Status.UNSTABLE, Status.FASTER_THAN_LIGHT):
        failure = Measurement(status, (1e-9,), 1e-9, 1e-9, 1e-9, 1e-9)
    else:
        failure = Measurement.failed(status, "made to fail")
    space = SPACES[kind]()
    monkeypatch.setattr(space, "evaluate", lambda candidate: failure)
    assert len(run(name, space, 60)) == 60


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_an_interrupted_run_proposes_what_an_uninterrupted_one_does(name, kind, tmp_path):
    def searched(folder, measurements, evaluate):
        space = SPACES[kind]()
        initial = [c for c, _ in run("random", space, 3, seed=9)]
        with Trace.open(folder, header(tuner=name, budget_measurements=measurements)) as trace:
            tuner = make_tuner(name, space, 0, initial)
            search(tuner, evaluate or space.evaluate, Budget(measurements), trace)
            return [record.candidate for record in trials_of(trace.records)]

    calls = []

    def interrupted(candidate):
        if len(calls) == 37:
            raise KeyboardInterrupt
        calls.append(candidate)
        return SPACES[kind]().evaluate(candidate)

    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "parts", 90, interrupted)
    assert searched(tmp_path / "parts", 90, None) == searched(tmp_path / "whole", 90, None)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_every_registered_tuner_satisfies_the_protocol(name, kind):
    assert isinstance(make_tuner(name, SPACES[kind](), 0), Tuner)


@pytest.mark.parametrize(("name", "kind"), sorted(MEANINGLESS))
def test_a_tuner_that_has_no_meaning_for_a_space_says_so(name, kind):
    with pytest.raises(InvalidOption, match="choose"):
        make_tuner(name, SPACES[kind](), 0)


@pytest.mark.parametrize("name", VECTOR_TUNERS)
def test_methods_that_need_vectors_say_so(name):
    with pytest.raises(InvalidOption, match="choose another tuner"):
        make_tuner(name, NumberedSource(4), 0)


# ------------------------------------------------------------------ each method's own


def differences(first, second):
    return sum(a != b for a, b in zip(values_of(first), values_of(second), strict=True))


def test_a_climb_goes_on_from_the_best_candidate_given():
    space = Bowl(6)
    worse, better, failing = (space.candidate(v) for v in ((1, 5, 0, 0), (3, 2, 3, 1), (0, 1, 3, 2)))
    trials = run("hill-climb", space, 4, initial=[worse, better, failing])
    assert differences(trials[3][0], better) == 1


def test_a_climb_begins_elsewhere_at_a_local_optimum():
    space = Bowl(6)
    trials = run("hill-climb", space, 40, initial=[space.candidate(space.best)])
    assert max(differences(candidate, trials[0][0]) for candidate, _ in trials[1:]) > 1
    # Two ways to go along each ordered position and two other words: eight neighbours.
    assert [differences(candidate, trials[0][0]) for candidate, _ in trials[1:9]] == [1] * 8


def test_annealing_leaves_a_candidate_for_a_slower_one_but_never_for_a_failed_one():
    space = Bowl(6)
    tuner = make_tuner("annealing", space, 0, [space.candidate((1, 1, 3, 2))])
    walk, failures = [], 0
    for _ in range(100):
        (candidate,) = tuner.ask(1)
        result = space.evaluate(candidate)
        tuner.tell([(candidate, result)])
        failures += not result.ok
        walk.append(space.evaluate(space.candidate(tuner._here)))
    assert failures > 0
    assert all(result.ok for result in walk)
    assert any(after.time_s > before.time_s for before, after in itertools.pairwise(walk))


@pytest.mark.parametrize("given", [0, 4, 10, 30])
def test_evolution_keeps_at_least_half_of_its_first_population_random(given):
    space = Bowl(6)
    ranked = sorted(
        (c for c in space.enumerate() if space.evaluate(c).ok), key=lambda c: (space.distance(c), c.digest)
    )
    initial = ranked[:given]
    tuner = make_tuner("evolution", space, 1, initial)
    random_ones = 0
    while not tuner._is_full:
        (candidate,) = tuner.ask(1)
        random_ones += candidate not in initial
        tuner.tell([(candidate, space.evaluate(candidate))])
    assert random_ones == POPULATION - min(given, POPULATION // 2)
    tuner.ask(1)
    members = {vector for _, vector in tuner._members}
    assert len(members) == POPULATION
    assert members >= {values_of(candidate) for candidate in initial[: POPULATION // 2]}


def test_exhaustive_search_goes_through_the_space_in_order():
    space = Bowl(6)
    assert proposed(run("exhaustive", space, space.count())) == [c.to_json() for c in space.enumerate()]


# ------------------------------------------------------------------ every family


def by_digest(candidate):
    """A time that depends on the candidate alone; one in eight fails."""
    number = int(hashlib.sha256(candidate.digest.encode()).hexdigest()[:8], 16)
    if number % 8 == 0:
        return Measurement.failed(Status.COMPILE_ERROR, "made to fail")
    return timed(1e-3 * (1 + number % 1000))


FAMILIES = {
    "knobs": ("KernelDSL-GEMM-v0", "gemm/f32/m24n40k12", "knobs", 60),
    "primitive": ("KernelDSL-Softmax-v0", "softmax/f32/rows7cols33", "primitive", 30),
    "passes": ("MLIRPasses-Gemm-v0", "gemm/f32/m12n20k8", "passes", 24),
}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (name, family)
        for name, kind in PAIRS
        for family in (("knobs",) if kind == "vectors" else ("primitive", "passes"))
        if name != "exhaustive"
    ],
)
def test_every_family_is_searched(name, family):
    env_id, task, mode, budget = FAMILIES[family]
    env = gym.make(env_id, task=task, max_steps=8, **QUIET).unwrapped
    env.choose_task()
    runs = []
    for _ in range(2):
        tuner = make_tuner(name, env.proposals(mode), 5, [env.expert])
        trials = []
        for _ in range(budget):
            (candidate,) = tuner.ask(1)
            trials.append((candidate, by_digest(candidate)))
            tuner.tell(trials[-1:])
        runs.append(trials)
    first, again = runs
    assert first[0][0] == env.expert
    assert proposed(first) == proposed(again)
    assert len({candidate.digest for candidate, _ in first}) == budget
    for candidate, _ in first:
        assert type(candidate) is type(env.untouched)
        assert env.read_candidate(json.dumps(candidate.to_json())) == candidate
        if family != "passes":
            candidate.apply(ProgramNest.initial(env.task.computation), env.target.spec)
    env.close()


@pytest.mark.parametrize("name", ["random", *VECTOR_TUNERS, "opentuner", "tpe"])
def test_four_hundred_knob_settings_are_different_schedules(name):
    env = gym.make("KernelDSL-GEMM-v0", **QUIET).unwrapped
    env.choose_task()
    tuner = make_tuner(name, env.proposals("knobs"), 0)
    digests = set()
    for _ in range(400):
        (candidate,) = tuner.ask(1)
        digests.add(candidate.digest)
        tuner.tell([(candidate, by_digest(candidate))])
    assert len(digests) == 400


@pytest.mark.parametrize("name", ["opentuner", "tpe"])
def test_in_a_space_of_many_actions_learning_from_trials_begins_with_random_ones(name, monkeypatch):
    monkeypatch.setattr("solgym.baselines.proposing.MANY_CHOICES", 4)
    space, rng = Corridor(), np.random.default_rng(0)
    drawn = list({c.digest: c for c in (space.candidate(space.sample(rng)) for _ in range(1000))}.values())
    assert len(drawn) > 150

    def at_random(given):
        """How many proposals after those given are the draws of the space, in their order."""
        own = [candidate for candidate, _ in run(name, space, 100, initial=given)][len(given) :]
        return next(i for i, (one, other) in enumerate(zip(own, drawn, strict=False)) if one != other)

    assert RANDOM_FIRST <= at_random([]) < RANDOM_FIRST + 5
    assert RANDOM_FIRST - 10 <= at_random(drawn[-10:]) < RANDOM_FIRST - 5
    assert RANDOM_FIRST // 2 <= at_random(drawn[-40:]) < RANDOM_FIRST // 2 + 5, "at least half are random"
