"""Training runs: from settings to policies, in segments that can be interrupted and continued exactly.

A run is a sequence of segments of ``checkpoint_every`` steps. Each begins with fresh episodes and random
generators seeded from (seed, number of the segment), and ends with a checkpoint. A run that was interrupted
therefore goes on from its last checkpoint as if nothing had happened, wherever no clock is read.
"""

from __future__ import annotations

import importlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, cast

import gymnasium
import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv

import solgym
from solgym.baselines.initial import read_initial
from solgym.baselines.rl.algorithms import ALGORITHM_NAMES, Schedules, is_sound, make_model, policy_of
from solgym.baselines.rl.checkpoint import load_checkpoint, save_checkpoint
from solgym.baselines.rl.curriculum import Curriculum, levels_of, measure_difficulty
from solgym.baselines.rl.episodes import play
from solgym.baselines.rl.imitation import fit, record_experts
from solgym.baselines.rl.learning_curve import draw_learning
from solgym.baselines.rl.policy import PolicyInfo, action_names, branches_of
from solgym.baselines.rl.processes import EnvProcesses, EnvSpec, Statistics
from solgym.baselines.rl.recorder import Recorder, finite, tensorboard_logger
from solgym.baselines.rl.run_folder import (
    BASELINES_NAME,
    BEST_POLICY_NAME,
    EPISODES_NAME,
    PICTURE_NAME,
    POLICY_NAME,
    PROGRESS_NAME,
    TENSORBOARD_NAME,
    RunFolder,
    RunInfo,
    read_progress,
)
from solgym.baselines.rl.settings import OTHERWISE_SET, Settings
from solgym.envs.base import TuningEnv
from solgym.envs.measuring import keep_baselines, resolve_profile
from solgym.envs.registration import env_class, option_names
from solgym.errors import InvalidOption, InvalidRun, LearningDiverged, SolgymError
from solgym.hardware.fingerprint import device_fingerprint, host_device
from solgym.hardware.slot import claim_slot, use_slot
from solgym.hardware.target import Candidate

__all__ = ["SilentTrainingListener", "Standing", "TrainResult", "TrainingListener", "train"]

Env = TuningEnv[Any]
LOG_EVERY: Final = {"ppo": 1, "ppo-unmasked": 1, "a2c": 64, "dqn": 16}
"""How many rollouts (with dqn: episodes) lie between two points of TensorBoard's curves."""
PACKAGES: Final = ("gymnasium", "numpy", "sb3-contrib", "stable-baselines3", "torch")


@dataclass(frozen=True)
class Standing:
    """Where a run stands.

    Attributes:
        steps: taken so far, of all environments together.
        total: steps asked for.
        seconds: spent so far, over interruptions.
        episodes: finished so far.
        mean_return: of the latest episodes; None before the first.
        mean_gap_closed: at their ends.
        test_gap_closed: mean over the evaluation tasks, when last evaluated.
        level: of the curriculum, from 1, and how many there are; None without.
        discarded_share: timed samples thrown away in this session, as a fraction of all.
        restarts: processes replaced in this session.
    """

    steps: int
    total: int
    seconds: float
    episodes: int
    mean_return: float | None
    mean_gap_closed: float | None
    test_gap_closed: float | None
    level: tuple[int, int] | None
    discarded_share: float
    restarts: int


class _CurriculumState(BaseModel):
    """What ``Curriculum.state`` gives."""

    level: Annotated[int, Field(ge=0)]
    outcomes: list[bool]


