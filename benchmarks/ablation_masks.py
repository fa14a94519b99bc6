"""What the schedule language's masks and patterns are worth: random agents with and without them.

    python benchmarks/ablation_masks.py -o runs/ablation_masks

Three agents act in the same environments: primitive actions, episodes of at most 40 steps that begin at
the untouched loop nest.

* ``masks and patterns``: uniform over the legal actions.
* ``masks``: uniform over the legal actions that are no patterns.
* ``neither``: uniform over all actions that are no patterns, legal or not.

None chooses ``finish`` unless nothing else is legal. Counted are the steps, illegal ones included, until a
candidate is faster than the untouched one: correct, stable, at least 5% faster in the median, and with an
interval that does not overlap the untouched one's. An agent that gets nowhere within the cap counts with the
cap, which flatters it. Agents take turns within each kernel and seed. The same command again continues where
it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shlex
import sys
import time
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np

import solgym
from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.errors import SolgymError
from solgym.hardware.atomic_files import write_atomically
from solgym.hardware.fingerprint import device_fingerprint
from solgym.hardware.measurement import tied

AGENTS = ("masks and patterns", "masks", "neither")
MAX_STEPS = 40
LEAST_GAIN = 0.05
TASKS = {
    "KernelDSL-GEMM-v0": "gemm/f32/m128n128k128",
    "KernelDSL-BatchedGEMM-v0": "batched_gemm/f32/b12m50n70k30",
    "KernelDSL-Conv2d-v0": "conv2d/f32/n1h14w14ci32co32r3s3",
    "KernelDSL-Softmax-v0": "softmax/f32/rows65cols515",
    "KernelDSL-LayerNorm-v0": "layernorm/f32/rows65cols515",
    "KernelDSL-Stencil2d-v0": "stencil2d/f32/points5h130w515",
    "KernelDSL-Transpose-v0": "transpose/f32/rows333cols777",
    "KernelDSL-Attention-v0": "attention/f32/seq64dim32",
}
"""Small shapes, so that the untouched loops take at most a few milliseconds."""


@dataclass(frozen=True)
class Run:
    """One agent on one task with one seed.

    Attributes:
        task: the task's id.
        agent: a name in ``AGENTS``.
        seed: of its choices and of the inputs.
        cap: steps after which it gave up.
        steps: until its first improvement, or ``cap``.
        improved: whether there was one.
        illegal: how many of the steps were illegal.
        measured: how many candidates were measured.
        seconds: what it took.
        speedup: of the first improvement over the untouched candidate, or 1.
    """

    task: str
    agent: str
    seed: int
    cap: int
    steps: int
    improved: bool
    illegal: int
    measured: int
    seconds: float
    speedup: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/ablation_masks"), help="folder")
    parser.add_argument("--kernels", type=int, default=len(TASKS), help="only the first so many kernels")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cap", type=int, default=400, help="steps after which an agent gives up (400)")
    options = parser.parse_args()
    if min(options.kernels, options.seeds, options.cap) < 1:
        parser.error("--kernels, --seeds and --cap must be at least 1")
    if options.out.exists() and not options.out.is_dir():
        parser.error(f"{options.out} is a file; --out takes a folder")
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = dict(list(TASKS.items())[: options.kernels])
    runs = play_all(tasks, options.seeds, options.cap, options.out / "runs.jsonl")
    command = shlex.join(["python", "benchmarks/ablation_masks.py", *sys.argv[1:]])
    text, data = report(runs, command)
    print(text)
    write_atomically(options.out / "ablation_masks.md", text)
    write_atomically(options.out / "ablation_masks.json", json.dumps(data, indent=1, allow_nan=False) + "\n")


def play_all(tasks: dict[str, str], seeds: int, cap: int, record: Path) -> list[Run]:
    """Every run that is not in the record yet; each is added when it ends."""
    device = device_fingerprint()
    known = {(run.task, run.agent, run.seed): run for run in read_runs(record, device, cap)}
    wanted = []
    for seed in range(seeds):
        for env_id, task in tasks.items():
            for turn in range(len(AGENTS)):
                wanted.append((env_id, task, AGENTS[(turn + seed) % len(AGENTS)], seed))
    with record.open("a", encoding="utf-8") as file:
        for number, (env_id, task, agent, seed) in enumerate(wanted, 1):
            if (task, agent, seed) in known:
                continue
            run = play(env_id, task, agent, seed, cap)
            known[task, agent, seed] = run
            file.write(json.dumps({"device": device, **asdict(run)}) + "\n")
            file.flush()
            outcome = f"{run.steps} steps" if run.improved else f"nothing in {cap} steps"
            print(f"{number}/{len(wanted)}  {task}  {agent}  seed {seed}: {outcome}", file=sys.stderr)
    return [known[task, agent, seed] for _, task, agent, seed in wanted]


def read_runs(record: Path, device: str, cap: int) -> list[Run]:
    """What was recorded on this machine with this cap; a line cut short at the end is left out."""
    if not record.exists():
        return []
    complete, _, torn = record.read_text(encoding="utf-8").rpartition("\n")
    if torn:
        write_atomically(record, complete + "\n" if complete else "")
    lines = [json.loads(line) for line in complete.splitlines()]
    if any(line["device"] != device or line["cap"] != cap for line in lines):
        sys.exit(f"{record} was made on another machine or with another cap; give another --out")
    return [Run(**{key: value for key, value in line.items() if key != "device"}) for line in lines]


def play(env_id: str, task: str, agent: str, seed: int, cap: int) -> Run:
    """One agent until its first improvement."""
    began = time.monotonic()
    rng = np.random.default_rng((seed, zlib.crc32(f"{task} {agent}".encode())))
    made = gym.make(env_id, task=task, max_steps=MAX_STEPS, stop_at=1.0, disable_env_checker=True)
    with closing(made) as env:
        tuning = cast(KernelDSLEnv, env.unwrapped)
        env.reset(seed=seed)
        kinds = np.array([action.kind for action in tuning.table.actions])
        offered = kinds != "finish"
        if agent != "masks and patterns":
            offered &= kinds != "pattern"
        steps, illegal, improvement, over = 0, 0, 1.0, False
        while steps < cap and improvement == 1.0:
            if over:
                env.reset()
            legal = tuning.action_masks()
            choices = np.flatnonzero(offered if agent == "neither" else offered & legal)
            if not choices.size:  # nothing but `finish` is legal, and that is a step too
                steps, over = steps + 1, True
                continue
            action = int(rng.choice(choices))
            before = tuning.measurements_used
            _, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            steps += 1
            illegal += not legal[action]
            if tuning.measurements_used > before:
                improvement = gain(tuning)
        return Run(
            task=task,
            agent=agent,
            seed=seed,
            cap=cap,
            steps=steps,
            improved=improvement > 1.0,
            illegal=illegal,
            measured=tuning.measurements_used,
            seconds=round(time.monotonic() - began, 2),
            speedup=improvement,
        )


def gain(env: KernelDSLEnv) -> float:
    """The speedup of the last candidate over the untouched one, or 1 if that is within the noise."""
    last, baseline = env.last_measurement, env.baseline
    if not (last.ok and baseline.ok and last.time_s and baseline.time_s):
        return 1.0
    faster = baseline.time_s / last.time_s
    return faster if faster >= 1 + LEAST_GAIN and not tied(last, baseline) else 1.0


def report(runs: Sequence[Run], command: str) -> tuple[str, dict[str, Any]]:
    """The table as Markdown, and everything as data."""
    tasks = list(dict.fromkeys(run.task for run in runs))
    seeds = len({run.seed for run in runs})
    by = {
        (task, agent): [run for run in runs if (run.task, run.agent) == (task, agent)]
        for task in tasks
        for agent in AGENTS
    }
    mean = {key: float(np.mean([run.steps for run in own])) for key, own in by.items()}

    def fewer(agent: str, other: str) -> float:
        """By how much fewer steps an agent takes: geometric mean over tasks of the ratio of mean steps."""
        return 1 - math.exp(np.mean([math.log(mean[task, agent] / mean[task, other]) for task in tasks]))

    both, masks, neither = AGENTS
    pairs = {"both": (both, neither), "masks": (masks, neither), "patterns": (both, masks)}
    savings = {name: fewer(*pair) for name, pair in pairs.items()}
    intervals = {name: bootstrap(by, tasks, *pair) for name, pair in pairs.items()}
    lines = [
        "# Masks and patterns",
        "",
        f"Written by `{command}`. Steps of random agents until the first candidate that is faster than the "
        f"untouched one (by {LEAST_GAIN:.0%}, and outside the noise): mean over {seeds} seeds, in brackets "
        f"how many found one within {runs[0].cap} steps. Those that did not count as {runs[0].cap}.",
        "",
        f"| task | {' | '.join(AGENTS)} | illegal steps of `neither` |",
        "|---|---|---|---|---|",
    ]
    for task in tasks:
        cells = [
            f"{mean[task, agent]:.1f} ({sum(run.improved for run in by[task, agent])} of {seeds})"
            for agent in AGENTS
        ]
        wild = by[task, neither]
        share = sum(run.illegal for run in wild) / sum(run.steps for run in wild)
        lines.append(f"| `{task}` | {' | '.join(cells)} | {share:.0%} |")
    words = {
        "both": "masks and patterns against neither",
        "masks": "masks alone against neither",
        "patterns": "patterns on top of masks",
    }
    lines += ["", "| fewer steps, geometric mean over tasks | | 95% interval over seeds |", "|---|---|---|"]
    for name, text in words.items():
        low, high = intervals[name]
        lines.append(f"| {text} | {savings[name]:.0%} | {low:.0%} to {high:.0%} |")
    data = {
        "command": command,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_fingerprint(),
        "versions": {"solgym": solgym.__version__, "python": platform.python_version()},
        "fewer_steps": savings,
        "intervals": intervals,
        "runs": [asdict(run) for run in runs],
    }
    return "\n".join(lines) + "\n", data


def bootstrap(
    by: dict[tuple[str, str], list[Run]], tasks: Sequence[str], agent: str, other: str
) -> tuple[float, float]:
    """95% interval of ``fewer``, seeds drawn with replacement within each task and agent."""
    rng = np.random.default_rng(0)
    total = np.zeros(10_000)
    for task in tasks:
        for name, sign in ((agent, 1.0), (other, -1.0)):
            steps = np.array([run.steps for run in by[task, name]], dtype=float)
            drawn = steps[rng.integers(len(steps), size=(len(total), len(steps)))]
            total += sign * np.log(drawn.mean(axis=1))
    low, high = np.percentile(1 - np.exp(total / len(tasks)), (2.5, 97.5))
    return float(low), float(high)


if __name__ == "__main__":
    try:
        main()
    except SolgymError as error:
        sys.exit(str(error))
