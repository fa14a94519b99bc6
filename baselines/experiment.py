"""An experiment: a grid of methods, tasks and seeds from a TOML file, in which every method is treated alike.

Each cell of the grid is an ordinary run in a folder of its own, so an experiment that was interrupted goes on
where it stopped. Cells are interleaved over the methods: a machine that drifts favours none of them. What the
runs show is for ``solgym.baselines.comparison``.
"""

from __future__ import annotations

import gzip
import json
import platform
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

import solgym
from solgym.baselines.budget import Budget
from solgym.baselines.comparison import Comparison, compare
from solgym.baselines.comparison_page import write_comparison
from solgym.baselines.runner import make_env, tune
from solgym.baselines.search import Listener, SilentListener
from solgym.baselines.toml_files import read_toml
from solgym.baselines.trace import (
    COMPRESSED_TRACE_NAME,
    TRACE_NAME,
    TraceHeader,
    check_folder,
    read_trace,
)
from solgym.baselines.tuner import check_tuner, make_tuner
from solgym.errors import InvalidOption, InvalidTrace
from solgym.hardware.atomic_files import write_atomically
from solgym.hardware.fingerprint import device_fingerprint, host_device

__all__ = [
    "Cell",
    "Experiment",
    "ExperimentListener",
    "Method",
    "Plan",
    "SilentExperimentListener",
    "TaskChoice",
    "plan",
    "read_experiment",
    "run_experiment",
]

RECORD_NAME = "experiment.json"
RUNS_NAME = "runs"
LOCK_NAME = "trace.lock"
MAX_SEEDS = 10_000
_FOLDER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

FolderName = Annotated[str, Field(pattern=_FOLDER_NAME)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Limits(_Part):
    """The budget of every run; see ``Budget``."""

    measurements: int | None = None
    seconds: float | None = None
    guided: bool = False

    @model_validator(mode="after")
    def _has_a_budget(self) -> Limits:
        _ = self.budget
        return self

    @property
    def budget(self) -> Budget:
        """The same as an object."""
        return Budget(self.measurements, self.seconds, self.guided)


class Method(_Part):
    """A search method: a tuner, in the usual mode of each environment unless ``mode`` says otherwise.

    ``label`` names its folder and its line of the progress; ``solgym compare`` goes by tuner and mode.
    """

    tuner: str
    mode: str | None = None
    label: FolderName | None = None

    @field_validator("tuner")
    @classmethod
    def _is_a_tuner(cls, tuner: str) -> str:
        check_tuner(tuner, seed=0)
        return tuner

    @property
    def name(self) -> str:
        """The label, or the tuner and its mode."""
        return self.label or "-".join(filter(None, (self.tuner, self.mode)))


class TaskChoice(_Part):
    """An environment and one of its tasks; None is the environment's default."""

    env: str
    task: str | None = None


class Experiment(_Part):
    """What a file asks for; ``seeds`` is a list, or how many, from 0."""

    name: FolderName
    seeds: list[Annotated[int, Field(ge=0)]]
    budget: Limits
    methods: Annotated[list[Method], Field(min_length=1)]
    tasks: Annotated[list[TaskChoice], Field(min_length=1)]

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, seeds: object) -> object:
        if not isinstance(seeds, list) and (type(seeds) is not int or not 1 <= seeds <= MAX_SEEDS):
            raise ValueError(
                f"{seeds!r} is neither a list of seeds nor how many there are, from 1 to {MAX_SEEDS:,}"
            )
        return list(range(seeds)) if isinstance(seeds, int) else seeds

    @model_validator(mode="after")
    def _is_a_grid(self) -> Experiment:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds must hold at least one seed, and none twice")
        _refuse_twice("method", [method.name for method in self.methods])
        return self

    @property
    def limits(self) -> Budget:
        """The budget of every run."""
        return self.budget.budget


def _refuse_twice(kind: str, names: Sequence[str]) -> None:
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise InvalidOption(f"the {kind} {twice[0]} is there twice; leave one out, or change one")


def read_experiment(path: str | Path) -> Experiment:
    """Read an experiment from a TOML file.

    Raises:
        InvalidOption: it cannot be read or asks for something that cannot be; the message names the place.
    """
    data = read_toml(path, "experiment", "docs/comparing.md")
    try:
        return Experiment.model_validate(data)
    except ValidationError as error:
        raise InvalidOption(f"{path}: {_first_mistake(error)}; see docs/comparing.md") from error


