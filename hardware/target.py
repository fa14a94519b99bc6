"""Where candidates are compiled and run, behind one interface for every kind of hardware.

A target compiles a candidate to an artifact (pure, needs no device) and measures an artifact on a task (in a
worker process, see ``hardware.pool``). Neither ever raises because a candidate failed: failures are values.
This module holds the interface and the CPU target.
"""

from __future__ import annotations

import hashlib
import platform
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self, runtime_checkable

from solgym.errors import ClosedEnvironment, IllegalSchedule, InvalidOption, UnsupportedTarget
from solgym.hardware.fingerprint import device_fingerprint, host_device
from solgym.hardware.jit import compile_object, host_cpu, toolchain_fingerprint
from solgym.hardware.measurement import Measurement, MeasurePolicy, Status
from solgym.hardware.measuring import measure, measure_in_turns
from solgym.hardware.pool import WorkerPool, default_pool
from solgym.hardware.task import Task

if TYPE_CHECKING:
    from solgym.hardware.profile import HardwareProfile

__all__ = [
    "Artifact",
    "Candidate",
    "CompilationFailed",
    "CompiledKernel",
    "CpuTarget",
    "Failure",
    "LoweredKernel",
    "Target",
    "TargetSpec",
    "cpu_spec",
    "interleaved",
    "parse_target",
]

FailureStatus = Literal[Status.ILLEGAL, Status.COMPILE_ERROR, Status.CRASHED, Status.TIMEOUT]

ARTIFACTS_MAX: Final = 512
"""Compiled candidates that a target remembers; tens of kilobytes each."""


@dataclass(frozen=True)
class TargetSpec:
    """What schedules may use on a target.

    Attributes:
        name: for example ``cpu``.
        vector_bits: widest vectors, in bits.
        threads: threads that one candidate runs on.
        loop_kinds: what a loop can become: ``serial``, ``unrolled``, ``vector``, ``parallel`` (CPU), block
            and thread bindings (GPU).
        scopes: where buffers can live: ``global``, ``packed``, ``register``, ``shared``.
        vector_registers: architectural vector registers.
        cache_sizes: bytes of each cache level that one core sees, nearest first.
    """

    name: str
    vector_bits: int
    threads: int
    loop_kinds: frozenset[str]
    scopes: frozenset[str]
    vector_registers: int
    cache_sizes: tuple[int, ...]


@dataclass(frozen=True)
class LoweredKernel:
    """A candidate as LLVM IR text with one entry point of SOLGym's kernel ABI (docs/measuring.md)."""

    ir: str
    entry: str
    workspace_bytes: int
    thread_workspace_bytes: int
    threads: int


@dataclass(frozen=True)
class CompiledKernel:
    """A candidate as an object file for this host, where a family's own compiler makes one.

    Attributes:
        code: a relocatable object file with one entry point of SOLGym's kernel ABI.
        entry: its name.
        workspace_bytes: scratch memory.
        toolchain: what made it, with versions.
    """

    code: bytes
    entry: str
    workspace_bytes: int
    toolchain: str


class CompilationFailed(Exception):
    """Raised by ``Candidate.lower`` when the candidate is legal but its compiler fails, crashes or hangs."""

    def __init__(self, status: FailureStatus, error: str) -> None:
        super().__init__(error)
        self.status: FailureStatus = status


@runtime_checkable
class Candidate(Protocol):
    """A way to compute a task, as data: a schedule or a sequence of passes."""

    @property
    def digest(self) -> str:
        """Content hash, in hexadecimal."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, from which the family makes an equal candidate."""

    def lower(self, task: Task, target: TargetSpec) -> LoweredKernel | CompiledKernel:
        """Turn the candidate into LLVM IR, or machine code, for ``target``.

        Raises:
            IllegalSchedule: the candidate does not apply to the task or target; says why.
            CompilationFailed: it applies, but its compiler did not manage.
        """


@dataclass(frozen=True)
class Artifact:
    """A compiled candidate: machine code and what it needs to run.

    ``digest`` covers the code and the layout, not ``compile_s``: equal digests behave equally.
    """

    code: bytes
    entry: str
    workspace_bytes: int
    thread_workspace_bytes: int
    threads: int
    digest: str
    toolchain: str
    compile_s: float


@dataclass(frozen=True)
class Failure:
    """Why a candidate has no artifact."""

    status: FailureStatus
    error: str
    compile_s: float = 0.0

    def measurement(self) -> Measurement:
        """The failure as the outcome of a trial."""
        return Measurement.failed(self.status, self.error, compile_s=self.compile_s)


