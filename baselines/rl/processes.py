"""Environments in processes of their own, as one vector environment for stable-baselines3.

What its ``SubprocVecEnv`` lacks: the processes share one place to measure, a process that dies or hangs is
replaced and training goes on, action masks cost no round trip, every message has a deadline, and Ctrl-C ends
all of it. Scripts need no main guard.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Self

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from solgym.baselines.rl.env_process import EnvSpec, Statistics
from solgym.baselines.rl.seats import STEP_TIMEOUT_S, Notice, Seat, Seats, derived_seed
from solgym.envs.base import TuningEnv
from solgym.envs.registration import env_class
from solgym.errors import ClosedEnvironment, InvalidOption
from solgym.hardware.profile import host_profile
from solgym.hardware.slot import MeasurementSlot

__all__ = ["EnvProcesses", "EnvSpec", "Statistics"]


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)


class EnvProcesses(VecEnv):
    """A vector environment of one process per spec; a context manager.

    Observations are stacked, shape (n, ...), with the dtype of the observation space; rewards float32 (n,);
    dones bool (n,). An environment whose episode is over is reset at once. The ``info`` of its last step has
    ``terminal_observation``, ``TimeLimit.truncated`` and ``episode`` (``r`` return, ``l`` steps, ``t``
    seconds since this object was made), as stable-baselines3's ``Monitor`` and ``SubprocVecEnv`` give them.

    If a process dies or does not answer, it is replaced. The episode then ends as truncated, with reward 0
    for the step that was lost and the reason as ``info["lost"]``.
    """

    def __init__(
        self,
        specs: Sequence[EnvSpec],
        *,
        slot: MeasurementSlot | None = None,
        tasks: Sequence[str] | None = None,
        notice: Notice = _warn,
        step_timeout_s: float = STEP_TIMEOUT_S,
    ) -> None:
        """Start the processes and wait until all have made their environments.

        Args:
            specs: the environments; all need the same spaces. Tuning environments without a profile get this
                machine's.
            slot: where they measure in turns.
            tasks: see ``set_tasks``; None leaves the choice to the environments.
            notice: told in one sentence when a process had to be replaced.
            step_timeout_s: seconds after which a step counts as hung; in a slot, times their number, as they
                wait for each other.

        Raises:
            InvalidOption: no specs, spaces that differ, or an environment that cannot be made.
            EnvironmentLost: a process dies again and again.
            UnsupportedTarget: processes cannot be started here.
        """
        if not specs:
            raise InvalidOption("there are no environments to start; give at least one EnvSpec")
        self.restarts = 0
        """Processes that died or hung and were replaced."""
        self._notice = notice
        self._closed = False
        self._seats = Seats(_with_profiles(specs, slot), slot, self._replaced, step_timeout_s)
        self.set_tasks(tasks)
        try:
            self._kind = self._seats.open()
        except BaseException:
            self.close()
            raise
        super().__init__(len(specs), self._kind.observation_space, self._kind.action_space)

    # ------------------------------------------------------------------ what is particular to it

    def set_tasks(self, tasks: Sequence[str] | None) -> None:
        """Choose the tasks that later resets draw from, uniformly, each environment by its own generator.

        Args:
            tasks: task ids; None leaves the choice to the environments.

        Raises:
            InvalidOption: the sequence is empty.
        """
        if tasks is not None and not tasks:
            raise InvalidOption("there are no tasks to draw from; give at least one, or None")
        self._seats.tasks = None if tasks is None else tuple(tasks)

    def statistics(self) -> Statistics:
        """What measuring came to, summed over the environments; costs no round trip.

        Of a process that died, what it did in the step in which it died is missing.
        """
        total = Statistics()
        for seat in self._seats.all:
            total += seat.counted_before + seat.counted
        return total

    def pids(self) -> list[int]:
        """Process ids, in the order of the environments; 0 for one that is not running."""
        return [seat.process.pid if seat.process and seat.process.usable else 0 for seat in self._seats.all]

    # ------------------------------------------------------------------ the vector environment

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed all randomness from the next reset on: environment i draws everything from (seed, i).

        Args:
            seed: not negative; None takes one from the operating system.

        Returns:
            The seeds of the environments.

        Raises:
            InvalidOption: the seed is negative.
        """
        if seed is not None and seed < 0:
            raise InvalidOption(f"seed is {seed}; it must be 0 or more")
        root = np.random.SeedSequence().entropy if seed is None else int(seed)
        assert isinstance(root, int)
        self._seeds = [derived_seed(root, seat.index) for seat in self._seats.all]
        return self._seeds

    def reset(self) -> Any:
        """Begin an episode in every environment; returns the stacked observations.

        A step that is still under way is waited for and dropped.
        """
        self._require_open()
        self._seats.begin(self._seeds, self._options)
        self._reset_seeds()
        self._reset_options()
        self._seats.wait()
        self.reset_infos = [seat.reset_info for seat in self._seats.all]
        return self._observations()

    def step_async(self, actions: NDArray[Any]) -> None:
        """Send the actions, shape (n,) or (n, parts)."""
        self._require_open()
        self._seats.step(actions)

    def step_wait(self) -> Any:
        """Wait for all environments; returns observations, rewards, dones and infos."""
        self._require_open()
        self._seats.wait()
        outcomes = [seat.outcome for seat in self._seats.all]
        assert all(outcome is not None for outcome in outcomes)
        found = [outcome for outcome in outcomes if outcome is not None]
        rewards = np.array([outcome.reward for outcome in found], dtype=np.float32)
        dones = np.array([outcome.done for outcome in found], dtype=bool)
        self.reset_infos = [seat.reset_info for seat in self._seats.all]
        return self._observations(), rewards, dones, [outcome.info for outcome in found]

    def close(self) -> None:
        """End all processes and what they started. Closing twice does nothing."""
        self._closed = True
        self._seats.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def has_attr(self, attr_name: str) -> bool:
        """Whether all environments have an attribute."""
        if attr_name == "action_masks":
            return self._kind.has_masks
        found: bool = super().has_attr(attr_name)
        return found

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of environments, pickled; ``AttributeError`` if one lacks it."""
        if attr_name == "render_mode":
            return [self._kind.render_mode] * len(self._chosen(indices))
        return [self._seats.exchange(seat, "get_attr", attr_name) for seat in self._chosen(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set an attribute of environments; a process that is replaced later does not have it."""
        for seat in self._chosen(indices):
            self._seats.exchange(seat, "set_attr", (attr_name, value))

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of environments. ``action_masks`` is answered at once, from their last reply."""
        seats = self._chosen(indices)
        if method_name == "action_masks" and all(seat.mask is not None for seat in seats):
            return [seat.mask for seat in seats]
        return [
            self._seats.exchange(seat, "call", (method_name, method_args, method_kwargs)) for seat in seats
        ]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        """Of wrappers only ``Monitor`` counts as there: episodes are reported as it does."""
        return [wrapper_class is Monitor] * len(self._chosen(indices))

    def get_images(self) -> list[Any]:
        """Pictures of the environments, where they render such."""
        return self.env_method("render")

    # ------------------------------------------------------------------ how it works

    def _chosen(self, indices: int | Iterable[int] | None) -> list[Seat]:
        self._require_open()
        if indices is None:
            return self._seats.all
        return [self._seats.all[i] for i in ([indices] if isinstance(indices, int) else indices)]

    def _replaced(self, text: str) -> None:
        self.restarts += 1
        self._notice(text)

    def _observations(self) -> Any:
        found = [seat.observation for seat in self._seats.all]
        if isinstance(found[0], dict):
            return {name: np.stack([one[name] for one in found]) for name in found[0]}
        return np.stack(found)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedEnvironment("these environments are closed; make a new EnvProcesses")


def _with_profiles(specs: Sequence[EnvSpec], slot: MeasurementSlot | None) -> list[EnvSpec]:
    """The specs with this machine's profile where a tuning environment would look for it by itself.

    A process that is confined to some CPUs must not calibrate.
    """
    made = []
    for spec in specs:
        if spec.profile is None and "profile" not in spec.options and _is_tuning(spec.env_id):
            if slot is None:
                spec = replace(spec, profile=host_profile())
            else:
                with slot.whole_machine():
                    spec = replace(spec, profile=host_profile())
        made.append(spec)
    return made


def _is_tuning(env_id: str) -> bool:
    try:
        return issubclass(env_class(env_id), TuningEnv)
    except InvalidOption:
        return False  # what it is will show when it is made
