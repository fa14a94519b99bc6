"""One environment in a process of its own: what is told to it, what it counts, and what it answers.

This is the side that holds the environment; ``baselines.rl.seats`` is the learner's. Nothing here imports
a learning library, so that the processes start quickly and stay small. Candidates do not run here but in a
measuring worker below, which cannot reach the learner; so pickles travel between these two.
"""

from __future__ import annotations

import importlib
import pickle
import signal
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from solgym.envs.base import TuningEnv
from solgym.envs.measuring import keep_baselines
from solgym.hardware.measurement import Measurement, MeasurePolicy
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.remembering import RememberingTarget
from solgym.hardware.serving import Operation, die_with, serve
from solgym.hardware.slot import MeasurementSlot, use_slot, waited_s
from solgym.hardware.target import Artifact, Candidate, CpuTarget, Failure, Target, TargetSpec
from solgym.hardware.task import Task

__all__ = ["EnvSpec", "Statistics", "main", "make_env"]


@dataclass(frozen=True)
class EnvSpec:
    """An environment to be made in another process.

    Attributes:
        env_id: as given to ``gymnasium.make``.
        options: arguments of ``gymnasium.make``.
        profile: peaks for the speed of light, passed on as ``profile``; None leaves the argument out.
        remember: whether the environment measures equal machine code once (see ``hardware.remembering``);
            only where its target is the CPU.
        modules: modules to import first, for example those that register the environment.
        baselines: a file through which the processes of a run share baselines; see ``keep_baselines``.
    """

    env_id: str
    options: Mapping[str, Any] = field(default_factory=dict)
    profile: HardwareProfile | None = None
    remember: bool = False
    modules: tuple[str, ...] = ()
    baselines: Path | None = None


@dataclass(frozen=True)
class Statistics:
    """What measuring came to; two of them add up, and subtract to what happened in between.

    Attributes:
        measurements: candidates that were run, baselines included.
        by_status: how many had each status.
        samples_kept: timed samples that count.
        samples_discarded: timed samples thrown away because other work disturbed them.
        remembered: measurements that were known already and not made (see ``EnvSpec.remember``).
        measuring_s: seconds spent measuring, waiting for turns not included.
        waiting_s: seconds spent waiting for turns at the measurement slot.
    """

    measurements: int = 0
    by_status: Mapping[str, int] = field(default_factory=dict)
    samples_kept: int = 0
    samples_discarded: int = 0
    remembered: int = 0
    measuring_s: float = 0.0
    waiting_s: float = 0.0

    @property
    def discarded_share(self) -> float:
        """Samples thrown away, as a fraction of all; 0 if there are none."""
        taken = self.samples_kept + self.samples_discarded
        return self.samples_discarded / taken if taken else 0.0

    def __add__(self, other: Statistics) -> Statistics:
        return self._combined(other, 1)

    def __sub__(self, other: Statistics) -> Statistics:
        return self._combined(other, -1)

    def _combined(self, other: Statistics, sign: int) -> Statistics:
        statuses = sorted({*self.by_status, *other.by_status})
        counts = {s: self.by_status.get(s, 0) + sign * other.by_status.get(s, 0) for s in statuses}
        return Statistics(
            measurements=self.measurements + sign * other.measurements,
            by_status={status: count for status, count in counts.items() if count},
            samples_kept=self.samples_kept + sign * other.samples_kept,
            samples_discarded=self.samples_discarded + sign * other.samples_discarded,
            remembered=self.remembered + sign * other.remembered,
            measuring_s=self.measuring_s + sign * other.measuring_s,
            waiting_s=self.waiting_s + sign * other.waiting_s,
        )


class _CountingTarget:
    """A target that counts what it measures."""

    def __init__(self, inner: Target) -> None:
        self._inner = inner
        self._measurements = self._kept = self._discarded = 0
        self._by_status: Counter[str] = Counter()
        self._measuring_s = self._waiting_s = 0.0

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def spec(self) -> TargetSpec:
        return self._inner.spec

    @property
    def fingerprint(self) -> str:
        return self._inner.fingerprint

    def compile(self, candidate: Candidate, task: Task) -> Artifact | Failure:
        return self._inner.compile(candidate, task)

    def measure(
        self,
        artifact: Artifact,
        task: Task,
        policy: MeasurePolicy | None = None,
        seed: int = 0,
        sol_time_s: float | None = None,
    ) -> Measurement:
        started, waited, remembered = time.perf_counter(), waited_s(), self._remembered
        measurement = self._inner.measure(artifact, task, policy, seed, sol_time_s)
        if self._remembered == remembered:
            self._count([measurement], started, waited)
        return measurement

    def measure_in_turns(
        self,
        artifacts: Sequence[Artifact],
        task: Task,
        policy: MeasurePolicy | None = None,
        seed: int = 0,
        sol_time_s: float | None = None,
    ) -> list[Measurement]:
        started, waited = time.perf_counter(), waited_s()
        measurements = self._inner.measure_in_turns(artifacts, task, policy, seed, sol_time_s)
        self._count(measurements, started, waited)
        return measurements

    def close(self) -> None:
        self._inner.close()

    def _count(self, measurements: Sequence[Measurement], started: float, waited: float) -> None:
        waiting_s = waited_s() - waited
        self._waiting_s += waiting_s
        self._measuring_s += time.perf_counter() - started - waiting_s
        self._measurements += len(measurements)
        for measurement in measurements:
            self._by_status[measurement.status.value] += 1
            self._kept += len(measurement.samples_s)
            self._discarded += measurement.discarded

    @property
    def _remembered(self) -> int:
        return self._inner.remembered if isinstance(self._inner, RememberingTarget) else 0

    def statistics(self) -> Statistics:
        return Statistics(
            self._measurements,
            dict(self._by_status),
            self._kept,
            self._discarded,
            self._remembered,
            self._measuring_s,
            self._waiting_s,
        )


