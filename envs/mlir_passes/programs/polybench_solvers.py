"""The solvers and dynamic programs of PolyBench/C 4.2, written from their mathematical definitions.

All are affine loops on memrefs in the order in which PolyBench states them: sums that it keeps in an array
element stay in memory, sums that it keeps in a scalar are carried by the loop. Inputs are drawn so that the
problems are well conditioned in single precision; the two dynamic programs hold small integers, so they are
exact.

``flops`` counts the operations of the definition without those on a known zero. It does not count on other
algorithms, such as fast products of matrices or fast Toeplitz solvers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from string import Template

import numpy as np
from numpy.typing import NDArray

from solgym.envs.mlir_passes.programs.program import Argument, Extents, Program
from solgym.errors import UnknownTask
from solgym.hardware.task import DType

__all__ = ["PROGRAMS"]

_Array = NDArray[np.float64]


def _dominant(generator: np.random.Generator, n: int) -> _Array:
    """A matrix that elimination without pivoting handles well.

    The spectral norm of a uniform random matrix is close to ``2 sqrt(n / 3)``; a diagonal of ``2 sqrt(n)``
    keeps the sum's symmetric part positive definite.
    """
    matrix = generator.uniform(-1.0, 1.0, (n, n))
    matrix[np.diag_indices(n)] += 2.0 * math.sqrt(n)
    return matrix


def _eliminated(a: _Array) -> _Array:
    """L and U of ``a = L U`` in one array, by rank-one updates; the ones on L's diagonal are left out."""
    a = a.copy()
    for k in range(len(a)):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a


# Cholesky decomposition.

_CHOLESKY = Template("""\
#same = affine_map<(d0) -> (d0)>
func.func @main(%A: memref<${n}x${n}x$type>) {
  affine.for %i = 0 to $n {
    affine.for %j = 0 to #same(%i) {
      affine.for %k = 0 to #same(%j) {
        %left = affine.load %A[%i, %k] : memref<${n}x${n}x$type>
        %right = affine.load %A[%j, %k] : memref<${n}x${n}x$type>
        %product = arith.mulf %left, %right : $type
        %old = affine.load %A[%i, %j] : memref<${n}x${n}x$type>
        %new = arith.subf %old, %product : $type
        affine.store %new, %A[%i, %j] : memref<${n}x${n}x$type>
      }
      %rest = affine.load %A[%i, %j] : memref<${n}x${n}x$type>
      %pivot = affine.load %A[%j, %j] : memref<${n}x${n}x$type>
      %quotient = arith.divf %rest, %pivot : $type
      affine.store %quotient, %A[%i, %j] : memref<${n}x${n}x$type>
    }
    affine.for %k = 0 to #same(%i) {
      %factor = affine.load %A[%i, %k] : memref<${n}x${n}x$type>
      %square = arith.mulf %factor, %factor : $type
      %old = affine.load %A[%i, %i] : memref<${n}x${n}x$type>
      %new = arith.subf %old, %square : $type
      affine.store %new, %A[%i, %i] : memref<${n}x${n}x$type>
    }
    %rest = affine.load %A[%i, %i] : memref<${n}x${n}x$type>
    %root = math.sqrt %rest : $type
    affine.store %root, %A[%i, %i] : memref<${n}x${n}x$type>
  }
  return
}
""")


