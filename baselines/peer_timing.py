"""Times numpy on a task, in a process of its own, by the same statistics as candidates are timed.

OpenBLAS picks its kernels when numpy is loaded and lets the environment force others: on machines where
``OPENBLAS_CORETYPE`` or ``OPENBLAS_L2_SIZE`` are set, numpy may run at half its speed. So the process that
is timed starts without them. Where they were set it is timed with them too, and the better time counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

from solgym.baselines.peers import NUMPY_PEERS, Call, Peer
from solgym.baselines.peers_programs import BLAS_PROGRAMS, PROGRAM_PEERS
from solgym.envs.kernel_dsl.kernels.task import KernelTask
from solgym.envs.kernel_dsl.kernels.task import parse_task as kernel_task
from solgym.envs.mlir_passes.programs.task import ProgramTask
from solgym.envs.mlir_passes.programs.task import parse_task as program_task
from solgym.hardware.fingerprint import host_device
from solgym.hardware.measurement import Clock, Measurement, MeasurePolicy, Status
from solgym.hardware.task import Task
from solgym.hardware.timing import NativeTimer, Sample, median_interval, sample_alone

__all__ = ["OPENBLAS_OVERRIDES", "CallTimer", "PeerTime", "spread_threads", "time_call", "time_numpy"]

OPENBLAS_OVERRIDES: Final = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
_THREAD_VARIABLES: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_TIMEOUT_S: Final = 60.0
_BLAS_KERNELS: Final = frozenset(
    {"gemm", "batched_gemm", "gemv", "gemm_bias_gelu", "mlp", "conv2d", "attention"}
)


@dataclass(frozen=True)
class _Way:
    """How numpy computes a task: the table that it is from, the function, and whether BLAS does the work."""

    table: str
    peer: Peer
    uses_blas: bool


def _way_of(task: Task) -> _Way | None:
    if isinstance(task, KernelTask) and task.kernel.name in NUMPY_PEERS:
        return _Way("kernels", NUMPY_PEERS[task.kernel.name], task.kernel.name in _BLAS_KERNELS)
    if isinstance(task, ProgramTask) and task.program.name in PROGRAM_PEERS:
        name = task.program.name
        return _Way("programs", PROGRAM_PEERS[name], name in BLAS_PROGRAMS)
    return None


@dataclass(frozen=True)
class PeerTime:
    """How long a peer took, and what exactly ran: for example ``numpy 2.4 (OpenBLAS SkylakeX)``."""

    label: str
    measurement: Measurement


class CallTimer(NativeTimer):
    """Samples a Python call; the interpreter's share of it (under a microsecond a call) is included."""

    def __init__(self, call: Call, clock: Clock) -> None:
        self._call = call
        self.clock = clock

    def sample(self, calls: int, samples: int) -> list[Sample]:
        """Take samples of so many calls each."""
        identity = time.CLOCK_THREAD_CPUTIME_ID if self.clock == "thread_cpu" else time.CLOCK_MONOTONIC
        taken = []
        for _ in range(samples):
            switches = _involuntary_switches()
            start = time.clock_gettime_ns(identity)
            for _ in range(calls):
                self._call()
            elapsed = time.clock_gettime_ns(identity) - start
            taken.append(Sample(max(elapsed, 1) / 1e9 / calls, _involuntary_switches() - switches))
        return taken


def _involuntary_switches() -> int:
    """How often a thread of this process had to leave its core."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def time_call(call: Call, policy: MeasurePolicy, threads: int = 1) -> Measurement:
    """Time a call without arguments in this process, as candidates are timed.

    Args:
        call: computes the task; what it returns is ignored.
        policy: how many samples, how precise, how long.
        threads: with one, CPU time of this thread is counted, else wall-clock time.
    """
    clock: Clock = "thread_cpu" if threads == 1 else "wall"
    samples = sample_alone(CallTimer(call, clock), policy, lambda: None)
    times = samples.usable()
    interval = median_interval(times)
    stable = interval.spread <= policy.unstable_ci
    return Measurement(
        Status.OK if stable else Status.UNSTABLE,
        tuple(times),
        interval.median,
        min(times),
        interval.low,
        interval.high,
        warmup=samples.warmup,
        clock=clock,
        discarded=samples.discarded,
    )


def spread_threads(pid: int | None = None) -> None:
    """Give every thread of a process, by default this one, a core of its own as far as there are enough.

    Schedulers of small virtual machines have been seen to keep two threads that wait for each other on one
    core for seconds; the times are then a hundred times too long.
    """
    cores = host_device().cpus
    threads = sorted(int(name) for name in os.listdir(f"/proc/{pid or os.getpid()}/task"))
    for position, thread in enumerate(threads):
        os.sched_setaffinity(thread, {cores[position % len(cores)]})


def time_numpy(task: Task, threads: int = 1, seed: int = 0) -> PeerTime | None:
    """Time numpy on a task in a fresh process; None if numpy has no way of computing it, or fails.

    Args:
        task: what to compute.
        threads: threads that BLAS may use.
        seed: of the inputs.
    """
    way = _way_of(task)
    if way is None:
        return None
    clean = {key: value for key, value in os.environ.items() if key not in OPENBLAS_OVERRIDES}
    environments = [clean]
    if way.uses_blas and any(key in os.environ for key in OPENBLAS_OVERRIDES):
        environments.append(dict(os.environ))
    times = [_in_process(way.table, task.id, threads, seed, environment) for environment in environments]
    known = [peer for peer in times if peer is not None]
    return min(known, key=lambda peer: peer.measurement.time_s or 0.0, default=None)


def _in_process(
    table: str, task_id: str, threads: int, seed: int, environment: dict[str, str]
) -> PeerTime | None:
    environment |= dict.fromkeys(_THREAD_VARIABLES, str(threads))
    options = ["--threads", str(threads), "--seed", str(seed)]
    command = [sys.executable, "-m", __name__, table, task_id, *options]
    try:
        finished = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
        answer = json.loads(finished.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError):
        return None
    return PeerTime(answer["label"], Measurement.from_json(answer["measurement"]))


def _numpy_label(uses_blas: bool) -> str:
    """Numpy's version, with the BLAS kernels that ran, if any and if threadpoolctl is there to ask."""
    import numpy as np

    version = ".".join(np.__version__.split(".")[:2])
    if not uses_blas or importlib.util.find_spec("threadpoolctl") is None:
        return f"numpy {version}"
    import threadpoolctl

    libraries: list[dict[str, Any]] = [
        pool for pool in threadpoolctl.threadpool_info() if pool.get("user_api") == "blas"
    ]
    if not libraries:
        return f"numpy {version}"
    name = {"openblas": "OpenBLAS", "mkl": "MKL", "blis": "BLIS"}.get(libraries[0]["internal_api"], "BLAS")
    architecture = libraries[0].get("architecture")
    return f"numpy {version} ({name}{f' {architecture}' if architecture else ''})"


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=("kernels", "programs"))
    parser.add_argument("task")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    task = kernel_task(options.task) if options.table == "kernels" else program_task(options.task)
    way = _way_of(task)
    assert way is not None
    call = way.peer(task.extents, task.make_inputs(options.seed))
    if options.threads > 1:
        call()  # by now BLAS has made its threads
        spread_threads()
    measurement = time_call(call, MeasurePolicy(max_seconds=0.5), options.threads)
    label = _numpy_label(way.uses_blas)
    json.dump({"label": label, "measurement": measurement.to_json()}, sys.stdout)


if __name__ == "__main__":
    _main()
