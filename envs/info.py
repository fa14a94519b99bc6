"""The keys of ``info``, the same for every environment, step and reset.

Every key is always there with a value of the same type, so that vector environments can stack them: a time
that does not exist is NaN, a text that does not exist is empty.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

__all__ = ["StepInfo"]


class StepInfo(TypedDict):
    """What ``reset()`` and ``step()`` tell beside the observation.

    ``status``, ``error``, ``illegal_because`` and ``attempt_s`` tell what became of this step's action; all
    other keys describe the schedule in force after it. A failed candidate leaves that as it was.
    """

    task: str
    """Task id, for example ``gemm/f32/m512n512k512``."""
    status: str
    """One of ``hardware.measurement.Status``; ``ok`` also where nothing had to be measured."""
    error: str
    """One sentence that says what went wrong, or empty."""
    illegal_because: str
    """Why the chosen action was refused, or empty."""
    attempt_s: float
    """Median time of the candidate tried in this step, NaN if it was not timed."""
    time_s: float
    """Median time of the schedule in force."""
    baseline_s: float
    """Median time of the untouched candidate, or the time limit if it took longer than that."""
    sol_time_s: float
    """Speed of light: a lower bound on the time."""
    sol_fraction: float
    """``sol_time_s / time_s``."""
    gap_closed: float
    """The score of ``time_s``: 0 at the baseline, 1 at the speed of light."""
    speedup: float
    """``baseline_s / time_s``."""
    headroom: bool
    """Whether the baseline leaves something to win."""
    bound: str
    """What the speed of light is bound by: ``compute`` or the name of a memory level."""
    candidate: str
    """The schedule in force, as JSON text."""
    measurements_used: int
    """Candidates measured since the environment was made, baselines not counted."""
    steps: int
    """Steps since the reset."""
    action_mask: NDArray[np.int8]
    """1 for every action that is legal now; what ``action_space.sample(mask)`` takes."""
