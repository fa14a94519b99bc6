"""Trained policies as data: small networks that act with numpy alone, in files that hold nothing executable.

A policy file is a safetensors file: the weights, and a JSON text in its metadata that says what they are for.
Reading one runs no code of whoever wrote it. How policies are trained is another module's concern.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
import safetensors
import safetensors.numpy
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from solgym.errors import InvalidAction, InvalidPolicy
from solgym.hardware.atomic_files import write_atomically

if TYPE_CHECKING:
    from solgym.envs.base import TuningEnv

__all__ = ["ACTING_OPTIONS", "Policy", "PolicyInfo", "action_names", "branches_of", "shipped_policies"]

Activation = Literal["tanh", "relu"]

METADATA_KEY: Final = "solgym"
MAX_FILE_BYTES: Final = 64 << 20
"""Largest policy file: hundreds of times what the networks here need."""
MAX_INFO_CHARACTERS: Final = 1 << 20
MAX_LAYERS: Final = 16

ACTING_OPTIONS: Final = frozenset(
    {
        "action_mode",
        "enforce_masks",
        "failure_penalty",
        "float_mode",
        "held_out",
        "jit",
        "max_steps",
        "observation",
        "reward",
        "reward_at",
        "stop_at",
        "threads",
    }
)
"""Arguments of environments that a policy file may set where the policy acts: what shapes its episodes. Not
those that name files, nor ``fallback``, by which the expert would finish what the policy began."""

LARGEST_NUMBER: Final = 1e12
LARGEST_OPTIONS: Final = {"max_steps": 1000, "threads": 256}
"""So that no file can make an evaluation that does not end."""

_LOWEST, _HIGHEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)


class PolicyInfo(BaseModel):
    """What a policy is for and where it comes from; JSON in the metadata of its file.

    Attributes:
        format: always ``solgym-policy``.
        version: of the file format.
        algo: how it was trained, for example ``maskable-ppo``, ``ppo``, ``a2c`` or ``dqn``.
        env_id: the environment that it was trained on.
        env_options: arguments of that environment, such as ``reward_at`` or ``max_steps``.
        features: the name of every number that it observes, in order.
        actions: the name of every number that it gives, in order; see ``action_names``.
        branches: choices per part of a ``MultiDiscrete``, or one entry for a ``Discrete``.
        activation: what stands between layers.
        training: steps, seed, command, versions, machine, date.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["solgym-policy"] = "solgym-policy"
    version: Literal[1] = 1
    algo: str = Field(min_length=1, max_length=100)
    env_id: str = Field(min_length=1, max_length=200)
    env_options: dict[str, JsonValue] = Field(default_factory=dict)
    features: tuple[str, ...] = Field(min_length=1)
    actions: tuple[str, ...] = Field(min_length=1)
    branches: tuple[int, ...] = Field(min_length=1)
    activation: Activation = "tanh"
    training: dict[str, JsonValue] = Field(default_factory=dict)


