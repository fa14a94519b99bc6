from dataclasses import dataclass
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest

from solgym.envs.design import Move
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.proposals import EpisodeSource, ProposalSource
from solgym.errors import InvalidOption
from solgym.hardware.measurement import Measurement, Status
from solgym.hardware.target import cpu_spec

SPEC = cpu_spec()


@pytest.fixture
def env():
    env = gym.make("KernelDSL-GEMM-v0", task="gemm/f32/m24n40k12").unwrapped
    env.choose_task()
    return env


@pytest.mark.parametrize("mode", ["knobs", "primitive"])
def test_equal_generators_draw_equal_schedules_that_are_legal(env, mode):
    source = env.proposals(mode)
    assert isinstance(source, ProposalSource)
    first = [source.draw(np.random.default_rng(i)) for i in range(10)]
    assert first == [source.draw(np.random.default_rng(i)) for i in range(10)]
    assert len({schedule.digest for schedule in first}) > 5
    for schedule in first:
        assert schedule.task_id == env.task.id
        schedule.apply(ProgramNest.initial(env.task.computation), SPEC)  # raises if a step is illegal


@pytest.mark.parametrize("action_mode", ["knobs", "primitive"])
def test_proposals_do_not_depend_on_what_a_step_of_the_environment_is(env, action_mode):
    other = gym.make("KernelDSL-GEMM-v0", task=env.task.id, action_mode=action_mode).unwrapped
    other.choose_task()
    for mode in env.modes:
        drawn = [e.proposals(mode).draw(np.random.default_rng(3)) for e in (env, other)]
        assert drawn[0] == drawn[1]


def test_the_first_mode_is_the_usual_one_and_others_are_refused(env):
    assert type(env.proposals()) is type(env.proposals("knobs"))
    with pytest.raises(InvalidOption, match="knobs or primitive"):
        env.proposals("passes")


@dataclass(frozen=True)
class Counted:
    """A state that counts its actions; the candidate is its history."""

    candidate: tuple[int, ...] = ()


def move(state, index):
    """Action 0 finishes, odd ones are illegal, 4 leads nowhere."""
    if index == 4:
        return Move(state)
    if index % 2:
        return Move(None, illegal_because="odd")
    return Move(Counted((*state.candidate, index)), finishes=index == 0)


def test_episodes_have_at_most_max_steps_legal_actions_and_never_finish_early():
    source = EpisodeSource(Counted(), move, lambda _: np.arange(7), max_steps=3, actions=7)
    rng = np.random.default_rng(0)
    drawn = [source.draw(rng) for _ in range(200)]
    assert {len(actions) for actions in drawn} == {1, 2, 3}
    assert {action for actions in drawn for action in actions} == {2, 6}
    assert source.enumerate() is None
    with pytest.raises(InvalidOption, match="max_steps"):
        EpisodeSource(Counted(), move, lambda _: np.arange(7), max_steps=0, actions=7)


def test_an_action_of_a_vector_that_is_not_possible_means_another_by_its_index():
    source = EpisodeSource(Counted(), move, lambda _: np.arange(7), 5, actions=7)
    assert source.candidate((4, 6, 2, 0, 6, 0)) == (6, 2, 6)
    assert source.candidate((1, 6, 2, 0, 6, 0)) == (6, 2), "the length is 2"
    # Odd ones are illegal and 4 leads nowhere; the first of the five others that leads on takes their place:
    # 1 begins at the second of 2 3 4 5 6, 3 at the fourth of 1 2 4 5 6, 4 at the last, 5 at the first.
    assert source.candidate((4, 1, 3, 4, 5, 0)) == (6, 6, 6, 2)
    assert source.candidate((4, 0, 0, 0, 0, 0)) is None


def test_no_further_action_is_tried_in_a_state_in_which_three_hung():
    @dataclass(frozen=True)
    class Word:
        digest: str = ""

    @dataclass(frozen=True)
    class Spelled:
        candidate: Word = Word()

    def spell(state, index):
        tried.append((state.candidate.digest, index))
        if len(state.candidate.digest) == 2:
            return Move(None, failed=Measurement.failed(Status.TIMEOUT, "it hung"))
        return Move(Spelled(Word(state.candidate.digest + "abcdefgh"[index])))

    tried = []
    source = EpisodeSource(Spelled(), spell, lambda _: np.arange(1, 8), max_steps=6, actions=8)
    rng = np.random.default_rng(0)
    drawn = [source.draw(rng) for _ in range(300)]
    assert {len(word.digest) for word in drawn} == {1, 2}, "episodes end where actions hang"
    hung = [state for state, _ in tried if len(state) == 2]
    assert max(map(hung.count, hung)) == 3
    assert source.sizes == (6, *(8,) * 6)
    deep = Spelled(Word(hung[0]))
    assert all(source.successor(deep, action) is None for action in range(8))
    for _ in range(100):
        source.mutate(source.sample(rng), rng)
    hung = {pair for pair in tried if len(pair[0]) == 2}
    assert max(sum(state == pair[0] for pair in hung) for state, _ in hung) == 3


def test_where_episodes_begin_every_action_is_tried_even_if_most_hang():
    start, end = SimpleNamespace(candidate=SimpleNamespace(digest="a")), SimpleNamespace(candidate="the end")
    hang = Move(None, failed=Measurement.failed(Status.TIMEOUT, "it hung"))
    source = EpisodeSource(
        start, lambda _, index: Move(end) if index == 6 else hang, lambda _: np.arange(7), 1, actions=7
    )
    assert source.draw(np.random.default_rng(0)) == "the end"


def test_an_episode_ends_where_nothing_is_legal():
    source = EpisodeSource(Counted(), lambda *_: Move(None), lambda _: np.arange(4), max_steps=3, actions=4)
    assert source.draw(np.random.default_rng(0)) == ()
