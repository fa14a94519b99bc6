"""Checkpoints: what was stored comes back, nothing in them is executed, and damage is one sentence."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

import safetensors.numpy  # noqa: E402  the extra comes first

from solgym.baselines.rl.algorithms import make_model  # noqa: E402
from solgym.baselines.rl.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from solgym.baselines.rl.env_process import EnvSpec  # noqa: E402
from solgym.baselines.rl.settings import settings_from  # noqa: E402
from solgym.errors import InvalidRun  # noqa: E402
from tests.baselines.rl import fakes  # noqa: E402

SECTIONS = {
    "ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 1},
    "ppo-unmasked": {"n_steps": 16, "batch_size": 16, "n_epochs": 1},
    "a2c": {},
    "dqn": {"learning_starts": 8, "buffer_size": 64},
}


def model_of(algo: str, hidden: tuple[int, ...] = (8,)):
    section = "ppo" if algo.startswith("ppo") else algo
    settings = settings_from(
        {
            "env": {"id": fakes.ENV_ID},
            "training": {"algo": algo},
            "network": {"hidden": list(hidden)},
            section: SECTIONS[algo],
        }
    )
    envs = fakes.InProcessEnvs([EnvSpec(fakes.ENV_ID)] * 2)
    return make_model(settings, envs)


def said_by(path: Path) -> dict:
    with safetensors.safe_open(path, "numpy") as file:
        return json.loads(file.metadata()["solgym"])


def with_said(path: Path, **changes: object) -> bytes:
    """A checkpoint's bytes, with some of what it says replaced."""
    text = json.dumps({**said_by(path), **changes})
    return safetensors.numpy.save(safetensors.numpy.load(path.read_bytes()), {"solgym": text})


@pytest.mark.parametrize("algo", list(SECTIONS))
def test_what_was_stored_comes_back(tmp_path: Path, algo: str) -> None:
    path = tmp_path / "checkpoint.safetensors"
    trained, fresh = model_of(algo), model_of(algo)
    trained.learn(40)
    save_checkpoint(path, trained, {"segment": 3})
    assert load_checkpoint(path, fresh) == {"segment": 3}
    for name, tensor in trained.policy.state_dict().items():
        assert torch.equal(tensor, fresh.policy.state_dict()[name])
    before = trained.policy.optimizer.state_dict()["state"]
    after = fresh.policy.optimizer.state_dict()["state"]
    assert before.keys() == after.keys()
    assert before
    for index, entries in before.items():
        for name, value in entries.items():
            if value is not None:
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(after[index][name]))
    assert fresh.num_timesteps == trained.num_timesteps
    assert fresh._n_updates == trained._n_updates
    if algo == "dqn":
        assert fresh._n_calls == trained._n_calls
        assert fresh.replay_buffer.pos == trained.replay_buffer.pos
        assert np.array_equal(fresh.replay_buffer.observations, trained.replay_buffer.observations)


def test_it_holds_nothing_but_tensors_and_text(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    model = model_of("ppo")
    model.learn(32)
    save_checkpoint(path, model, {})
    assert safetensors.numpy.load(path.read_bytes())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", [b"", b"\x00" * 64, b"not a checkpoint at all", None])
def test_damage_is_one_sentence(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "checkpoint.safetensors"
    model = model_of("ppo")
    save_checkpoint(path, model, {})
    path.write_bytes(path.read_bytes()[:-10] if damage is None else damage)
    with pytest.raises(InvalidRun) as error:
        load_checkpoint(path, model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize("counter", [float("inf"), -1, "many", [], None])
def test_nonsense_in_place_of_counts_is_refused(tmp_path: Path, algo: str, counter: object) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, model_of(algo), {})
    for changes in ({"counters": {"num_timesteps": counter}}, {"counters": counter}, {"counters": {}}):
        path.write_bytes(with_said(path, **changes))
        with pytest.raises(InvalidRun, match="damaged"):
            load_checkpoint(path, model_of(algo))


def test_a_checkpoint_sets_no_more_than_counts(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    model = model_of("ppo")
    save_checkpoint(path, model, {})
    counters = {"num_timesteps": 0, "_n_updates": 0, "_episode_num": 0, "learn": 1}
    path.write_bytes(with_said(path, counters=counters))
    load_checkpoint(path, model)
    assert callable(model.learn)


@pytest.mark.parametrize("pos", [-1, 64, 3])
def test_a_replay_buffer_that_contradicts_itself_is_refused(tmp_path: Path, pos: int) -> None:
    path = tmp_path / "checkpoint.safetensors"
    model = model_of("dqn")
    model.learn(40)
    save_checkpoint(path, model, {})
    path.write_bytes(with_said(path, replay={"pos": pos, "full": False}))
    with pytest.raises(InvalidRun, match="damaged"):
        load_checkpoint(path, model_of("dqn"))


def test_the_optimizer_of_another_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    model = model_of("ppo")
    model.learn(32)
    save_checkpoint(path, model, {})
    tensors = safetensors.numpy.load(path.read_bytes())
    tensors["optimizer.0.exp_avg"] = np.zeros((3, 3), np.float32)
    path.write_bytes(safetensors.numpy.save(tensors, {"solgym": json.dumps(said_by(path))}))
    with pytest.raises(InvalidRun, match="exp_avg"):
        load_checkpoint(path, model_of("ppo"))


def test_the_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, model_of("ppo"), {})
    with pytest.raises(InvalidRun, match="belongs to another run"):
        load_checkpoint(path, model_of("ppo", hidden=(9,)))
