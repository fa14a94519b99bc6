"""What the trainer costs: measured steps per second while learning, against the bare environment."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.scoreboard import QuantityRow, Report
from solgym.hardware.measurement import MeasurePolicy
from solgym.hardware.profile import HardwareProfile

pytest.importorskip("sb3_contrib")

from solgym.baselines.rl.env_process import make_env
from solgym.baselines.rl.processes import EnvProcesses, EnvSpec
from solgym.baselines.rl.settings import settings_from
from solgym.baselines.rl.training import train

ENVS = 2
GEMM_256 = "gemm/f32/m256n256k256"

# Whether a candidate is stable depends on the moment; here both sides must go the same way.
MEASURING = {"unstable_ci": 1e9}
OPTIONS = {"stop_at": 1.0}


@dataclass
class Recording:
    """What was asked of the environments of a training run, and how long that took."""

    events: dict[int, list[tuple[str, Any]]] = field(default_factory=dict)
    measured: int = 0
    started: float = 0.0
    seconds: float = 0.0
    waiting_share: float = 0.0


class RecordedProcesses(EnvProcesses):
    """Environments that write down what they are asked, and count the steps that measured a candidate."""

    def __init__(self, recording: Recording, *arguments: Any, **named: Any) -> None:
        self._recording = recording
        self._used = [0] * ENVS
        super().__init__(*arguments, **named)
        ask = self._seats._ask

        def write_down(seat: Any, what: Any, content: object) -> None:
            if what in ("reset", "step"):
                recording.events.setdefault(seat.index, []).append((what, content))
            ask(seat, what, content)

        self._seats._ask = write_down  # type: ignore[method-assign]

    def step_async(self, actions: Any) -> None:
        self._recording.started = self._recording.started or time.perf_counter()
        super().step_async(actions)

    def step_wait(self) -> Any:
        result = super().step_wait()
        for index, info in enumerate(result[3]):
            self._recording.measured += info["measurements_used"] > self._used[index]
            self._used[index] = info["measurements_used"]
        return result

    def close(self) -> None:
        if not self._closed:
            self._recording.seconds = time.perf_counter() - self._recording.started
            counted = self.statistics()
            self._recording.waiting_share = counted.waiting_s / (ENVS * self._recording.seconds)
        super().close()


def learn(out: Path, steps: int) -> Recording:
    """One segment of training, its updates, checkpoint and picture included; random actions at first."""
    recording = Recording()
    data = {
        "env": {"id": "KernelDSL-GEMM-v0", "tasks": [GEMM_256], "options": OPTIONS, "measuring": MEASURING},
        "training": {
            "steps": steps,
            "envs": ENVS,
            "remember": False,
            "checkpoint_every": steps,
            "evaluate_every": 0,
        },
        "ppo": {"n_steps": min(256, steps // ENVS)},
    }
    train(settings_from(data), out, open_envs=lambda *a, **k: RecordedProcesses(recording, *a, **k))
    return recording


def bare_rate(recording: Recording, profile: HardwareProfile) -> float:
    """Measured steps per second of the same episodes, one after the other, in this process."""
    measured, seconds = 0, 0.0
    for events in recording.events.values():
        spec = EnvSpec(
            "KernelDSL-GEMM-v0", {**OPTIONS, "policy": MeasurePolicy(**MEASURING), "task": GEMM_256}, profile
        )
        with closing(make_env(spec)) as env:
            used, running, started = 0, False, 0.0
            for what, content in events:
                if what == "reset":
                    seed, options = content
                    env.reset(seed=seed, options=options)
                    running = True
                    # The first reset measures the baseline, on both sides before the clock starts.
                    started = started or time.perf_counter()
                elif running:
                    _, _, terminated, truncated, info = env.step(content)
                    measured += info["measurements_used"] > used
                    used = info["measurements_used"]
                    running = not (terminated or truncated)
            seconds += time.perf_counter() - started
    return measured / seconds


def test_training_overhead(
    benchmark: BenchmarkFixture, report: Report, profile: HardwareProfile, quick: bool, tmp_path: Path
) -> None:
    rounds, steps = (1, 128) if quick else (3, 768)

    def compare() -> list[tuple[float, float, float]]:
        found = []
        for number in range(rounds):
            recording = learn(tmp_path / str(number), steps)
            training = recording.measured / recording.seconds
            found.append((training, bare_rate(recording, profile), recording.waiting_share))
        return found

    found: list[tuple[float, float, float]] = benchmark.pedantic(compare, rounds=1)
    ratios = [training / bare for training, bare, _ in found]
    benchmark.extra_info["rates"] = found
    report.quantities.append(
        QuantityRow(
            name=f"training with {ENVS} processes against the bare environment",
            value=median(ratios),
            unit="x",
            limit=0.9,
            sense="at least",
            detail=f"measured steps per second, GEMM 256, {steps} steps with updates and a checkpoint, and "
            f"the same episodes bare: {', '.join(f'{t:.1f} and {b:.1f}' for t, b, _ in found)}; processes "
            f"waited for turns {median(share for _, _, share in found):.0%} of the time",
        )
    )
