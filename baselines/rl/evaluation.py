"""How good a trained policy is: one episode per task without any search, compared with what is known there.

Each task is played once, with the best action every time. The candidate that the episode ends with is then
timed again in turns with the untouched one, the expert's and, for programs, the best fixed pipeline, so that
all of them meet the same machine. Results are kept task by task, and a second call goes on where one stopped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import solgym
from solgym.baselines.folder_lock import lock_folder
from solgym.baselines.rl.episodes import Episode, play
from solgym.baselines.runner import make_env, profile_fingerprint
from solgym.baselines.trace import Option
from solgym.errors import InvalidOption, InvalidTrace
from solgym.hardware.atomic_files import write_atomically
from solgym.hardware.fingerprint import device_fingerprint
from solgym.hardware.measurement import Measurement, Status
from solgym.hardware.speed_of_light import gap_closed
from solgym.hardware.target import Artifact, Candidate, interleaved

if TYPE_CHECKING:
    from solgym.baselines.rl.policy import Policy
    from solgym.envs.base import Split, TuningEnv

__all__ = [
    "REFERENCES",
    "Evaluation",
    "EvaluationHeader",
    "EvaluationListener",
    "EvaluationRow",
    "Reference",
    "Summary",
    "evaluate_policy",
    "read_evaluation",
]

Reference = Literal["expert", "fixed", "untouched"]
REFERENCES: Final[tuple[Reference, ...]] = get_args(Reference)
"""What a policy is compared with: the best known candidate, the best fixed pipeline, the untouched one."""

ROWS_NAME: Final = "evaluation.jsonl"
LOCK_NAME: Final = "evaluation.lock"
LARGEST_RATIO: Final = 1e12
"""Of two times of a task: from a nanosecond to a quarter of an hour."""
UNSTABLE_TRIES: Final = 3
"""How often the contenders of a task are timed while one of them is unstable."""

Model = TypeVar("Model", bound=BaseModel)
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class EvaluationRow(BaseModel):
    """What a policy made of one task.

    Attributes:
        task: the task's id.
        program: what the task's id begins with: a kernel or a program at some shape.
        actions: what the policy chose, in words.
        candidate: the candidate in force at the end of the episode, as JSON.
        steps: how many actions were taken.
        failures: how many of them were illegal or failed.
        reward: the sum of all rewards.
        decision_s: median seconds per decision, see ``Episode``.
        baseline_s: the untouched candidate's time in seconds, in the same turns if it could be timed there.
        sol_s: the speed of light in seconds.
        measurements: of ``policy`` and of each reference that exists here, timed in turns; as JSON.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    program: str
    actions: tuple[str, ...]
    candidate: dict[str, Any]
    steps: Annotated[int, Field(ge=0)]
    failures: Annotated[int, Field(ge=0)]
    reward: float
    decision_s: float
    baseline_s: Seconds
    sol_s: Seconds
    measurements: dict[Literal["policy", "expert", "fixed", "untouched"], dict[str, Any]]

    def measurement(self, name: Literal["policy"] | Reference) -> Measurement | None:
        """The measurement of the policy's candidate or of a reference; None if there is none here."""
        data = self.measurements.get(name)
        return None if data is None else Measurement.from_json(data)

    @property
    def status(self) -> Status:
        """What became of the policy's candidate when it was timed in turns."""
        measurement = self.measurement("policy")
        assert measurement is not None
        return measurement.status

    @property
    def time_s(self) -> float:
        """The time of the policy's candidate in seconds; a candidate that fails counts as the untouched."""
        measurement = self.measurement("policy")
        assert measurement is not None
        return _relied_on(measurement) or self.baseline_s

    def reference_s(self, reference: Reference) -> float | None:
        """The time of a reference in seconds; None if there is none here or it could not be timed."""
        if reference == "untouched":
            return self.baseline_s
        measurement = self.measurement(reference)
        return None if measurement is None else _relied_on(measurement)

    def ratio(self, reference: Reference) -> float | None:
        """How many times faster than a reference the policy's candidate is; None without a reference."""
        reference_s = self.reference_s(reference)
        return None if reference_s is None else reference_s / self.time_s

    @property
    def gap_closed(self) -> float:
        """The score of the policy's candidate: 0 at the baseline, 1 at the speed of light."""
        return gap_closed(self.time_s, self.baseline_s, self.sol_s)