class Policy:
    """A multilayer perceptron that chooses actions from features, in float32.

    Args:
        info: what it is for.
        layers: weight of shape (outputs, inputs) and bias of shape (outputs,) of each layer, first to last.
            The last one gives a logit (with DQN a value) per action.

    Raises:
        InvalidPolicy: the sizes do not fit each other or ``info``, or a weight is not finite.
    """

    def __init__(self, info: PolicyInfo, layers: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> None:
        """Copy the weights and check that they fit."""
        self.info = info
        with np.errstate(over="ignore"):
            self.layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...] = tuple(
                (np.array(weight, dtype=np.float32, order="C"), np.array(bias, dtype=np.float32))
                for weight, bias in layers
            )
        _check_layers(info, self.layers)
        self._ends = tuple(int(end) for end in np.cumsum(info.branches))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a policy file, or the policy of that name that comes with the package.

        Nothing in the file is executed, whoever wrote it.

        Args:
            path: a file, or a name in ``shipped_policies()``.

        Raises:
            InvalidPolicy: there is no such policy, it is none or damaged, or its parts do not fit.
            OSError: the file cannot be read.
        """
        name = str(path)
        shipped = shipped_policies()
        file = shipped[name] if name in shipped else Path(path)
        data = _read(file, name, shipped)
        tensors = _tensors(data, name)
        info = _info(data, name)
        try:
            return cls(info, _layers_of(tensors))
        except InvalidPolicy as error:
            raise InvalidPolicy(f"{name} is no policy that can act: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the policy as a file that ``load`` reads; whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        write_atomically(Path(path), self._bytes)

    @functools.cached_property
    def _bytes(self) -> bytes:
        tensors = {}
        for number, (weight, bias) in enumerate(self.layers):
            tensors[f"layers.{number}.weight"] = weight
            tensors[f"layers.{number}.bias"] = bias
        metadata = {METADATA_KEY: self.info.model_dump_json()}
        return bytes(safetensors.numpy.save(tensors, metadata))

    @property
    def digest(self) -> str:
        """SHA-256 of the weights and what is said of them, in hexadecimal."""
        return hashlib.sha256(self._bytes).hexdigest()

    @property
    def parameters(self) -> int:
        """How many numbers it has learned."""
        return sum(weight.size + bias.size for weight, bias in self.layers)

    def logits(self, observation: NDArray[Any], mask: NDArray[Any] | None = None) -> NDArray[np.float32]:
        """What the network gives for one observation.

        Args:
            observation: features, shape (features,).
            mask: legal actions, shape (actions,), as ``action_masks()`` gives it; None is all.

        Returns:
            Logits (with DQN values), shape (actions,), float32; minus infinity where an action is illegal.
        """
        hidden = np.asarray(observation, dtype=np.float32)
        last = len(self.layers) - 1
        # Weights from a file may be huge; what overflows must not warn, nor become an illegal choice.
        with np.errstate(over="ignore", invalid="ignore"):
            for number, (weight, bias) in enumerate(self.layers):
                hidden = weight @ hidden + bias
                if number < last:
                    hidden = np.tanh(hidden) if self.info.activation == "tanh" else np.maximum(hidden, 0.0)
        logits: NDArray[np.float32] = np.nan_to_num(hidden, nan=_LOWEST, posinf=_HIGHEST, neginf=_LOWEST)
        if mask is not None:
            logits[~np.asarray(mask, dtype=np.bool_)] = -np.inf
        return logits

    def act(
        self,
        observation: NDArray[Any],
        mask: NDArray[Any] | None = None,
        rng: np.random.Generator | None = None,
    ) -> int | NDArray[np.int64]:
        """Choose an action.

        Args:
            observation: features, shape (features,).
            mask: legal actions, shape (actions,); None is all.
            rng: draws from the softmax of the logits. None chooses the largest; so does DQN always, whose
                values are no logits.

        Returns:
            An action of the environment's action space: a number, or with several branches one for each.

        Raises:
            InvalidAction: the mask leaves no action.
        """
        logits = self.logits(observation, mask)
        begins = (0, *self._ends[:-1])
        drawn = rng if self.info.algo != "dqn" else None
        chosen = [_choose(logits[begin:end], drawn) for begin, end in zip(begins, self._ends, strict=True)]
        return chosen[0] if len(chosen) == 1 else np.array(chosen, dtype=np.int64)

    def options_for(self, env_id: str) -> dict[str, str | int | float | bool]:
        """Arguments for an environment in which it is to act: those of ``ACTING_OPTIONS`` that it was trained
        with, as far as that environment has them.

        Raises:
            InvalidOption: there is no such environment.
            InvalidPolicy: an option is neither a number nor a text, or is too large.
        """
        from solgym.envs.registration import option_names

        chosen: dict[str, str | int | float | bool] = {}
        for name in sorted(ACTING_OPTIONS & option_names(env_id) & self.info.env_options.keys()):
            value = self.info.env_options[name]
            if value is None:
                continue  # as if it was left out
            is_huge = isinstance(value, int | float) and not abs(value) < LARGEST_NUMBER
            if isinstance(value, list | dict) or is_huge:
                raise InvalidPolicy(
                    f"the policy sets {name} to {str(value)[:60]}; expected a number or a text"
                )
            most = LARGEST_OPTIONS.get(name)
            if most is not None and not (isinstance(value, int) and 1 <= value <= most):
                raise InvalidPolicy(f"the policy sets {name} to {str(value)[:60]}; expected 1 to {most}")
            chosen[name] = value
        return chosen

    def check(self, env: TuningEnv[Any]) -> None:
        """Raise ``InvalidPolicy`` unless the policy observes and does what the environment offers."""
        features = tuple(env.feature_names)
        trained = f"the policy was trained on {self.info.env_id}"
        if not features:
            raise InvalidPolicy(f"{trained} and observes numbers; this environment offers text")
        if self.info.features != features:
            raise InvalidPolicy(
                f"{trained} and observes {_difference(self.info.features, features, 'features')}; "
                "take an environment of that family, with the observation that it was trained with"
            )
        if self.info.actions != (names := action_names(env)):
            raise InvalidPolicy(
                f"{trained} and chooses among {_difference(self.info.actions, names, 'actions')}; "
                "take an environment with the same actions, or train another policy"
            )
        if self.info.branches != (branches := branches_of(env)):
            raise InvalidPolicy(
                f"{trained}, whose actions have the parts {self.info.branches}, not {branches}; "
                "train another policy"
            )


def branches_of(env: TuningEnv[Any]) -> tuple[int, ...]:
    """Choices per part of an environment's actions; one number where they have no parts."""
    space = env.action_space
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(int(size) for size in space.nvec)
    assert isinstance(space, spaces.Discrete)
    return (int(space.n),)