def _cholesky_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    return (Argument("A", (n, n), "inout", touched=n * (n + 1) // 2),)


def _cholesky_mlir(extents: Extents, dtype: DType) -> str:
    return _CHOLESKY.substitute(extents, type=dtype)


def _cholesky_reference(extents: Extents, a: _Array) -> tuple[_Array, ...]:
    lower = np.tril(a)
    return (np.triu(a, 1) + np.linalg.cholesky(lower + np.tril(a, -1).T),)


def _cholesky_flops(extents: Extents) -> int:
    n = extents["n"]
    # Multiply-subtracts for k < j < i and for k < i, divisions for j < i, and the roots.
    return 2 * math.comb(n, 3) + 2 * math.comb(n, 2) + math.comb(n, 2) + n


def _cholesky_inputs(extents: Extents, generator: np.random.Generator) -> Mapping[str, _Array]:
    n = extents["n"]
    factor = generator.uniform(-1.0, 1.0, (n, n))
    return {"A": factor @ factor.T / n + np.eye(n)}


# Levinson-Durbin recursion.

_DURBIN = Template("""\
#same = affine_map<(d0) -> (d0)>
func.func @main(%r: memref<${n}x$type>, %y: memref<${n}x$type>) {
  %zero = arith.constant 0.0 : $type
  %one = arith.constant 1.0 : $type
  %z = memref.alloc() : memref<${n}x$type>
  %r0 = affine.load %r[0] : memref<${n}x$type>
  %alpha0 = arith.negf %r0 : $type
  affine.store %alpha0, %y[0] : memref<${n}x$type>
  %result:2 = affine.for %k = 1 to $n iter_args(%alpha = %alpha0, %beta = %one) -> ($type, $type) {
    %square = arith.mulf %alpha, %alpha : $type
    %left = arith.subf %one, %square : $type
    %beta_next = arith.mulf %left, %beta : $type
    %sum = affine.for %i = 0 to #same(%k) iter_args(%partial = %zero) -> ($type) {
      %correlation = affine.load %r[%k - %i - 1] : memref<${n}x$type>
      %coefficient = affine.load %y[%i] : memref<${n}x$type>
      %product = arith.mulf %correlation, %coefficient : $type
      %added = arith.addf %partial, %product : $type
      affine.yield %added : $type
    }
    %rk = affine.load %r[%k] : memref<${n}x$type>
    %numerator = arith.addf %rk, %sum : $type
    %negated = arith.negf %numerator : $type
    %alpha_next = arith.divf %negated, %beta_next : $type
    affine.for %i = 0 to #same(%k) {
      %forward = affine.load %y[%i] : memref<${n}x$type>
      %backward = affine.load %y[%k - %i - 1] : memref<${n}x$type>
      %scaled = arith.mulf %alpha_next, %backward : $type
      %updated = arith.addf %forward, %scaled : $type
      affine.store %updated, %z[%i] : memref<${n}x$type>
    }
    affine.for %i = 0 to #same(%k) {
      %updated = affine.load %z[%i] : memref<${n}x$type>
      affine.store %updated, %y[%i] : memref<${n}x$type>
    }
    affine.store %alpha_next, %y[%k] : memref<${n}x$type>
    affine.yield %alpha_next, %beta_next : $type, $type
  }
  memref.dealloc %z : memref<${n}x$type>
  return
}
""")


def _durbin_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    return Argument("r", (n,)), Argument("y", (n,), "out")


def _durbin_mlir(extents: Extents, dtype: DType) -> str:
    return _DURBIN.substitute(extents, type=dtype)


def _durbin_reference(extents: Extents, r: _Array) -> tuple[_Array, ...]:
    y = -r[:1]
    error = 1.0
    for k in range(1, extents["n"]):
        error *= 1.0 - y[-1] ** 2
        reflection = -(r[k] + r[k - 1 :: -1] @ y) / error
        y = np.append(y + reflection * y[::-1], reflection)
    return (y,)


def _durbin_flops(extents: Extents) -> int:
    # A product and an update of k terms, and five operations on scalars; the first term is not added to zero.
    return sum(2 * k - 1 + 2 * k + 5 for k in range(1, extents["n"]))


def _durbin_inputs(extents: Extents, generator: np.random.Generator) -> Mapping[str, _Array]:
    """Correlations whose spectrum ``1 + 2 sum r[k] cos((k + 1) w)`` stays near ``[1/2, 3/2]``.

    The eigenvalues of a Toeplitz matrix lie between the extremes of its spectrum.
    """
    n = extents["n"]
    r = generator.uniform(-1.0, 1.0, n)
    spectrum = 2.0 * np.fft.rfft(np.append(0.0, r), 8 * (n + 1)).real
    return {"r": r / (2.0 * np.abs(spectrum).max())}


# Gram-Schmidt orthogonalisation, the modified form.

_GRAMSCHMIDT = Template("""\
#next = affine_map<(d0) -> (d0 + 1)>
func.func @main(%A: memref<${m}x${n}x$type>, %R: memref<${n}x${n}x$type>, %Q: memref<${m}x${n}x$type>) {
  %zero = arith.constant 0.0 : $type
  linalg.fill ins(%zero : $type) outs(%R : memref<${n}x${n}x$type>)
  affine.for %k = 0 to $n {
    %sum = affine.for %i = 0 to $m iter_args(%partial = %zero) -> ($type) {
      %a = affine.load %A[%i, %k] : memref<${m}x${n}x$type>
      %square = arith.mulf %a, %a : $type
      %added = arith.addf %partial, %square : $type
      affine.yield %added : $type
    }
    %norm = math.sqrt %sum : $type
    affine.store %norm, %R[%k, %k] : memref<${n}x${n}x$type>
    affine.for %i = 0 to $m {
      %a = affine.load %A[%i, %k] : memref<${m}x${n}x$type>
      %length = affine.load %R[%k, %k] : memref<${n}x${n}x$type>
      %unit = arith.divf %a, %length : $type
      affine.store %unit, %Q[%i, %k] : memref<${m}x${n}x$type>
    }
    affine.for %j = #next(%k) to $n {
      affine.for %i = 0 to $m {
        %q = affine.load %Q[%i, %k] : memref<${m}x${n}x$type>
        %a = affine.load %A[%i, %j] : memref<${m}x${n}x$type>
        %product = arith.mulf %q, %a : $type
        %old = affine.load %R[%k, %j] : memref<${n}x${n}x$type>
        %new = arith.addf %old, %product : $type
        affine.store %new, %R[%k, %j] : memref<${n}x${n}x$type>
      }
      affine.for %i = 0 to $m {
        %q = affine.load %Q[%i, %k] : memref<${m}x${n}x$type>
        %r = affine.load %R[%k, %j] : memref<${n}x${n}x$type>
        %product = arith.mulf %q, %r : $type
        %old = affine.load %A[%i, %j] : memref<${m}x${n}x$type>
        %new = arith.subf %old, %product : $type
        affine.store %new, %A[%i, %j] : memref<${m}x${n}x$type>
      }
    }
  }
  return
}
""")


def _gramschmidt_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    if m < n:
        raise UnknownTask(
            f"Extent m of program 'gramschmidt' is {m}, less than n, which is {n}; more columns than rows "
            "cannot be orthogonal, so choose m of at least n."
        )
    return Argument("A", (m, n), "inout"), Argument("R", (n, n), "out"), Argument("Q", (m, n), "out")


def _gramschmidt_mlir(extents: Extents, dtype: DType) -> str:
    return _GRAMSCHMIDT.substitute(extents, type=dtype)


def _gramschmidt_reference(extents: Extents, a: _Array) -> tuple[_Array, ...]:
    q, r = np.linalg.qr(a)
    # The decomposition is unique once the diagonal of R is positive.
    signs = np.where(np.diag(r) < 0.0, -1.0, 1.0)
    q, r = q * signs, np.triu(r * signs[:, None])
    return q * np.diag(r), r, q


def _gramschmidt_flops(extents: Extents) -> int:
    m, n = extents["m"], extents["n"]
    norms = n * (2 * m - 1 + 1 + m)
    projections = math.comb(n, 2) * (2 * m - 1 + 2 * m)
    return norms + projections


def _gramschmidt_inputs(extents: Extents, generator: np.random.Generator) -> Mapping[str, _Array]:
    m, n = extents["m"], extents["n"]
    return {"A": generator.uniform(-1.0, 1.0, (m, n)) + 2.0 * math.sqrt(m) * np.eye(m, n)}


# LU decomposition without pivoting.

_LU = Template("""\
#same = affine_map<(d0) -> (d0)>
func.func @main(%A: memref<${n}x${n}x$type>) {
  affine.for %i = 0 to $n {
    affine.for %j = 0 to #same(%i) {
      affine.for %k = 0 to #same(%j) {
        %left = affine.load %A[%i, %k] : memref<${n}x${n}x$type>
        %right = affine.load %A[%k, %j] : memref<${n}x${n}x$type>
        %product = arith.mulf %left, %right : $type
        %old = affine.load %A[%i, %j] : memref<${n}x${n}x$type>
        %new = arith.subf %old, %product : $type
        affine.store %new, %A[%i, %j] : memref<${n}x${n}x$type>
      }
      %rest = affine.load %A[%i, %j] : memref<${n}x${n}x$type>
      %pivot = affine.load %A[%j, %j] : memref<${n}x${n}x$type>
      %quotient = arith.divf %rest, %pivot : $type
      affine.store %quotient, %A[%i, %j] : memref<${n}x${n}x$type>
    }
    affine.for %j = #same(%i) to $n {
      affine.for %k = 0 to #same(%i) {
        %left = affine.load %A[%i, %k] : memref<${n}x${n}x$type>
        %right = affine.load %A[%k, %j] : memref<${n}x${n}x$type>
        %product = arith.mulf %left, %right : $type
        %old = affine.load %A[%i, %j] : memref<${n}x${n}x$type>
        %new = arith.subf %old, %product : $type
        affine.store %new, %A[%i, %j] : memref<${n}x${n}x$type>
      }
    }
  }
  return
}
""")


def _lu_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    return (Argument("A", (n, n), "inout"),)


def _lu_mlir(extents: Extents, dtype: DType) -> str:
    return _LU.substitute(extents, type=dtype)


def _lu_reference(extents: Extents, a: _Array) -> tuple[_Array, ...]:
    return (_eliminated(a),)


def _lu_flops(extents: Extents) -> int:
    n = extents["n"]
    # Step k updates a square of n - 1 - k; divisions are below the diagonal.
    return 2 * ((n - 1) * n * (2 * n - 1) // 6) + math.comb(n, 2)


def _lu_inputs(extents: Extents, generator: np.random.Generator) -> Mapping[str, _Array]:
    return {"A": _dominant(generator, extents["n"])}


# Linear equations by LU decomposition.

_LUDCMP = Template("""\
#same = affine_map<(d0) -> (d0)>
#reversed = affine_map<(d0) -> ($n - d0)>
func.func @main(%A: memref<${n}x${n}x$type>, %b: memref<${n}x$type>, %x: memref<${n}x$type>) {
  %y = memref.alloc() : memref<${n}x$type>
  affine.for %i = 0 to $n {
    affine.for %j = 0 to #same(%i) {
      %first = affine.load %A[%i, %j] : memref<${n}x${n}x$type>
      %rest = affine.for %k = 0 to #same(%j) iter_args(%w = %first) -> ($type) {
        %left = affine.load %A[%i, %k] : memref<${n}x${n}x$type>
        %right = affine.load %A[%k, %j] : memref<${n}x${n}x$type>
        %product = arith.mulf %left, %right : $type
        %new = arith.subf %w, %product : $type
        affine.yield %new : $type
      }
      %pivot = affine.load %A[%j, %j] : memref<${n}x${n}x$type>
      %quotient = arith.divf %rest, %pivot : $type
      affine.store %quotient, %A[%i, %j] : memref<${n}x${n}x$type>
    }
    affine.for %j = #same(%i) to $n {
      %first = affine.load %A[%i, %j] : memref<${n}x${n}x$type>
      %rest = affine.for %k = 0 to #same(%i) iter_args(%w = %first) -> ($type) {
        %left = affine.load %A[%i, %k] : memref<${n}x${n}x$type>
        %right = affine.load %A[%k, %j] : memref<${n}x${n}x$type>
        %product = arith.mulf %left, %right : $type
        %new = arith.subf %w, %product : $type
        affine.yield %new : $type
      }
      affine.store %rest, %A[%i, %j] : memref<${n}x${n}x$type>
    }
  }
  affine.for %i = 0 to $n {
    %first = affine.load %b[%i] : memref<${n}x$type>
    %rest = affine.for %j = 0 to #same(%i) iter_args(%w = %first) -> ($type) {
      %left = affine.load %A[%i, %j] : memref<${n}x${n}x$type>
      %right = affine.load %y[%j] : memref<${n}x$type>
      %product = arith.mulf %left, %right : $type
      %new = arith.subf %w, %product : $type
      affine.yield %new : $type
    }
    affine.store %rest, %y[%i] : memref<${n}x$type>
  }
  affine.for %back = 0 to $n {
    %first = affine.load %y[$n - 1 - %back] : memref<${n}x$type>
    %rest = affine.for %j = #reversed(%back) to $n iter_args(%w = %first) -> ($type) {
      %left = affine.load %A[$n - 1 - %back, %j] : memref<${n}x${n}x$type>
      %right = affine.load %x[%j] : memref<${n}x$type>
      %product = arith.mulf %left, %right : $type
      %new = arith.subf %w, %product : $type
      affine.yield %new : $type
    }
    %pivot = affine.load %A[$n - 1 - %back, $n - 1 - %back] : memref<${n}x${n}x$type>
    %quotient = arith.divf %rest, %pivot : $type
    affine.store %quotient, %x[$n - 1 - %back] : memref<${n}x$type>
  }
  memref.dealloc %y : memref<${n}x$type>
  return
}
""")


def _ludcmp_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    return Argument("A", (n, n), "inout"), Argument("b", (n,)), Argument("x", (n,), "out")


def _ludcmp_mlir(extents: Extents, dtype: DType) -> str:
    return _LUDCMP.substitute(extents, type=dtype)


def _ludcmp_reference(extents: Extents, a: _Array, b: _Array) -> tuple[_Array, ...]:
    return _eliminated(a), np.asarray(np.linalg.solve(a, b), dtype=np.float64)


def _ludcmp_flops(extents: Extents) -> int:
    n = extents["n"]
    return _lu_flops(extents) + 4 * math.comb(n, 2) + n


# A lower triangular system.

_TRISOLV = Template("""\
#same = affine_map<(d0) -> (d0)>
func.func @main(%L: memref<${n}x${n}x$type>, %b: memref<${n}x$type>, %x: memref<${n}x$type>) {
  affine.for %i = 0 to $n {
    %right_side = affine.load %b[%i] : memref<${n}x$type>
    affine.store %right_side, %x[%i] : memref<${n}x$type>
    affine.for %j = 0 to #same(%i) {
      %left = affine.load %L[%i, %j] : memref<${n}x${n}x$type>
      %right = affine.load %x[%j] : memref<${n}x$type>
      %product = arith.mulf %left, %right : $type
      %old = affine.load %x[%i] : memref<${n}x$type>
      %new = arith.subf %old, %product : $type
      affine.store %new, %x[%i] : memref<${n}x$type>
    }
    %rest = affine.load %x[%i] : memref<${n}x$type>
    %pivot = affine.load %L[%i, %i] : memref<${n}x${n}x$type>
    %quotient = arith.divf %rest, %pivot : $type
    affine.store %quotient, %x[%i] : memref<${n}x$type>
  }
  return
}
""")


def _trisolv_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    return Argument("L", (n, n), touched=n * (n + 1) // 2), Argument("b", (n,)), Argument("x", (n,), "out")


def _trisolv_mlir(extents: Extents, dtype: DType) -> str:
    return _TRISOLV.substitute(extents, type=dtype)


def _trisolv_reference(extents: Extents, lower: _Array, b: _Array) -> tuple[_Array, ...]:
    x = np.zeros_like(b)
    for i in range(len(x)):
        x[i] = (b[i] - lower[i, :i] @ x[:i]) / lower[i, i]
    return (x,)


def _trisolv_flops(extents: Extents) -> int:
    n = extents["n"]
    return 2 * math.comb(n, 2) + n


def _trisolv_inputs(extents: Extents, generator: np.random.Generator) -> Mapping[str, _Array]:
    # The part above the diagonal is drawn too: a program that reads it is wrong and is found out.
    return {"L": _dominant(generator, extents["n"])}


# Deriche's recursive smoothing filter.

_ALPHA = 0.25
_DECAY = math.exp(-_ALPHA)
_GAIN = (1.0 - _DECAY) ** 2 / (1.0 + 2.0 * _ALPHA * _DECAY - _DECAY**2)

# The recursions whose responses are the two halves of gain * (alpha |n| + 1) * exp(-alpha |n|). PolyBench/C
# has 2 ** -alpha where the filter has 2 exp(-alpha), and then does not smooth.
_DERICHE_COEFFICIENTS = {
    "here": _GAIN,
    "before": _GAIN * _DECAY * (_ALPHA - 1.0),
    "after": _GAIN * _DECAY * (_ALPHA + 1.0),
    "second_after": -_GAIN * _DECAY**2,
    "feedback": 2.0 * _DECAY,
    "second_feedback": -(_DECAY**2),
}

_DERICHE = Template("""\
func.func @main(%input: memref<${w}x${h}x$type>, %output: memref<${w}x${h}x$type>) {
  %zero = arith.constant 0.0 : $type
  %a1 = arith.constant $here : $type
  %a2 = arith.constant $before : $type
  %a3 = arith.constant $after : $type
  %a4 = arith.constant $second_after : $type
  %b1 = arith.constant $feedback : $type
  %b2 = arith.constant $second_feedback : $type
  %y1 = memref.alloc() : memref<${w}x${h}x$type>
  %y2 = memref.alloc() : memref<${w}x${h}x$type>
$rows
$row_sums
$columns
$column_sums
  memref.dealloc %y1 : memref<${w}x${h}x$type>
  memref.dealloc %y2 : memref<${w}x${h}x$type>
  return
}
""")

_DERICHE_SWEEPS = Template("""\
  affine.for %line = 0 to $lines {
    affine.for %at = 0 to $length
        iter_args(%x1 = %zero, %r1 = %zero, %r2 = %zero) -> ($type, $type, $type) {
      %x0 = affine.load $source[$forward] : memref<${w}x${h}x$type>
      %t1 = arith.mulf %a1, %x0 : $type
      %t2 = arith.mulf %a2, %x1 : $type
      %t3 = arith.mulf %b1, %r1 : $type
      %t4 = arith.mulf %b2, %r2 : $type
      %s1 = arith.addf %t1, %t2 : $type
      %s2 = arith.addf %s1, %t3 : $type
      %r0 = arith.addf %s2, %t4 : $type
      affine.store %r0, %y1[$forward] : memref<${w}x${h}x$type>
      affine.yield %x0, %r0, %r1 : $type, $type, $type
    }
  }
  affine.for %line = 0 to $lines {
    affine.for %at = 0 to $length
        iter_args(%x1 = %zero, %x2 = %zero, %r1 = %zero, %r2 = %zero) -> ($type, $type, $type, $type) {
      %t1 = arith.mulf %a3, %x1 : $type
      %t2 = arith.mulf %a4, %x2 : $type
      %t3 = arith.mulf %b1, %r1 : $type
      %t4 = arith.mulf %b2, %r2 : $type
      %s1 = arith.addf %t1, %t2 : $type
      %s2 = arith.addf %s1, %t3 : $type
      %r0 = arith.addf %s2, %t4 : $type
      affine.store %r0, %y2[$backward] : memref<${w}x${h}x$type>
      %x0 = affine.load $source[$backward] : memref<${w}x${h}x$type>
      affine.yield %x0, %x1, %r0, %r1 : $type, $type, $type, $type
    }
  }""")

_DERICHE_SUMS = Template("""\
  affine.for %i = 0 to $w {
    affine.for %j = 0 to $h {
      %forward = affine.load %y1[%i, %j] : memref<${w}x${h}x$type>
      %backward = affine.load %y2[%i, %j] : memref<${w}x${h}x$type>
      %sum = arith.addf %forward, %backward : $type
      affine.store %sum, %output[%i, %j] : memref<${w}x${h}x$type>
    }
  }""")


def _deriche_arguments(extents: Extents) -> tuple[Argument, ...]:
    w, h = extents["w"], extents["h"]
    return Argument("input", (w, h)), Argument("output", (w, h), "out")


def _deriche_mlir(extents: Extents, dtype: DType) -> str:
    w, h = extents["w"], extents["h"]
    rows = _DERICHE_SWEEPS.substitute(
        extents,
        type=dtype,
        lines=w,
        length=h,
        source="%input",
        forward="%line, %at",
        backward=f"%line, {h - 1} - %at",
    )
    columns = _DERICHE_SWEEPS.substitute(
        extents,
        type=dtype,
        lines=h,
        length=w,
        source="%output",
        forward="%at, %line",
        backward=f"{w - 1} - %at, %line",
    )
    sums = _DERICHE_SUMS.substitute(extents, type=dtype)
    coefficients = {name: f"{value:.17e}" for name, value in _DERICHE_COEFFICIENTS.items()}
    return _DERICHE.substitute(
        extents,
        type=dtype,
        rows=rows,
        row_sums=sums,
        columns=columns,
        column_sums=sums,
        **coefficients,
    )


def _deriche_reference(extents: Extents, image: _Array) -> tuple[_Array, ...]:
    def smoothing(length: int) -> _Array:
        position = np.arange(length)
        distance = _ALPHA * np.abs(position[:, None] - position)
        return np.asarray(_GAIN * (distance + 1.0) * np.exp(-distance))

    return (smoothing(extents["w"]) @ image @ smoothing(extents["h"]),)


def _deriche_flops(extents: Extents) -> int:
    w, h = extents["w"], extents["h"]

    def line(length: int) -> int:
        # Seven operations a recursion and one to add both, less those on the zeros at a line's ends.
        return max(15 * length - 24, 1)

    return w * line(h) + h * line(w)


# All shortest paths, by Floyd and Warshall.

_FLOYD_WARSHALL = Template("""\
func.func @main(%path: memref<${n}x${n}x$type>) {
  affine.for %k = 0 to $n {
    affine.for %i = 0 to $n {
      affine.for %j = 0 to $n {
        %direct = affine.load %path[%i, %j] : memref<${n}x${n}x$type>
        %to = affine.load %path[%i, %k] : memref<${n}x${n}x$type>
        %from = affine.load %path[%k, %j] : memref<${n}x${n}x$type>
        %detour = arith.addf %to, %from : $type
        %shorter = arith.cmpf olt, %direct, %detour : $type
        %least = arith.select %shorter, %direct, %detour : $type
        affine.store %least, %path[%i, %j] : memref<${n}x${n}x$type>
      }
    }
  }
  return
}
""")


def _floyd_warshall_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    return (Argument("path", (n, n), "inout"),)


def _floyd_warshall_mlir(extents: Extents, dtype: DType) -> str:
    return _FLOYD_WARSHALL.substitute(extents, type=dtype)


def _floyd_warshall_reference(extents: Extents, path: _Array) -> tuple[_Array, ...]:
    path = path.copy()
    for k in range(len(path)):
        np.minimum(path, path[:, k, None] + path[k], out=path)
    return (path,)


def _floyd_warshall_flops(extents: Extents) -> int:
    n = extents["n"]
    # A detour by an end of the path is never shorter, so an implementation may leave it out.
    return 2 * n * (n - 1) ** 2


def _floyd_warshall_inputs(extents: Extents, generator: np.random.Generator) -> Mapping[str, _Array]:
    n = extents["n"]
    path = generator.integers(1, 1000, (n, n)).astype(np.float64)
    np.fill_diagonal(path, 0.0)
    return {"path": path}


# The most base pairs in a folded sequence, by Nussinov.

_NUSSINOV = Template("""\
#same = affine_map<(d0) -> (d0)>
#second = affine_map<(d0) -> ($n + 1 - d0)>
#inner = affine_map<(d0) -> ($n - d0)>
func.func @main(%sequence: memref<${n}x$type>, %table: memref<${n}x${n}x$type>) {
  %zero = arith.constant 0.0 : $type
  %one = arith.constant 1.0 : $type
  %three = arith.constant 3.0 : $type
  linalg.fill ins(%zero : $type) outs(%table : memref<${n}x${n}x$type>)
  affine.for %back = 2 to $n {
    affine.for %j = #second(%back) to $n {
      %start = affine.load %table[$n - 1 - %back, %j] : memref<${n}x${n}x$type>
      %without_last = affine.load %table[$n - 1 - %back, %j - 1] : memref<${n}x${n}x$type>
      %is_more1 = arith.cmpf ogt, %without_last, %start : $type
      %most1 = arith.select %is_more1, %without_last, %start : $type
      %without_first = affine.load %table[$n - %back, %j] : memref<${n}x${n}x$type>
      %is_more2 = arith.cmpf ogt, %without_first, %most1 : $type
      %most2 = arith.select %is_more2, %without_first, %most1 : $type
      %between = affine.load %table[$n - %back, %j - 1] : memref<${n}x${n}x$type>
      %first = affine.load %sequence[$n - 1 - %back] : memref<${n}x$type>
      %last = affine.load %sequence[%j] : memref<${n}x$type>
      %both = arith.addf %first, %last : $type
      %is_pair = arith.cmpf oeq, %both, %three : $type
      %pair = arith.select %is_pair, %one, %zero : $type
      %paired = arith.addf %between, %pair : $type
      %is_more3 = arith.cmpf ogt, %paired, %most2 : $type
      %most3 = arith.select %is_more3, %paired, %most2 : $type
      affine.store %most3, %table[$n - 1 - %back, %j] : memref<${n}x${n}x$type>
      affine.for %k = #inner(%back) to #same(%j) {
        %old = affine.load %table[$n - 1 - %back, %j] : memref<${n}x${n}x$type>
        %left = affine.load %table[$n - 1 - %back, %k] : memref<${n}x${n}x$type>
        %right = affine.load %table[%k + 1, %j] : memref<${n}x${n}x$type>
        %split = arith.addf %left, %right : $type
        %is_more = arith.cmpf ogt, %split, %old : $type
        %new = arith.select %is_more, %split, %old : $type
        affine.store %new, %table[$n - 1 - %back, %j] : memref<${n}x${n}x$type>
      }
    }
  }
  return
}
""")


def _nussinov_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    return Argument("sequence", (n,)), Argument("table", (n, n), "out")


def _nussinov_mlir(extents: Extents, dtype: DType) -> str:
    # Neighbours cannot pair, so entries (i, i + 1) stay zero and the columns start at i + 2.
    return _NUSSINOV.substitute(extents, type=dtype)


def _nussinov_reference(extents: Extents, sequence: _Array) -> tuple[_Array, ...]:
    n = extents["n"]
    pairs = (sequence[:, None] + sequence == 3.0).astype(np.float64)
    # Most pairs in the stretch that starts (that ends) at a place, by the stretch's length less one.
    starting, ending = np.zeros((n, n)), np.zeros((n, n))
    for length in range(2, n):
        first, last = slice(0, n - length), slice(length, n)
        enclosed = starting[1 : n - length + 1, length - 2] + np.diagonal(pairs, length)
        splits = starting[first, 0:length] + ending[last, length - 1 :: -1]
        most = np.maximum(enclosed, splits.max(axis=1))
        starting[first, length] = most
        ending[last, length] = most
    table = np.zeros((n, n))
    for length in range(2, n):
        np.fill_diagonal(table[:, length:], starting[: n - length, length])
    return (table,)


def _nussinov_flops(extents: Extents) -> int:
    n = extents["n"]
    # For a stretch of d + 1 bases: a sum and a maximum for each of d - 2 splits (that before the last base
    # adds a zero and is the stretch without it), a sum for the outer pair, and two maxima for the other
    # candidates.
    return sum((n - d) * (2 * (d - 2) + 3) for d in range(2, n))


def _nussinov_inputs(extents: Extents, generator: np.random.Generator) -> Mapping[str, _Array]:
    return {"sequence": generator.integers(0, 4, extents["n"]).astype(np.float64)}


PROGRAMS: tuple[Program, ...] = (
    Program(
        name="cholesky",
        env_id="Cholesky",
        summary="A = L L^T; L replaces the lower triangle of A",
        suite="PolyBench",
        split="train",
        extents=("n",),
        train=((192,), (128,), (320,)),
        test=((256,), (227,)),
        arguments=_cholesky_arguments,
        mlir=_cholesky_mlir,
        reference=_cholesky_reference,
        flops=_cholesky_flops,
        error_terms=lambda extents: 3 * extents["n"],
        inputs=_cholesky_inputs,
        dtypes=("f32", "f64"),
    ),
    Program(
        name="durbin",
        env_id="Durbin",
        summary="T y = -r by the Levinson-Durbin recursion, T the Toeplitz matrix of (1, r[0], ..., r[n-2])",
        suite="PolyBench",
        split="train",
        extents=("n",),
        train=((4096,), (2048,), (8192,)),
        test=((6144,), (3001,)),
        arguments=_durbin_arguments,
        mlir=_durbin_mlir,
        reference=_durbin_reference,
        flops=_durbin_flops,
        error_terms=lambda extents: 6 * extents["n"],
        inputs=_durbin_inputs,
        minimum={"n": 2},
    ),
    Program(
        name="gramschmidt",
        env_id="Gramschmidt",
        summary="A = Q R by the modified Gram-Schmidt process; A ends as Q diag(R)",
        suite="PolyBench",
        split="train",
        extents=("n", "m"),
        train=((128, 160), (64, 96), (128, 192)),
        test=((96, 128), (119, 141)),
        arguments=_gramschmidt_arguments,
        mlir=_gramschmidt_mlir,
        reference=_gramschmidt_reference,
        flops=_gramschmidt_flops,
        # Each column passes through n projections, each with a sum over m.
        error_terms=lambda extents: extents["n"] * (extents["m"] + 4),
        inputs=_gramschmidt_inputs,
    ),
    Program(
        name="lu",
        env_id="Lu",
        summary="A = L U without pivoting; L and U replace A",
        suite="PolyBench",
        split="train",
        extents=("n",),
        train=((192,), (128,), (256,)),
        test=((224,), (173,)),
        arguments=_lu_arguments,
        mlir=_lu_mlir,
        reference=_lu_reference,
        flops=_lu_flops,
        error_terms=lambda extents: 3 * extents["n"],
        inputs=_lu_inputs,
        dtypes=("f32", "f64"),
        minimum={"n": 2},
    ),
    Program(
        name="ludcmp",
        env_id="Ludcmp",
        summary="A x = b by A = L U, L y = b, U x = y; L and U replace A",
        suite="PolyBench",
        split="test",
        extents=("n",),
        train=((192,), (128,), (256,)),
        test=((224,), (175,)),
        arguments=_ludcmp_arguments,
        mlir=_ludcmp_mlir,
        reference=_ludcmp_reference,
        flops=_ludcmp_flops,
        error_terms=lambda extents: 9 * extents["n"],
        inputs=_lu_inputs,
    ),
    Program(
        name="trisolv",
        env_id="Trisolv",
        summary="L x = b by forward substitution",
        suite="PolyBench",
        split="train",
        extents=("n",),
        train=((3072,), (2048,), (1024,)),
        test=((1536,), (2311,)),
        arguments=_trisolv_arguments,
        mlir=_trisolv_mlir,
        reference=_trisolv_reference,
        flops=_trisolv_flops,
        error_terms=lambda extents: 3 * extents["n"],
        inputs=_trisolv_inputs,
    ),
    Program(
        name="deriche",
        env_id="Deriche",
        summary="Deriche's recursive smoothing of an image, along rows and then along columns",
        suite="PolyBench",
        split="train",
        extents=("w", "h"),
        train=((256, 256), (192, 128), (512, 384)),
        test=((384, 256), (253, 189)),
        arguments=_deriche_arguments,
        mlir=_deriche_mlir,
        reference=_deriche_reference,
        flops=_deriche_flops,
        error_terms=lambda extents: 5 * (extents["w"] + extents["h"]),
    ),
    Program(
        name="floyd_warshall",
        env_id="FloydWarshall",
        summary="All shortest paths: path[i, j] = min(path[i, j], path[i, k] + path[k, j]), k by k",
        suite="PolyBench",
        split="train",
        extents=("n",),
        train=((128,), (96,), (192,)),
        test=((160,), (147,)),
        arguments=_floyd_warshall_arguments,
        mlir=_floyd_warshall_mlir,
        reference=_floyd_warshall_reference,
        flops=_floyd_warshall_flops,
        error_terms=lambda extents: 1,
        inputs=_floyd_warshall_inputs,
        minimum={"n": 2},
    ),
    Program(
        name="nussinov",
        env_id="Nussinov",
        summary="The most pairs of complementary bases without crossings, in every stretch of a sequence",
        suite="PolyBench",
        split="test",
        extents=("n",),
        train=((192,), (128,), (256,)),
        test=((224,), (179,)),
        arguments=_nussinov_arguments,
        mlir=_nussinov_mlir,
        reference=_nussinov_reference,
        flops=_nussinov_flops,
        error_terms=lambda extents: 1,
        inputs=_nussinov_inputs,
        minimum={"n": 3},
    ),
)
"""Solvers, filters and dynamic programs."""
