"""What kernels may hold, and where values come from: what outlining and the search for parallel loops share.

Runs in the pass worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from torch_mlir import ir

from solgym.envs.mlir_passes.gpu_code import ELEMENT_BYTES

__all__ = [
    "ALLOCATIONS",
    "VIEWS",
    "bytes_of",
    "function_around",
    "is_contiguous",
    "is_pure",
    "is_within",
    "walk",
]

ALLOCATIONS: Final = frozenset({"memref.alloc", "memref.alloca"})

VIEWS: Final = frozenset(
    {"memref.cast", "memref.collapse_shape", "memref.expand_shape", "memref.extract_strided_metadata"}
    | {"memref.memory_space_cast", "memref.reinterpret_cast", "memref.subview", "memref.transpose"}
    | {"memref.assume_alignment", "memref.view"}
)
"""Operations whose result is memory that an operand already names."""

_PURE_DIALECTS: Final = frozenset({"arith", "math", "index", "ub", "complex"})
_PURE: Final = VIEWS | {"memref.dim", "memref.rank", "builtin.unrealized_conversion_cast"}


def bytes_of(kind: ir.MemRefType) -> int:
    """Size of memory of a type with constant extents."""
    count, element = math.prod(kind.shape), kind.element_type
    if isinstance(element, ir.VectorType):
        count, element = count * math.prod(element.shape), element.element_type
    return int(count) * ELEMENT_BYTES.get(str(element), 8)


def is_contiguous(kind: ir.MemRefType) -> bool:
    """Whether memory of a type is row-major without gaps and begins where its pointer points."""
    if kind.layout == ir.MemRefType.get(kind.shape, kind.element_type).layout:
        return True
    try:
        strides, offset = kind.get_strides_and_offset()
    except (RuntimeError, ValueError):
        return False
    expected = [math.prod(kind.shape[axis + 1 :]) for axis in range(kind.rank)]
    return bool(offset == 0 and list(strides) == expected)


def walk(operation: ir.Operation) -> Iterator[ir.Operation]:
    """The operations inside one, outer before inner; each may be erased once it is found."""
    for region in operation.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                yield inner.operation
                yield from walk(inner.operation)


def is_pure(operation: ir.Operation) -> bool:
    """Whether an operation does nothing but compute its results, so that a kernel may repeat it."""
    if operation.name in _PURE:
        return True
    dialect = operation.name.partition(".")[0]
    if dialect == "vector":
        return not len(operation.regions) and not any(
            isinstance(operand.type, ir.MemRefType) for operand in operation.operands
        )
    return dialect in _PURE_DIALECTS and not len(operation.regions)


def is_within(value: ir.Value, function: ir.Operation) -> bool:
    """Whether a value is an argument of a function or defined in it."""
    owner = value.owner
    operation = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation
    return bool(operation == function or function_around(operation) == function)


def function_around(operation: ir.Operation) -> ir.Operation | None:
    """The function that an operation is in, or itself if it is one."""
    around: ir.Operation | None = operation
    while around is not None and around.name != "func.func":
        parent = around.parent
        around = None if parent is None else parent.operation
    return around
