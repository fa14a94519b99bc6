"""Expert schedules: there is one for every shipped task, on wide and narrow vectors, and it is right."""

import dataclasses

import numpy as np
import pytest

from solgym.envs.kernel_dsl.experts import expert_schedule, experts
from solgym.envs.kernel_dsl.kernels import KERNELS, parse_task
from solgym.envs.kernel_dsl.knobs import KNOBS
from solgym.envs.kernel_dsl.random_schedules import random_task
from solgym.hardware.measurement import Status
from solgym.hardware.target import cpu_spec
from tests.envs.kernel_dsl.running import ONCE, target

NARROW = dataclasses.replace(cpu_spec(), vector_bits=256, vector_registers=16)


def test_every_kernel_has_experts_and_every_entry_names_real_knobs() -> None:
    assert {expert.kernel for expert in experts()} == set(KERNELS)
    for expert in experts():
        template = KNOBS[expert.kernel]
        for knob, choice in expert.config.items():
            assert choice in template.knobs[knob], (expert.kernel, knob, choice)
        assert set(expert.at_least) | set(expert.at_most) <= set(KERNELS[expert.kernel].extents)


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_every_shipped_task_has_a_schedule(kernel: str) -> None:
    for split in ("train", "test"):
        for task_id in KERNELS[kernel].task_ids(split):
            task = parse_task(task_id)
            for spec in (cpu_spec(), cpu_spec(2), NARROW):
                schedule = expert_schedule(task, spec)
                assert schedule.steps
                assert schedule.lower(task, spec).ir


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_experts_are_right_on_any_shape(kernel: str) -> None:
    rng = np.random.default_rng(5)
    for seed in range(5):
        task = random_task(rng, kernel)
        for threads in (1, 2):
            chosen = target(threads)
            outcome = chosen.evaluate(expert_schedule(task, chosen.spec), task, ONCE, seed=seed)
            assert outcome.status in (Status.OK, Status.UNSTABLE), (task.id, outcome.error)
