"""What the user's process and the pass worker both know: the choices by name, and the time of a pass."""

from __future__ import annotations

from typing import Final, Literal

from solgym.envs.mlir_passes.programs.program import Role

__all__ = ["PASS_TIMEOUT_S", "ArgumentShape", "FloatMode", "Form", "Jit", "Want"]

PASS_TIMEOUT_S: Final = 5.0
"""A pass that takes longer hangs: ordinary ones take milliseconds."""

Jit = Literal["llvmlite", "mlir"]
"""Which LLVM makes machine code."""

FloatMode = Literal["contract,reassoc", "contract", "strict"]
"""Fast-math flags of every floating-point operation."""

Want = Literal["mqss", "full", "text"]
"""What a view of a module holds beside the mask."""

Form = Literal["mlir", "llvm", "asm"]
"""Forms in which people read a module."""

ArgumentShape = tuple[tuple[int, ...], int, Role]
"""An argument of a function: extents, bytes an element, role."""
