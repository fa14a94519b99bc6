"""``solgym tune``: search for a fast candidate and leave a record, a table, pictures and code behind."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from solgym.commands.tasks import FunctionOption, ProgramOption, check_program, program_options
from solgym.commands.terminal import open_console, print_as_is

__all__ = ["tune"]

DEFAULT_MEASUREMENTS = 200
NOTHING_FOUND = 1


def tune(
    env: Annotated[
        str,
        typer.Argument(
            help="An environment id such as KernelDSL-GEMM-v0 or MLIRPasses-Gemm-v0.", metavar="ENV"
        ),
    ],
    tuner: Annotated[str, typer.Option(help="The search method.")] = "random",
    mode: Annotated[
        str | None,
        typer.Option(
            help="Kernels: search schedule knobs (if left out), or episodes of primitive actions. "
            "Programs: episodes of passes.",
            metavar="knobs|primitive|passes",
        ),
    ] = None,
    budget: Annotated[
        int | None, typer.Option(help="How many candidates to try (200 if --seconds is left out too).")
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="How long to try candidates.")] = None,
    guided: Annotated[
        bool,
        typer.Option("--guided", help="Stop before where the speed of light leaves little to win."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    seeds: Annotated[
        list[Path] | None,
        typer.Option(
            help="Candidates to try first, as JSON: a best.json, or a list of such. Can be repeated.",
            metavar="FILE",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; runs/... if left out.", metavar="DIR")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="A task id; the environment's default if left out.", metavar="ID")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads that kernels run on; programs run on one.")] = 1,
    program: ProgramOption = None,
    function: FunctionOption = None,
) -> None:
    """Search for a fast schedule or pass sequence. The same command again continues an interrupted run."""
    from solgym.baselines.budget import Budget
    from solgym.baselines.console import ConsoleListener
    from solgym.baselines.initial import check_initial, read_initial
    from solgym.baselines.peer_timing import time_numpy
    from solgym.baselines.report import comparison, comparison_table, write_report
    from solgym.baselines.runner import make_env
    from solgym.baselines.runner import tune as run
    from solgym.baselines.trace import check_folder
    from solgym.baselines.tuner import check_tuner
    from solgym.commands.profiles import calibrated_profile
    from solgym.envs.registration import env_class

    console = open_console()
    if budget is None and seconds is None:
        budget = DEFAULT_MEASUREMENTS
    limits = Budget(budget, seconds, guided)
    options = program_options(program, function)
    # Mistakes show before the machine is calibrated, which takes a while.
    check_tuner(tuner, seed)
    mode = env_class(env).check_mode(mode)
    check_program(env, options)
    initial = read_initial(seeds or (), env_class(env).read_candidate)
    with closing(make_env(env, task=task, threads=threads, options=options)) as made:
        chosen = None if task is None and program is None else made.tasks[0]
        if len(made.tasks) == 1:
            check_initial(initial, made.tasks[0])
    folder = (
        out
        if out is not None
        else _default_folder(env, chosen, tuner, mode, seed, threads, bool(initial), guided)
    )
    check_folder(folder)
    calibrated_profile(console)
    try:
        with ConsoleListener(console) as listener:
            result = run(
                env,
                budget=limits,
                out=folder,
                tuner=tuner,
                mode=mode,
                seed=seed,
                task=task,
                threads=threads,
                options=options,
                initial=initial,
                listener=listener,
            )
            listener.stage("timing numpy")
            peer = time_numpy(result.task, threads, seed)
            peers = [] if peer is None else [peer]
            listener.stage("drawing")
            files = write_report(result, peers)
    except KeyboardInterrupt:
        print_as_is(
            console, f"interrupted; everything up to here is in {folder}: repeat the command to go on"
        )
        raise
    console.print(comparison_table(result, comparison(result, peers), console.width))
    if result.best is None:
        console.print(f"None of {len(result.trials)} candidates is correct and stable: try a larger budget.")
        raise typer.Exit(NOTHING_FOUND)
    if result.tied_with:
        console.print(
            f"Finalists that cannot be told apart from the best: {result.tied_with}.", highlight=False
        )
    console.print()
    for name, path in files.items():
        print_as_is(console, f"{name:<10} {path}")


def _default_folder(
    env: str,
    task: str | None,
    tuner: str,
    mode: str,
    seed: int,
    threads: int,
    begins_with_seeds: bool,
    guided: bool,
) -> Path:
    parts = [tuner, mode, f"seed{seed}", *([f"{threads}threads"] if threads > 1 else [])]
    parts += ["seeds"] if begins_with_seeds else []
    parts += ["guided"] if guided else []
    named = env if task is None else task.replace("/", "-")
    if task is not None and not env.startswith("KernelDSL-"):
        named = f"{env}-{named}"  # kernels and programs may have equal task ids
    return Path("runs", named, "-".join(parts))
