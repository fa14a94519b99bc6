"""The settings of a training run: every hyperparameter, read from one TOML file and stored with the run.

A file states what differs from the defaults. ``resolve`` fills in the rest, so that the file in the run's
folder names everything, and reading that file again gives equal settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from solgym.baselines.toml_files import read_toml
from solgym.envs.base import Split
from solgym.errors import InvalidOption, SolgymError
from solgym.hardware.atomic_files import write_atomically
from solgym.hardware.measurement import MeasurePolicy

__all__ = [
    "A2CSettings",
    "Algo",
    "CurriculumSettings",
    "DQNSettings",
    "EnvSettings",
    "ImitationSettings",
    "NetworkSettings",
    "PPOSettings",
    "Settings",
    "TrainingSettings",
    "read_settings",
    "settings_from",
    "write_settings",
]

Algo = Literal["ppo", "ppo-unmasked", "a2c", "dqn"]
Count = Annotated[int, Field(ge=1)]
CountOrNone = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Moderate = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
"""Larger ones leave no numbers behind."""
Rate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""Of learning; steps of Adam and RMSprop are about as long, whatever the gradient."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Option = str | int | float | bool
"""What an argument of an environment can be in the file."""

OTHERWISE_SET: Mapping[str, str] = {
    "task": "tasks",
    "split": "split",
    "profile": "profiles",
    "policy": "measuring",
}
"""Arguments of environments that are no options in the file, and what is used instead."""

PASS_NETWORK = (128, 64, 32)
OTHER_NETWORK = (256, 128)
_SECTIONS: Mapping[str, str] = {"ppo": "ppo", "ppo-unmasked": "ppo", "a2c": "a2c", "dqn": "dqn"}


class _Part(BaseModel):
    # Strict, so that a number in quotes is a mistake; integers may stand for floating-point numbers.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class EnvSettings(_Part):
    """What is learned in.

    Attributes:
        id: of an environment, for example ``KernelDSL-GEMM-v0``.
        options: further arguments of the environment, for example ``reward_at``.
        split: whose tasks episodes draw from.
        tasks: draw from these instead; any shape, but none of the test split.
        profiles: published profiles, or files; environment ``i`` takes number ``i``, round and round. None
            given is this machine's own.
        measuring: fields of ``MeasurePolicy`` that differ from its defaults.
    """

    id: str
    options: dict[str, Option] = {}
    split: Split = "train"
    tasks: Annotated[tuple[str, ...], Field(strict=False)] = ()
    profiles: Annotated[tuple[str, ...], Field(strict=False)] = ()
    measuring: dict[str, int | float | bool] = {}

    @field_validator("options")
    @classmethod
    def _are_left_to_the_environment(cls, options: dict[str, Option]) -> dict[str, Option]:
        for name in options:
            if name in OTHERWISE_SET:
                raise ValueError(f"{name} is no option here; use {OTHERWISE_SET[name]} of [env]")
        if options.get("mask_in_observation"):
            raise ValueError("mask_in_observation is not supported; the algorithms get masks anyway")
        return options

    @field_validator("measuring")
    @classmethod
    def _is_a_policy(cls, measuring: dict[str, int | float | bool]) -> dict[str, int | float | bool]:
        fields = asdict(MeasurePolicy())
        for name in measuring:
            if name not in fields:
                raise ValueError(f"measuring has no {name!r}; it has {', '.join(fields)}")
            if name == "baseline_s":
                raise ValueError("baseline_s is measured; leave it out of measuring")
        MeasurePolicy(**measuring)  # type: ignore[arg-type]
        return measuring

    @property
    def policy(self) -> MeasurePolicy:
        """How candidates are timed."""
        return MeasurePolicy(**self.measuring)  # type: ignore[arg-type]


class TrainingSettings(_Part):
    """How long is learned, and by whom.

    Attributes:
        algo: ``ppo`` (with action masks), ``ppo-unmasked``, ``a2c`` or ``dqn``.
        steps: environment steps of all environments together.
        envs: environments, each in a process of its own.
        seed: of everything random; 32 bits, as the learning libraries take no more.
        remember: measure equal machine code of a task once, not again in every episode.
        checkpoint_every: steps from one checkpoint to the next, at which all episodes begin anew; rounded up
            to whole rollouts.
        evaluate_every: steps from one evaluation to the next, at checkpoints; 0 is never.
        evaluation_tasks: tasks of the test split to evaluate on, evenly spread over it; 0 is none, -1 all.
        selection_tasks: tasks of those trained on to evaluate on, likewise; their geometric mean speedup
            chooses ``best.safetensors``, as the test split must not.
    """

    algo: Algo = "ppo"
    steps: Count = 50_000
    envs: Annotated[int, Field(ge=1, le=64)] = 2
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    remember: bool = True
    checkpoint_every: Count = 2048
    evaluate_every: CountOrNone = 10_240
    evaluation_tasks: Annotated[int, Field(ge=-1)] = 8
    selection_tasks: Annotated[int, Field(ge=-1)] = 8


class NetworkSettings(_Part):
    """The network: fully connected layers. Where the algorithm has a critic, it has as many of its own.

    ``hidden`` are the units of its inner layers; left out, they are 128, 64, 32 for ``MLIRPasses`` and 256,
    128 for everything else.
    """

    hidden: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=8)] | None = None
    activation: Literal["tanh", "relu"] = "tanh"


class _Decaying(_Part):
    """An algorithm's hyperparameters; names are those of stable-baselines3.

    ``learning_rate`` and ``ent_coef`` change linearly to their values ``_end`` over ``decay_steps``, where
    these are given, and stay there.
    """

    learning_rate: Rate
    learning_rate_end: Rate | None = None
    decay_steps: CountOrNone = 0
    gamma: Share = 0.99

    @model_validator(mode="after")
    def _decays_over_some_steps(self) -> _Decaying:
        ends = [
            name
            for name in type(self).model_fields
            if name.endswith("_end") and getattr(self, name) is not None
        ]
        if ends and not self.decay_steps:
            raise ValueError(f"{ends[0]} needs decay_steps, the steps over which it is reached")
        return self


class PPOSettings(_Decaying):
    """Proximal policy optimisation, with and without masks; ``n_steps`` is of each environment."""

    learning_rate: Rate = 3e-4
    n_steps: Annotated[int, Field(ge=2)] = 256
    batch_size: Annotated[int, Field(ge=2)] = 128
    n_epochs: Count = 10
    gae_lambda: Share = 0.95
    clip_range: Positive = 0.2
    ent_coef: NotNegative = 0.01
    ent_coef_end: NotNegative | None = None
    vf_coef: NotNegative = 0.5
    max_grad_norm: Positive = 0.5
    target_kl: Positive | None = None
    normalize_advantage: bool = True


class A2CSettings(_Decaying):
    """Advantage actor-critic, without masks; ``n_steps`` is of each environment."""

    learning_rate: Rate = 7e-4
    n_steps: Count = 16
    gae_lambda: Share = 1.0
    ent_coef: NotNegative = 0.01
    ent_coef_end: NotNegative | None = None
    vf_coef: NotNegative = 0.5
    max_grad_norm: Positive = 0.5
    normalize_advantage: bool = False
    use_rms_prop: bool = True


class DQNSettings(_Decaying):
    """Deep Q-learning, without masks; it takes random actions less and less over ``exploration_steps``.

    The replay buffer is part of every checkpoint: two observations, 4 bytes a number, for each transition.
    """

    learning_rate: Rate = 3e-4
    buffer_size: Count = 20_000
    learning_starts: CountOrNone = 1_000
    batch_size: Count = 64
    tau: Share = 1.0
    train_freq: Count = 4
    gradient_steps: Count = 1
    target_update_interval: Count = 1_000
    exploration_steps: Count = 10_000
    exploration_initial_eps: Share = 1.0
    exploration_final_eps: Share = 0.05
    max_grad_norm: Positive = 10.0


class ImitationSettings(_Part):
    """Learning from the best known candidates of the training tasks before anything else.

    Attributes:
        epochs: passes over their actions; 0 is not at all.
        candidates: a JSON file with candidates to imitate instead, such as ``best.json`` of ``solgym tune``,
            or a list of them; tasks of which it has none fall back to the best known.
        learning_rate: of Adam.
        batch_size: decisions a batch.
        weight_decay: of Adam, decoupled from the gradient.
        noise: standard deviation of what is added to observations, so that few examples are not learned by
            heart.
    """

    epochs: CountOrNone = 0
    candidates: str | None = None
    learning_rate: Rate = 1e-3
    batch_size: Count = 64
    weight_decay: Moderate = 0.0
    noise: Moderate = 0.0


class CurriculumSettings(_Part):
    """From easy tasks to all of them.

    Attributes:
        enabled: whether to begin with a part of the tasks.
        levels: groups of tasks, as equal as possible; each level adds one.
        threshold: gap closed at the end of an episode from which on it is a success.
        success_rate: share of successes that leads to the next level.
        window: episodes, the last of the level, that the share is taken over.
    """

    enabled: bool = False
    levels: Annotated[int, Field(ge=2)] = 3
    threshold: Annotated[float, Field(allow_inf_nan=False)] = 0.3
    success_rate: Share = 0.6
    window: Count = 50


class Settings(_Part):
    """Everything about a training run; only the section of the algorithm in use may be there."""

    env: EnvSettings
    training: TrainingSettings = TrainingSettings()
    network: NetworkSettings = NetworkSettings()
    ppo: PPOSettings | None = None
    a2c: A2CSettings | None = None
    dqn: DQNSettings | None = None
    imitation: ImitationSettings = ImitationSettings()
    curriculum: CurriculumSettings = CurriculumSettings()

    @model_validator(mode="after")
    def _fit_together(self) -> Settings:
        algo = self.training.algo
        for section in ("ppo", "a2c", "dqn"):
            if getattr(self, section) is not None and section != _SECTIONS[algo]:
                raise ValueError(
                    f"[{section}] is not used with algo {algo!r}; leave it out, or change [training] algo"
                )
        if algo == "dqn" and self.imitation.epochs:
            raise ValueError("[imitation] needs a policy to fit; dqn has none, so choose another algo")
        if len(self.env.profiles) > self.training.envs:
            raise ValueError(
                f"{len(self.env.profiles)} profiles need as many environments, but envs is "
                f"{self.training.envs}; raise it"
            )
        return self

    @property
    def algorithm(self) -> PPOSettings | A2CSettings | DQNSettings:
        """The hyperparameters of the algorithm in use."""
        chosen = getattr(self, _SECTIONS[self.training.algo])
        if chosen is None:
            raise InvalidOption("these settings have gaps; call resolved() first")
        assert isinstance(chosen, PPOSettings | A2CSettings | DQNSettings)
        return chosen

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of the inner layers."""
        if self.network.hidden is None:
            return PASS_NETWORK if self.env.id.startswith("MLIRPasses-") else OTHER_NETWORK
        return self.network.hidden

    @property
    def rollout_steps(self) -> int:
        """Steps of all environments together between two updates: training stops only there."""
        settings = self.algorithm
        each = settings.train_freq if isinstance(settings, DQNSettings) else settings.n_steps
        return each * self.training.envs

    @property
    def segment_steps(self) -> int:
        """Steps from one checkpoint to the next, whole rollouts."""
        return math.ceil(self.training.checkpoint_every / self.rollout_steps) * self.rollout_steps

    def resolved(self) -> Settings:
        """The same settings with everything that was left open filled in."""
        section = _SECTIONS[self.training.algo]
        defaults = {"ppo": PPOSettings, "a2c": A2CSettings, "dqn": DQNSettings}[section]
        chosen = getattr(self, section) or defaults()
        network = self.network.model_copy(update={"hidden": self.hidden})
        return self.model_copy(update={section: chosen, "network": network})


