"""From an artifact to a measurement: run it once and check it, time it, check what was timed.

This is the procedure of docs/measuring.md on top of a worker pool. It is where failures of candidates become
statuses; nothing here depends on what kind of candidate an artifact came from.
"""

from __future__ import annotations

import contextlib
import platform
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from solgym.errors import ClosedEnvironment, UnsupportedTarget
from solgym.hardware.checking import Expected, ReferenceCache, bitwise_equal, compare
from solgym.hardware.measurement import Measurement, MeasurePolicy, Status
from solgym.hardware.pool import WorkerDied, WorkerFailed, WorkerPool, WorkerProcess, WorkerSilent
from solgym.hardware.task import Task
from solgym.hardware.timing import median_interval
from solgym.hardware.worker import LOADED_MAX

__all__ = ["RunnableArtifact", "measure", "measure_in_turns"]

GRACE_S: Final = 5.0
"""How much longer than the candidate's own deadline a worker gets to report before it is killed."""

_references = ReferenceCache()


class RunnableArtifact(Protocol):
    """What must be known of an artifact to run it."""

    @property
    def code(self) -> bytes:
        """A relocatable object file."""

    @property
    def entry(self) -> str:
        """Its entry point."""

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory shared by all threads."""

    @property
    def thread_workspace_bytes(self) -> int:
        """Scratch memory of each thread, after the shared one."""

    @property
    def threads(self) -> int:
        """Threads it was compiled for."""

    @property
    def digest(self) -> str:
        """Content hash."""

    @property
    def compile_s(self) -> float:
        """Seconds that it took to make."""


class _CandidateFailed(Exception):
    """Ends a trial early; becomes a measurement."""

    def __init__(self, status: Status, error: str, max_error: float | None = None) -> None:
        super().__init__(error)
        self.status, self.max_error = status, max_error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _joined(sentence: str, last_words: str) -> str:
    return f"{sentence}; its last words: {last_words}" if last_words else sentence


def _ended_by(number: int, when: str, detail: str, last_words: str) -> _CandidateFailed:
    """The failure of a candidate whose process was ended by a signal."""
    if number == signal.SIGKILL:
        text = f"the system killed the process {when}, most likely because memory ran out"
        return _CandidateFailed(Status.RUNTIME_ERROR, _joined(text, last_words))
    text = f"{_signal_name(number)} {when}" + (f", {detail}" if detail else "")
    return _CandidateFailed(Status.CRASHED, _joined(text, last_words))


def _too_slow(policy: MeasurePolicy) -> str:
    """Why a first run was stopped long before ``timeout_s``."""
    assert policy.baseline_s is not None
    assert policy.slow_s is not None
    return (
        f"too slow: the first run was stopped after {policy.slow_s:.3g} s of CPU time, "
        f"{policy.slow_s / policy.baseline_s:.3g} times the baseline's {policy.baseline_s:.3g} s"
    )


@dataclass
class _Trial:
    """One artifact on one worker."""

    worker: WorkerProcess
    artifact: RunnableArtifact
    task: Task
    key: str
    expected: Expected
    policy: MeasurePolicy
    max_error: float | None = None
    run_s: float = 0.0

    @property
    def _workspace_bytes(self) -> int:
        return self.artifact.workspace_bytes + self.artifact.threads * self.artifact.thread_workspace_bytes

    @property
    def spare_bytes(self) -> int:
        """Memory that the candidate may allocate beyond its buffers."""
        specs = (*self.task.input_specs, *self.task.output_specs)
        return self.policy.memory_bytes - sum(spec.nbytes for spec in specs) - self._workspace_bytes

    def request(
        self, message: dict[str, Any], payload: bytes, deadline_s: float, when: str
    ) -> dict[str, Any]:
        """Ask the worker something about the candidate; its death is the candidate's failure."""
        try:
            reply = self.worker.request(message, payload, deadline_s=deadline_s)
        except WorkerSilent as error:
            raise _CandidateFailed(
                Status.TIMEOUT, f"no end after {deadline_s:.1f} s {when}; killed"
            ) from error
        except WorkerDied as error:
            if error.returncode < 0:
                raise _ended_by(-error.returncode, when, "", error.last_words) from error
            text = f"the candidate ended its process {when} with exit status {error.returncode}"
            raise _CandidateFailed(Status.RUNTIME_ERROR, _joined(text, error.last_words)) from error
        if "fault" in reply:
            raise _CandidateFailed(Status.RUNTIME_ERROR, f"{reply['fault']} ({when})")
        return reply

    def check(self) -> None:
        """Run once in a guarded child and compare the outputs with the reference."""
        if self.spare_bytes < 0:
            raise _CandidateFailed(
                Status.RUNTIME_ERROR,
                f"out of memory: buffers and a workspace of {self._workspace_bytes} bytes exceed the "
                f"{self.policy.memory_bytes} bytes allowed; use smaller packed buffers or raise memory_bytes",
            )
        try:
            buffers = self.worker.buffers(self.key, self.task, self.expected)
        except WorkerFailed as error:
            raise _CandidateFailed(Status.RUNTIME_ERROR, f"before the first run: {error}") from error
        workspace = buffers.prepare(self._workspace_bytes)
        self.worker.last_words()  # those of earlier candidates
        self.worker.artifacts += 1
        try:
            reply = self.request(
                {
                    "op": "check",
                    "key": self.key,
                    "digest": self.artifact.digest,
                    "entry": self.artifact.entry,
                    "threads": self.artifact.threads,
                    "workspace_bytes": self._workspace_bytes,
                    "workspace": asdict(workspace) if workspace else None,
                    "timeout_s": self.policy.timeout_s,
                    "slow_s": self.policy.slow_s,
                    "spare_bytes": self.spare_bytes,
                },
                self.artifact.code,
                self.policy.timeout_s + GRACE_S,
                "in its first run",
            )
            self._judge_end(reply)
        except _CandidateFailed:
            if self.worker.usable:
                buffers.restore()
            raise
        self.run_s = float(reply["seconds"])
        if violation := buffers.violation(workspace is not None):
            raise _CandidateFailed(Status.WRONG_RESULT, violation)
        verdict = compare(buffers.outputs, self.expected)
        self.max_error = verdict.max_error
        if verdict.error is not None:
            raise _CandidateFailed(Status.WRONG_RESULT, verdict.error, verdict.max_error)

    def _judge_end(self, reply: dict[str, Any]) -> None:
        """Raise unless the guarded run came to its end."""
        match reply["end"]:
            case "finished":
                return
            case "unlinkable":
                text = f"the artifact cannot be linked: {reply['detail']}; compile it again"
                raise _CandidateFailed(Status.RUNTIME_ERROR, text)
            case "timeout":
                text = f"the first run did not end within {self.policy.timeout_s:g} s and was killed"
                raise _CandidateFailed(Status.TIMEOUT, text)
            case "slow":
                raise _CandidateFailed(Status.TIMEOUT, _too_slow(self.policy))
            case "signal":
                raise _ended_by(
                    reply["number"], "in its first run", reply["detail"], self.worker.last_words()
                )
            case "exit":
                text = f"the candidate ended its process in its first run with exit status {reply['number']}"
                raise _CandidateFailed(Status.RUNTIME_ERROR, _joined(text, self.worker.last_words()))
            case _:
                text = f"the process for the first run could not be set up ({reply['detail']})"
                raise _CandidateFailed(Status.RUNTIME_ERROR, _joined(text, self.worker.last_words()))

    def time_deadline_s(self) -> float:
        """How long timing may take before the worker counts as hung; generous, for machines that are busy."""
        calls = self.policy.warmup + self.policy.slow_repeats + 1
        return self.policy.timeout_s + GRACE_S + 4 * (self.policy.max_seconds + calls * self.run_s)

    def finish(self) -> None:
        """Run once more as timed and compare again; the timing counts only if this passes."""
        message = {
            "op": "finish",
            "key": self.key,
            "digest": self.artifact.digest,
            "policy": asdict(self.policy),
            "spare_bytes": self.spare_bytes,
        }
        reply = self.request(message, b"", self.policy.timeout_s + GRACE_S, "when run again after timing")
        if reply["changed_input"] is not None:
            name = reply["changed_input"]
            text = f"while timed, the candidate modified its input {name!r}; inputs are read-only"
            raise _CandidateFailed(Status.WRONG_RESULT, text)
        buffers = self.worker.buffers(self.key, self.task, self.expected)
        if all(map(bitwise_equal, buffers.timed_outputs, buffers.outputs)):
            return
        verdict = compare(buffers.timed_outputs, self.expected)
        if verdict.error is not None:
            text = f"right in its first run, wrong after {self.policy.warmup} and more calls: {verdict.error}"
            raise _CandidateFailed(Status.WRONG_RESULT, text, verdict.max_error)

    def failed(self, failure: _CandidateFailed) -> Measurement:
        """The measurement of a candidate that failed."""
        return Measurement.failed(
            failure.status,
            str(failure),
            compile_s=self.artifact.compile_s,
            artifact_digest=self.artifact.digest,
            max_error=failure.max_error if failure.max_error is not None else self.max_error,
        )

    def timed(self, timing: dict[str, Any], sol_time_s: float | None) -> Measurement:
        """The measurement of a candidate that was timed."""
        samples = tuple(float(sample) for sample in timing["samples_s"])
        interval = median_interval(samples)
        status, error = _judge_times(interval.median, interval.spread, timing, self.policy, sol_time_s)
        return Measurement(
            status,
            samples,
            interval.median,
            min(samples),
            interval.low,
            interval.high,
            warmup=timing["warmup"],
            clock=timing["clock"],
            discarded=timing["discarded"],
            error=error,
            compile_s=self.artifact.compile_s,
            artifact_digest=self.artifact.digest,
            max_error=self.max_error,
        )


