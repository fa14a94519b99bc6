"""``solgym doctor``: what works on this machine, and what to do about what does not."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from solgym.commands.terminal import open_console

__all__ = ["CHECKS", "Finding", "State", "doctor"]

SOMETHING_IS_BROKEN = 1
BUSY_LOAD_PER_CORE = 0.5


class State(StrEnum):
    """How something stands."""

    WORKS = "works"
    LIMITED = "limited"
    ABSENT = "absent"
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it stands, and what to do if it should stand better."""

    subject: str
    state: State
    detail: str
    advice: str = ""


def _python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return Finding(
            "Python", State.LIMITED, detail, "measuring is made for Linux; expect it to fail elsewhere"
        )
    return Finding("Python", State.WORKS, detail)


def _compiler() -> Finding:
    from solgym.hardware.jit import compile_object, toolchain_fingerprint

    try:
        compile_object("define void @nothing() {\n  ret void\n}\n")
    except (RuntimeError, OSError) as error:
        return Finding(
            "compiler", State.BROKEN, str(error), "reinstall llvmlite: pip install --force-reinstall llvmlite"
        )
    llvmlite, llvm, *_ = toolchain_fingerprint().split("/")
    return Finding("compiler", State.WORKS, f"{llvmlite}, {llvm}")


def _vectors() -> Finding:
    from solgym.hardware.jit import host_cpu

    cpu = host_cpu()
    detail = f"{cpu.name}, {cpu.vector_bits}-bit vectors"
    if cpu.vector_bits < 256:
        return Finding(
            "CPU",
            State.LIMITED,
            detail,
            "no AVX2: everything works, but expert schedules expect wider vectors",
        )
    return Finding("CPU", State.WORKS, detail)


def _cores() -> Finding:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    load = os.getloadavg()[0]
    detail = f"{usable} of {present} usable, load {load:.1f}"
    if load > BUSY_LOAD_PER_CORE * usable:
        return Finding(
            "cores", State.LIMITED, detail, "the machine is busy: times will be noisy until it is not"
        )
    if usable == 1:
        return Finding(
            "cores", State.LIMITED, detail, "measuring shares its core with everything else; use --threads 1"
        )
    return Finding("cores", State.WORKS, detail)


def _cache_folder() -> Finding:
    from solgym.hardware.profile_store import cache_folder

    folder = cache_folder()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
        advice = "set SOLGYM_CACHE_DIR to a folder that can be written"
        return Finding("cache", State.LIMITED, f"{folder} cannot be written", advice)
    return Finding("cache", State.WORKS, str(folder))


def _profile() -> Finding:
    from solgym.errors import InvalidProfile
    from solgym.hardware.fingerprint import calibration_fingerprint
    from solgym.hardware.profile import load_profile, profile_path

    path = profile_path()
    if not path.exists():
        advice = "nothing to do: the first run calibrates by itself; `solgym calibrate` does it now"
        return Finding("profile", State.ABSENT, "this machine has not been calibrated", advice)
    try:
        profile = load_profile(str(path))
    except InvalidProfile as error:
        return Finding("profile", State.BROKEN, str(error), "run `solgym calibrate --refresh`")
    if profile.fingerprint != calibration_fingerprint():
        return Finding(
            "profile", State.LIMITED, "calibrated on another machine", "run `solgym calibrate --refresh`"
        )
    return Finding(
        "profile",
        State.WORKS,
        f"{profile.peak_flops('f32') / 1e9:.0f} GFLOP/s f32 on one thread, {path.name}",
    )


def _measuring() -> Finding:
    """Runs a small task through everything: lowering, compiling, the worker pool, the check, the clock."""
    from solgym.envs.kernel_dsl.kernels.task import parse_task
    from solgym.envs.kernel_dsl.schedule import Schedule
    from solgym.hardware.measurement import MeasurePolicy, Status
    from solgym.hardware.target import CpuTarget

    task = parse_task("gemm/f32/m16n16k16")
    with CpuTarget() as target:
        result = target.evaluate(Schedule(task.id), task, MeasurePolicy(max_seconds=0.05), 0)
    if result.status not in (Status.OK, Status.UNSTABLE):
        advice = "please report this with the output of `solgym doctor`"
        return Finding("measuring", State.BROKEN, f"{result.status}: {result.error}", advice)
    return Finding("measuring", State.WORKS, "a small kernel was compiled, checked and timed")


