"""Actions made of transform-dialect scripts: tiling, fusing, vectorising and lowering linalg and vectors.

MLIR's transform dialect wants one tile size for each dimension of the operation at hand. An action of the
catalogue must serve any program, so a generator here looks at the linalg operations of the module, sorts them
(``structured.classify``), gives each the sizes that its class asks for, and runs the script that says so.
Where a tile does not divide an extent, the ragged end is split off first, so that every shape stays static
and can be vectorised. Equal modules and actions give equal scripts. Runs in the pass worker.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from torch_mlir import ir
from torch_mlir.dialects.transform import interpreter

from solgym.envs.mlir_passes.affine_loops import affine_loops
from solgym.envs.mlir_passes.finishing import first_line, lower_packs, run_passes
from solgym.envs.mlir_passes.structured import IMAGE_CONVOLUTIONS, LinalgOperation, linalg_operations

__all__ = [
    "GENERATORS",
    "MAX_CONTRACTION_POINTS",
    "MAX_ELEMENTWISE_POINTS",
    "PassFailed",
    "is_vectorisable",
    "run_transform",
]

MAX_CONTRACTION_POINTS: Final = 1 << 14
"""Largest iteration space of a contraction that is vectorised: more would be unrolled into too much code."""

MAX_ELEMENTWISE_POINTS: Final = 1 << 12
"""The same of any other linalg operation."""

_TAG: Final = "solgym_target"
_ANY: Final = "!transform.any_op"


class PassFailed(Exception):
    """An action could not be applied; the module is in no particular state."""


def run_transform(module: ir.Operation, call: str) -> None:
    """Run a generator on a module in place.

    Args:
        module: the module.
        call: name of the generator and its arguments, separated by blanks.

    Raises:
        PassFailed: the transformation failed.
    """
    name, *arguments = call.split()
    GENERATORS[name](module, *arguments)


# running scripts


def _interpret(module: ir.Operation, lines: Sequence[str]) -> None:
    body = "\n    ".join(lines)
    text = (
        "module attributes {transform.with_named_sequence} {\n"
        f"  transform.named_sequence @__transform_main(%root: {_ANY}) {{\n"
        f"    {body}\n    transform.yield\n  }}\n}}"
    )
    with module.context, ir.Location.unknown():
        script = ir.Module.parse(text)
        try:
            interpreter.apply_named_sequence(module, script.body.operations[0], script)
        except (ir.MLIRError, RuntimeError, ValueError) as error:
            raise PassFailed(first_line(error)) from error


def _tidy(module: ir.Operation, passes: str) -> None:
    try:
        run_passes(module, passes)
    except ir.MLIRError as error:
        raise PassFailed(first_line(error)) from error


def _tag(operations: Iterable[ir.Operation]) -> None:
    for number, operation in enumerate(operations):
        with operation.context:
            operation.attributes[_TAG] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def _remove_tags(module: ir.Operation) -> None:
    def visit(operation: ir.Operation) -> ir.WalkResult:
        if _TAG in operation.attributes:
            del operation.attributes[_TAG]
        return ir.WalkResult.ADVANCE

    module.walk(visit)


def _match(value: str, number: int) -> str:
    tag = f"{_TAG} = {number} : i64"
    return f"%{value} = transform.structured.match attributes {{{tag}}} in %root : ({_ANY}) -> {_ANY}"


def _for_each(
    module: ir.Operation, targets: Sequence[ir.Operation], lines: Callable[[int], list[str]], tidy: str = ""
) -> None:
    """Tag the targets, run one script with the lines for each of them, and remove the tags."""
    if not targets:
        return
    _tag(targets)
    script: list[str] = []
    for number in range(len(targets)):
        script += lines(number)
    _interpret(module, script)
    _remove_tags(module)
    if tidy:
        _tidy(module, tidy)


# tiling


def _numbers(arguments: Iterable[str]) -> dict[str, int]:
    """``m8 n32`` as a dictionary."""
    sizes: dict[str, int] = {}
    for argument in arguments:
        match = re.fullmatch(r"([a-z]+)([0-9]+)", argument)
        assert match is not None, argument
        sizes[match[1]] = int(match[2])
    return sizes


def _contraction_sizes(target: LinalgOperation, sizes: Mapping[str, int]) -> list[int]:
    """Sizes of m, n and k (the last reduction); a tile that names all three takes one step of the others."""
    k = target.reduction[-1] if target.reduction else -1
    given = {target.m: sizes.get("m", 0), target.n: sizes.get("n", 0), k: sizes.get("k", 0)}
    others = 1 if len(sizes) == 3 else 0
    return [given.get(dimension, others) for dimension in range(len(target.extents))]


def _grid_sizes(target: LinalgOperation, sizes: Mapping[str, int]) -> list[int]:
    """Sizes of columns (the contiguous parallel dimension), rows (the one before) and 1 elsewhere."""
    result = [0] * len(target.extents)
    for dimension in target.parallel[:-2]:
        result[dimension] = 1
    if len(target.parallel) > 1:
        result[target.parallel[-2]] = sizes.get("r", 0)
    if target.parallel:
        result[target.n] = sizes.get("c", 0)
    return result


def _reduction_sizes(target: LinalgOperation, sizes: Mapping[str, int]) -> list[int]:
    """Columns along the contiguous dimension of the largest input, rows along another, 1 elsewhere."""
    result = [1] * len(target.extents)
    others = [d for d in (*target.reduction, *target.parallel) if d != target.contiguous]
    result[target.contiguous] = sizes.get("c", 0)
    if others:
        result[others[-1]] = sizes.get("r", 0)
    return result


_SIZES: Final[dict[str, tuple[frozenset[str], Callable[[LinalgOperation, Mapping[str, int]], list[int]]]]] = {
    "contraction": (frozenset({"contraction", "convolution"}), _contraction_sizes),
    "fill": (frozenset({"fill"}), _grid_sizes),
    "elementwise": (frozenset({"elementwise"}), _grid_sizes),
    "reduction": (frozenset({"reduction"}), _reduction_sizes),
}


def _effective(target: LinalgOperation, sizes: Sequence[int]) -> list[int]:
    """Sizes without those that would make a loop of one step, or tile an unknown extent."""
    return [
        0 if size == 0 or extent < 0 or size >= extent else size
        for size, extent in zip(sizes, target.extents, strict=True)
    ]


def _split_ragged_ends(
    module: ir.Operation, targets: Sequence[LinalgOperation], sizes: Callable[[LinalgOperation], list[int]]
) -> None:
    """Split every target where a tile size does not divide an extent, so that all tiles are whole."""

    def cuts(target: LinalgOperation) -> dict[int, int]:
        steps = _effective(target, sizes(target))
        return {
            dimension: extent - extent % step
            for dimension, (extent, step) in enumerate(zip(target.extents, steps, strict=True))
            if step and extent % step
        }

    ragged = [target for target in targets if cuts(target)]

    def lines(number: int) -> list[str]:
        script: list[str] = []
        for dimension, after in cuts(ragged[number]).items():
            # Matched anew for each dimension, as all pieces so far have the tag and are to be split.
            name = f"{number}_{dimension}"
            script += [
                _match(f"o{name}", number),
                f"%s{name} = transform.structured.split %o{name} after {after} "
                f"{{dimension = {dimension} : i64}} : {_ANY}",
            ]
        return script

    _for_each(module, [target.operation for target in ragged], lines)


def _tile(module: ir.Operation, group: str, *arguments: str) -> None:
    kinds, rule = _SIZES[group]
    sizes = _numbers(arguments)

    def of(target: LinalgOperation) -> list[int]:
        return rule(target, sizes)

    def chosen() -> list[LinalgOperation]:
        found = [target for target in linalg_operations(module) if target.kind in kinds]
        return [target for target in found if any(_effective(target, of(target)))]

    _split_ragged_ends(module, chosen(), of)
    targets = chosen()

    def lines(number: int) -> list[str]:
        steps = _effective(targets[number], of(targets[number]))
        loops = sum(1 for step in steps if step)
        results = ", ".join([_ANY] * (loops + 1))
        return [
            _match(f"o{number}", number),
            f"%t{number}, %l{number}:{loops} = transform.structured.tile_using_for %o{number} "
            f"tile_sizes {steps} : ({_ANY}) -> ({results})",
        ]

    _for_each(module, [target.operation for target in targets], lines, "canonicalize")


def _partial_reduction(module: ir.Operation, lanes: str) -> None:
    """Reduce into lanes: the contiguous reduction dimension in steps, each lane with a sum of its own."""
    width = int(lanes)
    targets = [
        target
        for target in linalg_operations(module)
        if target.kind == "reduction"
        and target.on_tensors
        and len(target.operation.results) == 1
        and target.contiguous in target.reduction
        and target.extents[target.contiguous] > width
        and target.extents[target.contiguous] % width == 0
    ]

    def lines(number: int) -> list[str]:
        target = targets[number]
        steps = [width if d == target.contiguous else 0 for d in range(len(target.extents))]
        return [
            _match(f"o{number}", number),
            f"%a{number}, %b{number}, %c{number}, %d{number} = transform.structured.tile_reduction_using_for "
            f"%o{number} by tile_sizes = {steps} : ({_ANY}) -> ({_ANY}, {_ANY}, {_ANY}, {_ANY})",
        ]

    _for_each(module, [target.operation for target in targets], lines, "canonicalize")


def _is_last(target: LinalgOperation) -> bool:
    """Whether no linalg operation reads what this one computes."""
    return not any(
        use.owner.operation.name.startswith("linalg.")
        for result in target.operation.results
        for use in result.uses
    )


def _fuse(module: ir.Operation, *arguments: str) -> None:
    """Tile the last operation of each chain along parallel dimensions, its producers inside the tiles."""
    sizes = _numbers(arguments)

    def of(target: LinalgOperation) -> list[int]:
        return _grid_sizes(target, sizes)

    def chosen() -> list[LinalgOperation]:
        return [
            target
            for target in linalg_operations(module)
            if target.on_tensors
            and target.kind != "fill"
            and _is_last(target)
            and any(_effective(target, of(target)))
        ]

    _split_ragged_ends(module, chosen(), of)
    targets = chosen()

    def lines(number: int) -> list[str]:
        steps = _effective(targets[number], of(targets[number]))
        loops = sum(1 for step in steps if step)
        results = ", ".join([_ANY] * (loops + 1))
        return [
            _match(f"o{number}", number),
            f"%t{number}, %l{number}:{loops} = transform.structured.fuse %o{number} tile_sizes {steps} "
            f"{{apply_cleanup}} : ({_ANY}) -> ({results})",
        ]

    _for_each(module, [target.operation for target in targets], lines, "canonicalize,cse")


# other transformations of linalg operations


def _interchange(module: ir.Operation, order: str) -> None:
    """Reorder the dimensions of generic operations."""
    targets = [target for target in linalg_operations(module) if target.operation.name == "linalg.generic"]

    def permuted(target: LinalgOperation) -> list[int]:
        if order == "reduction-first":
            return [*target.reduction, *target.parallel]
        if order == "reduction-last":
            return [*target.parallel, *target.reduction]
        # contiguous-last: what the output, or a reduced input, is contiguous along goes innermost.
        last = target.n if target.n >= 0 else target.contiguous
        return [*(d for d in range(len(target.extents)) if d != last), last]

    changed = [target for target in targets if permuted(target) != list(range(len(target.extents)))]

    def lines(number: int) -> list[str]:
        return [
            _match(f"o{number}", number),
            f"%i{number} = transform.structured.interchange %o{number} "
            f"iterator_interchange = {permuted(changed[number])} : ({_ANY}) -> {_ANY}",
        ]

    _for_each(module, [target.operation for target in changed], lines)


def is_vectorisable(target: LinalgOperation) -> bool:
    """Whether an operation has a static iteration space small enough to become vectors."""
    limit = (
        MAX_CONTRACTION_POINTS if target.kind in ("contraction", "convolution") else MAX_ELEMENTWISE_POINTS
    )
    return 0 < target.points <= limit


def _vectorise(module: ir.Operation) -> None:
    """Make vectors of every linalg operation that allows it; one that does not stays as it is."""
    targets = [target.operation for target in linalg_operations(module) if is_vectorisable(target)]
    _tag(targets)
    for number in range(len(targets)):
        try:
            _interpret(
                module,
                [
                    _match("o", number),
                    f"transform.structured.vectorize %o {{create_named_contraction}} : {_ANY}",
                ],
            )
        except PassFailed:
            continue
    _remove_tags(module)
    _tidy(module, "canonicalize,cse")


def _on_kind(module: ir.Operation, operation: str, *kinds: str) -> None:
    """Run one transform operation with a single result on every linalg operation of the given kinds."""
    targets = [target.operation for target in linalg_operations(module) if target.kind in kinds]
    _tag(targets)
    failure: PassFailed | None = None
    succeeded = 0
    for number in range(len(targets)):
        try:
            _interpret(
                module,
                [_match("o", number), f"%r = transform.structured.{operation} %o : ({_ANY}) -> {_ANY}"],
            )
            succeeded += 1
        except PassFailed as error:
            failure = error
    _remove_tags(module)
    if failure is not None and not succeeded:
        raise failure


def _image_to_columns(module: ir.Operation) -> None:
    targets = [
        target.operation
        for target in linalg_operations(module)
        if target.operation.name in IMAGE_CONVOLUTIONS and target.on_tensors
    ]
    _for_each(
        module,
        targets,
        lambda number: [
            _match(f"o{number}", number),
            f"%a{number}, %b{number} = transform.structured.convert_conv2d_to_img2col %o{number} "
            f": ({_ANY}) -> ({_ANY}, {_ANY})",
        ],
        "canonicalize,cse",
    )


def _pad(module: ir.Operation, *arguments: str) -> None:
    """Pad matrix products with zeros to multiples of m, n and k."""
    sizes = _numbers(arguments)
    targets = [
        target
        for target in linalg_operations(module)
        if target.kind == "contraction" and target.on_tensors and _adds_products(target.operation)
    ]

    def multiples(target: LinalgOperation) -> dict[int, int]:
        wanted = dict(enumerate(_contraction_sizes(target, sizes)))
        return {d: size for d, size in wanted.items() if size > 1 and target.extents[d] % size}

    targets = [target for target in targets if multiples(target)]

    def lines(number: int) -> list[str]:
        target = targets[number]
        element = ir.RankedTensorType(target.operation.results[0].type).element_type
        zeros = ", ".join([f"0.0 : {element}"] * len(target.operation.operands))
        wanted = multiples(target)
        return [
            _match(f"o{number}", number),
            f"%a{number}, %b{number}, %c{number} = transform.structured.pad %o{number} "
            f"pad_to_multiple_of {list(wanted.values())} {{padding_values = [{zeros}], "
            f'padding_dimensions = {list(wanted)}, copy_back_op = "none"}} '
            f": ({_ANY}) -> ({_ANY}, {_ANY}, {_ANY})",
        ]

    _for_each(module, [target.operation for target in targets], lines, "canonicalize,cse")


def _adds_products(operation: ir.Operation) -> bool:
    """Whether the body is one product added to the output, to which a zero adds nothing."""
    names = sorted(inner.operation.name for inner in operation.regions[0].blocks[0].operations)
    return names == ["arith.addf", "arith.mulf", "linalg.yield"]


# functions and loops


def _in_functions(module: ir.Operation, *lines: str) -> None:
    _interpret(
        module,
        [f'%f = transform.structured.match ops{{["func.func"]}} in %root : ({_ANY}) -> {_ANY}', *lines],
    )


def _patterns(module: ir.Operation, *patterns: str) -> None:
    """Apply rewrite patterns to every function until nothing changes."""
    lines = [f"  transform.apply_patterns.{pattern}" for pattern in patterns]
    _in_functions(module, "transform.apply_patterns to %f {", *lines, f"}} : {_ANY}")


def _contraction_lowering(module: ir.Operation, strategy: str) -> None:
    """Lower vector contractions, and outer products that come of them."""
    _patterns(
        module, f'vector.lower_contraction lowering_strategy = "{strategy}"', "vector.lower_outerproduct"
    )


def _transpose_lowering(module: ir.Operation, strategy: str) -> None:
    """Lower vector transposes."""
    _patterns(module, f'vector.lower_transpose lowering_strategy = "{strategy}"')


def _transfer_lowering(module: ir.Operation, rank: str) -> None:
    """Lower transfers of up to ``rank`` dimensions to loads and stores of vectors."""
    _patterns(
        module, "vector.transfer_permutation_patterns", f"vector.lower_transfer max_transfer_rank = {rank}"
    )


def _multi_reduction_lowering(module: ir.Operation, strategy: str) -> None:
    """Bring the reduced dimensions of vectors together and reduce along them."""
    _patterns(
        module,
        f'vector.reorder_multi_reduction_dims lowering_strategy = "{strategy}"',
        f'vector.multi_reduction_flattening lowering_strategy = "{strategy}"',
        f'vector.multi_reduction_unrolling lowering_strategy = "{strategy}"',
    )


def _hoist(module: ir.Operation, what: str) -> None:
    """Hoist ``transfers`` or ``broadcasts`` of vectors out of loops."""
    _in_functions(module, f"%h = transform.structured.hoist_redundant_vector_{what} %f : ({_ANY}) -> {_ANY}")


def _innermost_loops(module: ir.Operation) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def look(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "scf.for":
            inner = False

            def nested(other: ir.Operation) -> ir.WalkResult:
                nonlocal inner
                if other.name in ("scf.for", "affine.for") and other != operation:
                    inner = True
                    return ir.WalkResult.INTERRUPT
                return ir.WalkResult.ADVANCE

            operation.walk(nested)
            if not inner:
                found.append(operation)
        return ir.WalkResult.ADVANCE

    module.walk(look)
    return found


def _unroll(module: ir.Operation, factor: str) -> None:
    """Unroll the innermost scf loops."""
    _for_each(
        module,
        _innermost_loops(module),
        lambda number: [
            _match(f"o{number}", number),
            f'%c{number} = transform.cast %o{number} : {_ANY} to !transform.op<"scf.for">',
            f'transform.loop.unroll %c{number} {{factor = {factor} : i64}} : !transform.op<"scf.for">',
        ],
    )


def _unroll_jam(module: ir.Operation, along: str, factor: str) -> None:
    """Unroll and jam the nearest parallel affine loop around each innermost one that allows it."""
    copies = int(factor)
    loops = affine_loops(module)
    chosen: dict[int, None] = {}
    for loop in loops:
        if not loop.is_innermost:
            continue
        around = loop.parent
        while around >= 0:
            outer = loops[around]
            fits = outer.trips > 0 and outer.trips % copies == 0 and not outer.bounds_others
            if outer.is_parallel and fits and (outer.in_last if along == "columns" else not outer.in_last):
                chosen[around] = None
                break
            around = outer.parent
    targets = [loops[index].operation for index in sorted(chosen)]
    handle = '!transform.op<"affine.for">'
    _for_each(
        module,
        targets,
        lambda number: [
            _match(f"o{number}", number),
            f"%c{number} = transform.cast %o{number} : {_ANY} to {handle}",
            f"transform.loop.unroll_and_jam %c{number} {{factor = {copies} : i64}} : {handle}",
        ],
        "canonicalize,cse",
    )


def _lower_packs(module: ir.Operation) -> None:
    """Write packing as padding, reshapes and transposes, as the finishing pipeline does."""
    try:
        lower_packs(module)
    except (ir.MLIRError, RuntimeError, ValueError) as error:
        raise PassFailed(first_line(error)) from error


def _approximate(module: ir.Operation) -> None:
    """Write mathematical functions as polynomials."""
    from solgym.envs.mlir_passes.approximate import approximate_math

    approximate_math(module)


GENERATORS: Final[dict[str, Callable[..., None]]] = {
    "tile": _tile,
    "fuse": _fuse,
    "partial-reduction": _partial_reduction,
    "interchange": _interchange,
    "vectorise": _vectorise,
    "on-kind": _on_kind,
    "image-to-columns": _image_to_columns,
    "pad": _pad,
    "patterns": _patterns,
    "lower-contraction": _contraction_lowering,
    "lower-transpose": _transpose_lowering,
    "lower-transfer": _transfer_lowering,
    "lower-multi-reduction": _multi_reduction_lowering,
    "hoist": _hoist,
    "unroll": _unroll,
    "unroll-jam": _unroll_jam,
    "lower-packs": _lower_packs,
    "approximate": _approximate,
}
