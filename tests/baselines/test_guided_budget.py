import json
import math
from itertools import accumulate
from pathlib import Path

import pytest

from solgym.baselines.budget import Budget
from solgym.baselines.comparison import compare
from solgym.baselines.guided_budget import DEFAULT_RULE, Guide, GuidedRule, stopping_point
from solgym.baselines.random_search import RandomSearch
from solgym.baselines.search import SilentListener, search
from solgym.baselines.trace import Trace, TraceHeader, read_trace
from solgym.errors import InvalidOption, InvalidTrace
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.fakes import NumberedSource, header, timed
from tests.baselines.traces import write_run

SOL_S = 1.0
RULE = GuidedRule(stop_at=0.9, patience=3, patience_per_e_fold=2.0, least_gain=0.1)
FAR_S = math.e**2  # two e-folds from the speed of light, so three and four more are borne


def stops(times_s: list[float | None]) -> int:
    best = accumulate(times_s, lambda a, b: a if b is None else b if a is None else min(a, b))
    return stopping_point(best, SOL_S, RULE)


def test_near_the_speed_of_light_a_search_stops_at_once():
    assert stops([5.0, 1.1, 1.0, 1.0]) == 2


def test_patience_grows_with_the_distance_to_the_speed_of_light():
    assert RULE.patience_at(1.0) == 3
    assert RULE.patience_at(1 / math.e) == 5
    assert RULE.patience_at(1 / FAR_S) == 7
    assert stops([FAR_S] * 20) == 1 + 7
    assert stops([math.e] * 20) == 1 + 5


def test_a_time_below_the_speed_of_light_does_not_shorten_patience_further():
    assert RULE.patience_at(1.5) == RULE.patience_at(1.0)


def test_a_gain_renews_patience_and_a_change_within_noise_does_not():
    assert stops([FAR_S] * 7 + [FAR_S * 0.8] * 20) == 8 + 7
    assert stops([FAR_S] * 7 + [FAR_S * 0.95] * 20) == 8


def test_small_gains_add_up():
    slow = [FAR_S * 0.97**k for k in range(9)]  # 0.97 ** 4 is the first below 0.9
    assert stops(slow) == len(slow)


def test_a_search_without_a_correct_candidate_goes_on():
    assert stops([None] * 50) == 50
    guide = Guide(SOL_S, RULE)
    guide.tell(None)
    assert guide.reason is None


@pytest.mark.parametrize(
    "constants",
    [{"stop_at": 0.0}, {"stop_at": 1.1}, {"patience": 0}, {"patience_per_e_fold": -1.0}, {"least_gain": 1.0}],
)
def test_constants_outside_their_range_are_refused(constants):
    with pytest.raises(InvalidOption, match=next(iter(constants))):
        GuidedRule(**constants)


class Recorder(SilentListener):
    def __init__(self):
        self.notices = []

    def notice(self, text):
        self.notices.append(text)


def run(folder, evaluate, measurements=200, guided=True, sol_s=SOL_S, **changes):
    listener = Recorder()
    made = header(budget_measurements=measurements, budget_guided=guided, sol_s=sol_s, **changes)
    with Trace.open(folder, made) as trace:
        budget = Budget(measurements, guided=guided)
        search(RandomSearch(NumberedSource(300), 0), evaluate, budget, trace, listener)
        return trace.records, listener.notices


def test_a_guided_search_stops_where_the_rule_says_and_says_why(tmp_path):
    records, notices = run(tmp_path, lambda _: timed(SOL_S / 0.5))
    assert len(records) == stopping_point([SOL_S / 0.5] * 200, SOL_S) < 200
    assert notices == [
        f"stopped after {len(records)} measurements: {len(records) - 1} measurements in a row brought less "
        "than 1%, at 50% of the speed of light"
    ]


def test_a_guided_search_at_the_speed_of_light_needs_one_measurement(tmp_path):
    records, notices = run(tmp_path, lambda _: timed(SOL_S))
    assert len(records) == 1
    assert notices == ["stopped after 1 measurements: 100% of the speed of light are reached"]


def test_the_budget_still_ends_a_guided_search(tmp_path):
    records, notices = run(tmp_path, lambda _: Measurement.failed(Status.TIMEOUT, "slow"), measurements=9)
    assert len(records) == 9
    assert notices == []


def test_an_interrupted_guided_search_stops_where_the_whole_one_does(tmp_path):
    calls = []

    def interrupted(_):
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(1)
        return timed(2.0)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", interrupted)
    whole, _ = run(tmp_path / "whole", lambda _: timed(2.0))
    parts, _ = run(tmp_path / "parts", lambda _: timed(2.0))
    again, notices = run(tmp_path / "parts", lambda _: pytest.fail("nothing is left to measure"))
    assert [r.candidate for r in parts] == [r.candidate for r in whole]
    assert len(again) == len(whole)
    assert len(notices) == 1


def test_a_guided_run_and_one_that_is_not_do_not_continue_each_other(tmp_path):
    run(tmp_path, lambda _: timed(2.0))
    with pytest.raises(InvalidTrace, match="two methods"):
        run(tmp_path, lambda _: timed(2.0), guided=False)


def test_a_guided_budget_needs_a_speed_of_light(tmp_path):
    with pytest.raises(InvalidOption, match="speed of light"):
        run(tmp_path, lambda _: timed(2.0), sol_s=None)


def test_a_header_from_before_guided_budgets_is_read(tmp_path):
    path = write_run(tmp_path / "old", [0.5])
    first, *rest = path.read_text().splitlines()
    old = {key: value for key, value in json.loads(first).items() if key != "budget_guided"}
    path.write_text("\n".join([json.dumps(old), *rest]) + "\n")
    found, _, _ = read_trace(path)
    assert isinstance(found, TraceHeader)
    assert found.budget == Budget(1)


def test_a_guided_run_is_a_method_of_its_own_and_keeps_its_score_after_its_end(tmp_path):
    write_run(tmp_path / "plain", [0.5, 0.5, 0.5, 0.25], budget_measurements=4)
    write_run(
        tmp_path / "guided", [0.5, 0.5], budget_measurements=4, budget_guided=True, ending=[("expert", 0.5)]
    )
    found = compare([tmp_path])
    assert found.methods == ("random", "random, guided")
    (task,) = found.tasks
    assert task.budget["measurements"] == 4
    assert task.methods["random, guided"].final["measurements"].median == pytest.approx(0.25)
    assert not any("Budgets differ" in note for note in found.notes)


def test_the_page_on_tuning_states_the_rule():
    page = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")
    rule = DEFAULT_RULE
    assert f"reaches {rule.stop_at:.0%} of the speed of light" in page
    assert f"`{rule.patience} + {rule.patience_per_e_fold:g} ln(T / T_sol)`" in page
    assert f"brought less than {rule.least_gain:.0%}" in page


def test_a_guided_budget_says_so():
    assert str(Budget(10, guided=True)) == "10 measurements, guided"
