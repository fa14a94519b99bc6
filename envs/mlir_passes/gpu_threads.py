"""Gives every iteration of a parallel nest a thread: launch geometry, and the indices inside the kernel.

Runs in the pass worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch_mlir import ir
from torch_mlir.dialects import arith, scf

__all__ = ["MAX_GRID", "Dimension", "Threads", "both", "guarded", "place_threads"]

Extents = tuple[int, int, int]

MAX_GRID: Final = (2**31 - 1, 65535, 65535)
"""Blocks along x, y and z; CUDA C++ Programming Guide, compute capabilities 5.0 and later."""

WARP: Final = 32


@dataclass(frozen=True)
class Dimension:
    """One loop of a parallel nest: ``level`` and ``position`` say which, ``extent`` bounds its iterations."""

    level: int
    position: int
    extent: int


@dataclass(frozen=True)
class Threads:
    """Where the iterations of a nest run.

    Attributes:
        grid: blocks along x, y and z.
        block: threads of a block along x, y and z.
        places: by the level and position of a loop, which of its iterations a thread has.
        inside: whether a thread has an iteration at all.
    """

    grid: Extents
    block: Extents
    places: Mapping[tuple[int, int], ir.Value]
    inside: ir.Value


def place_threads(dimensions: Sequence[Dimension]) -> Threads:
    """Spread loops, outermost first, over threads; adds operations at the current insertion point."""
    axes = _axes(dimensions)
    grid, block = _geometry([math.prod(d.extent for d in axis) for axis in axes])
    places: dict[tuple[int, int], ir.Value] = {}
    inside: ir.Value | None = None
    for letter, axis in zip("xyz", axes, strict=True):
        if not axis:
            continue
        index = _thread_index(letter)
        size = math.prod(dimension.extent for dimension in axis)
        inside = both(inside, _less(index, _index(size)))
        for dimension in reversed(axis):
            extent = _index(dimension.extent)
            places[dimension.level, dimension.position] = arith.remui(index, extent)
            index = arith.divui(index, extent)
    assert inside is not None
    return Threads(grid, block, places, inside)


def _axes(dimensions: Sequence[Dimension]) -> list[list[Dimension]]:
    """Which loops run along x, y and z: the innermost along x, as neighbouring threads then touch neighbours.

    Short inner loops share x until a warp is full. Loops that would exceed what y or z hold all go to x.
    """
    axes: list[list[Dimension]] = [[], [], []]
    for dimension in reversed(dimensions):
        if math.prod(d.extent for d in axes[0]) < WARP:
            axes[0].insert(0, dimension)
        elif not axes[1]:
            axes[1].insert(0, dimension)
        else:
            axes[2].insert(0, dimension)
    if any(math.prod(d.extent for d in axes[i]) > MAX_GRID[i] for i in (1, 2)):
        return [list(dimensions), [], []]
    return axes


def _geometry(extents: Sequence[int]) -> tuple[Extents, Extents]:
    """Grid and block for so many threads along x, y and z: blocks of 256, or fewer where threads are few."""
    x, y, z = extents
    if y * z > 1:
        width = WARP
        height = min(8, 1 << (y - 1).bit_length())
    else:
        # Few threads spread over many blocks, as each block runs on one multiprocessor.
        width = next((w for w in (256, 128, 64) if x >= 128 * w), WARP)
        height = 1
    return (-(-x // width), -(-y // height), z), (width, height, 1)


def _index(number: int) -> ir.Value:
    return arith.ConstantOp(ir.IndexType.get(), number).results[0]


def _special_register(name: str) -> ir.Value:
    operation = ir.Operation.create(f"nvvm.read.ptx.sreg.{name}", results=[ir.IntegerType.get_signless(32)])
    return arith.extui(ir.IntegerType.get_signless(64), operation.results[0])


def _thread_index(axis: str) -> ir.Value:
    block = arith.muli(_special_register(f"ctaid.{axis}"), _special_register(f"ntid.{axis}"))
    return arith.index_cast(ir.IndexType.get(), arith.addi(block, _special_register(f"tid.{axis}")))


def _less(left: ir.Value, right: ir.Value) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.ult, left, right)


def both(left: ir.Value | None, right: ir.Value) -> ir.Value:
    """Both conditions; None for one that always holds."""
    return right if left is None else arith.andi(left, right)


def guarded(condition: ir.Value) -> ir.InsertionPoint:
    """Where operations go that run only under a condition."""
    choice = scf.IfOp(condition)
    with ir.InsertionPoint(choice.then_block):
        end = scf.YieldOp([])
    return ir.InsertionPoint(end)
