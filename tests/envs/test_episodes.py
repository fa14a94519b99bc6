"""The contract of ``TuningEnv``, on a target whose times follow from the candidate alone."""

import copy
import itertools
import json
import math
import pickle
import typing

import gymnasium as gym
import numpy as np
import pytest

from solgym.envs import measuring
from solgym.envs.base import EPISODES_PER_INPUTS
from solgym.envs.info import StepInfo
from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.errors import (
    ClosedEnvironment,
    InvalidAction,
    InvalidOption,
    InvalidSchedule,
    UnknownTask,
    UnsupportedTarget,
)
from solgym.hardware.measurement import Measurement, MeasurePolicy, Status
from solgym.hardware.target import Failure
from tests.envs.fakes import BASELINE_S, PROFILE, FakeTarget

TASK = "gemm/f32/m60n60k60"


def make(kernel="gemm", target=None, **arguments):
    if "split" not in arguments:
        arguments.setdefault("task", TASK)
    return KernelDSLEnv(kernel, target=target or FakeTarget(), profile=PROFILE, **arguments)


def index_of(env, meaning):
    return env.action_meanings().index(meaning)


def legal_action(env, rng, exclude=("finish",)):
    legal = [a for a in np.flatnonzero(env.action_masks()) if env.action_meanings()[a] not in exclude]
    return int(rng.choice(legal))


def run_episode(env, seed, illegal_every=0):
    rng = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    rewards, infos, over = [], [info], False
    while not over:
        if illegal_every and len(rewards) % illegal_every == illegal_every - 1:
            action = int(rng.choice(np.flatnonzero(~env.action_masks())))
        else:
            action = legal_action(env, rng)
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        infos.append(info)
        over = terminated or truncated
    return rewards, infos


# ---------------------------------------------------------------------------------------------- rewards


@pytest.mark.parametrize("reward_at", ["step", "end"])
@pytest.mark.parametrize("seed", range(5))
def test_returns_telescope_to_the_final_score(reward_at, seed):
    rewards, infos = run_episode(make(reward_at=reward_at, max_steps=12), seed)
    assert sum(rewards) == pytest.approx(infos[-1]["gap_closed"])
    if reward_at == "end":
        assert rewards[:-1] == [0.0] * 11


def test_rewards_at_the_end_measure_only_the_last_schedule():
    env = make(reward_at="end", max_steps=12)
    _, infos = run_episode(env, 0)
    assert env.measurements_used == 1
    assert [info["measurements_used"] for info in infos] == [0] * 12 + [1]
    assert all(math.isnan(info["attempt_s"]) for info in infos[1:-1])
    assert infos[-1]["time_s"] == infos[-1]["attempt_s"]


def test_an_illegal_last_action_and_a_failing_last_schedule_both_cost():
    env = make(target=FakeTarget(failing=Status.WRONG_RESULT), reward_at="end", max_steps=2)
    env.reset(seed=0)
    _, first, *_ = env.step(index_of(env, "split loop 0 by 4"))
    *_, last, _, truncated, info = env.step(index_of(env, "split loop 13 by 2"))
    assert (first, last, truncated) == (0.0, -2.0, True)
    assert info["gap_closed"] == 0.0
    assert json.loads(info["candidate"])["steps"] == []


def test_log_speedups_telescope_too():
    rewards, infos = run_episode(make(reward="log_speedup", max_steps=12), 3)
    assert sum(rewards) == pytest.approx(math.log(infos[-1]["speedup"]))


@pytest.mark.parametrize("reward_at", ["step", "end"])
def test_failures_cost_their_penalty_and_nothing_else(reward_at):
    env = make(reward_at=reward_at, max_steps=12, failure_penalty=-0.25)
    rewards, infos = run_episode(env, 1, illegal_every=3)
    assert [info["status"] for info in infos].count("illegal") == 4
    assert sum(rewards) == pytest.approx(infos[-1]["gap_closed"] - 4 * 0.25)


def test_a_start_ahead_of_the_baseline_is_not_paid_for():
    env = make(max_steps=1)
    split = {"op": "split", "stage": "C", "loop": "i", "factor": 4}
    _, start = env.reset(seed=0, options={"schedule": Schedule(TASK, (split,))})
    assert start["gap_closed"] > 0
    *_, reward, terminated, _, info = env.step(index_of(env, "unroll loop 1"))
    assert reward == pytest.approx(info["gap_closed"] - start["gap_closed"])
    assert terminated


# --------------------------------------------------------------------------------------------- failures


