"""What a family of environments hands to the base class: candidates under construction and moves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

__all__ = ["Best", "Design", "DesignState", "Move", "StateT", "candidate_text"]


class Design(Candidate, Protocol):
    """A candidate that can be written down."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""


class DesignState(Protocol):
    """A candidate under construction, with whatever a family keeps beside it."""

    @property
    def candidate(self) -> Design:
        """The candidate."""


StateT = TypeVar("StateT", bound=DesignState)


@dataclass(frozen=True)
class Move(Generic[StateT]):
    """What an action amounts to.

    Attributes:
        state: the state that it leads to, or None if it is illegal.
        illegal_because: why it is.
        finishes: whether it ends the episode.
    """

    state: StateT | None
    illegal_because: str = ""
    finishes: bool = False


@dataclass(frozen=True)
class Best:
    """The fastest correct candidate that an environment has measured for a task."""

    candidate: Design
    measurement: Measurement


def candidate_text(candidate: Design) -> str:
    """A candidate as compact JSON text."""
    return json.dumps(candidate.to_json(), separators=(",", ":"))
