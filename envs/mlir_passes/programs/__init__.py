"""The programs of the suites, in MLIR, with their references."""

from solgym.envs.mlir_passes.programs.program import Argument, Program
from solgym.envs.mlir_passes.programs.table import PROGRAMS, SUITES
from solgym.envs.mlir_passes.programs.task import ProgramTask, parse_task

__all__ = ["PROGRAMS", "SUITES", "Argument", "Program", "ProgramTask", "parse_task"]
