"""Chooses few pass sequences that serve many programs, for policies to imitate.

    python benchmarks/choose_teachers.py -o benchmarks/teachers.json --measurements runs/teachers.jsonl

Every program's own sequence was searched for by itself, so programs that need the same have different ones,
and a policy cannot tell why. This measures the shipped sequences of all training programs on each training
program, keeps the fewest that reach ``--keep`` of what all reach (geometric mean), and gives each program the
best of those. Held-out programs are never looked at. What was measured is kept, so the command goes on where
it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from solgym.baselines.runner import make_env
from solgym.envs.mlir_passes.env import MLIRPassesEnv
from solgym.envs.mlir_passes.experts import applicable, known_sequence, overall_sequence
from solgym.envs.mlir_passes.programs import PROGRAMS, Program
from solgym.envs.mlir_passes.sequence import PassSequence
from solgym.hardware.atomic_files import write_atomically

Passes = tuple[str, ...]
TIE = 0.02
"""A sequence this much slower than the best counts as equal to it, and the more widely used one is taken."""


def training_programs() -> list[Program]:
    """The programs that are not held out."""
    return [program for program in PROGRAMS.values() if program.split == "train"]


def shipped_sequences() -> list[Passes]:
    """Every sequence that is known for a training program, the overall one, and none at all."""
    own = [tuple(known_sequence(program.default_task_id)) for program in training_programs()]
    return list(dict.fromkeys([(), tuple(overall_sequence()), *own]))


def measure(file: Path) -> dict[str, dict[Passes, float]]:
    """Speedups over the untouched module, by program and sequence; 1 where a sequence fails."""
    known = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            known[row["program"]] = {tuple(sequence): speedup for sequence, speedup in row["speedups"]}
    sequences = shipped_sequences()
    with closing(make_env("MLIRPasses-All-v0")) as env, file.open("a", encoding="utf-8") as out:
        assert isinstance(env, MLIRPassesEnv)
        for program in training_programs():
            if program.name in known:
                continue
            env.reset(seed=0, options={"task": program.task_ids("train")[0]})
            baseline_s = env.baseline.time_s
            assert baseline_s is not None, program.name
            speedups = {}
            for sequence in sequences:
                result = env.evaluate(PassSequence(env.task.id, applicable(env.task, sequence)))
                speedups[sequence] = baseline_s / result.time_s if result.ok and result.time_s else 1.0
            known[program.name] = speedups
            row = {"program": program.name, "speedups": [[list(s), v] for s, v in speedups.items()]}
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(f"{program.name:<24} best {max(speedups.values()):.2f}x", flush=True)
    return known


def choose(speedups: Mapping[str, Mapping[Passes, float]], keep: float) -> list[Passes]:
    """The fewest sequences, found greedily, that reach ``keep`` of what all sequences reach."""
    every = sorted({sequence for row in speedups.values() for sequence in row})

    def geomean(chosen: Sequence[Passes]) -> float:
        best = [max((row[s] for s in chosen), default=1.0) for row in speedups.values()]
        return math.exp(sum(map(math.log, best)) / len(best))

    chosen: list[Passes] = []
    while geomean(chosen) < keep * geomean(every):
        chosen.append(max(every, key=lambda sequence: geomean([*chosen, sequence])))
    return chosen


def assign(row: Mapping[Passes, float], chosen: Sequence[Passes]) -> Passes:
    """The best sequence for a program; of those that tie, the one that was chosen first."""
    best = max(row[sequence] for sequence in chosen)
    return next(sequence for sequence in chosen if row[sequence] >= best * (1 - TIE))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file of candidates")
    parser.add_argument("--measurements", type=Path, required=True, help="JSON Lines file, kept")
    parser.add_argument("--keep", type=float, default=0.95, help="share of what all sequences reach")
    arguments = parser.parse_args()
    arguments.measurements.parent.mkdir(parents=True, exist_ok=True)
    speedups = measure(arguments.measurements)
    chosen = choose(speedups, arguments.keep)
    taught = []
    with closing(make_env("MLIRPasses-All-v0")) as env:
        for program in training_programs():
            sequence = assign(speedups[program.name], chosen)
            for task_id in program.task_ids("train"):
                task = env.choose_task(task_id)
                taught.append(PassSequence(task_id, applicable(task, sequence)).to_json())
    for sequence in chosen:
        users = [name for name, row in speedups.items() if assign(row, chosen) == sequence]
        print(f"{len(users):3d} programs: {' '.join(sequence) or '(none)'}\n    {', '.join(users)}")
    write_atomically(arguments.out, json.dumps(taught, indent=0) + "\n")


if __name__ == "__main__":
    main()
