"""Worker processes as the user's process sees them: started when needed, replaced when dead, gone with it.

How a process is started and asked is in ``hardware.process``. A pool does not know what a measurement is;
``hardware.measuring`` does.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import signal
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from solgym.errors import ClosedEnvironment, InvalidOption, UnsupportedTarget
from solgym.hardware.buffers import SharedBuffers
from solgym.hardware.checking import Expected
from solgym.hardware.fingerprint import host_device
from solgym.hardware.guarded_run import ARCHITECTURES, guard_code
from solgym.hardware.process import REQUEST_TIMEOUT_S, ServerProcess, WorkerDied, WorkerFailed, WorkerSilent
from solgym.hardware.slot import MeasurementSlot, current_slot
from solgym.hardware.task import Task
from solgym.hardware.thread_runtime import MAX_THREADS, runtime_code
from solgym.hardware.timing import sampler_code

__all__ = ["WorkerDied", "WorkerFailed", "WorkerPool", "WorkerProcess", "WorkerSilent", "default_pool"]

START_TIMEOUT_S: Final = 60.0
STARTS_MAX: Final = 3
"""Attempts to start a worker that something outside kills meanwhile."""

BUFFERS_MAX: Final = 8
BUFFERS_MAX_BYTES: Final = 512 << 20
"""Tasks whose memory a worker keeps, so that environments that share it can take turns."""

RESIDENT_SLACK_BYTES: Final = 256 << 20
"""A worker that holds this much more memory than its tasks explain is replaced."""


def _support_code(with_threads: bool) -> dict[str, bytes]:
    """The native code that a worker needs, compiled once here, where LLVM is."""
    code = {"sampler": sampler_code(), "guard": guard_code()}
    return code | {"runtime": runtime_code()} if with_threads else code


class WorkerProcess(ServerProcess):
    """One worker and the connection to it. Used by one thread at a time."""

    def __init__(self, number: int, threads: int, slot: MeasurementSlot | None = None) -> None:
        """Start the process; it is ready once ``wait_until_ready`` returns.

        Args:
            number: its number in the pool.
            threads: threads that candidates may use; with 1, the process keeps to a core of its own.
            slot: where the run measures, if its processes take turns: the process then keeps to that core.

        Raises:
            UnsupportedTarget: this system cannot run workers.
        """
        if platform.machine() not in ARCHITECTURES:
            raise UnsupportedTarget(
                f"measuring is built for {' and '.join(ARCHITECTURES)}, this is {platform.machine()}"
            )
        cores = list(host_device().cpus) if threads == 1 and slot is None else []
        first = number % max(1, len(cores))
        place = (slot.core if threads == 1 else None, sorted(slot.cpus)) if slot else ()
        super().__init__("solgym.hardware.worker", cores[first:] + cores[:first], *place)
        self._with_threads = threads > 1
        self.artifacts = 0
        self._started_bytes = 0
        self.core: int | None = None
        self._ready = False
        self._buffers: OrderedDict[str, SharedBuffers] = OrderedDict()

    def wait_until_ready(self) -> None:
        """Wait for the process to be up.

        Raises:
            UnsupportedTarget: it could not start; the message holds its last words.
            WorkerDied: it was killed meanwhile.
        """
        if self._ready:
            return
        try:
            code = _support_code(self._with_threads)
            sizes = {name: len(part) for name, part in code.items()}
            reply, _ = self.exchange(
                {"op": "hello", "sizes": sizes}, b"".join(code.values()), None, START_TIMEOUT_S
            )
            if "fault" in reply:
                raise WorkerFailed(reply["fault"])
        except WorkerFailed as error:
            if isinstance(error, WorkerDied) and error.returncode == -signal.SIGKILL:
                raise
            raise UnsupportedTarget(
                f"the worker process that runs candidates could not start ({error}); run `solgym doctor`"
            ) from error
        self.core, self._started_bytes, self._ready = reply["core"], self.resident_bytes, True

    def request(
        self,
        message: dict[str, Any],
        payload: bytes = b"",
        fd: int | None = None,
        deadline_s: float = REQUEST_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Send a request and wait for its reply.

        Raises:
            WorkerDied: the process ended instead of answering.
            WorkerSilent: it did not answer in time.
        """
        self.wait_until_ready()
        return self.exchange(message, payload, fd, deadline_s)[0]

    def buffers(self, key: str, task: Task, expected: Expected) -> SharedBuffers:
        """Return the memory that a task shares with this worker, made at first use.

        Raises:
            WorkerFailed: the worker ended, did not answer or could not map the memory.
        """
        if key in self._buffers:
            self._buffers.move_to_end(key)
            return self._buffers[key]
        made = SharedBuffers(expected.inputs, task.input_specs, task.output_specs)
        while self._buffers and (
            len(self._buffers) >= BUFFERS_MAX or self.buffer_bytes + made.nbytes > BUFFERS_MAX_BYTES
        ):
            old, memory = self._buffers.popitem(last=False)
            memory.close()
            self.request({"op": "forget", "key": old})
        try:
            reply = self.request({"op": "task", "key": key, "layout": made.layout.to_json()}, fd=made.fd)
            if "fault" in reply:
                raise WorkerFailed(f"the worker cannot take the task's memory: {reply['fault']}")
        except BaseException:
            made.close()
            raise
        self._buffers[key] = made
        return made

    @property
    def buffer_bytes(self) -> int:
        """Memory shared with the worker."""
        return sum(buffers.nbytes for buffers in self._buffers.values())

    @property
    def has_grown(self) -> bool:
        """Whether it holds more memory than its tasks explain (each is there once shared and once
        private).
        """
        return self.resident_bytes > self._started_bytes + 2 * self.buffer_bytes + RESIDENT_SLACK_BYTES

    def _release(self) -> None:
        super()._release()
        for buffers in self._buffers.values():
            buffers.close()
        self._buffers.clear()


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