def test_an_illegal_action_is_explained_and_changes_nothing():
    env = make()
    env.reset(seed=0)
    _, _, _, _, before = env.step(index_of(env, "reorder loop 2 to outermost"))
    state = env.state
    action = index_of(env, "split loop 13 by 2")
    _, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated) == (-1.0, False, False)
    assert info["status"] == "illegal"
    assert info["illegal_because"] == info["error"] == env.explain(action)
    assert "slot 13 is empty" in info["illegal_because"]
    assert env.state is state
    assert info["time_s"] == before["time_s"]
    assert info["measurements_used"] == before["measurements_used"]
    assert env.last_measurement.status is Status.ILLEGAL


@pytest.mark.parametrize(
    "status", [s for s in Status if s not in (Status.OK, Status.UNSTABLE, Status.FASTER_THAN_LIGHT)]
)
def test_a_failed_candidate_is_a_value_and_changes_nothing(status):
    env = make(target=FakeTarget(failing=status))
    env.reset(seed=0)
    state = env.state
    _, reward, terminated, truncated, info = env.step(index_of(env, "split loop 0 by 4"))
    assert (reward, terminated, truncated) == (-1.0, False, False)
    assert info["status"] == status.value
    assert info["error"] == "it failed on purpose"
    assert info["illegal_because"] == ""
    assert math.isnan(info["attempt_s"])
    assert info["time_s"] == BASELINE_S
    assert env.state is state
    assert env.best is None


def test_a_baseline_that_fails_counts_as_the_time_limit():
    class Slow(FakeTarget):
        fingerprint = "slow"

        def measure(self, artifact, task, policy=None, seed=0, sol_time_s=None):
            return Measurement.failed(Status.TIMEOUT, "too slow")

    env = make(target=Slow(), policy=MeasurePolicy(timeout_s=100.0))
    _, info = env.reset(seed=0)
    assert info["baseline_s"] == 100.0
    assert env.baseline.status is Status.TIMEOUT


def test_candidates_are_measured_against_the_baseline_and_the_baseline_against_nothing():
    class Watching(FakeTarget):
        fingerprint = "watching"

        def measure(self, artifact, task, policy=None, seed=0, sol_time_s=None):
            policies.append(policy)
            return super().measure(artifact, task, policy, seed, sol_time_s)

    policies = []
    env = make(target=Watching(), policy=MeasurePolicy(slow_factor=30.0))
    env.reset(seed=0)
    env.step(index_of(env, "split loop 0 by 4"))
    env.choose_task("gemm/f32/m8n8k8")
    env.evaluate(env.untouched)
    assert [policy.baseline_s for policy in policies] == [None, BASELINE_S, None]
    assert policies[1].slow_s == 30 * BASELINE_S


def test_a_baseline_whose_compiler_ran_out_of_time_is_compiled_again():
    class Busy(FakeTarget):
        fingerprint = "busy"
        failures = 2

        def compile(self, candidate, task):
            if self.failures:
                self.failures -= 1
                return Failure(Status.TIMEOUT, "the machine was busy")
            return super().compile(candidate, task)

    assert make(target=Busy()).reset(seed=0)[1]["baseline_s"] == BASELINE_S


def test_a_baseline_that_something_disturbs_is_measured_again():
    class Disturbed(FakeTarget):
        fingerprint = "disturbed"
        failures = 2

        def measure(self, *arguments, **more):
            if self.failures:
                self.failures -= 1
                return Measurement.failed(Status.RUNTIME_ERROR, "memory ran out")
            return super().measure(*arguments, **more)

    target = Disturbed()
    assert make(target=target).reset(seed=0)[1]["baseline_s"] == BASELINE_S
    target.fingerprint, target.failures = "more disturbed", 3
    assert make(target=target).reset(seed=0)[1]["baseline_s"] == 60.0
    assert make(target=target).reset(seed=0)[1]["baseline_s"] == BASELINE_S, "no failure is remembered"


# ------------------------------------------------------------------------------------------ episode ends


def test_finish_terminates_with_the_schedule_in_force():
    env = make()
    env.reset(seed=0)
    _, _, _, _, before = env.step(index_of(env, "split loop 0 by 4"))
    _, reward, terminated, truncated, info = env.step(index_of(env, "finish"))
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info["candidate"] == before["candidate"]
    assert info["measurements_used"] == before["measurements_used"]


def test_the_step_limit_truncates():
    env = make(max_steps=2)
    env.reset(seed=0)
    *_, terminated, truncated, _ = env.step(index_of(env, "split loop 0 by 4"))
    assert (terminated, truncated) == (False, False)
    *_, terminated, truncated, _ = env.step(index_of(env, "split loop 0 by 2"))
    assert (terminated, truncated) == (False, True)
    with pytest.raises(InvalidAction, match="call reset"):
        env.step(0)


