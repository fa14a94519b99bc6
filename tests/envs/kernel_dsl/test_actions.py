import numpy as np
import pytest

from solgym.envs.kernel_dsl.actions import MAX_PATTERNS, MAX_TENSORS, ActionTable
from solgym.envs.kernel_dsl.env import KernelDSLEnv
from solgym.envs.kernel_dsl.kernels import KERNELS, parse_task
from solgym.envs.kernel_dsl.knobs import PatternAction
from solgym.envs.kernel_dsl.primitives import PRIMITIVES
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.envs.kernel_dsl.state import ScheduleState
from solgym.errors import IllegalSchedule
from tests.envs.fakes import PROFILE, SMALL_TASKS, SPEC, FakeTarget

TABLE = ActionTable(SPEC.loop_kinds, SPEC.scopes)
FINISH = TABLE.meanings.index("finish")


def states(name, episodes=2, length=10, seed=0):
    """States that random legal actions pass through, kinds of actions equally likely."""
    rng = np.random.default_rng(seed)
    for _ in range(episodes):
        state = ScheduleState.untouched(parse_task(SMALL_TASKS[name]))
        for _ in range(length):
            mask = TABLE.mask(state, SPEC)
            yield state, mask
            kinds: dict[str, list[int]] = {}
            for index in np.flatnonzero(mask):
                if index != FINISH:
                    kinds.setdefault(TABLE.actions[index].kind, []).append(int(index))
            if not kinds:
                break  # everything is unrolled and nothing else is left to do
            chosen = kinds[sorted(kinds)[rng.integers(len(kinds))]]
            state = TABLE.apply(int(rng.choice(chosen)), state, SPEC)


@pytest.mark.parametrize("name", KERNELS)
def test_the_mask_is_what_trying_every_action_says(name):
    for state, mask in states(name):
        reasons = [TABLE.explain(index, state, SPEC) for index in range(len(TABLE))]
        assert [reason is None for reason in reasons] == mask.tolist()
        assert all(reason is None or len(reason) > 10 for reason in reasons)


@pytest.mark.parametrize("name", KERNELS)
def test_states_are_what_their_schedule_gives(name):
    for state, _ in states(name):
        task = parse_task(SMALL_TASKS[name])
        replayed = ScheduleState.scheduled(task, Schedule.from_json(state.candidate.to_json()).steps, SPEC)
        assert replayed.nest == state.nest


def test_meanings_are_unique_and_cover_all_primitives():
    assert len(set(TABLE.meanings)) == len(TABLE)
    kinds = {action.kind for action in TABLE.actions}
    assert kinds - {"finish", "focus", "pattern"} == PRIMITIVES.keys() - {"bind"}


def test_block_and_thread_bindings_come_with_the_target():
    device = ActionTable(SPEC.loop_kinds | {"block_x", "thread_x"}, SPEC.scopes | {"shared"})
    assert "bind loop 3 to block_x" in device.meanings
    assert any(action.argument == "shared" for action in device.actions)
    assert len(device) > len(TABLE)


def test_no_stage_reads_more_tensors_than_there_are_slots():
    for name in KERNELS:
        nest = ScheduleState.untouched(parse_task(SMALL_TASKS[name])).nest
        for stage in nest.stages:
            assert len({load.tensor for load in stage.stage.expr.loads()}) <= MAX_TENSORS


def test_loops_move():
    state = ScheduleState.untouched(parse_task("gemm/f32/m8n8k8"))

    def order(meaning):
        moved = TABLE.apply(TABLE.meanings.index(meaning), state, SPEC)
        return [loop.name for loop in moved.stage.loops]

    assert order("reorder loop 2 to outer") == ["i", "k", "j"]
    assert order("reorder loop 2 to outermost") == ["k", "i", "j"]
    assert order("reorder loop 0 to innermost") == ["j", "k", "i"]
    with pytest.raises(IllegalSchedule, match="cannot move further"):
        order("reorder loop 0 to outer")


def test_loops_move_up_to_the_vector_loop():
    state = ScheduleState.untouched(parse_task("gemm/f32/m8n8k8"))
    for meaning in ("reorder loop 1 to innermost", "vectorize lanes 8", "reorder loop 0 to innermost"):
        state = TABLE.apply(TABLE.meanings.index(meaning), state, SPEC)
    assert [loop.name for loop in state.stage.loops] == ["k", "i", "j"]


def test_the_largest_stage_is_in_focus_first():
    assert ScheduleState.untouched(parse_task(SMALL_TASKS["gemm_bias_gelu"])).focus == "acc"
    assert ScheduleState.untouched(parse_task("softmax/f32/rows8cols9")).focus == "Y"


def test_patterns_start_again():
    task = parse_task("gemm/f32/m8n8k8")
    steps = ({"op": "split", "stage": "C", "loop": "j", "factor": 4},)
    patterns = (PatternAction("by four", steps), PatternAction("by five", None, "five does not fit here"))
    state = ScheduleState.untouched(task)
    state = TABLE.apply(TABLE.meanings.index("split loop 0 by 2"), state, SPEC, patterns)
    pattern = TABLE.meanings.index("pattern number 0")
    assert TABLE.mask(state, SPEC, patterns)[pattern]
    state = TABLE.apply(pattern, state, SPEC, patterns)
    assert state.candidate.steps == steps
    assert not TABLE.mask(state, SPEC, patterns)[pattern]
    assert "already" in TABLE.explain(pattern, state, SPEC, patterns)
    assert TABLE.explain(pattern + 1, state, SPEC, patterns) == "five does not fit here"
    assert "2 patterns" in TABLE.explain(pattern + 2, state, SPEC, patterns)
    assert not TABLE.mask(state, SPEC, patterns)[pattern + 1 : pattern + 3].any()


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_offers_patterns_that_apply(name):
    env = KernelDSLEnv(name, target=FakeTarget(), profile=PROFILE)
    env.reset(seed=0)
    assert 1 <= len(env.patterns) <= MAX_PATTERNS
    assert len({pattern.label for pattern in env.patterns}) == len(env.patterns)
    fitting = 0
    for slot, pattern in enumerate(env.patterns):
        assert pattern.label in env.action_meanings()
        action = env.table.meanings.index(f"pattern number {slot}")
        assert env.action_masks()[action] == (pattern.steps is not None)
        if pattern.steps is not None:
            assert ScheduleState.scheduled(env.task, pattern.steps, SPEC).candidate.steps == pattern.steps
            fitting += 1
    assert fitting >= 1
