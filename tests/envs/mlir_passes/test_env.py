"""What users of the environments count on, with small tasks."""

import inspect
import os
import pickle
import signal
import warnings
from contextlib import closing
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from solgym.envs.base import TuningEnv
from solgym.envs.mlir_passes.catalogue import ACTION_INDEX, ACTIONS, LEVELS
from solgym.envs.mlir_passes.client import PassFailure, PassWorker, default_pass_worker
from solgym.envs.mlir_passes.env import MLIRPassesEnv
from solgym.envs.mlir_passes.features import FULL_NAMES, MQSS_NAMES, feature_table
from solgym.envs.mlir_passes.programs import PROGRAMS, SUITES
from solgym.envs.mlir_passes.sequence import MAX_ACTIONS, PassSequence
from solgym.envs.registration import environments
from solgym.errors import InvalidOption, InvalidSchedule, UnknownTask
from solgym.hardware.measurement import Measurement, Status
from tests.envs.mlir_passes.settings import QUIET, SMALL_TASKS

FAMILY = [environment for environment in environments() if environment.family == "MLIRPasses"]
IDS = [environment.id for environment in FAMILY if environment.id != "MLIRPasses-v0"]
GEMM = "MLIRPasses-Gemm-v0"


def arguments(env_id, **more):
    program = gym.spec(env_id).kwargs.get("program")
    task = SMALL_TASKS[program or "gemm" if env_id != "MLIRPasses-ML-v0" else "softmax"]
    return {"task": task, **QUIET, **more}


def make(env_id=GEMM, **more):
    return gym.make(env_id, **arguments(env_id, **more))


def act(env, name):
    return env.step(env.unwrapped.action_meanings().index(name))


# ------------------------------------------------------------------ contracts


@pytest.mark.parametrize("env_id", IDS)
def test_the_checkers_are_content(env_id):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(env_id).unwrapped)
        checker.check_env(make(env_id))


@pytest.mark.parametrize("env_id", IDS)
def test_environments_pickle_and_are_seeded(env_id):
    env = make(env_id)
    first, _ = env.reset(seed=5)
    twin = pickle.loads(pickle.dumps(env))
    again, info = twin.reset(seed=5)
    assert info["task"] == env.unwrapped.task.id
    measured = np.array([name.startswith(("attempt_", "score_", "bound_")) for name in FULL_NAMES])
    assert np.array_equal(first[~measured], again[~measured])


@pytest.mark.parametrize("observation", ["mqss", "full", "text"])
@pytest.mark.parametrize("mask", [False, True])
def test_gymnasiums_checker_is_content_with_every_observation(observation, mask):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(observation=observation, mask_in_observation=mask).unwrapped)


def _maker(env_id):
    return lambda: make(env_id, reward_at="end")