def settings_from(data: object, where: str = "settings") -> Settings:
    """Settings from plain data, as TOML gives them.

    Args:
        data: a table of the sections; what is missing has its default.
        where: how messages call them.

    Raises:
        InvalidOption: something is missing, unknown or not allowed; the message names the place.
    """
    try:
        return Settings.model_validate(data).resolved()
    except ValidationError as error:
        raise InvalidOption(f"{where}: {_first_mistake(error)}; see docs/training.md") from error
    except SolgymError as error:
        raise InvalidOption(f"{where}: {error}; see docs/training.md") from error


def read_settings(
    path: str | Path | None, changes: Mapping[str, Mapping[str, Any]] | None = None
) -> Settings:
    """Read settings from a TOML file, with some of them replaced.

    Args:
        path: the file; None is all defaults.
        changes: by section, what counts instead of what the file says; None as a value changes nothing.

    Raises:
        InvalidOption: it cannot be read, or asks for something that cannot be; the message names the place.
    """
    data: dict[str, Any] = {}
    if path is not None:
        data = read_toml(path, "settings", "docs/training.md")
    for section, values in (changes or {}).items():
        given = {name: value for name, value in values.items() if value is not None}
        there = data.get(section, {})
        if given and isinstance(there, dict):
            data[section] = {**there, **given}
    return settings_from(data, str(path) if path is not None else "settings")


def write_settings(path: Path, settings: Settings) -> None:
    """Write settings as TOML; ``read_settings`` gives equal ones.

    Raises:
        OSError: it cannot be written.
    """
    import tomli_w

    data = settings.resolved().model_dump(mode="json", exclude_none=True)
    write_atomically(path, tomli_w.dumps(data))


def _first_mistake(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{where} is missing"
    if first["type"] == "extra_forbidden":
        return f"{where} is no setting"
    message = str(first["msg"]).removeprefix("Value error, ")
    shown = "" if isinstance(first["input"], dict) or not where else f", not {first['input']!r}"
    return f"{where}: {message}{shown}" if where else message
