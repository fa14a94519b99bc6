import numpy as np
import pytest

from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.envs.wrappers import LegalActions, MeasurementBudget
from solgym.errors import InvalidAction, InvalidOption
from tests.envs.fakes import PROFILE, FakeTarget


def make(**arguments):
    return KernelDSLEnv("gemm", task="gemm/f32/m60n60k60", target=FakeTarget(), profile=PROFILE, **arguments)


def test_illegal_actions_are_replaced_by_legal_ones():
    env = LegalActions(make())

    def replacements():
        _, info = env.reset(seed=4)
        done = []
        for _ in range(5):
            illegal = int(np.flatnonzero(info["action_mask"] == 0)[-1])
            legal = info["action_mask"]
            *_, info = env.step(illegal)
            assert info["status"] == "ok"
            assert legal[info["replaced_action"]]
            done.append(info["replaced_action"])
            if info["replaced_action"] == 0:
                break
        return done

    assert replacements() == replacements()


def test_legal_actions_pass():
    env = LegalActions(make())
    env.reset(seed=0)
    action = env.unwrapped.action_meanings().index("split loop 0 by 4")
    *_, info = env.step(action)
    assert info["replaced_action"] == -1
    with pytest.raises(InvalidAction):
        env.step(10**6)


def test_legal_actions_need_a_flat_action_space():
    with pytest.raises(InvalidOption, match="Discrete"):
        LegalActions(make(action_mode="knobs"))


def test_a_budget_ends_episodes():
    env = MeasurementBudget(make(), measurements=3)
    env.reset(seed=0)
    meanings = env.unwrapped.action_meanings()
    ends = []
    for action in ("split loop 0 by 4", "split loop 13 by 2", "split loop 2 by 4", "split loop 0 by 2"):
        *_, terminated, truncated, _ = env.step(meanings.index(action))
        assert not terminated
        ends.append(truncated)
    assert ends == [False, False, False, True]
    assert env.exhausted
    with pytest.raises(InvalidOption, match="at least 1"):
        MeasurementBudget(make(), measurements=0)
