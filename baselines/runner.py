"""Runs a tuner on an environment's task from the first measurement to a named winner.

Around the search loop of ``solgym.baselines.search`` it measures the untouched candidate, times the finalists
again interleaved with the expert's schedule before it names a winner, and keeps everything in the trace, so
that the same call continues an interrupted run and repeats nothing of a finished one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import gymnasium

import solgym
from solgym.baselines.budget import Budget
from solgym.baselines.initial import check_initial
from solgym.baselines.search import Listener, SilentListener, finalists, search, trials_of, winner
from solgym.baselines.trace import Option, Role, Trace, TraceHeader, TraceRecord
from solgym.baselines.tuner import check_tuner, make_tuner
from solgym.envs.base import TuningEnv
from solgym.envs.measuring import BASELINE_TIMEOUT_S
from solgym.envs.registration import env_class
from solgym.errors import InvalidTrace
from solgym.hardware.fingerprint import device_fingerprint
from solgym.hardware.measurement import Measurement, tied
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.speed_of_light import Bound
from solgym.hardware.target import Artifact, Candidate, interleaved
from solgym.hardware.task import Task

__all__ = ["TuneResult", "make_env", "open_env", "profile_fingerprint", "tune"]

Env = TuningEnv[Any]


@dataclass(frozen=True)
class TuneResult:
    """A finished run.

    Attributes:
        header: what was run.
        task: what was tuned.
        profile: whose peaks bound it.
        bound: the speed of light.
        baseline: the untouched candidate's measurement.
        baseline_s: the time that scores refer to: its median, or the time limit if it ran into that.
        trials: every trial in order.
        best: the winner with its time when re-timed against the other finalists, or if none of them was
            stable then, the best trial; None if no trial is ``ok``.
        tied_with: how many other finalists cannot be told apart from the winner.
        expert: the best known candidate, timed in the same turns; None where there is none.
        directory: the folder of the run.
    """

    header: TraceHeader
    task: Task
    profile: HardwareProfile
    bound: Bound
    baseline: Measurement
    baseline_s: float
    trials: tuple[TraceRecord, ...]
    best: TraceRecord | None
    tied_with: int
    expert: TraceRecord | None
    directory: Path


def make_env(
    env_id: str,
    *,
    task: str | None = None,
    threads: int = 1,
    options: Mapping[str, Option] | None = None,
) -> Env:
    """Make an environment; nothing is compiled, calibrated or measured yet.

    Args:
        env_id: for example ``KernelDSL-GEMM-v0``.
        task: a task id; None is the environment's default.
        threads: threads that candidates run on.
        options: further arguments of the environment.

    Raises:
        InvalidOption: there is no such environment; the message names those that are similar.
        SolgymError: the task does not exist or does not belong to the environment.
    """
    solgym.register_envs()
    env_class(env_id)
    arguments: dict[str, Any] = {**(options or {}), **({} if task is None else {"task": task})}
    env = gymnasium.make(env_id, disable_env_checker=True, threads=threads, **arguments)
    return cast(Env, env.unwrapped)


@contextmanager
def open_env(
    env_id: str,
    *,
    task: str | None = None,
    threads: int = 1,
    seed: int = 0,
    options: Mapping[str, Option] | None = None,
) -> Iterator[Env]:
    """Make an environment and reset it, so that its task and its baseline are there.

    ``seed`` is of the inputs; the other arguments and the errors are those of ``make_env``.
    """
    with closing(make_env(env_id, task=task, threads=threads, options=options)) as env:
        env.reset(seed=seed)
        yield env


def tune(
    env_id: str,
    *,
    budget: Budget,
    out: str | Path,
    tuner: str = "random",
    mode: str | None = None,
    seed: int = 0,
    task: str | None = None,
    threads: int = 1,
    options: Mapping[str, Option] | None = None,
    initial: Sequence[Candidate] = (),
    listener: Listener | None = None,
) -> TuneResult:
    """Search for the fastest candidate of a task within a budget.

    Called again with the same arguments it continues a run that was interrupted, and measures nothing more
    of one that is complete.

    Args:
        env_id: for example ``KernelDSL-GEMM-v0``.
        budget: what the search may spend.
        out: the folder that receives the trace; made if missing.
        tuner: a name in ``TUNERS``.
        mode: in which of the environment's ``modes`` to search; None is its first.
        seed: of the tuner and of the inputs.
        task: a task id; None is the environment's default.
        threads: threads that candidates run on.
        options: further arguments of the environment.
        initial: candidates of the task that the tuner is to propose first.
        listener: told how the run goes on.

    Raises:
        SolgymError: an argument is wrong, or the trace in ``out`` is damaged or belongs to another run.
    """
    listener = listener or SilentListener()
    check_tuner(tuner, seed)
    solgym.register_envs()
    mode = env_class(env_id).check_mode(mode)
    listener.stage("measuring the baseline")
    with open_env(env_id, task=task, threads=threads, seed=seed, options=options) as env:
        check_initial(initial, env.task.id)
        method = make_tuner(tuner, env.proposals(mode), seed, initial)
        header = TraceHeader(
            env_id=env_id,
            task=env.task.id,
            tuner=tuner,
            mode=mode,
            seed=seed,
            target=env.target.name,
            threads=threads,
            options=dict(options or {}),
            initial=tuple(candidate.digest for candidate in initial),
            package=solgym.__version__,
            toolchain=env.toolchain,
            device=device_fingerprint(),
            profile=profile_fingerprint(env.profile),
            sol_s=env.bound.time_s,
            budget_measurements=budget.measurements,
            budget_seconds=budget.seconds,
            budget_guided=budget.guided,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        with Trace.open(out, header, listener.notice) as trace:
            if not trace.records:
                trace.append(_record(trace, "baseline", env.untouched, env.baseline))
            baseline = _recorded_baseline(trace)
            baseline_s = baseline.time_s or max(env.policy.timeout_s, BASELINE_TIMEOUT_S)
            listener.scale(env.task.id, baseline_s, env.bound.time_s)
            if threads > env.profile.cores:
                listener.notice(
                    f"{threads} threads share {env.profile.cores} cores here; expect unstable times"
                )
            search(method, env.evaluate, budget, trace, listener)
            finals, expert = _finish(env, trace, listener)
            trials = trials_of(trace.records)
            best = winner(finals, trials)
            if best is not None and not finals:
                listener.notice("no finalist was stable when timed again, so the best trial counts as it was")
            return TuneResult(
                header=trace.header,
                task=env.task,
                profile=env.profile,
                bound=env.bound,
                baseline=baseline,
                baseline_s=baseline_s,
                trials=trials,
                best=best,
                tied_with=_ties(best, finals),
                expert=expert,
                directory=Path(out),
            )


def _recorded_baseline(trace: Trace) -> Measurement:
    first = trace.records[0]
    if first.role != "baseline":
        raise InvalidTrace(
            f"{trace.path}, line 2 is no baseline but a {first.role}, so lines are missing; "
            "start anew with another --out"
        )
    return first.result


def profile_fingerprint(profile: HardwareProfile) -> str:
    """A text for a profile's numbers: a second calibration of one machine moves every score a little."""
    return f"{profile.name}/{hashlib.sha256(profile.model_dump_json().encode()).hexdigest()[:16]}"