def test_reaching_the_speed_of_light_terminates():
    env = make()
    env.reset(seed=0)
    sol_s = env.bound.time_s
    fast = make(target=FakeTarget(slowest_s=sol_s * 1.04))
    fast.target.fingerprint = "fast"
    _, info = fast.reset(seed=0)
    assert not info["headroom"]
    assert info["sol_fraction"] >= 0.95
    *_, terminated, _, _ = fast.step(index_of(fast, "split loop 0 by 4"))
    assert terminated


# ------------------------------------------------------------------------------------------------ misuse


def test_misuse_raises_with_what_to_do():
    env = make()
    with pytest.raises(InvalidAction, match="call reset"):
        env.step(0)
    with pytest.raises(InvalidOption, match="call reset"):
        _ = env.task
    env.reset(seed=0)
    for action in (-1, 10**6, 1.5, "split"):
        with pytest.raises(InvalidAction, match="is not in Discrete"):
            env.step(action)
    env.close()
    env.close()
    with pytest.raises(ClosedEnvironment, match="make a new one"):
        env.reset()
    with pytest.raises(ClosedEnvironment):
        env.step(0)


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        ({"split": "validation"}, "'train' or 'test'"),
        ({"split": "train", "task": TASK}, "give one of them"),
        ({"reward": "speed"}, "choose one of"),
        ({"reward_at": "sometimes"}, "'step' or 'end'"),
        ({"stop_at": 1.5}, "fraction of the speed of light"),
        ({"stop_at": "x"}, "a number"),
        ({"failure_penalty": None}, "a number"),
        ({"target": 5}, "a target or its name"),
        ({"warm_start": 5}, "a method propose"),
        ({"failure_penalty": 1.0}, "0 or a finite negative number"),
        ({"failure_penalty": -math.inf}, "0 or a finite negative number"),
        ({"max_steps": 0}, "at least 1"),
        ({"max_steps": 1.5}, "an integer"),
        ({"threads": "2"}, "an integer"),
        ({"task": 5}, "a task id"),
        ({"policy": "fast"}, "a MeasurePolicy"),
        ({"reward": None}, "choose one of"),
        ({"render_mode": "video"}, "ansi"),
        ({"action_mode": "words"}, "'primitive' or 'knobs'"),
    ],
)
def test_arguments_are_checked(arguments, needle):
    with pytest.raises(InvalidOption, match=needle):
        make(**arguments)


def test_tasks_and_targets_are_checked():
    with pytest.raises(UnknownTask, match="KernelDSL-GEMV-v0"):
        make(task="gemv/f32/m3n3")
    with pytest.raises(UnknownTask, match="no kernel 'gem'"):
        KernelDSLEnv("gem")
    with pytest.raises(UnsupportedTarget):
        KernelDSLEnv("gemm", target="cuda")


@pytest.mark.parametrize(
    ("options", "error", "needle"),
    [
        ([TASK], InvalidOption, "must be a dict"),
        ({"task": ""}, UnknownTask, "does not read"),
        ({"taks": TASK}, InvalidOption, "it has task, warm_start, schedule"),
        ({"task": 3}, InvalidOption, "must be a task id"),
        ({"task": "gemm/f32/m3"}, UnknownTask, "m<number>n<number>k<number>"),
        ({"task": "gemv/f32/m3n3"}, UnknownTask, "KernelDSL-GEMV-v0"),
        ({"warm_start": "hot"}, InvalidOption, "none, expert, ranked"),
        ({"warm_start": "ranked"}, InvalidOption, "needs a ranker"),
        ({"warm_start": "expert", "schedule": {}}, InvalidOption, "give one of them"),
        ({"schedule": {"version": 0}}, InvalidSchedule, "version"),
    ],
)
def test_reset_options_are_checked(options, error, needle):
    env = make()
    with pytest.raises(error, match=needle):
        env.reset(options=options)


# ------------------------------------------------------------------------------------------ tasks, starts


def test_tasks_come_from_the_split():
    for split in ("train", "test"):
        env = make(split=split)
        assert env.tasks == env.kernel.task_ids(split)
        drawn = {env.reset(seed=seed)[1]["task"] for seed in range(40)}
        assert drawn <= set(env.tasks)
        assert len(drawn) > 3


def test_a_split_does_not_offer_the_other_ones_tasks():
    env = make(split="train")
    held_out = env.kernel.task_ids("test")[0]
    with pytest.raises(InvalidOption, match="test split"):
        env.reset(options={"task": held_out})
    assert make(split="test").reset(options={"task": held_out})[1]["task"] == held_out


