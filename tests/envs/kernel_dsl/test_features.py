import inspect

import numpy as np
import pytest

from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.envs.kernel_dsl.features import FEATURE_NAMES, feature_limits, feature_table
from solgym.envs.kernel_dsl.kernels import KERNELS
from tests.envs.fakes import PROFILE, SMALL_TASKS, FakeTarget


def observed(name, task=None, **arguments):
    env = KernelDSLEnv(name, task=task, target=FakeTarget(), profile=PROFILE, **arguments)
    observation, _ = env.reset(seed=0)
    return env, dict(zip(env.feature_names, observation, strict=True))


def test_names_are_unique_and_as_many_as_numbers():
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)
    low, high = feature_limits()
    assert low.shape == high.shape == (len(FEATURE_NAMES),)


def test_the_manual_holds_the_table_of_features():
    assert feature_table() in inspect.cleandoc(KernelDSLEnv.__doc__ or "")


@pytest.mark.parametrize("name", KERNELS)
def test_static_features_say_what_the_task_is(name):
    env, features = observed(name, SMALL_TASKS[name])
    assert features[f"kernel_{env.kernel.family}"] == 1.0
    assert features["kernel_f32"] == 1.0
    assert features["kernel_f64"] == 0.0
    for slot, extent in enumerate(env.task.extents.values()):
        assert features[f"extent_{slot}_log2"] == pytest.approx(np.log2(extent) / 24)


@pytest.mark.parametrize("name", KERNELS)
def test_default_tasks_stay_within_the_limits_without_clipping(name):
    env, features = observed(name)
    inside = [value for value in features.values() if -1.0 < value < 1.0 or value in (-1.0, 0.0, 1.0)]
    assert len(inside) == len(features)
    assert 0 < features["work_log2_bytes"] < 1
    assert env.observation_space.shape == (len(FEATURE_NAMES),)


def test_loops_are_described():
    env, features = observed("gemm", "gemm/f32/m8n16k4")
    assert [features[f"loop_{slot}_present"] for slot in range(4)] == [1, 1, 1, 0]
    assert [features[f"loop_{slot}_reduction"] for slot in range(3)] == [0, 0, 1]
    assert features["loop_1_log2_trips"] == pytest.approx(4 / 24)
    observation, *_ = env.step(env.action_meanings().index("reorder loop 1 to innermost"))
    observation, *_ = env.step(env.action_meanings().index("vectorize lanes 16"))
    features = dict(zip(env.feature_names, observation, strict=True))
    assert features["loop_2_vector"] == 1.0
    assert features["tensor_0_invariant"] == 1.0
    assert features["tensor_1_contiguous"] == 1.0
    assert features["stage_0_vectorised"] == 1.0


def test_strided_walks_are_seen():
    _, features = observed("gemm", "gemm/f32/m8n16k4")
    assert features["tensor_0_contiguous"] == 1.0
    assert features["tensor_1_strided"] == 1.0


def test_the_last_attempt_and_the_score_are_seen():
    env, features = observed("gemm", "gemm/f32/m8n16k4", max_steps=10)
    assert features["attempt_ok"] == 1.0
    assert features["score_gap_closed"] == 0.0
    assert features["episode_steps_left"] == 1.0
    observation, _, _, _, info = env.step(env.action_meanings().index("split loop 13 by 2"))
    features = dict(zip(env.feature_names, observation, strict=True))
    assert features["attempt_illegal"] == 1.0
    assert features["attempt_ok"] == 0.0
    assert features["episode_steps_left"] == pytest.approx(0.9)
    observation, _, _, _, info = env.step(env.action_meanings().index("split loop 0 by 2"))
    features = dict(zip(env.feature_names, observation, strict=True))
    assert features["score_gap_closed"] == pytest.approx(info["gap_closed"], rel=1e-5)
    assert features["score_log10_speedup"] == pytest.approx(np.log10(info["speedup"]) / 5, rel=1e-5)
