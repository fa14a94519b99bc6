"""The learner's side of environments in processes: asks them, waits with deadlines, replaces what is lost.

What the processes answer is in ``baselines.rl.env_process``; ``baselines.rl.processes`` makes a vector
environment of it. Nothing here knows a learning library.
"""

from __future__ import annotations

import pickle
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import cloudpickle  # type: ignore[import-untyped]
import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from solgym import errors
from solgym.baselines.rl.env_process import EnvSpec, Statistics
from solgym.errors import ClosedEnvironment, EnvironmentLost, InvalidOption, SolgymError
from solgym.hardware.process import ServerProcess, WorkerDied, WorkerFailed, WorkerSilent
from solgym.hardware.slot import MeasurementSlot

__all__ = ["RESTARTS_MAX", "STEP_TIMEOUT_S", "Kind", "Notice", "Outcome", "Seat", "Seats", "derived_seed"]

RESTARTS_MAX: Final = 5
"""Replacements of one environment's process in a row, without a step in between, that are made."""

START_TIMEOUT_S: Final = 120.0
STEP_TIMEOUT_S: Final = 120.0
RESET_TIMEOUT_S: Final = 600.0
"""Resets measure baselines, which are slow by nature and tried again (see ``envs.measuring``)."""

GRACE_S: Final = 2.0
"""How long a process may take to end by itself when the environments are closed."""

Notice = Callable[[str], None]


class _EnvProcess(ServerProcess):
    """One environment's process."""

    def __init__(self, spec: EnvSpec, slot: MeasurementSlot | None) -> None:
        place = slot.to_json() if slot is not None else None
        fds = (slot.lock_fd,) if slot is not None else ()
        super().__init__("solgym.baselines.rl.env_process", place, whole_package=True, pass_fds=fds)


