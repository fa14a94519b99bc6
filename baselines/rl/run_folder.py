"""The folder of a training run: what was asked for, how it goes, and what it has learned.

Lines of progress are appended; everything else is replaced whole. A checkpoint says how long the files of
lines were when it was written, so an interrupted run goes on exactly there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from solgym.baselines.folder_lock import lock_folder
from solgym.baselines.rl.settings import Settings, read_settings, write_settings
from solgym.errors import InvalidOption, InvalidRun
from solgym.hardware.atomic_files import write_atomically
from solgym.hardware.profile import HardwareProfile

__all__ = [
    "BASELINES_NAME",
    "BEST_POLICY_NAME",
    "CHECKPOINT_NAME",
    "EPISODES_NAME",
    "PICTURE_NAME",
    "POLICY_NAME",
    "PROGRESS_NAME",
    "TENSORBOARD_NAME",
    "RunFolder",
    "RunInfo",
    "read_lines",
    "read_progress",
]

SETTINGS_NAME: Final = "train.toml"
INFO_NAME: Final = "run.json"
PROGRESS_NAME: Final = "progress.jsonl"
EPISODES_NAME: Final = "episodes.jsonl"
CHECKPOINT_NAME: Final = "checkpoint.safetensors"
POLICY_NAME: Final = "policy.safetensors"
BEST_POLICY_NAME: Final = "best.safetensors"
PICTURE_NAME: Final = "learning.png"
BASELINES_NAME: Final = "baselines.jsonl"
TENSORBOARD_NAME: Final = "tensorboard"
_LOCK_NAME: Final = "train.lock"
_LINES: Final = (PROGRESS_NAME, EPISODES_NAME)

_REMEDY: Final = {
    "versions": "a run is continued by the versions that began it",
    "toolchain": "a run is continued by the compiler that began it",
    "device": "a run is continued on the machine that began it",
}


class RunInfo(BaseModel):
    """How a run came about; written once, at its beginning.

    Attributes:
        command: the command that began it.
        versions: of Python and of the packages that learn.
        toolchain: what compiles candidates.
        device: fingerprint of the machine.
        machine: what it is, in words.
        profiles: the peaks in use, in the order of the environments; kept here, so that a calibration in
            between does not change the scores.
        tasks: what was learned on.
        evaluation_tasks: tasks of the test split that it was evaluated on.
        selection_tasks: tasks trained on that it was evaluated on.
        created: date and time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["solgym-training"] = "solgym-training"
    version: Literal[1] = 1
    command: str
    versions: dict[str, str]
    toolchain: str
    device: str
    machine: str
    profiles: Annotated[tuple[HardwareProfile, ...], Field(min_length=1)]
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    evaluation_tasks: tuple[str, ...]
    selection_tasks: tuple[str, ...]
    created: str


