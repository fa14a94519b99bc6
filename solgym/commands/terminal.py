"""What commands print to: a console that any terminal, encoding or reader of a pipe can stand."""

from __future__ import annotations

import codecs
import sys
from typing import Self

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

__all__ = ["CountingBar", "open_console", "print_as_is", "print_table", "tolerate_any_encoding"]

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


class CountingBar:
    """How many of a number of things are done; use it with ``with``. Where the output is no terminal, a line
    for each that is done.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.console = console
        self._bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_interactive,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def describe(self, text: str) -> None:
        """Say what is being done."""
        self._bar.update(self._task, description=text)

    def count(self, number: int, total: int) -> None:
        """Say how many are done."""
        self._bar.update(self._task, completed=number, total=total)

    def finished(self, number: int, total: int, text: str) -> None:
        """One more is done: the ``number``-th."""
        self.count(number, total)
        if not self.console.is_interactive:
            self.console.print(f"{number}/{total}  {text}", highlight=False)


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