class _Progress(BaseModel):
    """What a checkpoint keeps of a run beside the model."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    run: str
    """When the run was begun, which tells it from others."""
    segment: Annotated[int, Field(ge=0)]
    seconds: Annotated[float, Field(ge=0)]
    episodes: Annotated[int, Field(ge=0)]
    best_score: float | None
    latest: tuple[float | None, float | None]
    test_score: float | None
    curriculum: _CurriculumState | None
    sizes: dict[str, Annotated[int, Field(ge=0)]]


class TrainingListener(Protocol):
    """Whom a training run reports to."""

    def stage(self, text: str) -> None:
        """Something else begins."""

    def standing(self, standing: Standing) -> None:
        """The run got on; called before each rollout."""

    def notice(self, text: str) -> None:
        """Something that the user should know, in a sentence."""


class SilentTrainingListener:
    """Reports to nobody."""

    def stage(self, text: str) -> None:
        """Do nothing."""

    def standing(self, standing: Standing) -> None:
        """Do nothing."""

    def notice(self, text: str) -> None:
        """Do nothing."""


class TrainingEnvs(Protocol):
    """What training needs of a vector environment, beside what stable-baselines3 does; see
    ``EnvProcesses``.
    """

    restarts: int

    def set_tasks(self, tasks: Sequence[str] | None) -> None:
        """Choose the tasks that later resets draw from."""

    def seed(self, seed: int | None = None) -> Any:
        """Seed all randomness from the next reset on."""

    def statistics(self) -> Statistics:
        """What measuring came to."""

    def close(self) -> None:
        """End the environments."""


OpenEnvs = Callable[..., TrainingEnvs]


@dataclass(frozen=True)
class TrainResult:
    """A finished run.

    Attributes:
        directory: its folder.
        steps: taken.
        seconds: spent, over interruptions.
        episodes: finished.
        progress: the lines of ``progress.jsonl``.
        files: what the run left behind: a description and a file.
    """

    directory: Path
    steps: int
    seconds: float
    episodes: int
    progress: tuple[dict[str, Any], ...]
    files: Mapping[str, Path]


def train(
    settings: Settings,
    out: str | Path,
    *,
    command: str = "",
    listener: TrainingListener | None = None,
    modules: Sequence[str] = (),
    open_envs: OpenEnvs = EnvProcesses,
) -> TrainResult:
    """Train a policy.

    Called again with the same arguments it continues a run that was interrupted; with more steps it extends
    one that is finished.

    Args:
        settings: what to do.
        out: the folder of the run; made if missing.
        command: how to do it again, written beside the results.
        listener: told how it goes on.
        modules: modules to import first, here and in the processes: those that register the environment.
        open_envs: makes the environments; called as ``EnvProcesses`` is.

    Raises:
        SolgymError: a setting has no meaning for the environment, or the folder holds another run.
    """
    settings = settings.resolved()
    listener = listener or SilentTrainingListener()
    solgym.register_envs()
    for module in modules:
        importlib.import_module(module)
    env_class(settings.env.id)
    imitated = _imitated(settings)
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(out, settings))
        stored = folder.info
        tasks, test_tasks = _tasks_of(settings)
        profiles = stored.profiles if stored else _profiles_of(settings, listener)
        slot = stack.enter_context(claim_slot())
        use_slot(slot)
        if slot.core is None:
            listener.notice(
                "no core can be set apart to measure on here, so learning may disturb what is timed"
            )
        stack.enter_context(_small_networks())
        options = {**settings.env.options, "policy": settings.env.policy}
        own_env = _make_env(settings, options, profile=profiles[0])
        stack.callback(own_env.close)
        info = folder.begin(
            RunInfo(
                command=command,
                versions=_versions(),
                toolchain=own_env.toolchain,
                device=device_fingerprint(),
                machine=f"{host_device().model}, {host_device().cores} cores",
                profiles=profiles,
                tasks=tasks,
                evaluation_tasks=_spread(test_tasks, settings.training.evaluation_tasks),
                selection_tasks=_spread(tasks, settings.training.selection_tasks),
                created=datetime.now(UTC).isoformat(timespec="microseconds"),
            )
        )
        listener.stage("starting the environments")
        baselines = (folder.path / BASELINES_NAME).absolute()
        stack.callback(keep_baselines, None)
        keep_baselines(baselines)
        envs = open_envs(
            [
                EnvSpec(
                    settings.env.id, options, profiles[i % len(profiles)], settings.training.remember,
                    tuple(modules), baselines,
                )
                for i in range(settings.training.envs)
            ],
            slot=slot,
            tasks=info.tasks,
            notice=listener.notice,
        )  # fmt: skip
        stack.callback(envs.close)
        return _Run(settings, folder, info, own_env, envs, imitated, listener).go()


class _Run:
    """A run under way: what lives from one segment to the next."""

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        info: RunInfo,
        own_env: Env,
        envs: TrainingEnvs,
        imitated: Mapping[str, Candidate],
        listener: TrainingListener,
    ) -> None:
        self._settings = settings
        self._training = settings.training
        self._folder = folder
        self._info = info
        self._own_env = own_env
        self._envs = envs
        self._imitated = imitated
        self._listener = listener
        self._curriculum = self._make_curriculum()
        self._model = make_model(settings, cast(VecEnv, envs))
        self._recorder = Recorder(
            Schedules(settings, self._model), self._curriculum, envs.set_tasks, self._tell, listener.notice
        )
        self._segment = 0
        self._seconds = 0.0
        self._episodes = 0
        self._recent: list[dict[str, Any]] = []
        """Episodes that ended in this segment."""
        self._best_score: float | None = None
        self._latest: tuple[float | None, float | None] = (None, None)
        self._test_score: float | None = None
        self._counted = Statistics()
        self._restarts = 0
        self._since = time.perf_counter()

    def go(self) -> TrainResult:
        """Do what is left of the run."""
        model, folder = self._model, self._folder
        if folder.checkpoint.exists():
            self._restore(_progress_of(folder.checkpoint, load_checkpoint(folder.checkpoint, model)))
        else:
            folder.cut({})
        model.set_logger(tensorboard_logger(folder.path / TENSORBOARD_NAME, model.num_timesteps))
        self._since = time.perf_counter() - self._seconds
        if model.num_timesteps == 0 and not folder.checkpoint.exists():
            self._begin()
        while model.num_timesteps < self._training.steps:
            # The first episodes of a task wait for its baseline, which is slow by nature.
            first = ", measuring the baseline of each new task" if self._segment == 0 else ""
            self._listener.stage(f"learning{first}")
            self._learn_segment()
        model.logger.close()
        lines = tuple(read_progress(folder.path))
        return TrainResult(
            folder.path, model.num_timesteps, self._seconds, self._episodes, lines, self._files()
        )

    def _begin(self) -> None:
        """What comes before the first segment: imitation, and how good the policy is then."""
        line: dict[str, Any] = {"imitation_loss": None}
        if self._settings.imitation.epochs:
            set_random_seed(self._training.seed)
            self._listener.stage("following the experts")
            decisions = record_experts(
                self._own_env,
                self._info.tasks,
                self._training.seed,
                lambda done: self._listener.stage(
                    f"following the experts, {done} of {len(self._info.tasks)}"
                ),
                self._imitated,
            )
            unused = len(self._imitated.keys() - set(self._info.tasks))
            if unused:
                self._listener.notice(
                    f"{unused} of {len(self._imitated)} candidates to imitate are for tasks that are not "
                    "trained on"
                )
            left_out = len(self._info.tasks) - decisions.tasks
            if left_out:
                self._listener.notice(
                    f"no episode leads to what is to be imitated on {left_out} tasks; they are left out"
                )
            self._listener.stage(f"imitating {len(decisions.actions)} decisions of experts")
            line["imitation_loss"] = finite(fit(self._model, decisions, self._settings.imitation))
            line["imitated_decisions"] = len(decisions.actions)
            line["imitated_tasks"] = decisions.tasks
        imitates = self._settings.imitation.epochs > 0
        # An untrained policy tells little, and evaluating it means to measure what is slow by nature.
        self._finish_segment(line, evaluate=imitates and self._training.evaluate_every > 0)

    def _learn_segment(self) -> None:
        """One segment: fresh episodes, fresh generators, and a checkpoint at its end."""
        model, training = self._model, self._training
        self._segment += 1
        seed = _segment_seed(training.seed, self._segment)
        set_random_seed(seed)
        model.action_space.seed(seed)
        self._envs.seed(seed)
        self._envs.set_tasks(self._curriculum.tasks if self._curriculum else self._info.tasks)
        model._last_obs = None  # so that learn() resets the environments
        self._recorder.begin_segment()
        before = model.num_timesteps
        steps = min(self._settings.segment_steps, training.steps - before)
        try:
            model.learn(
                steps,
                callback=self._recorder,
                log_interval=LOG_EVERY[training.algo],
                reset_num_timesteps=False,
            )
        except (RuntimeError, ValueError) as error:
            if isinstance(error, SolgymError) or is_sound(model):
                raise
            raise self._diverged() from error
        if not is_sound(model):
            raise self._diverged()
        self._flush_episodes()
        losses = {
            name.removeprefix("train/"): finite(value)
            for name, value in model.logger.name_to_value.items()
            if name.startswith("train/")
        }
        is_last = model.num_timesteps >= training.steps
        every = training.evaluate_every
        crossed = bool(every) and model.num_timesteps // every > before // every
        self._finish_segment({"losses": losses}, evaluate=crossed or (is_last and bool(every)))

    def _diverged(self) -> LearningDiverged:
        return LearningDiverged(
            f"learning diverged within {self._model.num_timesteps} steps: weights of the network are huge or "
            "no numbers; give a lower learning_rate or less weight to parts of the loss, and another --out"
        )

    def _finish_segment(self, line: dict[str, Any], evaluate: bool) -> None:
        """Write everything down; the checkpoint comes last, as it says that the rest is there."""
        model, folder = self._model, self._folder
        policy = policy_of(model, self._policy_info())
        scores = self._evaluate(policy) if evaluate else {}
        recent, self._recent = self._recent, []
        statistics, self._counted = self._envs.statistics() - self._counted, self._envs.statistics()
        restarts, self._restarts = self._envs.restarts - self._restarts, self._envs.restarts
        self._seconds = time.perf_counter() - self._since
        record = {
            "steps": model.num_timesteps,
            "segment": self._segment,
            "seconds": round(self._seconds, 3),
            "episodes": len(recent),
            "mean_return": _mean([e["return"] for e in recent]),
            "mean_gap_closed": _mean([e["gap_closed"] for e in recent]),
            "mean_best_gap_closed": _mean([e["best_gap_closed"] for e in recent]),
            "mean_length": _mean([float(e["length"]) for e in recent]),
            "failures_per_episode": _mean([float(e["failures"]) for e in recent]),
            "level": None if self._curriculum is None else self._curriculum.level + 1,
            "restarts": restarts,
            "statistics": {**asdict(statistics), "discarded_share": statistics.discarded_share},
            **line,
            **scores,
        }
        for name in ("mean_return", "mean_gap_closed", "test_gap_closed", "train_gap_closed"):
            if record.get(name) is not None:
                model.logger.record(f"solgym/{name}", record[name])
        model.logger.dump(model.num_timesteps)
        folder.append(PROGRESS_NAME, [record])
        policy.save(folder.path / POLICY_NAME)
        # Not the gap closed: where there is next to no headroom, a little noise makes it any number.
        score = scores.get("train_speedup")
        if score is not None and (self._best_score is None or score > self._best_score):
            self._best_score = score
            policy.save(folder.path / BEST_POLICY_NAME)
        save_checkpoint(folder.checkpoint, model, self._progress())
        draw_learning(self._title(), read_progress(folder.path), folder.path / PICTURE_NAME)
        self._tell(model.num_timesteps)

    # ------------------------------------------------------------------ evaluation

    def _evaluate(self, policy: Any) -> dict[str, Any]:
        """One greedy episode on each evaluation task."""
        found: dict[str, Any] = {}
        for kind, tasks in (("train", self._info.selection_tasks), ("test", self._info.evaluation_tasks)):
            if not tasks:
                continue
            episodes = {}
            for number, task in enumerate(tasks, 1):
                self._listener.stage(f"evaluating, {kind} task {number} of {len(tasks)}")
                episodes[task] = play(policy, self._own_env, task, seed=self._training.seed)
            found[f"{kind}_gap_closed"] = _mean([e.gap_closed for e in episodes.values()])
            found[f"{kind}_speedup"] = _geometric_mean([e.speedup for e in episodes.values()])
            found[kind] = {
                task: {
                    "gap_closed": finite(e.gap_closed),
                    "speedup": finite(e.speedup),
                    "reward": finite(e.reward),
                    "steps": e.steps,
                    "failures": e.failures,
                    "actions": list(e.actions),
                }
                for task, e in episodes.items()
            }
        self._test_score = found.get("test_gap_closed", self._test_score)
        return found

    def _policy_info(self) -> PolicyInfo:
        env, info, training = self._own_env, self._info, self._training
        return PolicyInfo(
            algo=ALGORITHM_NAMES[training.algo],
            env_id=self._settings.env.id,
            env_options=dict(self._settings.env.options),
            features=tuple(env.feature_names),
            actions=action_names(env),
            branches=branches_of(env),
            activation=self._settings.network.activation,
            training={
                "steps": self._model.num_timesteps,
                "seed": training.seed,
                "command": info.command,
                "versions": dict(info.versions),
                "toolchain": info.toolchain,
                "machine": info.machine,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )

    # ------------------------------------------------------------------ the curriculum

    def _make_curriculum(self) -> Curriculum | None:
        settings = self._settings.curriculum
        if not settings.enabled:
            return None
        tasks = self._info.tasks
        if len(tasks) < settings.levels:
            raise InvalidOption(
                f"a curriculum of {settings.levels} levels needs as many tasks, but there are {len(tasks)}; "
                "give more tasks, or set [curriculum] levels"
            )
        difficulty = measure_difficulty(
            self._own_env,
            tasks,
            self._folder.path,
            lambda done: self._listener.stage(f"measuring baselines, {done} of {len(tasks)}"),
        )
        return Curriculum(levels_of(difficulty, settings.levels), settings)

    # ------------------------------------------------------------------ what is kept

    def _progress(self) -> dict[str, Any]:
        curriculum = None if self._curriculum is None else _CurriculumState(**self._curriculum.state())
        return _Progress(
            run=self._info.created,
            segment=self._segment,
            seconds=self._seconds,
            episodes=self._episodes,
            best_score=self._best_score,
            latest=self._latest,
            test_score=self._test_score,
            curriculum=curriculum,
            sizes=self._folder.sizes(),
        ).model_dump(mode="json")

    def _restore(self, progress: _Progress) -> None:
        if progress.run != self._info.created:
            raise InvalidRun(
                f"{self._folder.checkpoint} belongs to another run, begun at {progress.run}, not "
                f"{self._info.created}; restore the file, or give another --out"
            )
        self._segment = progress.segment
        self._seconds = progress.seconds
        self._episodes = progress.episodes
        self._best_score = progress.best_score
        self._latest = progress.latest
        self._test_score = progress.test_score
        if self._curriculum is not None and progress.curriculum is not None:
            self._curriculum.restore(progress.curriculum.model_dump())
        self._folder.cut(progress.sizes)

    def _flush_episodes(self) -> None:
        episodes, self._recorder.episodes = self._recorder.episodes, []
        if episodes:
            self._folder.append(EPISODES_NAME, episodes)
            self._recent += episodes
            self._episodes += len(episodes)
            self._latest = (
                _mean([e["return"] for e in episodes]),
                _mean([e["gap_closed"] for e in episodes]),
            )

    def _tell(self, steps: int) -> None:
        self._flush_episodes()
        curriculum = self._curriculum
        self._listener.standing(
            Standing(
                steps=steps,
                total=self._training.steps,
                seconds=time.perf_counter() - self._since,
                episodes=self._episodes,
                mean_return=self._latest[0],
                mean_gap_closed=self._latest[1],
                test_gap_closed=self._test_score,
                level=None if curriculum is None else (curriculum.level + 1, len(curriculum.levels)),
                discarded_share=self._envs.statistics().discarded_share,
                restarts=self._envs.restarts,
            )
        )

    def _title(self) -> str:
        training = self._training
        return f"{training.algo} on {self._settings.env.id}, seed {training.seed}"

    def _files(self) -> dict[str, Path]:
        named = {
            "policy": POLICY_NAME,
            "best": BEST_POLICY_NAME,
            "curves": PICTURE_NAME,
            "progress": PROGRESS_NAME,
            "episodes": EPISODES_NAME,
        }
        return {name: path for name, file in named.items() if (path := self._folder.path / file).exists()}


# ---------------------------------------------------------------------- what a run begins with


def _progress_of(path: Path, stored: object) -> _Progress:
    try:
        return _Progress.model_validate(stored)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part)[:60] for part in ("progress", *first["loc"]))
        raise InvalidRun(
            f"{path} is damaged ({place}: {first['msg']}); restore the file, or give another --out"
        ) from error


def _make_env(settings: Settings, options: Mapping[str, Any], **arguments: Any) -> Env:
    known = option_names(settings.env.id)
    for name in settings.env.options:
        if name not in known:
            raise InvalidOption(
                f"{settings.env.id} has no option {name!r}, which [env.options] sets; there is "
                f"{', '.join(sorted(known - OTHERWISE_SET.keys()))}"
            )
    made = gymnasium.make(settings.env.id, disable_env_checker=True, **{**options, **arguments})
    env = made.unwrapped
    if not isinstance(env, TuningEnv):
        raise InvalidOption(f"{settings.env.id} is no tuning environment; `solgym list` names those")
    if not isinstance(env.observation_space, gymnasium.spaces.Box):
        env.close()
        raise InvalidOption(
            f"policies learn from numbers, but {settings.env.id} observes {env.observation_space} with these "
            "options; leave out observation"
        )
    if settings.training.algo == "dqn" and not isinstance(env.action_space, gymnasium.spaces.Discrete):
        env.close()
        raise InvalidOption(f"dqn needs single actions, not {env.action_space}; choose another algo")
    return env


def _tasks_of(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tasks to learn on, and those of the test split."""
    options, chosen = settings.env.options, settings.env.tasks
    split = _make_env(settings, options, split=settings.env.split)
    test = _make_env(settings, options, split="test")
    try:
        held_out = test.tasks
        if not chosen:
            return split.tasks, tuple(task for task in held_out if task not in split.tasks)
        with_any = _make_env(settings, options)
        tasks = tuple(with_any.choose_task(task).id for task in chosen)
        with_any.close()
        leaked = [task for task in tasks if task in held_out]
        if leaked and settings.env.split == "train":
            raise InvalidOption(
                f'task {leaked[0]} is held out for tests; leave it out of [env] tasks, or say split = "test"'
            )
        return tasks, tuple(task for task in held_out if task not in tasks)
    finally:
        split.close()
        test.close()


