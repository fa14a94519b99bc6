"""Evaluating policies: what is compared with what, what counts, and that finished tasks are not repeated."""

import json
import math
from dataclasses import replace

import pytest

from solgym.baselines.rl.evaluation import Evaluation, EvaluationHeader, EvaluationRow, evaluate_policy
from solgym.baselines.rl.evaluation_plot import draw_evaluation
from solgym.baselines.runner import make_env
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.errors import InvalidOption, InvalidPolicy, InvalidTrace, UnknownTask
from solgym.hardware.measurement import Measurement, Status
from tests.baselines.rl.policies import policy, policy_for
from tests.envs.fakes import BASELINE_S, PROFILE, FakeTarget, timed
from tests.test_cli import PNG, is_refused, succeeds

ENV = "KernelDSL-GEMM-v0"
TASKS = ("gemm/f32/m9n17k5", "gemm/f32/m8n8k8", "gemm/f32/m16n8k8")


def row(task: str, baseline_s: float = 8.0, **measurements: Measurement | float) -> EvaluationRow:
    """A row worked out by hand; numbers are times in seconds."""
    made = {
        name: (timed(given) if isinstance(given, float) else given).to_json()
        for name, given in measurements.items()
    }
    return EvaluationRow(
        task=task, program=task.split("/")[0], actions=("finish",), candidate={}, steps=1, failures=0,
        reward=0.0, decision_s=1e-3, baseline_s=baseline_s, sol_s=0.5, measurements=made,
    )  # fmt: skip


def evaluation(*rows: EvaluationRow) -> Evaluation:
    header = EvaluationHeader(
        policy="0" * 64, algo="maskable-ppo", trained_on=ENV, env_id=ENV, options={}, seed=0, package="0",
        toolchain="t", device="d", profile="p",
    )  # fmt: skip
    return Evaluation(header=header, rows=rows)


FAILED = Measurement.failed(Status.WRONG_RESULT, "it computes something else")
UNSTABLE = replace(timed(2.0), status=Status.UNSTABLE)
IMPOSSIBLE = replace(timed(0.01), status=Status.FASTER_THAN_LIGHT)


# ---------------------------------------------------------------------- figures


def test_the_figures_are_those_worked_out_by_hand():
    made = evaluation(
        row("gemm/f32/a", policy=2.0, expert=1.0, fixed=4.0),  # 1/2 of the expert, 2 of fixed, 4 untouched
        row("gemm/f32/b", policy=1.0, expert=2.0, fixed=8.0),  # 2, 8, 8
        row("blur/f32/a", policy=4.0, expert=1.0, fixed=2.0),  # 1/4, 1/2, 2
        row("blur/f32/b", policy=4.0, expert=1.0),  # 1/4, none, 2
    )
    expert, fixed, untouched = (made.summary(name) for name in ("expert", "fixed", "untouched"))
    assert expert.geomean_tasks == pytest.approx((0.5 * 2 * 0.25 * 0.25) ** 0.25)
    assert expert.geomean_programs == pytest.approx(math.sqrt(1.0 * 0.25))
    assert (expert.tasks, expert.programs) == (4, 2)
    assert fixed.geomean_tasks == pytest.approx((2 * 8 * 0.5) ** (1 / 3))
    assert fixed.geomean_programs == pytest.approx(math.sqrt(4 * 0.5))
    assert (fixed.tasks, fixed.programs) == (3, 2)
    assert fixed.best_task == ("gemm/f32/b", pytest.approx(8.0))
    assert fixed.best_program == ("gemm", pytest.approx(4.0))
    assert untouched.geomean_tasks == pytest.approx((4 * 8 * 2 * 2) ** 0.25)
    # ln(8/2) / ln(8/0.5) = 2/4
    assert made.rows[0].gap_closed == pytest.approx(0.5)


def test_what_fails_counts_as_untouched_and_what_is_unstable_as_its_median():
    for failure in (FAILED, IMPOSSIBLE):
        failed = row("gemm/f32/a", policy=failure, expert=2.0)
        assert failed.status is failure.status
        assert failed.time_s == 8.0
        assert failed.ratio("expert") == 0.25
        assert failed.ratio("untouched") == 1.0
        assert failed.gap_closed == 0.0
    assert row("gemm/f32/a", policy=UNSTABLE, expert=1.0).ratio("expert") == 0.5


