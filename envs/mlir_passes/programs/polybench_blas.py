"""The BLAS programs of PolyBench/C 4.2, and the plain matrix product that is compared with BLAS libraries.

Where PolyBench takes scalars, they are the constants ``ALPHA`` and ``BETA`` here. A matrix of which only one
triangle is defined is stored as a whole square; the rest is neither used nor changed.

An array that is changed in place enters through one ``to_tensor ... writable``, and the tensor that ends in
it is computed on that very tensor. A result computed on a ``tensor.empty`` would not do: passes that replace
empty tensors by their destination do not see that the old values are still to be read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solgym.envs.mlir_passes.programs.mlir_text import module_text
from solgym.envs.mlir_passes.programs.program import Argument, Extents, Program
from solgym.hardware.task import DType

__all__ = ["ALPHA", "BETA", "PROGRAMS"]

ALPHA = 1.5
BETA = 1.2

Matrix = NDArray[np.float64]
"""A float64 array, of any rank."""


def _triangle(order: int) -> int:
    """Elements of a triangle with its diagonal."""
    return order * (order + 1) // 2


# C = A B ----------------------------------------------------------------------------------------------------

_GEMM = """
func.func @main(%A: !memref_A, %B: !memref_B, %C: !memref_C) {
  %zero = arith.constant 0.0 : !f
  %a = bufferization.to_tensor %A restrict : !memref_A to !tensor_A
  %b = bufferization.to_tensor %B restrict : !memref_B to !tensor_B
  %empty = tensor.empty() : !tensor_C
  %zeros = linalg.fill ins(%zero : !f) outs(%empty : !tensor_C) -> !tensor_C
  %product = linalg.matmul ins(%a, %b : !tensor_A, !tensor_B) outs(%zeros : !tensor_C) -> !tensor_C
  bufferization.materialize_in_destination %product in restrict writable %C : (!tensor_C, !memref_C) -> ()
  return
}
"""


def _gemm_mlir(extents: Extents, dtype: DType) -> str:
    m, n, k = extents["m"], extents["n"], extents["k"]
    return module_text(_GEMM, dtype, {"A": (m, k), "B": (k, n), "C": (m, n)})


def _gemm_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n, k = extents["m"], extents["n"], extents["k"]
    return Argument("A", (m, k)), Argument("B", (k, n)), Argument("C", (m, n), "out")


GEMM = Program(
    name="gemm",
    env_id="Gemm",
    summary="C = A B",
    suite="PolyBench",
    split="train",
    extents=("m", "n", "k"),
    train=((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (128, 512, 320)),
    test=((384, 384, 384), (200, 220, 240), (768, 128, 512)),
    arguments=_gemm_arguments,
    mlir=_gemm_mlir,
    reference=lambda extents, a, b: (a @ b,),
    flops=lambda e: 2 * e["m"] * e["n"] * e["k"],
    error_terms=lambda e: e["k"],
    dtypes=("f32", "f64"),
)


# C = alpha A B + beta C -------------------------------------------------------------------------------------

_GEMM_UPDATE = """
#same = affine_map<(i, j) -> (i, j)>
func.func @main(%C: !memref_C, %A: !memref_A, %B: !memref_B) {
  %alpha = arith.constant $alpha : !f
  %beta = arith.constant $beta : !f
  %c = bufferization.to_tensor %C restrict writable : !memref_C to !tensor_C
  %a = bufferization.to_tensor %A restrict : !memref_A to !tensor_A
  %b = bufferization.to_tensor %B restrict : !memref_B to !tensor_B
  %beta_c = linalg.generic {indexing_maps = [#same], iterator_types = ["parallel", "parallel"]}
      outs(%c : !tensor_C) {
  ^bb0(%old: !f):
    %scaled = arith.mulf %beta, %old : !f
    linalg.yield %scaled : !f
  } -> !tensor_C
  %empty = tensor.empty() : !tensor_A
  %alpha_a = linalg.generic {indexing_maps = [#same, #same], iterator_types = ["parallel", "parallel"]}
      ins(%a : !tensor_A) outs(%empty : !tensor_A) {
  ^bb0(%element: !f, %unused: !f):
    %scaled = arith.mulf %alpha, %element : !f
    linalg.yield %scaled : !f
  } -> !tensor_A
  %result = linalg.matmul ins(%alpha_a, %b : !tensor_A, !tensor_B) outs(%beta_c : !tensor_C) -> !tensor_C
  bufferization.materialize_in_destination %result in restrict writable %C : (!tensor_C, !memref_C) -> ()
  return
}
"""


def _gemm_update_mlir(extents: Extents, dtype: DType) -> str:
    m, n, k = extents["m"], extents["n"], extents["k"]
    shapes = {"A": (m, k), "B": (k, n), "C": (m, n)}
    return module_text(_GEMM_UPDATE, dtype, shapes, alpha=ALPHA, beta=BETA)


def _gemm_update_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n, k = extents["m"], extents["n"], extents["k"]
    return Argument("C", (m, n), "inout"), Argument("A", (m, k)), Argument("B", (k, n))


def _gemm_update_flops(extents: Extents) -> int:
    m, n, k = extents["m"], extents["n"], extents["k"]
    # Alpha may be applied to either factor or to the product.
    return 2 * m * n * k + m * n + min(m * n, m * k, k * n)


GEMM_UPDATE = Program(
    name="gemm_update",
    env_id="GemmUpdate",
    summary="C = alpha A B + beta C",
    suite="PolyBench",
    split="train",
    extents=("m", "n", "k"),
    train=((192, 256, 192), (256, 256, 512), (512, 512, 512)),
    test=((320, 320, 320), (200, 220, 240)),
    arguments=_gemm_update_arguments,
    mlir=_gemm_update_mlir,
    reference=lambda extents, c, a, b: (ALPHA * (a @ b) + BETA * c,),
    flops=_gemm_update_flops,
    error_terms=lambda e: e["k"] + 2,
)


# A = A + u1 v1' + u2 v2';  x = beta A' y + z;  w = alpha A x ------------------------------------------------

_GEMVER = """
#row = affine_map<(i, j) -> (i)>
#column = affine_map<(i, j) -> (j)>
#same = affine_map<(i, j) -> (i, j)>
#element = affine_map<(i) -> (i)>
func.func @main(%A: !memref_A, %u1: !memref_x, %v1: !memref_x, %u2: !memref_x, %v2: !memref_x,
                %y: !memref_x, %z: !memref_x, %x: !memref_x, %w: !memref_x) {
  %zero = arith.constant 0.0 : !f
  %alpha = arith.constant $alpha : !f
  %beta = arith.constant $beta : !f
  %a = bufferization.to_tensor %A restrict writable : !memref_A to !tensor_A
  %u1_values = bufferization.to_tensor %u1 restrict : !memref_x to !tensor_x
  %v1_values = bufferization.to_tensor %v1 restrict : !memref_x to !tensor_x
  %u2_values = bufferization.to_tensor %u2 restrict : !memref_x to !tensor_x
  %v2_values = bufferization.to_tensor %v2 restrict : !memref_x to !tensor_x
  %y_values = bufferization.to_tensor %y restrict : !memref_x to !tensor_x
  %z_values = bufferization.to_tensor %z restrict : !memref_x to !tensor_x
  %updated = linalg.generic {indexing_maps = [#row, #column, #row, #column, #same],
                             iterator_types = ["parallel", "parallel"]}
      ins(%u1_values, %v1_values, %u2_values, %v2_values : !tensor_x, !tensor_x, !tensor_x, !tensor_x)
      outs(%a : !tensor_A) {
  ^bb0(%u1_i: !f, %v1_j: !f, %u2_i: !f, %v2_j: !f, %old: !f):
    %first = arith.mulf %u1_i, %v1_j : !f
    %second = arith.mulf %u2_i, %v2_j : !f
    %partial = arith.addf %old, %first : !f
    %new = arith.addf %partial, %second : !f
    linalg.yield %new : !f
  } -> !tensor_A
  %empty = tensor.empty() : !tensor_x
  %zeros = linalg.fill ins(%zero : !f) outs(%empty : !tensor_x) -> !tensor_x
  %transposed_product = linalg.vecmat ins(%y_values, %updated : !tensor_x, !tensor_A)
      outs(%zeros : !tensor_x) -> !tensor_x
  %x_empty = tensor.empty() : !tensor_x
  %x_values = linalg.generic {indexing_maps = [#element, #element, #element], iterator_types = ["parallel"]}
      ins(%transposed_product, %z_values : !tensor_x, !tensor_x) outs(%x_empty : !tensor_x) {
  ^bb0(%sum: !f, %z_i: !f, %unused: !f):
    %scaled = arith.mulf %beta, %sum : !f
    %shifted = arith.addf %scaled, %z_i : !f
    linalg.yield %shifted : !f
  } -> !tensor_x
  %product = linalg.matvec ins(%updated, %x_values : !tensor_A, !tensor_x)
      outs(%zeros : !tensor_x) -> !tensor_x
  %w_empty = tensor.empty() : !tensor_x
  %w_values = linalg.generic {indexing_maps = [#element, #element], iterator_types = ["parallel"]}
      ins(%product : !tensor_x) outs(%w_empty : !tensor_x) {
  ^bb0(%sum: !f, %unused: !f):
    %scaled = arith.mulf %alpha, %sum : !f
    linalg.yield %scaled : !f
  } -> !tensor_x
  bufferization.materialize_in_destination %updated in restrict writable %A : (!tensor_A, !memref_A) -> ()
  bufferization.materialize_in_destination %x_values in restrict writable %x : (!tensor_x, !memref_x) -> ()
  bufferization.materialize_in_destination %w_values in restrict writable %w : (!tensor_x, !memref_x) -> ()
  return
}
"""


def _gemver_mlir(extents: Extents, dtype: DType) -> str:
    n = extents["n"]
    return module_text(_GEMVER, dtype, {"A": (n, n), "x": (n,)}, alpha=ALPHA, beta=BETA)


def _gemver_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    vectors = tuple(Argument(name, (n,)) for name in ("u1", "v1", "u2", "v2", "y", "z"))
    return Argument("A", (n, n), "inout"), *vectors, Argument("x", (n,), "out"), Argument("w", (n,), "out")


def _gemver_reference(
    extents: Extents, a: Matrix, u1: Matrix, v1: Matrix, u2: Matrix, v2: Matrix, y: Matrix, z: Matrix
) -> tuple[Matrix, ...]:
    updated = a + np.outer(u1, v1) + np.outer(u2, v2)
    x = BETA * (updated.T @ y) + z
    return updated, x, ALPHA * (updated @ x)


GEMVER = Program(
    name="gemver",
    env_id="Gemver",
    summary="A = A + u1 v1^T + u2 v2^T; x = beta A^T y + z; w = alpha A x",
    suite="PolyBench",
    split="train",
    extents=("n",),
    train=((512,), (768,), (1024,)),
    test=((640,), (403,)),
    arguments=_gemver_arguments,
    mlir=_gemver_mlir,
    reference=_gemver_reference,
    flops=lambda e: 8 * e["n"] ** 2 + 2 * e["n"],
    error_terms=lambda e: 2 * e["n"] + 8,
)


# y = alpha A x + beta B x -----------------------------------------------------------------------------------

_GESUMMV = """
#element = affine_map<(i) -> (i)>
func.func @main(%A: !memref_A, %B: !memref_A, %x: !memref_x, %y: !memref_x) {
  %zero = arith.constant 0.0 : !f
  %alpha = arith.constant $alpha : !f
  %beta = arith.constant $beta : !f
  %a = bufferization.to_tensor %A restrict : !memref_A to !tensor_A
  %b = bufferization.to_tensor %B restrict : !memref_A to !tensor_A
  %x_values = bufferization.to_tensor %x restrict : !memref_x to !tensor_x
  %empty = tensor.empty() : !tensor_x
  %zeros = linalg.fill ins(%zero : !f) outs(%empty : !tensor_x) -> !tensor_x
  %a_x = linalg.matvec ins(%a, %x_values : !tensor_A, !tensor_x) outs(%zeros : !tensor_x) -> !tensor_x
  %b_x = linalg.matvec ins(%b, %x_values : !tensor_A, !tensor_x) outs(%zeros : !tensor_x) -> !tensor_x
  %y_empty = tensor.empty() : !tensor_x
  %sum = linalg.generic {indexing_maps = [#element, #element, #element], iterator_types = ["parallel"]}
      ins(%a_x, %b_x : !tensor_x, !tensor_x) outs(%y_empty : !tensor_x) {
  ^bb0(%from_a: !f, %from_b: !f, %unused: !f):
    %alpha_a = arith.mulf %alpha, %from_a : !f
    %beta_b = arith.mulf %beta, %from_b : !f
    %total = arith.addf %alpha_a, %beta_b : !f
    linalg.yield %total : !f
  } -> !tensor_x
  bufferization.materialize_in_destination %sum in restrict writable %y : (!tensor_x, !memref_x) -> ()
  return
}
"""


def _gesummv_mlir(extents: Extents, dtype: DType) -> str:
    n = extents["n"]
    return module_text(_GESUMMV, dtype, {"A": (n, n), "x": (n,)}, alpha=ALPHA, beta=BETA)


def _gesummv_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    return Argument("A", (n, n)), Argument("B", (n, n)), Argument("x", (n,)), Argument("y", (n,), "out")


GESUMMV = Program(
    name="gesummv",
    env_id="Gesummv",
    summary="y = alpha A x + beta B x",
    suite="PolyBench",
    split="test",
    extents=("n",),
    train=((1536,), (1024,), (768,)),
    test=((1152,), (997,)),
    arguments=_gesummv_arguments,
    mlir=_gesummv_mlir,
    reference=lambda extents, a, b, x: (ALPHA * (a @ x) + BETA * (b @ x),),
    flops=lambda e: 4 * e["n"] ** 2 + 2 * e["n"],
    error_terms=lambda e: e["n"] + 3,
)


# C = alpha A B + beta C with a symmetric A ------------------------------------------------------------------

# Row i of A serves twice: as row i for C[i], and as column i for the rows of C above.
_SYMM = """
func.func @main(%A: !memref_A, %B: !memref_B, %C: !memref_B) {
  %alpha = arith.constant $alpha : !f
  %beta = arith.constant $beta : !f
  affine.for %i = 0 to $m {
    affine.for %j = 0 to $n {
      %b_ij = affine.load %B[%i, %j] : !memref_B
      %alpha_b = arith.mulf %alpha, %b_ij : !f
      %a_ii = affine.load %A[%i, %i] : !memref_A
      %diagonal = arith.mulf %a_ii, %alpha_b : !f
      %old = affine.load %C[%i, %j] : !memref_B
      %beta_c = arith.mulf %beta, %old : !f
      %start = arith.addf %beta_c, %diagonal : !f
      affine.store %start, %C[%i, %j] : !memref_B
      affine.for %k = 0 to affine_map<(i) -> (i)>(%i) {
        %a_ik = affine.load %A[%i, %k] : !memref_A
        %above = affine.load %C[%k, %j] : !memref_B
        %share = arith.mulf %a_ik, %alpha_b : !f
        %above_new = arith.addf %above, %share : !f
        affine.store %above_new, %C[%k, %j] : !memref_B
        %b_kj = affine.load %B[%k, %j] : !memref_B
        %alpha_b_kj = arith.mulf %alpha, %b_kj : !f
        %product = arith.mulf %a_ik, %alpha_b_kj : !f
        %own = affine.load %C[%i, %j] : !memref_B
        %own_new = arith.addf %own, %product : !f
        affine.store %own_new, %C[%i, %j] : !memref_B
      }
    }
  }
  return
}
"""


def _symm_mlir(extents: Extents, dtype: DType) -> str:
    m, n = extents["m"], extents["n"]
    return module_text(_SYMM, dtype, {"A": (m, m), "B": (m, n)}, m=m, n=n, alpha=ALPHA, beta=BETA)


def _symm_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return (
        Argument("A", (m, m), touched=_triangle(m)),
        Argument("B", (m, n)),
        Argument("C", (m, n), "inout"),
    )


def _symm_reference(extents: Extents, a: Matrix, b: Matrix, c: Matrix) -> tuple[Matrix, ...]:
    symmetric = np.tril(a) + np.tril(a, -1).T
    return (ALPHA * (symmetric @ b) + BETA * c,)


def _symm_flops(extents: Extents) -> int:
    m, n = extents["m"], extents["n"]
    return 2 * m * m * n + m * n + min(_triangle(m), m * n)


SYMM = Program(
    name="symm",
    env_id="Symm",
    summary="C = alpha A B + beta C, A symmetric and given by its lower triangle",
    suite="PolyBench",
    split="train",
    extents=("m", "n"),
    train=((128, 128), (192, 256), (256, 256)),
    test=((160, 192), (100, 131)),
    arguments=_symm_arguments,
    mlir=_symm_mlir,
    reference=_symm_reference,
    flops=_symm_flops,
    error_terms=lambda e: e["m"] + 3,
)


# C = alpha A A' + beta C, and C = alpha (A B' + B A') + beta C, on the lower triangle -----------------------

_SYRK = """
#same = affine_map<(i, j) -> (i, j)>
func.func @main(%C: !memref_C, %A: !memref_A) {
  %zero = arith.constant 0.0 : !f
  %alpha = arith.constant $alpha : !f
  %beta = arith.constant $beta : !f
  %c = bufferization.to_tensor %C restrict writable : !memref_C to !tensor_C
  %a = bufferization.to_tensor %A restrict : !memref_A to !tensor_A
  %transposed_empty = tensor.empty() : !tensor_T
  %a_transposed = linalg.transpose ins(%a : !tensor_A)
      outs(%transposed_empty : !tensor_T) permutation = [1, 0]
  %empty = tensor.empty() : !tensor_C
  %zeros = linalg.fill ins(%zero : !f) outs(%empty : !tensor_C) -> !tensor_C
  %product = linalg.matmul ins(%a, %a_transposed : !tensor_A, !tensor_T)
      outs(%zeros : !tensor_C) -> !tensor_C
  %result = linalg.generic {indexing_maps = [#same, #same], iterator_types = ["parallel", "parallel"]}
      ins(%product : !tensor_C) outs(%c : !tensor_C) {
  ^bb0(%sum: !f, %old: !f):
    %i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %lower = arith.cmpi sge, %i, %j : index
    %alpha_sum = arith.mulf %alpha, %sum : !f
    %beta_old = arith.mulf %beta, %old : !f
    %new = arith.addf %alpha_sum, %beta_old : !f
    %kept = arith.select %lower, %new, %old : !f
    linalg.yield %kept : !f
  } -> !tensor_C
  bufferization.materialize_in_destination %result in restrict writable %C : (!tensor_C, !memref_C) -> ()
  return
}
"""


def _syrk_mlir(extents: Extents, dtype: DType) -> str:
    n, m = extents["n"], extents["m"]
    return module_text(_SYRK, dtype, {"C": (n, n), "A": (n, m), "T": (m, n)}, alpha=ALPHA, beta=BETA)


def _syrk_arguments(extents: Extents) -> tuple[Argument, ...]:
    n, m = extents["n"], extents["m"]
    return Argument("C", (n, n), "inout", touched=_triangle(n)), Argument("A", (n, m))


def _syrk_reference(extents: Extents, c: Matrix, a: Matrix) -> tuple[Matrix, ...]:
    lower = np.tril(np.ones_like(c)) == 1
    return (np.where(lower, ALPHA * (a @ a.T) + BETA * c, c),)


def _syrk_flops(extents: Extents) -> int:
    n, m = extents["n"], extents["m"]
    return 2 * _triangle(n) * m + _triangle(n) + min(_triangle(n), n * m)


SYRK = Program(
    name="syrk",
    env_id="Syrk",
    summary="C = alpha A A^T + beta C on the lower triangle",
    suite="PolyBench",
    split="train",
    extents=("n", "m"),
    train=((192, 192), (256, 256), (512, 256)),
    test=((320, 192), (203, 150)),
    arguments=_syrk_arguments,
    mlir=_syrk_mlir,
    reference=_syrk_reference,
    flops=_syrk_flops,
    error_terms=lambda e: e["m"] + 3,
)


_SYR2K = """
#same = affine_map<(i, j) -> (i, j)>
func.func @main(%C: !memref_C, %A: !memref_A, %B: !memref_A) {
  %zero = arith.constant 0.0 : !f
  %alpha = arith.constant $alpha : !f
  %beta = arith.constant $beta : !f
  %c = bufferization.to_tensor %C restrict writable : !memref_C to !tensor_C
  %a = bufferization.to_tensor %A restrict : !memref_A to !tensor_A
  %b = bufferization.to_tensor %B restrict : !memref_A to !tensor_A
  %a_empty = tensor.empty() : !tensor_T
  %a_transposed = linalg.transpose ins(%a : !tensor_A) outs(%a_empty : !tensor_T) permutation = [1, 0]
  %b_empty = tensor.empty() : !tensor_T
  %b_transposed = linalg.transpose ins(%b : !tensor_A) outs(%b_empty : !tensor_T) permutation = [1, 0]
  %empty = tensor.empty() : !tensor_C
  %zeros = linalg.fill ins(%zero : !f) outs(%empty : !tensor_C) -> !tensor_C
  %first = linalg.matmul ins(%a, %b_transposed : !tensor_A, !tensor_T)
      outs(%zeros : !tensor_C) -> !tensor_C
  %both = linalg.matmul ins(%b, %a_transposed : !tensor_A, !tensor_T)
      outs(%first : !tensor_C) -> !tensor_C
  %result = linalg.generic {indexing_maps = [#same, #same], iterator_types = ["parallel", "parallel"]}
      ins(%both : !tensor_C) outs(%c : !tensor_C) {
  ^bb0(%sum: !f, %old: !f):
    %i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %lower = arith.cmpi sge, %i, %j : index
    %alpha_sum = arith.mulf %alpha, %sum : !f
    %beta_old = arith.mulf %beta, %old : !f
    %new = arith.addf %alpha_sum, %beta_old : !f
    %kept = arith.select %lower, %new, %old : !f
    linalg.yield %kept : !f
  } -> !tensor_C
  bufferization.materialize_in_destination %result in restrict writable %C : (!tensor_C, !memref_C) -> ()
  return
}
"""


def _syr2k_mlir(extents: Extents, dtype: DType) -> str:
    n, m = extents["n"], extents["m"]
    return module_text(_SYR2K, dtype, {"C": (n, n), "A": (n, m), "T": (m, n)}, alpha=ALPHA, beta=BETA)


def _syr2k_arguments(extents: Extents) -> tuple[Argument, ...]:
    n, m = extents["n"], extents["m"]
    return Argument("C", (n, n), "inout", touched=_triangle(n)), Argument("A", (n, m)), Argument("B", (n, m))


def _syr2k_reference(extents: Extents, c: Matrix, a: Matrix, b: Matrix) -> tuple[Matrix, ...]:
    lower = np.tril(np.ones_like(c)) == 1
    return (np.where(lower, ALPHA * (a @ b.T + b @ a.T) + BETA * c, c),)


def _syr2k_flops(extents: Extents) -> int:
    n, m = extents["n"], extents["m"]
    # The whole of A B' once, added to its transpose, takes fewer operations than two triangles.
    return 2 * n * n * m + _triangle(n)


SYR2K = Program(
    name="syr2k",
    env_id="Syr2k",
    summary="C = alpha (A B^T + B A^T) + beta C on the lower triangle",
    suite="PolyBench",
    split="test",
    extents=("n", "m"),
    train=((128, 192), (192, 192), (256, 256)),
    test=((160, 320), (187, 130)),
    arguments=_syr2k_arguments,
    mlir=_syr2k_mlir,
    reference=_syr2k_reference,
    flops=_syr2k_flops,
    error_terms=lambda e: 2 * e["m"] + 3,
)


# B = alpha A' B with a unit lower triangular A --------------------------------------------------------------

_TRMM = """
func.func @main(%A: !memref_A, %B: !memref_B) {
  %alpha = arith.constant $alpha : !f
  affine.for %i = 0 to $m {
    affine.for %j = 0 to $n {
      affine.for %k = affine_map<(i) -> (i + 1)>(%i) to $m {
        %a_ki = affine.load %A[%k, %i] : !memref_A
        %b_kj = affine.load %B[%k, %j] : !memref_B
        %product = arith.mulf %a_ki, %b_kj : !f
        %sum = affine.load %B[%i, %j] : !memref_B
        %sum_new = arith.addf %sum, %product : !f
        affine.store %sum_new, %B[%i, %j] : !memref_B
      }
      %total = affine.load %B[%i, %j] : !memref_B
      %scaled = arith.mulf %alpha, %total : !f
      affine.store %scaled, %B[%i, %j] : !memref_B
    }
  }
  return
}
"""


def _trmm_mlir(extents: Extents, dtype: DType) -> str:
    m, n = extents["m"], extents["n"]
    return module_text(_TRMM, dtype, {"A": (m, m), "B": (m, n)}, m=m, n=n, alpha=ALPHA)


def _trmm_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return Argument("A", (m, m), touched=_triangle(m - 1)), Argument("B", (m, n), "inout")


def _trmm_reference(extents: Extents, a: Matrix, b: Matrix) -> tuple[Matrix, ...]:
    unit_lower = np.tril(a, -1) + np.eye(extents["m"])
    return (ALPHA * (unit_lower.T @ b),)


TRMM = Program(
    name="trmm",
    env_id="Trmm",
    summary="B = alpha A^T B in place, A unit lower triangular",
    suite="PolyBench",
    split="train",
    extents=("m", "n"),
    train=((192, 192), (256, 256), (256, 512)),
    test=((192, 320), (153, 190)),
    arguments=_trmm_arguments,
    mlir=_trmm_mlir,
    reference=_trmm_reference,
    flops=lambda e: 2 * _triangle(e["m"] - 1) * e["n"] + e["m"] * e["n"],
    error_terms=lambda e: e["m"] + 1,
)

PROGRAMS: tuple[Program, ...] = (GEMM, GEMM_UPDATE, GEMVER, GESUMMV, SYMM, SYR2K, SYRK, TRMM)
