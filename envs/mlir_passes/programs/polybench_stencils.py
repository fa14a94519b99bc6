"""The stencils of PolyBench/C 4.2, written from their mathematical definitions.

All are affine loops on memrefs: a loop over time steps around sweeps over the grid. The border of a grid is
read and stays as it is. Where PolyBench alternates between two arrays, both are arguments; of the second only
the border is read and only the interior is written.

``flops`` counts the operations of the definition after what a compiler may do to it: constants are folded and
factored out, and a sum that neighbouring points share is counted once. It does not count on two time steps
being merged into one.
"""

from __future__ import annotations

from string import Template

import numpy as np
from numpy.typing import NDArray

from solgym.envs.mlir_passes.programs.program import Argument, Extents, Program
from solgym.hardware.task import DType

__all__ = ["PROGRAMS"]

_Array = NDArray[np.float64]


def _alternating_arguments(extents: Extents, rank: int) -> tuple[Argument, ...]:
    """Two arrays of a stencil on the cross of a point's neighbours in ``rank`` dimensions."""
    n = extents["n"]
    interior = (n - 2) ** rank
    border = 2 * rank * (n - 2) ** (rank - 1)
    return (
        Argument("A", (n,) * rank, "inout", touched=interior),
        # Its border is read and its interior written; the lesser number holds for both.
        Argument("B", (n,) * rank, "inout", touched=min(border, interior)),
    )


# Two implicit half steps of the heat equation, one a direction.

_ADI_COLUMNS = 3.0
_ADI_ROWS = 1.5

