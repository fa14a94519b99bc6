"""Environments in processes: what they return, and that processes that die or hang are survived."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.baselines.rl import counting_env
from tests.envs.fakes import PROFILE, SMALL_TASKS

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.monitor import Monitor

from solgym.baselines.rl.env_process import make_env
from solgym.baselines.rl.processes import EnvProcesses, EnvSpec, Statistics
from solgym.baselines.rl.seats import RESTARTS_MAX
from solgym.errors import ClosedEnvironment, EnvironmentLost, InvalidAction, InvalidOption, UnknownTask
from solgym.hardware.measurement import MeasurePolicy
from solgym.hardware.slot import claim_slot

ROOT = Path(__file__).parents[3]
MODULES = ("tests.baselines.rl.counting_env",)


def spec(**options: Any) -> EnvSpec:
    return EnvSpec(counting_env.ID, options, modules=MODULES)


def measuring_spec(**options: Any) -> EnvSpec:
    policy = MeasurePolicy(max_seconds=0.02, unstable_ci=1e9)
    chosen = {"task": SMALL_TASKS["gemm"], "policy": policy, "max_steps": 4} | options
    return EnvSpec("KernelDSL-GEMM-v0", chosen, PROFILE)


def state_of(pid: int) -> str:
    """The kernel's letter for the state of a process; X if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_alive(pid: int) -> bool:
    return state_of(pid) not in "XZ"


def family_of(pid: int) -> set[int]:
    """A process and all that it started."""
    found, parents = {pid}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


@pytest.fixture(scope="module")
def shared() -> Iterator[EnvProcesses]:
    """Two environments for tests that leave them well."""
    with EnvProcesses([spec(), spec(truncates=True)]) as envs:
        yield envs


@pytest.fixture
def envs(shared: EnvProcesses) -> EnvProcesses:
    shared.set_tasks(None)
    shared.seed(0)
    shared.reset()
    return shared


def test_observations_rewards_dones_and_infos(envs: EnvProcesses) -> None:
    observations, rewards, dones, infos = envs.step(np.array([1, 2]))
    assert observations.shape == (2, 3)
    assert observations.dtype == rewards.dtype == np.float32
    assert observations[:, 0].tolist() == [1, 1]
    assert rewards.tolist() == [1, 2]
    assert dones.tolist() == [False, False]
    assert [info["TimeLimit.truncated"] for info in infos] == [False, False]
    assert "episode" not in infos[0]


def test_the_end_of_an_episode_is_told_as_stable_baselines_does(envs: EnvProcesses) -> None:
    envs.step(np.array([3, 3]))
    envs.step(np.array([2, 0]))
    observations, _, dones, infos = envs.step(np.array([1, 1]))
    assert dones.tolist() == [True, True]
    assert [info["TimeLimit.truncated"] for info in infos] == [False, True]
    assert [info["terminal_observation"][0] for info in infos] == [3, 3]
    assert observations[:, 0].tolist() == [0, 0], "a new episode has begun"
    assert [(info["episode"]["r"], info["episode"]["l"]) for info in infos] == [(6, 3), (4, 3)]
    assert infos[0]["gap_closed"] == 1.0, "the info of the last step, not of the reset"
    assert [info["gap_closed"] for info in envs.reset_infos] == [0.0, 0.0]
    assert envs.env_is_wrapped(Monitor) == [True, True]