def action_names(env: TuningEnv[Any]) -> tuple[str, ...]:
    """A name for every entry of an environment's action mask, the same for all of its tasks.

    Kernels all have the same primitive actions, so a policy of one can act on another; a pattern is named by
    its number there. Of knobs the choices are numbered, since tasks differ in what they stand for.
    """
    from solgym.envs.kernel_dsl.env import KernelDSLEnv
    from solgym.envs.kernel_dsl.kernels import parse_task
    from solgym.envs.kernel_dsl.knobs import knob_space

    if not isinstance(env, KernelDSLEnv):
        return tuple(env.action_meanings())
    if env.action_mode == "primitive":
        return env.table.meanings
    knobs = knob_space(parse_task(env.kernel.default_task_id), env.target.spec).knobs
    return tuple(
        f"{name} number {choice}"
        for size, name in zip(branches_of(env), knobs, strict=True)
        for choice in range(size)
    )


def shipped_policies() -> dict[str, Path]:
    """The policies that come with the package: names and files."""
    folder = Path(__file__).parent / "policies"
    return {file.stem: file for file in sorted(folder.glob("*.safetensors"))}


def _choose(logits: NDArray[np.float32], rng: np.random.Generator | None) -> int:
    best = int(np.argmax(logits))
    highest = float(logits[best])
    if highest == -math.inf:
        raise InvalidAction("The mask leaves no action; give one with at least one legal action per part.")
    if rng is None:
        return best
    weights = np.exp(logits.astype(np.float64) - highest)
    return int(np.searchsorted(np.cumsum(weights), rng.random() * weights.sum(), side="right"))


def _check_layers(
    info: PolicyInfo, layers: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]
) -> None:
    if any(size < 1 for size in info.branches) or sum(info.branches) != len(info.actions):
        raise InvalidPolicy(
            f"its branches {str(info.branches)[:60]} do not add up to its {len(info.actions)} named actions"
        )
    if not 1 <= len(layers) <= MAX_LAYERS:
        raise InvalidPolicy(f"it has {len(layers)} layers; expected 1 to {MAX_LAYERS}")
    inputs = len(info.features)
    for number, (weight, bias) in enumerate(layers):
        if weight.ndim != 2 or weight.shape[1] != inputs or bias.shape != weight.shape[:1] or not bias.size:
            raise InvalidPolicy(
                f"layer {number} has a weight of shape {weight.shape} and a bias of shape {bias.shape}, but "
                f"{inputs} numbers go in; expected (outputs, {inputs}) and (outputs,)"
            )
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise InvalidPolicy(f"layer {number} has weights that are not finite float32 numbers")
        inputs = weight.shape[0]
    if inputs != len(info.actions):
        raise InvalidPolicy(f"its last layer gives {inputs} numbers for {len(info.actions)} named actions")


