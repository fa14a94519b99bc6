"""Policies: what they choose, that their files come back as they were, and that hostile files do no harm."""

import itertools
import json
import math
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from solgym.baselines.rl.episodes import play
from solgym.baselines.rl.policy import ACTING_OPTIONS, Policy, action_names, branches_of, shipped_policies
from solgym.baselines.runner import make_env
from solgym.errors import InvalidAction, InvalidPolicy, SolgymError
from tests.baselines.rl.policies import info, layers, policy, policy_for
from tests.envs.fakes import PROFILE, FakeTarget
from tests.test_cli import is_refused

TASK = "gemm/f32/m9n17k5"


def kernel_env(kernel="GEMM", task=TASK, **options):
    return make_env(
        f"KernelDSL-{kernel}-v0", task=task, options={"target": FakeTarget(), "profile": PROFILE, **options}
    )


# ---------------------------------------------------------------------- what they choose


def test_logits_are_those_of_a_network_worked_out_by_hand():
    first = (np.array([[1.0, -1.0], [0.5, 0.5]]), np.array([0.0, -1.0]))
    last = (np.array([[2.0, 1.0], [0.0, -3.0], [1.0, 1.0]]), np.array([0.5, 0.0, -0.5]))
    x = np.array([0.25, 1.0], dtype=np.float32)
    for activation, f in (("tanh", math.tanh), ("relu", lambda value: max(value, 0.0))):
        a, b = f(0.25 - 1.0), f(0.125 + 0.5 - 1.0)
        expected = [2 * a + b + 0.5, -3 * b, a + b - 0.5]
        made = Policy(info(inputs=2, activation=activation), [first, last])
        logits = made.logits(x, np.array([True, True, False]))
        assert logits.dtype == np.float32
        assert logits[:2] == pytest.approx(expected[:2], rel=1e-6)
        assert logits[2] == -np.inf
    assert made.parameters == 4 + 2 + 6 + 3


@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e20, 3e38]), st.sampled_from(["tanh", "relu"]))
@settings(max_examples=60, deadline=None)
def test_only_legal_actions_are_chosen_whatever_the_weights(seed, scale, activation):
    rng = np.random.default_rng(seed)
    branches = tuple(int(size) for size in rng.integers(1, 5, size=3))
    made = info(inputs=3, branches=branches, activation=activation)
    sizes = (3, 4, 4, sum(branches))
    weights = [
        (rng.uniform(-scale, scale, size=(b, a)), rng.uniform(-scale, scale, size=b))
        for a, b in itertools.pairwise(sizes)
    ]
    mask = np.zeros(sum(branches), dtype=np.int8)
    ends = np.cumsum(branches)
    for end, size in zip(ends, branches, strict=True):
        mask[end - size + rng.integers(size)] = 1
    for draws in (None, rng):
        chosen = Policy(made, weights).act(rng.normal(size=3), mask, draws)
        assert all(mask[end - size + part] for end, size, part in zip(ends, branches, chosen, strict=True))


def test_the_best_action_is_taken_and_draws_follow_the_softmax():
    # Without hidden layers the bias alone decides: probabilities 1/4, 0 (masked) and 3/4.
    made = Policy(info(inputs=1), [(np.zeros((3, 1)), np.log([1.0, 9.0, 3.0]))])
    mask = np.array([1, 0, 1], dtype=np.int8)
    assert made.act(np.zeros(1), mask) == 2
    assert made.act(np.zeros(1)) == 1
    rng, count = np.random.default_rng(0), 4000
    drawn = [made.act(np.zeros(1), mask, rng) for _ in range(count)]
    deviation = math.sqrt(count * 0.25 * 0.75)
    assert abs(drawn.count(0) - count / 4) < 5 * deviation
    assert set(drawn) == {0, 2}


def test_values_of_dqn_are_not_drawn_from():
    made = Policy(info(inputs=1, algo="dqn"), [(np.zeros((3, 1)), np.array([0.0, 0.1, 0.0]))])
    rng = np.random.default_rng(0)
    assert {made.act(np.zeros(1), None, rng) for _ in range(50)} == {1}