def _first_mistake(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = ""
    for part in first["loc"]:
        where += f" {part + 1}" if isinstance(part, int) else f"{', ' if where else ''}{part}"
    text = {"missing": "is missing", "extra_forbidden": "is no key here"}.get(first["type"])
    if text is not None:
        return f"{where} {text}"
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "string_pattern_mismatch":
        message = f"{first['input']!r} names a folder; use letters, digits, '.', '_', '-', no mark first"
    return f"{where}: {message}" if where else message


@dataclass(frozen=True)
class Cell:
    """One run of the grid, with everything that the file left open filled in.

    Attributes:
        env: the environment's id.
        task: the task's id.
        method: the name of the method.
        tuner: its tuner.
        mode: the mode of the environment.
        seed: of the run.
        toolchain: what compiles its candidates.
    """

    env: str
    task: str
    method: str
    tuner: str
    mode: str
    seed: int
    toolchain: str

    @property
    def folder(self) -> Path:
        """Where its run goes, from the experiment's folder on."""
        return Path(RUNS_NAME, self.env, self.task.replace("/", "-"), self.method, f"seed{self.seed}")

    def __str__(self) -> str:
        return f"{self.task}  {self.method}  seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """An experiment and its cells in the order in which they run."""

    experiment: Experiment
    cells: tuple[Cell, ...]


def plan(experiment: Experiment) -> Plan:
    """Find out which runs an experiment consists of; nothing is measured or calibrated.

    For each seed and each task all methods run one after the other, beginning with another one each time,
    so that over the seeds of a task, and over the tasks of a seed, every method takes every place in turn.

    Raises:
        SolgymError: a task or a mode does not exist, or a method has no meaning for a task.
    """
    rows = [_runs_on(choice, experiment.methods) for choice in experiment.tasks]
    _refuse_twice("task", [f"{row[0].task} of {row[0].env}" for row in rows])
    count = len(experiment.methods)
    return Plan(
        experiment,
        tuple(
            _with_seed(row[(turn + place + step) % count], seed)
            for turn, seed in enumerate(experiment.seeds)
            for place, row in enumerate(rows)
            for step in range(count)
        ),
    )


def _with_seed(cell: Cell, seed: int) -> Cell:
    return Cell(cell.env, cell.task, cell.method, cell.tuner, cell.mode, seed, cell.toolchain)


def _runs_on(choice: TaskChoice, methods: Sequence[Method]) -> list[Cell]:
    """One cell for each method, all of seed 0."""
    with closing(make_env(choice.env, task=choice.task)) as env:
        if len(env.tasks) > 1:
            raise InvalidOption(
                f"{choice.env} offers {len(env.tasks)} tasks; say which with task, one [[tasks]] for each"
            )
        env.choose_task()
        cells = []
        for method in methods:
            try:
                mode = env.check_mode(method.mode)
                make_tuner(method.tuner, env.proposals(mode), 0)
            except InvalidOption as error:
                raise InvalidOption(
                    f"the method {method.name} cannot run on {env.task.id} of {choice.env}: {error}"
                ) from error
            cells.append(Cell(choice.env, env.task.id, method.name, method.tuner, mode, 0, env.toolchain))
    same = [(cell.tuner, cell.mode) for cell in cells]
    for index, cell in enumerate(cells):
        first = same.index((cell.tuner, cell.mode))
        if first < index:
            raise InvalidOption(
                f"the methods {cells[first].method} and {cell.method} are the same on {cell.task}: "
                f"{cell.tuner}, mode {cell.mode}; leave one out"
            )
    return cells


class ExperimentListener(Listener, Protocol):
    """Whom an experiment reports to: what its runs say, and which run it is."""

    def cell(self, cell: Cell, number: int, count: int) -> None:
        """A run begins, or is taken up; ``number`` of ``count`` were finished before."""

    def done(self, cell: Cell, number: int, count: int) -> None:
        """A run is finished; it is the ``number``-th of ``count``."""


class SilentExperimentListener(SilentListener):
    """Reports to nobody."""

    def cell(self, cell: Cell, number: int, count: int) -> None:
        """Do nothing."""

    def done(self, cell: Cell, number: int, count: int) -> None:
        """Do nothing."""


def run_experiment(
    planned: Plan, out: str | Path, *, command: str = "", listener: ExperimentListener | None = None
) -> tuple[Comparison, dict[str, Path]]:
    """Run what is not finished yet, then compare, and write the results.

    Called again with the same arguments it continues an experiment that was interrupted.

    Args:
        planned: what to run.
        out: the experiment's folder; made if missing.
        command: how to make the results again, written beside them.
        listener: told how it goes on.

    Returns:
        The comparison, and the files with the results by what they are.

    Raises:
        SolgymError: a run cannot be made, or the folder holds one that was made in another way.
    """
    folder, limits = Path(out), planned.experiment.limits
    listener = listener or SilentExperimentListener()
    todo = unfinished(planned, folder)
    count = len(planned.cells)
    finished = set(planned.cells).difference(todo)
    profiles = {_finished(folder, cell).profile for cell in finished}
    for cell in finished:
        _remove_leftover(folder / cell.folder)
    for number, cell in enumerate(todo, count - len(todo)):
        listener.cell(cell, number, count)
        place = folder / cell.folder
        if not _has_ended(place, cell, limits):
            tune(
                cell.env, budget=limits, out=place, tuner=cell.tuner, mode=cell.mode, seed=cell.seed,
                task=cell.task, listener=listener,
            )  # fmt: skip
        profiles.add(read_trace(place)[0].profile)
        if len(profiles) > 1:
            raise InvalidTrace(
                f"the machine was calibrated anew since the first runs in {folder}, which changes every "
                "score; give another --out"
            )
        _compress(place)
        listener.done(cell, number + 1, count)
    listener.stage("comparing and drawing")
    # Not all that lies in the folder: the file may have asked for more once.
    comparison = compare([folder / cell.folder for cell in planned.cells])
    headers = [_finished(folder, cell) for cell in planned.cells]
    files = write_comparison(comparison, folder, command)
    files["experiment"] = folder / RECORD_NAME
    text = json.dumps(_record(planned, headers, command), indent=1, allow_nan=False)
    write_atomically(files["experiment"], text + "\n")
    return comparison, files


def unfinished(planned: Plan, folder: Path) -> list[Cell]:
    """The cells that remain to be run, in order.

    Raises:
        InvalidTrace: a finished run is damaged or belongs to another experiment, or the folder cannot be
            written.
    """
    check_folder(folder)
    todo = []
    for cell in planned.cells:
        trace = folder / cell.folder / COMPRESSED_TRACE_NAME
        if trace.exists():
            _check_same(trace, cell, planned.experiment.limits)
        else:
            todo.append(cell)
    return todo


def _finished(folder: Path, cell: Cell) -> TraceHeader:
    """The header of a finished run."""
    return read_trace(folder / cell.folder / COMPRESSED_TRACE_NAME)[0]


def _check_same(trace: Path, cell: Cell, limits: Budget) -> None:
    header, _, _ = read_trace(trace)
    wanted = {
        "env_id": cell.env, "task": cell.task, "tuner": cell.tuner, "mode": cell.mode, "seed": cell.seed,
        "budget": limits, "toolchain": cell.toolchain, "device": device_fingerprint(),
    }  # fmt: skip
    for field, value in wanted.items():
        there = getattr(header, field)
        if there != value:
            raise InvalidTrace(
                f"{trace} is a finished run with {field} {str(there)!r}, but the experiment asks for "
                f"{str(value)!r}; give another --out"
            )


def _has_ended(folder: Path, cell: Cell, limits: Budget) -> bool:
    """Whether a run ended, and only its trace was not compressed any more."""
    if not (folder / TRACE_NAME).exists():
        return False
    header, records, torn_bytes = read_trace(folder / TRACE_NAME)
    if header.budget != limits or torn_bytes or not records or records[-1].role != "expert":
        return False
    _check_same(folder / TRACE_NAME, cell, limits)
    return True


def _compress(folder: Path) -> None:
    """Replace a run's trace by a compressed one, which says that the run is finished."""
    plain, compressed = folder / TRACE_NAME, folder / COMPRESSED_TRACE_NAME
    try:
        # No time in it: equal traces are equal files.
        write_atomically(compressed, gzip.compress(plain.read_bytes(), mtime=0))
        plain.unlink()
        (folder / LOCK_NAME).unlink(missing_ok=True)  # nobody writes here any more
    except OSError as error:
        raise InvalidTrace(
            f"cannot compress {plain}: {error.strerror}; make room and repeat the command"
        ) from error


def _remove_leftover(folder: Path) -> None:
    """Remove the trace of a run that was killed when it had just been compressed."""
    plain, compressed = folder / TRACE_NAME, folder / COMPRESSED_TRACE_NAME
    if plain.exists() and plain.read_bytes() == gzip.decompress(compressed.read_bytes()):
        plain.unlink()


def _record(planned: Plan, headers: Sequence[TraceHeader], command: str) -> Mapping[str, Any]:
    """What was run, where and with what, as ``experiment.json`` has it."""
    device = host_device()
    return {
        "format": "solgym-experiment",
        "version": 1,
        "name": planned.experiment.name,
        "command": command,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": device.model,
            "cores": len(device.cpus),
            "virtual": device.virtual,
            "system": platform.platform(),
            "device": device_fingerprint(),
            "profiles": sorted({header.profile for header in headers}),
        },
        "versions": {
            "solgym": sorted({header.package for header in headers} | {solgym.__version__}),
            "toolchains": sorted({header.toolchain for header in headers}),
            "python": platform.python_version(),
        },
        "budget": planned.experiment.budget.model_dump(),
        "seeds": planned.experiment.seeds,
        "methods": [method.model_dump() for method in planned.experiment.methods],
        "tasks": [task.model_dump() for task in planned.experiment.tasks],
        "runs": [
            {"folder": str(cell.folder), "created": header.created}
            for cell, header in zip(planned.cells, headers, strict=True)
        ],
    }
