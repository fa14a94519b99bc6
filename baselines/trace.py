"""The record of a run: a JSON Lines file that grows as the run goes and survives being killed.

The first line is a header that says what was run, on what, with which seed and budget; each further line
is one measurement. Every line is on disk before the next candidate is tried, so after a crash at most the
line being written is incomplete: it is recognised by its missing newline and dropped. Any other damage is
an error that names the line.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from solgym.baselines.budget import Budget
from solgym.baselines.folder_lock import lock_folder
from solgym.envs.registration import env_class
from solgym.errors import InvalidOption, InvalidTrace, SolgymError
from solgym.hardware.atomic_files import write_atomically
from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

__all__ = [
    "COMPRESSED_TRACE_NAME",
    "TRACE_NAME",
    "Option",
    "Role",
    "Trace",
    "TraceHeader",
    "TraceRecord",
    "check_folder",
    "read_trace",
]

TRACE_NAME = "trace.jsonl"
COMPRESSED_TRACE_NAME = "trace.jsonl.gz"
"""What an archived trace is called: it is read like any other, and never continued."""
_LOCK_NAME = "trace.lock"

Model = TypeVar("Model", bound=BaseModel)
Role = Literal["baseline", "trial", "final", "expert"]
Option = str | int | float | bool | None
"""A value that an environment's argument can have in a trace."""
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TraceHeader(BaseModel):
    """What was run. Two headers describe the same run when all but the limits of the budget, ``sol_s``
    and ``created`` are equal.

    ``toolchain``, ``device`` and ``profile`` are fingerprints: times are comparable, and a run can be
    continued, only under equal ones. ``options`` are arguments of the environment beyond those named here;
    ``initial`` are the digests of candidates that the tuner was given to begin with.
    ``sol_s`` is the task's speed of light under that profile: whoever has only the trace can score it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["solgym-trace"] = "solgym-trace"
    version: Literal[1] = 1
    env_id: str
    task: str
    tuner: str
    mode: Annotated[str, Field(min_length=1)]
    seed: Annotated[int, Field(ge=0)]
    target: str
    threads: Annotated[int, Field(ge=1)]
    options: dict[str, Option] = {}
    initial: tuple[str, ...] = ()
    package: str
    toolchain: str
    device: str
    profile: str
    sol_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    budget_measurements: int | None = None
    budget_seconds: float | None = None
    budget_guided: bool = False
    created: str = ""

    @model_validator(mode="after")
    def _has_a_budget(self) -> TraceHeader:
        _ = self.budget
        return self

    @property
    def budget(self) -> Budget:
        """The budget that the run was given last."""
        return Budget(self.budget_measurements, self.budget_seconds, self.budget_guided)

    def difference(self, other: TraceHeader) -> tuple[str, Any, Any] | None:
        """The first field that makes the two different runs, with both values; None if there is none."""
        for field in type(self).model_fields:
            if field not in _FREE_FIELDS and getattr(self, field) != getattr(other, field):
                return field, getattr(self, field), getattr(other, field)
        return None


_FREE_FIELDS = frozenset({"budget_measurements", "budget_seconds", "sol_s", "created"})

_REMEDY = {
    "package": "a run is continued by the version that began it",
    "toolchain": "a run is continued by the compiler that began it",
    "device": "a run is continued on the machine that began it",
    "initial": "the tuner was given other candidates to begin with",
    "budget_guided": "a run with --guided and one without are two methods",
    "profile": "the machine was calibrated anew since, which changes every score",
}


class TraceRecord(BaseModel):
    """One measurement.

    Attributes:
        index: position in the trace, from 0.
        role: ``baseline`` (the untouched candidate), ``trial`` (a proposal; counts towards the budget),
            ``final`` (a finalist, timed again interleaved with the others) or ``expert``.
        trial: for trials the number of the trial from 0, for finals that of the trial timed again.
        candidate: as JSON; what it says is its environment's.
        measurement: its ``Measurement`` as JSON.
        elapsed_s: seconds of the budget spent by the end of this measurement.
        best_s: the lowest median among the trials up to here that are ``ok``; None before the first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: Annotated[int, Field(ge=0)]
    role: Role
    trial: Annotated[int, Field(ge=0)] | None = None
    candidate: dict[str, Any]
    measurement: dict[str, Any]
    elapsed_s: Seconds
    best_s: Seconds | None = None

    @property
    def result(self) -> Measurement:
        """The measurement as an object."""
        return Measurement.from_json(self.measurement)