def _judge_times(
    median_s: float, spread: float, timing: dict[str, Any], policy: MeasurePolicy, sol_time_s: float | None
) -> tuple[Status, str | None]:
    if sol_time_s is not None and median_s < policy.sol_floor * sol_time_s:
        return Status.FASTER_THAN_LIGHT, (
            f"{median_s:.3g} s is less than {policy.sol_floor:g} of the speed of light, {sol_time_s:.3g} s: "
            "the profile understates this machine (calibrate again), or the task is counted wrongly"
        )
    if timing["too_disturbed"]:
        return Status.UNSTABLE, (
            "other work on this machine interrupted nearly every sample; use fewer threads or free some cores"
        )
    if spread > policy.unstable_ci:
        return Status.UNSTABLE, (
            f"the 95% interval of the median reaches {spread:.0%} from it, not {policy.unstable_ci:.0%}; "
            "measure on a quieter machine or allow more max_seconds"
        )
    return Status.OK, None


def _trial(
    worker: WorkerProcess, artifact: RunnableArtifact, task: Task, seed: int, policy: MeasurePolicy
) -> _Trial:
    if policy.flush_cache and platform.machine() != "x86_64":
        raise UnsupportedTarget(
            f"flush_cache needs x86-64, this is {platform.machine()}; measure warm caches"
        )
    key = f"{type(task).__module__}.{type(task).__qualname__}:{task.id}:{seed}"
    return _Trial(worker, artifact, task, key, _references.get(task, seed), policy)


