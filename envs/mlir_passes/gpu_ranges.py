"""What is known of index values before a program runs: ranges, extents of loops, expressions for the host.

Serves the outlining of GPU kernels, which needs launch sizes as numbers although bounds of inner loops may
depend on outer ones. Works on arith operations and loops of scf; anything else is a value of unknown range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch_mlir import ir

__all__ = ["Range", "Ranges", "constant_of", "defining", "expression_of", "linear"]

Range = tuple[float, float]
"""Least and greatest value, both possible; infinite where unknown."""

UNKNOWN: Final[Range] = (-math.inf, math.inf)

_CASTS: Final = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci")
_HOST_OPERATORS: Final[Mapping[str, str]] = {
    "arith.addi": "add",
    "arith.subi": "sub",
    "arith.muli": "mul",
    "arith.divsi": "div",
    "arith.floordivsi": "floordiv",
    "arith.ceildivsi": "ceildiv",
    "arith.remsi": "rem",
    "arith.minsi": "min",
    "arith.maxsi": "max",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
    "arith.select": "select",
}
_PREDICATES: Final = ("eq", "ne", "lt", "le", "gt", "ge")
"""Of ``arith.cmpi``: the first six, which are those of signed numbers."""


def defining(value: ir.Value) -> ir.Operation | None:
    """The operation whose result a value is; None for the argument of a block."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def constant_of(value: ir.Value) -> int | None:
    """The number, for an integer constant."""
    operation = defining(value)
    if operation is None or operation.name not in ("arith.constant", "index.constant"):
        return None
    attribute = operation.attributes["value"]
    if not isinstance(attribute, (ir.IntegerAttr, ir.BoolAttr)):
        return None
    return int(attribute.value) & 1 if str(value.type) == "i1" else int(attribute.value)


def expression_of(value: ir.Value, variables: Mapping[ir.Value, str]) -> Any | None:
    """An expression that the host evaluates (``gpu_code.evaluate``), or None where there is none.

    Args:
        value: an integer.
        variables: the loops of the host by their induction variable.
    """
    if value in variables:
        return variables[value]
    number = constant_of(value)
    if number is not None:
        return number
    operation = defining(value)
    if operation is None:
        return None
    operands = []
    for operand in operation.operands:
        expression = expression_of(operand, variables)
        if expression is None:
            return None
        operands.append(expression)
    if operation.name in _CASTS:
        return operands[0]
    if operation.name == "arith.cmpi":
        predicate = int(ir.IntegerAttr(operation.attributes["predicate"]).value)
        return [_PREDICATES[predicate], *operands] if predicate < len(_PREDICATES) else None
    operator = _HOST_OPERATORS.get(operation.name)
    return None if operator is None else [operator, *operands]


class Ranges:
    """Ranges of index values; remembers what it found, so loops must not change meanwhile."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, Range] = {}

    def of(self, value: ir.Value) -> Range:
        """The least and the greatest value, infinite where unknown."""
        if value not in self._known:
            self._known[value] = UNKNOWN  # until it is found: a value that depends on itself stays unknown
            self._known[value] = self._find(value)
        return self._known[value]

    def extent(self, lower: ir.Value, upper: ir.Value, step: int) -> int | None:
        """The greatest number of iterations of a loop, or None where there is no bound.

        Both bounds often hold the same outer variable (a tile's do), so their difference is taken as a linear
        form before ranges come in. A minimum as upper bound is at most each of its operands, and a maximum as
        lower bound at least.
        """
        most = math.inf
        for above in _alternatives(upper, "arith.minsi"):
            for below in _alternatives(lower, "arith.maxsi"):
                constant, terms = linear(above)
                other_constant, other_terms = linear(below)
                greatest = float(constant - other_constant)
                for atom in {**terms, **other_terms}:
                    factor = terms.get(atom, 0) - other_terms.get(atom, 0)
                    if factor:
                        low, high = self.of(atom)
                        greatest += max(factor * low, factor * high)
                most = min(most, greatest)
        return None if math.isinf(most) else max(0, -(-int(most) // step))

    def _find(self, value: ir.Value) -> Range:
        number = constant_of(value)
        if number is not None:
            return (number, number)
        operation = defining(value)
        if operation is None:
            return self._of_argument(value)
        if operation.name in _CASTS:
            return self.of(operation.operands[0])
        if operation.name == "arith.select":
            (a, b), (c, d) = (self.of(operand) for operand in list(operation.operands)[1:])
            return min(a, c), max(b, d)
        combine = _COMBINE.get(operation.name)
        if combine is None:
            return UNKNOWN
        left, right = (self.of(operand) for operand in operation.operands)
        return combine(left, right)

    def _of_argument(self, value: ir.Value) -> Range:
        block = value.owner
        loop = block.owner.operation
        position = list(block.arguments).index(value)
        operands = list(loop.operands)
        if loop.name == "scf.for" and position == 0:
            lower, upper = operands[0], operands[1]
        elif loop.name == "scf.parallel":
            lower, upper = operands[position], operands[len(block.arguments) + position]
        else:
            return UNKNOWN
        return self.of(lower)[0], self.of(upper)[1] - 1


def linear(value: ir.Value) -> tuple[int, dict[ir.Value, int]]:
    """A value as a sum: a constant, and factors of other values."""
    number = constant_of(value)
    if number is not None:
        return number, {}
    operation = defining(value)
    name = operation.name if operation is not None else ""
    if operation is not None and name == "arith.index_cast":
        return linear(operation.operands[0])
    if operation is not None and name in ("arith.addi", "arith.subi", "arith.muli"):
        (a, left), (b, right) = (linear(operand) for operand in operation.operands)
        if name == "arith.muli":
            if not left:
                return a * b, {atom: a * factor for atom, factor in right.items()}
            if not right:
                return a * b, {atom: b * factor for atom, factor in left.items()}
            return 0, {value: 1}
        sign = 1 if name == "arith.addi" else -1
        terms = {atom: left.get(atom, 0) + sign * right.get(atom, 0) for atom in {**left, **right}}
        return a + sign * b, terms
    return 0, {value: 1}


def _alternatives(value: ir.Value, name: str) -> list[ir.Value]:
    operation = defining(value)
    if operation is None or operation.name != name:
        return [value]
    return [each for operand in operation.operands for each in _alternatives(operand, name)]


def _product(left: Range, right: Range) -> Range:
    corners = [a * b if a and b else 0.0 for a in left for b in right]  # zero times infinity is zero here
    return min(corners), max(corners)


def _quotient(rounded: Callable[[float], float]) -> Callable[[Range, Range], Range]:
    def divide(left: Range, right: Range) -> Range:
        if right[0] != right[1] or right[0] <= 0:
            return UNKNOWN
        low, high = (rounded(end / right[0]) if math.isfinite(end) else end for end in left)
        return low, high

    return divide


def _remainder(left: Range, right: Range) -> Range:
    if right[0] != right[1] or right[0] <= 0:
        return UNKNOWN
    most = right[0] - 1
    return 0.0 if left[0] >= 0 else max(-most, left[0]), min(most, max(left[1], 0.0))


_COMBINE: Final[Mapping[str, Callable[[Range, Range], Range]]] = {
    "arith.addi": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "arith.subi": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "arith.muli": _product,
    "arith.minsi": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "arith.maxsi": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "arith.divsi": _quotient(math.trunc),
    "arith.floordivsi": _quotient(math.floor),
    "arith.ceildivsi": _quotient(math.ceil),
    "arith.remsi": _remainder,
}