def _difference(first: Sequence[str], second: Sequence[str], what: str) -> str:
    if len(first) != len(second):
        return f"{len(first)} {what}, not the {len(second)} of this environment"
    number = next(k for k, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    return f"other {what} than those of this environment: number {number} is {first[number]!r}, " + (
        f"not {second[number]!r}"
    )


def _read(file: Path, name: str, shipped: dict[str, Path]) -> bytes:
    if file.is_dir():
        raise InvalidPolicy(f"{name} is a folder; give the policy file in it, such as policy.safetensors")
    if not file.exists():
        known = f", or the name of one that comes with SOLGym ({', '.join(shipped)})" if shipped else ""
        raise InvalidPolicy(f"there is no policy {name}; give a file that training wrote{known}")
    if not file.is_file():
        raise InvalidPolicy(f"{name} is no regular file; copy the policy to one first")
    with file.open("rb") as opened:
        data = opened.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidPolicy(f"{name} is larger than {MAX_FILE_BYTES >> 20} MiB; no policy of SOLGym is")
    return data


def _tensors(data: bytes, name: str) -> dict[str, NDArray[np.float32]]:
    try:
        parts = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise InvalidPolicy(
            f"{name} is no safetensors file or is damaged ({error}); give a policy that training wrote, whole"
        ) from error
    tensors = {}
    for key, part in parts:
        if part["dtype"] != "F32":
            raise InvalidPolicy(f"{name} holds {key[:60]!r} as {part['dtype']}; policies hold float32 (F32)")
        try:
            tensors[key] = np.frombuffer(part["data"], dtype="<f4").reshape(part["shape"])
        except ValueError as error:  # of no elements, but with another size that numpy cannot have
            raise InvalidPolicy(
                f"{name} holds {key[:60]!r} of a shape that cannot be; give a policy that training wrote"
            ) from error
    return tensors


def _info(data: bytes, name: str) -> PolicyInfo:
    """What the header says; ``data`` is a safetensors file, so the header is there."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
        text = (header.get("__metadata__") or {}).get(METADATA_KEY)
    except (ValueError, RecursionError, AttributeError) as error:
        raise InvalidPolicy(f"{name} is damaged: its header is no JSON that can be read") from error
    if not isinstance(text, str):
        raise InvalidPolicy(
            f"{name} holds tensors but no word of what they are for (metadata {METADATA_KEY!r}); "
            "give a policy that SOLGym's training wrote"
        )
    if len(text) > MAX_INFO_CHARACTERS:
        raise InvalidPolicy(f"{name} says more about itself than {MAX_INFO_CHARACTERS:,} characters")
    try:
        return PolicyInfo.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:60] for part in first["loc"])
        raise InvalidPolicy(
            f"{name} is no policy of this version of SOLGym ({where + ': ' if where else ''}"
            f"{str(first['msg'])[:200]}); train it again, or use the version that wrote it"
        ) from error


def _layers_of(
    tensors: dict[str, NDArray[np.float32]],
) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    count = len(tensors) // 2
    layers = [(f"layers.{number}.weight", f"layers.{number}.bias") for number in range(count)]
    expected = {key for layer in layers for key in layer}
    if expected != set(tensors):
        found = ", ".join(ascii(key[:40]) for key in sorted(tensors)[:6]) or "none"
        raise InvalidPolicy(f"expected tensors layers.0.weight, layers.0.bias and so on; it has {found}")
    return [(tensors[weight], tensors[bias]) for weight, bias in layers]