class EvaluationHeader(BaseModel):
    """What was evaluated, where and how. All but ``created`` must be equal for an evaluation to go on.

    Attributes:
        format: always ``solgym-evaluation``.
        version: of the format.
        policy: the policy's digest.
        algo: how the policy was trained.
        trained_on: the environment that it was trained on.
        env_id: the environment that it is evaluated on.
        options: arguments of that environment.
        seed: of the inputs.
        package: version of SOLGym.
        toolchain: what made the machine code.
        device: the machine.
        profile: whose peaks the speed of light comes from.
        created: when the evaluation began.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["solgym-evaluation"] = "solgym-evaluation"
    version: Literal[1] = 1
    policy: str
    algo: str
    trained_on: str
    env_id: str
    options: dict[str, Option]
    seed: int
    package: str
    toolchain: str
    device: str
    profile: str
    created: str = ""


class Summary(BaseModel):
    """How a policy compares with one reference, where that exists.

    Attributes:
        tasks: on how many tasks.
        programs: on how many programs.
        geomean_tasks: geometric mean of the tasks' ratios: how many times faster than the reference.
        geomean_programs: geometric mean over programs, each the geometric mean of its tasks.
        best_task: the task with the largest ratio, and that ratio.
        best_program: the program with the largest geometric mean, and that mean.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: int
    programs: int
    geomean_tasks: float
    geomean_programs: float
    best_task: tuple[str, float]
    best_program: tuple[str, float]


class Evaluation(BaseModel):
    """A finished evaluation: what was evaluated, and a row per task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    header: EvaluationHeader
    rows: tuple[EvaluationRow, ...]

    def summary(self, reference: Reference) -> Summary | None:
        """The comparison with one reference; None if no task has it."""
        ratios = {row.task: ratio for row in self.rows if (ratio := row.ratio(reference)) is not None}
        if not ratios:
            return None
        of_program: dict[str, list[float]] = {}
        for row in self.rows:
            if row.task in ratios:
                of_program.setdefault(row.program, []).append(ratios[row.task])
        programs = {program: _geomean(values) for program, values in of_program.items()}
        best_task, best_program = max(ratios, key=ratios.__getitem__), max(programs, key=programs.__getitem__)
        return Summary(
            tasks=len(ratios),
            programs=len(programs),
            geomean_tasks=_geomean(ratios.values()),
            geomean_programs=_geomean(programs.values()),
            best_task=(best_task, ratios[best_task]),
            best_program=(best_program, programs[best_program]),
        )

    def to_json(self) -> str:
        """The evaluation as JSON text, with the summaries that follow from its rows."""
        summaries = {name: summary for name in REFERENCES if (summary := self.summary(name)) is not None}
        return _Stored(header=self.header, summaries=summaries, rows=self.rows).model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Evaluation:
        """Read what ``to_json`` wrote.

        Raises:
            InvalidTrace: the text is no evaluation; says what is wrong.
        """
        stored = _parsed(_Stored, text, "the text")
        for row in stored.rows:
            _check_row(row, "the text")
        return cls(header=stored.header, rows=stored.rows)


class _Stored(BaseModel):
    """An evaluation as a file; the summaries follow from the rows and are there for other readers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    header: EvaluationHeader
    summaries: dict[Reference, Summary]
    rows: tuple[EvaluationRow, ...]


class EvaluationListener(Protocol):
    """Whom an evaluation reports to while it goes on."""

    def task(self, task_id: str, number: int, count: int) -> None:
        """A task begins: its id, its number from 0, and how many there are."""

    def done(self, row: EvaluationRow, number: int, count: int) -> None:
        """A task has ended, or was found finished: its row, how many have ended, and how many there are."""