def _imitated(settings: Settings) -> dict[str, Candidate]:
    """The candidates to imitate that the settings give, by task."""
    file = settings.imitation.candidates
    if file is None or not settings.imitation.epochs:
        return {}
    found = read_initial([Path(file)], env_class(settings.env.id).read_candidate)
    return {candidate.to_json()["task"]: candidate for candidate in found}


def _profiles_of(settings: Settings, listener: TrainingListener) -> tuple[Any, ...]:
    if not settings.env.profiles:
        listener.stage("looking up this machine's profile")
    return tuple(resolve_profile(name) for name in settings.env.profiles or (None,))


def _spread(tasks: Sequence[str], count: int) -> tuple[str, ...]:
    """So many tasks, evenly spread; all of them for -1."""
    if count < 0 or count >= len(tasks):
        return tuple(tasks)
    return tuple(tasks[round((i + 0.5) * len(tasks) / count - 0.5)] for i in range(count))


def _versions() -> dict[str, str]:
    packages = {package: version(package) for package in PACKAGES}
    return {"python": platform.python_version(), "solgym": solgym.__version__, **packages}


def _segment_seed(seed: int, segment: int) -> int:
    return int(np.random.SeedSequence((seed, segment)).generate_state(1)[0]) >> 1


@contextmanager
def _small_networks() -> Iterator[None]:
    """More threads would only take CPUs from the environments, and checks take longer than the networks."""
    distribution = torch.distributions.Distribution
    threads, checks = torch.get_num_threads(), distribution._validate_args
    torch.set_num_threads(1)
    distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        distribution.set_default_validate_args(checks)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return finite(np.mean(known)) if known else None


def _geometric_mean(values: Sequence[float]) -> float | None:
    return finite(np.exp(np.mean(np.log(values)))) if values else None
