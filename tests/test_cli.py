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


def test_list_names_programs_and_suites_too():
    text = succeeds("list", "mlirpasses")
    assert "MLIRPasses-Gemm-v0" in text
    assert "MLIRPasses-PolyBench-v0" in text
    assert "KernelDSL" not in text


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
    assert "MLIR        works" in text
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


def test_tune_begins_with_candidates_from_files(finished_run, tmp_path):
    best = json.loads((finished_run / "best.json").read_text())
    untouched = {**best, "steps": []}
    (tmp_path / "two.json").write_text(json.dumps([best, untouched]))
    options = ("--tuner", "evolution", "--budget", "3", "--out", tmp_path / "run")
    succeeds("tune", *SMALL, "--seeds", tmp_path / "two.json", *options)
    header, records, _ = read_trace(tmp_path / "run")
    trials = [record.candidate for record in records if record.role == "trial"]
    assert trials[:2] == [best, untouched]
    assert len(trials) == 3
    assert len(header.initial) == 2
    assert "initial" in is_refused("tune", *SMALL, *options)


def test_tune_refuses_candidates_that_are_not_for_the_run(finished_run, tmp_path):
    best = finished_run / "best.json"
    other = ("KernelDSL-GEMM-v0", "--task", "gemm/f32/m8n8k8")
    assert "m48n40k33" in is_refused("tune", *other, "--seeds", best, "--out", tmp_path / "run")
    assert "missing.json" in is_refused("tune", *SMALL, "--seeds", tmp_path / "missing.json")
    (tmp_path / "text.json").write_text("no JSON")
    assert "text.json" in is_refused("tune", *SMALL, "--seeds", tmp_path / "text.json")
    assert "best.json" in is_refused("tune", "MLIRPasses-Gemm-v0", "--seeds", best)
    assert not (tmp_path / "run").exists()


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


PROGRAM = ("MLIRPasses-Gemm-v0", "--task", "gemm/f32/m16n16k16")


