"""MLIR's messages as someone with a file and an editor needs them. Text to text; loads nothing of MLIR."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["parser_problem"]

_PLACE: Final = re.compile(r'error: "-":(\d+):(\d+): (.*)')


def parser_problem(message: str) -> str:
    """What MLIR's parser has against a text: ``line 3, column 7: expected ...``, on one line."""
    found = _PLACE.search(message)
    if found is None:
        return " ".join(message.split())[:400]
    line, column, problem = found.groups()
    return f"line {line}, column {column}: {' '.join(problem.split())[:400]}"
