"""What tuners rely on of the spaces of every family; nothing here is measured."""

import itertools

import gymnasium as gym
import numpy as np
import pytest

from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.envs.mlir_passes.sequence import PassSequence
from solgym.envs.proposals import MAX_VECTOR_LENGTH, ProposalSource
from solgym.envs.spaces import TreeSpace, VectorSpace
from tests.envs.mlir_passes.settings import QUIET

FAMILIES = {
    "knobs": ("KernelDSL-GEMM-v0", "gemm/f32/m96n80k96"),
    "primitive": ("KernelDSL-Softmax-v0", "softmax/f32/rows7cols33"),
    "passes": ("MLIRPasses-Gemm-v0", "gemm/f32/m12n20k8"),
}
STEPS = 7


def make(family):
    env_id, task = FAMILIES[family]
    env = gym.make(env_id, task=task, max_steps=STEPS, **QUIET).unwrapped
    env.choose_task()
    return env, env.proposals(family)


@pytest.fixture(scope="module", params=FAMILIES)
def opened(request):
    return make(request.param)


@pytest.fixture
def env(opened):
    return opened[0]


@pytest.fixture
def source(opened):
    return opened[1]


@pytest.fixture(scope="module", params=["primitive", "passes"])
def tree(request):
    return make(request.param)[1]


def rng(seed=0):
    return np.random.default_rng(seed)


def vectors(source, count=12):
    generator = rng(1)
    return [source.sample(generator) for _ in range(count)]


def test_a_space_describes_its_positions(source):
    assert isinstance(source, ProposalSource)
    assert isinstance(source, VectorSpace)
    assert len(source.sizes) == len(source.names) == len(source.ordered) == len(set(source.names))
    for vector in vectors(source):
        assert len(vector) == len(source.sizes)
        assert all(0 <= place < size for place, size in zip(vector, source.sizes, strict=True))


def test_equal_generators_give_equal_vectors_with_valid_candidates(source, env):
    drawn = vectors(source)
    assert drawn == vectors(source)
    for vector in drawn:
        candidate = source.candidate(vector)
        assert candidate == source.candidate(vector)
        assert candidate != env.untouched
        assert candidate.to_json()["task"] == env.task.id


def test_a_mutation_is_another_valid_vector(source):
    for vector in vectors(source):
        changed = source.mutate(vector, rng(5))
        assert changed == source.mutate(vector, rng(5))
        assert changed != vector
        assert source.candidate(changed) is not None


def test_a_child_of_two_vectors_is_valid(source):
    drawn = vectors(source)
    for first, second in itertools.pairwise(drawn):
        child = source.cross(first, second, rng(5))
        assert child == source.cross(first, second, rng(5))
        assert source.candidate(child) is not None


def test_candidates_from_elsewhere_are_found_again(source):
    for vector in vectors(source):
        candidate = source.candidate(vector)
        found = source.vector_of(candidate)
        assert found is not None
        assert source.candidate(found) == candidate


def test_the_experts_of_these_tasks_are_vectors(source, env):
    assert source.candidate(source.vector_of(env.expert)) == env.expert


def test_candidates_of_other_tasks_have_no_vector(source, env):
    for other in (Schedule("gemm/f32/m8n8k8"), PassSequence("gemm/f32/m8n8k8", ("canonicalize",))):
        if type(other) is type(env.untouched):
            assert source.vector_of(other) is None


def test_episodes_are_trees_and_knobs_are_none(env, source):
    assert isinstance(source, TreeSpace) == ("length" in source.names)


def vector_of_length(length, *actions):
    return (length - 1, *actions, *(0,) * (STEPS - len(actions)))


def meant(tree, node, action):
    """What an action means at a node: itself, or where it is not possible one chosen by its index."""
    if tree.successor(node, action) is not None:
        return action
    others = [other for other in tree.actions(node) if other != action]
    start = action % len(others)
    return next(a for a in others[start:] + others[:start] if tree.successor(node, a) is not None)


def test_nothing_is_no_candidate(tree):
    assert tree.candidate(vector_of_length(STEPS)) is None


def test_an_action_that_is_not_possible_means_another_by_its_index(tree):
    actions = range(1, tree.sizes[1])
    refused = [a for a in actions if tree.successor(tree.root, a) is None]
    assert refused
    for action in (*refused[:6], refused[-1]):
        instead = meant(tree, tree.root, action)
        assert tree.candidate(vector_of_length(1, action)) == tree.candidate(vector_of_length(1, instead))