def _record(
    trace: Trace, role: Role, candidate: Candidate, result: Measurement, trial: int | None = None
) -> TraceRecord:
    last = trace.records[-1] if trace.records else None
    return TraceRecord(
        index=len(trace.records),
        role=role,
        trial=trial,
        candidate=candidate.to_json(),
        measurement=result.to_json(),
        elapsed_s=last.elapsed_s if last else 0.0,
        best_s=last.best_s if last else None,
    )


def _finish(env: Env, trace: Trace, listener: Listener) -> tuple[list[TraceRecord], TraceRecord | None]:
    """The finalists and the expert, timed in turns; taken from the trace if they are there."""
    best, known = finalists(trials_of(trace.records)), env.expert
    if not _has_ending(trace.records, best, known):
        listener.stage("timing the finalists again, in turns")
        contenders: list[tuple[Role, Candidate, int | None]] = [
            ("final", env.read_candidate(record.candidate), record.trial) for record in best
        ]
        if known is not None:
            contenders.append(("expert", known, None))
        results = _in_turns(env, [candidate for _, candidate, _ in contenders], trace.header.seed)
        for (role, candidate, trial), result in zip(contenders, results, strict=True):
            trace.append(_record(trace, role, candidate, result, trial))
    ending = _ending(trace.records)
    finals = [record for record in ending if record.role == "final" and record.result.ok]
    expert = next((record for record in ending if record.role == "expert" and record.result.ok), None)
    return finals, expert


def _has_ending(
    records: Sequence[TraceRecord], best: Sequence[TraceRecord], expert: Candidate | None
) -> bool:
    """Whether the finalists were timed again after the last trial, and the expert, whose line comes last."""
    ending = _ending(records)
    if expert is not None:
        return bool(ending) and ending[-1].role == "expert"
    return {record.trial for record in best} <= {record.trial for record in ending}


def _ending(records: Sequence[TraceRecord]) -> list[TraceRecord]:
    """What was re-timed after the last trial.

    Lines of an attempt that was interrupted may stand before those of a later one; each trial's last line
    counts.
    """
    last: dict[int | None, TraceRecord] = {}
    for record in reversed(records):
        if record.role not in ("final", "expert"):
            break
        last.setdefault(record.trial, record)
    return list(reversed(last.values()))


def _in_turns(env: Env, candidates: Sequence[Candidate], seed: int) -> list[Measurement]:
    compiled = [env.target.compile(candidate, env.task) for candidate in candidates]
    artifacts = [artifact for artifact in compiled if isinstance(artifact, Artifact)]
    timed = iter(interleaved(env.target, artifacts, env.task, env.policy, seed, env.bound.time_s))
    return [next(timed) if isinstance(item, Artifact) else item.measurement() for item in compiled]


def _ties(best: TraceRecord | None, finals: Sequence[TraceRecord]) -> int:
    if best is None:
        return 0
    return sum(record is not best and tied(record.result, best.result) for record in finals)
