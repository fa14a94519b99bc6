import gzip
import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from solgym.baselines import experiment as module
from solgym.baselines.comparison import compare
from solgym.baselines.experiment import plan, read_experiment, run_experiment, unfinished
from solgym.baselines.trace import COMPRESSED_TRACE_NAME, TRACE_NAME, read_trace
from solgym.cli import app
from solgym.errors import InvalidOption, InvalidTrace
from solgym.hardware.fingerprint import device_fingerprint
from solgym.hardware.jit import toolchain_fingerprint
from tests.baselines.traces import write_run

GRID = """
name = "grid"
seeds = 3
[budget]
measurements = 2
[[methods]]
tuner = "random"
[[methods]]
tuner = "annealing"
[[methods]]
tuner = "random"
mode = "primitive"
label = "episodes"
[[tasks]]
env = "KernelDSL-GEMM-v0"
task = "gemm/f32/m32n32k32"
[[tasks]]
env = "KernelDSL-GEMM-v0"
task = "gemm/f32/m64n64k64"
[[tasks]]
env = "KernelDSL-Transpose-v0"
"""


def read(folder, text=GRID):
    file = folder / "grid.toml"
    file.write_text(text)
    return read_experiment(file)


@pytest.fixture
def planned(tmp_path):
    return plan(read(tmp_path))


class FakeTune:
    """Writes a finished trace without measuring, and stops where it is told to."""

    def __init__(self, stop_at=None, ending=(("final", 0.5), ("expert", 0.25)), **changes):
        self.calls = []
        self.stop_at = stop_at
        self.ending = ending
        self.changes = changes

    def __call__(self, env_id, *, budget, out, tuner, mode, seed, task, listener):
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        self.calls.append((task, tuner, mode, seed))
        shutil.rmtree(out, ignore_errors=True)
        fields = {
            "env_id": env_id, "task": task, "tuner": tuner, "mode": mode, "seed": seed,
            "budget_measurements": budget.measurements, "device": device_fingerprint(),
            "toolchain": toolchain_fingerprint(),
        }  # fmt: skip
        write_run(out, [0.5, 0.25], ending=self.ending, **fields | self.changes)


@pytest.fixture
def fake(monkeypatch):
    def install(**arguments):
        made = FakeTune(**arguments)
        monkeypatch.setattr(module, "tune", made)
        return made

    return install


# The grid and its order


def test_every_method_takes_every_place_on_every_task_and_for_every_seed(planned):
    cells = planned.cells
    assert len(set(cells)) == len(cells) == 27
    turns = [cells[i : i + 3] for i in range(0, 27, 3)]
    everyone = {"random", "annealing", "episodes"}
    for turn in turns:
        assert len({(cell.task, cell.seed) for cell in turn}) == 1
        assert {cell.method for cell in turn} == everyone
    for place in range(3):
        for same in ("task", "seed"):
            for value in {getattr(cell, same) for cell in cells}:
                of_value = [turn for turn in turns if getattr(turn[0], same) == value]
                assert {turn[place].method for turn in of_value} == everyone


def test_what_the_file_leaves_open_is_filled_in(planned):
    by_method = {cell.method: (cell.tuner, cell.mode) for cell in planned.cells}
    assert by_method == {
        "random": ("random", "knobs"),
        "annealing": ("annealing", "knobs"),
        "episodes": ("random", "primitive"),
    }
    assert all("/" in cell.task for cell in planned.cells)
    assert {cell.seed for cell in planned.cells} == {0, 1, 2}


def test_seeds_can_be_listed(tmp_path):
    assert read(tmp_path, GRID.replace("seeds = 3", "seeds = [7, 4]")).seeds == [7, 4]


def test_the_shipped_experiments_can_be_run():
    root = module.Path(__file__).resolve().parents[2]
    for file in (root / "benchmarks").glob("tuners_*.toml"):
        assert plan(read_experiment(file)).cells


# Running and resuming


