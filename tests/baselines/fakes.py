"""Stand-ins for what a search needs: a space of made-up schedules and measurements that take no time."""

import numpy as np

from solgym.baselines.trace import TraceHeader, TraceRecord
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.hardware.measurement import Measurement, Status

TASK = "gemm/f32/m512n512k512"


def schedule(number: int) -> Schedule:
    return Schedule(TASK, ({"op": "split", "stage": "C", "loop": "i", "factor": number + 2},))


def number_of(candidate: Schedule) -> int:
    return candidate.steps[0]["factor"] - 2


def timed(time_s: float, spread: float = 0.01, digest: str | None = None) -> Measurement:
    low, high = time_s * (1 - spread), time_s * (1 + spread)
    return Measurement(
        Status.OK, (low, time_s, high), time_s, low, low, high, warmup=2, artifact_digest=digest
    )


class NumberedSource:
    """``size`` different schedules, drawn uniformly."""

    def __init__(self, size: int, listed: bool = True) -> None:
        self.size = size
        self.listed = listed

    def draw(self, rng: np.random.Generator) -> Schedule:
        return schedule(int(rng.integers(self.size)))

    def enumerate(self):
        return map(schedule, range(self.size)) if self.listed else None


def header(**changes: object) -> TraceHeader:
    fields = {
        "env_id": "KernelDSL-GEMM-v0", "task": TASK, "tuner": "random", "mode": "knobs", "seed": 0,
        "target": "cpu", "threads": 1, "package": "0.1.0", "toolchain": "llvm", "device": "cpu-a",
        "profile": "p", "budget_measurements": 10,
    }  # fmt: skip
    return TraceHeader(**(fields | changes))


def record(index: int, time_s: float = 1e-3, role: str = "trial", **changes: object) -> TraceRecord:
    fields = {
        "index": index, "role": role, "trial": index, "candidate": schedule(index).to_json(),
        "measurement": timed(time_s).to_json(), "elapsed_s": 0.1 * index, "best_s": time_s,
    }  # fmt: skip
    return TraceRecord(**(fields | changes))