class _HasMasks(Protocol):
    def action_masks(self) -> NDArray[np.bool_]: ...


def make_env(spec: EnvSpec) -> gym.Env[Any, Any]:
    """Make an environment in this process, as its own process would."""
    for module in spec.modules:
        importlib.import_module(module)
    if spec.baselines is not None:
        keep_baselines(spec.baselines)
    options = dict(spec.options)
    if spec.profile is not None:
        options["profile"] = spec.profile
    env: gym.Env[Any, Any] = gym.make(spec.env_id, **options)
    tuning = env.unwrapped
    if spec.remember and isinstance(tuning, TuningEnv) and type(tuning.target) is CpuTarget:
        tuning.target = RememberingTarget(tuning.threads)
    return env


class Server:
    """What can be asked for: ``operations`` by name. Requests and answers are pickles."""

    def __init__(self, slot: MeasurementSlot | None) -> None:
        self._slot = slot
        self._counting: _CountingTarget | None = None
        self.operations: dict[str, Operation] = {
            "hello": self.hello,
            "reset": self.reset,
            "step": self.step,
            "get_attr": self.get_attr,
            "set_attr": self.set_attr,
            "call": self.call,
        }

    def hello(self, payload: bytes, fd: int | None) -> tuple[dict[str, Any], bytes]:
        """Make the environment of a spec; tell its spaces."""
        if self._slot is not None:
            use_slot(self._slot)
        spec: EnvSpec = pickle.loads(payload)
        self._env = make_env(spec)
        tuning = self._env.unwrapped
        if isinstance(tuning, TuningEnv):
            self._counting = _CountingTarget(tuning.target)
            tuning.target = self._counting
        self._has_masks = hasattr(tuning, "action_masks")
        spaces = (self._env.observation_space, self._env.action_space)
        return {}, pickle.dumps((*spaces, self._env.render_mode, self._has_masks))

    def reset(self, payload: bytes, fd: int | None) -> tuple[dict[str, Any], bytes]:
        """Begin an episode."""
        seed, options = pickle.loads(payload)
        observation, info = self._env.reset(seed=seed, options=options or None)
        return {}, pickle.dumps((observation, info, self._mask(info), self._statistics()))

    def step(self, payload: bytes, fd: int | None) -> tuple[dict[str, Any], bytes]:
        """Take a step; the learner's side asks for a reset when the episode is over."""
        observation, reward, terminated, truncated, info = self._env.step(pickle.loads(payload))
        outcome = (observation, float(reward), bool(terminated), bool(truncated), info)
        return {}, pickle.dumps((*outcome, self._mask(info), self._statistics()))

    def get_attr(self, payload: bytes, fd: int | None) -> tuple[dict[str, Any], bytes]:
        """Look up an attribute of the environment or a wrapper."""
        return {}, _pickled(self._env.get_wrapper_attr(pickle.loads(payload)))

    def set_attr(self, payload: bytes, fd: int | None) -> tuple[dict[str, Any], bytes]:
        """Set an attribute of the environment proper."""
        name, value = pickle.loads(payload)
        setattr(self._env.unwrapped, name, value)
        return {}, b""

    def call(self, payload: bytes, fd: int | None) -> tuple[dict[str, Any], bytes]:
        """Call a method of the environment or a wrapper."""
        name, arguments, named = pickle.loads(payload)
        return {}, _pickled(self._env.get_wrapper_attr(name)(*arguments, **named))

    def close(self) -> None:
        """Close the environment, if it was made."""
        env: gym.Env[Any, Any] | None = getattr(self, "_env", None)
        if env is not None:
            env.close()

    def _mask(self, info: dict[str, Any]) -> NDArray[np.bool_] | None:
        if not self._has_masks:
            return None
        mask = info.get("action_mask")
        if mask is None:
            mask = cast(_HasMasks, self._env.unwrapped).action_masks()
        return np.asarray(mask, dtype=bool)

    def _statistics(self) -> Statistics:
        return self._counting.statistics() if self._counting is not None else Statistics()


def _pickled(value: object) -> bytes:
    import cloudpickle  # type: ignore[import-untyped]  # comes with Gymnasium

    data: bytes = cloudpickle.dumps(value)
    return data


def main(socket_fd: int, alive_fd: int, slot: dict[str, Any] | None) -> None:
    """Serve a learner until it closes the socket.

    Args:
        socket_fd: a connected stream socket, for requests and replies.
        alive_fd: a pipe whose other end is closed when the learner's process ends.
        slot: the run's measurement slot (``MeasurementSlot.to_json``), if it has one.
    """
    die_with(alive_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the learner, which then closes the socket
    server = Server(MeasurementSlot.from_json(slot) if slot else None)
    with socket.socket(fileno=socket_fd) as sock:
        serve(sock, server.operations)
    server.close()
