"""Training: it learns, can be interrupted and continued exactly, and survives what happens to processes."""

import itertools
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

torch = pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")
pytest.importorskip("tensorboard")

from solgym.baselines.rl import training  # noqa: E402  the extra comes first
from solgym.baselines.rl.episodes import play  # noqa: E402
from solgym.baselines.rl.policy import Policy  # noqa: E402
from solgym.baselines.rl.processes import EnvProcesses  # noqa: E402
from solgym.baselines.rl.run_folder import read_progress  # noqa: E402
from solgym.baselines.rl.settings import Settings, settings_from  # noqa: E402
from solgym.baselines.rl.training import SilentTrainingListener, train  # noqa: E402
from solgym.errors import InvalidOption, InvalidRun, InvalidSchedule, LearningDiverged  # noqa: E402
from tests.baselines.rl import fakes  # noqa: E402

MODULE = "tests.baselines.rl.fakes"
SECTIONS = {
    "ppo": {"n_steps": 32, "batch_size": 32, "n_epochs": 4, "learning_rate": 2e-3},
    "ppo-unmasked": {"n_steps": 32, "batch_size": 32, "n_epochs": 2},
    "a2c": {"n_steps": 8, "ent_coef_end": 0.0, "decay_steps": 300},
    "dqn": {
        "learning_starts": 64,
        "buffer_size": 150,
        "target_update_interval": 50,
        "exploration_steps": 200,
    },
}


@pytest.fixture(autouse=True)
def _own_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment brings its own profile; nothing has to be calibrated."""
    monkeypatch.setattr("solgym.baselines.rl.training.resolve_profile", lambda name: fakes.profile_of(4))


def settings(algo: str = "ppo", **changes: dict) -> Settings:
    data = {
        "env": {"id": fakes.ENV_ID},
        "training": {"algo": algo, "steps": 2000, "checkpoint_every": 1024, "evaluate_every": 0},
        "network": {"hidden": [32]},
        "ppo" if algo.startswith("ppo") else algo: SECTIONS[algo],
    }
    for section, values in changes.items():
        data[section] = {**data.get(section, {}), **values}
    return settings_from(data)


def learn(chosen: Settings, folder: Path, **arguments):
    arguments.setdefault("open_envs", fakes.InProcessEnvs)
    return train(chosen, folder, **arguments)


def episodes_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def random_returns(seed: int, count: int) -> list[float]:
    envs = fakes.InProcessEnvs([fakes.SPEC_OF_STAIRS], tasks=fakes.TASKS["train"])
    envs.seed(seed)
    envs.reset()
    rng = np.random.default_rng(seed)
    returns: list[float] = []
    while len(returns) < count:
        legal = np.flatnonzero(envs.env_method("action_masks")[0])
        _, _, _, infos = envs.step([rng.choice(legal)])
        returns += [infos[0]["episode"]["r"]] if "episode" in infos[0] else []
    return returns


class Interrupted(SilentTrainingListener):
    """Presses Ctrl-C when so many steps are done."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def standing(self, standing) -> None:
        if standing.steps >= self.steps:
            raise KeyboardInterrupt


def test_after_2000_steps_every_seed_is_better_than_random(tmp_path: Path) -> None:
    trained, untrained = [], []
    for seed in range(4):
        learn(settings(training={"seed": seed}), tmp_path / str(seed))
        trained.append(np.mean([e["return"] for e in episodes_of(tmp_path / str(seed))][-20:]))
        untrained.append(np.mean(random_returns(seed, 20)))
    # Four of four above four of four: by chance alone once in 70.
    assert min(trained) > max(untrained)


def test_the_policy_that_is_saved_acts_without_torch(tmp_path: Path) -> None:
    learn(settings(training={"evaluate_every": 1024}), tmp_path)
    env = fakes.make_stairs()
    for name in ("policy", "best"):
        policy = Policy.load(tmp_path / f"{name}.safetensors")
        policy.check(env)
        assert policy.info.algo == "maskable-ppo"
        assert policy.info.env_id == fakes.ENV_ID
        score = np.mean([play(policy, env, task).gap_closed for task in fakes.TASKS["test"]])
        assert score > np.mean(random_returns(0, 20))


def test_the_saved_policy_is_the_network_that_learned(tmp_path: Path) -> None:
    from solgym.baselines.rl.algorithms import make_model
    from solgym.baselines.rl.checkpoint import load_checkpoint

    chosen = settings(training={"steps": 64})
    learn(chosen, tmp_path)
    model = make_model(chosen, fakes.InProcessEnvs([fakes.SPEC_OF_STAIRS] * 2))
    load_checkpoint(tmp_path / "checkpoint.safetensors", model)
    policy = Policy.load(tmp_path / "policy.safetensors")
    observation = np.random.default_rng(0).uniform(-1, 1, len(fakes.FEATURES)).astype(np.float32)
    with torch.no_grad():
        inner = model.policy.mlp_extractor.forward_actor(torch.from_numpy(observation)[None])
        logits = model.policy.action_net(inner)[0].numpy()
    assert np.allclose(policy.logits(observation), logits, atol=1e-5)