@runtime_checkable
class Target(Protocol):
    """Hardware, or a recording of it, on which candidates are tried."""

    @property
    def name(self) -> str:
        """For example ``cpu``."""

    @property
    def spec(self) -> TargetSpec:
        """What schedules may use."""

    @property
    def fingerprint(self) -> str:
        """Toolchain and device; measurements are comparable only under equal ones."""

    def compile(self, candidate: Candidate, task: Task) -> Artifact | Failure:
        """Compile a candidate; pure, and needs no device."""

    def measure(
        self,
        artifact: Artifact,
        task: Task,
        policy: MeasurePolicy | None = None,
        seed: int = 0,
        sol_time_s: float | None = None,
    ) -> Measurement:
        """Check and time an artifact in a worker process."""

    def measure_in_turns(
        self,
        artifacts: Sequence[Artifact],
        task: Task,
        policy: MeasurePolicy | None = None,
        seed: int = 0,
        sol_time_s: float | None = None,
    ) -> list[Measurement]:
        """The same for several artifacts of one task, timed round-robin."""

    def close(self) -> None:
        """Release what the target holds."""


def interleaved(
    target: Target,
    artifacts: Sequence[Artifact],
    task: Task,
    policy: MeasurePolicy | None = None,
    seed: int = 0,
    sol_time_s: float | None = None,
) -> list[Measurement]:
    """Time the last contenders of a run again, in turns, before a winner is named.

    Slow drifts of the machine (clocks, temperature, neighbours) then meet all of them alike.

    Returns:
        One measurement per artifact, in order.
    """
    return target.measure_in_turns(artifacts, task, policy, seed, sol_time_s)


def cpu_spec(threads: int = 1) -> TargetSpec:
    """What schedules may use on this machine's CPU, with candidates on ``threads`` threads."""
    vector_bits = host_cpu().vector_bits
    wide_file = vector_bits == 512 or platform.machine() == "aarch64"
    return TargetSpec(
        name="cpu",
        vector_bits=vector_bits,
        threads=threads,
        loop_kinds=frozenset({"serial", "unrolled", "vector", "parallel"}),
        scopes=frozenset({"global", "packed", "register"}),
        vector_registers=32 if wide_file else 16,
        cache_sizes=tuple(cache.size_bytes for cache in host_device().caches),
    )


def parse_target(name: str, threads: int = 1) -> TargetSpec:
    """Read a target's name.

    Raises:
        UnsupportedTarget: the target is not available in this release.
        InvalidOption: there is no such target.
    """
    family = name.split(":", 1)[0]
    if name == "cpu":
        return cpu_spec(threads)
    if family in ("cuda", "opencl", "recorded"):
        raise UnsupportedTarget(f"target {name!r} comes with a later release; this one has 'cpu'")
    raise InvalidOption(f"there is no target {name!r}; choose 'cpu'")


