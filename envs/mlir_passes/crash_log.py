"""The record of what went wrong with passes: a JSON Lines file in the user's data folder that only grows.

Passes of MLIR crash, hang, fail and miscompile. Whatever an environment meets is kept here with all that it
takes to meet it again, so that it can be listed, minimised and reported (``solgym crashes``).
Keeping it must never disturb an episode: what cannot be written is dropped with one warning.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import os
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from solgym.errors import InvalidOption
from solgym.hardware.measurement import Status

if TYPE_CHECKING:
    from solgym.envs.mlir_passes.client import ModuleSource, PassFailure

__all__ = [
    "FINISH",
    "RUN",
    "CrashRecord",
    "crash_log_path",
    "not_recording",
    "read_crashes",
    "record_failure",
]

FINISH: Final = "finish"
"""The action of failures of the finishing pipeline and of code generation."""

RUN: Final = "run"
"""The action of failures of the finished code: it crashed, did not end, or computed something wrong."""

MAX_BYTES: Final = 64 << 20
"""A log that has grown to this is put aside, in place of the one that was put aside before."""

REMEMBERED_MAX: Final = 100_000
"""Failures that a process recognises when it meets them again."""


class OwnModule(BaseModel):
    """A program that no id leads to: a user's.

    Attributes:
        text: the untouched module.
        function: the function to run.
        arguments: for each argument its name, shape, element type and role.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    function: str
    arguments: tuple[tuple[str, tuple[int, ...], Literal["f32", "f64"], Literal["in", "out", "inout"]], ...]


class CrashRecord(BaseModel):
    """One failure.

    Attributes:
        format: what the line is.
        version: of the format.
        time: when it was met, UTC, ISO 8601.
        program: task id.
        module: the program itself, where its id does not lead to it.
        actions: the actions before the failing one, all of which succeeded.
        action: the failing one; ``FINISH`` or ``RUN`` if there is none.
        status: a value of ``Status``.
        outcome: the name of a signal, or what was said.
        versions: of the packages that were at work.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["solgym-crash"] = "solgym-crash"
    version: Literal[1] = 1
    time: str
    program: str
    module: OwnModule | None = None
    actions: tuple[str, ...]
    action: Annotated[str, Field(min_length=1)]
    status: Status
    outcome: str
    versions: dict[str, str]

    @property
    def digest(self) -> str:
        """What tells failures apart: the program, the actions and how it ended."""
        return _digest(self.program, self.actions, self.action, self.status)


def crash_log_path() -> Path:
    """Where failures are kept: the user's data folder, or ``SOLGYM_CACHE_DIR`` if that is set."""
    override = os.environ.get("SOLGYM_CACHE_DIR")
    folder = Path(override) if override else Path(platformdirs.user_data_dir("solgym"))
    return folder / "crashes.jsonl"


_recording = True
_met: set[tuple[Path, str]] = set()


@contextlib.contextmanager
def not_recording() -> Iterator[None]:
    """Keep nothing of what fails in between, for those who make things fail on purpose."""
    global _recording
    before, _recording = _recording, False
    try:
        yield
    finally:
        _recording = before


def record_failure(source: ModuleSource, actions: tuple[str, ...], action: str, failure: PassFailure) -> None:
    """Keep a failure, unless this process has kept it already. Never raises.

    Args:
        source: the task.
        actions: what was applied before.
        action: what failed, or ``FINISH`` or ``RUN``.
        failure: how it ended.
    """
    path = crash_log_path()
    key = (path, _digest(source.id, actions, action, failure.status))
    if not _recording or key in _met:
        return
    if len(_met) < REMEMBERED_MAX:
        _met.add(key)
    try:
        _append(path, _record_of(source, actions, action, failure))
    except (OSError, ValueError) as error:
        _warn_once(f"cannot keep a failure in {path} ({error}); what fails will not be listed")


def read_crashes(path: Path | None = None) -> tuple[CrashRecord, ...]:
    """Every failure that is kept, oldest first; none if there is no log.

    Lines that cannot be read, such as one that was cut short when its process was killed, are left out.

    Raises:
        InvalidOption: the log is there but cannot be read.
    """
    path = path or crash_log_path()
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise InvalidOption(f"cannot read the crash log {path}: {error.strerror}") from error
    records = []
    for line in lines:
        with contextlib.suppress(ValidationError):
            records.append(CrashRecord.model_validate_json(line))
    return tuple(records)


def _record_of(
    source: ModuleSource, actions: tuple[str, ...], action: str, failure: PassFailure
) -> CrashRecord:
    from solgym.envs.mlir_passes.user_program import UserTask

    module = None
    if isinstance(source, UserTask):
        module = OwnModule(text=source.module_text, function=source.function, arguments=source.arguments)
    return CrashRecord(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        program=source.id,
        module=module,
        actions=actions,
        action=action,
        status=failure.status,
        outcome=failure.error,
        versions=_versions(),
    )


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for package in ("solgym", "torch-mlir", "llvmlite"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _digest(program: str, actions: tuple[str, ...], action: str, status: str) -> str:
    return hashlib.sha256("\0".join((program, *actions, action, str(status))).encode()).hexdigest()


def _append(path: Path, record: CrashRecord) -> None:
    """Write one line, whole or not at all, also while other processes write theirs."""
    line = record.model_dump_json(exclude_none=True).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() and path.stat().st_size > MAX_BYTES:
            path.replace(path.with_name("crashes-before.jsonl"))
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                line = b"\n" + line  # the last line was cut short; this one must not go down with it
            if os.write(file, line) != len(line):
                os.ftruncate(file, size)
                raise OSError("the disk is full")
        finally:
            os.close(file)


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
