"""What the indexing maps of a linalg operation say of it: its class, its extents, its dimensions by role.

Facts, masks and transform scripts all sort linalg operations this way, named or generic. Runs in the pass
worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from torch_mlir import ir
from torch_mlir.dialects import linalg

__all__ = ["IMAGE_CONVOLUTIONS", "Kind", "LinalgOperation", "classify", "is_linalg", "linalg_operations"]

Kind = Literal["fill", "elementwise", "reduction", "contraction", "convolution"]

IMAGE_CONVOLUTIONS: Final = ("linalg.conv_2d_nhwc_hwcf", "linalg.conv_2d_nchw_fchw")
"""Operations that upstream can write as matrix products."""

_NOT_STRUCTURED: Final = frozenset(
    "linalg." + name
    for name in (
        "index",
        "yield",
        "pack",
        "unpack",
        "softmax",
        "winograd_filter_transform",
        "winograd_input_transform",
        "winograd_output_transform",
    )
)


@dataclass(frozen=True)
class LinalgOperation:
    """One linalg operation and what its indexing maps say of it.

    Attributes:
        operation: the operation itself.
        kind: its class, see ``classify``.
        extents: static extent of each dimension of its iteration space; -1 where it is not known.
        parallel: parallel dimensions in the order of the output's subscripts.
        reduction: the other dimensions in order.
        m: of a contraction or convolution, the parallel dimension that the input without ``n`` runs over; of
            anything else the last parallel dimension but one; -1 if there is none.
        n: the last parallel dimension, along which the output is contiguous; -1 if there is none.
        contiguous: the dimension along which the largest input is contiguous.
        on_tensors: whether it has tensor results rather than buffers to write to.
        is_flat: whether it is a convolution of images whose window and output have one row, or one column.
    """

    operation: ir.Operation
    kind: Kind
    extents: tuple[int, ...]
    parallel: tuple[int, ...]
    reduction: tuple[int, ...]
    m: int
    n: int
    contiguous: int
    on_tensors: bool
    is_flat: bool

    @property
    def points(self) -> int:
        """Points of the iteration space; -1 where an extent is not known."""
        return -1 if -1 in self.extents else math.prod(self.extents)


def is_linalg(name: str) -> bool:
    """Whether an operation of this name is a linalg operation with indexing maps."""
    return name.startswith("linalg.") and name not in _NOT_STRUCTURED


def linalg_operations(module: ir.Operation) -> list[LinalgOperation]:
    """The linalg operations of a module in order, classified."""
    found: list[LinalgOperation] = []

    def look(operation: ir.Operation) -> ir.WalkResult:
        if is_linalg(operation.name):
            sorted_operation = classify(operation)
            if sorted_operation is not None:
                found.append(sorted_operation)
            return ir.WalkResult.SKIP
        return ir.WalkResult.ADVANCE

    module.walk(look, ir.WalkOrder.PRE_ORDER)
    return found


def classify(operation: ir.Operation) -> LinalgOperation | None:
    """Sort one linalg operation by its indexing maps; None for one that has none, or that divides.

    What subscripts by quotients and remainders, as images laid out in columns are, crashes tiling.

    A *convolution* subscripts an input with more than a single dimension (a sum, say); of the rest, a
    *contraction* has a reduction dimension, two parallel dimensions and two inputs at least, a *reduction*
    is what else has a reduction dimension, a *fill* reads no array, and what remains is *elementwise*.
    """
    attribute = linalg.get_indexing_maps(operation)
    if attribute is None:
        return None
    maps = [ir.AffineMapAttr(element).value for element in attribute]
    shapes = [_shape(value) for value in operation.operands]
    if not maps or len(shapes) != len(maps):
        return None
    if any(map(_divides, maps)):
        return None
    subscripts = [_subscripts(indexing_map) for indexing_map in maps]
    on_tensors = len(operation.results) > 0
    inputs = len(maps) - (len(operation.results) if on_tensors else _output_buffers(operation))
    extents = [-1] * maps[0].n_dims
    for shape, dimensions in zip(shapes, subscripts, strict=True):
        for extent, dimension in zip(shape, dimensions, strict=False):
            if dimension >= 0 and extents[dimension] < 0:
                extents[dimension] = extent
    parallel = tuple(dict.fromkeys(d for d in subscripts[inputs] if d >= 0))
    reduction = tuple(d for d in range(len(extents)) if d not in parallel)
    n = parallel[-1] if parallel else -1
    # The input that the contiguous dimension does not run over is broadcast along it: its rows are m.
    rows = [d for used in subscripts[:inputs] if used and n not in used for d in parallel if d in used]
    if not rows:
        rows = list(parallel[:-1])
    largest = max(range(inputs), key=lambda i: math.prod(shapes[i]) if shapes[i] else 0, default=inputs)
    along = [d for d in subscripts[largest] if d >= 0]
    subscripted = [result for indexing_map in maps[:inputs] for result in indexing_map.results]
    sums = [result for result in subscripted if not isinstance(result, ir.AffineDimExpr)]
    kind: Kind
    if any(-1 in used for used in subscripts[:inputs]):
        kind = "convolution"
        rows = _rows_of_window(maps[:inputs], parallel, n) or rows
    elif reduction:
        kind = "contraction" if len(parallel) > 1 and inputs > 1 else "reduction"
    else:
        kind = "fill" if all(not shape for shape in shapes[:inputs]) else "elementwise"
    return LinalgOperation(
        operation,
        kind,
        tuple(extents),
        parallel,
        reduction,
        m=rows[-1] if rows else -1,
        n=n,
        contiguous=along[-1] if along else n,
        on_tensors=on_tensors,
        is_flat=len(sums) > 1 and any(all(extents[d] == 1 for d in _dimensions([s])) for s in sums),
    )


def _rows_of_window(maps: list[ir.AffineMap], parallel: tuple[int, ...], n: int) -> list[int]:
    """Parallel dimensions of the inputs that ``n`` does not run over, sums of dimensions included."""
    rows: list[int] = []
    for indexing_map in maps:
        used = _dimensions(indexing_map.results)
        if used and n not in used:
            rows += [d for d in parallel if d in used]
    return rows


def _dimensions(expressions: Iterable[ir.AffineExpr]) -> set[int]:
    return {part.position for part in _parts(expressions) if isinstance(part, ir.AffineDimExpr)}


def _divides(indexing_map: ir.AffineMap) -> bool:
    """Whether a subscript has a quotient or a remainder."""
    return any(
        isinstance(part, ir.AffineFloorDivExpr | ir.AffineCeilDivExpr | ir.AffineModExpr)
        for part in _parts(indexing_map.results)
    )


def _parts(expressions: Iterable[ir.AffineExpr]) -> list[ir.AffineExpr]:
    """Expressions and all that they are made of."""
    found: list[ir.AffineExpr] = []
    pending = list(expressions)
    while pending:
        expression = pending.pop()
        found.append(expression)
        if isinstance(expression, ir.AffineBinaryExpr):
            pending += [expression.lhs, expression.rhs]
    return found


def _subscripts(indexing_map: ir.AffineMap) -> tuple[int, ...]:
    """The dimension in each subscript; -1 where it is not a single one."""
    return tuple(
        result.position if isinstance(result, ir.AffineDimExpr) else -1 for result in indexing_map.results
    )


def _shape(value: ir.Value) -> tuple[int, ...]:
    kind = value.type
    if not isinstance(kind, (ir.RankedTensorType, ir.MemRefType)):
        return ()
    dynamic = ir.ShapedType.get_dynamic_size()
    return tuple(-1 if extent == dynamic else extent for extent in kind.shape)


def _output_buffers(operation: ir.Operation) -> int:
    if "operandSegmentSizes" in operation.attributes:
        return int(list(ir.DenseI32ArrayAttr(operation.attributes["operandSegmentSizes"]))[-1])
    return 1