def test_a_run_goes_through_the_plan_and_leaves_only_compressed_traces(planned, fake, tmp_path):
    tune = fake()
    comparison, files = run_experiment(planned, tmp_path / "out", command="solgym experiment grid.toml")
    assert tune.calls == [(cell.task, cell.tuner, cell.mode, cell.seed) for cell in planned.cells]
    assert not list(tmp_path.rglob(TRACE_NAME))
    assert len(list(tmp_path.rglob(COMPRESSED_TRACE_NAME))) == 27
    assert set(comparison.methods) == {"random, knobs", "random, primitive", "annealing, knobs"}
    assert all(path.exists() for path in files.values())
    record = json.loads((tmp_path / "out/experiment.json").read_text())
    assert record["command"] == "solgym experiment grid.toml"
    assert record["budget"] == {"measurements": 2, "seconds": None, "guided": False}
    assert record["seeds"] == [0, 1, 2]
    assert record["machine"]["device"] == device_fingerprint()
    assert record["versions"]["toolchains"] == [toolchain_fingerprint()]
    assert [run["folder"] for run in record["runs"]] == [str(cell.folder) for cell in planned.cells]


def test_compressed_traces_are_compared_like_the_plain_ones(planned, fake, tmp_path):
    fake()
    comparison, _ = run_experiment(planned, tmp_path / "out")
    again = compare([tmp_path / "out"])
    assert again.overall == comparison.overall
    assert len(again.runs) == 27
    assert again.notes == ()


def test_an_interrupted_experiment_goes_on_with_what_is_missing(planned, fake, tmp_path):
    first = fake(stop_at=5)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(planned, tmp_path / "out")
    assert unfinished(planned, tmp_path / "out") == list(planned.cells[5:])
    rest = fake()
    run_experiment(planned, tmp_path / "out")
    assert first.calls + rest.calls == [(c.task, c.tuner, c.mode, c.seed) for c in planned.cells]
    nothing = fake()
    run_experiment(planned, tmp_path / "out")
    assert nothing.calls == []


@pytest.mark.parametrize(
    ("ending", "again"), [((("final", 0.5), ("expert", 0.25)), 0), ((("final", 0.5),), 1), ((), 1)]
)
def test_a_run_that_ended_before_its_trace_was_compressed_is_not_run_again(
    planned, fake, tmp_path, ending, again
):
    cell = planned.cells[0]
    folder = tmp_path / "out" / cell.folder
    FakeTune(ending=ending)(
        cell.env, budget=planned.experiment.limits, out=folder, tuner=cell.tuner, mode=cell.mode,
        seed=cell.seed, task=cell.task, listener=None,
    )  # fmt: skip
    tune = fake()
    run_experiment(planned, tmp_path / "out")
    assert len(tune.calls) == 26 + again
    assert not (folder / TRACE_NAME).exists()


def test_a_trace_left_beside_its_compressed_form_is_removed(planned, fake, tmp_path):
    fake()
    run_experiment(planned, tmp_path / "out")
    folder = tmp_path / "out" / planned.cells[3].folder
    (folder / TRACE_NAME).write_bytes(gzip.decompress((folder / COMPRESSED_TRACE_NAME).read_bytes()))
    comparison, _ = run_experiment(planned, tmp_path / "out")
    assert [path.name for path in folder.iterdir()] == [COMPRESSED_TRACE_NAME]
    assert len(comparison.runs) == 27


def test_runs_that_the_file_does_not_ask_for_any_more_are_not_compared(planned, fake, tmp_path):
    fake()
    run_experiment(planned, tmp_path / "out")
    fewer = plan(read(tmp_path, GRID.replace("seeds = 3", "seeds = 2")))
    comparison, _ = run_experiment(fewer, tmp_path / "out")
    assert len(comparison.runs) == 18


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"device": "other"}, "device"),
        ({"toolchain": "other"}, "toolchain"),
        ({"budget_measurements": 3}, "budget"),
    ],
)
def test_finished_runs_made_in_another_way_are_refused(planned, fake, tmp_path, changes, named):
    fake(stop_at=1, **changes)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(planned, tmp_path / "out")
    tune = fake()
    with pytest.raises(InvalidTrace, match=rf"with {named} .*give another --out"):
        run_experiment(planned, tmp_path / "out")
    assert tune.calls == []


def test_a_calibration_in_between_is_noticed_at_once(planned, fake, tmp_path):
    fake(stop_at=1)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(planned, tmp_path / "out")
    tune = fake(profile="new")
    with pytest.raises(InvalidTrace, match="calibrated anew"):
        run_experiment(planned, tmp_path / "out")
    assert len(tune.calls) == 1


def test_equal_traces_are_compressed_to_equal_files(planned, fake, tmp_path):
    fake()
    files = []
    for out in ("a", "b"):
        run_experiment(planned, tmp_path / out)
        files.append((tmp_path / out / planned.cells[0].folder / COMPRESSED_TRACE_NAME).read_bytes())
    assert files[0] == files[1]