class RunFolder:
    """The folder of a run, locked against a second run; use it with ``with``, or call ``close()``.

    Args:
        directory: made if missing.
        settings: what is about to be run, resolved. A run that is there must have the same, but for the
            number of steps, which may grow.

    Raises:
        InvalidRun: the folder cannot be written, another process is using it, or it holds another run.
    """

    def __init__(self, directory: str | Path, settings: Settings) -> None:
        self.path = Path(directory)
        self.settings = settings
        self._lock: int | None = lock_folder(self.path, _LOCK_NAME, InvalidRun)
        try:
            self.is_new = not (self.path / SETTINGS_NAME).exists()
            if not self.is_new:
                self._check(self._stored_settings())
        except BaseException:
            self.close()
            raise

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoint is, if there is one."""
        return self.path / CHECKPOINT_NAME

    @property
    def info(self) -> RunInfo | None:
        """How the run came about; None before ``begin``."""
        path = self.path / INFO_NAME
        if not path.exists():
            return None
        try:
            return RunInfo.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise InvalidRun(f"{path} is damaged; restore the file, or give another --out") from error

    def begin(self, info: RunInfo) -> RunInfo:
        """Write down what is run, or find out that it is what was run here before.

        Returns:
            What counts: of a run that is continued, what was written at its beginning.

        Raises:
            InvalidRun: the run there was made by another version, compiler or machine.
        """
        stored = self.info if not self.is_new else None
        if stored is not None:
            for field in ("versions", "toolchain", "device"):
                wanted, there = getattr(info, field), getattr(stored, field)
                if wanted != there:
                    raise InvalidRun(
                        f"{self.path} was trained with {field} {there}, but this run has {wanted} "
                        f"({_REMEDY[field]}); give another --out"
                    )
        else:
            self._require_no_other()
            write_atomically(self.path / INFO_NAME, info.model_dump_json(indent=2) + "\n")
        write_settings(self.path / SETTINGS_NAME, self.settings)
        return stored or info

    def append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Add lines to a file of lines."""
        text = "".join(
            json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n" for record in records
        )
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(text)

    def sizes(self) -> dict[str, int]:
        """How many bytes of lines there are."""
        return {name: path.stat().st_size for name in _LINES if (path := self.path / name).exists()}

    def cut(self, sizes: Mapping[str, int]) -> None:
        """Drop the lines that came after a checkpoint.

        Raises:
            InvalidRun: there are fewer lines than the checkpoint says.
        """
        for name in _LINES:
            path, size = self.path / name, sizes.get(name, 0)
            there = path.stat().st_size if path.exists() else 0
            if there < size:
                raise InvalidRun(
                    f"{path} has {there} bytes, fewer than when the checkpoint was written ({size}); "
                    "restore the file, or give another --out"
                )
            if there > size:
                os.truncate(path, size)

    def close(self) -> None:
        """Release the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _stored_settings(self) -> Settings:
        try:
            return read_settings(self.path / SETTINGS_NAME)
        except InvalidOption as error:
            raise InvalidRun(f"{self.path} holds a run that cannot be continued: {error}") from error

    def _check(self, stored: Settings) -> None:
        for section, wanted in self.settings.model_dump(mode="json", exclude={"training": {"steps"}}).items():
            there = stored.model_dump(mode="json")[section]
            if wanted is None or there is None:
                if wanted != there:
                    raise self._other(section, "no section" if there is None else "a section", "another")
                continue
            for name, value in wanted.items():
                if there[name] != value:
                    raise self._other(f"{section}.{name}", there[name], value)
        if self.settings.training.steps < stored.training.steps:
            raise InvalidRun(
                f"{self.path} holds a run of {stored.training.steps} steps, more than "
                f"{self.settings.training.steps}; ask for at least as many, or give another --out"
            )

    def _other(self, field: str, there: object, wanted: object) -> InvalidRun:
        return InvalidRun(
            f"{self.path} was trained with {field} {there!r}, but this run has {wanted!r}; "
            "repeat the command that made it, or give another --out"
        )

    def _require_no_other(self) -> None:
        """What a run leaves comes after its beginning was written, so what is there belongs to somebody."""
        missing = SETTINGS_NAME if self.is_new else INFO_NAME
        for name in (CHECKPOINT_NAME, POLICY_NAME, BEST_POLICY_NAME, *_LINES):
            if (self.path / name).exists():
                raise InvalidRun(
                    f"{self.path} holds {name} but no {missing}, so its run cannot be continued and would be "
                    f"overwritten; restore {missing}, or give another --out"
                )


def read_progress(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's ``progress.jsonl``.

    Raises:
        InvalidRun: one is damaged, or of another file.
    """
    path = folder / PROGRESS_NAME
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        try:
            _ProgressLine.model_validate(line)
        except ValidationError as error:
            place = ".".join(str(part)[:60] for part in error.errors(include_url=False)[0]["loc"])
            raise InvalidRun(
                f"{path}, line {number} is no line of progress ({place}); restore the file"
            ) from error
    return lines


class _Samples(BaseModel):
    samples_kept: int
    samples_discarded: int


class _ProgressLine(BaseModel):
    """What is read of a line of progress, not all that is in it."""

    steps: int
    statistics: _Samples
    mean_return: float | None = None
    mean_gap_closed: float | None = None
    train_gap_closed: float | None = None
    test_gap_closed: float | None = None
    test_speedup: float | None = None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of lines, such as ``progress.jsonl``; an incomplete last line is left out.

    Raises:
        InvalidRun: a line is no JSON.
    """
    if not path.exists():
        return []
    complete = path.read_bytes().rpartition(b"\n")[0]
    records = []
    for number, line in enumerate(complete.splitlines(), 1):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise InvalidRun(f"{path}, line {number} is no JSON; restore the file") from error
    return records
