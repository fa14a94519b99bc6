"""What commands print to: a console that any terminal, encoding or reader of a pipe can stand."""

from __future__ import annotations

import codecs
import sys

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

__all__ = ["open_console", "print_as_is", "print_table", "tolerate_any_encoding"]

NARROWEST = 20
"""Widths below this are no terminal's: they stand for one that does not say how wide it is."""
USUAL_WIDTH = 80
WIDEST = 10_000

_PLAIN = {"µ": "u", "±": "+-", "×": "x", "…": "...", "→": "->"}


class _Console(Console):
    """A console that leaves a closed pipe to the command line; rich would exit with 1, which is a verdict."""

    def on_broken_pipe(self) -> None:
        self.quiet = True  # what is still to be printed has no reader either
        raise BrokenPipeError


def open_console(stderr: bool = False) -> Console:
    """A console for standard output, or for standard error."""
    made = _Console(stderr=stderr)
    if made.width < NARROWEST:
        made.width = USUAL_WIDTH
    return made


def print_as_is(console: Console, text: str) -> None:
    """Print a line that holds names from outside, such as a path: nothing in it is markup, and the terminal
    breaks it where it must.
    """
    console.print(Text(text), soft_wrap=True)


def print_table(console: Console, table: Table) -> None:
    """Print a table with all that is in it: where the terminal is too narrow for the columns that do not
    wrap, lines run over its edge, instead of columns that shrink to nothing.
    """
    unbounded = console.options.update(max_width=WIDEST)
    for column in table.columns:
        widths = [Measurement.get(console, unbounded, cell) for cell in (column.header, *column.cells)]
        least = max(width.maximum if column.no_wrap else width.minimum for width in widths)
        column.min_width = max(least, column.min_width or 0)
    width = console.width
    console.width = max(width, Measurement.get(console, unbounded, table).minimum)
    try:
        console.print(table)
    finally:
        console.width = width


def tolerate_any_encoding() -> None:
    """Let standard output and error replace what their encoding does not have, instead of failing."""
    codecs.register_error("solgym.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="solgym.plain")


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if 0xDC80 <= ord(character) <= 0xDCFF:  # a byte of a file name that is no text
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return _PLAIN.get(character, "?"), error.start + 1
