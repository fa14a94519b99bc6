"""Runs in a process of its own and times one library, numpy or torch, when asked to.

OpenBLAS, MKL and OpenMP read their environment when they are loaded, which is why peers have processes; one
per library, so that the waiting threads of one cannot disturb the other. Requests and replies are lines of
JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import threadpoolctl

from benchmarks.peer_variants import peer_calls
from solgym.baselines.peer_timing import CallTimer
from solgym.baselines.peers import Arrays
from solgym.envs.kernel_dsl.kernels.task import KernelTask, parse_task
from solgym.hardware.measurement import Clock, MeasurePolicy
from solgym.hardware.timing import median_interval, sample_alone

TOLERANCE = 4.0
"""Peers may err this many times more than candidates: numpy's erf, for one, is an approximation."""


class Server:
    """Holds the calls of the task that is being compared."""

    def __init__(self, library: str, threads: int) -> None:
        self.library, self.threads = library, threads
        self.clock: Clock = "thread_cpu" if threads == 1 else "wall"
        self._calls: dict[str, Callable[[], Any]] = {}
        if library == "torch":
            import torch

            torch.set_num_threads(threads)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "hello":
                return {"label": self.label()}
            case "prepare":
                return self.prepare(parse_task(request["task"]), request["seed"], request["core"])
            case "sample":
                return self.sample(request["variant"], MeasurePolicy(**request["policy"]))
        raise ValueError(f"unknown request {request['op']!r}")

    def label(self) -> str:
        """Version, BLAS and its core type, and threads."""
        threads = f"{self.threads} thread" + "s" * (self.threads > 1)
        if self.library == "torch":
            import torch

            blas = "MKL" if torch.backends.mkl.is_available() else "without MKL"
            with_onednn = "oneDNN" if torch.backends.mkldnn.is_available() else "without oneDNN"
            capability = torch.backends.cpu.get_cpu_capability()
            return f"torch {torch.__version__} ({blas}, {with_onednn}, {capability}), {threads}"
        np.ones((8, 8)) @ np.ones((8, 8))
        pools = [pool for pool in threadpoolctl.threadpool_info() if pool.get("user_api") == "blas"]
        names = [
            f"{pool['internal_api']} {pool.get('version')}, core type {pool.get('architecture', 'unknown')}"
            for pool in pools
        ]
        return f"numpy {np.__version__} ({'; '.join(names) or 'unknown BLAS'}), {threads}"

    def prepare(self, task: KernelTask, seed: int, core: int | None) -> dict[str, Any]:
        """Set the calls up and check that each computes the task."""
        if self.threads == 1 and core is not None:
            os.sched_setaffinity(0, {core})
        inputs: Arrays = task.make_inputs(seed)
        self._calls = peer_calls(self.library, task, inputs)
        (expected,) = task.reference(inputs)
        size = np.abs(expected)
        allowed = TOLERANCE * task.relative_tolerance * (size + size.mean())
        for name, call in self._calls.items():
            error = np.abs(np.asarray(call(), dtype=np.float64).reshape(expected.shape) - expected)
            if not (error <= allowed).all():
                raise ValueError(f"{name} computes something else than {task.id}: off by {error.max():.3g}")
        return {"variants": list(self._calls)}

    def sample(self, variant: str, policy: MeasurePolicy) -> dict[str, Any]:
        timer = CallTimer(self._calls[variant], self.clock)
        usable = sample_alone(timer, policy, lambda: None).usable()
        return {"median_s": median_interval(usable).median, "min_s": min(usable), "samples": len(usable)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=("numpy", "torch"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.library == "torch":
            import torch

            stack.enter_context(torch.inference_mode())
        server = Server(options.library, options.threads)
        for line in sys.stdin:
            try:
                reply = server.answer(json.loads(line))
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
