import numpy as np
import pytest

from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.envs.kernel_dsl.kernels import KERNELS
from solgym.envs.kernel_dsl.schedule import Schedule
from tests.envs.fakes import PROFILE, SMALL_TASKS, FakeTarget


def make(name, **arguments):
    arguments.setdefault("task", KERNELS[name].default_task_id)
    return KernelDSLEnv(name, action_mode="knobs", target=FakeTarget(), profile=PROFILE, **arguments)


@pytest.mark.parametrize("name", KERNELS)
def test_one_action_is_a_whole_schedule(name):
    env = make(name)
    env.reset(seed=0)
    config = env.knobs.sample(np.random.default_rng(0))
    action = np.array(env.knobs.encode(config))
    assert env.explain(action) is None
    _, reward, terminated, truncated, info = env.step(action)
    assert (terminated, truncated) == (True, False)
    assert Schedule.from_json(info["candidate"]) == env.knobs.schedule_from(config)
    assert reward == pytest.approx(info["gap_closed"])


def test_the_space_is_the_same_for_all_shapes_and_types():
    spaces = {
        str(make("gemm", task=task).action_space) for task in ("gemm/f32/m7n5k3", "gemm/f64/m512n512k512")
    }
    assert len(spaces) == 1


@pytest.mark.parametrize("name", KERNELS)
def test_masks_and_meanings_cover_all_choices(name):
    env = make(name, task=SMALL_TASKS[name])
    _, info = env.reset(seed=0)
    count = int(env.action_space.nvec.sum())
    assert info["action_mask"].shape == (count,)
    assert len(env.action_meanings()) == count
    assert len(set(env.action_meanings())) == count


def test_impossible_combinations_are_illegal_with_a_reason():
    env = make("gemm", max_steps=50)
    env.reset(seed=0)
    env.action_space.seed(0)
    statuses = set()
    for _ in range(50):
        action = env.action_space.sample()
        because = env.explain(action)
        *_, info = env.step(action)
        assert info["illegal_because"] == (because or "")
        assert (info["status"] == "illegal") == (because is not None)
        statuses.add(info["status"])
        if not env._running:
            break
    assert statuses == {"ok", "illegal"}


def test_several_steps_improve_on_each_other():
    env = make("gemm", max_steps=4)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    rewards = []
    for _ in range(4):
        _, reward, terminated, truncated, info = env.step(np.array(env.knobs.encode(env.knobs.sample(rng))))
        rewards.append(reward)
    assert (terminated, truncated) == (False, True)
    assert sum(rewards) == pytest.approx(info["gap_closed"])
