"""What is true of a module, and which actions that allows.

``facts_of`` walks a module once. ``mask_of`` says for every action of the catalogue whether it is offered:
it must have something to work on, stay within the size limit, and be none of the combinations known to give
wrong code or to crash a pass. Runs in the pass worker; takes well under a millisecond on a module of a
hundred operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch_mlir import ir

from solgym.envs.mlir_passes.affine_loops import ACCESSES, AffineLoop, analyse, may_tile
from solgym.envs.mlir_passes.catalogue import ACTIONS, PassAction
from solgym.envs.mlir_passes.structured import IMAGE_CONVOLUTIONS, classify, is_linalg
from solgym.envs.mlir_passes.transforms import is_vectorisable

__all__ = ["MAX_OPERATIONS", "PRECONDITIONS", "Facts", "facts_of", "level_of", "mask_of", "refusal"]

MAX_OPERATIONS: Final = 1000
"""A module with more operations than this takes no further action but ``finish``."""

MAX_VECTORISED_POINTS: Final = 1 << 17
"""Largest sum of the iteration spaces that one action makes vectors of."""

LINALG_WEIGHT: Final = 25
"""What a linalg operation counts as where code is to be copied: it becomes a nest of loops."""

_VIEWS: Final = ("memref.subview", "memref.reinterpret_cast", "memref.collapse_shape", "memref.expand_shape")
_LANES: Final = (4, 8, 16, 32, 64)
_MATHEMATICS: Final = frozenset({"math.exp", "math.exp2", "math.tanh", "math.erf", "math.log"})


@dataclass(frozen=True)
class Facts:
    """What one walk over a module tells.

    Attributes:
        operations: number of operations.
        names: how often each operation occurs, by name.
        has_tensors: whether tensors remain.
        kinds: number of linalg operations of each class.
        flat_convolutions: number of named convolutions of one row or one column.
        linalg: number of linalg operations.
        generics: number of ``linalg.generic`` operations.
        vectorisable: number of linalg operations that are static and small enough to become vectors.
        vectorised_points: sum of their iteration spaces.
        affine_loops: number of affine loops.
        innermost_operations: operations inside innermost loops, with linalg operations by their weight.
        has_unit_steps: whether all affine loops count by one.
        may_tile: whether the affine loop nests may plainly be tiled.
        has_constant_trips: whether all affine loops run a constant number of times.
        carries_values: whether an affine loop carries values from step to step.
        strides_with_values: whether an affine loop that carries values runs over memory with a stride.
        shifts_values: whether a loop hands a carried value on unchanged, as in ``older = old``.
        lanes: vector lengths by which affine loops may be vectorised.
        parallel_loops: number of affine loops around others that are plainly parallel.
        overwrites: whether a loop nest stores to memory that another one has read before.
        shares_destination: whether the elimination of empty tensors could put two values into one buffer.
        has_vectors: whether there are vectors.
        passes_buffers: whether an scf loop carries buffers from step to step.
    """

    operations: int
    names: Mapping[str, int]
    has_tensors: bool
    kinds: Mapping[str, int]
    flat_convolutions: int
    linalg: int
    generics: int
    vectorisable: int
    vectorised_points: int
    affine_loops: int
    innermost_operations: int
    has_unit_steps: bool
    may_tile: bool
    has_constant_trips: bool
    carries_values: bool
    strides_with_values: bool
    shifts_values: bool
    lanes: frozenset[int]
    parallel_loops: int
    overwrites: bool
    shares_destination: bool
    has_vectors: bool
    passes_buffers: bool

    def count(self, *names: str) -> int:
        """How many operations of these names there are."""
        return sum(self.names.get(name, 0) for name in names)


def facts_of(module: ir.Operation) -> Facts:
    """Walk a module and say what is true of it."""
    names: Counter[str] = Counter()
    linalg: list[ir.Operation] = []
    loops: list[ir.Operation] = []
    accesses: list[ir.Operation] = []
    others: list[ir.Operation] = []
    unrollable: list[ir.Operation] = []
    destinations: list[ir.Operation] = []
    sources: list[ir.Operation] = []
    functions: list[ir.Operation] = []

    def look(operation: ir.Operation) -> ir.WalkResult:
        name = operation.name
        names[name] += 1
        if name.startswith(("arith.", "math.")):
            return ir.WalkResult.ADVANCE
        if name == "affine.for":
            loops.append(operation)
        elif name == "scf.for":
            unrollable.append(operation)
        elif name in ACCESSES:
            accesses.append(operation)
        elif is_linalg(name):
            linalg.append(operation)
            others.append(operation)
        elif name == "bufferization.materialize_in_destination":
            destinations.append(operation)
        elif name in ("bufferization.to_tensor", "tensor.empty"):
            sources.append(operation)
        elif name == "func.func":
            functions.append(operation)
        elif name.startswith(("memref.", "func.call", "bufferization.")):
            others.append(operation)
        return ir.WalkResult.ADVANCE

    module.walk(look, ir.WalkOrder.PRE_ORDER)
    structured = [found for operation in linalg if (found := classify(operation)) is not None]
    small = [found for found in structured if is_vectorisable(found)]
    has_tensors = any(name.startswith("tensor.") for name in names) or any(
        name in names
        for name in ("bufferization.to_tensor", "bufferization.alloc_tensor", "bufferization.to_buffer")
    )
    has_tensors = (
        has_tensors or any(found.on_tensors for found in structured) or any(map(_takes_tensors, functions))
    )
    nest = analyse(loops, accesses, others) if loops else []
    return Facts(
        operations=sum(names.values()),
        names=names,
        has_tensors=has_tensors,
        kinds=Counter(found.kind for found in structured),
        flat_convolutions=sum(
            found.is_flat and found.operation.name != "linalg.generic" for found in structured
        ),
        linalg=len(linalg),
        generics=names["linalg.generic"],
        vectorisable=len(small),
        vectorised_points=sum(found.points for found in small),
        affine_loops=len(loops),
        innermost_operations=_innermost_operations(
            [*(loop.operation for loop in nest if loop.is_innermost)], unrollable
        ),
        has_unit_steps=all(loop.step == 1 for loop in nest),
        may_tile=may_tile(nest),
        has_constant_trips=all(loop.trips > 0 for loop in nest),
        carries_values=any(len(loop.operation.results) > 0 for loop in nest),
        strides_with_values=any(loop.is_strided and len(loop.operation.results) > 0 for loop in nest),
        shifts_values=any(map(_shifts_values, (*loops, *unrollable))),
        lanes=frozenset(width for width in _LANES if _may_vectorise(nest, width)),
        parallel_loops=sum(loop.is_parallel and not loop.is_innermost for loop in nest),
        overwrites=_overwrites(accesses) if loops else False,
        shares_destination=_shares_destination(destinations, sources) if destinations else False,
        has_vectors=any(name.startswith("vector.") for name in names),
        passes_buffers=any(
            isinstance(result.type, ir.MemRefType) for loop in unrollable for result in loop.results
        ),
    )


def _takes_tensors(function: ir.Operation) -> bool:
    return "tensor<" in str(function.attributes["function_type"])


def _innermost_operations(affine: list[ir.Operation], scf: list[ir.Operation]) -> int:
    """Operations that unrolling the innermost loops would copy."""
    total = 0
    for loop in (*affine, *scf):
        names = [inner.operation.name for inner in loop.regions[0].blocks[0].operations]
        if "scf.for" not in names and "affine.for" not in names:
            total += len(names) + LINALG_WEIGHT * sum(map(is_linalg, names))
    return total


def _shifts_values(loop: ir.Operation) -> bool:
    """Whether a carried value is one of the values carried so far.

    Upstream's unrolling replaces them one after the other instead of all at once.
    """
    if not len(loop.results):
        return False
    block = loop.regions[0].blocks[0]
    arguments = list(block.arguments)
    *_, last = block.operations
    return any(operand in arguments for operand in last.operation.operands)


def _may_vectorise(nest: list[AffineLoop], width: int) -> bool:
    """Whether every contiguous loop counts by one, a constant number of times that the width divides.

    Upstream's super-vectorisation takes for granted that the width divides the trip count, that steps are
    one, and that a counter in the last subscript is neither scaled nor negated.
    """
    contiguous = [loop for loop in nest if loop.in_last and not loop.in_others]
    return bool(contiguous) and all(
        loop.step == 1
        and loop.trips > 0
        and loop.trips % width == 0
        and not (loop.is_strided and not len(loop.operation.results))
        for loop in contiguous
    )


def _overwrites(accesses: list[ir.Operation]) -> bool:
    """Whether memory is read in one loop and stored to in a later one: fusing could swap the two."""
    read_in: dict[ir.Value, set[ir.Block]] = {}
    for access in accesses:
        name = access.name
        if name.endswith(("store", "write")):
            memory = access.operands[1]
            if read_in.get(memory, set()) - {access.block}:
                return True
        else:
            read_in.setdefault(access.operands[0], set()).add(access.block)
    return False


def _shares_destination(destinations: list[ir.Operation], sources: list[ir.Operation]) -> bool:
    """Whether eliminating empty tensors is known to go wrong.

    It does where an argument is both read as a tensor and the destination of a new one, as reads and writes
    are then not seen to touch the same memory, and where one empty tensor started two results for two
    destinations.
    """
    final = [operation for operation in destinations if not len(operation.results)]
    read = {source.operands[0] for source in sources if source.name == "bufferization.to_tensor"}
    started: list[ir.Value] = []
    for operation in final:
        origin = _origin(operation.operands[0])
        start = _defining(origin)
        if start is not None and start.name != "bufferization.to_tensor":
            if operation.operands[1] in read or origin in started:
                return True
            started.append(origin)
    return False


def _defining(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return owner.operation if isinstance(owner, ir.Operation | ir.OpView) else None


def _origin(value: ir.Value) -> ir.Value:
    """The tensor that a tensor was written into, step by step from one destination to the one before."""
    for _ in range(64):
        operation = _defining(value)
        if operation is None:
            return value
        name = operation.name
        if name == "scf.for":
            value = operation.operands[3 + ir.OpResult(value).result_number]
        elif is_linalg(name):
            value = operation.operands[
                len(operation.operands) - len(operation.results) + ir.OpResult(value).result_number
            ]
        elif name in (
            "tensor.insert_slice",
            "vector.transfer_write",
            "bufferization.materialize_in_destination",
        ):
            value = operation.operands[1]
        elif name in ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"):
            value = operation.operands[0]
        else:
            return value
    return value


def level_of(facts: Facts) -> str:
    """The highest dialect level that remains: tensor, linalg, affine, scf, cf or llvm."""
    if facts.has_tensors:
        return "tensor"
    if facts.linalg:
        return "linalg"
    if facts.affine_loops or facts.count("affine.parallel"):
        return "affine"
    prefixes = {name.partition(".")[0] for name in facts.names}
    if "llvm" in prefixes:
        return "llvm"
    if "cf" in prefixes:
        return "cf"
    return "scf"


def _room_for(factor: int) -> Callable[[Facts], bool]:
    return lambda facts: facts.operations + (factor - 1) * facts.innermost_operations <= MAX_OPERATIONS


def _lanes_of(width: int) -> Callable[[Facts], bool]:
    return lambda facts: width in facts.lanes and not facts.has_vectors


PRECONDITIONS: Final[dict[str, tuple[Callable[[Facts], bool], str]]] = {
    "tensors": (lambda facts: facts.has_tensors, "there are no tensors"),
    "buffers": (lambda facts: not facts.has_tensors, "there are tensors; bufferize first"),
    "linalg": (lambda facts: facts.linalg > 0, "there is no linalg operation"),
    "no-linalg": (
        lambda facts: facts.linalg == 0,
        "there are linalg operations, each of which becomes a nest of loops; vectorize or lower them first",
    ),
    "linalg-on-tensors": (
        lambda facts: facts.linalg > 0 and facts.has_tensors,
        "there is no linalg operation on tensors",
    ),
    "generic": (lambda facts: facts.generics > 0, "there is no linalg.generic; generalize first"),
    "matmul-on-tensors": (
        lambda facts: (
            facts.has_tensors
            and facts.count(
                "linalg.matmul", "linalg.batch_matmul", "linalg.matmul_transpose_b", "linalg.generic"
            )
            > 0
        ),
        "there is no matrix product on tensors",
    ),
    "packs": (
        lambda facts: facts.count("linalg.pack", "linalg.unpack") > 0,
        "nothing is packed",
    ),
    "no-packs": (
        lambda facts: facts.count("linalg.pack", "linalg.unpack") == 0,
        "there is packing, which cannot be lowered on buffers; lower-packs first",
    ),
    "contraction": (
        lambda facts: facts.kinds.get("contraction", 0) + facts.kinds.get("convolution", 0) > 0,
        "there is no contraction and no convolution",
    ),
    "flat-convolution": (
        lambda facts: facts.flat_convolutions > 0,
        "there is no named convolution whose window and output have one row; tile first",
    ),
    "image-convolution": (
        lambda facts: facts.count(*IMAGE_CONVOLUTIONS) > 0,
        "there is no named convolution of images with several channels",
    ),
    "fill": (lambda facts: facts.kinds.get("fill", 0) > 0, "there is no fill"),
    "elementwise": (lambda facts: facts.kinds.get("elementwise", 0) > 0, "there is no elementwise operation"),
    "reduction": (lambda facts: facts.kinds.get("reduction", 0) > 0, "there is no reduction"),
    "vectorisable": (
        lambda facts: 0 < facts.vectorised_points <= MAX_VECTORISED_POINTS,
        "no linalg operation is small enough for vectors, or they are too many; tile first",
    ),
    "loops": (
        lambda facts: facts.affine_loops + facts.count("scf.for", "scf.forall", "scf.parallel") > 0,
        "there is no loop",
    ),
    "sharing-safe": (
        lambda facts: facts.count("tensor.empty") > 0 and not facts.shares_destination,
        "there is no empty tensor, or two values could end up in one buffer",
    ),
    "allocations": (lambda facts: facts.count("memref.alloc") > 0, "nothing is allocated"),
    "no-passed-buffers": (
        lambda facts: not facts.passes_buffers,
        "a loop hands a new buffer to its next step, which would grow the stack without end",
    ),
    "scf-loops": (lambda facts: facts.count("scf.for") > 0, "there is no scf loop"),
    "scf-parallel": (lambda facts: facts.count("scf.parallel") > 0, "there is no parallel scf loop"),
    "affine-loops": (lambda facts: facts.affine_loops > 0, "there is no affine loop"),
    "affine-parallel": (
        lambda facts: facts.parallel_loops > 0,
        "no affine loop around another has plainly independent steps",
    ),
    "accesses": (
        lambda facts: facts.count("memref.load", "memref.store") > 0,
        "there is no load or store of memref",
    ),
    "scalar-accesses": (
        lambda facts: not facts.has_vectors,
        "there are vectors, whose accesses this pass does not see",
    ),
    "no-affine-in-scf": (
        lambda facts: not (facts.count("affine.load", "affine.store") and facts.count("scf.for")),
        "there are affine accesses inside scf loops, which cannot take other subscripts; affine-lower first",
    ),
    "plain-memory": (
        lambda facts: facts.count(*_VIEWS) == 0,
        "buffers are accessed through views, which this pass takes for other memory; fold-aliases first",
    ),
    "constant-trips": (
        lambda facts: facts.has_constant_trips,
        "a loop does not run a constant number of times, for which this pass is known to go wrong",
    ),
    "no-carried-values": (
        lambda facts: not facts.carries_values,
        "a loop carries values from step to step, for which this pass is known to go wrong",
    ),
    "contiguous-sums": (
        lambda facts: not facts.strides_with_values,
        "a loop that carries values runs over memory with a stride, which becomes wrong vectors",
    ),
    "direct-subscripts": (
        lambda facts: facts.count("affine.apply", "affine.delinearize_index", "affine.linearize_index") == 0,
        "subscripts are computed beforehand, which this pass is known to misread",
    ),
    "no-shifted-values": (
        lambda facts: not facts.shifts_values,
        "a loop hands a carried value on to the next step, which unrolling is known to get wrong",
    ),
    "unit-steps": (lambda facts: facts.has_unit_steps, "a loop counts by more than one"),
    "tiling-safe": (
        lambda facts: facts.may_tile,
        "more than one loop of a nest has steps that may depend on each other",
    ),
    "fusion-safe": (
        lambda facts: facts.affine_loops > 1 and not facts.overwrites,
        "there is one loop at most, or a loop stores to what another one has read before",
    ),
    "vectors": (lambda facts: facts.has_vectors, "there are no vectors"),
    "transfers": (
        lambda facts: facts.count("vector.transfer_read", "vector.transfer_write") > 0,
        "there is no vector transfer",
    ),
    "contracts": (lambda facts: facts.count("vector.contract") > 0, "there is no vector contraction"),
    "multi-reductions": (
        lambda facts: facts.count("vector.multi_reduction") > 0,
        "there is no reduction of vectors",
    ),
    "transposes": (lambda facts: facts.count("vector.transpose") > 0, "there is no vector transpose"),
    "multiply-adds": (
        lambda facts: facts.count("arith.mulf") > 0 and facts.count("arith.addf") > 0,
        "there is no product that is added",
    ),
    "mathematics": (
        lambda facts: any(name.startswith("math.") for name in facts.names),
        "there is no mathematical function",
    ),
    "approximable": (
        lambda facts: any(name in facts.names for name in _MATHEMATICS),
        "there is no exp, tanh, erf or log",
    ),
    **{
        f"room-for-{factor}": (
            _room_for(factor),
            f"with {factor} copies of its innermost loops the module exceeds {MAX_OPERATIONS} operations",
        )
        for factor in (2, 4, 8)
    },
    **{
        f"vectors-of-{width}": (
            _lanes_of(width),
            f"there are vectors, or a contiguous loop does not count by one up to a multiple of {width}",
        )
        for width in _LANES
    },
}
"""By name: whether it holds, and what to say where it does not."""


def refusal(action: PassAction, facts: Facts) -> str | None:
    """Why an action is not offered on a module of these facts, in a sentence; None if it is."""
    if action.name == "finish":
        return None
    if facts.operations > MAX_OPERATIONS:
        return (
            f"the module has {facts.operations} operations, more than {MAX_OPERATIONS}; only finish is left"
        )
    for need in action.needs:
        holds, reason = PRECONDITIONS[need]
        if not holds(facts):
            return reason
    return None


def mask_of(facts: Facts) -> NDArray[np.bool_]:
    """Which actions are offered, of shape (number of actions,)."""
    if facts.operations > MAX_OPERATIONS:
        return np.array([action.name == "finish" for action in ACTIONS])
    fails = np.array([not check(facts) for check, _ in PRECONDITIONS.values()])
    refused: NDArray[np.bool_] = (_NEEDS & fails).any(axis=1)
    return ~refused


_NEEDS: Final = np.array([[name in action.needs for name in PRECONDITIONS] for action in ACTIONS])
"""Of shape (number of actions, number of preconditions): which action has which."""
