"""Knob spaces and patterns: every kernel has one, every configuration is a schedule, and it is right."""

import numpy as np
import pytest

from solgym.envs.kernel_dsl.kernels import KERNELS, parse_task
from solgym.envs.kernel_dsl.knobs import KNOBS, knob_space, pattern_actions
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.random_schedules import random_task
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.errors import IllegalSchedule, InvalidOption
from solgym.hardware.measurement import Status
from solgym.hardware.target import cpu_spec
from tests.envs.kernel_dsl.running import ONCE, target

KERNEL_NAMES = sorted(KERNELS)


def test_every_kernel_has_knobs() -> None:
    assert set(KNOBS) == set(KERNELS)


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_sampling_is_seeded_and_valid(kernel: str) -> None:
    space = knob_space(parse_task(KERNELS[kernel].default_task_id), cpu_spec())
    first = [space.sample(np.random.default_rng(7)) for _ in range(3)]
    assert first == [space.sample(np.random.default_rng(7)) for _ in range(3)]
    assert all(space.is_valid(config) for config in first)
    assert len({str(space.sample(np.random.default_rng(seed))) for seed in range(20)}) > 5


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_neighbours_differ_in_one_knob_and_lead_back(kernel: str) -> None:
    space = knob_space(parse_task(KERNELS[kernel].default_task_id), cpu_spec())
    config = space.sample(np.random.default_rng(3))
    neighbours = list(space.neighbours(config))
    assert neighbours
    for other in neighbours:
        assert sum(other[name] != config[name] for name in space.knobs) == 1
        assert config in list(space.neighbours(other))


def test_enumerating_visits_each_valid_configuration_once() -> None:
    space = knob_space(parse_task("elementwise/f32/rows100cols3001"), cpu_spec())
    configs = [tuple(config.items()) for config in space.enumerate()]
    assert len(configs) == len(set(configs))
    invalid = sum(
        not space.is_valid(space.decode(list(places)))
        for places in np.ndindex(*(len(choices) for choices in space.knobs.values()))
    )
    assert len(configs) + invalid == space.size


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_encoding_round_trip(kernel: str) -> None:
    space = knob_space(parse_task(KERNELS[kernel].default_task_id), cpu_spec())
    config = space.sample(np.random.default_rng(0))
    assert space.decode(space.encode(config)) == config


def test_unknown_knobs_and_choices_are_misuse() -> None:
    space = knob_space(parse_task("gemm/f32/m64n64k64"), cpu_spec())
    config = space.sample(np.random.default_rng(0))
    with pytest.raises(InvalidOption, match="knob tile_rows is one of"):
        space.schedule_from({**config, "tile_rows": 5})
    with pytest.raises(InvalidOption, match="sets tile_rows"):
        space.schedule_from({"tile_rows": 4})


def test_an_invalid_configuration_says_why() -> None:
    space = knob_space(parse_task("gemm/f32/m512n512k512"), cpu_spec())
    config = {**space.sample(np.random.default_rng(0)), "tile_rows": 14, "tile_vectors": 4}
    assert "out of proportion" in (space.why_invalid(config) or "")
    with pytest.raises(IllegalSchedule):
        space.schedule_from(config)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_configurations_compute_the_right_thing(kernel: str, threads: int) -> None:
    rng = np.random.default_rng(11)
    for seed in range(8):
        task = random_task(rng, kernel)
        space = knob_space(task, cpu_spec(threads))
        config = space.sample(rng)
        outcome = target(threads).evaluate(space.schedule_from(config), task, ONCE, seed=seed)
        assert outcome.status in (Status.OK, Status.UNSTABLE, Status.ILLEGAL), (
            task.id,
            config,
            outcome.error,
        )


@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_patterns_have_the_same_labels_for_every_shape_and_apply(kernel: str) -> None:
    labels = None
    for task_id in KERNELS[kernel].task_ids("train")[:3]:
        task = parse_task(task_id)
        actions = pattern_actions(task, cpu_spec())
        assert labels in (None, [action.label for action in actions])
        labels = [action.label for action in actions]
        assert any(action.steps for action in actions)
        for action in actions:
            if action.steps is None:
                assert action.reason
            else:
                Schedule(task.id, action.steps).apply(ProgramNest.initial(task.computation), cpu_spec())
    assert labels is not None
    assert len(labels) == len(set(labels))
