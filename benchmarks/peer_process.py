"""A peer as the benchmarks see it: a process with a clean environment that times one library on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from solgym.baselines.peer_timing import OPENBLAS_OVERRIDES, spread_threads
from solgym.hardware.measurement import MeasurePolicy

__all__ = ["PeerFailed", "PeerProcess", "Round"]

ROOT = Path(__file__).resolve().parent.parent
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class PeerFailed(RuntimeError):
    """A peer could not do what it was asked; the message is its own."""


@dataclass(frozen=True)
class Round:
    """One stretch of samples of one kernel: their median and the smallest, in seconds per call."""

    median_s: float
    min_s: float
    samples: int


class PeerProcess:
    """One library in a process of its own. A context manager."""

    def __init__(self, library: str, threads: int) -> None:
        """Start the process.

        Args:
            library: ``numpy`` or ``torch``.
            threads: threads that it may use.
        """
        environment = {key: value for key, value in os.environ.items() if key not in OPENBLAS_OVERRIDES}
        environment |= dict.fromkeys(THREAD_VARIABLES, str(threads))
        # Candidates run on huge pages, so peers get them as well, for every array and whatever they allocate.
        environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peer_server", library, "--threads", str(threads)],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.library, self.threads = library, threads
        self.label: str = self._ask({"op": "hello"})["label"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise PeerFailed(f"the process ended with {self._process.wait()}; its stderr says why")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise PeerFailed(reply["error"])
        return reply

    def prepare(self, task_id: str, seed: int, core: int | None) -> list[str]:
        """Set a task up; returns the names of the ways in which the library can compute it.

        Args:
            task_id: what to compute.
            seed: of the inputs.
            core: where to run, if only one thread is used; None leaves it to the scheduler.
        """
        reply = self._ask({"op": "prepare", "task": task_id, "seed": seed, "core": core})
        if self.threads > 1:  # by now every thread exists
            spread_threads(self._process.pid)
        return list(reply["variants"])

    def sample(self, variant: str, policy: MeasurePolicy) -> Round:
        """Time one of those ways once more."""
        return Round(**self._ask({"op": "sample", "variant": variant, "policy": asdict(policy)}))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
