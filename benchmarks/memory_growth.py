"""Runs in a process of its own: candidate after candidate in one environment, and what memory they leave.

Freshly started, as memory that earlier work has given back to the allocator would hide a leak of that size.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import cast

import gymnasium as gym
import numpy as np

import solgym
from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.hardware.measurement import MeasurePolicy
from solgym.hardware.pool import WorkerPool
from solgym.hardware.target import CpuTarget

SEED = 0
# Many schedules of many kinds, each run but a few times: what is left of them afterwards is what counts.
TASK = "gemm/f32/m48n48k48"
HASTY = MeasurePolicy(
    warmup=1, min_repeats=3, slow_repeats=1, max_repeats=3, max_seconds=1e-3, unstable_ci=1e6
)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has just ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return 0


def run(count: int) -> dict[str, list[int]]:
    """Measure random candidates in episodes of one environment.

    Returns:
        After each candidate: ``user``, resident bytes of this process; ``worker``, those of the worker, 0
        while it is being replaced; ``pid``, the worker's process id.
    """
    solgym.register_envs()
    sizes: dict[str, list[int]] = {"user": [], "worker": [], "pid": []}
    rng = np.random.default_rng(SEED)
    with WorkerPool() as pool, CpuTarget(1, pool) as target:
        made = gym.make("KernelDSL-GEMM-v0", task=TASK, target=target, policy=HASTY, stop_at=1.0)
        with closing(made) as env:
            tuning = cast(KernelDSLEnv, env.unwrapped)
            env.reset(seed=SEED)
            while len(sizes["user"]) < count:
                before = tuning.measurements_used
                action = int(rng.choice(np.flatnonzero(tuning.action_masks())))
                _, _, terminated, truncated, _ = env.step(action)
                if tuning.measurements_used > before:
                    sizes["user"].append(resident_bytes(os.getpid()))
                    pid = next(iter(pool.pids()), 0)
                    sizes["worker"].append(resident_bytes(pid) if pid else 0)
                    sizes["pid"].append(pid)
                if terminated or truncated:
                    env.reset()
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    json.dump(run(parser.parse_args().count), sys.stdout)


if __name__ == "__main__":
    main()
