"""The pass worker as the user's process sees it: started when needed, replaced when a pass crashes or hangs.

One worker serves all environments of a process. What it is asked is always a function of a program and the
actions applied to it, so a new worker answers like the old one, and nobody notices the change but by the
failure of the action that ended it.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from solgym.envs.mlir_passes.catalogue import ACTIONS
from solgym.envs.mlir_passes.modes import PASS_TIMEOUT_S, ArgumentShape, FloatMode, Form, Jit, Want
from solgym.errors import InvalidSchedule, UnsupportedTarget
from solgym.hardware.measurement import Status
from solgym.hardware.process import ServerProcess, WorkerDied, WorkerFailed, WorkerSilent
from solgym.hardware.target import CompiledKernel

__all__ = [
    "ModuleSource",
    "ModuleView",
    "PassFailure",
    "PassWorker",
    "default_pass_worker",
]

START_TIMEOUT_S: Final = 120.0
STARTS_MAX: Final = 3
"""Attempts to start a process that something outside kills meanwhile."""

BUILD_CPU_S: Final = 5.0
BUILD_FACTOR: Final = 10.0
"""CPU time that compiling a module may take: so much, or so many times what the untouched one took. Most take
a fifth of a second; what takes LLVM more than seconds is unrolled out of all proportion.
"""

BUILD_TIMEOUT_S: Final = 15.0
RESIDENT_MAX_BYTES: Final = 1 << 30
"""A worker that has grown to this is replaced: MLIR never gives back the types and attributes that it has
made."""

ENTRY: Final = "solgym_entry"


class ModuleSource(Protocol):
    """A task that is given as a module."""

    @property
    def id(self) -> str:
        """Task id; the same for equal modules only."""

    @property
    def module_text(self) -> str:
        """The untouched module."""

    @property
    def function(self) -> str:
        """The function to run."""

    @property
    def signature(self) -> tuple[ArgumentShape, ...]:
        """For each argument of the function its shape, bytes an element, and role."""


@dataclass(frozen=True, eq=False)
class ModuleView:
    """What there is to know of a module after some actions.

    Attributes:
        digest: SHA-256 of its text.
        level: the dialect level that it is at.
        operations: how many operations it has.
        changed: whether the last action changed its text.
        mask: of shape (number of actions,): which actions are offered now.
        numbers: the features that depend on the module, float32: the 28 of ``mqss``, and for ``full`` more.
        text: the module, where that was asked for, else empty.
    """

    digest: str
    level: str
    operations: int
    changed: bool
    mask: NDArray[np.bool_]
    numbers: NDArray[np.float32]
    text: str


@dataclass(frozen=True)
class PassFailure:
    """Why there is no module, or no code of it: ``illegal``, ``compile_error``, ``crashed`` or
    ``timeout``.
    """

    status: Literal[Status.ILLEGAL, Status.COMPILE_ERROR, Status.CRASHED, Status.TIMEOUT]
    error: str


CrashListener = Callable[["ModuleSource", tuple[str, ...], str, PassFailure], None]
"""Told the program, the actions before, the action (or ``finish``) and the failure."""


_workers: weakref.WeakSet[PassWorker] = weakref.WeakSet()


class PassWorker:
    """A process that applies passes. Safe between threads; a fork of the user's process gets one of its
    own.
    """

    def __init__(
        self, pass_timeout_s: float = PASS_TIMEOUT_S, on_failure: CrashListener | None = None
    ) -> None:
        """Set up; the process is started at first need.

        Args:
            pass_timeout_s: how long one action may take.
            on_failure: told about every action that fails, crashes or hangs.
        """
        self.pass_timeout_s = pass_timeout_s
        self.on_failure = on_failure
        self.starts = 0
        self._untouched_build_s: dict[str, float] = {}
        self._process: ServerProcess | None = None
        self._reset()
        _workers.add(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._introduced: set[str] = set()
        if self._process is not None:
            self._process.forget()
        self._process = None

    # ------------------------------------------------------------------ what can be asked

    def view(
        self, source: ModuleSource, actions: Sequence[str], want: Want = "mqss"
    ) -> ModuleView | PassFailure:
        """Describe the module after ``actions``, all of which are applied without asking the masks."""
        asked = {"op": "view", "actions": list(actions), "want": want}
        return self._viewed(
            self._ask(source, asked, tuple(actions[:-1]), actions[-1] if actions else ""), want
        )

    def step(
        self,
        source: ModuleSource,
        actions: Sequence[str],
        action: str,
        want: Want = "mqss",
        enforce_masks: bool = True,
    ) -> ModuleView | PassFailure:
        """Apply ``action`` to the module after ``actions`` and describe the result."""
        asked = {
            "op": "step",
            "actions": list(actions),
            "action": action,
            "want": want,
            "enforce_masks": enforce_masks,
        }
        return self._viewed(self._ask(source, asked, tuple(actions), action), want)

    def why_not(self, source: ModuleSource, actions: Sequence[str], action: str) -> str | None:
        """Why an action is not offered after ``actions``, or None if it is."""
        asked = {"op": "why_not", "actions": list(actions), "action": action}
        answer = self._ask(source, asked, tuple(actions), action)
        return answer.error if isinstance(answer, PassFailure) else answer[0]["reason"]

    def build(
        self,
        source: ModuleSource,
        actions: Sequence[str],
        jit: Jit = "llvmlite",
        mode: FloatMode = "contract,reassoc",
    ) -> CompiledKernel | PassFailure:
        """Compile the module after ``actions``."""
        untouched_s = self._untouched_build_s.get(source.id, 0.0)
        limit_s = max(BUILD_CPU_S, BUILD_FACTOR * untouched_s) if actions else None
        asked = {"op": "build", "actions": list(actions), "mode": mode, "jit": jit, "cpu_limit_s": limit_s}
        answer = self._ask(source, asked, tuple(actions), "finish", BUILD_TIMEOUT_S)
        if isinstance(answer, PassFailure):
            return answer
        reply, code = answer
        if not actions:
            self._untouched_build_s[source.id] = max(untouched_s, reply["cpu_s"])
        return CompiledKernel(code, ENTRY, reply["workspace_bytes"], self.toolchain)

    def code(
        self,
        source: ModuleSource,
        actions: Sequence[str],
        form: Form = "mlir",
        mode: FloatMode = "contract,reassoc",
    ) -> str | PassFailure:
        """The module after ``actions`` as MLIR, LLVM IR or assembly."""
        asked = {"op": "code", "actions": list(actions), "mode": mode, "form": form}
        answer = self._ask(source, asked, tuple(actions), "finish", BUILD_TIMEOUT_S)
        return answer if isinstance(answer, PassFailure) else answer[1].decode()

    def gpu(self, source: ModuleSource, actions: Sequence[str], chip: str) -> dict[str, Any] | PassFailure:
        """Compile the module after ``actions`` for a GPU; see ``gpu_code.GpuCode`` for the data."""
        asked = {"op": "gpu", "actions": list(actions), "chip": chip}
        answer = self._ask(source, asked, tuple(actions), "finish", BUILD_TIMEOUT_S)
        if isinstance(answer, PassFailure):
            return answer
        made: dict[str, Any] = json.loads(answer[1])
        return made

    def run(
        self, source: ModuleSource, inputs: Sequence[NDArray[np.generic]], timeout_s: float
    ) -> bytes | str:
        """Run the untouched module in the pass worker, for its outputs: their bytes one after the other.

        Returns:
            The outputs, or the rest of a sentence about the program that says why there are none.

        Raises:
            WorkerDied: the worker itself ended.
            WorkerSilent: the program did not end in time.
        """
        message = {"op": "run", "sizes": [array.nbytes for array in inputs]}
        with self._lock:
            payload = b"".join(array.tobytes() for array in inputs)
            reply, outputs = self._request_about(source, message, payload, timeout_s)
        return str(reply["error"]) if "error" in reply else outputs

    @functools.cached_property
    def toolchain(self) -> str:
        """What turns modules into code, with versions."""
        from importlib.metadata import version

        from solgym.hardware.jit import toolchain_fingerprint

        return f"torch-mlir-{version('torch-mlir')}/{toolchain_fingerprint()}"

    def request(
        self, message: dict[str, Any], payload: bytes, deadline_s: float
    ) -> tuple[dict[str, Any], bytes]:
        """Ask the process anything; starts it if needed.

        Raises:
            WorkerDied: it crashed. The next request starts another.
            WorkerSilent: it did not answer in time and was killed.
            UnsupportedTarget: it cannot be started here.
        """
        with self._lock:
            reply, answer = self._running().exchange(message, payload, None, deadline_s)
            if "fault" in reply:
                raise WorkerFailed(f"{reply['fault']}\n{reply.get('traceback', '')}")
            return reply, answer

    def close(self) -> None:
        """End the process; the next request starts another. Closing twice does nothing."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.kill()

    # ------------------------------------------------------------------ how

    def _running(self) -> ServerProcess:
        for start in range(1, STARTS_MAX + 1):
            if self._process is not None and self._process.usable:
                break
            self.close()
            self._introduced.clear()
            if importlib.util.find_spec("torch_mlir") is None:
                raise UnsupportedTarget(
                    "MLIRPasses needs torch-mlir, which is not installed: pip install torch-mlir "
                    "(there are wheels for Linux on x86-64)"
                )
            self._process = ServerProcess("solgym.envs.mlir_passes.server")
            self.starts += 1
            try:
                reply, _ = self._process.exchange({"op": "hello"}, deadline_s=START_TIMEOUT_S)
                if "fault" in reply:
                    raise WorkerFailed(reply["fault"])
            except WorkerFailed as error:
                self.close()
                if start < STARTS_MAX and _killed_from_outside(error):
                    continue
                reason = error.last_words.split(" | ")[-1] if isinstance(error, WorkerDied) else error
                raise UnsupportedTarget(
                    f"the process that runs MLIR passes could not start: {reason}; reinstall torch-mlir: "
                    "pip install --force-reinstall torch-mlir"
                ) from error
        assert self._process is not None
        return self._process

    def _request_about(
        self, source: ModuleSource, message: dict[str, Any], payload: bytes, deadline_s: float
    ) -> tuple[dict[str, Any], bytes]:
        """Ask about a program, once more if the process was replaced after it had been told of it."""
        for _ in range(2):
            self._introduce(source)
            reply, answer = self.request(message | {"key": source.id}, payload, deadline_s)
            if "unknown" not in reply:
                return reply, answer
        raise WorkerFailed(f"the process that runs MLIR passes does not know {source.id}")

    def _introduce(self, source: ModuleSource) -> None:
        if self._process is not None and self._process.resident_bytes > RESIDENT_MAX_BYTES:
            self.close()
        self._running()
        if source.id in self._introduced:
            return
        message = {
            "op": "introduce",
            "key": source.id,
            "function": source.function,
            "arguments": [[list(shape), width, role] for shape, width, role in source.signature],
        }
        try:
            for attempt in range(2):
                try:
                    self.request(dict(message), source.module_text.encode(), BUILD_TIMEOUT_S)
                    break
                except WorkerDied as error:
                    if not _killed_from_outside(error) or attempt:
                        raise
        except WorkerFailed as error:
            reason = str(error).split("\n", 1)[0]
            raise InvalidSchedule(f"the module of {source.id} cannot be read: {reason}") from error
        self._introduced.add(source.id)

    def _ask(
        self,
        source: ModuleSource,
        message: dict[str, Any],
        actions: tuple[str, ...],
        action: str,
        extra_s: float = 0.0,
    ) -> tuple[dict[str, Any], bytes] | PassFailure:
        """Ask about a module. A crash or a hang is the action's failure, unless something else killed the
        process.
        """
        # The worker keeps the time of each pass; this is for all that it may have to repeat.
        deadline_s = self.pass_timeout_s * (1 + 0.2 * len(actions)) + extra_s
        message = message | {"pass_timeout_s": self.pass_timeout_s}
        with self._lock:
            for attempt in range(2):
                try:
                    reply, payload = self._request_about(source, message, b"", deadline_s)
                    break
                except WorkerDied as error:
                    if _killed_from_outside(error) and attempt == 0:
                        continue
                    failure = _crash(error)
                    if error.returncode == -signal.SIGALRM:
                        text = f"{action} did not end within {self.pass_timeout_s:g} s and was killed"
                        failure = PassFailure(Status.TIMEOUT, text)
                    if error.returncode == -signal.SIGPROF:
                        used = f"more than {message['cpu_limit_s']:.3g} s of CPU time"
                        text = f"the compiler needed {used} and was killed"
                        failure = PassFailure(Status.TIMEOUT, text)
                    return self._failed(source, actions, action, failure)
                except WorkerSilent:
                    text = f"{action} did not end within {deadline_s:.0f} s and was killed"
                    return self._failed(source, actions, action, PassFailure(Status.TIMEOUT, text))
        if "failed" not in reply:
            return reply, payload
        status: Any = Status(reply["failed"])
        failure = PassFailure(status, reply["error"])
        return failure if status is Status.ILLEGAL else self._failed(source, actions, action, failure)

    def _failed(
        self, source: ModuleSource, actions: tuple[str, ...], action: str, failure: PassFailure
    ) -> PassFailure:
        if self.on_failure is not None and action:
            self.on_failure(source, actions, action, failure)
        return failure

    def _viewed(
        self, answer: tuple[dict[str, Any], bytes] | PassFailure, want: Want
    ) -> ModuleView | PassFailure:
        if isinstance(answer, PassFailure):
            return answer
        reply, payload = answer
        mask = np.frombuffer(payload[: len(ACTIONS)], np.uint8).astype(bool)
        rest = payload[len(ACTIONS) :]
        return ModuleView(
            digest=reply["digest"],
            level=reply["level"],
            operations=reply["operations"],
            changed=reply["changed"],
            mask=mask,
            numbers=np.frombuffer(b"" if want == "text" else rest, np.float32),
            text=rest.decode() if want == "text" else "",
        )