def test_masks_are_those_of_the_current_state_and_need_no_round_trip(
    envs: EnvProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert envs.has_attr("action_masks")

    def refuse(*args: object) -> object:
        raise AssertionError("asked")

    with monkeypatch.context() as patch:
        patch.setattr("solgym.baselines.rl.seats.Seats.exchange", refuse)
        assert np.stack(envs.env_method("action_masks"))[:, 3].tolist() == [True, True]
        envs.step(np.array([0, 0]))
        assert np.stack(envs.env_method("action_masks"))[:, 3].tolist() == [False, False]
        assert len(envs.env_method("action_masks", indices=[1])) == 1
        envs.step(np.array([0, 0]))
        envs.step(np.array([0, 0]))  # ends the episodes
        assert np.stack(envs.env_method("action_masks"))[:, 3].tolist() == [True, True]


def test_equal_seeds_give_equal_episodes(envs: EnvProcesses) -> None:
    envs.set_tasks([str(number) for number in range(50)])

    def play() -> list[list[float]]:
        envs.seed(7)
        seen = [envs.reset().ravel().tolist()]
        for _ in range(9):
            seen.append(envs.step(np.array([0, 0]))[0].ravel().tolist())
        return seen

    first = play()
    assert play() == first
    numbers = {tuple(row) for row in np.array(first)[:, [1, 2]]}
    assert len(numbers) == 4, "three episodes after the first reset, each with a draw of its own"
    assert first[0][:3] != first[0][3:], "the environments draw apart"


def test_resets_draw_from_the_tasks(envs: EnvProcesses) -> None:
    envs.set_tasks(["5", "6"])
    drawn = {float(task) for _ in range(12) for task in envs.reset()[:, 1]}
    assert drawn == {5.0, 6.0}
    with pytest.raises(InvalidOption, match="no tasks"):
        envs.set_tasks([])
    envs.set_options({"task": "9"})
    assert envs.reset()[:, 1].tolist() == [9, 9]


def test_attributes_and_methods(envs: EnvProcesses) -> None:
    assert envs.get_attr("length") == [3, 3]
    assert envs.env_method("double", 4, indices=1) == [8]
    envs.set_attr("length", 3)
    assert not envs.has_attr("nothing of that name")


def test_an_error_of_the_environment_is_an_error_here(envs: EnvProcesses) -> None:
    envs.step(np.array([0, 0]))
    with pytest.raises(
        EnvironmentLost, match=r"environment 0 .* action 3 is not legal after 1 steps"
    ) as caught:
        envs.step(np.array([3, 0]))
    assert any("counting_env.py" in note for note in caught.value.__notes__)
    assert envs.reset().shape == (2, 3), "and can be got over"


def test_what_cannot_be_made_says_why() -> None:
    with pytest.raises(InvalidOption, match="at least one"):
        EnvProcesses([])
    with pytest.raises(InvalidOption, match=r"environment 0 \(NoSuch-v0\) failed: .*NoSuch"):
        EnvProcesses([EnvSpec("NoSuch-v0")])
    with pytest.raises(InvalidOption, match=r"environment 1 .*another kind.*\(4,\).*\(3,\)"):
        EnvProcesses([spec(), spec(size=4)])
    with pytest.raises(UnknownTask):
        EnvProcesses([measuring_spec(task="gemm/f32/nonsense")])


def test_closed_environments_say_so_and_leave_no_process() -> None:
    envs = EnvProcesses([spec(), spec()])
    pids = envs.pids()
    assert all(map(is_alive, pids))
    envs.reset()
    envs.step_async(np.array([0, 0]))
    envs.close()
    envs.close()
    assert not any(map(is_alive, pids))
    with pytest.raises(ClosedEnvironment):
        envs.reset()


# ---------------------------------------------------------------------- processes that die


@pytest.fixture
def doom(tmp_path: Path) -> Path:
    return tmp_path / "doom"


def test_a_process_that_is_killed_in_a_step_is_replaced(doom: Path) -> None:
    told: list[str] = []
    with EnvProcesses([spec(dies=str(doom)), spec()], notice=told.append) as envs:
        envs.seed(0)
        envs.reset()
        envs.step(np.array([2, 2]))
        doom.touch()
        observations, rewards, dones, infos = envs.step(np.array([1, 1]))
        assert rewards.tolist() == [0, 1]
        assert dones.tolist() == [True, False]
        assert infos[0]["TimeLimit.truncated"]
        assert infos[0]["terminal_observation"][0] == 1, "the last one seen"
        assert infos[0]["episode"]["r"] == 2
        assert infos[0]["episode"]["l"] == 2
        assert infos[0]["gap_closed"] == pytest.approx(1 / 3)
        assert "signal 9" in infos[0]["lost"]
        assert observations[:, 0].tolist() == [0, 2]
        assert envs.restarts == 1
        assert len(told) == 1
        assert "environment 0" in told[0]
        for _ in range(4):
            envs.step(np.array([0, 0]))
        assert envs.restarts == 1


def test_a_process_that_is_killed_from_outside_between_steps_is_replaced() -> None:
    told: list[str] = []
    with EnvProcesses([spec(), spec()], notice=told.append) as envs:
        envs.reset()
        pid = envs.pids()[1]
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not is_alive(pid))
        _, _, dones, _ = envs.step(np.array([0, 0]))
        assert dones.tolist() == [False, True]
        os.kill(envs.pids()[0], signal.SIGKILL)
        assert envs.reset()[:, 0].tolist() == [0, 0]
        assert envs.restarts == 2