@pytest.fixture(scope="module")
def finished_passes(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("passes") / "run"
    succeeds("tune", *PROGRAM, "--budget", "4", "--seed", "1", "--out", out)
    return out


def test_tune_searches_passes_and_leaves_the_same_things_behind(finished_passes):
    header, records, _ = read_trace(finished_passes)
    assert (header.env_id, header.mode, header.task) == (PROGRAM[0], "passes", PROGRAM[2])
    assert "torch-mlir" in header.toolchain
    assert [r.role for r in records[:5]] == ["baseline"] + ["trial"] * 4
    assert records[-1].role == "expert"
    for picture in ("progress.png", "roofline.png"):
        assert (finished_passes / picture).read_bytes().startswith(PNG)
    assert "func.func @main" in (finished_passes / "best.mlir").read_text()
    assert "define" in (finished_passes / "best.ll").read_text()
    assert ".text" in (finished_passes / "best.s").read_text()
    labels = {row["label"] for row in json.loads((finished_passes / "report.json").read_text())["rows"]}
    assert labels >= {"baseline", "best", "expert", "speed of light"}
    assert any(label.startswith("numpy") for label in labels)


def test_a_pass_sequence_can_be_replayed_and_shown(finished_passes):
    assert "holds" in succeeds("replay", finished_passes, "--tolerance", "100")
    assert "module" in succeeds("show", finished_passes / "best.json")
    steps = succeeds("show", finished_passes / "best.json", "--steps")
    sequence = json.loads((finished_passes / "best.json").read_text())["actions"]
    assert steps.count("// ") == 1 + len(sequence)


def test_a_task_of_both_families_is_the_kernels_unless_one_says_otherwise():
    assert "for i" in succeeds("show", "gemm/f32/m8n8k8")
    for env in ("MLIRPasses", "MLIRPasses-Gemm-v0"):
        assert "func.func @main" in succeeds("show", "gemm/f32/m8n8k8", "--env", env)
    assert "func.func @main" in succeeds("show", "atax/f32/m8n8")
    assert "binds" in succeeds("bounds", "atax/f32/m8n8", "--profile", PUBLISHED)
    assert "mlir, llvm" in is_refused("show", "atax/f32/m8n8", "--as", "nest")
    assert "no environment 'Kernels'" in is_refused("show", "atax/f32/m8n8", "--env", "Kernels")
    assert "no tasks called 'atax'" in is_refused("show", "atax/f32/m8n8", "--env", "KernelDSL")
    assert "--program" in is_refused("bounds", "--profile", PUBLISHED)


MODULE = """
func.func @main(%a: memref<4096xf32>, %b: memref<4096xf32>) {
  %two = arith.constant 2.0 : f32
  affine.for %i = 0 to 4096 {
    %x = affine.load %a[%i] : memref<4096xf32>
    %y = arith.divf %two, %x : f32
    affine.store %y, %b[%i] : memref<4096xf32>
  }
  return
}
"""


@pytest.fixture
def module(tmp_path) -> Path:
    path = tmp_path / "module.mlir"
    path.write_text(MODULE)
    return path


def test_a_program_of_ones_own_can_be_tuned_and_bounded(module, tmp_path):
    out = tmp_path / "run"
    succeeds("tune", "MLIRPasses-v0", "--program", module, "--budget", "1", "--out", out)
    header, _, _ = read_trace(out)
    assert header.options == {"program": str(module)}
    assert "binds" in succeeds("bounds", "--program", module, "--profile", PUBLISHED, "--flushed")
    assert "holds" in succeeds("replay", out, "--tolerance", "100")
    module.write_text(MODULE.replace("2.0", "3.0"))
    assert "not offered" in is_refused("replay", out)
    assert "program" in is_refused("tune", "MLIRPasses-v0")
    assert "--program" in is_refused("tune", "MLIRPasses-v0", "--function", "main")


def test_opt_applies_actions_and_says_what_each_did(module, tmp_path):
    out = tmp_path / "out.mlir"
    text = succeeds("opt", module, "-o", out, "--passes", "affine-vectorize-8, canonicalize,canonicalize")
    assert "vector<8xf32>" in out.read_text()
    rows = {line.split()[0]: line.split() for line in text.splitlines()[1:4]}
    assert rows["1"][1:3] == ["affine-vectorize-8", "yes"]
    assert rows["3"][1:3] == ["canonicalize", "no"]
    assert "vector<8xf32>" in succeeds("opt", module, "--passes", "affine-vectorize-8")
    assert "define" in succeeds("opt", module, "--passes", "affine-vectorize-8", "--emit", "llvm")


def test_opt_repeats_what_a_run_found(finished_passes, module, tmp_path):
    for source in (finished_passes, finished_passes / "best.json"):
        text = succeeds("opt", module, "-o", tmp_path / "out.mlir", "--trace", source, "--force")
        assert "written to" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--passes", "affine-tile-8,bufferise"), "did you mean bufferize"),
        (("--passes", "affine-tile-8", "--trace", "run"), "give one of"),
        ((), "give one of"),
        (("--passes", "linalg-to-affine"), "step 1 (linalg-to-affine) is not offered"),
        (("--passes", "affine-tile-8", "--emit", "poem"), "mlir, llvm or asm"),
        (("--trace", "nowhere"), "cannot read the trace nowhere"),
    ],
)
def test_opt_refuses_in_one_sentence_and_writes_nothing(arguments, words, module, tmp_path):
    assert words in is_refused("opt", module, "-o", tmp_path / "out.mlir", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["module.mlir"]


def test_opt_says_what_is_wrong_with_a_file(tmp_path):
    (tmp_path / "bad.mlir").write_text("nonsense")
    assert "no MLIR" in is_refused("opt", tmp_path / "bad.mlir", "--passes", "canonicalize")
    assert "cannot be read" in is_refused("opt", tmp_path / "none.mlir", "--passes", "canonicalize")


def test_a_pass_that_crashes_is_one_sentence_and_costs_only_its_worker(tmp_path):
    from solgym.envs.mlir_passes.programs import parse_task

    module = tmp_path / "jacobi.mlir"
    module.write_text(parse_task("jacobi_2d/f32/steps4n34").module_text)
    passes = "affine-vectorize-8-reductions,affine-fuse-maximal"
    words = is_refused("opt", module, "-o", tmp_path / "out.mlir", "--passes", passes, "--force")
    assert "SIGSEGV" in words
    assert not (tmp_path / "out.mlir").exists()


def test_crashes_are_listed_minimised_and_exported(tmp_path, monkeypatch):
    from solgym.envs.mlir_passes.client import default_pass_worker
    from solgym.envs.mlir_passes.programs import parse_task

    monkeypatch.setenv("SOLGYM_CACHE_DIR", str(tmp_path / "cache"))
    assert "nothing has failed" in succeeds("crashes")
    before = ("canonicalize", "affine-vectorize-8-reductions")
    task = parse_task("jacobi_2d/f32/steps4n34")
    default_pass_worker().step(task, before, "affine-fuse-maximal", enforce_masks=False)
    for command in (("crashes",), ("crashes", "list", "--status", "crashed")):
        assert "affine-fuse-maximal" in succeeds(*command)
    assert "nothing" in succeeds("crashes", "list", "--status", "timeout")
    assert "SIGSEGV" in succeeds("crashes", "show", "1")
    assert "no failure 2" in is_refused("crashes", "show", "2")
    assert "actions   affine-vectorize-8-reductions\n" in succeeds("crashes", "minimise", "1")
    text = succeeds("crashes", "export", "1", "--out", tmp_path / "export")
    assert "mlir-opt" in text
    assert "affine-loop-fusion{" in text
    module = tmp_path / "export" / "module.mlir"
    assert "vector.transfer_read" in module.read_text()
    assert "SIGSEGV" in is_refused("opt", module, "--force", "--passes", "affine-fuse-maximal")


def test_a_crash_that_does_not_happen_any_more_is_told(tmp_path, monkeypatch):
    from solgym.envs.mlir_passes.client import PassFailure
    from solgym.envs.mlir_passes.crash_log import record_failure
    from solgym.envs.mlir_passes.programs import parse_task
    from solgym.hardware.measurement import Status

    monkeypatch.setenv("SOLGYM_CACHE_DIR", str(tmp_path))
    failure = PassFailure(Status.CRASHED, "SIGSEGV inside the pass")
    record_failure(parse_task("gemm/f32/m8n8k8"), (), "canonicalize", failure)
    result = solgym("crashes", "minimise", "1")
    assert result.exit_code == 1, result.output
    assert "does not fail any more" in result.stdout


SPIN = """
import os, signal, sys, time
from solgym import cli

class Slow:
    def __del__(self):
        if not interrupted:
            interrupted.append(True)
            os.kill(os.getpid(), signal.SIGINT)

interrupted = []

@cli.app.command()
def spin() -> None:
    Slow()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.001)

sys.argv = ["solgym", "spin"]
cli.main()
"""


def test_an_interrupt_in_a_destructor_is_not_lost():
    done = subprocess.run([sys.executable, "-c", SPIN], capture_output=True, text=True, timeout=50)
    assert done.returncode == 130
    assert done.stderr == "solgym: interrupted\n"


def test_training_says_which_package_cannot_be_imported(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('libgone.so: cannot open')")
    for module in ("stable_baselines3", "sb3_contrib", "tensorboard", "tomli_w"):
        (tmp_path / f"{module}.py").touch()
    run = subprocess.run(
        [sys.executable, "-m", "solgym.cli", "train", "KernelDSL-GEMM-v0"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.startswith("solgym: torch, which training needs")
    assert "libgone.so" in run.stderr
    assert run.stderr.count("\n") == 1