def test_without_task_or_split_there_is_a_default_task():
    env = KernelDSLEnv("gemm", target=FakeTarget(), profile=PROFILE)
    assert env.tasks == ("gemm/f32/m512n512k512",)


def test_any_shape_can_be_asked_for():
    _, info = make().reset(seed=0, options={"task": "gemm/f64/m7n5k3"})
    assert info["task"] == "gemm/f64/m7n5k3"


def test_an_episode_can_begin_from_a_schedule_as_object_data_or_text():
    schedule = Schedule(TASK, ({"op": "split", "stage": "C", "loop": "i", "factor": 4},))
    for given in (schedule, schedule.to_json(), json.dumps(schedule.to_json())):
        env = make()
        _, info = env.reset(seed=0, options={"schedule": given})
        assert Schedule.from_json(info["candidate"]) == schedule
        assert info["status"] == "ok"
        assert info["measurements_used"] == 1


def test_a_start_that_does_not_apply_is_reported():
    env = make()
    bad = Schedule(TASK, ({"op": "split", "stage": "C", "loop": "z", "factor": 4},))
    _, info = env.reset(seed=0, options={"schedule": bad})
    assert info["status"] == "illegal"
    assert "no loop 'z'" in info["error"]
    assert Schedule.from_json(info["candidate"]).steps == ()
    env.step(index_of(env, "split loop 0 by 4"))


def test_expert_starts():
    env = make()
    _, info = env.reset(seed=0, options={"warm_start": "expert"})
    assert info["status"] == "ok"
    assert len(Schedule.from_json(info["candidate"]).steps) > 0


def test_ranked_starts_come_from_the_ranker():
    asked = []

    class Ranker:
        def propose(self, task, spec, profile, seed):
            asked.append((task.id, seed))
            return Schedule(task.id, ({"op": "split", "stage": "C", "loop": "i", "factor": 4},))

    env = make(warm_start=Ranker())
    for _ in range(2):
        _, info = env.reset(seed=5, options={"warm_start": "ranked"})
        assert len(Schedule.from_json(info["candidate"]).steps) == 1
    assert asked[0] == asked[1]


# --------------------------------------------------------------------------- info, observations, seeding


def test_info_has_the_documented_keys_and_types():
    env = make()
    kinds = typing.get_type_hints(StepInfo)
    _, info = env.reset(seed=0)
    for _ in range(2):
        assert set(info) == set(kinds)
        for name in kinds.keys() - {"action_mask"}:
            assert type(info[name]) is kinds[name], name
        assert info["action_mask"].dtype == np.int8
        assert env.action_space.sample(info["action_mask"]) in env.action_space
        *_, info = env.step(index_of(env, "split loop 13 by 2"))
    assert Schedule.from_json(info["candidate"]) == env.state.candidate


def test_scores_in_info_agree_with_the_formulas():
    env = make()
    env.reset(seed=0)
    *_, info = env.step(index_of(env, "split loop 0 by 4"))
    time_s, baseline_s, sol_s = info["time_s"], info["baseline_s"], info["sol_time_s"]
    assert info["speedup"] == baseline_s / time_s
    assert info["sol_fraction"] == sol_s / time_s
    assert info["gap_closed"] == pytest.approx(math.log(baseline_s / time_s) / math.log(baseline_s / sol_s))
    assert info["bound"] == env.bound.binding


def test_equal_seeds_give_equal_episodes():
    def trajectory():
        env = make(split="train")
        observation, info = env.reset(seed=11)
        rng = np.random.default_rng(0)
        seen = [(observation, 0.0, info["task"])]
        for _ in range(8):
            observation, reward, _, _, info = env.step(legal_action(env, rng))
            seen.append((observation, reward, info["candidate"]))
        return seen, env.target.seeds

    (first, first_seeds), (second, second_seeds) = trajectory(), trajectory()
    for (a, ra, ta), (b, rb, tb) in zip(first, second, strict=True):
        assert np.array_equal(a, b)
        assert (ra, ta) == (rb, tb)
    assert first_seeds[-8:] == second_seeds[-8:]


def test_inputs_are_drawn_anew_when_seeded_and_every_few_episodes():
    env = make()
    seen = []
    for seed in (1, 2, *[None] * (2 * EPISODES_PER_INPUTS)):
        env.reset(seed=seed)
        env.step(index_of(env, "split loop 0 by 4"))
        seen.append(env.target.seeds[-1])
    first, *rest = seen
    assert first not in rest
    runs = [len(list(run)) for _, run in itertools.groupby(rest)]
    assert runs == [EPISODES_PER_INPUTS, EPISODES_PER_INPUTS, 1]


