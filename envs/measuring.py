"""How environments measure: targets by name, candidates by value, baselines once per process.

Worker pools are shared by the whole process (see ``hardware.pool``); so are the baselines kept here, and a
vector environment of many copies measures each task's untouched candidate once.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement, MeasurePolicy, Status
from solgym.hardware.profile import HardwareProfile, host_profile, load_profile
from solgym.hardware.target import Candidate, CpuTarget, Failure, Target, parse_target
from solgym.hardware.task import Task

__all__ = [
    "BASELINE_TIMEOUT_S",
    "Baseline",
    "evaluate",
    "keep_baselines",
    "measure_baseline",
    "open_target",
    "resolve_profile",
]

BASELINE_TIMEOUT_S = 60.0
"""Untouched candidates are slow by nature, so one call of theirs may take at least this long."""


BASELINE_TRIES = 3
"""Untouched candidates are right, so what fails or disturbs them comes from outside and may pass."""


@dataclass(frozen=True)
class Baseline:
    """The untouched candidate's measurement, and the time that scores refer to.

    ``time_s`` is the median, or the time limit where the candidate was not timed: it takes at least that.
    """

    measurement: Measurement
    time_s: float


_Key = tuple[str, str, str, MeasurePolicy, float]
_baselines: dict[_Key, Baseline] = {}


class _BaselineFile:
    """Baselines that several processes share: a file of lines, each the first word on one baseline."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes_read = 0
        self._known: dict[str, Baseline] = {}

    def find(self, key: _Key) -> Baseline | None:
        """What any process has written down."""
        self._read_on()
        return self._known.get(_digest(key))

    def add(self, key: _Key, baseline: Baseline) -> Baseline:
        """Write a baseline down; returns what counts, as another process may have been faster."""
        row = {"key": _digest(key), "task": key[0], "time_s": baseline.time_s}
        line = json.dumps({**row, "measurement": baseline.measurement.to_json()}) + "\n"
        with suppress(OSError):  # a full disk, say: then each process measures for itself
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                os.write(file, line.encode())
            finally:
                os.close(file)
        return self.find(key) or baseline

    def _read_on(self) -> None:
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._bytes_read)
            complete = file.read().rpartition(b"\n")
            self._bytes_read += len(complete[0]) + len(complete[1])
            for line in complete[0].splitlines():
                with suppress(ValueError, KeyError, TypeError):  # what is damaged is measured again
                    row = json.loads(line)
                    measurement = Measurement.from_json(row["measurement"])
                    self._known.setdefault(row["key"], Baseline(measurement, float(row["time_s"])))


_kept: _BaselineFile | None = None


def keep_baselines(path: Path | None) -> None:
    """From now on share baselines with all processes that do so with the same file.

    The processes of a training run then measure each baseline once, score against the same times, and go on
    doing so when the run is continued. None stops sharing.
    """
    global _kept
    _kept = None if path is None else _BaselineFile(path)
    _baselines.clear()


def _digest(key: _Key) -> str:
    task, untouched, fingerprint, policy, sol_time_s = key
    text = json.dumps([task, untouched, fingerprint, asdict(policy), sol_time_s])
    return hashlib.sha256(text.encode()).hexdigest()


def open_target(name: str, threads: int) -> Target:
    """The target of that name; nothing is started before the first measurement.

    Raises:
        UnsupportedTarget: the target is not available in this release.
        InvalidOption: there is no such target.
    """
    parse_target(name, threads)
    return CpuTarget(threads)


def evaluate(
    target: Target,
    candidate: Candidate,
    task: Task,
    policy: MeasurePolicy,
    seed: int,
    sol_time_s: float,
    known: Measurement | None = None,
) -> Measurement:
    """Compile, check and time a candidate; every failure of it is a value.

    ``known`` is a measurement of the same task: if it is ``ok`` and of the same machine code, it is the
    result.
    """
    made = target.compile(candidate, task)
    if isinstance(made, Failure):
        return made.measurement()
    if known is not None and known.ok and known.artifact_digest == made.digest:
        return replace(known, compile_s=made.compile_s)
    return target.measure(made, task, policy, seed, sol_time_s)


def measure_baseline(
    target: Target, task: Task, untouched: Candidate, policy: MeasurePolicy, sol_time_s: float
) -> Baseline:
    """The baseline of a task, measured once per process, target, untouched candidate, policy and bound."""
    key = (task.id, untouched.digest, target.fingerprint, policy, sol_time_s)
    if key not in _baselines and _kept is not None and (known := _kept.find(key)) is not None:
        _baselines[key] = known
    if key not in _baselines:
        patient = replace(policy, timeout_s=max(policy.timeout_s, BASELINE_TIMEOUT_S))
        for _ in range(BASELINE_TRIES):
            measurement = evaluate(target, untouched, task, patient, 0, sol_time_s)
            is_slow = measurement.status is Status.TIMEOUT and measurement.artifact_digest is not None
            if measurement.ok or is_slow:
                break
        baseline = Baseline(measurement, measurement.time_s or patient.timeout_s)
        if measurement.time_s is None and not is_slow:
            return baseline  # the next reset may have better luck
        _baselines[key] = baseline if _kept is None else _kept.add(key, baseline)
    return _baselines[key]


def resolve_profile(profile: HardwareProfile | str | None) -> HardwareProfile:
    """A profile by object, published name or file; None is this machine's, calibrated at first need."""
    if profile is None:
        return host_profile(progress=_announce)
    if isinstance(profile, HardwareProfile):
        return profile
    if not isinstance(profile, str):
        raise InvalidOption(f"profile is {profile!r}; it must be a HardwareProfile, a name or a file.")
    return load_profile(profile)


def _announce(fraction: float, text: str) -> None:
    """Say on a terminal how a calibration gets on; it happens once per machine and takes seconds."""
    if sys.stderr.isatty():
        end = "\n" if fraction >= 1.0 else ""
        sys.stderr.write(f"\r\x1b[KSOLGym calibrates this machine, once: {fraction:4.0%} {text}{end}")
        sys.stderr.flush()
