"""What the benchmarks found: rows with their targets, a table for people and a JSON file for programs.

A missed target is a row that says so and no failed test: whether a machine was quiet enough is for the reader
to judge, from the spread of the ratios and the load that the report names.
"""

from __future__ import annotations

import io
import os
import platform
import tempfile
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["Machine", "QuantityRow", "Report", "SpeedRow", "host_machine"]

FORMAT_VERSION = 1
TABLE_WIDTH = 138
DOUBTFUL_SPREAD = 0.15
"""Rounds that differ by more than this mean that the machine was busy, whatever their median says."""

BUSY_LOAD = 0.5
"""Load average above which other programs ran; what is timed by the wall clock then means little."""

PACKAGES = ("solgym", "numpy", "torch", "llvmlite", "gymnasium", "threadpoolctl")


class SpeedRow(BaseModel):
    """One kernel against what people run today, both timed in turns in one run.

    Attributes:
        name: what is claimed, in a few words.
        task: the task id, or what a summary row sums up.
        threads: threads on both sides.
        ours_s: median over rounds of our median, in seconds; None in a summary row.
        peer: who was compared with, and how it computed the task.
        peer_s: the same for the peer.
        ratio: peer time / our time, median over rounds; above 1 is faster than the peer.
        ratio_low: the smallest of the rounds.
        ratio_high: the largest of the rounds.
        ratio_of_best: the same ratio of the smallest samples.
        ratio_target: least ratio wanted, if any.
        sol_fraction: speed of light / our time; above 1 / 0.95 the profile understates the machine.
        sol_target: least fraction wanted, if any.
        bound: what binds the speed of light.
        summary: whether the row sums up rows above it.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    task: str
    threads: int = 1
    ours_s: float | None = None
    peer: str | None = None
    peer_s: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_of_best: float | None = None
    ratio_target: float | None = None
    sol_fraction: float | None = None
    sol_target: float | None = None
    bound: str | None = None
    summary: bool = False

    @property
    def spread(self) -> float | None:
        """Half the range of the ratio over the rounds, as a fraction of it."""
        if self.ratio is None or self.ratio_low is None or self.ratio_high is None:
            return None
        return (self.ratio_high - self.ratio_low) / 2 / self.ratio

    @property
    def met(self) -> bool | None:
        """Whether all its targets are met; None if it has none."""
        pairs = [(self.ratio, self.ratio_target), (self.sol_fraction, self.sol_target)]
        wanted = [(value, target) for value, target in pairs if target is not None]
        return all(value is not None and value >= target for value, target in wanted) if wanted else None


class QuantityRow(BaseModel):
    """A cost, a rate or a score with a limit.

    Attributes:
        name: what was measured.
        value: how much, in ``unit``.
        unit: the unit.
        limit: where the target lies, if there is one.
        sense: on which side of the limit the value must lie.
        detail: what a reader needs to judge the value.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    value: float
    unit: str
    limit: float | None = None
    sense: Literal["at least", "at most"] = "at most"
    detail: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the value lies on the right side of its limit; None without a limit."""
        if self.limit is None:
            return None
        return self.value >= self.limit if self.sense == "at least" else self.value <= self.limit


class Machine(BaseModel):
    """Where and with what the numbers were measured."""

    model_config = ConfigDict(frozen=True)

    cpu: str
    cores: int
    system: str
    python: str
    packages: dict[str, str]
    load_average: float
    fingerprint: str


class Report(BaseModel):
    """Everything of one run, as it is stored.

    Attributes:
        version: of this format.
        created: start of the run, UTC.
        machine: where and with what.
        profile: the calibrated peaks that the speed of light is computed from, in words.
        peers: every library that was compared with: version, BLAS, core type, threads.
        rounds: how often each kernel and each of its peers were timed in turns.
        speed: kernels.
        quantities: costs, rates and scores.
    """

    version: int = FORMAT_VERSION
    created: str
    machine: Machine
    profile: str = ""
    peers: dict[str, str] = Field(default_factory=dict)
    rounds: int
    speed: list[SpeedRow] = Field(default_factory=list)
    quantities: list[QuantityRow] = Field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing was measured."""
        return not self.speed and not self.quantities

    @property
    def missed(self) -> list[str]:
        """Names of the rows that miss a target."""
        return [row.name for row in self._rows if row.met is False]

    @property
    def _rows(self) -> list[SpeedRow | QuantityRow]:
        return [*self.speed, *self.quantities]

    def write(self, folder: Path) -> Path:
        """Store the report in a file named by its time; a reader never sees half of it."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.created.replace(':', '').replace('-', '').split('+')[0]}.json"
        handle, unfinished = tempfile.mkstemp(dir=folder, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            file.write(self.model_dump_json(indent=1))
        os.replace(unfinished, path)
        return path

    def text(self, colours: bool) -> str:
        """The report as tables."""
        console = Console(
            file=io.StringIO(),
            width=TABLE_WIDTH,
            force_terminal=colours,
            no_color=not colours,
            highlight=False,
        )
        for line in self._heading():
            console.print(line)
        if self.speed:
            console.print(self._speed_table())
        if self.quantities:
            console.print(self._quantity_table())
        judged = [row for row in self._rows if row.met is not None]
        met = len(judged) - len(self.missed)
        console.print(
            f"{met} of {len(judged)} targets met"
            + (f"; MISSED: {'; '.join(self.missed)}" if self.missed else "")
        )
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    def _heading(self) -> list[str]:
        machine = self.machine
        packages = ", ".join(f"{name} {number}" for name, number in machine.packages.items())
        lines = [
            f"{machine.cpu}, {machine.cores} cores, {machine.system}, Python {machine.python}",
            packages,
            *(f"{library}: {label}" for library, label in self.peers.items()),
        ]
        if self.profile:
            lines.append(f"speed of light: {self.profile}")
        if machine.load_average > BUSY_LOAD:
            lines.append(
                f"The load average was {machine.load_average:.1f} when this began: other programs ran, and "
                "the numbers are noisy. Measure on a quiet machine."
            )
        return lines

    def _speed_table(self) -> Table:
        table = Table(
            title=f"Speed: peer time / our time, medians over {self.rounds} rounds in turns",
            caption="+-: half the range over rounds; SOL: speed of light / our time; in brackets: what is "
            "wanted; (?): too noisy to tell",
            box=box.SIMPLE_HEAD,
        )
        for column in ("", "task", "ours, us", "fastest peer", "peer, us", "ratio", "+-", "SOL", ""):
            right = column in ("ours, us", "peer, us", "ratio", "+-", "SOL")
            width = {"task": 20, "fastest peer": 20}.get(column)
            table.add_column(
                column,
                justify="right" if right else "left",
                no_wrap=width is None,
                width=width,
                overflow="fold",
            )
        busy = self.machine.load_average > BUSY_LOAD
        for row in self.speed:
            noisy = (row.spread or 0.0) > DOUBTFUL_SPREAD or (busy and row.threads > 1)
            table.add_row(
                row.name,
                row.task.split("/f32/")[-1],
                _microseconds(row.ours_s),
                row.peer or "",
                _microseconds(row.peer_s),
                _against(row.ratio, row.ratio_target),
                "" if row.spread is None else f"{row.spread:.0%}",
                _against(row.sol_fraction, row.sol_target),
                _verdict(row.met, noisy),
                style="bold" if row.summary else None,
                end_section=row.summary,
            )
        return table

    def _quantity_table(self) -> Table:
        table = Table(title="Costs, rates and scores", box=box.SIMPLE_HEAD)
        for column in ("", "measured", "wanted", "", "how"):
            table.add_column(column, justify="right" if column in ("measured", "wanted") else "left")
        for row in self.quantities:
            limit = "" if row.limit is None else f"{'>=' if row.sense == 'at least' else '<='} {row.limit:g}"
            table.add_row(row.name, f"{row.value:.3g} {row.unit}", limit, _verdict(row.met), row.detail)
        return table


def _microseconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e6:,.0f}" if seconds >= 1e-3 else f"{seconds * 1e6:.1f}"


def _against(value: float | None, target: float | None) -> str:
    """A value, and in brackets the least that is wanted."""
    if value is None:
        return "" if target is None else f"none ({target:g})"
    return f"{value:.2f}" if target is None else f"{value:.2f} ({target:g})"


def _verdict(met: bool | None, doubtful: bool = False) -> str:
    if met is None:
        return ""
    return ("[green]met[/]" if met else "[red]MISSED[/]") + (" (?)" if doubtful else "")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def host_machine() -> Machine:
    """This machine, as it is now."""
    from solgym.hardware.fingerprint import device_fingerprint, host_device

    device = host_device()
    return Machine(
        cpu=device.model,
        cores=device.cores,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={package: _version(package) for package in PACKAGES},
        load_average=os.getloadavg()[0],
        fingerprint=device_fingerprint(),
    )


def now() -> str:
    """The time, as it is stored."""
    return datetime.now(UTC).isoformat(timespec="seconds")