class _Silent:
    def task(self, task_id: str, number: int, count: int) -> None:
        pass

    def done(self, row: EvaluationRow, number: int, count: int) -> None:
        pass


def evaluate_policy(
    policy: Policy,
    env_id: str,
    *,
    split: Split = "test",
    tasks: Sequence[str] | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    listener: EvaluationListener | None = None,
) -> Evaluation:
    """Play one episode per task with the best action every time, and compare what comes out.

    Args:
        policy: what to evaluate.
        env_id: for example ``KernelDSL-GEMM-v0``.
        split: whose tasks to play.
        tasks: ids of tasks to play instead.
        seed: of the inputs.
        options: arguments of the environment, beside and above ``policy.options_for``.
        out: a folder that keeps each task's result; the same call again goes on where one was interrupted.
        listener: told how it goes on.

    Raises:
        InvalidPolicy: the policy is not made for the environment.
        InvalidTrace: the results in ``out`` are damaged or of another evaluation, or another process writes
            there.
        SolgymError: an argument is wrong.
    """
    listener = listener or _Silent()
    if seed < 0:
        raise InvalidOption(f"the seed is {seed}; it must not be negative")
    given: dict[str, Any] = {**policy.options_for(env_id), **(options or {})}
    threads = given.pop("threads", 1)
    chosen = given if tasks is not None else {**given, "split": split}
    with ExitStack() as stack:
        env = stack.enter_context(closing(make_env(env_id, threads=threads, options=chosen)))
        policy.check(env)
        ids = list(env.tasks if tasks is None else dict.fromkeys(env.choose_task(t).id for t in tasks))
        if not ids:
            raise InvalidOption(f"{env_id} has no {split} tasks; name some with --task")
        header = _header(policy, env, env_id, seed, threads, given)
        if out is not None:
            stack.callback(os.close, lock_folder(Path(out), LOCK_NAME, InvalidTrace))
        kept = _Kept(header, out)
        for number, task in enumerate(ids):
            if task not in kept.rows:
                listener.task(task, number, len(ids))
                kept.add(_row(env, play(policy, env, task, seed=seed), seed))
            listener.done(kept.rows[task], number + 1, len(ids))
    return Evaluation(header=kept.header, rows=tuple(kept.rows[task] for task in ids))


def read_evaluation(folder: str | Path) -> tuple[EvaluationHeader, tuple[EvaluationRow, ...]]:
    """What a folder has of an evaluation so far: what is evaluated, and the rows of finished tasks.

    Raises:
        InvalidTrace: there is none, or it is damaged; says which line.
    """
    file = Path(folder) / ROWS_NAME
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise InvalidTrace(f"cannot read {file}: {error.strerror}; give another --out") from error
    if not lines:
        raise InvalidTrace(f"{file} is empty; remove it or give another --out")
    header = _parsed(EvaluationHeader, lines[0], f"{file}, line 1")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        rows.append(_parsed(EvaluationRow, line, f"{file}, line {number}"))
        _check_row(rows[-1], f"{file}, line {number}")
    return header, tuple(rows)


class _Kept:
    """The rows of finished tasks, in a file if there is a folder; the file is whole after every task."""

    def __init__(self, header: EvaluationHeader, out: str | Path | None) -> None:
        self.header = header
        self.rows: dict[str, EvaluationRow] = {}
        self._file = None if out is None else Path(out) / ROWS_NAME
        if self._file is None or not self._file.exists():
            return
        found, rows = read_evaluation(self._file.parent)
        for field in EvaluationHeader.model_fields:
            wanted, there = getattr(header, field), getattr(found, field)
            if field != "created" and wanted != there:
                raise InvalidTrace(
                    f"{self._file} was made with {field} {there!r}, but now it is {wanted!r}; "
                    "repeat the command that made it, or give another --out"
                )
        self.header = found
        self.rows = {row.task: row for row in rows}

    def add(self, row: EvaluationRow) -> None:
        self.rows[row.task] = row
        if self._file is not None:
            lines = [self.header.model_dump_json(), *(row.model_dump_json() for row in self.rows.values())]
            write_atomically(self._file, "\n".join(lines) + "\n")