def _killed_from_outside(error: WorkerFailed) -> bool:
    """Whether it is worth asking again: nothing that a pass does ends in this signal."""
    return isinstance(error, WorkerDied) and error.returncode == -signal.SIGKILL


def _crash(error: WorkerDied) -> PassFailure:
    if error.returncode < 0:
        try:
            name = signal.Signals(-error.returncode).name
        except ValueError:
            name = f"signal {-error.returncode}"
        return PassFailure(Status.CRASHED, f"{name} inside the pass")
    return PassFailure(Status.CRASHED, f"the pass ended its process with exit status {error.returncode}")


def _record(source: ModuleSource, actions: tuple[str, ...], action: str, failure: PassFailure) -> None:
    from solgym.envs.mlir_passes.crash_log import record_failure

    record_failure(source, actions, action, failure)


_default = PassWorker(on_failure=_record)  # made now, as threads may ask for it at once


def default_pass_worker() -> PassWorker:
    """The worker that all environments of this process share."""
    return _default


@atexit.register
def _close_all_workers() -> None:
    for worker in list(_workers):
        worker.close()


def _after_fork() -> None:
    """In a forked child of the user's process: its workers are the parent's, so start afresh."""
    for worker in list(_workers):
        worker._reset()


os.register_at_fork(after_in_child=_after_fork)
