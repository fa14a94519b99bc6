"""The scripts behind docs/results: their figures follow from runs written by hand."""

import json
import math
import tarfile

import pytest

from benchmarks import ablation_masks, ablation_reward, guided_budgets, pack_traces, results_table
from solgym.baselines.comparison import compare
from solgym.baselines.comparison_page import write_comparison
from solgym.baselines.guided_budget import GuidedRule
from solgym.baselines.recorded_runs import find_traces, read_run
from solgym.baselines.task_splits import is_training_task
from tests.baselines.traces import write_run, write_two_methods

HASTY = GuidedRule(stop_at=1.0, patience=1, patience_per_e_fold=0.0)


def test_a_task_is_held_out_by_its_shape_or_its_program():
    assert is_training_task("KernelDSL-GEMM-v0", "gemm/f32/m256n256k256")
    assert not is_training_task("KernelDSL-GEMM-v0", "gemm/f32/m320n320k320")
    assert not is_training_task("KernelDSL-GEMM-v0", "gemm/f32/m5n6k7")


@pytest.fixture
def runs(tmp_path):
    """Two runs whose third measurement brings nothing; the fourth of the second would halve the time."""
    for seed, times in enumerate(([0.5, 0.25, 0.25, 0.25], [0.5, 0.25, 0.5, 0.125])):
        write_run(tmp_path / str(seed), times, seed=seed)
    return [read_run(path) for path in find_traces([tmp_path])]


def test_a_guided_budget_saves_what_comes_after_it_stops(runs, monkeypatch):
    best = {0: (0.5, 0.25, 0.25, 0.25), 1: (0.5, 0.25, 0.25, 0.125)}
    seeds = {run.path: run.header.seed for run in runs}
    monkeypatch.setattr(guided_budgets, "best_times", lambda path: best[seeds[path]])
    found = guided_budgets.outcome(runs, guided_budgets.guided(HASTY))
    assert (found.measurements, found.spent) == (8, 6)
    assert found.saved == pytest.approx(0.25)
    assert found.geomean == pytest.approx(math.sqrt(4 * 8))
    assert found.guided_geomean == pytest.approx(4)
    assert found.worst_task[1] == pytest.approx(found.kept) == pytest.approx(4 / math.sqrt(32))


def test_an_equal_number_for_all_spends_as_much(runs):
    found = guided_budgets.outcome(runs, guided_budgets.equal_number(runs, 4))
    assert found.spent == 4
    assert found.guided_geomean == pytest.approx(4)


def test_the_table_of_an_experiment_has_its_figures(tmp_path):
    write_two_methods(tmp_path / "runs")
    comparison = compare([tmp_path / "runs"])
    write_comparison(comparison, tmp_path)
    tasks = [task.label for task in comparison.tasks]
    record = {
        "name": "grid", "command": "solgym experiment grid.toml", "seeds": [0, 1],
        "machine": {"cpu": "A", "cores": 2, "virtual": False, "system": "Linux", "profiles": ["p"]},
        "versions": {"solgym": ["1"], "toolchains": ["llvm"], "python": "3"},
        "budget": {"measurements": 4, "seconds": None},
        "runs": [
            {"folder": f"runs/KernelDSL-GEMM-v0/{task.replace('/', '-')}/tpe/seed0", "created": "2026"}
            for task in tasks
        ],
    }  # fmt: skip
    data = json.loads((tmp_path / "comparison.json").read_text())
    text = results_table.page(data, record, "python ...")
    mean = comparison.overall["tpe"].final["measurements"]
    assert f"| tpe | 4 | {mean.value:.3f} [{mean.low:.3f}, {mean.high:.3f}] |" in text
    assert f"{comparison.improvement['measurements']['tpe']['random'].value:.3f} [" in text
    assert "## The 2 held-out tasks" in text
    assert "training split" not in text
    assert all(f"| `{task}` |" in text for task in tasks)


def test_packed_traces_are_those_of_the_runs_and_equal_traces_give_equal_archives(tmp_path):
    folder = tmp_path / "out"
    write_run(folder / "runs/E/T/random/seed0", [0.5, 0.25], compressed=True)
    (folder / "experiment.json").write_text('{"name": "grid"}')
    traces = sorted(folder.rglob("trace.jsonl.gz"))
    data = [pack_traces.pack("grid", folder, folder / "experiment.json", traces) for _ in range(2)]
    assert data[0] == data[1]
    (tmp_path / "grid.tar.xz").write_bytes(data[0])
    with tarfile.open(tmp_path / "grid.tar.xz") as archive:
        archive.extractall(tmp_path / "again", filter="data")
    (again,) = find_traces([tmp_path / "again/grid"])
    assert read_run(again).digest == read_run(traces[0]).digest


