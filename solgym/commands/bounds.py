"""``solgym bounds``: the speed of light of a task, explained and drawn."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from solgym.commands.tasks import EnvOption, FunctionOption, ProgramOption, open_task, program_options
from solgym.commands.terminal import open_console

__all__ = ["bounds"]


def bounds(
    task: Annotated[
        str | None,
        typer.Argument(help="A task id such as gemm/f32/m512n512k512; not with --program.", metavar="TASK"),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads that the task may use.")] = 1,
    profile: Annotated[
        str | None,
        typer.Option(
            help="A published profile's name or a profile file; this machine's if left out.",
            metavar="NAME|FILE",
        ),
    ] = None,
    flushed: Annotated[bool, typer.Option("--flushed", help="Caches are flushed before each call.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw a roofline into this PNG file.", metavar="FILE")
    ] = None,
    env: EnvOption = None,
    program: ProgramOption = None,
    function: FunctionOption = None,
) -> None:
    """Print the least time in which a task can be done, and why."""
    from solgym.commands.profiles import chosen_profile
    from solgym.hardware.roofline import draw_roofline
    from solgym.hardware.speed_of_light import speed_of_light

    console = open_console()
    with closing(open_task(task, env, options=program_options(program, function))) as opened:
        parsed = opened.task
    used = chosen_profile(profile, console)
    bound = speed_of_light(parsed.work, used, threads, flushed)
    console.print(f"[bold]{parsed.id}[/]", highlight=False)
    console.print(bound.explain(), highlight=False, markup=False, soft_wrap=True)
    if plot is not None:
        point = (parsed.id, bound.arithmetic_intensity, bound.work.flops / bound.time_s)
        draw_roofline(used, [point], threads=threads, path=plot)
        console.print(f"roofline drawn in {plot}", highlight=False, soft_wrap=True)
