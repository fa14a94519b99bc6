"""The command line, ``solgym``: one module per command under ``solgym.commands``.

A user's mistake is one sentence on standard error and exit code 2, never a traceback. Commands import what
they need when they run, so ``solgym --help`` is quick.
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from solgym.commands.bounds import bounds
from solgym.commands.calibrate import calibrate
from solgym.commands.doctor import doctor
from solgym.commands.listing import list_environments
from solgym.commands.replay import replay
from solgym.commands.show import show
from solgym.commands.tune import tune
from solgym.errors import SolgymError

__all__ = ["app", "main"]

USAGE_ERROR = 2
INTERRUPTED = 130


class _OneSentencePerMistake(TyperGroup):
    """Turns the errors that SOLGym raises on purpose into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SolgymError as error:
            message = " ".join(str(error).split())
            typer.echo(f"solgym: {message}", err=True)
            raise typer.Exit(USAGE_ERROR) from error
        except KeyboardInterrupt as error:
            typer.echo("solgym: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            # The reader of a pipe has gone (`solgym list | head`); nobody is left to tell.
            sys.stderr.close()
            raise typer.Exit(0) from error


app = typer.Typer(
    cls=_OneSentencePerMistake,
    name="solgym",
    help="Schedule kernels towards the hardware's speed of light.",
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
    """Schedule kernels towards the hardware's speed of light."""


app.command("list")(list_environments)
app.command()(doctor)
app.command()(calibrate)
app.command()(bounds)
app.command()(show)
app.command()(tune)
app.command()(replay)


def main() -> None:
    """Run the command line; the entry point of the ``solgym`` script."""
    app()


if __name__ == "__main__":
    main()
