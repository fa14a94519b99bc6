"""``solgym compile``: a program to PTX and host steps for a GPU, on a machine without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from solgym.commands.terminal import open_console, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from solgym.envs.mlir_passes.client import ModuleSource
    from solgym.envs.mlir_passes.gpu_code import GpuCode
    from solgym.envs.mlir_passes.ptxas import KernelResources

__all__ = ["compile_for_gpu"]


def compile_for_gpu(
    what: Annotated[
        str, typer.Argument(help="A task id of a program, or an MLIR file.", metavar="TASK|FILE.mlir")
    ],
    chip: Annotated[str, typer.Option(help="Architecture to compile for.", metavar="sm_80|sm_90")] = "sm_90",
    function: Annotated[
        str | None,
        typer.Option(help="The function to compile, where a file has several.", metavar="NAME"),
    ] = None,
    passes: Annotated[
        str,
        typer.Option(
            help="Actions to apply first, separated by commas; `solgym list --actions` names them.",
            metavar="A,B,C",
        ),
    ] = "",
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Write kernel.ptx and host_steps.json here.", metavar="DIR")
    ] = Path(),
) -> None:
    """Compile a program for an NVIDIA GPU; nothing is run, so none is needed."""
    from solgym.commands.opt import apply_actions, named_actions
    from solgym.envs.mlir_passes.client import PassFailure, default_pass_worker
    from solgym.envs.mlir_passes.gpu_code import CHIPS, GpuCode
    from solgym.envs.mlir_passes.ptxas import assemble, find_ptxas
    from solgym.errors import InvalidOption
    from solgym.hardware.atomic_files import write_all_atomically

    if chip not in CHIPS:
        raise InvalidOption(f"there is no chip {chip!r} to compile for; give {' or '.join(CHIPS)}")
    if out.exists() and not out.is_dir():
        raise InvalidOption(f"{out} is a file; --out takes the folder that the results go to")
    actions = named_actions(passes)
    source = _source(what, function)
    apply_actions(default_pass_worker(), source, actions)
    answer = default_pass_worker().gpu(source, actions, chip)
    if isinstance(answer, PassFailure):
        raise InvalidOption(f"{source.id} cannot be compiled for {chip}: {answer.error}")
    code = GpuCode.from_json(answer)
    ptxas = find_ptxas()
    resources = None if ptxas is None else assemble(code.ptx, chip, ptxas)
    host_steps = json.dumps(code.host_json(), indent=1) + "\n"
    write_all_atomically({out / "kernel.ptx": code.ptx, out / "host_steps.json": host_steps})

    console = open_console()
    console.print(f"[bold]{source.id}[/] for {chip}", highlight=False)
    print_table(console, _table(code, resources))
    temporary = sum(buffer.bytes for buffer in code.buffers if buffer.kind != "argument")
    console.print(
        f"{code.launches} {'launch' if code.launches == 1 else 'launches'} a run, "
        f"{temporary:,} bytes of device memory besides the arguments",
        highlight=False,
    )
    if ptxas is None:
        console.print(
            "not checked by ptxas, which is not here; the extra solgym\\[gpu-check] brings it",
            highlight=False,
        )
    console.print(
        f"kernel.ptx and host_steps.json are in {out}", highlight=False, soft_wrap=True, markup=False
    )


def _source(what: str, function: str | None) -> ModuleSource:
    from solgym.envs.mlir_passes.programs.task import parse_task
    from solgym.envs.mlir_passes.user_program import load_program
    from solgym.errors import InvalidOption

    path = Path(what)
    if path.suffix == ".mlir" or path.exists():
        return load_program(path, function)
    if function is not None:
        raise InvalidOption("--function names a function of an MLIR file; leave it out for a task id")
    return parse_task(what)


def _table(code: GpuCode, resources: Mapping[str, KernelResources] | None) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kernel", "grid", "block", "parameters"):
        table.add_column(heading, no_wrap=heading != "parameters", min_width=len(heading))
    if resources is not None:
        for heading in ("registers", "spilt B", "shared B"):
            table.add_column(heading, justify="right", no_wrap=True)
    for kernel in code.kernels:
        row = [kernel.name, _extents(kernel.grid), _extents(kernel.block), ", ".join(kernel.parameters)]
        if resources is not None:
            taken = resources[kernel.name]
            spilt = taken.spill_store_bytes + taken.spill_load_bytes
            row += [str(taken.registers), str(spilt), str(taken.shared_bytes)]
        table.add_row(*row)
    return table


def _extents(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))