@pytest.mark.parametrize("algo", list(SECTIONS))
def test_an_interrupted_run_ends_like_one_that_is_not(tmp_path: Path, algo: str) -> None:
    chosen = settings(
        algo,
        training={"steps": 384, "checkpoint_every": 128, "evaluate_every": 128},
        curriculum={"enabled": True, "levels": 2, "window": 8, "threshold": 0.0, "success_rate": 0.5},
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    learn(chosen, whole)
    for steps in (1, 200, 300):
        if algo == "dqn" and steps == 200:
            continue  # its rollouts are short, so that one is enough
        with pytest.raises(KeyboardInterrupt):
            learn(chosen, parts, listener=Interrupted(steps))
    learn(chosen, parts)
    assert episodes_of(whole) == episodes_of(parts)
    a, b = (Policy.load(folder / "policy.safetensors") for folder in (whole, parts))
    for first, second in zip(itertools.chain(*a.layers), itertools.chain(*b.layers), strict=True):
        assert np.array_equal(first, second)
    lines = [
        [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
        for folder in (whole, parts)
    ]
    for first, second in zip(*lines, strict=True):
        assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_a_finished_run_is_extended_by_more_steps(tmp_path: Path) -> None:
    checkpoints = {"checkpoint_every": 128}
    learn(settings(training={"steps": 256, **checkpoints}), tmp_path / "twice")
    learn(settings(training={"steps": 512, **checkpoints}), tmp_path / "twice")
    result = learn(settings(training={"steps": 512, **checkpoints}), tmp_path / "once")
    assert result.steps == 512
    assert episodes_of(tmp_path / "once") == episodes_of(tmp_path / "twice")


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    learn(settings(training={"steps": 128}), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    learn(settings(training={"steps": 128}), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == before


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"training": {"steps": 128, "seed": 1}}, "training.seed"),
        ({"training": {"steps": 128}, "ppo": {"gamma": 0.5}}, "ppo.gamma"),
        ({"training": {"steps": 64}}, "128 steps"),
    ],
)
def test_the_folder_of_another_run_is_refused(tmp_path: Path, changes: dict, field: str) -> None:
    learn(settings(training={"steps": 128}), tmp_path)
    with pytest.raises(InvalidRun) as error:
        learn(settings(**changes), tmp_path)
    assert field in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": {"options": {"no_such": 1}}}, "no option 'no_such'"),
        ({"network": {"hidden": [10**13]}}, "[network] hidden"),
        ({"ppo": {"n_steps": 10**13}}, "n_steps"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(InvalidOption) as error:
        learn(settings(**changes), tmp_path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("algo", list(SECTIONS))
def test_learning_that_diverges_says_so_and_keeps_the_last_checkpoint(
    tmp_path: Path, algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spoils(SilentTrainingListener):
        def standing(self, standing) -> None:
            if standing.steps >= 160:
                with torch.no_grad():
                    next(models[-1].policy.parameters()).fill_(float("nan"))

    models: list = []
    made = training.make_model
    monkeypatch.setattr(training, "make_model", lambda *given: models.append(made(*given)) or models[-1])
    chosen = settings(algo, training={"steps": 512, "checkpoint_every": 128})
    with pytest.raises(LearningDiverged, match="learning_rate"):
        learn(chosen, tmp_path, listener=Spoils())
    assert [line["steps"] for line in read_progress(tmp_path)] == [0, 128]


@pytest.mark.parametrize("missing", ["run.json", "train.toml"])
def test_a_run_without_its_beginning_is_not_overwritten(tmp_path: Path, missing: str) -> None:
    learn(settings(training={"steps": 64}), tmp_path)
    (tmp_path / missing).unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    with pytest.raises(InvalidRun, match=f"no {missing}"):
        learn(settings(training={"steps": 64}), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == before


@pytest.mark.parametrize("field", ["profiles", "tasks"])
def test_a_beginning_that_names_nothing_is_damaged(tmp_path: Path, field: str) -> None:
    learn(settings(training={"steps": 64}), tmp_path)
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: []}))
    with pytest.raises(InvalidRun, match="is damaged"):
        learn(settings(training={"steps": 64}), tmp_path)


@pytest.mark.parametrize("line", ["5", "[" * 50_000, '{"step": 3, "return": 1.0}'])
def test_lines_of_another_file_are_no_progress(tmp_path: Path, line: str) -> None:
    learn(settings(training={"steps": 64}), tmp_path)
    with (tmp_path / "progress.jsonl").open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write(line + "\n" + text)
    with pytest.raises(InvalidRun, match="line 1") as error:
        read_progress(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "progress",
    [
        {},
        "none",
        {"segment": -1},
        {"latest": ["a", 1]},
        {"sizes": {"progress.jsonl": -1}},
        {"seconds": 1e999},
    ],
)
def test_a_checkpoint_that_says_nonsense_of_the_run_is_refused(tmp_path: Path, progress: object) -> None:
    learn(settings(training={"steps": 64}), tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    with safetensors.safe_open(path, "numpy") as file:
        said = json.loads(file.metadata()["solgym"])
    is_part = isinstance(progress, dict) and progress
    said["progress"] = {**said["progress"], **progress} if is_part else progress
    path.write_bytes(
        safetensors.numpy.save(safetensors.numpy.load(path.read_bytes()), {"solgym": json.dumps(said)})
    )
    with pytest.raises(InvalidRun, match="damaged"):
        learn(settings(training={"steps": 64}), tmp_path)


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        learn(settings(training={"steps": 64}), tmp_path / name)
    (tmp_path / "other" / "checkpoint.safetensors").replace(tmp_path / "one" / "checkpoint.safetensors")
    with pytest.raises(InvalidRun, match="belongs to another run"):
        learn(settings(training={"steps": 128}), tmp_path / "one")


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    class Second(SilentTrainingListener):
        def standing(self, standing) -> None:
            with pytest.raises(InvalidRun, match="another run is writing"):
                learn(settings(training={"steps": 64}), tmp_path)

    learn(settings(training={"steps": 64}), tmp_path, listener=Second())


def test_tasks_held_out_for_tests_are_not_trained_on(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="held out"):
        learn(settings(env={"tasks": [fakes.TASKS["test"][0]]}), tmp_path)


def test_experts_of_the_training_tasks_are_imitated_if_asked_for(tmp_path: Path) -> None:
    chosen = settings(
        training={"steps": 64, "evaluate_every": 64}, imitation={"epochs": 60, "learning_rate": 5e-3}
    )
    result = learn(chosen, tmp_path)
    begin = result.progress[0]
    assert begin["steps"] == 0
    assert begin["imitated_tasks"] == len(fakes.TASKS["train"])
    # Whoever takes every expert's action reaches its score.
    env = fakes.make_stairs()
    for task, episode in begin["train"].items():
        env.reset(options={"task": task, "warm_start": "expert"})
        assert episode["gap_closed"] == pytest.approx(env.state_gap_closed())


def test_given_candidates_are_imitated_instead_of_the_experts(tmp_path: Path) -> None:
    tasks = fakes.TASKS["train"]
    given = tmp_path / "given.json"
    slow = {task: 1 + (fakes.right_action(task, 0) + 1) % (fakes.ACTIONS - 1) for task in tasks}
    given.write_text(json.dumps([{"task": task, "taken": [action]} for task, action in slow.items()]))
    chosen = settings(
        training={"steps": 64, "evaluate_every": 64},
        imitation={"epochs": 60, "learning_rate": 5e-3, "candidates": str(given)},
    )
    begin = learn(chosen, tmp_path / "run").progress[0]
    assert begin["imitated_decisions"] == 2 * len(tasks)
    assert begin["imitated_tasks"] == len(tasks)
    given.write_text("{")
    with pytest.raises(InvalidSchedule, match=r"given\.json"):
        learn(chosen, tmp_path / "other")


def test_a_run_over_several_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "solgym.baselines.rl.training.resolve_profile", lambda name: fakes.profile_of(int(name))
    )
    seen = []

    def open_envs(specs, **arguments):
        envs = fakes.InProcessEnvs(specs, **arguments)
        seen.extend(env.unwrapped.profile.cores for env in envs.envs)
        return envs

    chosen = settings(training={"steps": 192, "envs": 3}, env={"profiles": ["8", "64"]})
    result = learn(chosen, tmp_path, open_envs=open_envs)
    assert seen == [8, 64, 8]
    assert result.steps >= 192


class _Kills(SilentTrainingListener):
    """Kills an environment's process in the middle of learning."""

    def __init__(self) -> None:
        self.envs: EnvProcesses | None = None
        self.notices: list[str] = []
        self.is_done = False

    def open_envs(self, *arguments, **named) -> EnvProcesses:
        self.envs = EnvProcesses(*arguments, **named)
        return self.envs

    def standing(self, standing) -> None:
        if standing.steps >= 128 and not self.is_done:
            assert self.envs is not None
            self.is_done = True
            victim = self.envs.pids()[0]

            def shoot() -> None:
                time.sleep(0.02)  # so that a step is under way, most likely
                os.kill(victim, signal.SIGKILL)

            threading.Thread(target=shoot).start()

    def notice(self, text: str) -> None:
        self.notices.append(text)


def test_training_goes_on_when_an_environment_is_killed(tmp_path: Path) -> None:
    killer = _Kills()
    chosen = settings(training={"steps": 512, "checkpoint_every": 256})
    result = learn(chosen, tmp_path, listener=killer, open_envs=killer.open_envs, modules=(MODULE,))
    assert result.steps == 512
    assert sum(line["restarts"] for line in result.progress) == 1
    assert any("process" in text for text in killer.notices)
    assert all(np.isfinite(e["return"]) for e in episodes_of(tmp_path))