def test_a_reference_that_fails_is_left_out():
    made = evaluation(row("gemm/f32/a", policy=2.0, expert=FAILED), row("gemm/f32/b", policy=2.0, expert=1.0))
    assert made.rows[0].ratio("expert") is None
    assert made.summary("expert").tasks == 1
    assert made.summary("fixed") is None


def test_an_evaluation_reads_back_as_it_was_and_says_its_figures_in_json():
    made = evaluation(row("gemm/f32/a", policy=2.0, expert=1.0), row("gemm/f32/b", policy=FAILED))
    text = made.to_json()
    assert Evaluation.from_json(text) == made
    assert json.loads(text)["summaries"]["expert"]["geomean_tasks"] == 0.5
    for damaged in ("", "[]", text[:-20], text.replace('"samples_s"', '"samples"')):
        with pytest.raises(InvalidTrace):
            Evaluation.from_json(damaged)


# ---------------------------------------------------------------------- evaluating


class Countdown(FakeTarget):
    """A target on which the untouched kernel takes ``BASELINE_S`` and everything else a tenth of it."""

    def __init__(self, failing_in_turns: Status | None = None, unstable: int = 0) -> None:
        super().__init__()
        self.failing_in_turns = failing_in_turns
        self.unstable = unstable
        self.turns: list[list[str]] = []

    def measure(self, artifact, task, policy=None, seed=0, sol_time_s=None):
        self.measured.append(artifact.digest)
        return timed(BASELINE_S if artifact.digest == Schedule(task.id).digest else BASELINE_S / 10)

    def measure_in_turns(self, artifacts, task, policy=None, seed=0, sol_time_s=None):
        self.turns.append([artifact.digest for artifact in artifacts])
        found = [self.measure(artifact, task, policy, seed, sol_time_s) for artifact in artifacts]
        if self.failing_in_turns is not None:
            found[0] = Measurement.failed(self.failing_in_turns, "it failed on purpose")
        elif self.unstable >= len(self.turns):
            found[0] = replace(found[0], status=Status.UNSTABLE)
        return found


class Seen:
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[tuple[str, int, int]] = []

    def task(self, task_id, number, count):
        self.begun.append(task_id)

    def done(self, found, number, count):
        self.ended.append((found.task, number, count))


@pytest.fixture(scope="module")
def trained():
    env = make_env(ENV, options={"target": FakeTarget(), "profile": PROFILE})
    return policy_for(env, seed=3, env_options={"max_steps": 3, "profile": "not for the evaluation"})


def evaluated(trained, target=None, **arguments):
    arguments = {"tasks": TASKS, "options": {"target": target or Countdown(), "profile": PROFILE}} | arguments
    return evaluate_policy(trained, ENV, **arguments)


def test_each_task_is_played_once_and_timed_in_turns_with_the_references(trained):
    target = Countdown()
    made = evaluated(trained, target)
    assert [found.task for found in made.rows] == list(TASKS)
    assert made.header.options["max_steps"] == 3
    assert len(target.turns) == len(TASKS)
    for found, turns in zip(made.rows, target.turns, strict=True):
        assert found.steps <= 3
        assert set(found.measurements) == {"policy", "untouched", "expert"}
        assert Schedule(found.task).digest in turns
        assert Schedule.from_json(found.candidate).digest in turns
        assert len(set(turns)) == len(turns)
        assert found.ratio("expert") == pytest.approx(1.0)
        assert found.ratio("untouched") == pytest.approx(10.0)
    assert made.summary("fixed") is None


def test_without_tasks_a_split_is_played(trained):
    env = make_env(ENV, options={"split": "test"})
    assert [found.task for found in evaluated(trained, tasks=None).rows] == list(env.tasks)


def test_unstable_turns_are_repeated_and_failures_are_not(trained):
    target = Countdown(unstable=1)
    assert evaluated(trained, target, tasks=TASKS[:1]).rows[0].status is Status.OK
    assert len(target.turns) == 2
    target = Countdown(unstable=9)
    assert evaluated(trained, target, tasks=TASKS[:1]).rows[0].status is Status.UNSTABLE
    assert len(target.turns) == 3
    target = Countdown(Status.CRASHED)
    found = evaluated(trained, target, tasks=TASKS[:1]).rows[0]
    assert found.status is Status.CRASHED
    assert found.time_s == found.baseline_s == BASELINE_S
    assert len(target.turns) == 1


