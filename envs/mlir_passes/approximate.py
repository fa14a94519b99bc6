"""Elementary functions as branch-free arithmetic, for f32 scalars and vectors in a module.

LLVM turns a vector ``exp`` into one call of the C library for each lane, and MLIR has no pass of its own for
this, so ``exp``, ``exp2``, ``tanh``, ``erf`` and ``log`` are written out in ``arith`` operations, which every
vectoriser knows. f64, tensors, square roots and divisions stay as they are. Runs in the pass worker.

The coefficients were fitted for this project: least squares on 800 to 1200 Chebyshev nodes in extended
precision, reweighted until the relative error was level, then rounded to f32. Largest relative errors of the
fits before that rounding: exp 1.4e-8, exp2 2.0e-9, log 5.8e-9, erf 1.5e-8.

Code is compiled with leave to contract and to reorder sums, so no step may depend on an intermediate
rounding:

* the rounding to an integer goes through an integer, not through adding and subtracting a large number;
* ``x - n ln2`` takes ln 2 in two parts, and a clamp that changes nothing that matters stands between the two
  subtractions, as ``n high + n low`` would otherwise lawfully become ``n (high + low)``;
* sums that would lose digits in another order are kept apart in the same way;
* powers of two are made from the bits of their exponent.

Each clamp is a comparison and a selection, ordered so that a NaN passes, or does not, as said there; x86 has
one instruction for the pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from torch_mlir import ir
from torch_mlir.dialects import arith
from torch_mlir.dialects import math as math_dialect

__all__ = ["FUNCTIONS", "approximate_math"]

_LOG2_E: Final = math.log2(math.e)
# ln 2 in two parts; the first leaves the last 9 bits of an f32's mantissa empty, so n times it is exact up to
# n = 2**9.
_LN2_HIGH: Final = 0.693145751953125
_LN2_LOW: Final = math.log(2.0) - _LN2_HIGH

# (exp(r) - 1) / r = 1 + r q(r) for 0 <= r <= ln 2; the fit is of q.
_EXP_MINUS_1: Final = (
    1.0, 0.5000008940696716, 0.16664738953113556, 0.04179595783352852, 0.007960864342749119,
    0.0018613379215821624,
)  # fmt: skip
# 2**r = 1 + r q(r) for 0 <= r <= 1; the fit is of q.
_EXP2: Final = (
    1.0, 0.6931470632553101, 0.2402293086051941, 0.055485278367996216, 0.009675453417003155,
    0.0012467826018109918, 0.00021612991986330599,
)  # fmt: skip
# log(1 + f) = f - f**2 / 2 + f**3 q(f) for sqrt(1/2) <= 1 + f <= sqrt(2); the fit is of q.
_LOG: Final = (
    -0.5, 0.3333333134651184, -0.250008225440979, 0.20001226663589478, -0.16623355448246002,
    0.14201760292053223, -0.1316019892692566, 0.12761567533016205, -0.07634441554546356,
)  # fmt: skip

# artanh(erf(x)) / x for 0 <= x <= 3.93; the weight of the fit makes the error of erf level.
_ARTANH_ERF: Final = (
    1.1283791065216064, 1.483710889260692e-06, 0.10275169461965561, 0.00010661271517165005,
    -0.00044464535312727094, 0.00017719960305839777, -0.0004183156124781817, -0.0004403198545332998,
    0.00040415136027149856, -0.0001078428394976072, 9.789080650079995e-06,
)  # fmt: skip
# From these on, an f32 cannot tell the functions from 1.
_TANH_LIMIT: Final = 9.02
_ERF_LIMIT: Final = 3.93

_EXPONENT_BIAS: Final = 127
_MANTISSA_BITS: Final = 23
_SMALLEST_NORMAL: Final = 2.0**-126
_SQRT_HALF_BITS: Final = int(np.float32(math.sqrt(0.5)).view(np.int32))


@dataclass(frozen=True)
class _Writer:
    """Writes operations on values of one type (f32, or a vector of them) at the current insertion point."""

    numbers: ir.Type
    integers: ir.Type

    def constant(self, value: float) -> ir.Value:
        return self._splat(self.numbers, ir.FloatAttr.get(ir.F32Type.get(), value))

    def integer(self, value: int) -> ir.Value:
        return self._splat(self.integers, ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value))

    def _splat(self, kind: ir.Type, element: ir.Attribute) -> ir.Value:
        if isinstance(kind, ir.VectorType):
            return arith.ConstantOp(kind, ir.DenseElementsAttr.get_splat(kind, element)).result
        return arith.ConstantOp(kind, element).result

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return arith.addf(arith.mulf(a, b), c)

    def at_least(self, low: float, x: ir.Value, *, keep_nan: bool) -> ir.Value:
        bound = self.constant(low)
        if keep_nan:
            return arith.select(arith.cmpf(arith.CmpFPredicate.OLT, x, bound), bound, x)
        return arith.select(arith.cmpf(arith.CmpFPredicate.OGT, x, bound), x, bound)

    def at_most(self, high: float, x: ir.Value) -> ir.Value:
        """The smaller of the two; a NaN stays one."""
        bound = self.constant(high)
        return arith.select(arith.cmpf(arith.CmpFPredicate.OGT, x, bound), bound, x)

    def polynomial(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        total = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.multiply_add(total, x, self.constant(coefficient))
        return total

    def power_of_two(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """``floor(x)`` and two to that power, 0 below 2**-126 and for a NaN, infinite from 2**128.

        ``x`` must be less than 129, else the bits would run into the sign.
        """
        biased = arith.addf(x, self.constant(float(_EXPONENT_BIAS)))
        exponent = arith.fptosi(self.integers, self.at_least(0.0, biased, keep_nan=False))
        whole = arith.sitofp(self.numbers, arith.subi(exponent, self.integer(_EXPONENT_BIAS)))
        bits = arith.shli(exponent, self.integer(_MANTISSA_BITS))
        return whole, arith.bitcast(self.numbers, bits)


def _reduced(w: _Writer, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """``r`` and ``2**n`` with ``exp(x) = 2**n exp(r)`` and ``0 <= r <= ln 2``; a NaN goes into ``r``.

    ``x`` must be less than 89.3, see ``power_of_two``.
    """
    whole, scale = w.power_of_two(arith.mulf(x, w.constant(_LOG2_E)))
    r = w.multiply_add(whole, w.constant(-_LN2_HIGH), x)
    # Acts only where the scale is 0, on a remainder that may be infinite there.
    r = w.at_least(-1.0, r, keep_nan=True)
    return w.multiply_add(whole, w.constant(-_LN2_LOW), r), scale


def _exp(w: _Writer, x: ir.Value) -> ir.Value:
    """Overflow and underflow come with the power of two."""
    r, scale = _reduced(w, w.at_most(89.0, x))
    return arith.mulf(w.polynomial(r, (1.0, *_EXP_MINUS_1)), scale)


def _exp2(w: _Writer, x: ir.Value) -> ir.Value:
    x = w.at_most(128.5, x)
    whole, scale = w.power_of_two(x)
    r = w.at_least(-1.0, arith.subf(x, whole), keep_nan=True)
    return arith.mulf(w.polynomial(r, _EXP2), scale)


def _log(w: _Writer, x: ir.Value) -> ir.Value:
    """``log(x) = n ln 2 + log(m)`` with ``sqrt(1/2) <= m < sqrt(2)``."""
    is_subnormal = arith.cmpf(arith.CmpFPredicate.OLT, x, w.constant(_SMALLEST_NORMAL))
    normal = arith.select(is_subnormal, arith.mulf(x, w.constant(2.0**_MANTISSA_BITS)), x)
    bits = arith.bitcast(w.integers, normal)
    shift = w.integer(_MANTISSA_BITS)
    exponent = arith.shrsi(arith.subi(bits, w.integer(_SQRT_HALF_BITS)), shift)
    mantissa = arith.bitcast(w.numbers, arith.subi(bits, arith.shli(exponent, shift)))
    whole = arith.sitofp(
        w.numbers,
        arith.subi(exponent, arith.select(is_subnormal, shift, w.integer(0))),
    )
    f = arith.subf(mantissa, w.constant(1.0))
    fraction = w.multiply_add(arith.mulf(f, f), w.polynomial(f, _LOG), f)
    finite = w.multiply_add(whole, w.constant(math.log(2.0)), fraction)
    # Infinity and NaN are their own logarithms; 0 and what lies below have none.
    is_below_infinity = arith.cmpf(arith.CmpFPredicate.OLT, x, w.constant(math.inf))
    of_positive = arith.select(is_below_infinity, finite, x)
    is_zero = arith.cmpf(arith.CmpFPredicate.OEQ, x, w.constant(0.0))
    of_others = arith.select(is_zero, w.constant(-math.inf), w.constant(math.nan))
    is_other = arith.cmpf(arith.CmpFPredicate.OLE, x, w.constant(0.0))
    return arith.select(is_other, of_others, of_positive)


def _tanh(w: _Writer, x: ir.Value) -> ir.Value:
    return math_dialect.copysign(_tanh_of_positive(w, math_dialect.absf(x)), x)


def _erf(w: _Writer, x: ir.Value) -> ir.Value:
    """``erf(x) = tanh(g(x))``: errors of ``g`` matter less and less as erf comes close to 1."""
    size = w.at_most(_ERF_LIMIT, math_dialect.absf(x))
    stretched = arith.mulf(size, w.polynomial(size, _ARTANH_ERF))
    return math_dialect.copysign(_tanh_of_positive(w, stretched), x)


def _tanh_of_positive(w: _Writer, x: ir.Value) -> ir.Value:
    """``tanh(x) = e / (e + 2)`` with ``e = exp(2 x) - 1 = 2**n (exp(r) - 1) + (2**n - 1)``."""
    r, scale = _reduced(w, arith.mulf(w.at_most(_TANH_LIMIT, x), w.constant(2.0)))
    of_remainder = arith.mulf(r, w.polynomial(r, _EXP_MINUS_1))
    # Never below 0; else ``scale * of_remainder + scale - 1`` could be summed in an order that cancels.
    rest = w.at_least(0.0, arith.subf(scale, w.constant(1.0)), keep_nan=True)
    e = w.multiply_add(scale, of_remainder, rest)
    return arith.divf(e, arith.addf(e, w.constant(2.0)))


FUNCTIONS: Final[dict[str, Callable[[_Writer, ir.Value], ir.Value]]] = {
    "math.exp": _exp,
    "math.exp2": _exp2,
    "math.log": _log,
    "math.tanh": _tanh,
    "math.erf": _erf,
}
"""What replaces each operation."""


def approximate_math(module: ir.Operation) -> int:
    """Replace elementary functions on f32 scalars and vectors by arithmetic, in place.

    Errors against the exact function: relative at most 2e-7 for exp, exp2 and log (results below the smallest
    normal number become 0), absolute at most 2e-7 for tanh and erf. Infinities, overflow and NaN come out as
    they should.

    Returns:
        How many operations were replaced.
    """
    found: list[ir.Operation] = []

    def look(operation: ir.Operation) -> ir.WalkResult:
        if operation.name in FUNCTIONS and _writer(operation) and not _belongs_to_named(operation):
            found.append(operation)
        return ir.WalkResult.ADVANCE

    with ir.Location.unknown(module.context):
        module.walk(look)
    for operation in found:
        with ir.InsertionPoint(operation), operation.location:
            writer = _writer(operation)
            assert writer is not None
            replacement = FUNCTIONS[operation.name](writer, operation.operands[0])
        operation.results[0].replace_all_uses_with(replacement)
        operation.erase()
    return len(found)


def _writer(operation: ir.Operation) -> _Writer | None:
    kind = operation.results[0].type
    number = ir.IntegerType.get_signless(32, operation.context)
    if isinstance(kind, ir.F32Type):
        return _Writer(kind, number)
    if isinstance(kind, ir.VectorType) and isinstance(kind.element_type, ir.F32Type) and not kind.scalable:
        return _Writer(kind, ir.VectorType.get(kind.shape, number))
    return None


_OPEN_BODIES: Final = ("linalg.generic", "linalg.map", "linalg.reduce")


def _belongs_to_named(operation: ir.Operation) -> bool:
    """Whether it is the body of a named operation, ``linalg.exp`` say, which its name alone stands for."""
    parent = operation.parent
    return parent is not None and parent.name.startswith("linalg.") and parent.name not in _OPEN_BODIES