@pytest.mark.parametrize("within_a_step", [True, False])
def test_a_process_that_is_killed_in_a_reset_is_replaced(doom: Path, within_a_step: bool) -> None:
    in_reset = doom.with_name("doom.reset")
    with EnvProcesses([spec(length=1, dies=str(doom)), spec(length=1)], notice=lambda text: None) as envs:
        if within_a_step:
            envs.reset()
            in_reset.touch()
            observations, rewards, dones, infos = envs.step(np.array([2, 2]))
            assert rewards.tolist() == [2, 2], "the step itself was answered"
            assert dones.tolist() == [True, True]
            assert "lost" not in infos[0]
        else:
            in_reset.touch()
            observations = envs.reset()
        assert observations[:, 0].tolist() == [0, 0]
        assert envs.restarts == 1


def test_what_is_replaced_goes_on_from_the_seed(doom: Path) -> None:
    """The new process draws something else than the old one had drawn, and the same in every run."""

    def draws() -> list[float]:
        with EnvProcesses([spec(dies=str(doom))], notice=lambda text: None) as envs:
            envs.seed(3)
            first = envs.reset()[0, 2]
            doom.touch()
            return [float(first), float(envs.step(np.array([0]))[0][0, 2])]

    first = draws()
    assert draws() == first
    assert first[0] != first[1]


def test_a_process_that_hangs_is_replaced(doom: Path) -> None:
    with EnvProcesses([spec(), spec(dies=str(doom))], notice=lambda text: None, step_timeout_s=1.0) as envs:
        envs.reset()
        old = envs.pids()
        doom.write_text("hang")
        _, rewards, dones, infos = envs.step(np.array([1, 1]))
        assert rewards.tolist() == [1, 0]
        assert dones.tolist() == [False, True]
        assert "no answer to 'step' within 1 s" in infos[1]["lost"]
        assert envs.pids()[0] == old[0]
        assert not is_alive(old[1])


def test_who_holds_up_the_others_is_replaced_and_not_they(doom: Path) -> None:
    """The one that hangs has the measurement slot; the other waits for it, which is no fault of its own."""
    told: list[str] = []
    with (
        claim_slot() as slot,
        EnvProcesses([measuring_spec(), measuring_spec()], slot=slot, notice=told.append) as envs,
    ):
        envs.seed(0)
        envs.reset()
        envs._seats._timeouts_s["step"] = 5.0  # long enough for the other, however busy the machine is
        old = envs.pids()
        rng = np.random.default_rng(0)
        for _ in range(200):
            envs.step_async(
                np.array([rng.choice(np.flatnonzero(m)) for m in envs.env_method("action_masks")])
            )
            if wait_until(lambda: slot.holder() == old[0], 0.05):
                os.kill(old[0], signal.SIGSTOP)
                assert wait_until(lambda: state_of(old[0]) == "T")
                if slot.holder() == old[0]:
                    break
                os.kill(old[0], signal.SIGCONT)
            envs.step_wait()
        envs.step_wait()
        assert not is_alive(old[0])
        assert envs.pids()[1] == old[1]
        assert len(told) == 1


def test_one_that_always_dies_ends_the_run(doom: Path) -> None:
    doom.with_name("doom.reset").write_text("always")
    told: list[str] = []
    with EnvProcesses([spec(dies=str(doom)), spec()], notice=told.append) as envs:
        with pytest.raises(EnvironmentLost, match=r"6 times in a row.*signal 9.*solgym doctor"):
            envs.reset()
        assert len(told) == RESTARTS_MAX
        doom.with_name("doom.reset").unlink()
        assert envs.reset().shape == (2, 3)


