"""OpenTuner as a tuner, and what its being here must not do to the rest of the process."""

import logging
import math
import random
import subprocess
import sys

import numpy as np
import pytest

from solgym.baselines.opentuner_search import OpenTunerSearch
from solgym.baselines.tuner import make_tuner
from solgym.errors import InvalidOption
from tests.baselines.fakes import NumberedSource
from tests.baselines.synthetic import Bowl, Corridor, run

pytest.importorskip("opentuner")
SIZES, ORDERED = (8, 8, 8, 8, 8, 5), (True,) * 5 + (False,)


def make_engine(seed=0, sizes=SIZES, ordered=ORDERED):
    make_tuner("opentuner", Bowl(), 0)  # imports the engine as the tuner does
    from solgym.baselines.opentuner_engine import Engine

    return Engine(sizes, ordered, seed)


def cost(vector):
    """The distance from the middle; one in eight fails."""
    return math.inf if vector[0] == 7 else 1.0 + sum(abs(choice - 3) for choice in vector)


def asked(engine, count):
    """The first ``count`` vectors that OpenTuner asks for, each answered before the next."""
    vectors = []
    while len(vectors) < count:
        if (answer := engine.ask()) is not None:
            request, vector = answer
            vectors.append(vector)
            engine.tell(request, cost(vector))
    return vectors


def test_opentuner_itself_does_not_ask_for_anything_twice():
    # With SQLAlchemy 2 its filter of duplicates is out of order: some twenty in four hundred.
    vectors = asked(make_engine(), 400)
    assert len(set(vectors)) == 400
    assert all(0 <= choice < size for vector in vectors for choice, size in zip(vector, SIZES, strict=True))


@pytest.mark.parametrize(("space", "count"), [(Bowl, 400), (Corridor, 150)])
def test_no_candidate_is_proposed_twice(space, count):
    trials = run("opentuner", space(), count)
    assert len({candidate.digest for candidate, _ in trials}) == count


def test_it_asks_for_nothing_more_once_the_space_is_used_up():
    engine = make_engine(sizes=(2, 3), ordered=(True, False))
    assert len(set(asked(engine, 6))) == 6
    assert all(engine.ask() is None for _ in range(50))


@pytest.mark.parametrize("sizes", [(1,), (1, 1), (1, 4)])
def test_positions_without_a_choice_are_no_trouble(sizes):
    engine = make_engine(sizes=sizes, ordered=(True,) * len(sizes))
    assert len(set(asked(engine, math.prod(sizes)))) == math.prod(sizes)


def test_a_space_is_exhausted_before_nothing_is_proposed():
    space = Bowl(2)
    assert len(run("opentuner", space, space.count() + 10)) == space.count()
    assert len(run("opentuner", Corridor(max_steps=2), 100)) == Corridor(max_steps=2).count()


def test_where_opentuner_has_nothing_to_ask_for_random_candidates_take_over_and_it_learns_of_them():
    space = Bowl()
    tuner = OpenTunerSearch(space, 0)
    tuner._engine.ask = lambda: None
    wanted = []
    ask_for = tuner._engine.ask_for
    tuner._engine.ask_for = lambda vector: wanted.append(vector) or ask_for(vector)
    for _ in range(10):
        (candidate,) = tuner.ask(1)
        tuner.tell([(candidate, space.evaluate(candidate))])
    assert len(set(wanted)) == 10


def test_what_was_given_from_outside_is_the_best_that_opentuner_knows():
    space = Bowl()
    best, failing = space.candidate(space.best), space.candidate((0, *space.best[1:]))
    tuner = OpenTunerSearch(space, 0, initial=[failing, best])
    for candidate in tuner.ask(2):
        tuner.tell([(candidate, space.evaluate(candidate))])
    known = tuner._engine._manager.get_best_configuration()
    assert tuple(known[name] for name in tuner._engine._names) == space.best


def test_a_result_may_come_late_and_in_a_batch():
    engine = make_engine()
    for _ in range(6):
        batch = [answer for answer in (engine.ask() for _ in range(40)) if answer is not None]
        for request, vector in batch:
            engine.tell(request, cost(vector))


