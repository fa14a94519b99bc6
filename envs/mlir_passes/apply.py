"""Applies actions of the catalogue to modules. Runs in the pass worker."""

from __future__ import annotations

from torch_mlir import ir

from solgym.envs.mlir_passes.catalogue import PassAction
from solgym.envs.mlir_passes.finishing import run_passes
from solgym.envs.mlir_passes.transforms import PassFailed, run_transform

__all__ = ["PassFailed", "apply_action", "warm_up"]


def apply_action(module: ir.Operation, action: PassAction) -> None:
    """Apply an action to a module in place; ``finish`` changes nothing.

    Args:
        module: a ``builtin.module``.
        action: the action.

    Raises:
        ir.MLIRError: a pass failed, or left a module that is not valid.
        PassFailed: a script failed. After either, the module is in no particular state.
    """
    if action.pipeline:
        run_passes(module, action.pipeline)
    elif action.transform:
        run_transform(module, action.transform)
        module.verify()


def warm_up(context: ir.Context) -> None:
    """Load the transform dialect, which takes a process a tenth of a second the first time."""
    text = """
    func.func @f(%a: memref<8x8xf32>) {
      %zero = arith.constant 0.0 : f32
      linalg.fill ins(%zero : f32) outs(%a : memref<8x8xf32>)
      return
    }
    """
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        run_transform(module.operation, "tile fill r4 c4")
