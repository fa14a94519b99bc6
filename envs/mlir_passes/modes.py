"""The choices that the user's process and the pass worker both know by name."""

from __future__ import annotations

from typing import Literal

from solgym.envs.mlir_passes.programs.program import Role

__all__ = ["ArgumentShape", "FloatMode", "Form", "Jit", "Want"]

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