def test_action_spaces_are_seeded_by_themselves():
    first, second = make(), make()
    first.action_space.seed(3)
    second.action_space.seed(3)
    assert [first.action_space.sample() for _ in range(5)] == [second.action_space.sample() for _ in range(5)]


@pytest.mark.parametrize("mask_in_observation", [False, True])
def test_observations_are_fresh_and_within_the_space(mask_in_observation):
    env = make(mask_in_observation=mask_in_observation)
    observation, info = env.reset(seed=0)
    kept = [observation]
    before = copy.deepcopy(observation)
    rng = np.random.default_rng(0)
    for _ in range(6):
        assert observation in env.observation_space
        observation, _, _, _, info = env.step(legal_action(env, rng))
        if mask_in_observation:
            assert np.array_equal(observation["action_mask"], info["action_mask"])
            assert not np.shares_memory(observation["action_mask"], info["action_mask"])
        kept.append(observation)
    arrays = [o["features"] if mask_in_observation else o for o in kept]
    assert all(not np.shares_memory(a, b) for a in arrays for b in arrays if a is not b)
    assert str(before) == str(kept[0])


def test_focus_measures_nothing():
    env = make(kernel="softmax", task="softmax/f32/rows8cols16")
    env.reset(seed=0)
    count = len(env.target.measured)
    _, reward, _, _, info = env.step(index_of(env, "focus stage 0"))
    assert (reward, info["status"], info["measurements_used"]) == (0.0, "ok", 0)
    assert env.state.focus == "m"
    assert len(env.target.measured) == count


def test_baselines_are_measured_once_per_process():
    target = FakeTarget()
    target.fingerprint = "counted"
    for _ in range(3):
        env = make(target=target)
        env.reset()
        env.reset()
    assert len(target.measured) == 1


def test_evaluate_measures_without_touching_the_episode():
    env = make()
    env.reset(seed=0)
    state = env.state
    measurement = env.evaluate(Schedule(TASK, ({"op": "split", "stage": "C", "loop": "i", "factor": 4},)))
    assert measurement.ok
    assert env.state is state
    assert env.measurements_used == 1
    assert env.best.measurement is measurement


# ------------------------------------------------------------------------------------- pickling, pictures


def test_environments_pickle_in_the_middle_of_an_episode():
    env = make()
    env.reset(seed=0)
    env.step(index_of(env, "split loop 0 by 4"))
    twin = pickle.loads(pickle.dumps(env))
    for action in ("split loop 1 by 2", "reorder loop 1 to outermost"):
        a, b = env.step(index_of(env, action)), twin.step(index_of(twin, action))
        assert np.array_equal(a[0], b[0])
        assert a[1:4] == b[1:4]
        assert a[4]["candidate"] == b[4]["candidate"]
    assert env.reset()[1]["task"] == twin.reset()[1]["task"]


def test_render_as_text():
    env = make(render_mode="ansi")
    env.reset(seed=0)
    env.step(index_of(env, "split loop 0 by 4"))
    text = env.render()
    assert str(env.state.nest) in text
    assert "split loop 0 by 4" in text
    assert "speed of light" in text


def test_render_for_people_prints(capsys):
    env = make(render_mode="human")
    env.reset(seed=0)
    assert TASK in capsys.readouterr().out
    assert env.render() is None


@pytest.mark.parametrize("kernel_and_task", [("gemm", TASK), ("transpose", "transpose/f32/rows9cols9")])
def test_render_as_picture(kernel_and_task):
    kernel, task = kernel_and_task
    env = make(kernel=kernel, task=task, render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (480, 960, 3)
    assert picture.dtype == np.uint8
    assert picture.std() > 0


def test_threads_are_the_targets():
    assert make().threads == 1
    assert gym.make("KernelDSL-GEMM-v0", threads=2).unwrapped.target.spec.threads == 2


def test_processes_that_share_a_file_measure_a_baseline_once(tmp_path, monkeypatch):
    """A second process is stood in for by forgetting what the first one knows."""
    path = tmp_path / "baselines.jsonl"
    monkeypatch.setattr(measuring, "_kept", None)
    measured = []
    for _ in range(2):
        measuring.keep_baselines(path)
        target = FakeTarget()
        env = KernelDSLEnv("gemm", target=target, profile=PROFILE)
        env.reset(seed=0)
        measured.append(len(target.measured))
    assert measured == [1, 0]
    path.write_bytes(b"damaged\n" + path.read_bytes()[:-10])
    measuring.keep_baselines(path)
    env.reset(seed=0)
    assert env.baseline.time_s == BASELINE_S
    measuring.keep_baselines(None)