@dataclass
class Outcome:
    """What a step came to."""

    reward: float
    done: bool
    info: dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """What an environment says of itself; all of a vector environment say the same."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    render_mode: str | None
    has_masks: bool


@dataclass
class Seat:
    """One environment as the learner sees it; its process may change."""

    index: int
    spec: EnvSpec
    process: _EnvProcess | None = None
    kind: Kind | None = None
    asked: Literal["hello", "reset", "step"] | None = None
    deadline: float = 0.0
    begins: bool = False
    """Whether an episode is to begin once the process is there."""
    restarts_in_a_row: int = 0
    seed: int | None = None
    next_seed: int | None = None
    """Of the next reset."""
    generation: int = 0
    """Processes that it has lost since it was seeded."""
    tasks: np.random.Generator = field(default_factory=np.random.default_rng)
    options: dict[str, Any] = field(default_factory=dict)
    observation: Any = None
    info: dict[str, Any] = field(default_factory=dict)
    reset_info: dict[str, Any] = field(default_factory=dict)
    mask: NDArray[np.bool_] | None = None
    outcome: Outcome | None = None
    episode_return: float = 0.0
    episode_steps: int = 0
    counted: Statistics = field(default_factory=Statistics)
    counted_before: Statistics = field(default_factory=Statistics)
    """Of earlier processes."""


class Seats:
    """Environments in processes, each in its seat; a step or reset is asked of all, then waited for.

    After an exception of any kind the processes that still owed a reply are gone; ``begin`` starts new ones.
    """

    def __init__(
        self,
        specs: Sequence[EnvSpec],
        slot: MeasurementSlot | None,
        notice: Notice,
        step_timeout_s: float = STEP_TIMEOUT_S,
    ) -> None:
        """Set up the seats; ``open`` starts the processes.

        Args:
            specs: the environments.
            slot: where they measure in turns.
            notice: told in one sentence each time a process has to be replaced.
            step_timeout_s: seconds after which a step counts as hung; in a slot, times their number.
        """
        self.all = [Seat(index, spec) for index, spec in enumerate(specs)]
        self.tasks: tuple[str, ...] | None = None
        """What resets draw from; None leaves it to the environments."""
        self.stepping = False
        """Whether a step is under way."""
        self._slot = slot
        self._notice = notice
        self._patience = len(specs) if slot is not None else 1
        self._timeouts_s: Mapping[str, float] = {
            "hello": START_TIMEOUT_S,
            "reset": RESET_TIMEOUT_S,
            "step": step_timeout_s,
        }
        self._started = time.time()

    def open(self) -> Kind:
        """Start the processes, wait until all have made their environments, and say what these are.

        Raises:
            InvalidOption: an environment cannot be made, or is of another kind than the first.
            EnvironmentLost: a process dies again and again.
            UnsupportedTarget: processes cannot be started here.
        """
        for seat in self.all:
            self._start(seat)
        self.wait()
        return self._common_kind()

    def begin(self, seeds: Sequence[int | None], options: Sequence[Mapping[str, Any]]) -> None:
        """Begin an episode in every environment; ``wait`` waits for it.

        Args:
            seeds: of each environment; None goes on drawing.
            options: reset options of each environment, also of later episodes.
        """
        if self.stepping:
            self.wait()  # its outcome is dropped
        try:
            for seat, seed, chosen in zip(self.all, seeds, options, strict=True):
                seat.options = dict(chosen)
                if seat.process is None:
                    self._start(seat)
                if seed is not None:
                    seat.seed, seat.next_seed, seat.generation = seed, seed, 0
                    seat.tasks = np.random.default_rng(derived_seed(seed, 0))
                self._begin(seat)
        except BaseException:
            self._drop()
            raise

    def step(self, actions: Iterable[Any]) -> None:
        """Send each environment its action; ``wait`` waits for the outcomes."""
        if self.stepping:
            raise InvalidOption("a step is under way; call step_wait() first")
        self.stepping = True
        try:
            for seat, action in zip(self.all, actions, strict=True):
                seat.outcome = None
                self._ask(seat, "step", action)
        except BaseException:
            self._drop()
            raise

    def close(self) -> None:
        """End all processes and what they started."""
        processes = [seat.process for seat in self.all if seat.process is not None]
        for seat in self.all:
            if seat.process is not None and seat.asked is not None:
                seat.process.kill()  # busy: it would not notice for a while
            seat.process = seat.asked = None
        for process in processes:
            process.hang_up()
        for process in processes:
            process.kill_after(GRACE_S)

    def _start(self, seat: Seat) -> None:
        seat.process = _EnvProcess(seat.spec, self._slot)
        self._ask(seat, "hello", seat.spec)

    def _begin(self, seat: Seat) -> None:
        """Ask for a new episode, or see to it that one begins as soon as the process is there."""
        seat.begins = seat.asked == "hello"
        if seat.begins:
            return
        options = dict(seat.options)
        if self.tasks is not None and "task" not in options:
            options["task"] = self.tasks[int(seat.tasks.integers(len(self.tasks)))]
        seed, seat.next_seed = seat.next_seed, None
        self._ask(seat, "reset", (seed, options))

    def _ask(self, seat: Seat, what: Literal["hello", "reset", "step"], content: object) -> None:
        data = cloudpickle.dumps(content) if what == "hello" else pickle.dumps(content)
        seat.asked = what
        seat.deadline = time.monotonic() + self._timeouts_s[what] * self._patience
        try:
            if seat.process is None:
                raise WorkerFailed("it was not running")
            seat.process.send({"op": what}, data)
        except WorkerFailed as error:
            self._replace(seat, error)

    def wait(self) -> None:
        """Take replies as they come until nobody owes one."""
        try:
            while waiting := [seat for seat in self.all if seat.asked is not None]:
                poller, by_fd = select.poll(), {}
                for seat in waiting:
                    assert seat.process is not None
                    by_fd[seat.process.fileno()] = seat
                    poller.register(seat.process.fileno(), select.POLLIN)
                next_s = min(seat.deadline for seat in waiting) - time.monotonic()
                ready = [by_fd[fd] for fd, _ in poller.poll(max(0.0, 1000 * next_s))]
                for seat in ready:
                    self._receive(seat)
                if not ready:
                    self._end_hung(waiting)
            self.stepping = False
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """End the processes that owe a reply: it would answer a later question."""
        for seat in self.all:
            if seat.asked is not None and seat.process is not None:
                seat.process.kill()
                seat.process = None
            seat.asked = None
        self.stepping = False

    def _end_hung(self, waiting: Sequence[Seat]) -> None:
        """Replace what has not answered in time: whoever holds up the others, if one does."""
        now = time.monotonic()
        late = [seat for seat in waiting if seat.deadline <= now]
        holder = self._slot.holder() if self._slot is not None else None
        holding = [seat for seat in waiting if seat.process is not None and seat.process.pid == holder]
        for seat in holding if late and holding else late:
            assert seat.process is not None
            assert seat.asked is not None
            seat.process.kill()
            allowed_s = self._timeouts_s[seat.asked] * self._patience
            self._replace(seat, WorkerSilent(f"no answer to {seat.asked!r} within {allowed_s:g} s; killed"))
        for seat in late:
            if holding and seat not in holding and seat.asked is not None:
                seat.deadline = now + self._timeouts_s[seat.asked] * self._patience

    def _receive(self, seat: Seat) -> None:
        assert seat.process is not None
        try:
            reply, answer = seat.process.receive(max(1.0, seat.deadline - time.monotonic()))
        except WorkerFailed as error:
            self._replace(seat, error)
            return
        asked, seat.asked = seat.asked, None
        self._raise_fault(seat, reply, InvalidOption if asked == "hello" else EnvironmentLost)
        content = pickle.loads(answer)
        if asked == "hello":
            seat.kind = Kind(*content)
            if seat.begins:
                self._begin(seat)
        elif asked == "reset":
            seat.observation, seat.reset_info, seat.mask, seat.counted = content
            seat.info = dict(seat.reset_info)
            seat.episode_return, seat.episode_steps = 0.0, 0
        else:
            self._stepped(seat, *content)

    def _common_kind(self) -> Kind:
        first = self.all[0].kind
        assert first is not None
        for seat in self.all:
            if seat.kind != first:
                raise InvalidOption(
                    f"environment {seat.index} ({seat.spec.env_id}) is of another kind, {seat.kind}, than "
                    f"the first, {first}; give all of them the same options"
                )
        return first

    def _stepped(
        self,
        seat: Seat,
        observation: Any,
        reward: float,
        terminated: bool,
        truncated: bool,
        info: dict[str, Any],
        mask: NDArray[np.bool_] | None,
        counted: Statistics,
    ) -> None:
        seat.restarts_in_a_row = 0
        seat.counted = counted
        seat.mask, seat.info = mask, dict(info)
        done = terminated or truncated
        info["TimeLimit.truncated"] = truncated and not terminated
        seat.outcome = Outcome(reward, done, info)
        seat.observation = observation
        seat.episode_return += reward
        seat.episode_steps += 1
        if done:
            self._finish(seat, info)
            self._begin(seat)

    def _finish(self, seat: Seat, info: dict[str, Any]) -> None:
        """Complete the info of an episode's last step."""
        info["terminal_observation"] = seat.observation
        info["episode"] = {
            "r": round(seat.episode_return, 6),
            "l": seat.episode_steps,
            "t": round(time.time() - self._started, 6),
        }

    def _replace(self, seat: Seat, error: WorkerFailed) -> None:
        """Start a new process for an environment whose old one is gone, and end its episode."""
        reason = _reason(error)
        if seat.process is not None:
            seat.process.kill()
        lost, seat.asked = seat.asked, None
        seat.restarts_in_a_row += 1
        seat.generation += 1
        seat.counted_before, seat.counted = seat.counted_before + seat.counted, Statistics()
        name = f"environment {seat.index} ({seat.spec.env_id})"
        if seat.restarts_in_a_row > RESTARTS_MAX:
            seat.process, seat.restarts_in_a_row = None, 0  # whoever resets once more tries once more
            raise EnvironmentLost(
                f"the process of {name} was lost {RESTARTS_MAX + 1} times in a row without a step between, "
                f"last because {reason}; free some memory, or run `solgym doctor`"
            )
        self._notice(f"the process of {name} was lost and is replaced: {reason}")
        if lost == "step":
            seat.episode_steps += 1
            info = seat.info | {"TimeLimit.truncated": True, "lost": reason}
            self._finish(seat, info)
            seat.outcome = Outcome(0.0, True, info)
        seat.begins = seat.begins or lost != "hello"
        if seat.seed is not None:
            seat.next_seed = derived_seed(seat.seed, seat.generation)
        self._start(seat)

    def exchange(self, seat: Seat, what: str, content: object) -> Any:
        """Ask something between steps."""
        if seat.asked is not None:
            raise InvalidOption("a step is under way; call step_wait() first")
        if seat.process is None:
            raise ClosedEnvironment("the process of this environment has ended; call reset() first")
        try:
            reply, answer = seat.process.exchange(
                {"op": what}, cloudpickle.dumps(content), deadline_s=self._timeouts_s["step"]
            )
        except WorkerFailed as error:
            reason = _reason(error)
            raise EnvironmentLost(
                f"the process of environment {seat.index} was lost when asked for {what}: {reason}; "
                "call reset()"
            ) from error
        self._raise_fault(seat, reply)
        return pickle.loads(answer) if answer else None

    def _raise_fault(
        self, seat: Seat, reply: dict[str, Any], otherwise: type[SolgymError] = EnvironmentLost
    ) -> None:
        """Raise in this process what was raised in the environment's: errors of SOLGym as they were."""
        if "fault" not in reply:
            return
        name, _, text = reply["fault"].partition(": ")
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, SolgymError):
            raise kind(text)
        where = f"environment {seat.index} ({seat.spec.env_id}) failed: "
        error = AttributeError(text) if name == "AttributeError" else otherwise(where + reply["fault"])
        error.add_note(reply["traceback"])
        raise error


def derived_seed(seed: int, index: int) -> int:
    """A seed for part of what is drawn from ``seed``."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])


def _reason(error: WorkerFailed) -> str:
    if isinstance(error, WorkerDied):
        ended = f"signal {-error.returncode}" if error.returncode < 0 else f"exit status {error.returncode}"
        said = f"; its last words: {error.last_words}" if error.last_words else ""
        return f"it ended with {ended}{said}"
    return str(error)
