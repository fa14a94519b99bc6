"""A small environment without a clock: what is right is written in the observation, so it can be learned.

``Stairs-v0``: in each step one of five actions is right, and the observation says which. A right one makes
the candidate 20 times faster, any other one slower.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from solgym.baselines.rl.env_process import EnvSpec, Statistics, make_env
from solgym.envs.base import Split, TuningEnv
from solgym.envs.design import CodeText, Move
from solgym.envs.kernel_dsl.kernels import KernelTask, parse_task
from solgym.envs.proposals import EpisodeSource, ProposalSource
from solgym.errors import IllegalSchedule, InvalidSchedule
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.target import Artifact
from tests.envs.fakes import BASELINE_S, SPEC, timed
from tests.envs.fakes import PROFILE as FAST_PROFILE

ENV_ID = "Stairs-v0"
STAIRS = 4
ACTIONS = 6
"""``finish``, and five choices."""
TASKS: dict[Split, tuple[str, ...]] = {
    "train": ("gemm/f32/m8n8k8", "gemm/f32/m8n8k16", "gemm/f32/m8n16k16", "gemm/f32/m16n16k16"),
    "test": ("gemm/f32/m24n24k24", "gemm/f32/m40n40k40"),
}
FEATURES = ("stair", "room", "machine", *(f"right {choice}" for choice in range(1, ACTIONS)))


@dataclass(frozen=True)
class Stairs:
    """Which actions were taken on a task."""

    task_id: str
    taken: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {"task": self.task_id, "taken": list(self.taken)}

    def lower(self, task: object, target: object) -> Any:
        raise AssertionError("the fake target compiles")


@dataclass(frozen=True)
class StairsState:
    candidate: Stairs


def right_action(task_id: str, stair: int) -> int:
    return 1 + int(hashlib.sha256(f"{task_id} {stair}".encode()).hexdigest()[:8], 16) % (ACTIONS - 1)


class StairsTarget:
    """Times follow from the candidate."""

    name = "cpu"
    fingerprint = "stairs"
    spec = SPEC

    def __init__(self) -> None:
        self.measured: list[str] = []

    def compile(self, candidate: Stairs, task: KernelTask) -> Artifact:
        return Artifact(json.dumps(candidate.to_json()).encode(), "k", 0, 0, 1, candidate.digest, "none", 0.0)

    def measure(self, artifact, task, policy=None, seed=0, sol_time_s=None):
        self.measured.append(artifact.digest)
        candidate = json.loads(artifact.code)
        time_s = BASELINE_S
        for stair, action in enumerate(candidate["taken"]):
            time_s *= 1 / 20 if action == right_action(candidate["task"], stair) else 1.5
        return timed(time_s)

    def measure_in_turns(self, artifacts, task, policy=None, seed=0, sol_time_s=None):
        return [self.measure(artifact, task) for artifact in artifacts]

    def close(self) -> None:
        pass


class StairsEnv(TuningEnv[StairsState]):
    """See the module."""

    modes = ("steps",)
    feature_names = FEATURES

    def __init__(self, **arguments: Any) -> None:
        arguments.setdefault("target", StairsTarget())
        arguments.setdefault("max_steps", STAIRS)
        arguments["profile"] = arguments.get("profile") or FAST_PROFILE
        super().__init__(**arguments)
        self.action_space = gym.spaces.Discrete(ACTIONS)
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (len(FEATURES),), dtype=np.float32)

    def _task_ids(self, split: Split) -> tuple[str, ...]:
        return TASKS[split]

    @property
    def _default_task_id(self) -> str:
        return TASKS["train"][0]

    def _make_task(self, task_id: str) -> KernelTask:
        return parse_task(task_id)

    def _untouched(self) -> StairsState:
        return StairsState(Stairs(self.task.id))

    def _state_of(self, candidate: object) -> StairsState:
        if not isinstance(candidate, Stairs):
            raise IllegalSchedule("it is no candidate of these stairs")
        return StairsState(candidate)

    @classmethod
    def read_candidate(cls, data: object) -> Stairs:
        if not isinstance(data, dict):
            raise InvalidSchedule("it is no object")
        return Stairs(data["task"], tuple(data["taken"]))

    def _expert(self) -> Stairs:
        return Stairs(self.task.id, tuple(right_action(self.task.id, stair) for stair in range(STAIRS)))

    def _proposals(self, mode: str) -> ProposalSource:
        return EpisodeSource(
            self._untouched(),
            self._move,
            lambda _: np.arange(ACTIONS),
            self.max_steps,
            actions=ACTIONS,
            state_of=self._state_of,
            actions_of=lambda candidate: candidate.taken,
        )

    def code_of(self, candidate: Any) -> tuple[CodeText, ...]:
        return (CodeText("text", "text", ".txt", str(candidate)),)

    def _move(self, state: StairsState, action: Any) -> Move[StairsState]:
        if int(action) == 0:
            return Move(state, finishes=True)
        if int(action) == self._forbidden(state):
            return Move(None, illegal_because="it is not offered")
        taken = (*state.candidate.taken, int(action))
        return Move(StairsState(Stairs(state.candidate.task_id, taken)))

    def _forbidden(self, state: StairsState) -> int:
        """One wrong action per state is illegal."""
        right = right_action(state.candidate.task_id, len(state.candidate.taken))
        return 1 + right % (ACTIONS - 1)

    def _observation(self) -> NDArray[np.float32]:
        stair = len(self.state.candidate.taken)
        seen = np.zeros(len(FEATURES), dtype=np.float32)
        seen[0] = stair / STAIRS
        seen[1] = np.log10(self.baseline.time_s / self.bound.time_s) / 20
        seen[2] = self.profile.cores / 256
        seen[2 + right_action(self.task.id, stair)] = 1.0
        return seen

    def action_masks(self) -> NDArray[np.bool_]:
        mask = np.ones(ACTIONS, dtype=np.bool_)
        mask[self._forbidden(self.state)] = False
        return mask

    def action_meanings(self) -> tuple[str, ...]:
        return ("finish", *(f"choice {choice}" for choice in range(1, ACTIONS)))

    def explain(self, action: Any) -> str | None:
        return self._move(self.state, action).illegal_because or None

    def _describe(self) -> str:
        return str(self.state.candidate)

    def state_gap_closed(self) -> float:
        return self._timing.gap_closed


def profile_of(cores: int) -> HardwareProfile:
    """A machine with so many cores."""
    return FAST_PROFILE.model_copy(update={"name": f"{cores} cores", "cores": cores})


def register() -> None:
    if ENV_ID not in gym.registry:
        gym.register(ENV_ID, entry_point=StairsEnv)


register()


class _DrawsTasks(gym.Wrapper):
    """Draws the task of each episode, as ``EnvProcesses`` does."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.tasks: tuple[str, ...] | None = None
        self.rng = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        if self.tasks is not None:
            options = {"task": self.tasks[int(self.rng.integers(len(self.tasks)))]}
        return self.env.reset(seed=seed, options=options)


class InProcessEnvs(DummyVecEnv):
    """What ``EnvProcesses`` offers, in this process; each environment begins where ``seed`` says."""

    restarts = 0

    def __init__(self, specs, *, slot=None, tasks=None, notice=None) -> None:
        super().__init__([lambda spec=spec: Monitor(_DrawsTasks(make_env(spec))) for spec in specs])
        self.set_tasks(tasks)

    def set_tasks(self, tasks) -> None:
        for env in self.envs:
            env.env.tasks = None if tasks is None else tuple(tasks)

    def statistics(self) -> Statistics:
        return Statistics()


SPEC_OF_STAIRS = EnvSpec(ENV_ID)


def make_stairs() -> StairsEnv:
    return StairsEnv()
