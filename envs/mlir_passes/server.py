"""The process in which MLIR passes run, and the messages by which it is told what to do.

Passes can crash or hang, so nothing of MLIR is ever loaded into the user's process. Started by
``envs.mlir_passes.client``; ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import resource
import signal
import socket
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

import llvmlite.binding as llvm

from solgym.envs.mlir_passes.adopt import CannotAdopt, adopt
from solgym.envs.mlir_passes.modes import FloatMode, Form, Jit, Want
from solgym.envs.mlir_passes.session import CannotFinish, PassFailed, ProgramFailed, Refused, Session
from solgym.hardware.serving import Operation, die_with, serve

__all__ = ["main"]

MEMORY_BYTES: Final = 12 << 30
"""Address space of the process: a pass that wants more ends it, which counts as a crash of that pass."""

Reply = tuple[dict[str, Any], bytes]


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def _failing_softly(operation: Callable[..., Reply]) -> Operation:
    """Turn what can go wrong with a candidate into a reply; anything else is a fault of ours."""

    @functools.wraps(operation)
    def answer(self: Server, payload: bytes, fd: int | None, key: str, **arguments: Any) -> Reply:
        if not self.session.knows(key):
            return {"unknown": key}, b""
        self.session.pass_timeout_s = arguments.pop("pass_timeout_s")
        if "actions" in arguments:
            arguments["actions"] = tuple(arguments["actions"])
        try:
            return operation(self, key, **arguments)
        except Refused as error:
            return {"failed": "illegal", "error": str(error)}, b""
        except (PassFailed, CannotFinish) as error:
            return {"failed": "compile_error", "error": str(error)}, b""
        except Exception as error:  # MLIR's bindings raise nearly anything; it is the candidate's failure
            return {"failed": "compile_error", "error": _one_line(error)}, b""

    return answer


class Server:
    """What can be asked for: ``operations`` by name."""

    def __init__(self) -> None:
        self.session = Session()
        self.operations: dict[str, Operation] = {
            "hello": self.hello,
            "adopt": self.adopt,
            "introduce": self.introduce,
            "run": self.run,
            "view": functools.partial(Server.view, self),
            "step": functools.partial(Server.step, self),
            "why_not": functools.partial(Server.why_not, self),
            "build": functools.partial(Server.build, self),
            "code": functools.partial(Server.code, self),
            "gpu": functools.partial(Server.gpu, self),
        }

    def hello(self, payload: bytes, fd: int | None) -> dict[str, Any]:
        """Make the calls that are slow the first time, and say which versions these are."""
        from solgym.envs.mlir_passes.apply import warm_up

        warm_up(self.session.context)
        return {"torch_mlir": version("torch-mlir"), "llvm": list(llvm.llvm_version_info)}

    def adopt(self, payload: bytes, fd: int | None, function: str | None) -> Reply:
        """Make a user's module (the payload) callable; ``error`` in the reply says why it cannot be."""
        try:
            adopted = adopt(self.session.context, payload.decode(), function)
        except CannotAdopt as error:
            return {"error": str(error)}, b""
        except Exception as error:  # MLIR's bindings raise nearly anything; it is the file's fault
            return {"error": f"cannot be read ({_one_line(error)})"}, b""
        return {"function": adopted.function, "arguments": adopted.arguments}, adopted.text.encode()

    def run(self, payload: bytes, fd: int | None, key: str, sizes: list[int]) -> Reply:
        """Run an untouched program on inputs (the payload); ``error`` in the reply says why it cannot be."""
        if not self.session.knows(key):
            return {"unknown": key}, b""
        try:
            return {}, self.session.run(key, payload, sizes)
        except ProgramFailed as error:
            return {"error": str(error)}, b""
        except CannotFinish as error:
            return {"error": f"cannot be compiled: {error}"}, b""
        except Exception as error:  # MLIR's bindings raise nearly anything
            return {"error": f"cannot be compiled: {_one_line(error)}"}, b""

    def introduce(
        self, payload: bytes, fd: int | None, key: str, function: str, arguments: list[Any]
    ) -> dict[str, Any]:
        """Take a program: the payload is its text."""
        shapes = tuple((tuple(shape), width, role) for shape, width, role in arguments)
        self.session.introduce(key, payload.decode(), function, shapes)
        return {}

    @_failing_softly
    def view(self, key: str, actions: tuple[str, ...], want: Want) -> Reply:
        """Describe a state."""
        return self.session.view(key, actions, want)

    @_failing_softly
    def step(self, key: str, actions: tuple[str, ...], action: str, want: Want, enforce_masks: bool) -> Reply:
        """Apply an action."""
        return self.session.step(key, actions, action, want, enforce_masks)

    @_failing_softly
    def why_not(self, key: str, actions: tuple[str, ...], action: str) -> Reply:
        """Explain a mask."""
        return {"reason": self.session.why_not(key, actions, action)}, b""

    @_failing_softly
    def build(
        self, key: str, actions: tuple[str, ...], mode: FloatMode, jit: Jit, cpu_limit_s: float | None
    ) -> Reply:
        """Compile; past the limit, in CPU time, SIGPROF ends the process."""
        started_s = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s or 0.0)
        try:
            made = self.session.build(key, actions, mode, jit)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        taken_s = time.process_time() - started_s
        return {"workspace_bytes": made.workspace_bytes, "cpu_s": taken_s}, made.code

    @_failing_softly
    def code(self, key: str, actions: tuple[str, ...], mode: FloatMode, form: Form) -> Reply:
        """Show code."""
        return {}, self.session.code(key, actions, mode, form).encode()

    @_failing_softly
    def gpu(self, key: str, actions: tuple[str, ...], chip: str) -> Reply:
        """Compile for a GPU."""
        return {}, json.dumps(self.session.gpu(key, actions, chip)).encode()


def main(socket_fd: int, alive_fd: int) -> None:
    """Serve a client until it closes the socket."""
    die_with(alive_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the user's process, which closes the socket
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # if memory runs out, the passes go before the user's process
    with socket.socket(fileno=socket_fd) as sock:
        serve(sock, Server().operations)
