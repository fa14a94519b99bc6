"""Runs a tuner on an environment's task from the first measurement to a named winner.

Around the search loop of ``solgym.baselines.search`` it measures the untouched candidate, times the finalists
again interleaved with the expert's schedule before it names a winner, and keeps everything in the trace, so
that the same call continues an interrupted run and repeats nothing of a finished one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import gymnasium

import solgym
from solgym.baselines.budget import Budget
from solgym.baselines.proposals import EpisodeSource, KnobSource
from solgym.baselines.search import Listener, SilentListener, finalists, search, trials_of, winner
from solgym.baselines.trace import Role, Trace, TraceHeader, TraceRecord
from solgym.baselines.tuner import ProposalSource, check_tuner, make_tuner
from solgym.envs.kernel_dsl.experts import expert_schedule
from solgym.envs.kernel_dsl.kernels.task import KernelTask
from solgym.envs.kernel_dsl.knobs import knob_space
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.envs.measuring import BASELINE_TIMEOUT_S
from solgym.errors import InvalidOption, InvalidTrace
from solgym.hardware.fingerprint import device_fingerprint
from solgym.hardware.jit import toolchain_fingerprint
from solgym.hardware.measurement import Measurement, tied
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.speed_of_light import Bound
from solgym.hardware.target import Artifact, interleaved

if TYPE_CHECKING:
    from solgym.envs.kernel_dsl.env import KernelDSLEnv

__all__ = ["Mode", "TuneResult", "make_env", "open_env", "tune"]

Mode = Literal["knobs", "primitive"]


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
        expert: the hand-written schedule, timed in the same turns; None where there is none.
        directory: the folder of the run.
    """

    header: TraceHeader
    task: KernelTask
    profile: HardwareProfile
    bound: Bound
    baseline: Measurement
    baseline_s: float
    trials: tuple[TraceRecord, ...]
    best: TraceRecord | None
    tied_with: int
    expert: TraceRecord | None
    directory: Path


def make_env(env_id: str, *, task: str | None = None, threads: int = 1, mode: Mode = "knobs") -> KernelDSLEnv:
    """Make an environment; nothing is compiled, calibrated or measured yet.

    Args:
        env_id: for example ``KernelDSL-GEMM-v0``.
        task: a task id; None is the environment's default.
        threads: threads that candidates run on.
        mode: what a step of the environment is.

    Raises:
        InvalidOption: there is no such environment; the message names those that are similar.
        SolgymError: the task does not exist or does not belong to the environment.
    """
    solgym.register_envs()
    if not env_id.startswith("KernelDSL-") or env_id not in gymnasium.registry:
        raise InvalidOption(
            f"there is no environment {env_id!r}{_similar(env_id)}; `solgym list` names them all"
        )
    options: dict[str, Any] = {} if task is None else {"task": task}
    env = gymnasium.make(env_id, disable_env_checker=True, action_mode=mode, threads=threads, **options)
    return cast("KernelDSLEnv", env.unwrapped)


@contextmanager
def open_env(
    env_id: str, *, task: str | None = None, threads: int = 1, mode: Mode = "knobs", seed: int = 0
) -> Iterator[KernelDSLEnv]:
    """Make an environment and reset it, so that its task and its baseline are there.

    ``seed`` is of the inputs; the other arguments and the errors are those of ``make_env``.
    """
    with closing(make_env(env_id, task=task, threads=threads, mode=mode)) as env:
        env.reset(seed=seed)
        yield env


def _similar(env_id: str) -> str:
    import difflib

    names = [name for name in gymnasium.registry if name.startswith("KernelDSL-")]
    near = difflib.get_close_matches(env_id, names, n=2, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}" if near else ""


