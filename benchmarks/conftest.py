"""What the benchmarks share: options, the contenders, and the report at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.comparison import Bench
from benchmarks.scoreboard import Report, host_machine, now
from solgym.hardware.profile import HardwareProfile, host_profile

RESULTS = Path(__file__).resolve().parent.parent / "runs" / "bench"
REPORT = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("solgym", "SOLGym's benchmarks")
    group.addoption("--rounds", type=int, default=7, help="turns of each kernel and peer (default 7)")
    group.addoption("--round-seconds", type=float, default=0.1, help="length of a turn (default 0.1)")
    group.addoption("--quick", action="store_true", help="smaller samples of everything: to try the code")
    group.addoption("--recalibrate", action="store_true", help="measure this machine's peaks again")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # pytest-benchmark's table would show how long each comparison took, which says nothing.
    config.option.benchmark_quiet = True
    if config.option.quick:
        config.option.rounds, config.option.round_seconds = 3, 0.02
    config.stash[REPORT] = Report(created=now(), machine=host_machine(), rounds=config.option.rounds)


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Report:
    """Where results go."""
    return request.config.stash[REPORT]


@pytest.fixture(scope="session")
def quick(request: pytest.FixtureRequest) -> bool:
    """Whether only the code is tried, and numbers do not matter."""
    return bool(request.config.option.quick)


@pytest.fixture(scope="session")
def profile(request: pytest.FixtureRequest, report: Report) -> HardwareProfile:
    """This machine's calibrated peaks."""
    made = host_profile(refresh=request.config.option.recalibrate)
    streams = {level.name: level.streams(1, made.cores) for level in made.levels}
    reading = [
        f"{name} {stream.read / 1e9:.0f} GB/s" for name, stream in streams.items() if stream is not None
    ]
    report.profile = (
        f"{made.name} ({made.kind}); one core: {made.peak_flops('f32') / 1e9:.0f} GFLOP/s in f32, reading "
        + ", ".join(reading)
    )
    return made


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest, report: Report, profile: HardwareProfile) -> Iterator[Bench]:
    """The contenders."""
    made = Bench(profile, request.config.option.rounds, request.config.option.round_seconds)
    yield made
    report.peers.update(made.labels)
    made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    report = config.stash[REPORT]
    if report.empty:
        return
    terminalreporter.section("SOLGym's benchmarks")
    terminalreporter.write(report.text(terminalreporter.hasmarkup))
    terminalreporter.write_line(f"stored in {report.write(RESULTS).relative_to(RESULTS.parent.parent)}")
