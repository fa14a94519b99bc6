"""``solgym compile`` as a user meets it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from solgym.cli import app

PROGRAM = """
func.func @scale(%A: memref<40xf32>) {
  %two = arith.constant 2.0 : f32
  affine.for %i = 0 to 40 {
    %a = affine.load %A[%i] : memref<40xf32>
    %b = arith.mulf %a, %two : f32
    affine.store %b, %A[%i] : memref<40xf32>
  }
  return
}
func.func @other(%A: memref<40xf32>) { return }
"""
WITH_RESULT = (
    "func.func @main(%A: memref<f32>) -> f32 { %a = memref.load %A[] : memref<f32> return %a : f32 }"
)


def compile_command(*arguments: str | Path):
    return CliRunner().invoke(app, ["compile", *(str(argument) for argument in arguments)])


def test_a_task_becomes_ptx_and_host_steps(tmp_path):
    result = compile_command("gemm/f32/m8n8k8", "--chip", "sm_80", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "gemm/f32/m8n8k8 for sm_80" in result.stdout
    assert "2 launches a run" in result.stdout
    ptx = (tmp_path / "out" / "kernel.ptx").read_text()
    steps = json.loads((tmp_path / "out" / "host_steps.json").read_text())
    assert ".target sm_80" in ptx
    for kernel in steps["kernels"]:
        assert kernel["name"] in result.stdout
        assert f".entry {kernel['name']}(" in ptx
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["host_steps.json", "kernel.ptx"]


def test_a_file_needs_its_function_and_takes_passes(tmp_path):
    file = tmp_path / "scale.mlir"
    file.write_text(PROGRAM)
    result = compile_command(
        file, "--function", "scale", "--passes", "affine-unroll-4, canonicalize", "-o", tmp_path
    )
    assert result.exit_code == 0, result.output
    # Ten threads, one warp, of which each stores four elements.
    assert "1 x 1 x 1  32 x 1 x 1" in result.stdout
    assert (tmp_path / "kernel.ptx").read_text().count("st.global.v4.b32") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gemm/f32/m8n8k8", "--chip", "sm_70"), "sm_80 or sm_90"),
        (("gemm/f32/m8n8k8", "--function", "main"), "leave it out"),
        (("gemm/f32/m8n8k8", "--passes", "canonicalise"), "did you mean canonicalize"),
        (("fft/f32/n8",), "no program 'fft'"),
        (("nothing.mlir",), "nothing.mlir"),
        (("two.mlir",), "function"),
        (("result.mlir",), "f32"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("two.mlir").write_text(PROGRAM)
    Path("result.mlir").write_text(WITH_RESULT)
    before = sorted(tmp_path.iterdir())
    result = compile_command(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("solgym: ")
    assert words in line
    assert sorted(tmp_path.iterdir()) == before