def _as_line(model: BaseModel) -> bytes:
    text = json.dumps(model.model_dump(mode="json"), separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def _trace_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    plain, compressed = path / TRACE_NAME, path / COMPRESSED_TRACE_NAME
    return compressed if compressed.exists() and not plain.exists() else plain


def _read_bytes(file: Path) -> bytes:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InvalidTrace(
            f"cannot read the trace {file}: {error.strerror}; give a trace.jsonl or the folder of a run"
        ) from error
    if file.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidTrace(
            f"cannot decompress the trace {file}: {error}; restore the file, or leave it out"
        ) from error


def read_trace(path: str | Path) -> tuple[TraceHeader, tuple[TraceRecord, ...], int]:
    """Read a trace without locking it; one that ends in ``.gz`` is decompressed.

    Args:
        path: the trace file, or the folder of the run.

    Returns:
        The header, the records, and how many bytes of an incomplete last line follow them (0 if none).

    Raises:
        InvalidTrace: there is no such file, or it is damaged; the message names the line.
    """
    file = _trace_file(Path(path))
    data = _read_bytes(file)
    complete, _, torn = data.rpartition(b"\n")
    lines = complete.split(b"\n") if complete else []
    if not lines:
        raise InvalidTrace(f"{file} holds no complete header line; remove it or give another --out")
    header = _parse(file, 1, lines[0], TraceHeader)
    read_candidate = _reader(file, header)
    records = tuple(_parse(file, number, line, TraceRecord) for number, line in enumerate(lines[1:], 2))
    for position, record in enumerate(records):
        if record.index != position:
            raise InvalidTrace(
                f"{file}, line {position + 2}: measurement {record.index} stands where {position} was "
                f"expected, so lines are missing or repeated; {_repair(position + 2)}"
            )
        try:
            # Candidates are read back much later, so damage to them must show here.
            read_candidate(record.candidate)
        except (SolgymError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidTrace(
                f"{file}, line {position + 2} holds no candidate of {header.env_id} ({_reason(error)}); "
                f"{_repair(position + 2)}"
            ) from error
        if record.candidate.get("task") != header.task:
            raise InvalidTrace(
                f"{file}, line {position + 2}: a candidate of {record.candidate.get('task')} stands in a "
                f"trace of {header.task}; {_repair(position + 2)}"
            )
    return header, records, len(torn)


def _reader(file: Path, header: TraceHeader) -> Callable[[object], Candidate]:
    """What reads the candidates of a trace."""
    try:
        family = env_class(header.env_id)
        family.check_mode(header.mode)
    except InvalidOption as error:
        raise InvalidTrace(f"{file}, line 1: {error}; {_repair(1)}") from error
    return family.read_candidate


def _repair(line: int) -> str:
    if line == 1:
        return "start anew with another --out"
    return f"delete everything from line {line} on to keep what precedes it, or give another --out"


def _parse(file: Path, number: int, line: bytes, kind: type[Model]) -> Model:
    try:
        parsed = kind.model_validate_json(line)
        if isinstance(parsed, TraceRecord):
            parsed.result  # noqa: B018  times are read back much later, so damage to them must show here
    except (ValidationError, ValueError, TypeError, KeyError, AttributeError) as error:
        what = "a header" if kind is TraceHeader else "a measurement"
        raise InvalidTrace(
            f"{file}, line {number} is not {what} ({_reason(error)}); {_repair(number)}"
        ) from error
    return parsed


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        text = str(first["msg"]).removeprefix("Value error, ")
        return f"{where}: {text}" if where else text
    if isinstance(error, SolgymError):
        return str(error)
    return f"{type(error).__name__}: {error}"


class Trace:
    """A trace open for writing, locked against a second run on the same folder.

    Open one with ``Trace.open``; use it with ``with`` or call ``close()``.
    """

    def __init__(self, path: Path, header: TraceHeader, records: Iterable[TraceRecord], lock: int) -> None:
        self.path = path
        self.header = header
        self._records = list(records)
        self._lock: int | None = lock
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    @classmethod
    def open(
        cls, directory: str | Path, header: TraceHeader, notice: Callable[[str], None] = lambda _: None
    ) -> Trace:
        """Start a trace in ``directory``, or continue the one that is there.

        Args:
            directory: the folder of the run; made if missing.
            header: what is about to be run. An existing trace must describe the same run; its budget may
                differ and is replaced.
            notice: called with a sentence about each thing the user should know.

        Raises:
            InvalidTrace: the folder cannot be written, another process is using it, or the trace there is
                damaged or belongs to another run.
        """
        folder = Path(directory)
        lock = lock_folder(folder, _LOCK_NAME, InvalidTrace)
        try:
            path = folder / TRACE_NAME
            if not path.exists():
                _write(path, _as_line(header))
                return cls(path, header, (), lock)
            found, records, torn_bytes = read_trace(path)
            difference = header.difference(found)
            if difference is not None:
                field, wanted, there = difference
                because = _REMEDY.get(field, "the two are different runs")
                raise InvalidTrace(
                    f"{path} was recorded with {field} {there!r}, but this run has {wanted!r} ({because}); "
                    f"repeat the command that made it, or give another --out"
                )
            if torn_bytes:
                os.truncate(path, path.stat().st_size - torn_bytes)
                notice(
                    f"dropped an incomplete last line of {path} ({torn_bytes} bytes): the run was killed then"
                )
            if header.budget != found.budget:
                header = header.model_copy(update={"created": found.created})
                _write(path, b"".join(map(_as_line, (header, *records))))
            else:
                header = found
            return cls(path, header, records, lock)
        except BaseException:
            os.close(lock)
            raise

    @property
    def records(self) -> tuple[TraceRecord, ...]:
        """Everything recorded so far."""
        return tuple(self._records)

    def append(self, record: TraceRecord) -> None:
        """Write one record; it is on disk when this returns.

        Raises:
            InvalidTrace: the file cannot take it (a full disk, say); it is left as it was.
        """
        size = os.fstat(self._file).st_size
        try:
            line = memoryview(_as_line(record))
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, size)
            raise InvalidTrace(
                f"cannot write to {self.path}: {error.strerror}; make room and repeat the command to go on"
            ) from error
        self._records.append(record)

    def close(self) -> None:
        """Close the file and release the folder."""
        if self._lock is not None:
            os.close(self._file)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def check_folder(directory: str | Path) -> None:
    """Find out, without changing anything, whether a run can write to a folder and read what is there.

    ``Trace.open`` finds out for certain; this is for those who do something that takes long before it.

    Raises:
        InvalidTrace: the folder can be neither written nor made, or the trace there is damaged.
    """
    folder = Path(directory)
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise InvalidTrace(f"cannot write to {folder}: {error.strerror}; give another --out") from error
    if not nearest.is_dir():
        raise InvalidTrace(f"cannot write to {folder}: {nearest} is a file; give another --out")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidTrace(f"cannot write to {folder}: {nearest} is read-only; give another --out")
    if (folder / TRACE_NAME).exists():
        read_trace(folder)


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise InvalidTrace(f"cannot write {path}: {error.strerror}; give another --out") from error