def masked(agent, seed, steps, task="t", improved=True):
    return ablation_masks.Run(task, agent, seed, 100, steps, improved, 0, steps, 0.1, 2.0)


def test_masks_save_the_geometric_mean_over_tasks_of_the_steps():
    both, masks, neither = ablation_masks.AGENTS
    runs = []
    for task, factor in (("one", 1), ("two", 4)):
        for seed in (0, 1):
            runs += [
                masked(both, seed, 2, task),
                masked(masks, seed, 8, task),
                masked(neither, seed, 8 * factor, task),
            ]
    text, data = ablation_masks.report(runs, "python ...")
    assert data["fewer_steps"]["both"] == pytest.approx(1 - math.sqrt(2 / 8 * 2 / 32))
    assert data["fewer_steps"]["masks"] == pytest.approx(1 - math.sqrt(1 / 4))
    assert data["intervals"]["both"] == pytest.approx([data["fewer_steps"]["both"]] * 2)
    assert "| `two` | 2.0 (2 of 2) | 8.0 (2 of 2) | 32.0 (2 of 2) | 0% |" in text


def test_runs_of_masks_are_kept_and_a_torn_line_is_dropped(tmp_path):
    record = tmp_path / "runs.jsonl"
    run = masked("masks", 0, 3)
    record.write_text(json.dumps({"device": "here", **vars(run)}) + '\n{"device": "he')
    assert ablation_masks.read_runs(record, "here", 100) == [run]
    assert record.read_text().count("\n") == 1
    with pytest.raises(SystemExit, match="another machine"):
        ablation_masks.read_runs(record, "there", 100)


def test_a_reward_is_as_fast_as_the_episodes_that_follow_it_become_good(tmp_path):
    folder = tmp_path / "sol-seed0"
    folder.mkdir()
    room, window = math.log(16), ablation_reward.WINDOW
    best = {"t": ablation_reward.Reachable(gap_closed=1.0, room=room)}
    half = 1 - math.log(2) / room  # a gap at which half of the best speed is reached
    gaps = [half] * window + [1.0] * window
    lines = [
        {"step": 10 * (i + 1), "task": "t", "gap_closed": g, "best_gap_closed": g} for i, g in enumerate(gaps)
    ]
    (folder / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "progress.jsonl").write_text('{"steps": 500}\n')
    found = ablation_reward.when_good(tmp_path, "sol", 0, best)
    assert found.first_score == pytest.approx(0.5)
    assert found.last_score == pytest.approx(1.0)
    # The mean is half plus half of the share of good episodes: 13 of 20 make 0.825, 17 make 0.925.
    assert found.steps[0] in (10 * (window + 12), 10 * (window + 13))
    assert found.steps[1] in (10 * (window + 16), 10 * (window + 17))


def test_a_run_that_never_becomes_good_counts_with_all_its_steps():
    never = ablation_reward.Learned("raw", 0, 400, (None, None), 0.1, 0.2)
    soon = ablation_reward.Learned("sol", 0, 400, (100, None), 0.1, 0.9)
    assert ablation_reward.fewer_steps([soon], [never], 0) == pytest.approx((0.75, 0.75, 0.75))
    text, _ = ablation_reward.report([soon, never], ["sol", "raw"], {}, "python ...")
    assert "To 80%, `sol` takes 75% fewer steps than `raw`" in text
    assert "400 (400; 0 of 1)" in text


def test_both_rewards_learn_under_equal_settings_but_for_reward_and_stopping():
    sol, raw = (ablation_reward.settings_of(ablation_reward.COMMON, arm, 3, None) for arm in ("sol", "raw"))
    options = [{**each.env.options} for each in (sol, raw)]
    assert (options[0].pop("reward"), options[1].pop("reward")) == ("gap_closed", "inverse_time")
    assert (options[0].pop("stop_at"), options[1].pop("stop_at")) == (0.95, 1.0)
    assert options[0] == options[1]
    assert sol.model_dump(exclude={"env"}) == raw.model_dump(exclude={"env"})
    assert sol.training.seed == 3
