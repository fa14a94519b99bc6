"""What Gymnasium and Stable-Baselines3 expect of every id, with real measurements of small tasks."""

import multiprocessing
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from solgym.envs.registration import environments
from solgym.hardware.measurement import MeasurePolicy, Status
from tests.envs.fakes import PROFILE, SMALL_TASKS

QUICK = MeasurePolicy(
    warmup=1, min_repeats=3, max_repeats=3, max_seconds=0.01, unstable_ci=1e6, target_ci=1e6
)
IDS = [environment.id for environment in environments() if environment.family == "KernelDSL"]


def arguments(env_id, **more):
    kernel = gym.spec(env_id).kwargs["kernel"]
    return {"task": SMALL_TASKS[kernel], "profile": PROFILE, "policy": QUICK, **more}


def make(env_id, **more):
    return gym.make(env_id, **arguments(env_id, **more))


@pytest.fixture(params=IDS)
def env_id(request):
    return request.param


def test_gymnasiums_checker_is_content(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(env_id).unwrapped)


@pytest.mark.parametrize("more", [{"action_mode": "knobs"}, {"mask_in_observation": True}], ids=str)
def test_gymnasiums_checker_is_content_with_other_spaces(more):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(IDS[0], **more).unwrapped)


def test_stable_baselines_checker_is_content(env_id):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(make(env_id))


def test_measured_candidates_are_correct(env_id):
    env = make(env_id, max_steps=12)
    _, info = env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(12):
        legal = np.flatnonzero(info["action_mask"])
        _, _, terminated, truncated, info = env.step(int(rng.choice(legal)))
        assert info["status"] == Status.OK, info["error"]
        if terminated or truncated:
            break


def test_environments_pickle(env_id):
    env = make(env_id)
    env.reset(seed=0)
    twin = pickle.loads(pickle.dumps(env))
    assert twin.action_space == env.action_space
    assert twin.observation_space == env.observation_space
    _, info = twin.reset(seed=0)
    assert info["task"] == env.unwrapped.task.id


def test_vector_environments_are_made(env_id):
    vector = gym.make_vec(env_id, num_envs=2, vectorization_mode="sync", **arguments(env_id))
    observations, infos = vector.reset(seed=0)
    assert observations.shape == (2, *vector.single_observation_space.shape)
    assert infos["action_mask"].shape == (2, vector.single_action_space.n)
    vector.step(vector.action_space.sample())
    vector.close()


def _maker(env_id):
    # At module level and by name: a spawned process imports this module and so registers the environments.
    return lambda: make(env_id)


def test_all_ids_run_in_spawned_processes():
    assert "spawn" in multiprocessing.get_all_start_methods()
    for start in range(0, len(IDS), 5):
        vector = gym.vector.AsyncVectorEnv([_maker(i) for i in IDS[start : start + 5]], context="spawn")
        try:
            observations, infos = vector.reset(seed=1)
            assert observations.shape[0] == 5
            mask = infos["action_mask"].astype(np.int8)
            actions = np.array([int(np.flatnonzero(row)[-1]) for row in mask])
            observations, _, _, _, infos = vector.step(actions)
            assert all(status == "ok" for status in infos["status"]), infos["error"]
            assert np.isfinite(observations).all()
        finally:
            vector.close()


def test_maskable_ppo_finds_the_masks():
    utils = pytest.importorskip("sb3_contrib.common.maskable.utils")
    env = make(IDS[0])
    env.reset(seed=0)
    assert utils.is_masking_supported(env)
    assert np.array_equal(utils.get_action_masks(env), env.unwrapped.action_masks())