def test_a_second_call_repeats_no_finished_task(trained, tmp_path):
    class Interrupted(Seen):
        def task(self, task_id, number, count):
            if number == 2:
                raise KeyboardInterrupt
            super().task(task_id, number, count)

    with pytest.raises(KeyboardInterrupt):
        evaluated(trained, out=tmp_path, listener=Interrupted())
    before = (tmp_path / "evaluation.jsonl").read_text()
    seen, target = Seen(), Countdown()
    made = evaluated(trained, target, out=tmp_path, listener=seen)
    assert seen.begun == [TASKS[2]]
    assert seen.ended == [(task, number, 3) for number, task in enumerate(TASKS, 1)]
    assert (tmp_path / "evaluation.jsonl").read_text().startswith(before)
    again = evaluated(trained, Countdown(), out=tmp_path)
    assert again == made
    # Other tasks of the same evaluation join it; what was asked for is what comes back.
    more = evaluated(trained, out=tmp_path, tasks=["gemm/f32/m7n7k7", TASKS[0]])
    assert [found.task for found in more.rows] == ["gemm/f32/m7n7k7", TASKS[0]]
    assert len((tmp_path / "evaluation.jsonl").read_text().splitlines()) == 5


def test_two_evaluations_do_not_share_a_folder(trained, tmp_path):
    class Second(Seen):
        def task(self, task_id, number, count):
            with pytest.raises(InvalidTrace, match="another run is writing"):
                evaluated(trained, out=tmp_path)
            super().task(task_id, number, count)

    assert len(evaluated(trained, out=tmp_path, listener=Second()).rows) == len(TASKS)


def test_results_of_another_evaluation_are_not_continued(trained, tmp_path):
    evaluated(trained, out=tmp_path, tasks=TASKS[:1])
    with pytest.raises(InvalidTrace, match="seed 0, but now it is 1"):
        evaluated(trained, out=tmp_path, tasks=TASKS[:1], seed=1)
    env = make_env(ENV, options={"target": FakeTarget(), "profile": PROFILE})
    with pytest.raises(InvalidTrace, match="policy"):
        evaluated(policy_for(env, seed=4, env_options={"max_steps": 3}), out=tmp_path)


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign", "measurement", "huge", "none"])
def test_damaged_results_are_refused_with_their_line(trained, damage, tmp_path):
    evaluated(trained, out=tmp_path, tasks=TASKS[:2])
    file = tmp_path / "evaluation.jsonl"
    text = file.read_text()
    file.write_text(
        {
            "cut": text[:-40],
            "empty": "",
            "foreign": '{"format": "solgym-trace"}\n',
            "measurement": text.replace('"time_s":0.01', '"time_s":-1.0'),
            "huge": text.replace('"time_s":0.001', '"time_s":1e308'),
            "none": text.replace('"policy":{', '"fixed":{'),
        }[damage]
    )
    with pytest.raises(InvalidTrace, match=r"line|empty"):
        evaluated(trained, out=tmp_path)


def test_mistakes_are_found_before_anything_is_played(trained):
    target = Countdown()
    with pytest.raises(UnknownTask):
        evaluated(trained, target, tasks=[TASKS[0], "softmax/f32/rows7cols33"])
    with pytest.raises(InvalidOption, match="negative"):
        evaluated(trained, target, seed=-1)
    with pytest.raises(InvalidPolicy, match="4 features"):
        evaluated(policy(), target)
    assert target.measured == []


def test_programs_are_compared_with_the_best_fixed_pipeline_too():
    task, options = "jacobi_2d/f32/steps4n34", {"target": FakeTarget(), "profile": PROFILE}
    env = make_env("MLIRPasses-All-v0", options=options)
    made = evaluate_policy(
        policy_for(env, env_options={"max_steps": 3, "reward_at": "end"}),
        "MLIRPasses-Jacobi2d-v0", tasks=[task], options=options,
    )  # fmt: skip
    (found,) = made.rows
    assert set(found.measurements) == {"policy", "untouched", "expert", "fixed"}
    assert found.ratio("fixed") is not None
    assert made.summary("fixed").best_program == ("jacobi_2d", found.ratio("fixed"))


# ---------------------------------------------------------------------- picture and command


