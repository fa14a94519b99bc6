"""The command line as a user meets it: what it prints, what it writes, and what it says about mistakes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from solgym.baselines.trace import read_trace
from solgym.cli import app
from solgym.hardware.profile import load_profile

PUBLISHED = "ryzen-9950x"
SMALL = ("KernelDSL-GEMM-v0", "--task", "gemm/f32/m48n40k33")
PNG = b"\x89PNG\r\n\x1a\n"


def solgym(*arguments: str | Path):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeeds(*arguments: str | Path) -> str:
    result = solgym(*arguments)
    assert result.exit_code == 0, f"{result.output}\n{result.exception!r}"
    return result.stdout


def is_refused(*arguments: str | Path) -> str:
    """Run a command that holds a mistake; returns the one sentence that it must answer with."""
    result = solgym(*arguments)
    assert result.exit_code == 2, f"{result.exit_code}: {result.output}\n{result.exception!r}"
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("solgym: ")
    return lines[0]


def test_list_names_every_environment_and_its_tasks():
    assert "KernelDSL-Softmax-v0" in succeeds("list")
    tasks = succeeds("list", "softmax", "--tasks")
    assert "softmax/f32/rows512cols1024  (default)" in tasks
    assert "gemm" not in tasks
    assert "no environment" in is_refused("list", "nonsense")


def test_bounds_explain_themselves_and_draw_a_roofline(tmp_path):
    plot = tmp_path / "roofline.png"
    text = succeeds("bounds", "gemm/f32/m512n512k512", "--profile", PUBLISHED, "--plot", plot)
    assert "compute" in text
    assert "binds" in text
    assert plot.read_bytes().startswith(PNG)


def test_show_prints_a_task_as_loops_llvm_and_assembly():
    assert "C[i, j]" in succeeds("show", "gemm/f32/m8n8k8")
    assert "define" in succeeds("show", "gemm/f32/m8n8k8", "--as", "llvm")
    assert ".text" in succeeds("show", "gemm/f32/m8n8k8", "--as", "asm")


def test_show_prints_a_schedule_step_by_step(tmp_path):
    file = tmp_path / "schedule.json"
    step = {"op": "split", "stage": "C", "loop": "i", "factor": 4}
    file.write_text(json.dumps({"version": 1, "task": "gemm/f32/m16n8k8", "steps": [step]}))
    text = succeeds("show", file, "--steps")
    assert text.count("# ") == 2
    assert "after step 1: split stage=C loop=i factor=4" in text


def test_doctor_finds_nothing_broken_here():
    text = succeeds("doctor")
    assert "compiler    works" in text
    assert "broken" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bounds", "gemm"), "gemm/f32/m512n512k512"),
        (("bounds", "fft/f32/n8"), "no kernel 'fft'"),
        (("bounds", "gemm/f32/m8n8k8", "--profile", "nonsense"), "nonsense"),
        (("show", "nothing.json"), "no file nothing.json"),
        (("show", "gemm/f16/m8n8k8"), "f16"),
        (("show", "gemm/f32/m8n8k8", "--as", "asm", "--steps"), "--steps"),
        (("tune", "KernelDSL-GEM-v0"), "KernelDSL-GEMM-v0"),
        (("tune", "CartPole"), "solgym list"),
        (("tune", *SMALL, "--budget", "0"), "at least 1"),
        (("tune", *SMALL, "--seconds", "-1"), "positive"),
        (("tune", *SMALL, "--seed", "-1"), "negative"),
        (("tune", *SMALL, "--tuner", "oracle"), "random"),
        (("tune", *SMALL, "--mode", "dials"), "knobs or primitive"),
        (("tune", *SMALL, "--threads", "0"), "threads"),
        (("tune", "KernelDSL-GEMV-v0", "--task", "gemm/f32/m8n8k8"), "belongs to"),
        (("replay", "nowhere"), "cannot read the trace nowhere"),
    ],
)
def test_a_mistake_is_one_sentence_that_says_what_to_do(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in is_refused(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Usage"),
        (("frobnicate",), "frobnicate"),
        (("--nonsense",), "--nonsense"),
        (("tune",), "Missing argument 'ENV'; see `"),
        (("tune", *SMALL, "--budget", "1e9"), "--budget"),
        (("tune", *SMALL, "--seconds", "nan"), "positive, finite"),
        (("replay", "run", "--tolerance", "nan"), "--tolerance"),
        (("bounds", "gemm/f32/m8n8k8", "--threads", "0"), "--threads"),
        (("bounds", "gemm/f32/m8n8k8", "--profile", PUBLISHED, "--plot", "roofline.xyz"), "'xyz'"),
        (("show", "gemm/f32/m8n8k8", "--as", "poem"), "nest"),
    ],
)
def test_a_command_that_cannot_be_read_is_one_sentence_too(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if arguments:
        assert words in is_refused(*arguments)
    else:
        assert words in solgym().output
    assert list(tmp_path.iterdir()) == []


def run_command(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run a command as a shell does, with streams of the operating system's."""
    command = [sys.executable, "-m", "solgym.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output="stdout" not in options, timeout=240, **options)


def test_a_reader_that_goes_away_ends_a_command_quietly(tmp_path):
    for arguments in (("list",), ("show", "gemm/f32/m8n8k8", "--as", "llvm")):
        reading, writing = os.pipe()
        os.close(reading)
        try:
            result = run_command(*arguments, stdout=writing, stderr=subprocess.PIPE)
        finally:
            os.close(writing)
        assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_sentence():
    for arguments in (("list",), ("show", "gemm/f32/m8n8k8")):
        with open("/dev/full", "wb") as full:
            result = run_command(*arguments, stdout=full, stderr=subprocess.PIPE)
        assert result.returncode == 2
        assert result.stderr == b"solgym: cannot read or write: No space left on device\n"


def test_a_terminal_without_unicode_gets_plain_letters_and_names_of_any_bytes(finished_run, tmp_path):
    folder = os.fsencode(tmp_path) + b"/run-\xff"
    shutil.copytree(finished_run, os.fsdecode(folder))
    plain = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = run_command(
        "tune", *SMALL, "--budget", "10", "--seed", "3", "--out", os.fsdecode(folder), env=plain
    )
    assert result.returncode == 0, result.stderr
    assert b" us" in result.stdout
    assert b"+-" in result.stdout
    assert folder + b"/best.json" in result.stdout


def test_a_warning_is_a_sentence_without_a_line_of_code(tmp_path, monkeypatch):
    from solgym.hardware import profile_store

    monkeypatch.setattr(profile_store, "_calibrate", lambda *_: load_profile(PUBLISHED))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOLGYM_CACHE_DIR", str(tmp_path / "file"))
    result = solgym("calibrate")
    assert result.exit_code == 0
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("solgym: warning: cannot keep the calibrated profile")
    assert "kept in" not in result.stdout


def test_the_doctor_sees_that_a_file_is_no_cache_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOLGYM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert "cache       limited" in solgym("doctor").stdout


@pytest.mark.parametrize("columns", ["0", "1", "40"])
def test_a_terminal_of_any_width_shows_the_environments(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert "KernelDSL-GEMM-v0" in succeeds("list")


def test_a_damaged_schedule_or_profile_file_is_one_sentence(tmp_path):
    file = tmp_path / "file.json"
    file.write_text("{")
    assert "JSON" in is_refused("show", file)
    assert str(file) in is_refused("bounds", "gemm/f32/m8n8k8", "--profile", file)
    file.write_text(json.dumps({"version": 1, "task": "gemm/f32/m8n8k8", "steps": [{"op": "split"}]}))
    assert "split" in is_refused("show", file)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    assert "--out" in is_refused("tune", *SMALL, "--budget", "2", "--out", tmp_path / "file" / "run")
    profile = ("--profile", PUBLISHED, "--plot", tmp_path / "file" / "roofline.png")
    assert "roofline.png" in is_refused("bounds", "gemm/f32/m8n8k8", *profile)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tune") / "run"
    succeeds("tune", *SMALL, "--budget", "10", "--seed", "3", "--out", out)
    return out


def test_tune_leaves_a_trace_pictures_the_schedule_and_its_code(finished_run):
    header, records, torn = read_trace(finished_run)
    assert (header.task, header.seed, torn) == ("gemm/f32/m48n40k33", 3, 0)
    assert [r.role for r in records[:11]] == ["baseline"] + ["trial"] * 10
    assert records[-1].role == "expert"
    for picture in ("progress.png", "roofline.png"):
        assert (finished_run / picture).read_bytes().startswith(PNG)
    assert "define" in (finished_run / "best.ll").read_text()
    assert ".text" in (finished_run / "best.s").read_text()
    assert (finished_run / "best.txt").read_text() == succeeds("show", finished_run / "best.json")
    labels = {row["label"] for row in json.loads((finished_run / "report.json").read_text())["rows"]}
    assert labels >= {"baseline", "best", "expert", "speed of light"}
    assert any(label.startswith("numpy") for label in labels)


def test_the_best_schedule_is_one_that_was_tried_and_is_correct(finished_run):
    _, records, _ = read_trace(finished_run)
    tried = [r.candidate for r in records if r.role == "trial" and r.result.ok]
    assert json.loads((finished_run / "best.json").read_text()) in tried


def test_a_finished_run_repeats_nothing(finished_run):
    before = read_trace(finished_run)
    text = succeeds("tune", *SMALL, "--budget", "10", "--seed", "3", "--out", finished_run)
    assert read_trace(finished_run) == before
    assert "speed of light" in text


def test_another_run_in_the_same_folder_is_refused(finished_run):
    words = is_refused("tune", *SMALL, "--budget", "10", "--seed", "4", "--out", finished_run)
    assert "seed" in words
    assert "--out" in words


def test_replay_measures_again_and_its_exit_code_is_the_verdict(finished_run):
    holds = solgym("replay", finished_run, "--tolerance", "100")
    assert holds.exit_code == 0, holds.output
    assert "holds" in holds.stdout
    assert holds.stdout.count("recorded") >= 2


def test_replay_rejects_a_time_that_nobody_can_repeat(finished_run, tmp_path):
    faked = tmp_path / "trace.jsonl"
    lines = []
    for line in (finished_run / "trace.jsonl").read_text().splitlines():
        data = json.loads(line)
        measurement = data.get("measurement", {})
        for key in ("time_s", "min_s", "ci_low_s", "ci_high_s"):
            if measurement.get(key):
                measurement[key] /= 1000
        lines.append(json.dumps(data))
    faked.write_text("\n".join(lines) + "\n")
    result = solgym("replay", faked)
    assert result.exit_code == 1, result.output
    assert "does not hold" in result.stdout


def test_a_damaged_trace_names_its_line(finished_run, tmp_path):
    copy = tmp_path / "trace.jsonl"
    lines = (finished_run / "trace.jsonl").read_text().splitlines()
    copy.write_text("\n".join([*lines[:4], "?", *lines[5:]]) + "\n")
    assert "line 5" in is_refused("replay", copy)
    assert "line 5" in is_refused("tune", *SMALL, "--budget", "10", "--seed", "3", "--out", tmp_path)


def test_a_trace_that_lost_its_baseline_is_refused(finished_run, tmp_path):
    header, _, *others = (finished_run / "trace.jsonl").read_text().splitlines()
    moved = [json.dumps(json.loads(line) | {"index": index}) for index, line in enumerate(others)]
    (tmp_path / "trace.jsonl").write_text("\n".join([header, *moved]) + "\n")
    words = is_refused("tune", *SMALL, "--budget", "10", "--seed", "3", "--out", tmp_path)
    assert "line 2 is no baseline" in words


def test_primitive_episodes_can_be_searched_too(tmp_path):
    succeeds("tune", *SMALL, "--mode", "primitive", "--budget", "4", "--out", tmp_path)
    _, records, _ = read_trace(tmp_path)
    assert [r.role for r in records if r.role == "trial"] == ["trial"] * 4


@pytest.mark.parametrize(("how", "exit_code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_interrupted_tune_goes_on_as_if_nothing_had_happened(tmp_path, how, exit_code):
    def command(out: Path, budget: int) -> list[str]:
        options = ("--budget", str(budget), "--seed", "5", "--out", str(out))
        return [sys.executable, "-m", "solgym.cli", "tune", *SMALL, *options]

    trace = tmp_path / "run" / "trace.jsonl"
    with subprocess.Popen(
        command(tmp_path / "run", 100_000), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as run:
        give_up = time.monotonic() + 120
        while not trace.exists() or trace.read_bytes().count(b"\n") < 6:
            assert run.poll() is None, run.stderr.read()
            assert time.monotonic() < give_up
            time.sleep(0.02)
        os.kill(run.pid, how)
        assert run.wait(timeout=60) == exit_code
        assert b"Traceback" not in run.stderr.read()
    done = sum(record.role == "trial" for record in read_trace(trace)[1])
    assert done >= 4
    budget = done + 3
    subprocess.run(command(tmp_path / "run", budget), check=True, capture_output=True, timeout=240)
    subprocess.run(command(tmp_path / "whole", budget), check=True, capture_output=True, timeout=240)

    def proposed(folder: Path) -> list[object]:
        return [record.candidate for record in read_trace(folder)[1] if record.role == "trial"]

    assert proposed(tmp_path / "run") == proposed(tmp_path / "whole")
