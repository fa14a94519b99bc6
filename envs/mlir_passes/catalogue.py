"""The catalogue of actions: MLIR passes and transform-dialect scripts that an agent can apply to a module.

One table, ``ACTIONS``. Each action belongs to a level of MLIR's dialects, says what it does, and names the
preconditions (``facts.PRECONDITIONS``) without which it would do nothing or is known to go wrong. This module
is pure data: it imports nothing of MLIR, so the environment's process can read it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["ACTIONS", "ACTION_INDEX", "LEVELS", "Level", "PassAction"]

Level = Literal["tensor", "bufferize", "affine", "scf", "vector", "any"]

LEVELS: Final[tuple[Level, ...]] = ("tensor", "bufferize", "affine", "scf", "vector", "any")
"""Groups of the catalogue, from high to low; ``any`` is for clean-ups."""


@dataclass(frozen=True)
class PassAction:
    """One action.

    Attributes:
        name: what agents and files call it.
        level: the group that it belongs to.
        summary: one line: what it does.
        pipeline: passes on a ``builtin.module`` as MLIR's pipeline text; empty if it is made by a script.
        transform: name and arguments of a generator of ``transforms``; empty if it is a pipeline.
        needs: names of its preconditions.
    """

    name: str
    level: Level
    summary: str
    pipeline: str = ""
    transform: str = ""
    needs: tuple[str, ...] = ()


def _cells(rows: str) -> list[tuple[str, str, str]]:
    """The three cells of every row of a table; a line that starts with a bar goes on with the row before."""
    joined = re.sub(r"\n\s*\|", " |", rows)
    cells = [[cell.strip() for cell in row.split(" | ")] for row in joined.splitlines() if row.strip()]
    return [(name, content, summary) for name, content, summary in cells]


def _passes(level: Level, needs: str, rows: str) -> list[PassAction]:
    """Actions that are passes on the module: a row reads ``name | passes | summary``."""
    return [
        PassAction(name, level, summary, pipeline=passes, needs=tuple(needs.split()))
        for name, passes, summary in _cells(rows)
    ]


def _function_passes(level: Level, needs: str, rows: str) -> list[PassAction]:
    """The same with passes that work on each function."""
    return [
        PassAction(name, level, summary, pipeline=f"func.func({passes})", needs=tuple(needs.split()))
        for name, passes, summary in _cells(rows)
    ]


def _scripts(level: Level, needs: str, rows: str) -> list[PassAction]:
    """Actions that are scripts: a row reads ``name | generator and arguments | summary``."""
    return [
        PassAction(name, level, summary, transform=call, needs=tuple(needs.split()))
        for name, call, summary in _cells(rows)
    ]


def _tiles(group: str, what: str, tiles: str) -> list[PassAction]:
    """Tilings of one class of linalg operations; a tile reads ``m8-n32-k1``."""
    return [
        PassAction(
            f"tile-{group}-{tile}",
            "tensor",
            f"tile {what}: {tile.replace('-', ', ')}",
            transform=f"tile {group} {tile.replace('-', ' ')}",
            needs=(group,),
        )
        for tile in tiles.split()
    ]


_FINISH = [PassAction("finish", "any", "end the episode; the finishing pipeline takes the module to LLVM")]

_TENSOR = [
    *_passes(
        "tensor",
        "linalg-on-tensors",
        """
        fuse-elementwise | linalg-fuse-elementwise-ops | merge elementwise operations into their consumers
        fold-into-elementwise | linalg-fold-into-elementwise
            | fold transposes and broadcasts into elementwise operations
        """,
    ),
    *_passes(
        "tensor",
        "linalg",
        """
        fold-unit-dimensions | linalg-fold-unit-extent-dims | drop dimensions of extent one by reshapes
        fold-unit-dimensions-by-slices | linalg-fold-unit-extent-dims{use-rank-reducing-slices=true}
            | drop dimensions of extent one by slices of lower rank
        generalize | linalg-generalize-named-ops | write named operations as linalg.generic
        inline-scalars | linalg-inline-scalar-operands | compute with scalar operands inside the bodies
        named-to-category | linalg-morph-ops{named-to-category=true}
            | write named operations as linalg.elementwise and linalg.contract
        """,
    ),
    *_passes(
        "tensor",
        "generic",
        "specialize | linalg-specialize-generic-ops | write linalg.generic as named operations if they match",
    ),
    *_passes(
        "tensor",
        "tensors",
        "fold-tensor-subsets | fold-tensor-subset-ops | fold slices of tensors into vector transfers",
    ),
    *_passes(
        "tensor",
        "matmul-on-tensors",
        """
        pack-matmul-16 | linalg-block-pack-matmul{block-factors=16,16,16}
            | lay matrices out in blocks of 16 by 16
        pack-matmul-32 | linalg-block-pack-matmul{block-factors=32,32,32}
            | lay matrices out in blocks of 32 by 32
        pack-matmul-8x32x64 | linalg-block-pack-matmul{block-factors=8,32,64 rhs-transpose-inner-blocks=false}
            | lay matrices out in blocks, rows of the second contiguous
        """,
    ),
    *_scripts(
        "tensor", "packs", "lower-packs | lower-packs | write packing as padding, reshapes and transposes"
    ),
    *_tiles(
        "contraction",
        "contractions and convolutions",
        "k64 k128 k256 m32 n64 n128 m32-n32 m64-n64 m64-n64-k64 m32-n128-k128 m1-n16-k1 m1-n64-k1 "
        "m4-n8-k1 m4-n16-k1 m6-n16-k1 m8-n8-k1 m8-n16-k1 m8-n32-k1 m12-n32-k1 m16-n16-k1 m4-n64-k1 m8-n32-k8",
    ),
    *_tiles("fill", "fills", "r4-c8 r4-c16 r8-c8 r8-c16 r8-c32 r12-c32 r16-c16 r4-c64"),
    *_tiles(
        "elementwise",
        "elementwise operations",
        "r1-c8 r1-c16 r1-c64 r4-c16 r8-c8 r8-c16 r8-c32 r16-c16 r32-c32 r64-c64",
    ),
    *_tiles("reduction", "reductions", "r1-c16 r1-c64 r4-c16 r8-c16 r8-c32 r8-c64 r16-c16 r1 r4 r8 r16 c256"),
    *_scripts(
        "tensor",
        "reduction linalg-on-tensors",
        """
        reduce-in-8-lanes | partial-reduction 8 | reduce contiguous dimensions in 8 lanes with a sum each
        reduce-in-16-lanes | partial-reduction 16 | reduce contiguous dimensions in 16 lanes with a sum each
        reduce-in-64-lanes | partial-reduction 64 | reduce contiguous dimensions in 64 lanes with a sum each
        """,
    ),
    *[
        PassAction(
            f"fuse-{name}",
            "tensor",
            f"tile the last operation by {what} and compute what it reads inside the tiles",
            transform=f"fuse {sizes}",
            needs=("linalg-on-tensors",),
        )
        for name, sizes, what in (
            *((f"rows-{rows}", f"r{rows}", f"{rows} whole row(s)") for rows in (1, 4, 8, 32)),
            *(
                (f"{rows}x{columns}", f"r{rows} c{columns}", f"{rows} row(s) and {columns} columns")
                for rows, columns in ((1, 16), (1, 64), (8, 16), (8, 32), (8, 64), (32, 64), (64, 128))
            ),
        )
    ],
    *_scripts(
        "tensor",
        "generic",
        """
        interchange-reduction-first | interchange reduction-first
            | make reduction dimensions of linalg.generic the outer ones
        interchange-reduction-last | interchange reduction-last
            | make reduction dimensions of linalg.generic the inner ones
        interchange-contiguous-last | interchange contiguous-last
            | make the contiguous dimension of linalg.generic the innermost
        """,
    ),
    *_scripts(
        "tensor",
        "contraction linalg-on-tensors",
        """
        pad-contraction-m8-n16 | pad m8 n16 | pad matrix products with zeros to multiples of 8 and 16
        pad-contraction-m8-n32 | pad m8 n32 | pad matrix products with zeros to multiples of 8 and 32
        """,
    ),
    *_scripts(
        "tensor",
        "flat-convolution",
        """
        decompose-convolution | on-kind decompose convolution
            | turn convolutions with a window of one row into 1-D ones
        """,
    ),
    *_scripts(
        "tensor",
        "image-convolution linalg-on-tensors",
        """
        convolution-to-matmul | image-to-columns
            | gather the windows of convolutions and multiply matrices
        """,
    ),
    *_scripts(
        "tensor",
        "vectorisable",
        "vectorize | vectorise | make vectors of linalg operations that are small enough",
    ),
    *_passes(
        "tensor",
        "tensors loops",
        """
        hoist-subsets | loop-invariant-subset-hoisting,canonicalize,cse
            | move slices that loops read and write back out of them
        """,
    ),
]

_ONE_SHOT: Final = (
    "one-shot-bufferize{{bufferize-function-boundaries=true allow-return-allocs-from-loops=true "
    "analysis-heuristic={}}},canonicalize,cse,canonicalize"
)
# Hoisted first, as a buffer on the stack that is made anew in each step of a loop is never given back.
_TO_STACK: Final = (
    "buffer-loop-hoisting,"
    "promote-buffers-to-stack{{max-alloc-size-in-bytes={} max-rank-of-allocated-memref=4}}"
)

_BUFFERIZE = [
    *_passes(
        "bufferize",
        "tensors sharing-safe",
        """
        eliminate-empty-tensors | eliminate-empty-tensors
            | compute into the destination instead of a new tensor
        """,
    ),
    *_passes(
        "bufferize",
        "tensors no-packs",
        f"""
        bufferize | {_ONE_SHOT.format("bottom-up")}
            | turn tensors into buffers
        bufferize-top-down | {_ONE_SHOT.format("top-down")}
            | turn tensors into buffers, deciding from the top
        bufferize-from-terminators | {_ONE_SHOT.format("bottom-up-from-terminators")}
            | turn tensors into buffers, deciding from what functions and loops return
        """,
    ),
    *_function_passes(
        "bufferize",
        "buffers allocations",
        "hoist-buffers-out-of-loops | buffer-loop-hoisting | allocate outside of loops",
    ),
    *_function_passes(
        "bufferize",
        "buffers allocations no-passed-buffers",
        f"""
        stack-buffers-1k | {_TO_STACK.format(1 << 10)} | keep buffers of up to 1 KiB on the stack
        stack-buffers-64k | {_TO_STACK.format(1 << 16)} | keep buffers of up to 64 KiB on the stack
        """,
    ),
    *_passes(
        "bufferize",
        "buffers no-affine-in-scf",
        "fold-aliases | affine-fold-memref-alias-ops | access memory directly instead of through views",
    ),
]

_VECTORIZE_BY: Final = "affine-super-vectorize{{virtual-vector-size={} test-fastest-varying=0{}}}"

_AFFINE = [
    *_function_passes(
        "affine",
        "buffers linalg",
        "linalg-to-affine | convert-linalg-to-affine-loops | write linalg operations as affine loops",
    ),
    *_passes(
        "affine",
        "buffers scf-loops direct-subscripts",
        "raise-to-affine | raise-scf-to-affine | write scf loops with affine bounds as affine loops",
    ),
    *_function_passes(
        "affine",
        "affine-loops accesses",
        "affine-raise-accesses | affine-raise-from-memref | write loads and stores as affine ones",
    ),
    *_function_passes(
        "affine",
        "affine-loops scalar-accesses unit-steps plain-memory tiling-safe direct-subscripts",
        """
        affine-tile-8 | affine-loop-tile{tile-size=8} | tile affine loop nests by 8
        affine-tile-16 | affine-loop-tile{tile-size=16} | tile affine loop nests by 16
        affine-tile-32 | affine-loop-tile{tile-size=32} | tile affine loop nests by 32
        affine-tile-64 | affine-loop-tile{tile-size=64} | tile affine loop nests by 64
        affine-tile-128 | affine-loop-tile{tile-size=128} | tile affine loop nests by 128
        affine-tile-cache-256k | affine-loop-tile{cache-size=256} | tile loop nests for a cache of 256 KiB
        affine-tile-8x64x64 | affine-loop-tile{tile-sizes=8,64,64} | tile loop nests by 8, 64 and 64
        affine-tile-32x256x16 | affine-loop-tile{tile-sizes=32,256,16} | tile loop nests by 32, 256 and 16
        affine-tile-1x64x64 | affine-loop-tile{tile-sizes=1,64,64} | tile the second and third loop by 64
        affine-tile-32-separate | affine-loop-tile{tile-size=32 separate=true}
            | tile by 32 with loops of their own for the whole tiles
        """,
    ),
    *[
        PassAction(
            f"affine-unroll-{factor}",
            "affine",
            f"unroll innermost affine loops {factor} times",
            pipeline=f"func.func(affine-loop-unroll{{unroll-factor={factor}}})",
            needs=("affine-loops", "no-shifted-values", f"room-for-{factor}"),
        )
        for factor in (2, 4, 8)
    ],
    *[
        PassAction(
            f"affine-unroll-jam-{along}-{factor}",
            "affine",
            f"unroll a parallel loop over {along} around others {factor} times and join the bodies",
            transform=f"unroll-jam {along} {factor}",
            needs=("affine-parallel", f"room-for-{factor}"),
        )
        for along, factor in (("rows", 2), ("rows", 4), ("rows", 8), ("columns", 2), ("columns", 4))
    ],
    *[
        PassAction(
            f"affine-vectorize-{width}",
            "affine",
            f"vectorise contiguous parallel affine loops by {width}",
            pipeline=f"func.func({_VECTORIZE_BY.format(width, '')})",
            needs=(f"vectors-of-{width}", "plain-memory", "direct-subscripts"),
        )
        for width in (4, 8, 16, 32, 64)
    ],
    *[
        PassAction(
            f"affine-vectorize-{width}-reductions",
            "affine",
            f"vectorise contiguous affine loops by {width}, those that carry a sum among them",
            pipeline=f"func.func({_VECTORIZE_BY.format(width, ' vectorize-reductions=true')})",
            needs=(f"vectors-of-{width}", "plain-memory", "direct-subscripts", "contiguous-sums"),
        )
        for width in (8, 16)
    ],
    *_passes(
        "affine",
        "affine-loops scalar-accesses plain-memory fusion-safe direct-subscripts",
        """
        affine-fuse | affine-loop-fusion | fuse affine loop nests where it saves work or memory
        affine-fuse-maximal | affine-loop-fusion{maximal=true} | fuse affine loop nests wherever possible
        affine-fuse-producers | affine-loop-fusion{mode=producer} | fuse producers into their consumers
        """,
    ),
    *_function_passes(
        "affine",
        "affine-loops scalar-accesses plain-memory direct-subscripts",
        """
        affine-scalar-replacement | affine-scalrep | keep in registers what is stored and loaded again
        affine-parallelize | affine-parallelize | mark parallel affine loops
        """,
    ),
    *_function_passes(
        "affine",
        "affine-loops constant-trips no-carried-values",
        "affine-coalesce | affine-loop-coalescing | join the loops of a nest into one",
    ),
    *_function_passes(
        "affine",
        "affine-loops",
        """
        affine-licm | affine-loop-invariant-code-motion | move what does not change out of affine loops
        affine-normalize | affine-loop-normalize{promote-single-iter=true}
            | let affine loops count from 0 by 1
        affine-simplify | affine-simplify-structures | simplify affine maps and sets
        affine-simplify-bounds | affine-simplify-min-max | simplify minima and maxima in bounds
        affine-lower | lower-affine | write affine loops as scf loops
        """,
    ),
]

_SCF = [
    *_function_passes(
        "scf",
        "buffers linalg",
        """
        linalg-to-scf | convert-linalg-to-loops | write linalg operations as scf loops
        linalg-to-parallel | convert-linalg-to-parallel-loops
            | write linalg operations as parallel scf loops
        """,
    ),
    *_passes(
        "scf",
        "scf-loops room-for-2",
        "scf-peel | func.func(scf-for-loop-peeling),canonicalize | split the last partial step off loops",
    ),
    *_function_passes(
        "scf",
        "scf-loops",
        """
        scf-canonicalize | scf-for-loop-canonicalization
            | simplify minima and maxima by the bounds of loops
        """,
    ),
    *_function_passes(
        "scf",
        "scf-parallel",
        """
        scf-parallel-tile-16x16 | scf-parallel-loop-tiling{parallel-loop-tile-sizes=16,16}
            | tile parallel loops by 16 and 16
        scf-parallel-tile-8x64 | scf-parallel-loop-tiling{parallel-loop-tile-sizes=8,64}
            | tile parallel loops by 8 and 64
        scf-parallel-tile-64x64 | scf-parallel-loop-tiling{parallel-loop-tile-sizes=64,64}
            | tile parallel loops by 64 and 64
        scf-parallel-fuse | scf-parallel-loop-fusion | fuse neighbouring parallel loops
        scf-parallel-to-for | scf-parallel-for-to-nested-fors | write parallel loops as nests of loops
        """,
    ),
    *[
        PassAction(
            f"scf-unroll-{factor}",
            "scf",
            f"unroll innermost scf loops {factor} times",
            transform=f"unroll {factor}",
            needs=("scf-loops", "no-linalg", f"room-for-{factor}"),
        )
        for factor in (2, 4, 8)
    ],
]

_VECTOR = [
    *_scripts(
        "vector",
        "buffers transfers",
        "hoist-transfers | hoist transfers | keep in registers what loops read and write back each time",
    ),
    *_scripts(
        "vector",
        "transfers",
        """
        hoist-broadcasts | hoist broadcasts
            | carry the source of a broadcast through loops instead of the result
        flatten-transfers | patterns vector.flatten_vector_transfer_ops
            | read and write contiguous vectors as vectors of rank one
        drop-inner-unit-dimensions | patterns vector.drop_inner_most_unit_dims_from_xfer_ops
            | read and write without innermost dimensions of one element
        lower-transfers-1 | lower-transfer 1 | write transfers of rank one as loads and stores
        lower-transfers-2 | lower-transfer 2 | write transfers of up to rank two as loads and stores
        permute-transfers | patterns vector.transfer_permutation_patterns
            | read and write without permutation and permute the vectors
        """,
    ),
    *_passes(
        "vector",
        "transfers",
        """
        transfers-to-scf | convert-vector-to-scf | write transfers of higher rank as loops
        transfers-to-scf-unrolled | convert-vector-to-scf{full-unroll=true}
            | write transfers of higher rank as many of rank one
        """,
    ),
    *_scripts(
        "vector",
        "multi-reductions",
        """
        reductions-to-contractions | patterns vector.reduction_to_contract vector.sink_ops
            | write sums of products as vector contractions
        lower-reductions-inner-parallel | lower-multi-reduction innerparallel
            | lower reductions to element-wise operations on vectors
        lower-reductions-inner-reduction | lower-multi-reduction innerreduction
            | lower reductions to sums across one vector
        """,
    ),
    *_scripts(
        "vector",
        "contracts",
        """
        lower-contractions-outer | lower-contraction outerproduct | lower contractions to outer products
        lower-contractions-dot | lower-contraction dot | lower contractions to sums of products
        lower-contractions-parallel | lower-contraction parallelarith
            | lower contractions to element-wise operations
        """,
    ),
    *_scripts(
        "vector",
        "transposes",
        """
        lower-transposes-eltwise | lower-transpose eltwise | lower transposes to single elements
        lower-transposes-shuffle-1d | lower-transpose shuffle_1d
            | lower transposes to one shuffle of all elements
        lower-transposes-shuffle-16x16 | lower-transpose shuffle_16x16
            | lower transposes of 16 by 16 to shuffles in steps
        """,
    ),
    *_scripts(
        "vector",
        "vectors",
        """
        drop-unit-dimensions
            | patterns vector.cast_away_vector_leading_one_dim vector.drop_unit_dims_with_shape_cast
            | drop dimensions of one element from vectors
        sink-vector-operations | patterns vector.sink_ops vector.sink_mem_ops
            | move broadcasts and transposes behind arithmetic
        lower-vector-shapes | patterns vector.lower_broadcast vector.lower_shape_cast
            | lower broadcasts and reshapes of vectors to rank one
        """,
    ),
]

_ANY = [
    *_passes(
        "any",
        "",
        """
        canonicalize | canonicalize | simplify by the rules of each operation
        cse | cse | compute equal values once
        licm | loop-invariant-code-motion | move what does not change out of loops
        sccp | sccp | propagate constants through control flow
        integer-ranges | int-range-optimizations | simplify by the ranges of integers
        remove-dead-values | remove-dead-values | remove values that nothing uses
        """,
    ),
    *_passes(
        "any",
        "multiply-adds",
        "fuse-multiply-adds | math-uplift-to-fma | write products that are added as fused multiply-adds",
    ),
    *_passes(
        "any",
        "mathematics",
        "expand-mathematics | math-expand-ops | write some functions by simpler ones",
    ),
    *_scripts(
        "any",
        "approximable",
        """
        approximate-math | approximate
            | write exp, tanh, erf and log of f32 as polynomials, which can be vectorised
        """,
    ),
]

ACTIONS: Final[tuple[PassAction, ...]] = (*_FINISH, *_TENSOR, *_BUFFERIZE, *_AFFINE, *_SCF, *_VECTOR, *_ANY)
"""Every action; the index is the number that agents choose. ``finish`` is 0."""

ACTION_INDEX: Final[dict[str, int]] = {action.name: index for index, action in enumerate(ACTIONS)}
"""Index of each action by name."""