# Mistakes


MISTAKES = [
    ("seeds = 3", "seeds = 0", "seeds: 0 is neither a list of seeds"),
    ("seeds = 3", "seeds = true", "seeds: True is neither"),
    ("seeds = 3", "seeds = 1000000000000", "seeds: 1000000000000 is neither"),
    ("seeds = 3", "seeds = [1, 1]", "none twice"),
    ("seeds = 3", "seeds = []", "at least one seed"),
    ("seeds = 3", "seeds = [-1]", "seeds 1: "),
    ("seeds = 3\n", "", "seeds is missing"),
    ("seeds = 3", "seeds = ", "is not TOML"),
    ("seeds = 3", "seeds = " + "[" * 100_000, "is not TOML"),
    ("seeds = 3", "seeds = 3\nthread = 2", "thread is no key here"),
    ('name = "grid"', 'name = "../grid"', "name: '../grid' names a folder"),
    ("measurements = 2", "measurements = 0", "budget: a budget of 0 measurements"),
    ("measurements = 2", "", "budget: a budget needs"),
    ("measurements = 2", 'measurements = "2"', "budget, measurements: "),
    ('tuner = "annealing"', 'tuner = "anealing"', "methods 2, tuner: there is no tuner 'anealing'"),
    ('label = "episodes"', 'label = "annealing"', "the method annealing is there twice"),
    ("[[methods]]", "[[method]]", "methods is missing"),
]


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path, old, new, said):
    with pytest.raises(InvalidOption, match=re.escape(said)) as caught:
        read(tmp_path, GRID.replace(old, new))
    assert "\n" not in str(caught.value)
    assert "grid.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"annealing"', '"greedy"', "the method greedy cannot run on gemm/f32/m32n32k32 of KernelDSL-"),
        ('"primitive"', '"passes"', "the method episodes cannot run on gemm/f32/m32n32k32"),
        ('mode = "primitive"', 'mode = "knobs"', "the methods random and episodes are the same"),
        ("m64n64k64", "m32n32k32", "the task gemm/f32/m32n32k32 of KernelDSL-GEMM-v0 is there twice"),
        ('"KernelDSL-Transpose-v0"', '"KernelDSL-Transpos-v0"', "did you mean KernelDSL-Transpose-v0"),
        ('"KernelDSL-Transpose-v0"', '"MLIRPasses-ML-v0"', "say which with task"),
    ],
)  # fmt: skip
def test_a_grid_that_has_no_meaning_is_refused_before_anything_is_measured(tmp_path, fake, old, new, said):
    tune = fake()
    file = tmp_path / "grid.toml"
    file.write_text(GRID.replace(old, new))
    result = CliRunner().invoke(app, ["experiment", str(file), "-o", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert tune.calls == []
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(InvalidOption, match="cannot read the experiment"):
        read_experiment(tmp_path / "none.toml")


# As a user meets it


def test_the_command_measures_a_tiny_grid_and_nothing_when_repeated(tmp_path):
    text = GRID.replace("seeds = 3", "seeds = 1").replace("measurements = 2", "measurements = 1")
    file = tmp_path / "grid.toml"
    file.write_text(text[: text.index("[[tasks]]", text.index("m32n32k32"))])
    arguments = ["experiment", str(file), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "3/3" in result.stdout
    traces = {path: path.read_bytes() for path in (tmp_path / "out").rglob(COMPRESSED_TRACE_NAME)}
    assert len(traces) == 3
    assert all(read_trace(path)[1][-1].role == "expert" for path in traces)
    assert not list((tmp_path / "out").rglob("trace.lock"))
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output
    assert "3 runs of 1 measurements, 3 of them finished already" in again.stdout
    assert {path: path.read_bytes() for path in traces} == traces


def test_an_interruption_says_how_to_go_on(tmp_path, fake, monkeypatch):
    fake(stop_at=2)
    monkeypatch.setattr("solgym.commands.profiles.calibrated_profile", lambda _: None)
    file = tmp_path / "grid.toml"
    file.write_text(GRID)
    result = CliRunner().invoke(app, ["experiment", str(file), "-o", str(tmp_path / "out")])
    assert result.exit_code == 130
    assert "repeat the command to go on" in " ".join(result.stdout.split())
