import math
from types import SimpleNamespace

import pytest

from solgym.envs.rewards import REWARDS, Relative, SolWeighted, Timing, resolve_reward
from solgym.errors import InvalidOption

BOUND = SimpleNamespace(time_s=1.0, terms={"compute": 1.0, "L2": 0.5, "launch": 0.0})
BASELINE_S = math.e**2


def at(time_s: float) -> Timing:
    return Timing(time_s, BASELINE_S, BOUND)


def test_gap_closed_is_the_difference_of_scores():
    reward = REWARDS["gap_closed"]
    assert reward(at(BASELINE_S), at(math.e)) == pytest.approx(0.5)
    assert reward(at(math.e), at(1.0)) == pytest.approx(0.5)
    assert reward(at(math.e), at(BASELINE_S)) == pytest.approx(-0.5)


def test_log_speedup():
    assert REWARDS["log_speedup"](at(math.e), at(1.0)) == pytest.approx(1.0)


def test_relative_ignores_changes_below_its_threshold():
    reward = REWARDS["relative"]
    assert reward(at(2.0), at(1.0)) == pytest.approx(0.5)
    assert reward(at(1.0), at(1.5)) == pytest.approx(-0.5)
    assert reward(at(1.0), at(0.996)) == 0.0
    assert reward(at(1.0), at(1.004)) == 0.0
    assert Relative(threshold=0.0)(at(1.0), at(0.996)) == pytest.approx(0.004)


def test_sol_weighted_adds_utilisations():
    reward = SolWeighted(relative_weight=1.0, compute_weight=0.5, bandwidth_weight=0.25)
    assert reward(at(4.0), at(2.0)) == pytest.approx(0.5 + 0.5 * 1.0 / 2.0 + 0.25 * 0.5 / 2.0)


def test_inverse_time_is_paid_for_the_state_after_the_step_alone():
    reward = REWARDS["inverse_time"]
    assert reward(at(5.0), at(0.002)) == reward(at(0.002), at(0.002)) == pytest.approx(0.5)


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize(("before", "after"), [(5.0, 1.0), (1.0, 5.0), (2.0, 2.0), (1e-6, 7.0), (7.0, 1e-6)])
def test_rewards_keep_to_their_range(name, before, after):
    reward = REWARDS[name]
    assert reward.name == name
    assert reward.low <= reward(at(before), at(after)) <= reward.high


def test_rewards_resolve_by_name_or_object():
    assert resolve_reward("relative") is REWARDS["relative"]
    custom = Relative(threshold=0.1)
    assert resolve_reward(custom) is custom
    names = "gap_closed, log_speedup, relative, sol_weighted, inverse_time"
    with pytest.raises(InvalidOption, match=f"choose one of {names}"):
        resolve_reward("speed")
