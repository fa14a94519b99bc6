import numpy as np
import pytest

from solgym.baselines.proposals import EpisodeSource, KnobSource
from solgym.envs.kernel_dsl.actions import ActionTable
from solgym.envs.kernel_dsl.kernels.task import parse_task
from solgym.envs.kernel_dsl.knobs import knob_space
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.errors import InvalidOption
from solgym.hardware.target import cpu_spec

TASK = parse_task("gemm/f32/m24n40k12")
SPEC = cpu_spec()


def episodes(max_steps: int) -> EpisodeSource:
    return EpisodeSource(TASK, ActionTable(SPEC.loop_kinds, SPEC.scopes), SPEC, (), max_steps)


@pytest.mark.parametrize(
    "source", [KnobSource(knob_space(TASK, SPEC)), episodes(8)], ids=["knobs", "episodes"]
)
def test_equal_generators_draw_equal_schedules_that_are_legal(source):
    first = [source.draw(np.random.default_rng(i)) for i in range(10)]
    assert first == [source.draw(np.random.default_rng(i)) for i in range(10)]
    assert len({schedule.digest for schedule in first}) > 5
    for schedule in first:
        assert schedule.task_id == TASK.id
        schedule.apply(ProgramNest.initial(TASK.computation), SPEC)  # raises if a step is illegal


def test_episodes_have_at_most_max_steps_steps():
    rng = np.random.default_rng(0)
    lengths = {len(episodes(3).draw(rng).steps) for _ in range(40)}
    assert max(lengths) <= 3
    assert len(lengths) > 1
    assert episodes(3).enumerate() is None
    with pytest.raises(InvalidOption, match="max_steps"):
        episodes(0)