def test_two_tuners_in_one_process_do_not_disturb_each_other():
    alone = asked(make_engine(1), 60)
    first, second = make_engine(1), make_engine(2)
    together = []
    for _ in range(60):
        together += asked(first, 1)
        asked(second, 1)
    assert together == alone


def test_the_random_numbers_of_others_are_left_alone():
    def drawn(search):
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002  others may use it
        engine = make_engine(3) if search else None
        numbers = []
        for _ in range(5):
            if engine:
                asked(engine, 3)
            numbers.append((random.random(), np.random.rand()))  # noqa: NPY002
        return numbers

    assert drawn(True) == drawn(False)


SCRIPT = """
import json, logging, os, sys
from pathlib import Path
before = (logging.Formatter, logging.getLogger().level, list(logging.getLogger().handlers))
ballast = [object() for _ in range(int(sys.argv[1]))]  # other addresses, as in another process
from solgym.baselines.tuner import make_tuner
assert "opentuner" not in sys.modules and "optuna" not in sys.modules
from tests.baselines.synthetic import Bowl, run
trials = run("opentuner", Bowl(), 80)
after = (logging.Formatter, logging.getLogger().level, list(logging.getLogger().handlers))
assert before == after, (before, after)
assert list(Path.cwd().iterdir()) == [], list(Path.cwd().iterdir())
print(json.dumps([candidate.to_json() for candidate, _ in trials]))
"""


def in_process(folder, number):
    folder.mkdir()
    environment = {"PYTHONHASHSEED": str(number), "PYTHONPATH": ":".join(filter(None, sys.path))}
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(1000 * number)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    return finished.stdout


def test_processes_agree_on_the_proposals_and_leave_no_files_and_no_logging(tmp_path):
    assert in_process(tmp_path / "a", 1) == in_process(tmp_path / "b", 2)


def test_logging_of_the_process_stays_as_it_was():
    root = logging.getLogger()
    before = (logging.Formatter, root.level, list(root.handlers))
    run("opentuner", Bowl(), 5)
    assert (logging.Formatter, root.level, list(root.handlers)) == before


def test_missing_packages_are_named_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentuner", None)
    monkeypatch.delitem(sys.modules, "solgym.baselines.opentuner_engine", raising=False)
    with pytest.raises(InvalidOption, match=r"opentuner.*pip install 'solgym\[tuners\]'"):
        make_tuner("opentuner", Bowl(), 0)


def test_a_database_library_with_which_it_would_repeat_itself_is_refused(monkeypatch):
    make_engine()
    from solgym.baselines import opentuner_engine

    monkeypatch.setattr(opentuner_engine.sqlalchemy, "__version__", "2.1.0")
    with pytest.raises(InvalidOption, match=r"SQLAlchemy 2.1.0.*pip install"):
        make_tuner("opentuner", Bowl(), 0)


def test_proposals_without_vectors_are_refused():
    with pytest.raises(InvalidOption, match="choose another tuner"):
        make_tuner("opentuner", NumberedSource(4), 0)


def test_failed_candidates_are_never_the_best():
    space = Bowl()
    tuner = OpenTunerSearch(space, 0)
    for _ in range(30):
        (candidate,) = tuner.ask(1)
        tuner.tell([(candidate, space.evaluate(candidate))])
    best = tuner._engine._manager.get_best_result()
    assert best.state == "OK"
    assert best.time == min(tuner._costs.values())


def test_differential_evolution_begins_with_the_fastest_if_there_are_enough_results():
    engine, rng = make_engine(), np.random.default_rng(0)
    told = {tuple(int(rng.integers(size)) for size in SIZES) for _ in range(60)}
    for vector in told:
        engine.tell(engine.ask_for(vector), cost(vector))
    evolution = engine._manager.search_driver.root_technique.techniques[0]
    evolution.initial_population()
    members = [tuple(member.config.data.values()) for member in evolution.population]
    slowest = max(map(cost, members))
    assert set(members) <= told
    assert len(set(members)) == len(members) == evolution.population_size
    assert all(cost(vector) >= slowest for vector in told - set(members))
