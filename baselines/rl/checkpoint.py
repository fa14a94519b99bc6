"""Checkpoints of a model that learns: one safetensors file with everything that its future depends on.

Weights, the optimiser's state and (with DQN) the replay buffer are tensors; counts are JSON in the metadata.
Nothing is pickled, so reading a checkpoint executes nothing. Random generators are not stored: training
seeds them anew at every checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
import safetensors.numpy
import torch
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm

from solgym.errors import InvalidRun
from solgym.hardware.atomic_files import write_atomically

__all__ = ["load_checkpoint", "save_checkpoint"]

METADATA_KEY: Final = "solgym"
FORMAT: Final = "solgym-checkpoint"
VERSION: Final = 1
_COUNTERS: Final = ("num_timesteps", "_n_updates", "_n_calls", "_episode_num")
_REPLAY: Final = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")

Tensors = dict[str, NDArray[Any]]


def save_checkpoint(path: Path, model: BaseAlgorithm, progress: Mapping[str, Any]) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: the file.
        model: the model.
        progress: what training wants to know again, as JSON data.

    Raises:
        OSError: it cannot be written.
    """
    tensors, numbers = _optimizer_state(model)
    for name, tensor in model.policy.state_dict().items():
        tensors[f"policy.{name}"] = tensor.numpy()
    described: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "counters": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
        "optimizer": numbers,
        "progress": dict(progress),
    }
    if isinstance(model, DQN):
        buffer: Any = model.replay_buffer
        described["replay"] = {"pos": buffer.pos, "full": buffer.full}
        used = buffer.buffer_size if buffer.full else buffer.pos
        tensors |= {f"replay.{name}": getattr(buffer, name)[:used] for name in _REPLAY}
    contiguous = {name: np.array(array, order="C") for name, array in tensors.items()}
    text = json.dumps(described, allow_nan=False)
    write_atomically(path, bytes(safetensors.numpy.save(contiguous, {METADATA_KEY: text})))


def load_checkpoint(path: Path, model: BaseAlgorithm) -> dict[str, Any]:
    """Give a fresh model the state of a checkpoint.

    Args:
        path: the file.
        model: a model made from the same settings.

    Returns:
        What was stored as ``progress``.

    Raises:
        InvalidRun: it cannot be read, is damaged, or belongs to another model.
    """
    try:
        with safetensors.safe_open(path, "numpy") as file:
            described = json.loads((file.metadata() or {})[METADATA_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        if described["format"] != FORMAT or described["version"] != VERSION:
            raise InvalidRun(
                f"{path} is of another version of SOLGym; continue with that, or give another --out"
            )
        _restore(model, described, tensors)
        progress: dict[str, Any] = described["progress"]
    except (OSError, safetensors.SafetensorError) as error:
        raise InvalidRun(f"cannot read {path}: {error}; restore the file, or give another --out") from error
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError, AttributeError) as error:
        if isinstance(error, InvalidRun):
            raise
        reason = " ".join(str(error).split())[:200]
        raise InvalidRun(
            f"{path} is damaged or belongs to another run ({type(error).__name__}: {reason}); "
            "restore the file, or give another --out"
        ) from error
    return progress


def _optimizer_state(model: BaseAlgorithm) -> tuple[Tensors, dict[str, float]]:
    """The optimiser's tensors, and its plain numbers, by parameter and name."""
    tensors: Tensors = {}
    numbers: dict[str, float] = {}
    for index, entries in model.policy.optimizer.state_dict()["state"].items():
        for name, value in entries.items():
            key = f"optimizer.{index}.{name}"
            if isinstance(value, torch.Tensor):
                tensors[key] = value.numpy()
            elif value is not None:
                numbers[key] = value
    return tensors, numbers


def _restore(model: BaseAlgorithm, described: dict[str, Any], tensors: Tensors) -> None:
    weights = {
        name.removeprefix("policy."): torch.from_numpy(array)
        for name, array in tensors.items()
        if name.startswith("policy.")
    }
    model.policy.load_state_dict(weights)
    optimizer = model.policy.optimizer
    state: dict[int, dict[str, Any]] = {}
    for name, array in tensors.items():
        if name.startswith("optimizer."):
            _, index, entry = name.split(".", 2)
            state.setdefault(int(index), {})[entry] = torch.from_numpy(array)
    for name, number in described["optimizer"].items():
        _, index, entry = name.split(".", 2)
        state.setdefault(int(index), {})[entry] = number
    for number, weight in enumerate(model.policy.parameters()):
        for entry, value in state.get(number, {}).items():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape != weight.shape:
                raise ValueError(f"{entry} of weight {number} has the shape {tuple(value.shape)}")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for name in _COUNTERS:
        if hasattr(model, name):
            setattr(model, name, _count(described["counters"][name]))
    if isinstance(model, DQN):
        buffer: Any = model.replay_buffer
        buffer.pos = _count(described["replay"]["pos"], buffer.buffer_size - 1)
        buffer.full = bool(described["replay"]["full"])
        for name in _REPLAY:
            stored = tensors[f"replay.{name}"]
            if len(stored) != (buffer.buffer_size if buffer.full else buffer.pos):
                raise ValueError(f"{len(stored)} of {name}")
            getattr(buffer, name)[: len(stored)] = stored


def _count(value: Any, most: float = math.inf) -> int:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is no count")
    return value
