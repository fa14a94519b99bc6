"""The commands for MLIR as a user meets them: what they print and write, and what they say about mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_cli import is_refused, succeeds

COMMANDS = ("list", "bounds", "show", "tune", "replay", "opt", "compile", "crashes")
OWN = Path(__file__).parents[1] / "examples" / "own_program.mlir"
TWO = "func.func @a(%A: memref<8xf32>) { return }\nfunc.func @b(%A: memref<8xf32>) { return }\n"


@pytest.fixture
def module(tmp_path) -> Path:
    file = tmp_path / "module.mlir"
    file.write_text(OWN.read_text())
    return file


@pytest.fixture
def own_log(tmp_path, monkeypatch) -> Path:
    """An empty crash log for this test alone."""
    monkeypatch.setenv("SOLGYM_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "crashes.jsonl"


def record(status: str = "crashed", action: str = "canonicalize") -> str:
    """A line of the crash log."""
    return json.dumps(
        {
            "time": "2026-01-02T03:04:05+00:00",
            "program": "gemm/f32/m8n8k8",
            "actions": ["cse"],
            "action": action,
            "status": status,
            "outcome": "SIGSEGV inside the pass",
            "versions": {},
        }
    )


# ---------------------------------------------------------------------- help and list


def test_the_help_speaks_of_both_families():
    text = succeeds("--help")
    assert "MLIR passes" in text
    for command in COMMANDS:
        assert command in text
    assert "MLIRPasses-Gemm-v0" in succeeds("tune", "--help")
    assert "pass sequence" in succeeds("show", "--help")


def test_list_prints_the_pass_catalogue():
    text = succeeds("list", "--actions")
    assert "affine-tile-8" in text
    assert "bufferize" in text
    assert "affine-tile-8" not in succeeds("list", "pad", "--actions")
    assert "no action" in is_refused("list", "nonsense", "--actions")
    assert "either" in is_refused("list", "--actions", "--tasks")


@pytest.mark.parametrize("columns", ["0", "1", "20", "40"])
def test_tables_keep_all_their_columns_on_any_terminal(columns, module, own_log, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    own_log.write_text(record() + "\n")
    assert " affine-unroll-jam-columns-4  yes " in succeeds(
        "opt", module, "-o", tmp_path / "out.mlir", "--passes", "affine-unroll-jam-columns-4"
    )
    assert " gemm/f32/m8n8k8  crashed  canonicalize " in succeeds("crashes")
    assert " 16 x 64 x 1  32 x 8 x 1 " in succeeds("compile", "gemm/f32/m512n512k8", "-o", tmp_path)
    assert "MLIRPasses-DepthwiseConv2dNhwc-v0" in succeeds("list", "depthwise")


# ---------------------------------------------------------------------- opt


def test_opt_takes_standard_input_and_prints_nothing_but_the_module_there(module):
    command = [sys.executable, "-m", "solgym.cli", "opt", "-", "--passes", "affine-tile-8"]
    made = subprocess.run(
        command, input=module.read_text(), capture_output=True, text=True, check=True, timeout=120
    )
    assert made.stdout.startswith(("module", "#map"))
    assert "affine-tile-8  yes" in made.stderr


def test_opt_without_passes_writes_the_module_and_no_table(module, tmp_path):
    for passes in ("", " , "):
        text = succeeds("opt", module, "-o", tmp_path / "out.mlir", "--passes", passes)
        assert text == f"written to {tmp_path / 'out.mlir'}\n"
        assert "func.func" in (tmp_path / "out.mlir").read_text()


def test_opt_can_write_over_its_input(module):
    succeeds("opt", module, "-o", module, "--passes", " affine-tile-8 ,, canonicalize,")
    assert "step 8" in module.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--passes", "finish"), "leave it out"),
        (("--passes", "Canonicalize"), "did you mean canonicalize"),
        (("--passes", "xyz"), "solgym list --actions"),
        (("--passes", "bufferize"), "--force tries it"),
        (("--passes", "canonicalize", "--function", "main"), "--emit"),
        (("--passes", "canonicalize", "--emit", "asm", "--function", "other"), "no function @other"),
    ],
)
def test_what_opt_refuses_leaves_the_output_as_it_was(arguments, words, module, tmp_path):
    (tmp_path / "out.mlir").write_text("before")
    assert words in is_refused("opt", module, "-o", tmp_path / "out.mlir", *arguments)
    assert (tmp_path / "out.mlir").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"func.func @f() {\n  nonsense\n}", "no MLIR that can be read: line 2, column 3: "),
        (b"\xff\xfe\x00", "no text"),
        (b"module {" * 30_000 + b"}" * 30_000, "parser crashes"),
    ],
    ids=["nonsense", "binary", "deep"],
)
def test_opt_says_in_one_sentence_what_is_wrong_with_a_file(content, words, tmp_path):
    file = tmp_path / "file.mlir"
    file.write_bytes(content)
    text = is_refused("opt", file, "-o", tmp_path / "out.mlir", "--passes", "canonicalize")
    assert words in text
    assert "file.mlir" in text
    assert [path.name for path in tmp_path.iterdir()] == ["file.mlir"]


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_a_file_without_end_is_refused(tmp_path):
    assert "larger than 64 MiB" in is_refused("opt", "/dev/zero", "--passes", "canonicalize")
    assert "no file" in is_refused("compile", "/dev/zero", "-o", tmp_path)


def test_a_folder_in_place_of_a_file_is_named(module, tmp_path):
    assert "Is a directory" in is_refused("opt", tmp_path, "--passes", "canonicalize")
    text = is_refused("opt", module, "-o", tmp_path, "--passes", "canonicalize")
    assert text == f"solgym: cannot read or write {tmp_path}: Is a directory"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named_and_nothing_half_is_left(module, tmp_path):
    text = is_refused("opt", module, "-o", "/dev/full", "--passes", "canonicalize")
    assert text == "solgym: cannot read or write /dev/full: No space left on device"


# ---------------------------------------------------------------------- compile


def test_compile_asks_the_masks_as_opt_does(tmp_path):
    text = is_refused("compile", OWN, "--passes", "canonicalize,bufferize", "-o", tmp_path / "out")
    assert "step 2 (bufferize) is not offered" in text
    assert list(tmp_path.iterdir()) == []


def test_compile_needs_a_folder_for_its_files(tmp_path):
    (tmp_path / "file").write_text("before")
    assert "is a file; --out takes" in is_refused("compile", OWN, "-o", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "before"


def test_a_file_with_several_functions_asks_which(tmp_path):
    (tmp_path / "two.mlir").write_text(TWO)
    assert "it has @a, @b" in is_refused("compile", tmp_path / "two.mlir", "-o", tmp_path)


# ---------------------------------------------------------------------- tasks and programs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bounds", "--env", "MLIRPasses"), "MLIRPasses is a family"),
        (("bounds", "--env", "MLIRPasses-v0"), "--program"),
        (("bounds", "--env", "MLIRPasses-Gemm-v0", "--program", OWN), "not with MLIRPasses-Gemm-v0"),
        (("bounds", "--program", OWN, "--function", "other"), "it has @update"),
        (("show", "MLIRPasses-Gemm-v0"), "--env MLIRPasses-Gemm-v0"),
        (("show", "user/own_program/123456789abc"), "--program"),
        (("show", "gemm/f32/m8n8k8", "--env", "MLIRPasses", "--as", "nest"), "mlir, llvm, asm"),
        (("tune", "MLIRPasses-v0"), "--program"),
        (("tune", "KernelDSL-GEMM-v0", "--program", OWN), "not with KernelDSL-GEMM-v0"),
        (("tune", "MLIRPasses-Gemm-v0", "--threads", "2"), "one thread"),
        (("tune", "MLIRPasses-Gemm-v0", "--mode", "knobs"), "passes"),
        (("tune", "MLIRPasses-v0", "--program", "missing.mlir"), "No such file"),
    ],
)
def test_a_mistake_about_programs_is_one_sentence_that_says_what_to_do(
    arguments, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert words in is_refused(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_show_takes_the_folder_of_a_run(tmp_path):
    sequence = {"version": 1, "task": "jacobi_2d/f32/steps4n34", "actions": ["affine-tile-8"]}
    (tmp_path / "best.json").write_text(json.dumps(sequence))
    assert "affine.for" in succeeds("show", tmp_path)
    steps = succeeds("show", tmp_path, "--steps")
    assert "// untouched\n" in steps
    assert "// after step 1: affine-tile-8\n" in steps
    (tmp_path / "other").mkdir()
    assert "no best.json" in is_refused("show", tmp_path / "other")


# ---------------------------------------------------------------------- crashes


def test_the_crash_log_is_read_around_lines_that_are_damaged(own_log):
    own_log.write_bytes(
        f"nonsense\n{record()}\n".encode()
        + b"\xff\x00\n{}\n"
        + record("timeout", "licm").encode()
        + b"\n"
        + record().encode()[:40]
    )
    lines = succeeds("crashes").splitlines()
    assert [line.split()[0] for line in lines] == ["N", "1", "2"]
    assert "licm" in lines[2]
    assert "licm" in succeeds("crashes", "list", "--status", "timeout")
    assert "2" in succeeds("crashes", "list", "--status", "timeout").splitlines()[1].split()[0]


def test_a_status_is_checked_and_told_where_nothing_has_it(own_log):
    assert "nothing has failed" in succeeds("crashes")
    own_log.write_text(record() + "\n")
    assert "nothing has ended in timeout, of 1 in" in succeeds("crashes", "list", "--status", "timeout")
    assert "compile_error" in is_refused("crashes", "list", "--status", "nonsense")


def test_older_failures_are_counted_and_a_command_shows_them(own_log):
    own_log.write_text((record() + "\n") * 33)
    text = succeeds("crashes")
    assert "3 older ones are left out, see `solgym crashes list --all`" in text
    assert len(succeeds("crashes", "list", "--all").splitlines()) == 34


def test_a_crash_log_that_cannot_be_read_is_one_sentence(own_log):
    own_log.mkdir()
    for command in (("crashes",), ("crashes", "show", "1"), ("crashes", "export", "1")):
        assert "Is a directory" in is_refused(*command)


# ---------------------------------------------------------------------- without torch-mlir


@pytest.fixture
def no_torch_mlir(monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torch_mlir" else real(name, *more)
    )


def test_what_needs_torch_mlir_says_so(no_torch_mlir, module):
    text = is_refused("opt", module, "--passes", "canonicalize")
    assert "MLIRPasses needs torch-mlir" in text
    assert "pip install torch-mlir" in text


def test_a_torch_mlir_that_does_not_load_is_one_clear_sentence(module, tmp_path):
    (tmp_path / "torch_mlir").mkdir()
    (tmp_path / "torch_mlir" / "__init__.py").write_text("raise ImportError('libMLIR.so: not found')")
    command = [sys.executable, "-m", "solgym.cli", "opt", str(module), "--passes", "canonicalize"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "could not start: ImportError: libMLIR.so: not found; reinstall torch-mlir" in line


def test_kernels_work_without_torch_mlir():
    code = (
        "import sys; sys.modules['torch_mlir'] = None\n"
        "from solgym.cli import app\n"
        "app(['show', 'gemm/f32/m8n8k8', '--as', 'llvm'])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "define" in result.stdout, result.stderr