def _header(
    policy: Policy, env: TuningEnv[Any], env_id: str, seed: int, threads: int, options: Mapping[str, Any]
) -> EvaluationHeader:
    plain = {
        name: value if isinstance(value, str | int | float | bool | None) else type(value).__name__
        for name, value in options.items()
    }
    return EvaluationHeader(
        policy=policy.digest,
        algo=policy.info.algo,
        trained_on=policy.info.env_id,
        env_id=env_id,
        options={**plain, "threads": threads},
        seed=seed,
        package=solgym.__version__,
        toolchain=env.toolchain,
        device=device_fingerprint(),
        profile=profile_fingerprint(env.profile),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _row(env: TuningEnv[Any], episode: Episode, seed: int) -> EvaluationRow:
    contenders: dict[str, Candidate | None] = {
        "policy": episode.candidate,
        "untouched": env.untouched,
        "expert": env.expert,
        "fixed": getattr(env, "best_fixed", None),
    }
    known = {name: candidate for name, candidate in contenders.items() if candidate is not None}
    measurements = _in_turns(env, known, seed)
    return EvaluationRow(
        task=episode.task,
        program=episode.task.split("/")[0],
        actions=episode.actions,
        candidate=episode.candidate.to_json(),
        steps=episode.steps,
        failures=episode.failures,
        reward=episode.reward,
        decision_s=episode.decision_s,
        baseline_s=_relied_on(measurements["untouched"]) or episode.baseline_s,
        sol_s=episode.sol_s,
        measurements={name: measured.to_json() for name, measured in measurements.items()},  # type: ignore[misc]
    )


def _in_turns(env: TuningEnv[Any], contenders: Mapping[str, Candidate], seed: int) -> dict[str, Measurement]:
    """Each contender's measurement; equal machine code is timed once."""
    compiled = {name: env.target.compile(candidate, env.task) for name, candidate in contenders.items()}
    artifacts = {made.digest: made for made in compiled.values() if isinstance(made, Artifact)}
    timed: dict[str, Measurement] = {}
    for _ in range(UNSTABLE_TRIES):
        results = interleaved(
            env.target, list(artifacts.values()), env.task, env.policy, seed, env.bound.time_s
        )
        timed = dict(zip(artifacts, results, strict=True))
        if not any(result.status is Status.UNSTABLE for result in results):
            break
    return {
        name: timed[made.digest] if isinstance(made, Artifact) else made.measurement()
        for name, made in compiled.items()
    }


def _relied_on(measurement: Measurement) -> float | None:
    """The time to compare with: the median, also where it was unstable in every try; None of a failure."""
    return measurement.time_s if measurement.status in (Status.OK, Status.UNSTABLE) else None


def _geomean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(math.fsum(logarithms) / len(logarithms))


def _parsed(kind: type[Model], text: str | bytes, where: str) -> Model:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part)[:60] for part in first["loc"])
        raise InvalidTrace(
            f"{where} is no evaluation ({place + ': ' if place else ''}{first['msg']}); restore it or give "
            "another --out"
        ) from error


def _check_row(row: EvaluationRow, where: str) -> None:
    try:
        for data in row.measurements.values():
            Measurement.from_json(data)
        if row.measurement("policy") is None:
            raise InvalidTrace("the policy's is missing")
        # Read back much later, so damage must show here.
        ratios = [ratio for reference in REFERENCES if (ratio := row.ratio(reference)) is not None]
        if not all(1 / LARGEST_RATIO < ratio < LARGEST_RATIO for ratio in ratios):
            raise InvalidTrace(f"times cannot differ by more than a factor of {LARGEST_RATIO:g}")
    except InvalidTrace as error:
        raise InvalidTrace(
            f"{where} has no measurement of {row.task} that can be: {error}; give another --out"
        ) from error