_ADI = Template("""\
func.func @main(%u: memref<${n}x${n}x$type>) {
  %zero = arith.constant 0.0 : $type
  %one = arith.constant 1.0 : $type
  %a = arith.constant $off_columns : $type
  %b = arith.constant $on_columns : $type
  %a_explicit = arith.constant $explicit_columns : $type
  %d = arith.constant $off_rows : $type
  %e = arith.constant $on_rows : $type
  %d_explicit = arith.constant $explicit_rows : $type
  %v = memref.alloc() : memref<${n}x${n}x$type>
  %p = memref.alloc() : memref<${n}x${n}x$type>
  %q = memref.alloc() : memref<${n}x${n}x$type>
  affine.for %step = 0 to $steps {
    affine.for %i = 1 to $last {
      affine.store %one, %v[0, %i] : memref<${n}x${n}x$type>
      affine.store %zero, %p[%i, 0] : memref<${n}x${n}x$type>
      affine.store %one, %q[%i, 0] : memref<${n}x${n}x$type>
      affine.for %j = 1 to $last {
        %p_before = affine.load %p[%i, %j - 1] : memref<${n}x${n}x$type>
        %part = arith.mulf %a, %p_before : $type
        %pivot = arith.addf %part, %b : $type
        %minus_a = arith.negf %a : $type
        %p_here = arith.divf %minus_a, %pivot : $type
        affine.store %p_here, %p[%i, %j] : memref<${n}x${n}x$type>
        %left = affine.load %u[%j, %i - 1] : memref<${n}x${n}x$type>
        %centre = affine.load %u[%j, %i] : memref<${n}x${n}x$type>
        %right = affine.load %u[%j, %i + 1] : memref<${n}x${n}x$type>
        %left_part = arith.mulf %d, %left : $type
        %centre_part = arith.mulf %d_explicit, %centre : $type
        %right_part = arith.mulf %d, %right : $type
        %q_before = affine.load %q[%i, %j - 1] : memref<${n}x${n}x$type>
        %carried = arith.mulf %a, %q_before : $type
        %sum1 = arith.subf %centre_part, %left_part : $type
        %sum2 = arith.subf %sum1, %right_part : $type
        %sum3 = arith.subf %sum2, %carried : $type
        %q_here = arith.divf %sum3, %pivot : $type
        affine.store %q_here, %q[%i, %j] : memref<${n}x${n}x$type>
      }
      affine.store %one, %v[$last, %i] : memref<${n}x${n}x$type>
      affine.for %back = 1 to $last {
        %p_here = affine.load %p[%i, $last - %back] : memref<${n}x${n}x$type>
        %v_after = affine.load %v[$n - %back, %i] : memref<${n}x${n}x$type>
        %q_here = affine.load %q[%i, $last - %back] : memref<${n}x${n}x$type>
        %part = arith.mulf %p_here, %v_after : $type
        %v_here = arith.addf %part, %q_here : $type
        affine.store %v_here, %v[$last - %back, %i] : memref<${n}x${n}x$type>
      }
    }
    affine.for %i = 1 to $last {
      affine.store %one, %u[%i, 0] : memref<${n}x${n}x$type>
      affine.store %zero, %p[%i, 0] : memref<${n}x${n}x$type>
      affine.store %one, %q[%i, 0] : memref<${n}x${n}x$type>
      affine.for %j = 1 to $last {
        %p_before = affine.load %p[%i, %j - 1] : memref<${n}x${n}x$type>
        %part = arith.mulf %d, %p_before : $type
        %pivot = arith.addf %part, %e : $type
        %minus_d = arith.negf %d : $type
        %p_here = arith.divf %minus_d, %pivot : $type
        affine.store %p_here, %p[%i, %j] : memref<${n}x${n}x$type>
        %above = affine.load %v[%i - 1, %j] : memref<${n}x${n}x$type>
        %centre = affine.load %v[%i, %j] : memref<${n}x${n}x$type>
        %below = affine.load %v[%i + 1, %j] : memref<${n}x${n}x$type>
        %above_part = arith.mulf %a, %above : $type
        %centre_part = arith.mulf %a_explicit, %centre : $type
        %below_part = arith.mulf %a, %below : $type
        %q_before = affine.load %q[%i, %j - 1] : memref<${n}x${n}x$type>
        %carried = arith.mulf %d, %q_before : $type
        %sum1 = arith.subf %centre_part, %above_part : $type
        %sum2 = arith.subf %sum1, %below_part : $type
        %sum3 = arith.subf %sum2, %carried : $type
        %q_here = arith.divf %sum3, %pivot : $type
        affine.store %q_here, %q[%i, %j] : memref<${n}x${n}x$type>
      }
      affine.store %one, %u[%i, $last] : memref<${n}x${n}x$type>
      affine.for %back = 1 to $last {
        %p_here = affine.load %p[%i, $last - %back] : memref<${n}x${n}x$type>
        %u_after = affine.load %u[%i, $n - %back] : memref<${n}x${n}x$type>
        %q_here = affine.load %q[%i, $last - %back] : memref<${n}x${n}x$type>
        %part = arith.mulf %p_here, %u_after : $type
        %u_here = arith.addf %part, %q_here : $type
        affine.store %u_here, %u[%i, $last - %back] : memref<${n}x${n}x$type>
      }
    }
  }
  memref.dealloc %v : memref<${n}x${n}x$type>
  memref.dealloc %p : memref<${n}x${n}x$type>
  memref.dealloc %q : memref<${n}x${n}x$type>
  return
}
""")


def _adi_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    # The first and the last row are neither read nor written.
    return (Argument("u", (n, n), "inout", touched=(n - 2) * n),)


def _adi_mlir(extents: Extents, dtype: DType) -> str:
    # PolyBench ties these to both extents, which makes the systems too stiff for single precision; here the
    # time step is 1.5 squares of the grid's spacing. As there, columns diffuse twice as fast as rows.
    return _ADI.substitute(
        extents,
        type=dtype,
        last=extents["n"] - 1,
        off_columns=-_ADI_COLUMNS / 2.0,
        on_columns=1.0 + _ADI_COLUMNS,
        explicit_columns=1.0 - _ADI_COLUMNS,
        off_rows=-_ADI_ROWS / 2.0,
        on_rows=1.0 + _ADI_ROWS,
        explicit_rows=1.0 - _ADI_ROWS,
    )


def _half_step(u: _Array, implicit: float, explicit: float) -> _Array:
    """Step implicitly along axis 0 and explicitly along axis 1, with ones at the ends of axis 0."""
    n = len(u)
    right_side = (1.0 - explicit) * u[1:-1, 1:-1] + explicit / 2.0 * (u[1:-1, :-2] + u[1:-1, 2:])
    right_side[0] += implicit / 2.0
    right_side[-1] += implicit / 2.0
    # Elimination of (-implicit/2, 1 + implicit, -implicit/2), every column of the grid at once.
    pivots = np.full(n - 2, 1.0 + implicit)
    for j in range(1, n - 2):
        factor = implicit / 2.0 / pivots[j - 1]
        pivots[j] -= factor * implicit / 2.0
        right_side[j] += factor * right_side[j - 1]
    result = u.copy()
    result[0, 1:-1] = result[-1, 1:-1] = 1.0
    result[-2, 1:-1] = right_side[-1] / pivots[-1]
    for j in range(n - 3, 0, -1):
        result[j, 1:-1] = (right_side[j - 1] + implicit / 2.0 * result[j + 1, 1:-1]) / pivots[j - 1]
    return result


