"""The tables of programs and actions as Markdown. In a checkout, running this module writes them into
docs/mlir_passes.md.
"""

from __future__ import annotations

from pathlib import Path

from solgym.envs.mlir_passes.catalogue import ACTIONS
from solgym.envs.mlir_passes.programs import SUITES

__all__ = ["action_table", "program_table", "with_tables"]


def program_table(suite: str) -> str:
    """The programs of a suite."""
    lines = [
        "| id | what it computes | element types | default task | held out |",
        "|---|---|---|---|---|",
    ]
    for program in SUITES[suite]:
        held_out = "program" if program.split == "test" else "shapes"
        summary = program.summary.replace("|", "\\|")
        lines.append(
            f"| `MLIRPasses-{program.env_id}-v0` | {summary} | {', '.join(program.dtypes)} "
            f"| `{program.default_task_id}` | {held_out} |"
        )
    return "\n".join(lines)


def action_table() -> str:
    """The catalogue of actions."""
    lines = ["| action | level | what it does | passes | needs |", "|---|---|---|---|---|"]
    for action in ACTIONS:
        made_of = (
            f"`{action.pipeline}`" if action.pipeline else "a transform script" if action.transform else ""
        )
        lines.append(
            f"| `{action.name}` | {action.level} | {action.summary} | {made_of} | {', '.join(action.needs)} |"
        )
    return "\n".join(lines)


def with_tables(page: str) -> str:
    """A page with its tables as they are now, between ``<!-- actions -->`` and ``<!-- end -->`` and so on."""
    tables = {"polybench": program_table("PolyBench"), "ml": program_table("ML"), "actions": action_table()}
    for name, table in tables.items():
        before, begun, rest = page.partition(f"<!-- {name} -->\n")
        _, ended, after = rest.partition("<!-- end -->")
        page = f"{before}{begun}{table}\n{ended}{after}"
    return page


if __name__ == "__main__":
    _page = Path(__file__).resolve().parents[2] / "docs" / "mlir_passes.md"
    _page.write_text(with_tables(_page.read_text(encoding="utf-8")), encoding="utf-8")
