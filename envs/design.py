"""What a family of environments hands to the base class: candidates under construction and moves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate

__all__ = ["Best", "CodeText", "DesignState", "Move", "StateT", "candidate_text"]


class DesignState(Protocol):
    """A candidate under construction, with whatever a family keeps beside it."""

    @property
    def candidate(self) -> Candidate:
        """The candidate."""


StateT = TypeVar("StateT", bound=DesignState)


@dataclass(frozen=True)
class Move(Generic[StateT]):
    """What an action amounts to.

    Attributes:
        state: the state that it leads to, or None if it is illegal or fails.
        illegal_because: why it is illegal.
        finishes: whether it ends the episode.
        failed: what became of a legal action that did not lead to a state.
    """

    state: StateT | None
    illegal_because: str = ""
    finishes: bool = False
    failed: Measurement | None = None


@dataclass(frozen=True)
class Best:
    """The fastest correct candidate that an environment has measured for a task."""

    candidate: Candidate
    measurement: Measurement


@dataclass(frozen=True)
class CodeText:
    """A candidate in one of the forms that people read.

    Attributes:
        form: a short name of the form, as `solgym show --as` takes it.
        title: the form in words.
        suffix: of files in this form, with its dot.
        text: the candidate.
    """

    form: str
    title: str
    suffix: str
    text: str


def candidate_text(candidate: Candidate) -> str:
    """A candidate as compact JSON text."""
    return json.dumps(candidate.to_json(), separators=(",", ":"))
