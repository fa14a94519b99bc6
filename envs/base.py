"""The contract that every tuning environment keeps: ``TuningEnv``.

The base class owns episodes, measuring, scores, rewards, ``info`` and rendering. A family of environments
supplies its tasks, its candidates under construction, its actions with their legality, and its features.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Generic, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from solgym.envs.design import Best, CodeText, Move, StateT, candidate_text
from solgym.envs.info import StepInfo
from solgym.envs.measuring import Baseline, evaluate, measure_baseline, open_target, resolve_profile
from solgym.envs.proposals import ProposalSource
from solgym.envs.render import Attempt, Scene, draw, write
from solgym.envs.reset_options import ResetOptions
from solgym.envs.rewards import Reward, Timing, resolve_reward
from solgym.envs.warm_start import WarmStart
from solgym.errors import ClosedEnvironment, IllegalSchedule, InvalidAction, InvalidOption
from solgym.hardware.jit import toolchain_fingerprint
from solgym.hardware.measurement import Measurement, MeasurePolicy, Status
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.speed_of_light import Bound, has_headroom, sol_fraction, speed_of_light, speedup
from solgym.hardware.target import Candidate, Target
from solgym.hardware.task import Task

__all__ = ["RewardAt", "Split", "TuningEnv"]

RewardAt = Literal["step", "end"]
Split = Literal["train", "test"]
ATTEMPTS_SHOWN = 8
EPISODES_PER_INPUTS = 8
"""Episodes that share their inputs: drawing them and computing the reference costs as much as a trial."""


class TuningEnv(gym.Env[Any, Any], ABC, Generic[StateT]):
    """Base class of environments in which an agent improves a candidate by measuring it.

    Args:
        task: the only task to offer, by id; any shape.
        split: ``train`` or ``test``: at each reset, draw a task of that split. With neither ``task`` nor
            ``split`` the environment offers its default task.
        target: where candidates run, by name or as an object (which the caller then closes).
        threads: threads that one candidate runs on, unless the target is an object. One gives the most
            repeatable times.
        profile: peaks for the speed of light: a profile, a published profile's name or a file. None is
            this machine's, calibrated at first need.
        policy: how candidates are timed.
        reward: a name in ``envs.rewards.REWARDS`` or an object.
        reward_at: pay at every ``step``, or for the whole episode at its ``end``. Failures cost at once.
        stop_at: reaching this fraction of the speed of light terminates the episode.
        failure_penalty: reward of an illegal action or a candidate that fails.
        max_steps: steps after which an episode is truncated.
        warm_start: proposes where to begin when ``options["warm_start"] == "ranked"``.
        render_mode: ``ansi``, ``human`` or ``rgb_array``.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human", "rgb_array"], "render_fps": 4}  # noqa: RUF012

    modes: ClassVar[tuple[str, ...]]
    """In which ways tuners can search, see ``proposals``; the first is the usual one."""

    feature_names: tuple[str, ...]
    """What each number of an observation is; empty where observations are text."""

    def __init__(
        self,
        *,
        task: str | None = None,
        split: Split | None = None,
        target: str | Target = "cpu",
        threads: int = 1,
        profile: HardwareProfile | str | None = None,
        policy: MeasurePolicy | None = None,
        reward: str | Reward = "gap_closed",
        reward_at: RewardAt = "step",
        stop_at: float = 0.95,
        failure_penalty: float = -1.0,
        max_steps: int = 40,
        warm_start: WarmStart | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Check the arguments; targets, profiles and baselines come with the first reset."""
        if task is not None and split is not None:
            raise InvalidOption(f"Both task={task!r} and split={split!r} are given; give one of them.")
        _require(split in (None, "train", "test"), "split", split, "'train' or 'test'")
        _require(reward_at in ("step", "end"), "reward_at", reward_at, "'step' or 'end'")
        _require(isinstance(stop_at, float | int), "stop_at", stop_at, "a number")
        _require(isinstance(failure_penalty, float | int), "failure_penalty", failure_penalty, "a number")
        _require(0 < stop_at <= 1, "stop_at", stop_at, "a fraction of the speed of light in (0, 1]")
        finite = -math.inf < failure_penalty <= 0
        _require(finite, "failure_penalty", failure_penalty, "0 or a finite negative number")
        for name, count in (("max_steps", max_steps), ("threads", threads)):
            _require(isinstance(count, int), name, count, "an integer")
            _require(count >= 1, name, count, "at least 1")
        _require(task is None or isinstance(task, str), "task", task, "a task id")
        _require(isinstance(policy, MeasurePolicy | None), "policy", policy, "a MeasurePolicy or None")
        _require(isinstance(target, str | Target), "target", target, "a target or its name")
        proposes = warm_start is None or isinstance(warm_start, WarmStart)
        _require(proposes, "warm_start", warm_start, "an object with a method propose, or None")
        modes = self.metadata["render_modes"]
        _require(render_mode is None or render_mode in modes, "render_mode", render_mode, f"one of {modes}")
        self.target: Target = open_target(target, threads) if isinstance(target, str) else target
        self.split: Split | None = split
        self.threads = self.target.spec.threads
        # What the baseline takes is found out here; a limit made of another number would hit it, too.
        self.policy = replace(policy or MeasurePolicy(), baseline_s=None)
        self.reward = resolve_reward(reward)
        self.reward_at: RewardAt = reward_at
        self.stop_at = stop_at
        self.failure_penalty = failure_penalty
        self.max_steps = max_steps
        self.render_mode = render_mode
        self.tasks: tuple[str, ...] = self._offered(task, split)
        self._profile_source = profile
        self._profile: HardwareProfile | None = None
        self._ranker = warm_start
        self._closed = False
        self._best: dict[str, Best] = {}
        self._measurements_used = 0
        self._attempts: deque[Attempt] = deque(maxlen=ATTEMPTS_SHOWN)
        self._running = False
        self._episodes = 0
        self._steps = 0
        self._task: Task | None = None
        self._baseline_s: float | None = None

    # ------------------------------------------------------------------ what families supply

    @abstractmethod
    def _task_ids(self, split: Split) -> tuple[str, ...]:
        """Task ids of a split."""

    @property
    @abstractmethod
    def _default_task_id(self) -> str:
        """The task offered unless told otherwise."""

    @abstractmethod
    def _make_task(self, task_id: str) -> Task:
        """Make a task; raise ``UnknownTask`` if it does not exist or belongs to another environment."""

    @abstractmethod
    def _untouched(self) -> StateT:
        """The state before any action on the current task."""

    @abstractmethod
    def _state_of(self, candidate: object) -> StateT:
        """The state of a finished candidate, an object or JSON data.

        Raises:
            IllegalSchedule: it does not apply to the current task.
        """

    @classmethod
    @abstractmethod
    def read_candidate(cls, data: object) -> Candidate:
        """A candidate from what its ``to_json`` wrote, or the text of that.

        Raises:
            InvalidSchedule: the data does not have that form.
        """

    @abstractmethod
    def _expert(self) -> Candidate | None:
        """The best known candidate of the current task, if one is known."""

    @abstractmethod
    def _proposals(self, mode: str) -> ProposalSource:
        """Where proposals for the current task come from, in one of ``modes``."""

    @abstractmethod
    def code_of(self, candidate: Candidate) -> tuple[CodeText, ...]:
        """A candidate of the current task in every form that people read, the most readable one first.

        Raises:
            IllegalSchedule: the candidate does not apply to the task or target.
        """

    @abstractmethod
    def _move(self, state: StateT, action: Any) -> Move[StateT]:
        """What an action of the action space amounts to."""

    @abstractmethod
    def _observation(self) -> Any:
        """A fresh observation of the current state."""

    @abstractmethod
    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are legal now; where the action space has several parts, one mask after the other."""

    @abstractmethod
    def action_meanings(self) -> tuple[str, ...]:
        """What each action means on the current task, in the order of the mask."""

    @abstractmethod
    def explain(self, action: Any) -> str | None:
        """Why an action is illegal now, or None if it is legal."""

    @abstractmethod
    def _describe(self) -> str:
        """The current state as text."""

    # ------------------------------------------------------------------ what users ask for

    @property
    def profile(self) -> HardwareProfile:
        """The peaks that the speed of light is computed from."""
        if self._profile is None:
            self._profile = resolve_profile(self._profile_source)
        return self._profile

    @property
    def task(self) -> Task:
        """The task of the current episode."""
        if self._task is None:
            raise InvalidOption("There is no task yet; call reset() first.")
        return self._task

    @property
    def bound(self) -> Bound:
        """The speed of light of the current task."""
        return self._bound_of(self.task)

    @property
    def baseline(self) -> Measurement:
        """The measurement of the current task's untouched candidate."""
        return self._baseline_of_task().measurement

    @property
    def toolchain(self) -> str:
        """What turns candidates into machine code; times are comparable only under an equal one."""
        return toolchain_fingerprint()

    @property
    def untouched(self) -> Candidate:
        """The candidate that changes nothing about the current task."""
        return self._untouched().candidate

    @property
    def expert(self) -> Candidate | None:
        """The best known candidate of the current task, if one is known."""
        _ = self.task
        return self._expert()

    def proposals(self, mode: str | None = None) -> ProposalSource:
        """Where a tuner's proposals for the current task come from.

        Raises:
            InvalidOption: the environment has no such mode.
        """
        return self._proposals(self.check_mode(mode))

    @classmethod
    def check_mode(cls, mode: str | None) -> str:
        """A mode that tuners can search in; None is the usual one.

        Raises:
            InvalidOption: there is no such mode; the message says which there are.
        """
        if mode is None:
            return cls.modes[0]
        if mode not in cls.modes:
            raise InvalidOption(f"there is no mode {mode!r}; choose {' or '.join(cls.modes)}")
        return mode

    def history_of(self, candidate: Candidate) -> Iterator[tuple[str, str]]:
        """How a candidate of the current task comes about: a label and the form in force, before and after
        every step.

        Raises:
            IllegalSchedule: a step does not apply.
        """
        raise InvalidOption(f"{type(self).__name__} does not show candidates step by step")

    def choose_task(self, task_id: str | None = None) -> Task:
        """Make a task the current one, by default the first on offer, without beginning an episode.

        Nothing is measured or calibrated; candidates can then be made, read and shown.

        Raises:
            UnknownTask: the task does not exist or belongs to another environment.
        """
        self._require_open()
        self._running = False
        self._attempts.clear()
        self._task = self._make_task(self.tasks[0] if task_id is None else task_id)
        self._baseline_s = None
        return self._task

    @property
    def state(self) -> StateT:
        """The candidate in force, with what the family keeps beside it."""
        self._require_episode()
        return self._state

    @property
    def best(self) -> Best | None:
        """The fastest correct candidate measured for the current task, if any was."""
        return self._best.get(self.task.id)

    @property
    def measurements_used(self) -> int:
        """Candidates measured since the environment was made, baselines not counted."""
        return self._measurements_used

    @property
    def last_measurement(self) -> Measurement:
        """What became of the candidate that was tried last."""
        self._require_episode()
        return self._last

    def evaluate(self, candidate: Candidate, known: Measurement | None = None) -> Measurement:
        """Compile, check and time any candidate of the current task; the episode does not change.

        Counts as a measurement and can become ``best``. Failures are values; one that is many times slower
        than the untouched candidate is a ``timeout``, see ``MeasurePolicy.slow_factor``.

        Args:
            candidate: what to try.
            known: an earlier measurement of this task, which is the result if the candidate turns out to be
                the same machine code.
        """
        self._require_open()
        self._measurements_used += 1
        policy = replace(self.policy, baseline_s=self._baseline_s)
        measurement = evaluate(
            self.target, candidate, self.task, policy, self._input_seed, self.bound.time_s, known
        )
        if measurement.ok:
            best = self.best
            if best is None or (measurement.time_s or 0.0) < (best.measurement.time_s or 0.0):
                self._best[self.task.id] = Best(candidate, measurement)
        return measurement

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw a task and begin at its untouched candidate, or where ``options`` say.

        Args:
            seed: of all randomness to come: tasks, inputs, warm starts.
            options: ``task`` (a task id, any shape), ``warm_start`` (``none``, ``expert`` or ``ranked``),
                ``schedule`` (a candidate or its JSON to begin from). A start that fails is reported in
                ``info`` and the episode begins at the untouched candidate.

        Raises:
            InvalidOption: an option is unknown or has no meaning here.
            UnknownTask: the task does not exist or belongs to another environment.
            ClosedEnvironment: after ``close()``.
        """
        self._require_open()
        super().reset(seed=seed)
        chosen = ResetOptions.of(options)
        self._check_options(chosen)
        drawn = int(self.np_random.integers(len(self.tasks)))
        if seed is not None or self._episodes % EPISODES_PER_INPUTS == 0:
            self._input_seed = int(self.np_random.integers(1 << 31))
            self._episodes = 0
        self._episodes += 1
        self._task = self._make_task(self.tasks[drawn] if chosen.task is None else chosen.task)
        baseline = self._baseline_of_task()
        self._state = self._measured = self._untouched()
        self._last = self._in_force = baseline.measurement
        self._baseline_s = baseline.time_s
        self._timing = self._start = Timing(baseline.time_s, baseline.time_s, self.bound)
        self._steps, self._running = 0, True
        self._attempts.clear()
        self._note("untouched", baseline.measurement)
        error = self._begin_at(chosen)
        status = self._last.status if error else Status.OK
        self._show()
        return self._observation(), dict(self._info(status, error, "", self._last.time_s))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Try an action; see the class documentation of each family.

        Raises:
            InvalidAction: the action is not in the action space, or the episode is over.
            ClosedEnvironment: after ``close()``.
        """
        self._require_open()
        if not self._running:
            raise InvalidAction("No episode is running; call reset() first.")
        if not self.action_space.contains(action):
            raise InvalidAction(f"Action {action!r} is not in {self.action_space}; choose one that is.")
        move = self._move(self._state, action)
        before, penalty = self._timing, 0.0
        status, error, attempt_s = Status.OK, "", None
        self._steps += 1
        ends = move.finishes or self._steps >= self.max_steps
        if move.state is None:
            self._last = move.failed or Measurement.failed(Status.ILLEGAL, move.illegal_because)
            status, error, penalty = self._last.status, self._last.error or "", self.failure_penalty
            self._note(self._label(action), self._last)
        else:
            self._enter(move.state)
        if self._is_pending and (ends or self.reward_at == "step"):
            self._last = self._evaluate_state()
            self._note(self._label(action), self._last)
            attempt_s = self._last.time_s
            if self._last.ok and self._last.time_s is not None:
                self._adopt(self._state, self._last)
            else:
                self._state = self._measured
                status, error = (
                    self._last.status,
                    self._last.error or f"the measurement is {self._last.status}",
                )
                penalty += self.failure_penalty
        reached = sol_fraction(self._timing.time_s, self.bound.time_s) >= self.stop_at
        # An episode of a single step is complete after it, not cut off.
        terminated = move.finishes or self.max_steps == 1 or (reached and not self._is_pending)
        truncated = not terminated and self._steps >= self.max_steps
        self._running = not (terminated or truncated)
        reward = penalty + self._earned(before, failed=status is not Status.OK)
        self._show()
        info = self._info(status, error, move.illegal_because, attempt_s)
        return self._observation(), float(reward), terminated, truncated, dict(info)

    def render(self) -> Any:
        """What the render mode says: text, a picture of shape (height, width, 3), or None for ``human``."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render_mode; make the environment with render_mode='ansi'.")
            return None
        if self.render_mode == "human":
            return None
        return write(self._scene()) if self.render_mode == "ansi" else draw(self._scene())

    def close(self) -> None:
        """End the environment. The process's shared worker pool stays for other environments."""
        self._closed = True
        self._running = False

    # ------------------------------------------------------------------ how it works

    def _offered(self, task: str | None, split: Split | None) -> tuple[str, ...]:
        if task is not None:
            return (self._make_task(task).id,)
        return (self._default_task_id,) if split is None else self._task_ids(split)

    def _check_options(self, options: ResetOptions) -> None:
        if options.warm_start == "ranked" and self._ranker is None:
            raise InvalidOption(
                "warm_start='ranked' needs a ranker; make the environment with warm_start=RANKER, an object "
                "with a method propose(task, spec, profile, seed)."
            )
        if options.task is not None and self.split is not None:
            other: Split = "test" if self.split == "train" else "train"
            if self._make_task(options.task).id in self._task_ids(other):
                raise InvalidOption(
                    f"Task {options.task!r} is in the {other} split, but this environment has "
                    f"split={self.split!r}; choose another task or split."
                )

    def _begin_at(self, options: ResetOptions) -> str:
        """Move to the start that ``options`` ask for; returns an error text if that fails."""
        given = options.schedule
        if options.warm_start == "none" and given is None:
            return ""
        try:
            if options.warm_start == "expert":
                given = self._expert()
            elif options.warm_start == "ranked":
                assert self._ranker is not None
                seed = int(self.np_random.integers(1 << 31))
                given = self._ranker.propose(self.task, self.target.spec, self.profile, seed)
            if given is None:
                raise IllegalSchedule(f"no expert is known for {self.task.id}")
            state = self._state_of(given)
        except IllegalSchedule as error:
            self._last = Measurement.failed(Status.ILLEGAL, str(error))
            self._note("start", self._last)
            return str(error)
        if state.candidate == self._state.candidate:
            return ""
        self._last = self.evaluate(state.candidate)
        self._note("start", self._last)
        if not self._last.ok:
            return self._last.error or f"the measurement is {self._last.status}"
        self._adopt(state, self._last)
        self._start = self._timing
        return ""

    def _evaluate_state(self) -> Measurement:
        """Measure the state in force; the same machine code as before is not timed again."""
        return self.evaluate(self._state.candidate, self._in_force)

    @property
    def _is_pending(self) -> bool:
        """Whether the state in force has not been measured, which ``reward_at="end"`` puts off."""
        return bool(self._state.candidate != self._measured.candidate)

    def _enter(self, state: StateT) -> None:
        """Move to a state; it counts as measured if its candidate is the one that was measured last."""
        self._state = state
        if not self._is_pending:
            self._measured = state

    def _adopt(self, state: StateT, measurement: Measurement) -> None:
        assert measurement.time_s is not None
        self._state = self._measured = state
        self._in_force = measurement
        self._timing = Timing(measurement.time_s, self._timing.baseline_s, self._timing.bound)

    def _earned(self, before: Timing, failed: bool) -> float:
        """The reward proper: of a step that did not fail, or of the whole episode when it ends."""
        if self.reward_at == "step":
            return 0.0 if failed else self.reward(before, self._timing)
        return 0.0 if self._running else self.reward(self._start, self._timing)

    def _baseline_of_task(self) -> Baseline:
        untouched = self._untouched().candidate
        return measure_baseline(self.target, self.task, untouched, self.policy, self.bound.time_s)

    @functools.cached_property
    def _bounds(self) -> dict[str, Bound]:
        return {}

    def _bound_of(self, task: Task) -> Bound:
        if task.id not in self._bounds:
            self._bounds[task.id] = speed_of_light(
                task.work, self.profile, threads=self.threads, flushed=self.policy.flush_cache
            )
        return self._bounds[task.id]

    def _info(self, status: Status, error: str, illegal_because: str, attempt_s: float | None) -> StepInfo:
        time_s, baseline_s, sol_s = self._timing.time_s, self._timing.baseline_s, self.bound.time_s
        return StepInfo(
            task=self.task.id,
            status=status.value,
            error=error,
            illegal_because=illegal_because,
            attempt_s=float("nan") if attempt_s is None else attempt_s,
            time_s=time_s,
            baseline_s=baseline_s,
            sol_time_s=sol_s,
            sol_fraction=sol_fraction(time_s, sol_s),
            gap_closed=self._timing.gap_closed,
            speedup=speedup(time_s, baseline_s),
            headroom=has_headroom(baseline_s, sol_s),
            bound=self.bound.binding,
            candidate=candidate_text(self._state.candidate),
            measurements_used=self._measurements_used,
            steps=self._steps,
            action_mask=self.action_masks().astype(np.int8),
        )

    def _label(self, action: Any) -> str:
        return str(action)

    def _note(self, label: str, measurement: Measurement) -> None:
        self._attempts.append(Attempt(self._steps, label, measurement))

    def _scene(self) -> Scene:
        return Scene(
            task=self.task,
            description=self._describe(),
            attempts=tuple(self._attempts),
            timing=self._timing,
            profile=self.profile,
            threads=self.threads,
        )

    def _show(self) -> None:
        if self.render_mode == "human":
            print(write(self._scene()), flush=True)

    def _require_episode(self) -> None:
        if self._task is None or not self._attempts:
            raise InvalidOption("There is no episode yet; call reset() first.")

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedEnvironment("The environment is closed; make a new one.")


def _require(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise InvalidOption(f"{name} is {value!r}; it must be {expected}.")