def _time(trials: Sequence[_Trial]) -> list[dict[str, Any]]:
    """Time artifacts that passed their checks, in turns if there are several."""
    first = trials[0]
    message = {
        "op": "time",
        "key": first.key,
        "digests": [trial.artifact.digest for trial in trials],
        "policy": asdict(first.policy),
        "spare_bytes": min(trial.spare_bytes for trial in trials),
    }
    deadline_s = sum(trial.time_deadline_s() for trial in trials)
    timings: list[dict[str, Any]] = first.request(message, b"", deadline_s, "while timed")["timings"]
    return timings


def measure(
    pool: WorkerPool,
    artifact: RunnableArtifact,
    task: Task,
    policy: MeasurePolicy,
    seed: int,
    sol_time_s: float | None,
) -> Measurement:
    """Check and time one artifact.

    Args:
        pool: where to run it.
        artifact: what to run.
        task: what it must compute.
        policy: how to measure.
        seed: from which the inputs are drawn.
        sol_time_s: the task's speed of light in seconds, below which a time is not believed; None to believe
        all.

    Raises:
        ClosedEnvironment: the pool is, or was meanwhile, closed.
        UnsupportedTarget: worker processes cannot be started here.
    """
    try:
        with pool.lease(policy.recycle_after) as worker:
            trial = _trial(worker, artifact, task, seed, policy)
            try:
                trial.check()
                timing = _time([trial])[0]
                trial.finish()
                return trial.timed(timing, sol_time_s)
            except _CandidateFailed as failure:
                if pool.closed:
                    raise ClosedEnvironment("the worker pool was closed during a measurement") from failure
                return trial.failed(failure)
    except WorkerDied as error:
        text = "workers are killed while they start, most likely because memory ran out"
        return Measurement.failed(
            Status.RUNTIME_ERROR,
            _joined(text, error.last_words),
            compile_s=artifact.compile_s,
            artifact_digest=artifact.digest,
        )


def measure_in_turns(
    pool: WorkerPool,
    artifacts: Sequence[RunnableArtifact],
    task: Task,
    policy: MeasurePolicy,
    seed: int,
    sol_time_s: float | None,
) -> list[Measurement]:
    """Check several artifacts of one task, then time them round-robin on one worker; arguments as
    ``measure``.

    Returns:
        One measurement per artifact, in order. Equal artifacts are timed once and share theirs; of more than
        ``LOADED_MAX`` different ones, those beyond are measured one by one.
    """
    unique = list({artifact.digest: artifact for artifact in artifacts}.values())[:LOADED_MAX]
    done: dict[str, Measurement] = {}
    # If the worker ends, each is measured by itself below, and answers for itself.
    with contextlib.suppress(WorkerDied), pool.lease(policy.recycle_after) as worker:
        passed: list[_Trial] = []
        for artifact in unique:
            trial = _trial(worker, artifact, task, seed, policy)
            try:
                trial.check()
                passed.append(trial)
            except _CandidateFailed as failure:
                done[artifact.digest] = trial.failed(failure)
        with contextlib.suppress(_CandidateFailed):
            timings = _time(passed) if passed else []
            for trial, timing in zip(passed, timings, strict=True):
                try:
                    trial.finish()
                    done[trial.artifact.digest] = trial.timed(timing, sol_time_s)
                except _CandidateFailed as failure:
                    done[trial.artifact.digest] = trial.failed(failure)
    for artifact in artifacts:
        if artifact.digest not in done:
            done[artifact.digest] = measure(pool, artifact, task, policy, seed, sol_time_s)
    return [done[artifact.digest] for artifact in artifacts]
