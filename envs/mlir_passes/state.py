"""A pass sequence under construction, with what the pass worker said of its module."""

from __future__ import annotations

from dataclasses import dataclass

from solgym.envs.mlir_passes.client import ModuleView
from solgym.envs.mlir_passes.sequence import PassSequence

__all__ = ["PassState"]


@dataclass(frozen=True, eq=False)
class PassState:
    """A candidate and its module.

    Attributes:
        candidate: the actions applied; those that changed nothing are left out.
        view: level, mask and features of the module.
    """

    candidate: PassSequence
    view: ModuleView
