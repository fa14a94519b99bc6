"""Stand-ins for hardware: a target whose times follow from the candidate alone, and small tasks."""

from __future__ import annotations

from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.hardware.measurement import Measurement, Status
from solgym.hardware.profile import HardwareProfile, MemoryLevel
from solgym.hardware.target import Artifact, TargetSpec

SPEC = TargetSpec(
    name="cpu",
    vector_bits=512,
    threads=1,
    loop_kinds=frozenset({"serial", "unrolled", "vector", "parallel"}),
    scopes=frozenset({"global", "packed", "register"}),
    vector_registers=32,
    cache_sizes=(1 << 15, 1 << 20, 1 << 25),
)

_RATES = {"1": 1e14, "all": 1e14}
PROFILE = HardwareProfile(
    name="faster than any CPU",
    kind="published",
    target="cpu",
    cores=4,
    vector_bits=512,
    peak_flops_per_s={"fma": {"f32": {"1": 1e15, "all": 1e15}, "f64": {"1": 1e15, "all": 1e15}}},
    levels=(
        MemoryLevel(name="L1", size_bytes=1 << 15, read_bytes_per_s=_RATES, copy_bytes_per_s=_RATES),
        MemoryLevel(name="DRAM", size_bytes=None, read_bytes_per_s=_RATES, copy_bytes_per_s=_RATES),
    ),
    sources={"*": "made up, so that nothing has to be calibrated and nothing is faster than light"},
)

BASELINE_S = 1e-2

SMALL_TASKS = {
    "gemm": "gemm/f32/m9n17k5",
    "batched_gemm": "batched_gemm/f32/b2m5n18k7",
    "gemv": "gemv/f32/m9n33",
    "gemm_bias_gelu": "gemm_bias_gelu/f32/m9n17k5",
    "mlp": "mlp/f32/batch5in7hidden18out9",
    "conv2d": "conv2d/f32/n1h5w6ci3co18r3s3",
    "depthwise_conv2d": "depthwise_conv2d/f32/n1h5w6c18r3s3",
    "stencil2d": "stencil2d/f32/points9h6w18",
    "stencil3d": "stencil3d/f32/d3h5w18",
    "reduction": "reduction/f32/rows7cols33",
    "softmax": "softmax/f32/rows7cols33",
    "layernorm": "layernorm/f32/rows7cols33",
    "attention": "attention/f32/seq18dim7",
    "transpose": "transpose/f32/rows19cols33",
    "elementwise": "elementwise/f32/rows7cols33",
}


def timed(time_s: float) -> Measurement:
    return Measurement(Status.OK, (time_s,) * 3, time_s, time_s, time_s, time_s)


class FakeTarget:
    """Every candidate is correct; its digest decides how fast it is, from 1/10 of the baseline's time on."""

    name = "cpu"
    fingerprint = "fake"
    spec = SPEC

    def __init__(self, failing: Status | None = None, slowest_s: float = BASELINE_S) -> None:
        self.failing = failing
        self.slowest_s = slowest_s
        self.measured: list[str] = []
        self.seeds: list[int] = []

    def compile(self, candidate: Schedule, task: object) -> Artifact:
        return Artifact(b"", "kernel", 0, 0, 1, candidate.digest, "none", 0.0)

    def measure(self, artifact, task, policy=None, seed=0, sol_time_s=None) -> Measurement:
        self.measured.append(artifact.digest)
        self.seeds.append(seed)
        untouched = artifact.digest == Schedule(task.id).digest
        if self.failing is not None and not untouched:
            return Measurement.failed(self.failing, "it failed on purpose")
        share = 1.0 if untouched else 0.1 + 0.9 * int(artifact.digest[:8], 16) / 0xFFFFFFFF
        return timed(self.slowest_s * share)

    def measure_in_turns(self, artifacts, task, policy=None, seed=0, sol_time_s=None) -> list[Measurement]:
        return [self.measure(artifact, task, policy, seed, sol_time_s) for artifact in artifacts]

    def close(self) -> None:
        pass