def _adi_reference(extents: Extents, u: _Array) -> tuple[_Array, ...]:
    for _ in range(extents["steps"]):
        v = _half_step(u, _ADI_COLUMNS, _ADI_ROWS)
        after = _half_step(v.T, _ADI_ROWS, _ADI_COLUMNS).T
        u = u.copy()
        u[1:-1] = after[1:-1]
    return (u,)


def _adi_flops(extents: Extents) -> int:
    line = extents["n"] - 2
    # Of the elimination only the right sides depend on data: four operations for the explicit part, a
    # multiply-add and a product with the pivot's reciprocal on the way down, a multiply-add on the way back.
    # Both ways start from a one, which saves a product.
    return 2 * extents["steps"] * line * ((4 + 2 + 1 + 2) * line - 2)


# Maxwell's equations in two dimensions, by finite differences in time.

_FDTD_2D = Template("""\
func.func @main(%ex: memref<${nx}x${ny}x$type>, %ey: memref<${nx}x${ny}x$type>,
                %hz: memref<${nx}x${ny}x$type>, %source: memref<${steps}x$type>) {
  %half = arith.constant 0.5 : $type
  %factor = arith.constant 0.7 : $type
  affine.for %step = 0 to $steps {
    affine.for %j = 0 to $ny {
      %value = affine.load %source[%step] : memref<${steps}x$type>
      affine.store %value, %ey[0, %j] : memref<${nx}x${ny}x$type>
    }
    affine.for %i = 1 to $nx {
      affine.for %j = 0 to $ny {
        %old = affine.load %ey[%i, %j] : memref<${nx}x${ny}x$type>
        %here = affine.load %hz[%i, %j] : memref<${nx}x${ny}x$type>
        %above = affine.load %hz[%i - 1, %j] : memref<${nx}x${ny}x$type>
        %difference = arith.subf %here, %above : $type
        %change = arith.mulf %half, %difference : $type
        %new = arith.subf %old, %change : $type
        affine.store %new, %ey[%i, %j] : memref<${nx}x${ny}x$type>
      }
    }
    affine.for %i = 0 to $nx {
      affine.for %j = 1 to $ny {
        %old = affine.load %ex[%i, %j] : memref<${nx}x${ny}x$type>
        %here = affine.load %hz[%i, %j] : memref<${nx}x${ny}x$type>
        %left = affine.load %hz[%i, %j - 1] : memref<${nx}x${ny}x$type>
        %difference = arith.subf %here, %left : $type
        %change = arith.mulf %half, %difference : $type
        %new = arith.subf %old, %change : $type
        affine.store %new, %ex[%i, %j] : memref<${nx}x${ny}x$type>
      }
    }
    affine.for %i = 0 to $last_x {
      affine.for %j = 0 to $last_y {
        %old = affine.load %hz[%i, %j] : memref<${nx}x${ny}x$type>
        %ex_right = affine.load %ex[%i, %j + 1] : memref<${nx}x${ny}x$type>
        %ex_here = affine.load %ex[%i, %j] : memref<${nx}x${ny}x$type>
        %ey_below = affine.load %ey[%i + 1, %j] : memref<${nx}x${ny}x$type>
        %ey_here = affine.load %ey[%i, %j] : memref<${nx}x${ny}x$type>
        %sum1 = arith.subf %ex_right, %ex_here : $type
        %sum2 = arith.addf %sum1, %ey_below : $type
        %curl = arith.subf %sum2, %ey_here : $type
        %change = arith.mulf %factor, %curl : $type
        %new = arith.subf %old, %change : $type
        affine.store %new, %hz[%i, %j] : memref<${nx}x${ny}x$type>
      }
    }
  }
  return
}
""")


