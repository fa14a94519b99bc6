"""Elementwise functions as branch-free arithmetic, for scalars and vectors of any width.

LLVM would turn a vector ``exp`` into one call of the C library per lane, so the functions are written as
polynomials and rational functions. The coefficients were fitted for this project: least squares on 400 to
800 Chebyshev nodes in extended precision, reweighted until the relative error was level. Largest relative
errors of the fits: exp 9.2e-8 (f32, degree 5) and 3.6e-18 (f64, degree 11); tanh 2.1e-8 (f32) and 1.4e-18
(f64, below 0.625); erf 4.3e-7 (f32). Rounding comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from solgym.envs.kernel_dsl.emission import FunctionWriter, Value
from solgym.errors import IllegalSchedule

__all__ = ["UNARY_FUNCTIONS"]

_EXP = {
    "f32": (
        1.0, 0.9999997019767761, 0.4999915063381195, 0.1666763722896576, 0.0418979786336422,
        0.008290301077067852,
    ),
    "f64": (
        1.0, 1.0, 0.5000000000000012, 0.16666666666666227, 0.041666666666518304, 0.008333333333546397,
        0.001388888894624559, 0.00019841269442002774, 2.4801490734524196e-05, 2.7557622960419014e-06,
        2.7631002249038167e-07, 2.4992422846378706e-08,
    ),
}  # fmt: skip
# Arguments are clamped so that 2**n stays a normal number; results saturate there instead of overflowing.
_EXP_RANGE = {"f32": (-86.6, 88.37), "f64": (-707.6, 709.4)}
# ln 2 in two parts, the first with trailing zero bits so that n times it is exact.
_LN2 = {
    "f32": (0.693145751953125, 1.4286068203094172e-06),
    "f64": (0.6931471803691238, 1.9082149292705877e-10),
}

_ERF_LIMIT = 3.9
_ERF = (
    (1.1283794515097094, 0.3828258868707784, 0.07496546869939172, 0.011027695979085428,
     0.00027855999965845736, -1.5770658372676732e-06),
    (1.0, 0.6725988566057497, 0.19067733156617916, 0.029786731154280485, 0.0025983368962221084),
)  # fmt: skip

_TANH_LIMIT = 9.0
_TANH_F32 = (
    (
        0.999999979593982,
        0.13381030608815328,
        0.003495593705124433,
        2.0609164082024723e-05,
        1.3354757763225441e-08,
    ),
    (1.0, 0.46714346243927835, 0.02587700419158535, 0.000328564348749615, 7.776601256050607e-07),
)
_TANH_F64_SMALL = (
    (1.0, 0.12815694871982158, 0.002791853593817608, 7.349293327020947e-06),
    (1.0, 0.4614902820531548, 0.02328861427820801, 0.00020643708047365572),
)


def _polynomial(w: FunctionWriter, x: Value, coefficients: Sequence[float]) -> Value:
    total = w.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = w.fma(total, x, w.constant(coefficient))
    return total


def _clamped(w: FunctionWriter, x: Value, low: float, high: float) -> Value:
    return w.larger(w.larger(x, w.constant(low), "ogt"), w.constant(high), "olt")


def _odd_rational(w: FunctionWriter, x: Value, fit: tuple[Sequence[float], Sequence[float]]) -> Value:
    square = w.arithmetic("fmul", x, x)
    over = w.arithmetic("fmul", x, _polynomial(w, square, fit[0]))
    return w.arithmetic("fdiv", over, _polynomial(w, square, fit[1]))


def _exp(w: FunctionWriter, x: Value) -> Value:
    """exp(x) = 2**n * exp(r) with n = round(x / ln 2), so that \\|r\\| <= ln(2)/2."""
    x = _clamped(w, x, *_EXP_RANGE[w.dtype])
    shift = w.constant(w.rounding_shift)
    shifted = w.fma(x, w.constant(math.log2(math.e)), shift)
    n = w.arithmetic("fsub", shifted, shift)
    high, low = _LN2[w.dtype]
    r = w.fma(n, w.constant(-high), x)
    r = w.fma(n, w.constant(-low), r)
    return w.times_power_of_two(_polynomial(w, r, _EXP[w.dtype]), shifted)


def _tanh(w: FunctionWriter, x: Value) -> Value:
    if w.dtype == "f32":
        return _odd_rational(w, _clamped(w, x, -_TANH_LIMIT, _TANH_LIMIT), _TANH_F32)
    magnitude = w.call("fabs", x)
    doubled = w.arithmetic("fadd", magnitude, magnitude)
    ratio = w.arithmetic("fdiv", w.constant(2.0), w.arithmetic("fadd", _exp(w, doubled), w.constant(1.0)))
    large = w.call("copysign", w.arithmetic("fsub", w.constant(1.0), ratio), x)
    is_small = w.compare("olt", magnitude, w.constant(0.625))
    return w.select(is_small, _odd_rational(w, x, _TANH_F64_SMALL), large)


def _erf(w: FunctionWriter, x: Value) -> Value:
    if w.dtype != "f32":
        raise IllegalSchedule("erf is available for f32 only")
    return _odd_rational(w, _clamped(w, x, -_ERF_LIMIT, _ERF_LIMIT), _ERF)


UNARY_FUNCTIONS: dict[str, Callable[[FunctionWriter, Value], Value]] = {
    "neg": lambda w, x: w.arithmetic("fsub", w.constant(0.0), x),
    "abs": lambda w, x: w.call("fabs", x),
    "exp": _exp,
    "tanh": _tanh,
    "erf": _erf,
    "sqrt": lambda w, x: w.call("sqrt", x),
    "rsqrt": lambda w, x: w.arithmetic("fdiv", w.constant(1.0), w.call("sqrt", x)),
}
