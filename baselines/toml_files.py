"""Reading what people write in TOML: one sentence says what is wrong with a file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from solgym.errors import InvalidOption

__all__ = ["read_toml"]


def read_toml(path: str | Path, what: str, manual: str) -> dict[str, Any]:
    """The data of a TOML file.

    Args:
        path: the file.
        what: what it should hold, as a message calls it.
        manual: the page that tells more.

    Raises:
        InvalidOption: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidOption(f"cannot read the {what} {path}: {error.strerror}; give a TOML file") from error
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, and of what is nested too deeply
        raise InvalidOption(f"{path} is not TOML: {error}; see {manual}") from error
