"""The process in which candidates run, and the messages by which it is told what to do.

Started by ``hardware.pool`` with a socket; serves one request at a time: take a task's shared memory, run an
artifact for the first time in a guarded child, time artifacts, run one once more and hand its outputs back.
It decides nothing: references and verdicts are in the user's process. It imports neither numpy nor Gymnasium
nor LLVM (the native code that it needs is sent to it, compiled), so it stays small and quick to start and to
fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from solgym.hardware.guarded_run import GuardedRun, GuardedRunner, address_space_bytes, segment_from
from solgym.hardware.measurement import Clock, MeasurePolicy
from solgym.hardware.object_file import Linked, link
from solgym.hardware.serving import Operation, die_with, serve
from solgym.hardware.thread_runtime import LinkedRuntime, ThreadRuntime
from solgym.hardware.timed_memory import POISON, Arena, TaskMemory
from solgym.hardware.timing import NativeSampler, NativeTimer, SampleSet, sample_alone, sample_in_turns

__all__ = ["LOADED_MAX", "claim_core", "main"]

LOADED_MAX: Final = 32
"""Artifacts that stay linked; interleaved timing compares at most so many."""


@dataclass(frozen=True)
class _Kernel:
    """A linked artifact."""

    linked: Linked
    address: int
    workspace_bytes: int
    threads: int


class Worker:
    """What can be asked for: ``operations`` by name; what a method returns is the reply."""

    def __init__(self, core: int | None, cores: set[int], private_fds: tuple[int, ...]) -> None:
        """Set up.

        Args:
            core: the core that the process is pinned to, if it is.
            cores: those that it may use.
            private_fds: descriptors that processes in which candidates run may not keep.
        """
        self._core, self._cores, self._private_fds = core, cores, private_fds
        self._tasks: dict[str, TaskMemory] = {}
        self._kernels: OrderedDict[str, _Kernel] = OrderedDict()
        self._runtimes: dict[int, ThreadRuntime] = {}
        self._scratch: Arena | None = None
        self._claims: list[socket.socket] = []
        self.operations: dict[str, Operation] = {
            "hello": self.hello,
            "task": self.task,
            "forget": self.forget,
            "check": self.check,
            "time": self.time,
            "finish": self.finish,
        }

    def hello(self, payload: bytes, fd: int | None, sizes: dict[str, int]) -> dict[str, Any]:
        """Take the native code that this process needs (the payload: objects of these sizes) and say that it
        is up.
        """
        code, start = {}, 0
        for name, size in sizes.items():
            code[name] = payload[start : start + size]
            start += size
        self._runtime_code = code.get("runtime")
        self._sampler = NativeSampler(code["sampler"])
        in_child = LinkedRuntime(self._runtime_code) if self._runtime_code else None
        self._runner = GuardedRunner(code["guard"], self._cores, self._private_fds, in_child)
        gc.collect()
        gc.freeze()  # collections then leave alone what forked children share
        return {"core": self._core}

    def task(self, payload: bytes, fd: int, key: str, layout: dict[str, Any]) -> dict[str, Any]:
        """Take the shared memory of a task."""
        self._tasks[key] = TaskMemory(fd, layout)
        return {}

    def forget(self, payload: bytes, fd: int | None, key: str) -> dict[str, Any]:
        """Drop a task."""
        self._tasks.pop(key).close()
        return {}

    def check(
        self,
        payload: bytes,
        fd: int | None,
        key: str,
        digest: str,
        entry: str,
        threads: int,
        workspace_bytes: int,
        workspace: dict[str, Any] | None,
        timeout_s: float,
        slow_s: float | None,
        spare_bytes: int,
    ) -> dict[str, Any]:
        """Link an artifact (the payload) and run it once in a guarded child."""
        task = self._tasks[key]
        try:
            kernel = self._load(digest, payload, entry, workspace_bytes, threads)
        except (RuntimeError, OSError) as error:
            return asdict(GuardedRun("unlinkable", 0, 0.0, str(error)))
        run = self._runner.run(
            kernel.address,
            task.arrays,
            segment_from(workspace) if workspace else None,
            task.fd,
            threads=threads,
            timeout_s=timeout_s,
            slow_s=slow_s,
            spare_bytes=spare_bytes,
        )
        return asdict(run)

    def _load(self, digest: str, code: bytes, entry: str, workspace_bytes: int, threads: int) -> _Kernel:
        if (old := self._kernels.pop(digest, None)) is not None:
            old.linked.close()
        while len(self._kernels) >= LOADED_MAX:
            self._kernels.popitem(last=False)[1].linked.close()
        linked = link(code, (entry,))
        kernel = _Kernel(linked, linked.addresses[entry], workspace_bytes, threads)
        self._kernels[digest] = kernel
        return kernel

    def time(
        self,
        payload: bytes,
        fd: int | None,
        key: str,
        digests: list[str],
        policy: dict[str, Any],
        spare_bytes: int,
    ) -> dict[str, Any]:
        """Time one artifact, or several in turns; all of them have passed their check."""
        task, rules = self._tasks[key], MeasurePolicy(**policy)
        kernels = [self._kernels[digest] for digest in digests]
        # The kernels share one scratch memory, which must not move once a timer has its address.
        self._workspace(max(kernel.workspace_bytes for kernel in kernels))
        timers = [self._timer(task, kernel, rules) for kernel in kernels]
        task.poison_outputs()
        with _memory_cap(spare_bytes):
            if len(timers) == 1:
                sets = [sample_alone(timers[0], rules, task.poison_outputs)]
            else:
                sets = sample_in_turns(timers, rules, task.poison_outputs)
        return {"timings": [_timing(samples) for samples in sets]}

    def finish(
        self, payload: bytes, fd: int | None, key: str, digest: str, policy: dict[str, Any], spare_bytes: int
    ) -> dict[str, Any]:
        """Run a timed artifact once more on poisoned outputs, exactly as it was timed, and hand its outputs
        back.
        """
        task = self._tasks[key]
        timer = self._timer(task, self._kernels[digest], MeasurePolicy(**policy))
        task.poison_outputs()
        with _memory_cap(spare_bytes):
            sample = timer.sample(1, 1)[0]
        task.hand_back_outputs()
        return {"seconds": sample.seconds, "changed_input": task.changed_input()}

    def _timer(self, task: TaskMemory, kernel: _Kernel, policy: MeasurePolicy) -> NativeTimer:
        clock: Clock = "thread_cpu" if kernel.threads == 1 else "wall"
        runtime = 0
        if kernel.threads > 1:
            if kernel.threads not in self._runtimes:
                self._runtimes[kernel.threads] = self._start_threads(kernel.threads)
            runtime = self._runtimes[kernel.threads].pointer
        pointers, workspace = task.pointers(), self._workspace(kernel.workspace_bytes)
        flushed = []
        if policy.flush_cache:
            flushed = [*task.regions(), *([(workspace, kernel.workspace_bytes)] if workspace else [])]
        return NativeTimer(self._sampler, kernel.address, pointers, workspace, runtime, clock, flushed)

    def _start_threads(self, threads: int) -> ThreadRuntime:
        """Make a thread runtime with a core for each thread, where there are enough.

        Left to itself, the system may keep two threads that wait for each other on one core for seconds.
        Cores that no other worker has claimed come first.
        """
        os.sched_setaffinity(0, self._cores)
        before = set(os.listdir("/proc/self/task"))
        runtime = ThreadRuntime(threads, self._runtime_code)
        helpers = sorted(set(os.listdir("/proc/self/task")) - before, key=int)
        if threads <= len(self._cores):
            claims = {core: claim for core in sorted(self._cores) if (claim := claim_core(core))}
            own, *others = [*claims, *sorted(self._cores - claims.keys())][:threads]
            self._claims = [claim for core, claim in claims.items() if core in (own, *others)]
            os.sched_setaffinity(0, {own})
            for helper, core in zip(helpers, others, strict=False):
                os.sched_setaffinity(int(helper), {core})
        return runtime

    def _workspace(self, nbytes: int) -> int:
        if not nbytes:
            return 0
        if self._scratch is None or self._scratch.nbytes < nbytes:
            self._scratch = Arena(nbytes)
        ctypes.memset(self._scratch.address, POISON, nbytes)
        return self._scratch.address


def _timing(samples: SampleSet) -> dict[str, Any]:
    return {
        "samples_s": samples.usable(),
        "warmup": samples.warmup,
        "discarded": samples.discarded,
        "clock": samples.clock,
        "too_disturbed": samples.clock == "wall" and samples.too_disturbed,
    }


@contextlib.contextmanager
def _memory_cap(spare_bytes: int) -> Iterator[None]:
    """Let the address space grow by no more than ``spare_bytes`` meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = address_space_bytes() + spare_bytes
    resource.setrlimit(
        resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _own_core(cores: list[int]) -> tuple[int | None, socket.socket | None]:
    """Pin this process to the first of ``cores`` that no other worker on this machine has, if there is one.

    When all are taken the scheduler knows better than we do, and the process stays unpinned.
    """
    for core in cores:
        if claim := claim_core(core):
            try:
                os.sched_setaffinity(0, {core})
            except OSError:
                claim.close()
                continue
            return core, claim
    return None, None


def claim_core(core: int) -> socket.socket | None:
    """Claim a core, unless another worker or run has it.

    It is done by an abstract socket's name, which the system frees when the socket is closed, however the
    process ends.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0solgym-core-{core}")
    except OSError:
        claim.close()
        return None
    return claim


def main(
    socket_fd: int,
    alive_fd: int,
    own_core_among: list[int],
    slot_core: int | None = None,
    slot_cpus: list[int] | None = None,
) -> None:
    """Serve a pool until it closes the socket.

    Args:
        socket_fd: a connected stream socket, for requests and replies.
        alive_fd: a pipe whose other end is closed when the pool's process ends.
        own_core_among: cores of which to claim one; none, to stay unpinned.
        slot_core: in a measurement slot, the core to keep to, which somebody else has claimed.
        slot_cpus: in a measurement slot, all CPUs of the run: the pool's process is confined to some of them.
    """
    die_with(alive_fd)
    # Ctrl-C is for the user's process, which then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # if memory runs out, the candidate goes before the user's process
    if slot_cpus is not None:
        os.sched_setaffinity(0, slot_cpus if slot_core is None else {slot_core})
    cores = os.sched_getaffinity(0)
    # The claim lives as long as this variable, that is, as long as the process.
    core, claim = _own_core(own_core_among)
    core = slot_core if core is None else core
    with socket.socket(fileno=socket_fd) as sock:
        serve(sock, Worker(core, cores, (socket_fd, alive_fd)).operations)
    del claim
