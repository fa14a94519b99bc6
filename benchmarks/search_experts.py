"""Search for the pass sequences that the environments ship as experts, and write them to ``experts.json``.

    python benchmarks/search_experts.py --minutes 60

For each program it measures the seeds below, what other programs found, and changes of the best so far, at
the program's default shape; then it takes the sequence with the best geometric mean over the training
programs as the overall one. It continues from what ``experts.json`` holds, so running it again can only
improve the data. The last contenders of a program are timed in turns before the data changes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from solgym.envs.mlir_passes.catalogue import ACTION_INDEX, ACTIONS
from solgym.envs.mlir_passes.client import ModuleView, PassFailure, PassWorker, default_pass_worker
from solgym.envs.mlir_passes.programs import PROGRAMS, ProgramTask, parse_task
from solgym.envs.mlir_passes.sequence import PassSequence
from solgym.hardware.measurement import Measurement, MeasurePolicy
from solgym.hardware.target import Artifact, CpuTarget, Failure

DATA = Path(__file__).parents[1] / "envs" / "mlir_passes" / "experts.json"
SEEDS = Path(__file__).with_name("expert_seeds.json")
QUICK = MeasurePolicy(max_seconds=0.04, min_repeats=5, timeout_s=2.0, unstable_ci=1e6)
CAREFUL = MeasurePolicy(max_seconds=0.4, timeout_s=5.0)
Actions = tuple[str, ...]
OVERALL_FINALISTS = 12


class Bench:
    """Measures sequences on one task, and remembers."""

    def __init__(self, target: CpuTarget, task_id: str) -> None:
        self.target = target
        self.task: ProgramTask = parse_task(task_id)
        self.worker: PassWorker = default_pass_worker()
        self.known: dict[str, tuple[Actions, float]] = {}
        self.plain = self.seconds(())

    def apply(self, sequence: Actions) -> tuple[Actions, ModuleView | None]:
        """The actions of a sequence that are offered, succeed and change something, and the module."""
        taken: Actions = ()
        view = self.worker.view(self.task, ())
        last = view if isinstance(view, ModuleView) else None
        for action in sequence:
            if last is None or action not in ACTION_INDEX or not last.mask[ACTION_INDEX[action]]:
                continue
            stepped = self.worker.step(self.task, taken, action)
            if isinstance(stepped, PassFailure) or not stepped.changed:
                continue
            taken, last = (*taken, action), stepped
        return taken, last

    def seconds(self, sequence: Actions) -> float:
        """Time of a sequence, infinite where it fails."""
        taken, view = self.apply(sequence)
        digest = "" if view is None else view.digest
        if digest not in self.known:
            measured = self.target.evaluate(PassSequence(self.task.id, taken), self.task, QUICK)
            good = measured.ok and measured.time_s is not None
            self.known[digest] = (taken, measured.time_s if good else math.inf)  # type: ignore[assignment]
        return self.known[digest][1]

    def ranked(self) -> list[Actions]:
        """All different modules' sequences, fastest first."""
        good = [(seconds, taken) for taken, seconds in self.known.values() if seconds < math.inf]
        return [taken for _, taken in sorted(good, key=lambda pair: (pair[0], len(pair[1])))]

    def finals(self, sequences: list[Actions]) -> list[tuple[Actions, Measurement]]:
        """The sequences timed in turns, with the plain pipeline last."""
        candidates = [PassSequence(self.task.id, s) for s in (*sequences, ())]
        compiled = [self.target.compile(candidate, self.task) for candidate in candidates]
        artifacts = [item for item in compiled if isinstance(item, Artifact)]
        timed = iter(self.target.measure_in_turns(artifacts, self.task, CAREFUL))
        results = [item.measurement() if isinstance(item, Failure) else next(timed) for item in compiled]
        return [(candidate.actions, result) for candidate, result in zip(candidates, results, strict=True)]


def changed(rng: np.random.Generator, bench: Bench, best: list[Actions]) -> Actions:
    """A neighbour of one of the best sequences."""
    base = best[int(rng.integers(min(3, len(best))))] if best else ()
    kind = rng.choice(["insert", "insert", "delete", "replace", "swap", "cross", "extend"])
    actions = list(base)
    if kind == "cross" and len(best) > 1:
        other = best[int(rng.integers(min(6, len(best))))]
        cut = int(rng.integers(len(base) + 1))
        tail = int(rng.integers(len(other) + 1))
        return (*base[:cut], *other[tail:])
    if kind == "delete" and actions:
        del actions[int(rng.integers(len(actions)))]
        return tuple(actions)
    if kind == "swap" and len(actions) > 1:
        i = int(rng.integers(len(actions) - 1))
        actions[i], actions[i + 1] = actions[i + 1], actions[i]
        return tuple(actions)
    where = len(actions) if kind == "extend" else int(rng.integers(len(actions) + 1))
    view = bench.worker.view(bench.task, tuple(actions[:where]))
    if isinstance(view, PassFailure):
        return tuple(actions)
    offered = [a.name for a in ACTIONS[1:] if view.mask[ACTION_INDEX[a.name]]]
    if kind == "replace" and where < len(actions):
        stem = actions[where].rsplit("-", 1)[0]
        alike = [name for name in offered if name.startswith(stem.split("-m")[0].split("-r")[0])]
        actions[where] = str(rng.choice(alike or offered))
    else:
        actions.insert(where, str(rng.choice(offered)))
    return tuple(actions)