def tune(
    env_id: str,
    *,
    budget: Budget,
    out: str | Path,
    tuner: str = "random",
    mode: Mode = "knobs",
    seed: int = 0,
    task: str | None = None,
    threads: int = 1,
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
        mode: whether proposals are settings of the task's schedule knobs or episodes of primitive actions.
        seed: of the tuner and of the inputs.
        task: a task id; None is the environment's default.
        threads: threads that candidates run on.
        listener: told how the run goes on.

    Raises:
        SolgymError: an argument is wrong, or the trace in ``out`` is damaged or belongs to another run.
    """
    listener = listener or SilentListener()
    check_tuner(tuner, seed)
    listener.stage("measuring the baseline")
    with open_env(env_id, task=task, threads=threads, mode=mode, seed=seed) as env:
        method = make_tuner(tuner, _source(env, mode), seed)
        header = _header(env, env_id, budget=budget, tuner=tuner, mode=mode, seed=seed, threads=threads)
        with Trace.open(out, header, listener.notice) as trace:
            if not trace.records:
                trace.append(_record(trace, "baseline", Schedule(env.task.id), env.baseline))
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


def _source(env: KernelDSLEnv, mode: Mode) -> ProposalSource:
    if mode == "primitive":
        return EpisodeSource(env.task, env.table, env.target.spec, env.patterns, env.max_steps)
    return KnobSource(knob_space(env.task, env.target.spec))


def _header(
    env: KernelDSLEnv, env_id: str, *, budget: Budget, tuner: str, mode: Mode, seed: int, threads: int
) -> TraceHeader:
    return TraceHeader(
        env_id=env_id,
        task=env.task.id,
        tuner=tuner,
        mode=mode,
        seed=seed,
        target=env.target.name,
        threads=threads,
        package=solgym.__version__,
        toolchain=toolchain_fingerprint(),
        device=device_fingerprint(),
        profile=_profile_fingerprint(env.profile),
        budget_measurements=budget.measurements,
        budget_seconds=budget.seconds,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _profile_fingerprint(profile: HardwareProfile) -> str:
    """Identifies the numbers themselves: a second calibration of one machine moves every score a little."""
    return f"{profile.name}/{hashlib.sha256(profile.model_dump_json().encode()).hexdigest()[:16]}"


def _record(
    trace: Trace, role: Role, candidate: Schedule, result: Measurement, trial: int | None = None
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


def _finish(
    env: KernelDSLEnv, trace: Trace, listener: Listener
) -> tuple[list[TraceRecord], TraceRecord | None]:
    """The finalists and the expert's schedule, timed in turns; taken from the trace if they are there."""
    ending = _ending(trace.records)
    if not ending:
        listener.stage("timing the finalists again, in turns")
        contenders: list[tuple[Role, Schedule, int | None]] = [
            ("final", Schedule.from_json(record.candidate), record.trial)
            for record in finalists(trials_of(trace.records))
        ]
        contenders.append(("expert", expert_schedule(env.task, env.target.spec), None))
        results = _in_turns(env, [candidate for _, candidate, _ in contenders], trace.header.seed)
        for (role, candidate, trial), result in zip(contenders, results, strict=True):
            trace.append(_record(trace, role, candidate, result, trial))
        ending = _ending(trace.records)
    finals = [record for record in ending if record.role == "final" and record.result.ok]
    expert = next((record for record in ending if record.role == "expert" and record.result.ok), None)
    return finals, expert


def _ending(records: Sequence[TraceRecord]) -> list[TraceRecord]:
    """What was re-timed after the last trial, or nothing if that is not complete.

    The expert's line comes last, so it says that the others are there. Lines of an attempt that was
    interrupted may stand before them; each trial's last line counts.
    """
    if not records or records[-1].role != "expert":
        return []
    finals: dict[int | None, TraceRecord] = {}
    for record in reversed(records[:-1]):
        if record.role != "final":
            break
        finals.setdefault(record.trial, record)
    return [*finals.values(), records[-1]]


def _in_turns(env: KernelDSLEnv, candidates: Sequence[Schedule], seed: int) -> list[Measurement]:
    compiled = [env.target.compile(candidate, env.task) for candidate in candidates]
    artifacts = [artifact for artifact in compiled if isinstance(artifact, Artifact)]
    timed = iter(interleaved(env.target, artifacts, env.task, env.policy, seed, env.bound.time_s))
    return [next(timed) if isinstance(item, Artifact) else item.measurement() for item in compiled]


def _ties(best: TraceRecord | None, finals: Sequence[TraceRecord]) -> int:
    if best is None:
        return 0
    return sum(record is not best and tied(record.result, best.result) for record in finals)