def _mlir() -> Finding:
    """Starts the process in which passes run, and runs one there."""
    from solgym.envs.mlir_passes.client import PassFailure, PassWorker
    from solgym.envs.mlir_passes.programs import PROGRAMS, parse_task
    from solgym.errors import UnsupportedTarget

    try:
        version = importlib.metadata.version("torch-mlir")
    except importlib.metadata.PackageNotFoundError:
        advice = "MLIRPasses needs it: pip install torch-mlir; its wheels are for Linux on x86-64"
        return Finding("MLIR", State.ABSENT, "torch-mlir not installed", advice)
    worker = PassWorker()
    try:
        task = parse_task(next(iter(PROGRAMS.values())).default_task_id)
        made = worker.view(task, ["canonicalize"])
    except UnsupportedTarget as error:
        return Finding("MLIR", State.BROKEN, f"torch-mlir {version}", str(error))
    finally:
        worker.close()
    if isinstance(made, PassFailure):
        advice = "reinstall it: pip install --force-reinstall torch-mlir"
        return Finding("MLIR", State.BROKEN, f"torch-mlir {version}: {made.error}", advice)
    return Finding("MLIR", State.WORKS, f"torch-mlir {version}, a pass was run in a process of its own")


def _numpy() -> Finding:
    from solgym.baselines.peer_timing import OPENBLAS_OVERRIDES

    version = importlib.metadata.version("numpy")
    overrides = [f"{name}={os.environ[name]}" for name in OPENBLAS_OVERRIDES if name in os.environ]
    if overrides:
        advice = "numpy may be slow here; `solgym tune` times it without these, other programs do not"
        return Finding("numpy", State.LIMITED, f"{version} with {', '.join(overrides)}", advice)
    return Finding("numpy", State.WORKS, version)


def _cuda() -> Finding:
    if not Path("/dev/nvidiactl").exists():
        return Finding(
            "NVIDIA GPU",
            State.ABSENT,
            "none on this machine",
            "nothing to do: everything here runs on the CPU",
        )
    return Finding(
        "NVIDIA GPU", State.ABSENT, "present, but not used yet", "GPU targets come with a later release"
    )


def _extra(subject: str, packages: tuple[str, ...], advice: str) -> Callable[[], Finding]:
    def check() -> Finding:
        versions, missing = [], []
        for package in packages:
            try:
                versions.append(f"{package} {importlib.metadata.version(package)}")
            except importlib.metadata.PackageNotFoundError:
                missing.append(package)
        if missing:
            return Finding(subject, State.ABSENT, f"{', '.join(missing)} not installed", advice)
        return Finding(subject, State.WORKS, ", ".join(versions))

    return check


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _compiler,
    _vectors,
    _cores,
    _cache_folder,
    _profile,
    _measuring,
    _mlir,
    _numpy,
    _cuda,
    _extra("learning", ("stable-baselines3", "sb3-contrib"), "optional: pip install 'solgym[rl]'"),
    _extra(
        "BLAS names",
        ("threadpoolctl",),
        "optional: pip install threadpoolctl, and tables name numpy's kernels",
    ),
)
"""Everything that is looked at, in the order in which it is printed."""

_STYLES = {State.WORKS: "green", State.LIMITED: "yellow", State.ABSENT: "dim", State.BROKEN: "bold red"}


def doctor() -> None:
    """Say what works here, and what to do about what does not. Exit code 1 if something is broken."""
    console = open_console()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    findings = []
    for check in CHECKS:
        finding = _survive(check)
        findings.append(finding)
        detail = Text(finding.detail)
        if finding.advice:
            detail.append(f"\n{finding.advice}", style="italic")
        table.add_row(finding.subject, Text(finding.state.value, style=_STYLES[finding.state]), detail)
    console.print(table)
    if any(finding.state is State.BROKEN for finding in findings):
        raise typer.Exit(SOMETHING_IS_BROKEN)


def _survive(check: Callable[[], Finding]) -> Finding:
    """A doctor must not die of what it finds."""
    try:
        return check()
    except Exception as error:
        subject = check.__name__.strip("_").replace("_", " ")
        return Finding(
            subject,
            State.BROKEN,
            f"{type(error).__name__}: {error}",
            f"please report this (Python {sys.version.split()[0]})",
        )