def _fdtd_2d_arguments(extents: Extents) -> tuple[Argument, ...]:
    nx, ny = extents["nx"], extents["ny"]
    return (
        # The first column of ex and the last ones of hz are only read, the first row of ey only written.
        Argument("ex", (nx, ny), "inout", touched=nx * (ny - 1)),
        Argument("ey", (nx, ny), "inout", touched=(nx - 1) * ny),
        Argument("hz", (nx, ny), "inout", touched=(nx - 1) * (ny - 1)),
        Argument("source", (extents["steps"],)),
    )


def _fdtd_2d_mlir(extents: Extents, dtype: DType) -> str:
    return _FDTD_2D.substitute(extents, type=dtype, last_x=extents["nx"] - 1, last_y=extents["ny"] - 1)


def _fdtd_2d_reference(
    extents: Extents, ex: _Array, ey: _Array, hz: _Array, source: _Array
) -> tuple[_Array, ...]:
    ex, ey, hz = ex.copy(), ey.copy(), hz.copy()
    for value in source:
        ey[0] = value
        ey[1:] -= 0.5 * np.diff(hz, axis=0)
        ex[:, 1:] -= 0.5 * np.diff(hz, axis=1)
        hz[:-1, :-1] -= 0.7 * (np.diff(ex, axis=1)[:-1] + np.diff(ey, axis=0)[:, :-1])
    return ex, ey, hz


def _fdtd_2d_flops(extents: Extents) -> int:
    nx, ny = extents["nx"], extents["ny"]
    return extents["steps"] * (3 * (nx - 1) * ny + 3 * nx * (ny - 1) + 5 * (nx - 1) * (ny - 1))


# Heat conduction in three dimensions.

_HEAT_3D = Template("""\
func.func @main(%A: memref<${n}x${n}x${n}x$type>, %B: memref<${n}x${n}x${n}x$type>) {
  %eighth = arith.constant 0.125 : $type
  %two = arith.constant 2.0 : $type
  affine.for %step = 0 to $steps {
$there
$back
  }
  return
}
""")

_HEAT_3D_SWEEP = Template("""\
    affine.for %i = 1 to $last {
      affine.for %j = 1 to $last {
        affine.for %k = 1 to $last {
          %centre = affine.load $source[%i, %j, %k] : memref<${n}x${n}x${n}x$type>
          %twice = arith.mulf %two, %centre : $type
          %i_after = affine.load $source[%i + 1, %j, %k] : memref<${n}x${n}x${n}x$type>
          %i_before = affine.load $source[%i - 1, %j, %k] : memref<${n}x${n}x${n}x$type>
          %i_left = arith.subf %i_after, %twice : $type
          %i_second = arith.addf %i_left, %i_before : $type
          %i_part = arith.mulf %eighth, %i_second : $type
          %j_after = affine.load $source[%i, %j + 1, %k] : memref<${n}x${n}x${n}x$type>
          %j_before = affine.load $source[%i, %j - 1, %k] : memref<${n}x${n}x${n}x$type>
          %j_left = arith.subf %j_after, %twice : $type
          %j_second = arith.addf %j_left, %j_before : $type
          %j_part = arith.mulf %eighth, %j_second : $type
          %k_after = affine.load $source[%i, %j, %k + 1] : memref<${n}x${n}x${n}x$type>
          %k_before = affine.load $source[%i, %j, %k - 1] : memref<${n}x${n}x${n}x$type>
          %k_left = arith.subf %k_after, %twice : $type
          %k_second = arith.addf %k_left, %k_before : $type
          %k_part = arith.mulf %eighth, %k_second : $type
          %sum1 = arith.addf %i_part, %j_part : $type
          %sum2 = arith.addf %sum1, %k_part : $type
          %new = arith.addf %sum2, %centre : $type
          affine.store %new, $target[%i, %j, %k] : memref<${n}x${n}x${n}x$type>
        }
      }
    }""")


def _heat_3d_arguments(extents: Extents) -> tuple[Argument, ...]:
    return _alternating_arguments(extents, 3)


def _heat_3d_mlir(extents: Extents, dtype: DType) -> str:
    there, back = (
        _HEAT_3D_SWEEP.substitute(extents, type=dtype, last=extents["n"] - 1, source=source, target=target)
        for source, target in (("%A", "%B"), ("%B", "%A"))
    )
    return _HEAT_3D.substitute(extents, type=dtype, there=there, back=back)


