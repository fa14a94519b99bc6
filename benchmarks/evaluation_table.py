"""Turns a training run and the evaluation of its policy into a page of Markdown with the run's curves.

    python benchmarks/evaluation_table.py runs/train_gemm runs/evaluate_gemm -o docs/results/ppo_gemm.md

The first folder is what ``solgym train`` wrote, the second what ``solgym evaluate`` did. It measures nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from solgym.baselines.plots import format_seconds
from solgym.baselines.rl.evaluation import Evaluation, EvaluationRow
from solgym.errors import SolgymError
from solgym.hardware.atomic_files import write_atomically

NAMES = {
    "expert": "the task's expert",
    "fixed": "the best fixed pipeline",
    "untouched": "the untouched candidate",
}


def page(title: str, run: Path, evaluation: Evaluation, command: str, picture: str) -> str:
    """The page as Markdown."""
    info = json.loads((run / "run.json").read_text(encoding="utf-8"))
    last = json.loads((run / "progress.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    references = [name for name in NAMES if evaluation.summary(name) is not None]  # type: ignore[arg-type]
    lines = [f"# {title}", "", f"Written by `{command}`.", "", *_conditions(info, last, evaluation), ""]
    lines += [f"![Learning curves]({picture})", "", "## Held-out tasks, one episode each, no search", ""]
    lines += ["| times as fast as | tasks | geomean over tasks | geomean over programs | best program |"]
    lines += ["|---|---|---|---|---|"]
    for name in references:
        found = evaluation.summary(name)  # type: ignore[arg-type]
        assert found is not None
        program, ratio = found.best_program
        lines.append(
            f"| {NAMES[name]} | {found.tasks} | {found.geomean_tasks:.3f} | {found.geomean_programs:.3f} "
            f"| {program} {ratio:.2f} |"
        )
    lines += ["", "## By task", "", *_rows(evaluation.rows, references)]
    return "\n".join(lines) + "\n"


def _conditions(info: dict[str, Any], last: dict[str, Any], evaluation: Evaluation) -> list[str]:
    statistics = last["statistics"]
    versions = ", ".join(f"{name} {number}" for name, number in info["versions"].items())
    discarded = f"{statistics['discarded_share']:.1%} in the last segment"
    return [
        "| | |",
        "|---|---|",
        f"| training | `{info['command']}` |",
        f"| steps, seconds | {last['steps']}, {last['seconds']:.0f} |",
        f"| tasks | {len(info['tasks'])} trained on, {len(evaluation.rows)} held out |",
        f"| machine | {info['machine']} |",
        f"| versions | {versions}; {info['toolchain']} |",
        f"| samples thrown away while timing | {discarded} |",
        f"| policy | {evaluation.header.algo}, `{evaluation.header.policy[:16]}` |",
    ]


def _rows(rows: tuple[EvaluationRow, ...], references: list[str]) -> list[str]:
    titles = " | ".join(f"x {name}" for name in references)
    lines = [
        f"| task | status | steps | time | gap closed | {titles} |",
        "|---" * (5 + len(references)) + "|",
    ]
    programs: dict[str, list[EvaluationRow]] = defaultdict(list)
    for row in rows:
        programs[row.program].append(row)
    for found in programs.values():
        for row in found:
            ratios = [row.ratio(name) for name in references]  # type: ignore[arg-type]
            shown = " | ".join("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)
            time = format_seconds(row.time_s)
            lines.append(
                f"| `{row.task}` | {row.status} | {row.steps} | {time} | {row.gap_closed:.3f} | {shown} |"
            )
    return lines


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of solgym train")
    parser.add_argument("evaluation", type=Path, help="folder of solgym evaluate")
    parser.add_argument("-o", "--out", type=Path, required=True, help="Markdown file")
    parser.add_argument("--title", default="PPO", help="heading of the page")
    arguments = parser.parse_args()
    picture = arguments.out.with_suffix(".png")
    try:
        evaluation = Evaluation.from_json((arguments.evaluation / "evaluation.json").read_bytes())
        shutil.copyfile(arguments.run / "learning.png", picture)
    except (OSError, SolgymError) as error:
        parser.error(str(error))
    command = (
        f"python benchmarks/evaluation_table.py {arguments.run} {arguments.evaluation} -o {arguments.out}"
    )
    write_atomically(arguments.out, page(arguments.title, arguments.run, evaluation, command, picture.name))


if __name__ == "__main__":
    main()
