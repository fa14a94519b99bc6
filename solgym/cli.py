"""The command line, ``solgym``: one module per command under ``solgym.commands``.

A user's mistake is one sentence on standard error and exit code 2, never a traceback. Commands import what
they need when they run, so ``solgym --help`` is quick.
"""

from __future__ import annotations

import os
import sys
import threading
import unicodedata
import warnings
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import typer
from typer.core import TyperGroup

from solgym.commands.bounds import bounds
from solgym.commands.calibrate import calibrate
from solgym.commands.compare import compare
from solgym.commands.compile import compile_for_gpu
from solgym.commands.crashes import crashes
from solgym.commands.doctor import doctor
from solgym.commands.evaluate import evaluate
from solgym.commands.experiment import experiment
from solgym.commands.listing import list_environments
from solgym.commands.opt import opt
from solgym.commands.replay import replay
from solgym.commands.show import show
from solgym.commands.terminal import tolerate_any_encoding
from solgym.commands.train import train
from solgym.commands.tune import tune
from solgym.errors import SolgymError

__all__ = ["app", "main"]

USAGE_ERROR = 2
INTERRUPTED = 130
ASK_AGAIN_S = 0.01
NO_READER = 141
"""What a shell reports for a program that a closed pipe ended."""

# Click's; typer keeps a click of its own in some versions and not in others.
_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])


class _OneSentencePerMistake(TyperGroup):
    """Turns the errors that SOLGym raises on purpose into one line and an exit code."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if not args:
            return super().make_context(info_name, args, parent, **extra)  # prints the help
        with _one_sentence_per_mistake():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings(), _one_sentence_per_mistake():
            warnings.showwarning = lambda message, *_: _say(f"warning: {message}")
            return super().invoke(ctx)


@contextmanager
def _one_sentence_per_mistake() -> Iterator[None]:
    try:
        yield
    except SolgymError as error:
        _say(str(error))
        raise typer.Exit(USAGE_ERROR) from error
    except _UsageError as error:
        path = getattr(getattr(error, "ctx", None), "command_path", "solgym")
        _say(f"{cast(Any, error).format_message().rstrip('.')}; see `{path} --help`")
        raise typer.Exit(USAGE_ERROR) from error
    except KeyboardInterrupt as error:
        _say("interrupted")
        raise typer.Exit(INTERRUPTED) from error
    except BrokenPipeError as error:
        # The reader of a pipe has gone (`solgym list | head`); nobody is left to tell, and what is still
        # buffered must not be written when Python ends.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(NO_READER) from error
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        _say(f"cannot read or write{where}: {error.strerror or error}")
        raise typer.Exit(USAGE_ERROR) from error


def _say(message: str) -> None:
    typer.echo(f"solgym: {''.join(map(_harmless, ' '.join(message.split())))}", err=True)


def _harmless(character: str) -> str:
    """Messages quote files of others; a terminal must not obey them. Parts of undecodable names may pass."""
    is_shown = character.isprintable() or unicodedata.category(character) == "Cs"
    return character if is_shown else ascii(character)[1:-1]


app = typer.Typer(
    cls=_OneSentencePerMistake,
    name="solgym",
    help="Schedule kernels, and choose MLIR passes, towards the hardware's speed of light.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        import solgym

        typer.echo(f"solgym {solgym.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Schedule kernels, and choose MLIR passes, towards the hardware's speed of light."""


app.command("list")(list_environments)
app.command()(doctor)
app.command()(calibrate)
app.command()(bounds)
app.command()(show)
app.command()(tune)
app.command()(replay)
app.command()(compare)
app.command()(experiment)
app.command()(train)
app.command()(evaluate)
app.command()(opt)
app.add_typer(crashes, name="crashes")
app.command("compile")(compile_for_gpu)


def _keep_interrupts() -> None:
    """Let no Ctrl-C get lost: Python drops what a destructor raises, and LLVM's modules have slow ones."""
    report = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)
            return
        again = threading.Timer(ASK_AGAIN_S, interrupt_main)  # not at once: that would be in here still
        again.daemon = True
        again.start()

    sys.unraisablehook = hook


def main() -> None:
    """Run the command line; the entry point of the ``solgym`` script."""
    tolerate_any_encoding()
    _keep_interrupts()
    app()


if __name__ == "__main__":
    main()