def _heat_3d_reference(extents: Extents, a: _Array, b: _Array) -> tuple[_Array, ...]:
    a, b = a.copy(), b.copy()
    inside = slice(1, -1)
    for _ in range(extents["steps"]):
        for source, target in ((a, b), (b, a)):
            neighbours = source[:-2, inside, inside] + source[2:, inside, inside]
            neighbours += source[inside, :-2, inside] + source[inside, 2:, inside]
            neighbours += source[inside, inside, :-2] + source[inside, inside, 2:]
            target[inside, inside, inside] = (neighbours + 2.0 * source[inside, inside, inside]) / 8.0
    return a, b


def _heat_3d_flops(extents: Extents) -> int:
    # Six neighbours, of which two and two are pairs that a diagonal neighbour shares: four sums a point. A
    # product with 1/8, one of the centre with 1/4, and their sum.
    return 2 * extents["steps"] * 7 * (extents["n"] - 2) ** 3


# The mean of a point and its two neighbours.

_JACOBI_1D = Template("""\
func.func @main(%A: memref<${n}x$type>, %B: memref<${n}x$type>) {
  %third = arith.constant 0.33333333333333333 : $type
  affine.for %step = 0 to $steps {
$there
$back
  }
  return
}
""")

_JACOBI_1D_SWEEP = Template("""\
    affine.for %i = 1 to $last {
      %left = affine.load $source[%i - 1] : memref<${n}x$type>
      %centre = affine.load $source[%i] : memref<${n}x$type>
      %right = affine.load $source[%i + 1] : memref<${n}x$type>
      %sum1 = arith.addf %left, %centre : $type
      %sum2 = arith.addf %sum1, %right : $type
      %mean = arith.mulf %third, %sum2 : $type
      affine.store %mean, $target[%i] : memref<${n}x$type>
    }""")


def _jacobi_1d_arguments(extents: Extents) -> tuple[Argument, ...]:
    return _alternating_arguments(extents, 1)


def _jacobi_1d_mlir(extents: Extents, dtype: DType) -> str:
    there, back = (
        _JACOBI_1D_SWEEP.substitute(extents, type=dtype, last=extents["n"] - 1, source=source, target=target)
        for source, target in (("%A", "%B"), ("%B", "%A"))
    )
    return _JACOBI_1D.substitute(extents, type=dtype, there=there, back=back)


def _jacobi_1d_reference(extents: Extents, a: _Array, b: _Array) -> tuple[_Array, ...]:
    a, b = a.copy(), b.copy()
    for _ in range(extents["steps"]):
        for source, target in ((a, b), (b, a)):
            target[1:-1] = (source[:-2] + source[1:-1] + source[2:]) / 3.0
    return a, b


