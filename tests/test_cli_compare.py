"""``solgym compare`` as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

from solgym.cli import app
from tests.baselines.traces import FIRST, SECOND, write_run, write_two_methods


def solgym(*arguments, width=120):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": str(width)})


def test_compare_prints_a_table_over_tasks_and_one_by_task(tmp_path):
    result = solgym("compare", write_two_methods(tmp_path / "runs"))
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    # Best first; the figures are worked out in tests/baselines.
    overall = [line for line in lines if line.startswith(("tpe 4", "random 4"))]
    assert overall[0].startswith("tpe 4 0.875 [0.750, 0.875]")
    assert "0.938 [0.750, 1.000]" in overall[0]
    assert overall[1].startswith("random 4 0.375 [0.125, 0.500]")
    assert f"{FIRST} 0.375 0.625" in lines
    assert f"{SECOND} 0.250 1.000" in lines


@pytest.mark.parametrize("width", [40, 60, 80])
def test_narrow_terminals_lose_columns_but_no_digit(tmp_path, width):
    result = solgym("compare", write_two_methods(tmp_path / "runs"), width=width)
    assert result.exit_code == 0, result.output
    assert "…" not in result.stdout
    assert "0.875 [0.750, 0.875]" in result.stdout


def test_compare_writes_the_page_the_pictures_and_the_data(tmp_path):
    out = tmp_path / "out"
    result = solgym("compare", write_two_methods(tmp_path / "runs"), "-o", out, "--target", "0.5")
    assert result.exit_code == 0, result.output
    names = {path.name for path in out.iterdir()}
    assert names == {
        "comparison.html", "comparison.json", "curves_measurements.png", "curves_seconds.png", "final.png",
        "improvement.png",
    }  # fmt: skip
    assert json.loads((out / "comparison.json").read_text())["fraction"] == 0.5
    assert all(name in result.stdout for name in names)


def test_compare_without_out_writes_nothing(tmp_path, monkeypatch):
    runs = write_two_methods(tmp_path / "runs")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert solgym("compare", runs).exit_code == 0
    assert list((tmp_path / "here").iterdir()) == []


def test_runs_of_two_machines_are_refused_in_one_sentence(tmp_path):
    write_run(tmp_path / "a", [0.5])
    write_run(tmp_path / "b", [0.5], tuner="tpe", device="another")
    result = solgym("compare", tmp_path)
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.strip()]
    assert line.startswith("solgym: the runs of gemm/f32/m8n8k8 differ in device")
    told = solgym("compare", tmp_path, "--anyway")
    assert told.exit_code == 0
    assert "compared anyway" in " ".join(told.stdout.split())
