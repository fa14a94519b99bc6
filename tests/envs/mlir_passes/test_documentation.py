"""The page on MLIRPasses says what the code says."""

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from solgym.envs.base import TuningEnv
from solgym.envs.info import StepInfo
from solgym.envs.mlir_passes.crash_log import MAX_BYTES
from solgym.envs.mlir_passes.env import MLIRPassesEnv
from solgym.envs.mlir_passes.facts import MAX_OPERATIONS
from solgym.envs.mlir_passes.gpu_code import CHIPS
from solgym.envs.mlir_passes.modes import PASS_TIMEOUT_S
from solgym.envs.mlir_passes.tables import with_tables

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "mlir_passes.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code():
    """``python -m solgym.envs.mlir_passes.tables`` writes them anew."""
    for name in ("polybench", "ml", "actions"):
        assert f"<!-- {name} -->\n| " in PAGE
    assert with_tables(PAGE) == PAGE


def test_every_argument_is_in_the_manual():
    arguments = set(inspect.signature(MLIRPassesEnv).parameters) - set(
        inspect.signature(TuningEnv).parameters
    )
    manual = MLIRPassesEnv.__doc__ or ""
    assert [name for name in arguments - {"arguments"} if f"* `{name}`" not in manual] == []


def test_every_key_of_info_that_other_families_lack_is_explained():
    (line,) = re.findall(r"`info` has .*?\n\n", PAGE, re.DOTALL)
    source = inspect.getsource(MLIRPassesEnv._info)
    own = set(re.findall(r'"(\w+)": ', source)) - set(StepInfo.__annotations__)
    assert own == {"unchanged", "level", "operations", "fallback"}
    assert [name for name in own if f"`{name}`" not in line] == []


def test_the_limits_are_those_of_the_code():
    assert f"more than {MAX_OPERATIONS:,} operations" in PAGE
    assert f"more than {PASS_TIMEOUT_S:g} seconds" in PAGE
    assert f"at {MAX_BYTES >> 20} MiB it is put aside" in PAGE
    for chip in CHIPS:
        assert f"`{chip}`" in PAGE


def test_every_option_of_the_commands_for_modules_is_explained():
    from solgym.commands.opt import opt

    (section,) = re.findall(r"## Passes by hand.*?(?=\n## )", PAGE, re.DOTALL)
    for name in set(inspect.signature(opt).parameters) - {"file"}:
        assert f"`--{name}" in section


def test_the_code_runs():
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    # A small task of the same environment: what is tested is the interface.
    small = code.replace(
        '"MLIRPasses-Gemm-v0")', '"MLIRPasses-Gemm-v0", task="gemm/f32/m16n16k16", max_steps=3)'
    )
    assert small != code
    subprocess.run([sys.executable, "-c", small], cwd=ROOT, check=True, timeout=120)


def test_the_commands_for_modules_run(tmp_path, monkeypatch):
    from solgym.cli import app

    monkeypatch.chdir(tmp_path)
    (commands,) = re.findall(r"## Passes by hand.*?```\n(.*?)```", PAGE, re.DOTALL)
    made, opened, _ = (shlex.split(command)[1:] for command in commands.splitlines())
    result = CliRunner().invoke(app, made[: made.index(">")])
    assert result.exit_code == 0, result.output
    Path(made[-1]).write_text(result.stdout)
    result = CliRunner().invoke(app, opened)
    assert result.exit_code == 0, result.output
    (shown,) = re.findall(r"```\n(step .*?)\n```", PAGE, re.DOTALL)
    assert _first_columns(result.stdout) == _first_columns(shown)


def _first_columns(table: str) -> list[list[str]]:
    """Step, action and whether it changed something; how much and how fast may differ."""
    return [line.split()[:3] for line in table.splitlines()]