def test_a_mask_without_a_legal_action_is_an_error():
    with pytest.raises(InvalidAction, match="no action"):
        policy(branches=(2, 2)).act(np.zeros(4), np.array([1, 0, 0, 0]))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("branches", [(7,), (2, 3, 2)])
def test_a_policy_agrees_with_the_network_of_maskable_ppo(activation, branches):
    torch = pytest.importorskip("torch")
    policies = pytest.importorskip("sb3_contrib.common.maskable.policies")
    from gymnasium import spaces

    torch.manual_seed(0)
    made = policies.MaskableActorCriticPolicy(
        spaces.Box(-1, 1, (12,)),
        spaces.Discrete(7) if len(branches) == 1 else spaces.MultiDiscrete(branches),
        lambda _: 1e-3,
        net_arch=[16, 8],
        activation_fn={"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[activation],
    )
    for parameter in made.parameters():  # away from orthogonal, where many things would agree
        torch.nn.init.normal_(parameter)
    linear = [part for part in made.mlp_extractor.policy_net if isinstance(part, torch.nn.Linear)]
    ours = Policy(
        info(inputs=12, branches=branches, activation=activation),
        [(part.weight.detach().numpy(), part.bias.detach().numpy()) for part in (*linear, made.action_net)],
    )
    rng = np.random.default_rng(1)
    for _ in range(50):
        x = rng.uniform(-1, 1, 12).astype(np.float32)
        mask = np.concatenate([rng.permutation(np.arange(size) < 2) for size in branches])
        with torch.no_grad():
            latent = made.mlp_extractor.forward_actor(torch.tensor(x[None]))
            theirs = made.action_net(latent).numpy()[0]
        ours_all, scale = ours.logits(x), np.abs(theirs).max()
        # Sums of 12 to 16 terms in another order: some units in the last place of the largest.
        np.testing.assert_allclose(ours_all, theirs, rtol=0, atol=64 * np.finfo(np.float32).eps * scale)
        chosen, _ = made.predict(x, deterministic=True, action_masks=mask)
        np.testing.assert_array_equal(ours.act(x, mask), chosen)


# ---------------------------------------------------------------------- where they act


def test_a_policy_plays_an_episode_and_says_what_came_of_it():
    with_mask = kernel_env(max_steps=5, stop_at=1.0, mask_in_observation=True)
    env = kernel_env(max_steps=5, stop_at=1.0)
    made = policy_for(env, seed=3)
    episode = play(made, env, TASK)
    assert episode.task == TASK
    assert 1 <= episode.steps == len(episode.actions) <= 5
    assert set(episode.actions) <= set(env.action_meanings())
    assert episode.failures == 0  # a mask is given, and nothing fails on this target
    assert episode.reward == pytest.approx(episode.gap_closed)
    measured = env.target.measure(env.target.compile(episode.candidate, env.task), env.task)
    assert episode.measurement.time_s == measured.time_s
    assert episode.speedup == pytest.approx(episode.baseline_s / measured.time_s)
    assert play(made, with_mask, TASK).actions == episode.actions


def test_an_episode_that_is_measured_at_its_end_has_the_last_measurement():
    env = kernel_env(max_steps=4, reward_at="end")
    episode = play(policy_for(env, seed=3), env, TASK)
    made = env.target.compile(episode.candidate, env.task)
    assert made.digest == env.target.measured[-1]
    assert episode.measurement.time_s == env.target.measure(made, env.task).time_s


def test_draws_make_other_episodes_and_equal_seeds_equal_ones():
    env = kernel_env(max_steps=6)
    made = policy_for(env)
    first, again, other = (play(made, env, TASK, rng=np.random.default_rng(s)).actions for s in (1, 1, 2))
    assert first == again != other


def test_a_policy_of_knobs_sets_all_of_them_in_one_step():
    env = kernel_env(action_mode="knobs")
    made = policy_for(env)
    episode = play(made, env, TASK)
    assert episode.steps == 1
    (action,) = episode.actions
    assert action.count(",") == len(branches_of(env)) - 1
    assert "tile_rows = " in action


def test_a_policy_acts_on_other_tasks_and_kernels_with_the_same_actions():
    made = policy_for(kernel_env())
    assert play(made, kernel_env(task="gemm/f32/m8n8k8", max_steps=2), "gemm/f32/m8n8k8").steps <= 2
    softmax = "softmax/f32/rows7cols33"
    assert play(made, kernel_env("Softmax", softmax, max_steps=2), softmax).steps <= 2
    of_knobs = policy_for(kernel_env(action_mode="knobs"))
    other = kernel_env(task="gemm/f32/m64n64k64", action_mode="knobs")
    assert action_names(other) == of_knobs.info.actions


def test_a_policy_is_refused_where_it_does_not_fit():
    env = kernel_env()
    names = env.feature_names
    with pytest.raises(InvalidPolicy, match=r"4 features, not the 570"):
        policy().check(env)
    swapped = (names[1], names[0], *names[2:])
    with pytest.raises(InvalidPolicy, match="number 0 is"):
        Policy(
            info(features=swapped, actions=action_names(env), branches=branches_of(env)),
            layers(len(names), len(action_names(env))),
        ).check(env)
    with pytest.raises(InvalidPolicy, match="actions"):
        policy_for(env).check(kernel_env(action_mode="knobs"))
    with pytest.raises(InvalidPolicy, match="actions"):
        policy_for(kernel_env(action_mode="knobs")).check(
            kernel_env("Softmax", "softmax/f32/rows7cols33", action_mode="knobs")
        )


def test_options_of_a_policy_name_no_files_and_no_help():
    options = {
        "max_steps": 7, "reward_at": "end", "action_mode": "knobs", "observation": "full",
        "program": "/etc/passwd", "profile": "/etc/passwd", "fallback": "expert", "task": TASK,
    }  # fmt: skip
    made = policy(env_options=options)
    assert made.options_for("KernelDSL-GEMM-v0") == {
        "action_mode": "knobs", "max_steps": 7, "reward_at": "end"
    }  # fmt: skip
    assert made.options_for("MLIRPasses-v0") == {"max_steps": 7, "observation": "full", "reward_at": "end"}
    for value in ([1], 10**9, 0, "many"):
        with pytest.raises(InvalidPolicy, match="max_steps"):
            policy(env_options={"max_steps": value}).options_for("KernelDSL-GEMM-v0")


SCALARS = st.none() | st.booleans() | st.integers() | st.integers(-3, 10) | st.floats() | st.text(max_size=5)
OPTIONS = sorted(ACTING_OPTIONS)


@given(
    values=st.dictionaries(st.sampled_from(OPTIONS), SCALARS | st.lists(SCALARS, max_size=2), max_size=4),
    env_id=st.sampled_from(["KernelDSL-GEMM-v0", "MLIRPasses-All-v0"]),
)
@example(values={"failure_penalty": -(10**400)}, env_id="KernelDSL-GEMM-v0")
@example(values={"max_steps": None}, env_id="MLIRPasses-All-v0")
@settings(max_examples=150, deadline=None)
def test_options_of_a_policy_make_an_environment_or_are_refused(values, env_id):
    try:
        options = policy(env_options=values).options_for(env_id)
        threads = options.pop("threads", 1)
        made = make_env(env_id, threads=threads, options={**options, "profile": PROFILE})
    except SolgymError:
        return
    assert 1 <= made.max_steps <= 1000


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("name", sorted(shipped_policies()))
def test_policies_that_come_with_the_package_can_be_named(name):
    made = Policy.load(name)
    assert made.info.training
    assert made.act(np.zeros(len(made.info.features))) is not None


@pytest.mark.parametrize("name", ["p.safetensors", "no suffix"])
def test_a_file_gives_back_an_equal_policy(name, tmp_path):
    made = policy(8, 5, branches=(2, 3), training={"steps": 10, "versions": {"torch": "2"}, "note": None})
    made.save(tmp_path / "new" / name)
    found = Policy.load(tmp_path / "new" / name)
    assert found.info == made.info
    assert found.digest == made.digest
    x = np.linspace(-1, 1, 4)
    np.testing.assert_array_equal(found.logits(x), made.logits(x))
    assert os.listdir(tmp_path / "new") == [name]


def test_a_policy_keeps_its_own_copy_of_the_weights():
    weights = layers(4, 3)
    made = Policy(info(), weights)
    before = made.logits(np.ones(4))
    weights[0][0][:] = 0
    np.testing.assert_array_equal(made.logits(np.ones(4)), before)


def stored(path: Path, tensors=None, metadata=None) -> Path:
    """A safetensors file that says it is a policy, with some of it replaced."""
    usual = {f"layers.0.{name}": np.zeros(shape, np.float32) for name, shape in
             (("weight", (3, 4)), ("bias", (3,)))}  # fmt: skip
    text = info().model_dump_json()
    chosen = {"solgym": text} if metadata is None else metadata
    path.write_bytes(safetensors.numpy.save(usual | (tensors or {}), chosen))
    return path


def raw(path: Path, header: object, payload: bytes = b"") -> Path:
    """A file of the safetensors layout with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)
    return path


def said(**changes) -> dict[str, str]:
    return {"solgym": json.dumps(info().model_dump(mode="json") | changes)}


class Bomb:
    """Unpickling one makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def zip_of_torch(path: Path) -> Path:
    import zipfile

    with zipfile.ZipFile(path, "w") as file:
        file.writestr("policy.pth", pickle.dumps(Bomb(path.parent / "bomb")))
    return path


def sparse(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(65 << 20)
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


F32 = np.float32
HUGE = {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}
NOWHERE = {"dtype": "F32", "shape": [0, 1 << 62], "data_offsets": [0, 0]}
HOSTILE = {
    "missing": (lambda p: p, "there is no policy"),
    "folder": (lambda p: p.mkdir() or p, "is a folder"),
    "pipe": (pipe, "no regular file"),
    "device": (lambda p: Path("/dev/zero"), "no regular file"),
    "empty": (lambda p: written(p, b""), "no safetensors file"),
    "text": (lambda p: written(p, b"weights, please\n" * 100), "no safetensors file"),
    "pickle": (lambda p: written(p, pickle.dumps(Bomb(p.parent / "bomb"))), "no safetensors file"),
    "SB3's zip": (zip_of_torch, "no safetensors file"),
    "too large": (sparse, "larger than 64 MiB"),
    "header longer than the file": (lambda p: written(p, struct.pack("<Q", 1 << 60)), "no safetensors file"),
    "header not JSON": (lambda p: raw(p, b"{" * 200_000), "no safetensors file"),
    "shape that overflows": (lambda p: raw(p, {"layers.0.weight": HUGE}, bytes(4)), "no safetensors file"),
    "shape without elements": (lambda p: raw(p, {"layers.0.weight": NOWHERE}), "shape that cannot be"),
    "offsets outside": (
        lambda p: raw(p, {"layers.0.bias": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(4)),
        "no safetensors file",
    ),
    "metadata that is no text": (
        lambda p: raw(p, {"__metadata__": {"solgym": {"version": 1}}}),
        "no safetensors file",
    ),
    "no metadata": (lambda p: stored(p, metadata={}), "no word of what they are for"),
    "other metadata": (lambda p: stored(p, metadata={"format": "pt"}), "no word of what they are for"),
    "metadata not JSON": (lambda p: stored(p, metadata={"solgym": "import os"}), "no policy of this version"),
    "metadata a list": (lambda p: stored(p, metadata={"solgym": "[1]"}), "no policy of this version"),
    "metadata too deep": (
        lambda p: stored(p, metadata={"solgym": '{"training":' + '{"a":' * 50_000 + "1" + "}" * 50_001}),
        "no policy of this version",
    ),
    "huge metadata": (lambda p: stored(p, metadata={"solgym": "x" * (2 << 20)}), "1,048,576 characters"),
    "newer version": (lambda p: stored(p, metadata=said(version=2)), "version: Input should be 1"),
    "other format": (lambda p: stored(p, metadata=said(format="onnx")), "format: "),
    "unknown field": (lambda p: stored(p, metadata=said(run="rm -rf /")), "run: "),
    "unknown activation": (lambda p: stored(p, metadata=said(activation="eval")), "activation: "),
    "no features": (lambda p: stored(p, metadata=said(features=[])), "features: "),
    "negative branches": (lambda p: stored(p, metadata=said(branches=[4, -1])), "do not add up"),
    "huge branches": (lambda p: stored(p, metadata=said(branches=[1 << 70])), "do not add up"),
    "wrong branches": (lambda p: stored(p, metadata=said(branches=[2])), "do not add up"),
    "transposed weight": (
        lambda p: stored(p, {"layers.0.weight": np.zeros((4, 3), F32)}),
        "expected (outputs, 4)",
    ),
    "flat weight": (lambda p: stored(p, {"layers.0.weight": np.zeros(12, F32)}), "expected (outputs, 4)"),
    "short bias": (lambda p: stored(p, {"layers.0.bias": np.zeros(2, F32)}), "bias of shape (2,)"),
    "empty layer": (
        lambda p: stored(
            p, {"layers.0.weight": np.zeros((0, 4), F32), "layers.0.bias": np.zeros(0, F32)}
        ),
        "expected (outputs, 4)",
    ),
    "too few outputs": (
        lambda p: stored(
            p, {"layers.0.weight": np.zeros((2, 4), F32), "layers.0.bias": np.zeros(2, F32)}
        ),
        "gives 2 numbers for 3",
    ),
    "layer missing": (lambda p: stored(p, {"layers.2.weight": np.zeros((3, 3), F32)}), "expected tensors"),
    "foreign tensors": (lambda p: stored(p, {"a\nb": np.zeros(1, F32)}), "expected tensors"),
    "double precision": (lambda p: stored(p, {"layers.0.bias": np.zeros(3)}), "as F64"),
    "NaN": (lambda p: stored(p, {"layers.0.bias": np.array([0, np.nan, 0], F32)}), "not finite"),
    "infinity": (lambda p: stored(p, {"layers.0.bias": np.array([0, 0, -np.inf], F32)}), "not finite"),
    "too many layers": (
        lambda p: stored(
            p,
            {f"layers.{k}.{n}": np.zeros((3, 3) if n == "weight" else 3, F32)
             for k in range(1, 40) for n in ("weight", "bias")},
        ),
        "40 layers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_one_sentence_and_nothing_of_it_runs(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make, words = HOSTILE[kind]
    if kind in ("device", "pipe") and os.name != "posix":
        pytest.skip("needs POSIX files")
    path = make(tmp_path / "policy.safetensors")
    with pytest.raises(InvalidPolicy) as caught:
        Policy.load(path)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 600
    sentence = is_refused("evaluate", path, "KernelDSL-GEMM-v0")
    assert " ".join(words.split()) in sentence
    assert not (tmp_path / "bomb").exists()
    assert not (tmp_path / "runs").exists()


def test_what_a_file_says_of_itself_does_not_reach_the_terminal_as_commands(tmp_path):
    made = policy(env_id="\x1b]0;mine\x07\x1b[2J\u202e")
    made.save(tmp_path / "policy.safetensors")
    sentence = is_refused("evaluate", tmp_path / "policy.safetensors", "KernelDSL-GEMM-v0", "-o", tmp_path)
    assert r"trained on \x1b]0;mine\x07\x1b[2J\u202e and" in sentence


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_a_policy_or_refused_never_another_error(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "policy"
    policy(4).save(path)
    content = bytearray(path.read_bytes())
    match data.draw(st.sampled_from(["cut", "change", "insert"])):
        case "cut":
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        case "change":
            # Most of the file is the header; what is in it matters most.
            for _ in range(data.draw(st.integers(1, 4))):
                content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        case "insert":
            place = data.draw(st.integers(0, len(content)))
            content[place:place] = data.draw(st.binary(min_size=1, max_size=40))
    path.write_bytes(bytes(content))
    try:
        found = Policy.load(path)
    except InvalidPolicy:
        return
    assert found.act(np.zeros(len(found.info.features))) is not None


@given(content=st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_bytes_of_any_kind_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "policy"
    path.write_bytes(content)
    with pytest.raises(InvalidPolicy):
        Policy.load(path)


def test_what_cannot_act_cannot_be_made():
    weights = layers(4, 3)
    weights[0][0][0, 0] = np.nan
    with pytest.raises(InvalidPolicy, match="not finite"):
        Policy(info(), weights)
    with pytest.raises(InvalidPolicy, match="0 layers"):
        Policy(info(), [])
    with pytest.raises(InvalidPolicy, match="not finite"):
        Policy(info(), [(np.full((3, 4), 1e300), np.zeros(3))])
