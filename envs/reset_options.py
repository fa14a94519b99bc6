"""What an episode can be asked to begin with, ``reset(options={...})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from solgym.errors import InvalidOption

__all__ = ["WARM_STARTS", "ResetOptions"]

WARM_STARTS = ("none", "expert", "ranked")


@dataclass(frozen=True)
class ResetOptions:
    """The options of a reset.

    Attributes:
        task: a task id of any shape, or None to draw one.
        warm_start: ``none`` for the untouched candidate, ``expert`` for the best known one, ``ranked`` for
            what the environment's ranker proposes.
        schedule: a candidate or its JSON to begin from, or None.
    """

    task: str | None = None
    warm_start: str = "none"
    schedule: object = None

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> ResetOptions:
        """Check and read the options.

        Raises:
            InvalidOption: an option is unknown, has a value that it cannot have, or contradicts another.
        """
        if options is not None and not isinstance(options, Mapping):
            raise InvalidOption(f"Reset options are {options!r}; they must be a dict, or None.")
        given = dict(options or {})
        known = tuple(cls.__dataclass_fields__)
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise InvalidOption(f"Reset has no options {unknown}; it has {', '.join(known)}.")
        result = cls(**given)
        if result.task is not None and not isinstance(result.task, str):
            raise InvalidOption(f"Reset option task is {result.task!r}; it must be a task id.")
        if result.warm_start not in WARM_STARTS:
            raise InvalidOption(
                f"Reset option warm_start is {result.warm_start!r}; it must be one of "
                f"{', '.join(WARM_STARTS)}."
            )
        if result.warm_start != "none" and result.schedule is not None:
            raise InvalidOption("Reset options warm_start and schedule are both given; give one of them.")
        return result