def _jacobi_1d_flops(extents: Extents) -> int:
    # Two neighbouring points share a sum: three sums and two products for both.
    return 2 * extents["steps"] * (5 * (extents["n"] - 2) // 2)


# The mean of a point and its four neighbours.

_JACOBI_2D = Template("""\
func.func @main(%A: memref<${n}x${n}x$type>, %B: memref<${n}x${n}x$type>) {
  %fifth = arith.constant 0.2 : $type
  affine.for %step = 0 to $steps {
$there
$back
  }
  return
}
""")

_JACOBI_2D_SWEEP = Template("""\
    affine.for %i = 1 to $last {
      affine.for %j = 1 to $last {
        %centre = affine.load $source[%i, %j] : memref<${n}x${n}x$type>
        %left = affine.load $source[%i, %j - 1] : memref<${n}x${n}x$type>
        %right = affine.load $source[%i, %j + 1] : memref<${n}x${n}x$type>
        %below = affine.load $source[%i + 1, %j] : memref<${n}x${n}x$type>
        %above = affine.load $source[%i - 1, %j] : memref<${n}x${n}x$type>
        %sum1 = arith.addf %centre, %left : $type
        %sum2 = arith.addf %sum1, %right : $type
        %sum3 = arith.addf %sum2, %below : $type
        %sum4 = arith.addf %sum3, %above : $type
        %mean = arith.mulf %fifth, %sum4 : $type
        affine.store %mean, $target[%i, %j] : memref<${n}x${n}x$type>
      }
    }""")


def _jacobi_2d_arguments(extents: Extents) -> tuple[Argument, ...]:
    return _alternating_arguments(extents, 2)


def _jacobi_2d_mlir(extents: Extents, dtype: DType) -> str:
    there, back = (
        _JACOBI_2D_SWEEP.substitute(extents, type=dtype, last=extents["n"] - 1, source=source, target=target)
        for source, target in (("%A", "%B"), ("%B", "%A"))
    )
    return _JACOBI_2D.substitute(extents, type=dtype, there=there, back=back)


def _jacobi_2d_reference(extents: Extents, a: _Array, b: _Array) -> tuple[_Array, ...]:
    a, b = a.copy(), b.copy()
    for _ in range(extents["steps"]):
        for source, target in ((a, b), (b, a)):
            total = source[1:-1, 1:-1] + source[:-2, 1:-1] + source[2:, 1:-1]
            target[1:-1, 1:-1] = (total + source[1:-1, :-2] + source[1:-1, 2:]) / 5.0
    return a, b


def _jacobi_2d_flops(extents: Extents) -> int:
    # The sum of the left and the upper neighbour is that of the lower and the right one of the point
    # diagonally above: one sum for the pair, two to join, and a product.
    return 2 * extents["steps"] * 4 * (extents["n"] - 2) ** 2


# The mean of a point and its eight neighbours, in place.

_SEIDEL_2D = Template("""\
func.func @main(%A: memref<${n}x${n}x$type>) {
  %nine = arith.constant 9.0 : $type
  affine.for %step = 0 to $steps {
    affine.for %i = 1 to $last {
      affine.for %j = 1 to $last {
        %above_left = affine.load %A[%i - 1, %j - 1] : memref<${n}x${n}x$type>
        %above = affine.load %A[%i - 1, %j] : memref<${n}x${n}x$type>
        %above_right = affine.load %A[%i - 1, %j + 1] : memref<${n}x${n}x$type>
        %left = affine.load %A[%i, %j - 1] : memref<${n}x${n}x$type>
        %centre = affine.load %A[%i, %j] : memref<${n}x${n}x$type>
        %right = affine.load %A[%i, %j + 1] : memref<${n}x${n}x$type>
        %below_left = affine.load %A[%i + 1, %j - 1] : memref<${n}x${n}x$type>
        %below = affine.load %A[%i + 1, %j] : memref<${n}x${n}x$type>
        %below_right = affine.load %A[%i + 1, %j + 1] : memref<${n}x${n}x$type>
        %sum1 = arith.addf %above_left, %above : $type
        %sum2 = arith.addf %sum1, %above_right : $type
        %sum3 = arith.addf %sum2, %left : $type
        %sum4 = arith.addf %sum3, %centre : $type
        %sum5 = arith.addf %sum4, %right : $type
        %sum6 = arith.addf %sum5, %below_left : $type
        %sum7 = arith.addf %sum6, %below : $type
        %sum8 = arith.addf %sum7, %below_right : $type
        %mean = arith.divf %sum8, %nine : $type
        affine.store %mean, %A[%i, %j] : memref<${n}x${n}x$type>
      }
    }
  }
  return
}
""")


def _seidel_2d_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    return (Argument("A", (n, n), "inout", touched=(n - 2) ** 2),)


def _seidel_2d_mlir(extents: Extents, dtype: DType) -> str:
    return _SEIDEL_2D.substitute(extents, type=dtype, last=extents["n"] - 1)


def _seidel_2d_reference(extents: Extents, a: _Array) -> tuple[_Array, ...]:
    a = a.copy()
    places = np.arange(1, extents["n"] - 1, dtype=np.float64)
    # Along a row x[j] = (known[j] + x[j-1]) / 9, so known is weighted by powers of 1/9, of which those beyond
    # the twentieth are below rounding.
    response = 9.0 ** -np.arange(1.0, 21.0)
    decay = 9.0**-places
    for _ in range(extents["steps"]):
        for i in range(1, extents["n"] - 1):
            outer = a[i - 1] + a[i + 1]
            known = outer[:-2] + outer[1:-1] + outer[2:] + a[i, 1:-1] + a[i, 2:]
            a[i, 1:-1] = np.convolve(known, response)[: len(places)] + a[i, 0] * decay
    return (a,)


def _seidel_2d_flops(extents: Extents) -> int:
    # Sums of three along a row serve the row above and the row below, and points in a row share their pairs:
    # two sums for pairs and threes, three to join them with the left neighbour, and a division.
    return 6 * extents["steps"] * (extents["n"] - 2) ** 2


# Default grids have an interior that is a multiple of 32 in each direction, so that it tiles evenly.
PROGRAMS: tuple[Program, ...] = (
    Program(
        name="adi",
        env_id="Adi",
        summary="The heat equation by alternating directions: tridiagonal systems along columns, then rows",
        suite="PolyBench",
        split="train",
        extents=("steps", "n"),
        train=((8, 130), (8, 66), (4, 192)),
        test=((6, 96), (3, 141)),
        arguments=_adi_arguments,
        mlir=_adi_mlir,
        reference=_adi_reference,
        flops=_adi_flops,
        error_terms=lambda extents: 12 * extents["steps"] * extents["n"],
        minimum={"n": 3},
    ),
    Program(
        name="fdtd_2d",
        env_id="Fdtd2d",
        summary="Maxwell's equations on a staggered grid: ey and ex from hz, then hz from ex and ey",
        suite="PolyBench",
        split="train",
        extents=("steps", "nx", "ny"),
        train=((32, 256, 384), (16, 128, 256), (16, 384, 512)),
        test=((24, 320, 320), (19, 221, 347)),
        arguments=_fdtd_2d_arguments,
        mlir=_fdtd_2d_mlir,
        reference=_fdtd_2d_reference,
        flops=_fdtd_2d_flops,
        error_terms=lambda extents: 8 * extents["steps"],
        minimum={"nx": 2, "ny": 2},
    ),
    Program(
        name="heat_3d",
        env_id="Heat3d",
        summary="The heat equation in three dimensions, from A to B and back",
        suite="PolyBench",
        split="test",
        extents=("steps", "n"),
        train=((8, 66), (8, 34), (4, 96)),
        test=((8, 48), (9, 53)),
        arguments=_heat_3d_arguments,
        mlir=_heat_3d_mlir,
        reference=_heat_3d_reference,
        flops=_heat_3d_flops,
        error_terms=lambda extents: 12 * extents["steps"],
        minimum={"n": 3},
    ),
    Program(
        name="jacobi_1d",
        env_id="Jacobi1d",
        summary="The mean of a point and its two neighbours, from A to B and back",
        suite="PolyBench",
        split="train",
        extents=("steps", "n"),
        train=((128, 65538), (64, 16386), (32, 262144)),
        test=((64, 131072), (91, 40007)),
        arguments=_jacobi_1d_arguments,
        mlir=_jacobi_1d_mlir,
        reference=_jacobi_1d_reference,
        flops=_jacobi_1d_flops,
        error_terms=lambda extents: 6 * extents["steps"],
        minimum={"n": 3},
    ),
    Program(
        name="jacobi_2d",
        env_id="Jacobi2d",
        summary="The mean of a point and its four neighbours, from A to B and back",
        suite="PolyBench",
        split="train",
        extents=("steps", "n"),
        train=((24, 386), (32, 194), (8, 768)),
        test=((16, 512), (21, 349)),
        arguments=_jacobi_2d_arguments,
        mlir=_jacobi_2d_mlir,
        reference=_jacobi_2d_reference,
        flops=_jacobi_2d_flops,
        error_terms=lambda extents: 10 * extents["steps"],
        dtypes=("f32", "f64"),
        minimum={"n": 3},
    ),
    Program(
        name="seidel_2d",
        env_id="Seidel2d",
        summary="The mean of a point and its eight neighbours, in place",
        suite="PolyBench",
        split="test",
        extents=("steps", "n"),
        train=((16, 130), (8, 194), (32, 64)),
        test=((6, 256), (13, 149)),
        arguments=_seidel_2d_arguments,
        mlir=_seidel_2d_mlir,
        reference=_seidel_2d_reference,
        flops=_seidel_2d_flops,
        # A new value waits for the one before it, for the row above and for the sweep before.
        error_terms=lambda extents: 9 * (4 * extents["steps"] + 3 * extents["n"]),
        minimum={"n": 3},
    ),
)
"""Stencils over time steps."""
