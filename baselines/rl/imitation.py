"""Learning from experts before reinforcement learning: the policy is fitted to the actions that lead to the
best known candidates of the training tasks.

What is recorded is what the policy would see: its environment is stepped through each expert's actions, and
at the end it is to finish. Tasks held out for tests are never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.base_class import BaseAlgorithm

from solgym.baselines.rl.settings import ImitationSettings
from solgym.envs.base import TuningEnv
from solgym.envs.proposals import EpisodeSource
from solgym.errors import InvalidOption
from solgym.hardware.target import Candidate

__all__ = ["Decisions", "fit", "record_experts"]

FINISH = 0
"""The action that ends an episode, in every environment whose proposals are episodes."""


@dataclass(frozen=True)
class Decisions:
    """What experts did.

    Attributes:
        observations: float32, shape (decisions, features).
        masks: bool, shape (decisions, actions).
        actions: int64, shape (decisions,).
        tasks: how many tasks they come from.
    """

    observations: NDArray[np.float32]
    masks: NDArray[np.bool_]
    actions: NDArray[np.int64]
    tasks: int


def record_experts(
    env: TuningEnv[Any],
    tasks: Sequence[str],
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
    candidates: Mapping[str, Candidate] | None = None,
) -> Decisions:
    """Step through the expert's actions of every task.

    A task whose expert no episode leads to is left out, and the rest of an episode in which an action fails.

    Args:
        env: with the options that the policy learns with; with ``reward_at="step"`` every step is measured.
        tasks: whose experts to follow.
        seed: of the environment.
        progress: told how many tasks are done.
        candidates: what to lead to instead of the best known candidate, by task.

    Raises:
        InvalidOption: no expert can be followed.
    """
    recorded: list[tuple[NDArray[np.float32], NDArray[np.bool_], int]] = []
    followed = 0
    for number, task in enumerate(tasks):
        before = len(recorded)
        recorded += _follow(env, task, seed, (candidates or {}).get(task))
        followed += len(recorded) > before
        progress(number + 1)
    if not recorded:
        raise InvalidOption(
            "there is nothing to imitate: no episode of single actions within max_steps leads to the best "
            "known candidate of any task, or to one of [imitation] candidates; set [imitation] epochs to 0"
        )
    return Decisions(
        observations=np.stack([observation for observation, _, _ in recorded]),
        masks=np.stack([mask for _, mask, _ in recorded]),
        actions=np.array([action for _, _, action in recorded], dtype=np.int64),
        tasks=followed,
    )


def _follow(
    env: TuningEnv[Any], task: str, seed: int, candidate: Candidate | None
) -> list[tuple[NDArray[np.float32], NDArray[np.bool_], int]]:
    observation, _ = env.reset(seed=seed, options={"task": task})
    source = env.proposals(env.modes[-1])
    end = candidate or env.expert
    path = source.path_to(end) if isinstance(source, EpisodeSource) and end else None
    if path is None:
        return []
    recorded = []
    for action in (*path, FINISH):
        mask = env.action_masks()
        if not mask[action]:
            break
        recorded.append((np.array(observation, dtype=np.float32), mask, int(action)))
        if action == FINISH:
            break  # measuring what the expert leads to would teach nothing
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated or info["status"] != "ok":
            break
    return recorded


def fit(
    model: BaseAlgorithm,
    decisions: Decisions,
    settings: ImitationSettings,
    progress: Callable[[int, float], None] = lambda _epoch, _loss: None,
) -> float:
    """Fit the policy of an actor-critic model to decisions, by cross-entropy with Adam.

    Batches are drawn by torch's generator.

    Args:
        model: whose policy; its critic is not touched.
        decisions: what to imitate.
        settings: for how long, and how fast.
        progress: told each finished epoch and its mean loss.

    Returns:
        The mean loss of the last epoch.
    """
    policy: Any = model.policy
    trained = [*policy.mlp_extractor.policy_net.parameters(), *policy.action_net.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    observations, actions = torch.from_numpy(decisions.observations), torch.from_numpy(decisions.actions)
    policy.set_training_mode(True)
    loss_of_epoch = 0.0
    for epoch in range(settings.epochs):
        losses = []
        order = torch.randperm(len(actions))
        for begin in range(0, len(actions), settings.batch_size):
            batch = order[begin : begin + settings.batch_size]
            masks = (decisions.masks[batch.numpy()],) if isinstance(model, MaskablePPO) else ()
            seen = observations[batch]
            if settings.noise:
                seen = seen + settings.noise * torch.randn_like(seen)
            _, log_prob, _ = policy.evaluate_actions(seen, actions[batch], *masks)
            loss = -log_prob.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()) * len(batch))
        loss_of_epoch = sum(losses) / len(actions)
        progress(epoch + 1, loss_of_epoch)
    return loss_of_epoch