def improve(
    bench: Bench, seeds: list[Actions], seconds: float, rng: np.random.Generator
) -> tuple[Actions, float]:
    """The best sequence for a task and its speedup over the plain pipeline."""
    end = time.monotonic() + seconds
    for seed in seeds:
        bench.seconds(seed)
        if time.monotonic() > end + 2 * seconds:
            break
    while time.monotonic() < end:
        bench.seconds(changed(rng, bench, bench.ranked()))
    timed = bench.finals(bench.ranked()[:6])
    plain = timed[-1][1].time_s or math.inf
    good = [(result.time_s, actions) for actions, result in timed if result.ok and result.time_s is not None]
    best_s = min(seconds for seconds, _ in good)
    shortest = min((a for s, a in good if s <= 1.01 * best_s), key=len)
    return shortest, plain / best_s


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="0: only the overall sequence")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=None, help="programs, by name")
    parser.add_argument("--skip-overall", action="store_true")
    chosen = parser.parse_args()
    data: dict[str, Any] = (
        json.loads(DATA.read_text()) if DATA.exists() else {"overall": {"sequence": []}, "programs": {}}
    )
    seeds = [tuple(s) for s in json.loads(SEEDS.read_text())]
    target, rng = CpuTarget(), np.random.default_rng(chosen.seed)
    names = [name for name in PROGRAMS if chosen.only is None or name in chosen.only]
    benches: dict[str, Bench] = {}
    for name in names:
        program = PROGRAMS[name]
        benches[name] = Bench(target, program.default_task_id)
        key = f"{name}/{program.dtypes[0]}"
        if not chosen.minutes:
            continue
        own = [tuple(data["programs"][key])] if key in data["programs"] else []
        shared = list(dict.fromkeys(tuple(s) for s in data["programs"].values()))
        best, speedup = improve(benches[name], [*own, *seeds, *shared], chosen.minutes * 60 / len(names), rng)
        print(
            f"{name:24s} {speedup:7.2f}x  {len(benches[name].known):4d} modules  {' '.join(best)}", flush=True
        )
        data["programs"][key] = list(best)
        write(data)
    if not chosen.skip_overall:
        training = [bench for name, bench in benches.items() if PROGRAMS[name].split == "train"]
        data["overall"] = overall(training, data)
        write(data)


def overall(benches: Sequence[Bench], data: dict[str, Any]) -> dict[str, Any]:
    """The sequence with the best geometric mean of speedups over training programs; a failure counts as 1.

    All contenders run on every sixth program; the best of them on all.
    """
    known = [tuple(s) for s in (*data["programs"].values(), *json.loads(SEEDS.read_text()))]
    some = benches[::6]
    ranked = [sequence for _, sequence in by_score(list(dict.fromkeys(known)), some)]
    # What begins on tensors does nothing to programs on buffers, so one may follow the other.
    on_buffers = [sequence for sequence in ranked if sequence and sequence[0].startswith("affine-")]
    joined = [(*first, *second) for first in ranked[:6] for second in on_buffers[:6]]
    best = [sequence for _, sequence in by_score([*ranked[:OVERALL_FINALISTS], *joined], some)]
    scores = by_score(best[:OVERALL_FINALISTS], benches)
    for score, sequence in scores[:3]:
        print(f"overall {score:.2f}x {' '.join(sequence)}", flush=True)
    return {"sequence": list(scores[0][1])}


def by_score(contenders: Sequence[Actions], benches: Sequence[Bench]) -> list[tuple[float, Actions]]:
    """Contenders with their geometric mean of speedups, best first."""
    scores = []
    for sequence in contenders:
        times = [(bench.plain, bench.seconds(sequence)) for bench in benches]
        logs = [math.log(plain / seconds) if seconds < math.inf else 0.0 for plain, seconds in times]
        scores.append((math.exp(sum(logs) / len(logs)), sequence))
    return sorted(scores, key=lambda pair: (-pair[0], len(pair[1])))


def write(data: dict[str, Any]) -> None:
    """Write the data in one step."""
    temporary = DATA.with_suffix(".new")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(DATA)


if __name__ == "__main__":
    main()
