"""The learning algorithms by name: how settings become a model of stable-baselines3 or sb3-contrib, and a
model a ``Policy``.

Schedules depend on the number of steps taken, never on how many are still planned, so that a run that is
interrupted, or extended, is no different from one that is not.
"""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from solgym.baselines.rl.policy import Policy, PolicyInfo
from solgym.baselines.rl.settings import DQNSettings, Settings
from solgym.errors import InvalidOption, SolgymError

__all__ = ["ALGORITHM_NAMES", "Schedules", "is_sound", "keeps_masks", "make_model", "policy_of"]

ALGORITHM_NAMES: Final = {"ppo": "maskable-ppo", "ppo-unmasked": "ppo", "a2c": "a2c", "dqn": "dqn"}
"""What a policy file calls each algorithm."""
_CLASSES: Final[dict[str, type[BaseAlgorithm]]] = {
    "ppo": MaskablePPO,
    "ppo-unmasked": PPO,
    "a2c": A2C,
    "dqn": DQN,
}
LARGEST_WEIGHT: Final = 1e10
"""Sums of products of a few of these overflow float32."""
_SCHEDULED: Final = {
    "learning_rate_end", "ent_coef_end", "decay_steps",
    "exploration_steps", "exploration_initial_eps", "exploration_final_eps",
}  # fmt: skip
"""Settings that are no arguments of the algorithms."""


def keeps_masks(settings: Settings) -> bool:
    """Whether the algorithm knows which actions are legal."""
    return settings.training.algo == "ppo"


def make_model(settings: Settings, env: VecEnv) -> BaseAlgorithm:
    """Make an untrained model; its weights follow from the seed.

    Args:
        settings: resolved.
        env: the environments that it will learn in.

    Raises:
        InvalidOption: it finds no room in memory.
    """
    try:
        return _made(settings, env)
    except (MemoryError, RuntimeError, ValueError) as error:  # of numpy, and of torch twice
        if isinstance(error, SolgymError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise InvalidOption(
            f"the network and its buffers cannot be made ({reason}); ask for fewer units in [network] "
            "hidden, or for less n_steps or buffer_size"
        ) from error


def _made(settings: Settings, env: VecEnv) -> BaseAlgorithm:
    algorithm = settings.algorithm
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[settings.network.activation]
    model = _CLASSES[settings.training.algo](
        "MlpPolicy",
        env,
        seed=settings.training.seed,
        device="cpu",
        policy_kwargs={"net_arch": list(settings.hidden), "activation_fn": activation},
        **algorithm.model_dump(exclude=set(_SCHEDULED)),
    )
    Schedules(settings, model).install()
    return model


class Schedules:
    """The hyperparameters that change as a model learns."""

    def __init__(self, settings: Settings, model: BaseAlgorithm) -> None:
        self._settings = settings.algorithm
        self._model: Any = model

    def install(self) -> None:
        """Let the model look its learning rate and its exploration up here."""
        self._model.lr_schedule = lambda _: self.value("learning_rate")
        if isinstance(self._model, DQN):
            self._model.exploration_schedule = lambda _: self._exploration()

    def apply(self) -> None:
        """Set what the model does not look up; call it before each rollout."""
        if isinstance(self._model, DQN):
            self._model.exploration_rate = self._exploration()
        if hasattr(self._settings, "ent_coef"):
            self._model.ent_coef = self.value("ent_coef")

    def value(self, name: str) -> float:
        """A hyperparameter after the steps taken so far."""
        begin, end = getattr(self._settings, name), getattr(self._settings, f"{name}_end")
        if end is None:
            return float(begin)
        return _linear(begin, end, self._model.num_timesteps / self._settings.decay_steps)

    def _exploration(self) -> float:
        settings = self._settings
        assert isinstance(settings, DQNSettings)
        share = self._model.num_timesteps / settings.exploration_steps
        return _linear(settings.exploration_initial_eps, settings.exploration_final_eps, share)


def _linear(begin: float, end: float, share: float) -> float:
    return begin + (end - begin) * min(share, 1.0)


def is_sound(model: BaseAlgorithm) -> bool:
    """Whether the weights of a model are numbers that one can calculate with; they stay below 100 or so
    unless learning diverges.
    """
    return all(bool((weight.abs() < LARGEST_WEIGHT).all()) for weight in model.policy.parameters())


def policy_of(model: BaseAlgorithm, info: PolicyInfo) -> Policy:
    """The network of a model that chooses actions, as a policy that needs no torch."""
    inner: Any = model.policy
    if isinstance(model, DQN):
        layers = list(cast(Any, model).q_net.q_net)
    else:
        layers = [*inner.mlp_extractor.policy_net, inner.action_net]
    linear = [layer for layer in layers if isinstance(layer, torch.nn.Linear)]
    return Policy(info, [(_array(layer.weight), _array(layer.bias)) for layer in linear])


def _array(parameter: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return parameter.detach().numpy().astype(np.float32)
