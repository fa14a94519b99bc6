"""Random tasks and random legal schedules, for fuzzing and for random search over primitives.

Steps are drawn with no regard to whether they help; what the primitives refuse is dropped. So the schedules
reach corners that no pattern does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solgym.envs.kernel_dsl.kernels import KERNELS, KernelTask, parse_task
from solgym.envs.kernel_dsl.knobs import knob_space
from solgym.envs.kernel_dsl.nest import LoopKind, ProgramNest
from solgym.envs.kernel_dsl.primitives import Step, apply_step
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.errors import IllegalSchedule, UnknownTask
from solgym.hardware.target import TargetSpec

__all__ = ["random_schedule", "random_step", "random_task"]

FACTORS = (2, 3, 4, 5, 6, 7, 8, 12, 14, 16, 24, 32, 48, 64)
_WEIGHTS = {
    "split": 8, "reorder": 6, "unroll": 4, "vectorize": 5, "parallel": 2, "fuse": 1.5, "accumulate": 5,
    "split_reduction": 3, "compute_at": 4, "cache_read": 3, "prefetch": 1, "transpose": 2, "slide": 2,
    "stream": 1, "bind": 0.1,
}  # fmt: skip
_MAX_ELEMENTS = 60_000
_MAX_FLOPS = 4_000_000


def random_task(rng: np.random.Generator, kernel: str | None = None) -> KernelTask:
    """A small task of any kernel, dtype and (mostly ragged) shape."""
    entry = KERNELS[kernel or str(rng.choice(sorted(KERNELS)))]
    dtype = str(rng.choice(entry.dtypes))
    while True:
        extents = {}
        for name in entry.extents:
            allowed = entry.allowed.get(name)
            low = max(1, entry.minimum.get(name, 1))
            if allowed:
                extents[name] = int(rng.choice(allowed))
            else:
                extents[name] = max(low, int(np.exp(rng.uniform(0.0, np.log(130.0)))))
        text = "".join(f"{name}{extent}" for name, extent in extents.items())
        try:
            task = parse_task(f"{entry.name}/{dtype}/{text}")
        except UnknownTask:  # larger than any task may be
            continue
        elements = sum(spec.nbytes // 4 for spec in task.input_specs + task.output_specs)
        if elements <= _MAX_ELEMENTS and task.work.flops <= _MAX_FLOPS:
            return task


def random_step(nest: ProgramNest, rng: np.random.Generator) -> Step:
    """Any step whose names exist in the nest, legal or not."""
    names = list(_WEIGHTS)
    weights = np.array([_WEIGHTS[name] for name in names])
    op = names[int(rng.choice(len(names), p=weights / weights.sum()))]
    stage = nest.stages[int(rng.integers(len(nest.stages)))]
    loops = [loop.name for loop in stage.loops]
    loop = str(rng.choice(loops))
    step: dict[str, object] = {"op": op, "stage": stage.name}
    tensors = sorted(stage.stage.reads)

    def tensor() -> str:
        return str(rng.choice(tensors)) if tensors else "none"

    def split_step() -> None:
        step.update(loop=loop, factor=int(rng.choice(FACTORS)))

    def reorder_step() -> None:
        count = int(rng.integers(2, len(loops) + 1)) if len(loops) >= 2 else 1
        step.update(loops=[str(name) for name in rng.permutation(loops)[:count]])

    def vectorize_step() -> None:
        step.update(loop=loops[-1] if rng.random() < 0.8 else loop, lanes=int(rng.choice((2, 4, 8, 16, 32))))

    def split_reduction_step() -> None:
        step.update(loop=loop)
        if rng.random() < 0.5:
            step.update(factor=int(rng.choice(FACTORS[:6])))

    def compute_at_step() -> None:
        host = nest.stages[int(rng.integers(len(nest.stages)))]
        step.update(at=host.name, loop=str(rng.choice([h.name for h in host.loops])))

    def cache_read_step() -> None:
        step.update(tensor=tensor())
        if rng.random() < 0.75:
            step.update(loop=loop)

    makers: dict[str, Callable[[], None]] = {
        "split": split_step,
        "reorder": reorder_step,
        "vectorize": vectorize_step,
        "parallel": lambda: step.update(loop=loops[0] if rng.random() < 0.8 else loop),
        "split_reduction": split_reduction_step,
        "compute_at": compute_at_step,
        "cache_read": cache_read_step,
        "prefetch": lambda: step.update(tensor=tensor(), loop=loop, distance=int(rng.integers(1, 9))),
        "transpose": lambda: step.update(tensor=tensor()),
        "slide": lambda: step.update(tensor=tensor()),
        "stream": lambda: None,
        "bind": lambda: step.update(loop=loop, to="block_x"),
    }
    makers.get(op, lambda: step.update(loop=loop))()
    return step


def random_schedule(
    task: KernelTask,
    limits: TargetSpec,
    rng: np.random.Generator,
    max_steps: int = 24,
    refused: Callable[[Step, str], None] | None = None,
    patterns: bool = False,
) -> Schedule:
    """A legal schedule of up to ``max_steps`` steps; ``refused`` is told each refusal and its reason.

    With ``patterns``, half of the schedules start with all or some steps of a random knob configuration.
    """
    nest = ProgramNest.initial(task.computation)
    steps: list[Step] = []
    if patterns and rng.random() < 0.5:
        skeleton = _skeleton(task, limits, rng)
        nest, steps = Schedule(task.id, skeleton).apply(nest, limits), list(skeleton)
        max_steps += len(steps)
    for _ in range(int(rng.integers(1, max_steps + 1)) * 4):
        if len(steps) >= max_steps:
            break
        step = random_step(nest, rng)
        if _too_many_trips(nest, step):
            continue
        try:
            nest = apply_step(nest, step, limits)
        except IllegalSchedule as error:
            if refused is not None:
                refused(step, str(error))
            continue
        steps.append(step)
    return Schedule(task.id, tuple(steps))


def _skeleton(task: KernelTask, target: TargetSpec, rng: np.random.Generator) -> tuple[Step, ...]:
    space = knob_space(task, target)
    for _ in range(8):
        config = space.decode([int(rng.integers(len(choices))) for choices in space.knobs.values()])
        if space.is_valid(config):
            steps = space.schedule_from(config).steps
            return steps if rng.random() < 0.5 else steps[: int(rng.integers(len(steps) + 1))]
    return ()


def _too_many_trips(nest: ProgramNest, step: Step) -> bool:
    """Leave out unrolling that is legal but makes code so large that little else would be tried."""
    if step["op"] != "unroll":
        return False
    stage = nest.by_name[str(step["stage"])]
    trips = 1
    for loop in stage.loops:
        if loop.kind is LoopKind.UNROLLED or loop.name == step["loop"]:
            trips *= loop.trips
    return trips > 64