def test_ids_run_in_spawned_processes():
    chosen = IDS[:: max(1, len(IDS) // 3)][:4]
    vector = gym.vector.AsyncVectorEnv([_maker(env_id) for env_id in chosen], context="spawn")
    try:
        observations, infos = vector.reset(seed=1)
        assert observations.shape == (len(chosen), len(FULL_NAMES))
        actions = np.array([int(np.flatnonzero(row)[-1]) for row in infos["action_mask"]])
        observations, _, _, _, infos = vector.step(actions)
        assert all(status == "ok" for status in infos["status"]), infos["error"]
    finally:
        vector.close()


def test_vector_environments_are_made():
    vector = gym.make_vec(GEMM, num_envs=2, vectorization_mode="sync", **arguments(GEMM))
    observations, infos = vector.reset(seed=0)
    assert observations.shape == (2, len(FULL_NAMES))
    assert infos["action_mask"].shape == (2, len(ACTIONS))
    vector.close()


def test_maskable_ppo_finds_the_masks():
    utils = pytest.importorskip("sb3_contrib.common.maskable.utils")
    env = make()
    env.reset(seed=0)
    assert utils.is_masking_supported(env)
    assert np.array_equal(utils.get_action_masks(env), env.unwrapped.action_masks())


# ------------------------------------------------------------------ episodes


def test_an_episode_builds_a_pipeline_step_by_step():
    env = make()
    _, info = env.reset(seed=0)
    assert info["level"] == "tensor"
    for name, level in (("bufferize", "linalg"), ("linalg-to-affine", "affine"), ("affine-lower", "scf")):
        _, _, terminated, truncated, info = act(env, name)
        assert info["status"] == "ok", info["error"]
        assert not info["unchanged"]
        assert info["level"] == level
        assert not terminated
        assert not truncated
    assert PassSequence.from_json(info["candidate"]).actions == (
        "bufferize",
        "linalg-to-affine",
        "affine-lower",
    )
    _, _, terminated, _, info = act(env, "finish")
    assert terminated
    assert info["measurements_used"] == 3


def test_an_action_that_changes_nothing_says_so_and_measures_nothing():
    env = make()
    env.reset(seed=0)
    used = env.unwrapped.measurements_used
    _, reward, _, _, info = act(env, "canonicalize")
    assert info["status"] == "ok"
    assert info["unchanged"]
    assert reward == 0.0
    assert info["measurements_used"] == used
    _, _, _, _, info = act(env, "bufferize")
    assert not info["unchanged"]


def test_what_came_to_nothing_is_not_offered_again_in_the_same_state():
    env = make(reward_at="end")
    canonicalize = ACTION_INDEX["canonicalize"]
    for _ in range(2):
        env.reset(seed=0)
        assert env.unwrapped.action_masks()[canonicalize]
        _, _, _, _, info = act(env, "canonicalize")
        assert info["unchanged"]
        assert not info["action_mask"][canonicalize]
        assert "changed nothing" in env.unwrapped.explain(canonicalize)
        _, reward, _, _, info = act(env, "canonicalize")
        assert (info["status"], reward) == ("illegal", env.unwrapped.failure_penalty)
        act(env, "bufferize")
        assert env.unwrapped.action_masks()[canonicalize]


def test_nothing_is_offered_where_a_sequence_is_as_long_as_it_may_be():
    env = make(reward_at="end")
    task = env.unwrapped.tasks[0]
    longest = PassSequence(task, ("canonicalize",) * MAX_ACTIONS)
    _, info = env.reset(seed=0, options={"schedule": longest})
    assert np.flatnonzero(info["action_mask"]).tolist() == [0]
    assert "at most" in env.unwrapped.explain(ACTION_INDEX["bufferize"])


def test_a_limit_given_for_another_baseline_does_not_stop_this_one():
    policy = replace(QUIET["policy"], slow_factor=1.5, baseline_s=1e-9)
    env = make(**{**QUIET, "policy": policy}, task="gemm/f32/m96n96k96")
    env.reset(seed=0)
    assert env.unwrapped.baseline.ok


def test_actions_that_change_nothing_are_left_out_of_the_path_to_a_candidate():
    env = make(reward_at="end").unwrapped
    env.choose_task()
    sequence = PassSequence(env.task.id, ("canonicalize", "bufferize"))
    assert env.proposals().path_to(sequence) == (ACTION_INDEX["bufferize"],)


def test_a_candidate_that_fails_is_not_offered_again_where_it_was_found(monkeypatch):
    env = make()
    env.reset(seed=0)
    tile, bufferize = ACTION_INDEX["tile-contraction-m8-n8-k1"], ACTION_INDEX["bufferize"]
    failed = Measurement.failed(Status.WRONG_RESULT, "all of it is wrong")
    with monkeypatch.context() as patched:
        patched.setattr(TuningEnv, "evaluate", lambda *_: failed)
        _, _, _, _, info = env.step(tile)
    assert info["status"] == "wrong_result"
    assert not info["action_mask"][tile]
    assert info["action_mask"][bufferize]
    env.step(bufferize)
    assert env.unwrapped.state.candidate.actions == ("bufferize",)


def test_the_same_machine_code_is_not_timed_again():
    env = make(task="gemm/f32/m40n40k40")
    env.reset(seed=0)
    act(env, "bufferize")
    before = env.unwrapped.last_measurement
    _, reward, _, _, info = act(env, "linalg-to-scf")  # the finishing pipeline would have done the same
    after = env.unwrapped.last_measurement
    assert info["level"] == "scf"
    assert after.artifact_digest == before.artifact_digest
    assert after.samples_s == before.samples_s
    assert reward == 0.0
    assert info["measurements_used"] == 2
    env.reset()
    act(env, "tile-contraction-m8-n8-k1")
    assert env.unwrapped.last_measurement.artifact_digest != before.artifact_digest
    assert env.unwrapped.last_measurement.samples_s != before.samples_s


def test_masked_actions_are_refused_with_a_reason_and_undone():
    env = make()
    env.reset(seed=0)
    before = default_pass_worker().code(env.unwrapped.task, ())
    _, reward, _, _, info = act(env, "affine-tile-8")
    assert info["status"] == "illegal"
    assert info["illegal_because"]
    assert reward == env.unwrapped.failure_penalty
    assert default_pass_worker().code(env.unwrapped.task, ()) == before


def test_a_crash_in_the_middle_of_an_episode_costs_the_penalty_and_nothing_else():
    env = make(reward_at="end")
    env.reset(seed=0)
    act(env, "bufferize")
    before = default_pass_worker().code(env.unwrapped.task, ("bufferize",))
    worker = default_pass_worker()
    os.kill(worker._process.pid, signal.SIGSTOP)
    worker.pass_timeout_s = 0.3
    try:
        _, reward, terminated, _, info = act(env, "linalg-to-affine")
    finally:
        worker.pass_timeout_s = 5.0
    assert info["status"] == "timeout"
    assert reward == env.unwrapped.failure_penalty
    assert not terminated
    assert worker.code(env.unwrapped.task, ("bufferize",)) == before
    _, _, _, _, info = act(env, "linalg-to-affine")
    assert info["status"] == "ok", info["error"]


def test_an_action_that_hung_twice_on_a_module_is_not_tried_on_it_again(monkeypatch):
    asked = []

    def hang(self, source, actions, action, *arguments):
        asked.append(action)
        return PassFailure(Status.TIMEOUT, "it did not end")

    task = "gemm/f32/m31n35k37"
    action = ACTION_INDEX["canonicalize"]
    statuses = []
    for number in range(2):
        with monkeypatch.context() as patched, closing(MLIRPassesEnv("gemm", task=task, **QUIET)) as env:
            patched.setattr(PassWorker, "step", hang)
            env.reset(seed=number)
            for _ in range(2):
                _, reward, terminated, _, info = env.step(action)
                assert (reward, terminated) == (-1.0, False)
                statuses.append(info["status"])
    assert statuses == ["timeout", "timeout", "crashed", "illegal"]
    assert asked == ["canonicalize"] * 2


def test_equal_actions_give_equal_modules_and_two_environments_do_not_mix():
    rng = np.random.default_rng(0)
    first, second = make(reward_at="end"), make("MLIRPasses-Softmax-v0", reward_at="end")
    (_, one), (_, two) = first.reset(seed=0), second.reset(seed=0)
    for _ in range(8):
        for env, info in ((first, one), (second, two)):
            offered = np.flatnonzero(info["action_mask"][1:]) + 1
            result = env.step(int(rng.choice(offered)))[-1]
            info.update(result)
    for env in (first, second):
        task, actions = env.unwrapped.task, env.unwrapped.state.candidate.actions
        kept = default_pass_worker().code(task, actions)
        default_pass_worker().close()
        assert default_pass_worker().code(task, actions) == kept


def test_observations_are_fresh_bounded_and_named():
    env = make(observation="mqss")
    first, _ = env.reset(seed=0)
    assert first.shape == (28,)
    assert env.unwrapped.feature_names == MQSS_NAMES
    second = act(env, "bufferize")[0]
    assert second is not first
    assert not np.array_equal(first, second)
    assert env.observation_space.contains(second)
    text, _ = make(observation="text").reset(seed=0)
    assert "linalg.matmul" in text


def test_the_episode_can_begin_with_a_sequence_or_the_expert():
    env = make()
    sequence = PassSequence(env.unwrapped.tasks[0], ("bufferize", "linalg-to-affine"))
    _, info = env.reset(seed=0, options={"schedule": sequence.to_json()})
    assert info["level"] == "affine"
    _, info = env.reset(options={"warm_start": "expert"})
    assert info["status"] == "ok", info["error"]
    with pytest.raises(InvalidSchedule):
        env.reset(options={"schedule": {"version": 1, "task": "gemm/f32/m1n1k1", "actions": ["no-such"]}})


def test_three_bad_rewards_in_a_row_bring_in_the_expert():
    env = make(fallback="expert")
    env.reset(seed=0)
    for count in range(3):
        _, _, terminated, _, info = act(env, "affine-tile-8")
        assert terminated is (count == 2)
    assert info["fallback"]
    assert info["status"] == "ok", info["error"]
    without = make()
    without.reset(seed=0)
    for _ in range(3):
        _, _, terminated, _, info = act(without, "affine-tile-8")
    assert not terminated
    assert not info["fallback"]


def test_both_code_generators_and_float_modes_can_be_chosen():
    for more in ({"jit": "mlir"}, {"float_mode": "strict"}, {"float_mode": "contract"}):
        env = make(**more)
        _, info = env.reset(seed=0)
        assert info["status"] == "ok", info["error"]
        _, _, _, _, info = act(env, "bufferize")
        assert info["status"] == "ok", info["error"]
        candidate = PassSequence.from_json(info["candidate"])
        assert {"jit": candidate.jit, "float_mode": candidate.float_mode}.items() >= more.items()


# ------------------------------------------------------------------ tasks and arguments


def test_suites_draw_their_programs_and_never_mix_the_splits():
    for suite, programs in SUITES.items():
        env_id = f"MLIRPasses-{suite}-v0"
        drawn = {
            split: set(gym.make(env_id, split=split, **QUIET).unwrapped.tasks) for split in ("train", "test")
        }
        assert not drawn["train"] & drawn["test"]
        for split, tasks in drawn.items():
            assert {task.split("/")[0] for task in tasks} == {p.name for p in programs if p.split == split}
        shapes = set(gym.make(env_id, split="test", held_out="shapes", **QUIET).unwrapped.tasks)
        assert not drawn["train"] & shapes
        assert {task.split("/")[0] for task in shapes} == {p.name for p in programs if p.split == "train"}
        assert len(gym.make(env_id, **QUIET).unwrapped.tasks) == len(programs)


def test_every_program_and_suite_has_an_id():
    assert {environment.arguments.get("program") for environment in FAMILY} >= set(PROGRAMS)
    assert {environment.arguments.get("suite") for environment in FAMILY} >= set(SUITES)
    assert "MLIRPasses-v0" in {environment.id for environment in FAMILY}


@pytest.mark.parametrize(
    "wrong",
    [
        {"observation": "pixels"},
        {"jit": "gcc"},
        {"float_mode": "fast"},
        {"fallback": "random"},
        {"held_out": "nothing"},
        {"threads": 2},
        {"max_steps": 10_000},
        {"program": "no_such"},
        {"program": 3},
        {"program": "gemm", "suite": "ML"},
        {"suite": "SPEC", "program": None},
        {"function": "other"},
    ],
    ids=str,
)
def test_wrong_arguments_get_one_sentence(wrong):
    with pytest.raises((InvalidOption, UnknownTask)) as caught:
        MLIRPassesEnv(**{"program": "gemm", **QUIET, **wrong})
    assert "\n" not in str(caught.value)


def test_tasks_of_other_programs_are_refused():
    with pytest.raises(UnknownTask, match="MLIRPasses-Softmax-v0"):
        make(task=SMALL_TASKS["softmax"])


@pytest.mark.slow
def test_many_episodes_keep_memory_flat():
    env = make(reward_at="end", max_steps=6)
    env.reset(seed=0)
    rng = np.random.default_rng(0)

    def episodes(count):
        for _ in range(count):
            _, info = env.reset()
            done = False
            while not done:
                offered = np.flatnonzero(info["action_mask"])
                _, _, terminated, truncated, info = env.step(int(rng.choice(offered)))
                done = terminated or truncated
        return _resident(os.getpid()), _resident(default_pass_worker()._process.pid)

    mine, workers = episodes(100)
    mine_after, workers_after = episodes(400)
    assert mine_after - mine < 40 << 20
    assert workers_after - workers < 150 << 20


def _resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_manual_holds_the_tables():
    manual = inspect.cleandoc(MLIRPassesEnv.__doc__ or "")
    assert feature_table() in manual
    for level in LEVELS:
        assert f"\n| `{level}` |" in manual
    for name in inspect.signature(MLIRPassesEnv).parameters:
        assert name == "arguments" or f"\n* `{name}`:" in manual


def test_every_float_mode_and_code_generator_has_a_baseline_of_its_own():
    modes = ({}, {"float_mode": "strict"}, {"jit": "mlir"})
    baselines = []
    for more in modes:
        env = make(task="gemm/f32/m21n22k23", **more).unwrapped
        env.reset(seed=0)
        baselines.append(env.baseline)
    assert len({id(baseline) for baseline in baselines}) == 3


def test_a_candidate_that_is_none_is_refused():
    env = make().unwrapped
    env.reset(seed=0)
    for actions in (("canonicalize",) * 201, ("a\nb",), ("finish",), (1,)):
        with pytest.raises(InvalidSchedule):
            env.evaluate(PassSequence(env.task.id, actions))
    with pytest.raises(InvalidSchedule, match="float_mode"):
        env.evaluate(PassSequence(env.task.id, (), float_mode="fast"))


def test_an_expert_that_fails_leaves_what_was_measured(monkeypatch):
    env = make(fallback="expert", reward_at="end").unwrapped
    env.reset(seed=0)
    failed = Measurement.failed(Status.WRONG_RESULT, "on purpose")
    monkeypatch.setattr(env, "evaluate", lambda candidate: failed)
    act(env, "bufferize")
    for _ in range(3):
        _, reward, terminated, _, info = act(env, "affine-tile-8")
    assert terminated
    assert reward == -1.0
    assert info["fallback"]
    assert info["status"] == "wrong_result"
    assert PassSequence.from_json(info["candidate"]).actions == ()
    assert info["speedup"] == 1.0