@pytest.mark.parametrize("references", [("expert", "fixed"), ("expert",), ()])
def test_the_picture_has_a_bar_per_task_and_reference(references, tmp_path):
    rows = [row(f"gemm/f32/{k}", policy=2.0, **dict.fromkeys(references, 1.0 + k)) for k in range(3)]
    rows.append(row("blur/f32/a", policy=FAILED, **dict.fromkeys(references, 1.0)))
    figure = draw_evaluation(evaluation(*rows), tmp_path / "picture.png")
    (axes,) = figure.axes
    assert len(axes.patches) == 4 * max(len(references), 1)
    assert [text.get_text() for text in axes.get_yticklabels()] == [found.task for found in reversed(rows)]
    # Bars begin at 1, so a bar's length is the ratio less 1; the first reference's come first.
    bars = [bar.get_width() + 1 for bar in axes.patches[:4]]
    expected = [found.ratio(references[0] if references else "untouched") for found in reversed(rows)]
    assert bars == pytest.approx(expected)
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG)
    with pytest.raises(InvalidOption, match="nothing to draw"):
        draw_evaluation(evaluation())


def test_the_picture_shows_whatever_a_policy_calls_its_algorithm(tmp_path):
    made = evaluation(row("gemm/f32/a", policy=2.0))
    made = made.model_copy(update={"header": made.header.model_copy(update={"algo": r"$\frac{$"})})
    draw_evaluation(made, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_the_command_evaluates_and_repeats_nothing(tmp_path):
    made = policy_for(make_env(ENV), env_options={"max_steps": 3})
    made.save(tmp_path / "policy.safetensors")
    command = ("evaluate", tmp_path / "policy.safetensors", ENV, "--task", TASKS[1], "-o", tmp_path / "out")
    text = succeeds(*command)
    assert TASKS[1] in text
    assert "the expert" in text
    assert (tmp_path / "out" / "evaluation.png").read_bytes().startswith(PNG)
    stored = Evaluation.from_json((tmp_path / "out" / "evaluation.json").read_text())
    assert stored.header.policy == made.digest
    before = (tmp_path / "out" / "evaluation.jsonl").stat().st_mtime_ns
    assert succeeds(*command) == text
    assert (tmp_path / "out" / "evaluation.jsonl").stat().st_mtime_ns == before
    assert "seed" in is_refused(*command, "--seed", "1")


def test_mistakes_of_the_command_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    policy().save(tmp_path / "p.safetensors")
    (tmp_path / "file").touch()
    for arguments, words in (
        (("evaluate", "p.safetensors", "KernelDSL-GEM-v0"), "KernelDSL-GEMM-v0"),
        (("evaluate", "p.safetensors", ENV, "--split", "dev"), "train or test"),
        (("evaluate", "p.safetensors", ENV, "-o", "file"), "takes a folder"),
        (("evaluate", "p.safetensors", "MLIRPasses-v0"), "solgym opt"),
        (("evaluate", "nothing", ENV), "there is no policy nothing"),
        (("opt", "a.mlir", "--policy", "p.safetensors", "--passes", "canonicalize"), "give one of"),
        (("opt", "a.mlir"), "give one of"),
        (("opt", "-", "--policy", "p.safetensors"), "in place of -"),
        (("opt", "missing.mlir", "--policy", "p.safetensors"), "No such file"),
    ):
        assert words in is_refused(*arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "p.safetensors"]


@pytest.mark.slow
def test_opt_lets_a_policy_choose_the_passes(tmp_path):
    from tests.test_cli_passes import OWN

    made = policy_for(make_env("MLIRPasses-All-v0"), env_options={"max_steps": 3, "reward_at": "end"})
    made.save(tmp_path / "policy.safetensors")
    text = succeeds("opt", OWN, "--policy", tmp_path / "policy.safetensors", "-o", tmp_path / "out.mlir")
    assert "written to" in text
    assert "func.func" in (tmp_path / "out.mlir").read_text()
    policy().save(tmp_path / "other.safetensors")
    (tmp_path / "out.mlir").unlink()
    arguments = ("--policy", tmp_path / "other.safetensors", "-o", tmp_path / "out.mlir")
    assert "4 features" in is_refused("opt", OWN, *arguments)
    assert not (tmp_path / "out.mlir").exists()
