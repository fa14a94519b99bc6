"""``solgym train``: train a policy and leave a record, curves and policy files behind."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solgym.commands.terminal import open_console, print_as_is
from solgym.errors import InvalidOption, UnsupportedTarget

if TYPE_CHECKING:
    from solgym.baselines.rl.settings import Settings

__all__ = ["train"]

PACKAGES = {
    "torch": "torch",
    "stable_baselines3": "stable-baselines3",
    "sb3_contrib": "sb3-contrib",
    "tensorboard": "tensorboard",
    "tomli_w": "tomli-w",
}


def train(
    env: Annotated[
        str | None,
        typer.Argument(
            help="An environment id such as KernelDSL-GEMM-v0 or MLIRPasses-All-v0; the file's if left out.",
            metavar="ENV",
        ),
    ] = None,
    algo: Annotated[
        str | None,
        typer.Option(
            help="The algorithm; ppo, with action masks, if left out.", metavar="ppo|ppo-unmasked|a2c|dqn"
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Hyperparameters, as TOML; options given here count more.", metavar="FILE.toml"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Environment steps, of all environments together.")
    ] = None,
    envs: Annotated[int | None, typer.Option(help="Environments, each in a process of its own.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Whose tasks to learn on; train if left out.", metavar="train|test")
    ] = None,
    curriculum: Annotated[
        bool, typer.Option("--curriculum", help="Begin with easy tasks, and add harder ones as they succeed.")
    ] = False,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            help="A published profile, or a file; this machine's if left out. Can be repeated: environments "
            "take them in turn.",
            metavar="NAME",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the results; runs/... if left out.", metavar="DIR"),
    ] = None,
) -> None:
    """Train a policy. The same command again continues an interrupted run; more --steps extend one."""
    from solgym.baselines.rl.settings import read_settings

    changes: dict[str, dict[str, Any]] = {
        "env": {"id": env, "split": split, "profiles": profile or None},
        "training": {"algo": algo, "steps": steps, "envs": envs, "seed": seed},
        "curriculum": {"enabled": curriculum or None},
    }
    if env is None and config is None:
        raise InvalidOption("there is nothing to learn in; name an environment, or give a file with --config")
    settings = read_settings(config, changes)
    _require_packages()
    from solgym.baselines.rl.console import ConsoleTrainingListener
    from solgym.baselines.rl.training import train as run
    from solgym.commands.profiles import calibrated_profile

    console = open_console()
    if not settings.env.profiles:
        calibrated_profile(console)
    folder = out if out is not None else _default_folder(settings)
    command = shlex.join(["solgym", *sys.argv[1:]])
    try:
        with ConsoleTrainingListener(console) as listener:
            result = run(settings, folder, command=command, listener=listener)
    except KeyboardInterrupt:
        from solgym.baselines.rl.run_folder import CHECKPOINT_NAME

        kept = f"the last checkpoint is in {folder}: repeat the command to go on from there"
        nothing = "there is no checkpoint yet: repeat the command to begin again"
        print_as_is(console, f"interrupted; {kept if (folder / CHECKPOINT_NAME).exists() else nothing}")
        raise
    last = next((line for line in reversed(result.progress) if "test_gap_closed" in line), None)
    console.print(
        f"[bold]{result.steps} steps[/]  {result.episodes} episodes, {result.seconds:.0f} s", highlight=False
    )
    if last is not None:
        console.print(
            f"test tasks, one episode each with the best actions: gap closed {last['test_gap_closed']:.3f}, "
            f"speedup {last['test_speedup']:.2f}",
            highlight=False,
        )
    console.print(f"samples discarded while timing: {_discarded(result.progress):.1%}", highlight=False)
    console.print()
    for name, path in result.files.items():
        print_as_is(console, f"{name:<10} {path}")


def _require_packages() -> None:
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise UnsupportedTarget(
            f"training needs {', '.join(missing)}, which are not installed; pip install 'solgym[rl]'"
        )
    for module, package in PACKAGES.items():
        try:
            import_module(module)
        except (ImportError, OSError) as error:  # OSError of a library that cannot be loaded
            raise UnsupportedTarget(
                f"{package}, which training needs, is installed but cannot be imported ({error}); "
                "pip install --force-reinstall 'solgym[rl]'"
            ) from error


def _default_folder(settings: Settings) -> Path:
    algo, seed = settings.training.algo, settings.training.seed
    parts = [algo, *(["curriculum"] if settings.curriculum.enabled else []), f"seed{seed}"]
    return Path("runs", settings.env.id, "-".join(parts))


def _discarded(progress: Sequence[Mapping[str, Any]]) -> float:
    """Samples thrown away over the whole run, as a fraction of all."""
    kept, discarded = (
        sum(line["statistics"][name] for line in progress) for name in ("samples_kept", "samples_discarded")
    )
    return discarded / (kept + discarded) if kept + discarded else 0.0