class CpuTarget:
    """This machine's CPU. A context manager; safe between threads; pickles as its settings.

    Artifacts are remembered by candidate and task. Unless it is given a pool of its own, it shares the
    process's default one and leaves it running when closed.
    """

    name: Final = "cpu"

    def __init__(
        self, threads: int = 1, pool: WorkerPool | None = None, profile: HardwareProfile | None = None
    ) -> None:
        """Set up the target; nothing is started yet.

        Args:
            threads: threads that candidates run on.
            pool: where they are run; by default one worker shared by the whole process.
            profile: if given, times far below its speed of light are ``faster_than_light``, also where the
                caller of ``measure`` names no bound.

        Raises:
            InvalidOption: the pool is made for another number of threads.
        """
        if threads < 1:
            raise InvalidOption(f"threads must be at least 1; got {threads}")
        if pool is not None and pool.threads != threads:
            raise InvalidOption(
                f"the pool is made for {pool.threads} threads, the target for {threads}; make them equal"
            )
        self.threads = threads
        self.profile = profile
        self.spec = cpu_spec(threads)
        self._pool = pool
        self._closed = False
        self._make_cache()

    def _make_cache(self) -> None:
        self._artifacts: OrderedDict[tuple[str, str], Artifact | Failure] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def pool(self) -> WorkerPool:
        """The workers in use."""
        if self._closed:
            raise ClosedEnvironment("this target is closed; make a new CpuTarget")
        return self._pool if self._pool is not None else default_pool(self.threads)

    @property
    def fingerprint(self) -> str:
        """Device, threads, toolchain and package version."""
        # Imported here: the package's top level imports sub-packages.
        from solgym import __version__

        threads = f"threads-{self.threads}"
        return f"{device_fingerprint()}/{threads}/{toolchain_fingerprint()}/solgym-{__version__}"

    def compile(self, candidate: Candidate, task: Task) -> Artifact | Failure:
        """Lower and compile a candidate, or return what was made of it before (then with ``compile_s`` 0).

        A compiler that ran out of time is asked again.
        """
        key = (candidate.digest, task.id)
        with self._lock:
            known = self._artifacts.get(key)
            if known is not None:
                self._artifacts.move_to_end(key)
                return replace(known, compile_s=0.0)
        made = self._compile(candidate, task)
        if isinstance(made, Failure) and made.status is Status.TIMEOUT:
            return made  # the machine may have been busy; it must not count for ever
        with self._lock:
            self._artifacts[key] = made
            while len(self._artifacts) > ARTIFACTS_MAX:
                self._artifacts.popitem(last=False)
        return made

    def _compile(self, candidate: Candidate, task: Task) -> Artifact | Failure:
        started = time.perf_counter()
        try:
            lowered = candidate.lower(task, self.spec)
        except IllegalSchedule as error:
            return Failure(Status.ILLEGAL, str(error), time.perf_counter() - started)
        except CompilationFailed as error:
            return Failure(error.status, str(error), time.perf_counter() - started)
        if isinstance(lowered, CompiledKernel):
            return _artifact(
                lowered.code,
                lowered.entry,
                (lowered.workspace_bytes, 0, 1),
                lowered.toolchain,
                time.perf_counter() - started,
            )
        try:
            code = compile_object(lowered.ir)
        except RuntimeError as error:
            text = f"LLVM rejected the generated code: {error}"
            return Failure(Status.COMPILE_ERROR, text, time.perf_counter() - started)
        layout = (lowered.workspace_bytes, lowered.thread_workspace_bytes, lowered.threads)
        return _artifact(code, lowered.entry, layout, toolchain_fingerprint(), time.perf_counter() - started)

    def measure(
        self,
        artifact: Artifact,
        task: Task,
        policy: MeasurePolicy | None = None,
        seed: int = 0,
        sol_time_s: float | None = None,
    ) -> Measurement:
        """Check and time an artifact in a worker process.

        Args:
            artifact: what ``compile`` returned.
            task: the task that it was compiled for.
            policy: how to measure; by default ``MeasurePolicy()``.
            seed: from which the inputs are drawn.
            sol_time_s: the speed of light of the task in seconds; by default that of the target's profile, if
                it has one.

        Raises:
            ClosedEnvironment: the target or its pool is closed.
            UnsupportedTarget: worker processes cannot be started here.
        """
        policy = policy or MeasurePolicy()
        return measure(self.pool, artifact, task, policy, seed, self._bound(task, policy, sol_time_s))

    def measure_in_turns(
        self,
        artifacts: Sequence[Artifact],
        task: Task,
        policy: MeasurePolicy | None = None,
        seed: int = 0,
        sol_time_s: float | None = None,
    ) -> list[Measurement]:
        """Check several artifacts of one task and time them round-robin; arguments as for ``measure``."""
        policy = policy or MeasurePolicy()
        return measure_in_turns(
            self.pool, artifacts, task, policy, seed, self._bound(task, policy, sol_time_s)
        )

    def evaluate(
        self,
        candidate: Candidate,
        task: Task,
        policy: MeasurePolicy | None = None,
        seed: int = 0,
        sol_time_s: float | None = None,
    ) -> Measurement:
        """Compile and measure a candidate; a candidate that does not compile is a measurement, too."""
        made = self.compile(candidate, task)
        if isinstance(made, Failure):
            return made.measurement()
        return self.measure(made, task, policy, seed, sol_time_s)

    def _bound(self, task: Task, policy: MeasurePolicy, sol_time_s: float | None) -> float | None:
        if sol_time_s is not None or self.profile is None:
            return sol_time_s
        from solgym.hardware.speed_of_light import speed_of_light

        return speed_of_light(task.work, self.profile, self.threads, policy.flush_cache).time_s

    def close(self) -> None:
        """Close the target and the pool that it was given. Closing twice does nothing."""
        self._closed = True
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_artifacts", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_cache()


def _artifact(
    code: bytes, entry: str, layout: tuple[int, int, int], toolchain: str, compile_s: float
) -> Artifact:
    """Put an artifact together; ``layout`` is its workspace, that of each thread, and its threads."""
    workspace_bytes, thread_workspace_bytes, threads = layout
    described = f"{entry}/{workspace_bytes}/{thread_workspace_bytes}/{threads}/"
    return Artifact(
        code=code,
        entry=entry,
        workspace_bytes=workspace_bytes,
        thread_workspace_bytes=thread_workspace_bytes,
        threads=threads,
        digest=hashlib.sha256(described.encode() + code).hexdigest(),
        toolchain=toolchain,
        compile_s=compile_s,
    )