class WorkerPool:
    """A number of workers to measure on. A context manager; safe between threads; pickles as its settings.

    Processes are started when first needed. A fork of the user's process gets workers of its own. A pickled
    pool forgets the measurement slot, which belongs to a run.
    """

    def __init__(self, workers: int = 1, threads: int = 1, slot: MeasurementSlot | None = None) -> None:
        """Set up a pool.

        Args:
            workers: processes; measuring on more than one at a time suits cores that are otherwise idle.
            threads: threads that candidates may use. With 1, each worker keeps to a core of its own.
            slot: where to measure in turns with other processes of a run.

        Raises:
            InvalidOption: a count is not positive or too large.
        """
        if workers < 1:
            raise InvalidOption(f"a pool needs at least one worker; got {workers}")
        if not 1 <= threads <= MAX_THREADS:
            raise InvalidOption(f"threads must be between 1 and {MAX_THREADS}; got {threads}")
        self.workers, self.threads, self.slot = workers, threads, slot
        self._closed = False
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._free = threading.Condition()
        self._workers: dict[int, WorkerProcess | None] = dict.fromkeys(range(self.workers))
        self._leased: set[int] = set()

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        return self._closed

    @contextlib.contextmanager
    def lease(self, recycle_after: int = 500) -> Iterator[WorkerProcess]:
        """Borrow a worker, waiting for one if all are busy. It is running, and nobody else uses it meanwhile.

        In a measurement slot this waits for the turn of this process as well.

        Args:
            recycle_after: a worker that has run so many artifacts is replaced afterwards.

        Raises:
            ClosedEnvironment: the pool is closed.
            UnsupportedTarget: workers cannot be started here.
            WorkerDied: workers are killed while they start, again and again.
        """
        with self._free:
            self._refuse_if_closed()
            while len(self._leased) == self.workers:
                self._free.wait()
                self._refuse_if_closed()
            # Prefer a worker that is already running.
            number = max(set(self._workers) - self._leased, key=lambda n: (self._workers[n] is not None, -n))
            self._leased.add(number)
        try:
            with self.slot.turn() if self.slot else contextlib.nullcontext():
                self._refuse_if_closed()
                worker = self._running(number)
                yield worker
                if worker.artifacts >= recycle_after or worker.has_grown:
                    worker.kill()
        finally:
            with self._free:
                self._leased.discard(number)
                self._free.notify()

    def _running(self, number: int) -> WorkerProcess:
        attempts = 0
        while True:
            attempts += 1
            worker = self._workers[number]
            if worker is None or not worker.usable:
                if worker is not None:
                    worker.kill()
                worker = WorkerProcess(number, self.threads, self.slot)
                self._workers[number] = worker
            try:
                worker.wait_until_ready()
                return worker
            except WorkerDied:
                self._refuse_if_closed()
                if attempts == STARTS_MAX:
                    raise

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise ClosedEnvironment("this worker pool is closed; make a new WorkerPool or target")

    def pids(self) -> list[int]:
        """Process ids of the workers that are running."""
        return [worker.pid for worker in self._workers.values() if worker is not None and worker.usable]

    def close(self) -> None:
        """End all workers, also in the middle of a request. Closing twice does nothing."""
        self._closed = True
        for worker in self._workers.values():
            if worker is not None:
                worker.kill()
        with self._free:
            self._free.notify_all()

    def _forget_workers(self) -> None:
        for worker in self._workers.values():
            if worker is not None:
                worker.forget()
        self._reset()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[WorkerPool], tuple[int, int]]:
        return WorkerPool, (self.workers, self.threads)


_default_pools: dict[int, WorkerPool] = {}
_default_lock = threading.Lock()


def default_pool(threads: int = 1) -> WorkerPool:
    """The pool of one worker that everything in this process shares, unless it was given one of its own.

    It measures in the process's measurement slot, if there is one (see ``hardware.slot``).
    """
    with _default_lock:
        pool, slot = _default_pools.get(threads), current_slot()
        if pool is not None and pool.slot is not slot:
            pool.close()  # made before the process was told where to measure
        if pool is None or pool.closed:
            pool = _default_pools[threads] = WorkerPool(workers=1, threads=threads, slot=slot)
        return pool


@atexit.register
def _close_all_pools() -> None:
    for pool in list(_pools):
        pool.close()


def _after_fork() -> None:
    """In a forked child of the user's process: its workers are the parent's, so start afresh."""
    global _default_lock
    _default_lock = threading.Lock()
    for pool in list(_pools):
        pool._forget_workers()


os.register_at_fork(after_in_child=_after_fork)