def test_what_stands_behind_the_length_does_not_count(tree):
    for vector in vectors(tree):
        assert vector[0] + 1 == sum(action != 0 for action in vector[1:])
        for length in range(1, vector[0] + 1):
            short = vector_of_length(length, *vector[1 : length + 1])
            assert tree.candidate((length - 1, *vector[1:])) == tree.candidate(short)


def test_vectors_drawn_blindly_are_short_and_long(tree):
    generator, lengths = rng(3), set()
    for _ in range(60):
        vector = tuple(int(generator.integers(size)) for size in tree.sizes)
        candidate = tree.candidate(vector)
        exact = None if candidate is None else tree.vector_of(candidate)
        if exact is not None:
            lengths.add(exact[0] + 1)
    assert {1, 2, STEPS} <= lengths


def test_what_a_vector_means_is_what_is_changed(tree):
    refused = next(a for a in range(1, tree.sizes[1]) if tree.successor(tree.root, a) is None)
    node, taken = tree.root, []
    for _ in range(STEPS):
        taken.append(meant(tree, node, refused))
        node = tree.successor(node, taken[-1])
    vague, exact = vector_of_length(STEPS, *(refused,) * STEPS), vector_of_length(STEPS, *taken)
    assert exact != vague
    assert tree.candidate(exact) == tree.candidate(vague) == tree.candidate_at(node)
    for seed in range(5):
        rngs = [np.random.default_rng(seed) for _ in range(4)]
        assert tree.mutate(vague, rngs[0]) == tree.mutate(exact, rngs[1])
        assert tree.cross(vague, vague, rngs[2]) == tree.cross(exact, exact, rngs[3])


def test_a_node_offers_what_leads_on_and_what_it_does_not_offer_leads_nowhere(tree):
    offered = tree.actions(tree.root)
    assert list(offered) == sorted(set(offered))
    assert 0 not in offered
    reached = [action for action in range(tree.sizes[1]) if tree.successor(tree.root, action) is not None]
    assert reached
    assert set(reached) <= set(offered)


def test_a_path_and_a_vector_lead_to_the_same_candidate(tree):
    for vector in vectors(tree, 6):
        node = tree.root
        for action in vector[1:]:
            node = node if action == 0 else tree.successor(node, action)
        assert tree.candidate_at(node) == tree.candidate(vector)
        assert tree.candidate_at(tree.state_of(tree.candidate(vector))) == tree.candidate(vector)
    assert tree.depth == STEPS


def test_an_episode_as_a_vector_has_a_bounded_length():
    for steps, length in ((3, 3), (MAX_VECTOR_LENGTH + 10, MAX_VECTOR_LENGTH)):
        env = gym.make("KernelDSL-GEMM-v0", task="gemm/f32/m24n40k12", max_steps=steps).unwrapped
        env.choose_task()
        assert len(env.proposals("primitive").sizes) == length + 1


def test_settings_that_are_not_possible_have_no_candidate():
    env = gym.make("KernelDSL-GEMM-v0", task="gemm/f32/m96n80k96").unwrapped
    env.choose_task()
    source = env.proposals("knobs")
    space = source.space
    generator = rng(2)
    verdicts = set()
    for _ in range(60):
        vector = tuple(int(generator.integers(size)) for size in source.sizes)
        candidate = source.candidate(vector)
        verdicts.add(candidate is None)
        assert (candidate is None) != space.is_valid(space.decode(list(vector)))
    assert verdicts == {True, False}


def test_a_path_is_found_through_patterns_focus_and_single_steps():
    env = gym.make("KernelDSL-Softmax-v0", task="softmax/f32/rows7cols33").unwrapped
    env.choose_task()
    source = env.proposals("primitive")
    pattern = next(p for p in env.patterns if p.steps)
    nest = Schedule(env.task.id, pattern.steps).apply(
        ProgramNest.initial(env.task.computation), env.target.spec
    )
    serial = [
        (stage.name, loop.name)
        for stage in nest.stages
        for loop in stage.loops
        if loop.kind.value == "serial" and loop.trips > 2
    ]
    stages = {stage for stage, _ in serial}
    assert len(stages) > 1
    steps = [
        {"op": "split", "stage": stage, "loop": next(loop for s, loop in serial if s == stage), "factor": 2}
        for stage in sorted(stages)
    ]
    schedule = Schedule(env.task.id, (*pattern.steps, *steps))
    vector = source.vector_of(schedule)
    assert source.candidate(vector) == schedule
    odd = Schedule(env.task.id, (*pattern.steps, {**steps[0], "factor": 5}))
    assert source.vector_of(odd) is None
