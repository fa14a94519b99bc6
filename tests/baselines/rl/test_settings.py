"""Settings of a training run: what a file may say, and that what is stored says everything."""

from pathlib import Path

import pytest

from solgym.baselines.rl.settings import Settings, read_settings, settings_from, write_settings
from solgym.errors import InvalidOption

GEMM = {"env": {"id": "KernelDSL-GEMM-v0"}}
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_a_file_that_names_an_environment_is_enough() -> None:
    settings = settings_from(GEMM)
    assert settings.training.algo == "ppo"
    assert settings.ppo is not None
    assert settings.a2c is None
    assert settings.dqn is None


def test_the_policy_of_passes_is_three_layers_by_default() -> None:
    assert settings_from({"env": {"id": "MLIRPasses-All-v0"}}).hidden == (128, 64, 32)
    assert settings_from({**GEMM, "network": {"hidden": [7]}}).hidden == (7,)


@pytest.mark.parametrize("algo", ["ppo", "ppo-unmasked", "a2c", "dqn"])
def test_what_is_written_is_read_back(tmp_path: Path, algo: str) -> None:
    pytest.importorskip("tomli_w")
    settings = settings_from(
        {
            "env": {
                "id": "KernelDSL-GEMM-v0",
                "options": {
                    "reward_at": "end",
                    "max_steps": 12,
                    "stop_at": 0.9,
                    "mask_in_observation": False,
                },
                "tasks": ["gemm/f32/m64n64k64"],
                "profiles": ["a", "b"],
                "measuring": {"max_seconds": 0.05},
            },
            "training": {"algo": algo, "steps": 7},
            "network": {"hidden": [9, 8], "activation": "relu"},
            "curriculum": {"enabled": True, "levels": 4},
            "ppo" if algo.startswith("ppo") else algo: {"learning_rate": 1e-4, "gamma": 1},
        }
    )
    path = tmp_path / "train.toml"
    write_settings(path, settings)
    assert read_settings(path) == settings
    assert f"[{'ppo' if algo.startswith('ppo') else algo}]" in path.read_text()


def test_the_command_line_counts_more_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text('[env]\nid = "KernelDSL-GEMM-v0"\n[training]\nsteps = 5\nseed = 3\n')
    settings = read_settings(path, {"training": {"steps": 9, "seed": None}})
    assert settings.training.steps == 9
    assert settings.training.seed == 3


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"env": {}}, "env.id is missing"),
        ({"trainng": {}}, "trainng is no setting"),
        ({"training": {"steps": "many"}}, "training.steps"),
        ({"training": {"steps": 0}}, "training.steps"),
        ({"training": {"algo": "sac"}}, "'ppo', 'ppo-unmasked', 'a2c' or 'dqn'"),
        ({"ppo": {"n_step": 3}}, "ppo.n_step is no setting"),
        ({"dqn": {}}, "[dqn] is not used with algo 'ppo'"),
        ({"ppo": {"learning_rate": float("nan")}}, "ppo.learning_rate"),
        ({"ppo": {"learning_rate": 1e38}}, "ppo.learning_rate"),
        ({"imitation": {"noise": 1e300}}, "imitation.noise"),
        ({"training": {"seed": 1 << 32}}, "training.seed"),
        ({"curriculum": {"threshold": float("nan")}}, "curriculum.threshold"),
        ({"ppo": {"learning_rate_end": 1e-5}}, "decay_steps"),
        ({"env": {"id": "X", "measuring": {"warmup": 0}}}, "warmup must be at least 1"),
        ({"env": {"id": "X", "measuring": {"repeats": 3}}}, "measuring has no 'repeats'"),
        ({"env": {"id": "X", "options": {"task": "a"}}}, "use tasks of [env]"),
        ({"env": {"id": "X", "options": {"mask_in_observation": True}}}, "mask_in_observation"),
        ({"env": {"id": "X", "profiles": ["a", "b", "c"]}}, "3 profiles"),
        ({"training": {"algo": "dqn"}, "imitation": {"epochs": 1}}, "[imitation]"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_place(changes: dict, where: str) -> None:
    with pytest.raises(InvalidOption) as error:
        settings_from({**GEMM, **changes})
    assert where in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[env\nid = 3", "x = " + "[" * 50_000 + "]" * 50_000])
def test_a_file_that_is_no_toml_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.toml"
    path.write_text(text)
    with pytest.raises(InvalidOption, match="is not TOML") as error:
        read_settings(path)
    assert "\n" not in str(error.value)
    with pytest.raises(InvalidOption, match="cannot read the settings"):
        read_settings(tmp_path / "nothing.toml")


def test_segments_are_whole_rollouts() -> None:
    settings = settings_from(
        {**GEMM, "training": {"envs": 3, "checkpoint_every": 1000}, "ppo": {"n_steps": 64}}
    )
    assert settings.rollout_steps == 192
    assert settings.segment_steps == 1152


@pytest.mark.parametrize("name", ["train_gemm.toml", "train_passes.toml"])
def test_the_files_that_come_with_the_package_are_read(name: str) -> None:
    assert isinstance(read_settings(BENCHMARKS / name), Settings)