def test_an_interrupt_leaves_no_answer_to_the_wrong_question(
    envs: EnvProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> object:
        raise KeyboardInterrupt

    before = envs.restarts
    with monkeypatch.context() as patch:
        patch.setattr("solgym.baselines.rl.seats.select.poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.array([1, 1]))
    assert envs.pids() == [0, 0]
    assert envs.reset()[:, 0].tolist() == [0, 0]
    assert envs.restarts == before, "that was no accident"


# ---------------------------------------------------------------------- measuring


def play(envs: EnvProcesses, steps: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        masks = envs.env_method("action_masks")
        envs.step(np.array([rng.choice(np.flatnonzero(mask)) for mask in masks]))


def test_measuring_in_a_slot_is_counted() -> None:
    with (
        claim_slot() as slot,
        EnvProcesses([measuring_spec(), measuring_spec()], slot=slot) as envs,
    ):
        envs.seed(0)
        envs.reset()
        start = envs.statistics()
        assert start.measurements >= 2, "baselines"
        play(envs, 12)
        counted = envs.statistics()
        assert counted.measurements > start.measurements
        assert sum(counted.by_status.values()) == counted.measurements
        assert counted.samples_kept >= 3 * counted.by_status["ok"]
        assert counted.measuring_s > 0
        assert 0 <= counted.discarded_share < 1
        since = counted - start
        assert since + start == counted
        assert envs.restarts == 0


def test_a_killed_measuring_worker_costs_nothing_but_time() -> None:
    with EnvProcesses([measuring_spec()]) as envs:
        envs.seed(0)
        envs.reset()
        (pid,) = envs.pids()
        workers = family_of(pid) - {pid}
        assert workers
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        play(envs, 8)
        assert envs.restarts == 0
        assert envs.pids() == [pid]


def test_statistics_outlive_a_process() -> None:
    with EnvProcesses([measuring_spec()], notice=lambda text: None) as envs:
        envs.reset()
        before = envs.statistics()
        os.kill(envs.pids()[0], signal.SIGKILL)
        envs.reset()
        assert envs.statistics().measurements >= before.measurements + 1, "its baseline was measured again"


def test_equal_code_is_remembered() -> None:
    remembering = EnvSpec(**{**vars(measuring_spec()), "remember": True})
    with EnvProcesses([remembering]) as envs:
        for _ in range(3):
            envs.seed(0)
            envs.reset()
            play(envs, 4)
        counted = envs.statistics()
    assert counted.remembered > 0
    plain = make_env(measuring_spec())
    assert type(plain.unwrapped.target).__name__ == "CpuTarget"  # type: ignore[attr-defined]


def test_statistics_add_up() -> None:
    one = Statistics(2, {"ok": 1, "illegal": 1}, 30, 10, 1, 0.5, 0.25)
    assert (one + one).by_status == {"ok": 2, "illegal": 2}
    assert (one + one) - one == one
    assert one.discarded_share == 0.25
    assert Statistics().discarded_share == 0
    assert pickle.loads(pickle.dumps(one)) == one


SCRIPT = """
import sys, numpy as np
sys.path.insert(0, {root!r})
from solgym.baselines.rl.processes import EnvProcesses
from solgym.hardware.slot import claim_slot, use_slot
from tests.baselines.rl.test_processes import measuring_spec
with claim_slot() as slot:
    use_slot(slot)
    with EnvProcesses([measuring_spec(), measuring_spec()], slot=slot) as envs:
        envs.seed(0)
        envs.reset()
        print(*envs.pids(), flush=True)
        rng = np.random.default_rng(0)
        while True:
            masks = envs.env_method("action_masks")
            envs.step(np.array([rng.choice(np.flatnonzero(mask)) for mask in masks]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_all_processes_end_with_the_learner(tmp_path: Path, number: int) -> None:
    """However it ends, and what the processes started goes with them; the script has no main guard."""
    learner = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(root=str(ROOT))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        start_new_session=True,
    )
    assert learner.stdout is not None
    try:
        pids = [int(word) for word in learner.stdout.readline().split()]
        assert len(pids) == 2
        for pid in pids:  # Ctrl-C reaches them too, and must not end them
            os.kill(pid, signal.SIGINT)
        time.sleep(0.2)
        family = family_of(learner.pid) - {learner.pid}
        assert family >= set(pids)
        assert len(family) >= 4, "each has a measuring worker"
        assert all(map(is_alive, pids))
        learner.send_signal(number)
        _, said = learner.communicate(timeout=30)
    finally:
        learner.kill()
    assert wait_until(lambda: not any(map(is_alive, family)))
    assert list(tmp_path.iterdir()) == []
    if number == signal.SIGINT:
        assert said.rstrip().endswith("KeyboardInterrupt")


def test_an_illegal_action_is_refused_as_the_environment_does() -> None:
    with EnvProcesses([measuring_spec()]) as envs:
        envs.reset()
        with pytest.raises(InvalidAction):
            envs.step(np.array([10_000]))
