"""The one narrow door through which a surrogate enters an environment.

An environment can begin an episode from a candidate that a learned ranker thinks is good. It only knows
this protocol; ``surrogates`` implements it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from solgym.hardware.profile import HardwareProfile
from solgym.hardware.target import Candidate, TargetSpec
from solgym.hardware.task import Task

__all__ = ["WarmStart"]


@runtime_checkable
class WarmStart(Protocol):
    """Something that proposes where to begin."""

    def propose(self, task: Task, spec: TargetSpec, profile: HardwareProfile, seed: int) -> Candidate:
        """The candidate to start from; equal arguments give equal candidates. It need not be legal."""
