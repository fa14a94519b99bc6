"""The programs by name, and the suites that they form."""

from __future__ import annotations

from solgym.envs.mlir_passes.programs import (
    image,
    ml,
    ml_convolutions,
    ml_rows,
    polybench_blas,
    polybench_kernels,
    polybench_solvers,
    polybench_stencils,
)
from solgym.envs.mlir_passes.programs.program import Program

__all__ = ["PROGRAMS", "SUITES"]

_MODULES = (
    polybench_blas,
    polybench_kernels,
    polybench_solvers,
    polybench_stencils,
    ml,
    ml_rows,
    ml_convolutions,
    image,
)

PROGRAMS: dict[str, Program] = {program.name: program for module in _MODULES for program in module.PROGRAMS}
"""Every program by its name in task ids."""

SUITES: dict[str, tuple[Program, ...]] = {
    "PolyBench": tuple(program for program in PROGRAMS.values() if program.suite == "PolyBench"),
    "ML": tuple(program for program in PROGRAMS.values() if program.suite == "ML"),
    "All": tuple(PROGRAMS.values()),
}
"""Programs by suite; ``Program.split`` says which are held out."""
