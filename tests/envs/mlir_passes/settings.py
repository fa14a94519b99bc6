"""What the tests of this family share: small tasks, a quick policy, and a profile that nothing outruns."""

from __future__ import annotations

from solgym.envs.mlir_passes.programs import PROGRAMS, Program
from solgym.hardware.measurement import MeasurePolicy
from tests.envs.fakes import PROFILE

QUICK = MeasurePolicy(
    warmup=1, min_repeats=3, max_repeats=3, max_seconds=0.01, unstable_ci=1e6, target_ci=1e6
)


def small_task_id(program: Program) -> str:
    """A ragged shape a little above the smallest."""
    return program.task_id(
        tuple(program.minimum.get(name, 1) + 3 + i for i, name in enumerate(program.extents))
    )


SMALL_TASKS = {name: small_task_id(program) for name, program in PROGRAMS.items()}

QUIET = {"policy": QUICK, "profile": PROFILE}
"""Arguments of an environment that neither calibrates nor measures for long."""
