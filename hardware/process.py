"""A child process that serves requests over a socket: started, asked, killed, and gone with its owner.

Processes are started by ``subprocess`` and not ``multiprocessing``: that works from scripts without a main
guard, from notebooks and standard input, and inside daemonic processes such as Gymnasium's vector
environments. What the requests mean is the business of the module that the process runs: candidates are timed
by ``hardware.worker``, MLIR passes are applied by ``envs.mlir_passes.server``, the environments of a training
run live in ``baselines.rl.env_process``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from solgym.errors import UnsupportedTarget
from solgym.hardware.messages import receive_message, send_message

__all__ = ["REQUEST_TIMEOUT_S", "ServerProcess", "WorkerDied", "WorkerFailed", "WorkerSilent"]

REQUEST_TIMEOUT_S: Final = 30.0

# Mostly only a few modules of the package are needed over there: an empty stand-in for the package itself
# spares the process the import of Gymnasium, which ``import solgym`` is for.
_BOOTSTRAP: Final = """
import importlib, json, sys, types
paths, package, module, arguments = json.loads(sys.argv[1])
sys.path[:] = paths
if package is not None:
    stand_in = types.ModuleType("solgym")
    stand_in.__path__ = [package]
    sys.modules["solgym"] = stand_in
importlib.import_module(module).main(*arguments)
"""


class WorkerFailed(Exception):
    """The process could not do what it was asked."""


class WorkerDied(WorkerFailed):
    """The process ended in the middle of a request."""

    def __init__(self, returncode: int, last_words: str) -> None:
        super().__init__(f"the worker process ended with {returncode}: {last_words}")
        self.returncode = returncode
        self.last_words = last_words


class WorkerSilent(WorkerFailed):
    """The process did not answer within the deadline; it has been killed."""


class ServerProcess:
    """A process and the connection to it. Used by one thread at a time."""

    def __init__(
        self, module: str, *arguments: Any, whole_package: bool = False, pass_fds: tuple[int, ...] = ()
    ) -> None:
        """Start the process: ``module.main(socket_fd, alive_fd, *arguments)``.

        Args:
            module: what it runs.
            arguments: plain data for its ``main``.
            whole_package: whether it needs ``import solgym``, which registers the environments.
            pass_fds: further descriptors that it inherits, under the same numbers.

        Raises:
            UnsupportedTarget: this system cannot start it.
        """
        if sys.platform != "linux":
            raise UnsupportedTarget(
                f"measuring needs Linux (memfd, guard pages, per-thread CPU clocks), this is {sys.platform}; "
                "on Windows use WSL 2, on macOS a Linux container"
            )
        if not sys.executable:
            raise UnsupportedTarget(
                "measuring starts worker processes, but sys.executable is empty; set it to a Python"
            )
        import solgym

        package = None if whole_package else os.path.dirname(os.path.abspath(solgym.__file__ or ""))
        self._stderr = os.memfd_create("solgym-worker-stderr", os.MFD_CLOEXEC)
        self._stderr_read = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        alive, self._alive = os.pipe()
        paths = [os.path.abspath(path) for path in sys.path]
        data = json.dumps([paths, package, module, [theirs.fileno(), alive, *arguments]])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, data],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=(theirs.fileno(), alive, *pass_fds),
                start_new_session=True,
            )
        except BaseException:
            self._socket.close()
            os.close(self._alive)
            os.close(self._stderr)
            raise
        finally:
            theirs.close()
            os.close(alive)
        self.resident_bytes = 0

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it can take requests."""
        return self._alive >= 0 and self._process.poll() is None

    def exchange(
        self,
        message: dict[str, Any],
        payload: bytes = b"",
        fd: int | None = None,
        deadline_s: float = REQUEST_TIMEOUT_S,
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for its reply and the bytes that come with it.

        Raises:
            WorkerDied: the process ended instead of answering.
            WorkerSilent: it did not answer in time.
        """
        self.send(message, payload, fd, deadline_s)
        return self.receive(deadline_s)

    def send(
        self,
        message: dict[str, Any],
        payload: bytes = b"",
        fd: int | None = None,
        deadline_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """The first half of ``exchange``; ``receive`` is the other."""
        with self._answering_for(deadline_s):
            self._socket.settimeout(deadline_s)
            send_message(self._socket, message, payload, fd)

    def receive(self, deadline_s: float = REQUEST_TIMEOUT_S) -> tuple[dict[str, Any], bytes]:
        """Wait for the reply to what was sent."""
        with self._answering_for(deadline_s):
            self._socket.settimeout(deadline_s)
            reply, answer, _ = receive_message(self._socket)
        self.resident_bytes = reply["resident_bytes"]
        return reply, answer

    def fileno(self) -> int:
        """Descriptor on which a reply can be waited for with ``select``."""
        return self._socket.fileno()

    @contextlib.contextmanager
    def _answering_for(self, deadline_s: float) -> Iterator[None]:
        """Turn what can go wrong with the connection into errors; the process is then gone."""
        try:
            yield
        except TimeoutError as error:
            self.kill()
            raise WorkerSilent(f"no answer within {deadline_s:.1f} s") from error
        except (EOFError, OSError) as error:
            returncode = self._end()
            last_words = self.last_words()
            self.kill()
            raise WorkerDied(returncode, last_words) from error
        except (
            BaseException
        ):  # an interrupt between request and reply: the next reply would answer the wrong question
            self.kill()
            raise

    def _end(self) -> int:
        """Return the exit code of a process that has hung up, killing it if it lingers."""
        try:
            return self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def last_words(self) -> str:
        """What the process, or a child of it, wrote to stderr since this was last called: the last lines, on
        one.
        """
        if self._stderr < 0:
            return ""
        end = os.fstat(self._stderr).st_size
        start, self._stderr_read = max(self._stderr_read, end - 2000), end
        text = os.pread(self._stderr, end - start, start).decode(errors="replace")
        return " | ".join(line.strip() for line in text.splitlines()[-3:] if line.strip())

    def hang_up(self) -> None:
        """Let the process come to its end by itself, which it does once it has nothing to answer."""
        if self._alive >= 0:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def kill_after(self, grace_s: float) -> None:
        """Give a process that was hung up on this long to end, then kill it."""
        if self._alive >= 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=grace_s)
        self.kill()

    def kill(self) -> None:
        """End the process at once; its children go with it. Killing twice does nothing."""
        if self._alive < 0:
            return
        self._process.kill()
        self._process.wait()
        self._release()

    def forget(self) -> None:
        """Let go of a process that belongs to the one that this one was forked from, without touching it."""
        self._process.returncode = 0  # not our child: nothing to wait for, nothing to warn about
        self._release()

    def _release(self) -> None:
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1
            self._socket.close()
            os.close(self._stderr)
            self._stderr = -1
