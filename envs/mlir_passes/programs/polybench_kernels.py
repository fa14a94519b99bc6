"""The kernels and data-mining programs of PolyBench/C 4.2.

``polybench_blas`` says how scalars and arrays changed in place are treated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from solgym.envs.mlir_passes.programs.mlir_text import module_text
from solgym.envs.mlir_passes.programs.polybench_blas import ALPHA, BETA, Matrix
from solgym.envs.mlir_passes.programs.program import Argument, Extents, Program
from solgym.hardware.task import DType

__all__ = ["PROGRAMS", "chain_flops"]


def chain_flops(extents: Sequence[int]) -> int:
    """The fewest operations for a product of matrices, over all orders of multiplication.

    Args:
        extents: rows of the first matrix, then the columns of each.
    """
    if len(extents) < 3:
        return 0
    return min(
        chain_flops(extents[: cut + 1])
        + chain_flops(extents[cut:])
        + 2 * extents[0] * extents[cut] * extents[-1]
        for cut in range(1, len(extents) - 1)
    )


# D = alpha A B C + beta D -----------------------------------------------------------------------------------

_2MM = """
#same = affine_map<(i, j) -> (i, j)>
func.func @main(%A: !memref_A, %B: !memref_B, %C: !memref_C, %D: !memref_D) {
  %zero = arith.constant 0.0 : !f
  %alpha = arith.constant $alpha : !f
  %beta = arith.constant $beta : !f
  %a = bufferization.to_tensor %A restrict : !memref_A to !tensor_A
  %b = bufferization.to_tensor %B restrict : !memref_B to !tensor_B
  %c = bufferization.to_tensor %C restrict : !memref_C to !tensor_C
  %d = bufferization.to_tensor %D restrict writable : !memref_D to !tensor_D
  %empty = tensor.empty() : !tensor_AB
  %zeros = linalg.fill ins(%zero : !f) outs(%empty : !tensor_AB) -> !tensor_AB
  %a_b = linalg.matmul ins(%a, %b : !tensor_A, !tensor_B) outs(%zeros : !tensor_AB) -> !tensor_AB
  %scaled_empty = tensor.empty() : !tensor_AB
  %alpha_a_b = linalg.generic {indexing_maps = [#same, #same], iterator_types = ["parallel", "parallel"]}
      ins(%a_b : !tensor_AB) outs(%scaled_empty : !tensor_AB) {
  ^bb0(%element: !f, %unused: !f):
    %scaled = arith.mulf %alpha, %element : !f
    linalg.yield %scaled : !f
  } -> !tensor_AB
  %beta_d = linalg.generic {indexing_maps = [#same], iterator_types = ["parallel", "parallel"]}
      outs(%d : !tensor_D) {
  ^bb0(%old: !f):
    %scaled = arith.mulf %beta, %old : !f
    linalg.yield %scaled : !f
  } -> !tensor_D
  %result = linalg.matmul ins(%alpha_a_b, %c : !tensor_AB, !tensor_C) outs(%beta_d : !tensor_D) -> !tensor_D
  bufferization.materialize_in_destination %result in restrict writable %D : (!tensor_D, !memref_D) -> ()
  return
}
"""


def _2mm_mlir(extents: Extents, dtype: DType) -> str:
    ni, nj, nk, nl = (extents[name] for name in ("ni", "nj", "nk", "nl"))
    shapes = {"A": (ni, nk), "B": (nk, nj), "C": (nj, nl), "D": (ni, nl), "AB": (ni, nj)}
    return module_text(_2MM, dtype, shapes, alpha=ALPHA, beta=BETA)


def _2mm_arguments(extents: Extents) -> tuple[Argument, ...]:
    ni, nj, nk, nl = (extents[name] for name in ("ni", "nj", "nk", "nl"))
    return (
        Argument("A", (ni, nk)),
        Argument("B", (nk, nj)),
        Argument("C", (nj, nl)),
        Argument("D", (ni, nl), "inout"),
    )


def _2mm_flops(extents: Extents) -> int:
    ni, nj, nk, nl = (extents[name] for name in ("ni", "nj", "nk", "nl"))
    # Alpha may be applied to any factor or to either product.
    scaled = min(ni * nk, nk * nj, nj * nl, ni * nj, nk * nl, ni * nl)
    return chain_flops((ni, nk, nj, nl)) + scaled + ni * nl


TWO_MM = Program(
    name="2mm",
    env_id="2mm",
    summary="D = alpha A B C + beta D",
    suite="PolyBench",
    split="train",
    extents=("ni", "nj", "nk", "nl"),
    train=((160, 192, 160, 192), (192, 192, 192, 192), (256, 256, 256, 256)),
    test=((192, 256, 128, 320), (180, 190, 210, 220)),
    arguments=_2mm_arguments,
    mlir=_2mm_mlir,
    reference=lambda extents, a, b, c, d: (ALPHA * (a @ b @ c) + BETA * d,),
    flops=_2mm_flops,
    error_terms=lambda e: e["nk"] + e["nj"] + 3,
)


# G = (A B) (C D) --------------------------------------------------------------------------------------------

_3MM = """
func.func @main(%A: !memref_A, %B: !memref_B, %C: !memref_C, %D: !memref_D, %G: !memref_G) {
  %zero = arith.constant 0.0 : !f
  %a = bufferization.to_tensor %A restrict : !memref_A to !tensor_A
  %b = bufferization.to_tensor %B restrict : !memref_B to !tensor_B
  %c = bufferization.to_tensor %C restrict : !memref_C to !tensor_C
  %d = bufferization.to_tensor %D restrict : !memref_D to !tensor_D
  %e_empty = tensor.empty() : !tensor_E
  %e_zeros = linalg.fill ins(%zero : !f) outs(%e_empty : !tensor_E) -> !tensor_E
  %e = linalg.matmul ins(%a, %b : !tensor_A, !tensor_B) outs(%e_zeros : !tensor_E) -> !tensor_E
  %f_empty = tensor.empty() : !tensor_F
  %f_zeros = linalg.fill ins(%zero : !f) outs(%f_empty : !tensor_F) -> !tensor_F
  %f = linalg.matmul ins(%c, %d : !tensor_C, !tensor_D) outs(%f_zeros : !tensor_F) -> !tensor_F
  %g_empty = tensor.empty() : !tensor_G
  %g_zeros = linalg.fill ins(%zero : !f) outs(%g_empty : !tensor_G) -> !tensor_G
  %g = linalg.matmul ins(%e, %f : !tensor_E, !tensor_F) outs(%g_zeros : !tensor_G) -> !tensor_G
  bufferization.materialize_in_destination %g in restrict writable %G : (!tensor_G, !memref_G) -> ()
  return
}
"""


def _3mm_mlir(extents: Extents, dtype: DType) -> str:
    ni, nj, nk, nl, nm = (extents[name] for name in ("ni", "nj", "nk", "nl", "nm"))
    shapes = {
        "A": (ni, nk),
        "B": (nk, nj),
        "C": (nj, nm),
        "D": (nm, nl),
        "E": (ni, nj),
        "F": (nj, nl),
        "G": (ni, nl),
    }
    return module_text(_3MM, dtype, shapes)


def _3mm_arguments(extents: Extents) -> tuple[Argument, ...]:
    ni, nj, nk, nl, nm = (extents[name] for name in ("ni", "nj", "nk", "nl", "nm"))
    return (
        Argument("A", (ni, nk)),
        Argument("B", (nk, nj)),
        Argument("C", (nj, nm)),
        Argument("D", (nm, nl)),
        Argument("G", (ni, nl), "out"),
    )


THREE_MM = Program(
    name="3mm",
    env_id="3mm",
    summary="G = (A B) (C D)",
    suite="PolyBench",
    split="test",
    extents=("ni", "nj", "nk", "nl", "nm"),
    train=((160, 160, 160, 160, 160), (192, 192, 192, 192, 192), (160, 192, 224, 256, 128)),
    test=((128, 192, 128, 192, 256), (180, 190, 200, 210, 220)),
    arguments=_3mm_arguments,
    mlir=_3mm_mlir,
    reference=lambda extents, a, b, c, d: ((a @ b) @ (c @ d),),
    flops=lambda e: chain_flops((e["ni"], e["nk"], e["nj"], e["nm"], e["nl"])),
    error_terms=lambda e: e["nk"] + e["nm"] + e["nj"],
)


# y = A' (A x) -----------------------------------------------------------------------------------------------

_ATAX = """
func.func @main(%A: !memref_A, %x: !memref_x, %y: !memref_x) {
  %zero = arith.constant 0.0 : !f
  %a = bufferization.to_tensor %A restrict : !memref_A to !tensor_A
  %x_values = bufferization.to_tensor %x restrict : !memref_x to !tensor_x
  %rows_empty = tensor.empty() : !tensor_rows
  %rows_zeros = linalg.fill ins(%zero : !f) outs(%rows_empty : !tensor_rows) -> !tensor_rows
  %a_x = linalg.matvec ins(%a, %x_values : !tensor_A, !tensor_x)
      outs(%rows_zeros : !tensor_rows) -> !tensor_rows
  %empty = tensor.empty() : !tensor_x
  %zeros = linalg.fill ins(%zero : !f) outs(%empty : !tensor_x) -> !tensor_x
  %result = linalg.vecmat ins(%a_x, %a : !tensor_rows, !tensor_A) outs(%zeros : !tensor_x) -> !tensor_x
  bufferization.materialize_in_destination %result in restrict writable %y : (!tensor_x, !memref_x) -> ()
  return
}
"""


def _atax_mlir(extents: Extents, dtype: DType) -> str:
    m, n = extents["m"], extents["n"]
    return module_text(_ATAX, dtype, {"A": (m, n), "x": (n,), "rows": (m,)})


def _atax_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return Argument("A", (m, n)), Argument("x", (n,)), Argument("y", (n,), "out")


ATAX = Program(
    name="atax",
    env_id="Atax",
    summary="y = A^T (A x)",
    suite="PolyBench",
    split="train",
    extents=("m", "n"),
    train=((512, 512), (768, 1024), (1024, 1024)),
    test=((640, 768), (390, 410)),
    arguments=_atax_arguments,
    mlir=_atax_mlir,
    reference=lambda extents, a, x: (a.T @ (a @ x),),
    flops=lambda e: 4 * e["m"] * e["n"],
    error_terms=lambda e: e["m"] + e["n"],
    dtypes=("f32", "f64"),
)


# s = A' r;  q = A p -----------------------------------------------------------------------------------------

# Where A is square, `cse` makes one of the two fills. So that passes which compute results in their
# destination see whose memory that is, s moves into its tensor before it moves into the memref.
_BICG = """
func.func @main(%A: !memref_A, %p: !memref_p, %r: !memref_r, %s: !memref_p, %q: !memref_r) {
  %zero = arith.constant 0.0 : !f
  %a = bufferization.to_tensor %A restrict : !memref_A to !tensor_A
  %p_values = bufferization.to_tensor %p restrict : !memref_p to !tensor_p
  %r_values = bufferization.to_tensor %r restrict : !memref_r to !tensor_r
  %s_tensor = bufferization.to_tensor %s restrict writable : !memref_p to !tensor_p
  %s_empty = tensor.empty() : !tensor_p
  %s_zeros = linalg.fill ins(%zero : !f) outs(%s_empty : !tensor_p) -> !tensor_p
  %s_values = linalg.vecmat ins(%r_values, %a : !tensor_r, !tensor_A) outs(%s_zeros : !tensor_p) -> !tensor_p
  %q_empty = tensor.empty() : !tensor_r
  %q_zeros = linalg.fill ins(%zero : !f) outs(%q_empty : !tensor_r) -> !tensor_r
  %q_values = linalg.matvec ins(%a, %p_values : !tensor_A, !tensor_p) outs(%q_zeros : !tensor_r) -> !tensor_r
  %s_moved = bufferization.materialize_in_destination %s_values in %s_tensor
      : (!tensor_p, !tensor_p) -> !tensor_p
  bufferization.materialize_in_destination %s_moved in restrict writable %s : (!tensor_p, !memref_p) -> ()
  bufferization.materialize_in_destination %q_values in restrict writable %q : (!tensor_r, !memref_r) -> ()
  return
}
"""


def _bicg_mlir(extents: Extents, dtype: DType) -> str:
    n, m = extents["n"], extents["m"]
    return module_text(_BICG, dtype, {"A": (n, m), "p": (m,), "r": (n,)})


def _bicg_arguments(extents: Extents) -> tuple[Argument, ...]:
    n, m = extents["n"], extents["m"]
    return (
        Argument("A", (n, m)),
        Argument("p", (m,)),
        Argument("r", (n,)),
        Argument("s", (m,), "out"),
        Argument("q", (n,), "out"),
    )


BICG = Program(
    name="bicg",
    env_id="Bicg",
    summary="s = A^T r; q = A p",
    suite="PolyBench",
    split="train",
    extents=("n", "m"),
    train=((512, 512), (1024, 768), (1024, 1024)),
    test=((640, 768), (410, 390)),
    arguments=_bicg_arguments,
    mlir=_bicg_mlir,
    reference=lambda extents, a, p, r: (r @ a, a @ p),
    flops=lambda e: 4 * e["n"] * e["m"],
    error_terms=lambda e: max(e["n"], e["m"]),
)


# A[r, q, :] = A[r, q, :] C4 ---------------------------------------------------------------------------------

# The product moves into the tensor of A first, and only then into the memref, so that passes which compute
# results in their destination see that A is still to be read.
_DOITGEN = """
func.func @main(%A: !memref_A, %C4: !memref_C4) {
  %zero = arith.constant 0.0 : !f
  %a = bufferization.to_tensor %A restrict writable : !memref_A to !tensor_A
  %c4 = bufferization.to_tensor %C4 restrict : !memref_C4 to !tensor_C4
  %rows = tensor.collapse_shape %a [[0, 1], [2]] : !tensor_A into !tensor_rows
  %empty = tensor.empty() : !tensor_rows
  %zeros = linalg.fill ins(%zero : !f) outs(%empty : !tensor_rows) -> !tensor_rows
  %product = linalg.matmul ins(%rows, %c4 : !tensor_rows, !tensor_C4)
      outs(%zeros : !tensor_rows) -> !tensor_rows
  %sum = tensor.expand_shape %product [[0, 1], [2]] output_shape [$nr, $nq, $np] : !tensor_rows into !tensor_A
  %result = bufferization.materialize_in_destination %sum in %a : (!tensor_A, !tensor_A) -> !tensor_A
  bufferization.materialize_in_destination %result in restrict writable %A : (!tensor_A, !memref_A) -> ()
  return
}
"""


def _doitgen_mlir(extents: Extents, dtype: DType) -> str:
    nr, nq, np_ = extents["nr"], extents["nq"], extents["np"]
    shapes = {"A": (nr, nq, np_), "C4": (np_, np_), "rows": (nr * nq, np_)}
    return module_text(_DOITGEN, dtype, shapes, nr=nr, nq=nq, np=np_)


def _doitgen_arguments(extents: Extents) -> tuple[Argument, ...]:
    nr, nq, np_ = extents["nr"], extents["nq"], extents["np"]
    return Argument("A", (nr, nq, np_), "inout"), Argument("C4", (np_, np_))


DOITGEN = Program(
    name="doitgen",
    env_id="Doitgen",
    summary="A[r, q, :] = A[r, q, :] C4 in place, for all r and q",
    suite="PolyBench",
    split="train",
    extents=("nr", "nq", "np"),
    train=((32, 32, 96), (48, 40, 128), (64, 64, 160)),
    test=((40, 48, 112), (37, 43, 101)),
    arguments=_doitgen_arguments,
    mlir=_doitgen_mlir,
    reference=lambda extents, a, c4: (np.einsum("rqs,sp->rqp", a, c4, optimize=True),),
    flops=lambda e: 2 * e["nr"] * e["nq"] * e["np"] ** 2,
    error_terms=lambda e: e["np"],
)


# x1 = x1 + A y1;  x2 = x2 + A' y2 ---------------------------------------------------------------------------

_MVT = """
func.func @main(%x1: !memref_x, %x2: !memref_x, %y1: !memref_x, %y2: !memref_x, %A: !memref_A) {
  %x1_old = bufferization.to_tensor %x1 restrict writable : !memref_x to !tensor_x
  %x2_old = bufferization.to_tensor %x2 restrict writable : !memref_x to !tensor_x
  %y1_values = bufferization.to_tensor %y1 restrict : !memref_x to !tensor_x
  %y2_values = bufferization.to_tensor %y2 restrict : !memref_x to !tensor_x
  %a = bufferization.to_tensor %A restrict : !memref_A to !tensor_A
  %x1_new = linalg.matvec ins(%a, %y1_values : !tensor_A, !tensor_x) outs(%x1_old : !tensor_x) -> !tensor_x
  %x2_new = linalg.vecmat ins(%y2_values, %a : !tensor_x, !tensor_A) outs(%x2_old : !tensor_x) -> !tensor_x
  bufferization.materialize_in_destination %x1_new in restrict writable %x1 : (!tensor_x, !memref_x) -> ()
  bufferization.materialize_in_destination %x2_new in restrict writable %x2 : (!tensor_x, !memref_x) -> ()
  return
}
"""


def _mvt_mlir(extents: Extents, dtype: DType) -> str:
    n = extents["n"]
    return module_text(_MVT, dtype, {"A": (n, n), "x": (n,)})


def _mvt_arguments(extents: Extents) -> tuple[Argument, ...]:
    n = extents["n"]
    return (
        Argument("x1", (n,), "inout"),
        Argument("x2", (n,), "inout"),
        Argument("y1", (n,)),
        Argument("y2", (n,)),
        Argument("A", (n, n)),
    )


MVT = Program(
    name="mvt",
    env_id="Mvt",
    summary="x1 = x1 + A y1; x2 = x2 + A^T y2",
    suite="PolyBench",
    split="train",
    extents=("n",),
    train=((512,), (768,), (1024,)),
    test=((640,), (400,), (411,)),
    arguments=_mvt_arguments,
    mlir=_mvt_mlir,
    reference=lambda extents, x1, x2, y1, y2, a: (x1 + a @ y1, x2 + y2 @ a),
    flops=lambda e: 4 * e["n"] ** 2,
    error_terms=lambda e: e["n"] + 1,
)


# Correlation and covariance of the columns of a table of n observations of m variables ----------------------

_CORRELATION = """
#table = affine_map<(i, j) -> (i, j)>
#column = affine_map<(i, j) -> (j)>
#element = affine_map<(j) -> (j)>
#left = affine_map<(i, j, k) -> (k, i)>
#right = affine_map<(i, j, k) -> (k, j)>
#result = affine_map<(i, j, k) -> (i, j)>
func.func @main(%data: !memref_data, %corr: !memref_corr) {
  %zero = arith.constant 0.0 : !f
  %one = arith.constant 1.0 : !f
  %least = arith.constant $least : !f
  %count = arith.constant $n.0 : !f
  %root = arith.constant $root : !f
  %x = bufferization.to_tensor %data restrict : !memref_data to !tensor_data
  %columns = tensor.empty() : !tensor_columns
  %zeros = linalg.fill ins(%zero : !f) outs(%columns : !tensor_columns) -> !tensor_columns
  %sum = linalg.reduce {arith.addf} ins(%x : !tensor_data) outs(%zeros : !tensor_columns) dimensions = [0]
  %mean = linalg.generic {indexing_maps = [#element, #element], iterator_types = ["parallel"]}
      ins(%sum : !tensor_columns) outs(%columns : !tensor_columns) {
  ^bb0(%total: !f, %unused: !f):
    %quotient = arith.divf %total, %count : !f
    linalg.yield %quotient : !f
  } -> !tensor_columns
  %squares = linalg.generic {indexing_maps = [#table, #column, #column],
                             iterator_types = ["reduction", "parallel"]}
      ins(%x, %mean : !tensor_data, !tensor_columns) outs(%zeros : !tensor_columns) {
  ^bb0(%value: !f, %center: !f, %total: !f):
    %difference = arith.subf %value, %center : !f
    %square = arith.mulf %difference, %difference : !f
    %new = arith.addf %total, %square : !f
    linalg.yield %new : !f
  } -> !tensor_columns
  %scale = linalg.generic {indexing_maps = [#element, #element], iterator_types = ["parallel"]}
      ins(%squares : !tensor_columns) outs(%columns : !tensor_columns) {
  ^bb0(%total: !f, %unused: !f):
    %variance = arith.divf %total, %count : !f
    %deviation = math.sqrt %variance : !f
    %constant = arith.cmpf ole, %deviation, %least : !f
    %divisor = arith.select %constant, %one, %deviation : !f
    %length = arith.mulf %root, %divisor : !f
    %factor = arith.divf %one, %length : !f
    linalg.yield %factor : !f
  } -> !tensor_columns
  %table = tensor.empty() : !tensor_data
  %standard = linalg.generic {indexing_maps = [#table, #column, #column, #table],
                              iterator_types = ["parallel", "parallel"]}
      ins(%x, %mean, %scale : !tensor_data, !tensor_columns, !tensor_columns) outs(%table : !tensor_data) {
  ^bb0(%value: !f, %center: !f, %factor: !f, %unused: !f):
    %difference = arith.subf %value, %center : !f
    %scaled = arith.mulf %difference, %factor : !f
    linalg.yield %scaled : !f
  } -> !tensor_data
  %empty = tensor.empty() : !tensor_corr
  %corr_zeros = linalg.fill ins(%zero : !f) outs(%empty : !tensor_corr) -> !tensor_corr
  %product = linalg.matmul indexing_maps = [#left, #right, #result]
      ins(%standard, %standard : !tensor_data, !tensor_data) outs(%corr_zeros : !tensor_corr) -> !tensor_corr
  bufferization.materialize_in_destination %product in restrict writable %corr
      : (!tensor_corr, !memref_corr) -> ()
  return
}
"""

LEAST_DEVIATION = 0.1
"""Columns that deviate no more than this are only centred, as in PolyBench."""


def _correlation_mlir(extents: Extents, dtype: DType) -> str:
    m, n = extents["m"], extents["n"]
    shapes = {"data": (n, m), "columns": (m,), "corr": (m, m)}
    return module_text(_CORRELATION, dtype, shapes, n=n, root=math.sqrt(n), least=LEAST_DEVIATION)


def _correlation_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return Argument("data", (n, m)), Argument("corr", (m, m), "out")


def _correlation_reference(extents: Extents, data: Matrix) -> tuple[Matrix, ...]:
    deviation = data.std(axis=0)
    deviation[deviation <= LEAST_DEVIATION] = 1.0
    standard = (data - data.mean(axis=0)) / (math.sqrt(extents["n"]) * deviation)
    return (standard.T @ standard,)


def _moments_flops(extents: Extents) -> int:
    """Sums of the columns and of their products, each pair once; the rest is of lower order."""
    m, n = extents["m"], extents["n"]
    return n * m * (m + 1) + n * m


CORRELATION = Program(
    name="correlation",
    env_id="Correlation",
    summary="corr = Z^T Z, where Z has the columns of data, centred and scaled to length one",
    suite="PolyBench",
    split="train",
    extents=("m", "n"),
    train=((160, 192), (192, 256), (256, 384)),
    test=((192, 320), (130, 170)),
    arguments=_correlation_arguments,
    mlir=_correlation_mlir,
    reference=_correlation_reference,
    flops=_moments_flops,
    error_terms=lambda e: 2 * e["n"] + 6,
    minimum={"n": 2},
)


_COVARIANCE = """
#table = affine_map<(i, j) -> (i, j)>
#column = affine_map<(i, j) -> (j)>
#element = affine_map<(j) -> (j)>
#left = affine_map<(i, j, k) -> (k, i)>
#right = affine_map<(i, j, k) -> (k, j)>
#result = affine_map<(i, j, k) -> (i, j)>
func.func @main(%data: !memref_data, %cov: !memref_cov) {
  %zero = arith.constant 0.0 : !f
  %count = arith.constant $n.0 : !f
  %degrees = arith.constant $degrees.0 : !f
  %x = bufferization.to_tensor %data restrict : !memref_data to !tensor_data
  %columns = tensor.empty() : !tensor_columns
  %zeros = linalg.fill ins(%zero : !f) outs(%columns : !tensor_columns) -> !tensor_columns
  %sum = linalg.reduce {arith.addf} ins(%x : !tensor_data) outs(%zeros : !tensor_columns) dimensions = [0]
  %mean = linalg.generic {indexing_maps = [#element, #element], iterator_types = ["parallel"]}
      ins(%sum : !tensor_columns) outs(%columns : !tensor_columns) {
  ^bb0(%total: !f, %unused: !f):
    %quotient = arith.divf %total, %count : !f
    linalg.yield %quotient : !f
  } -> !tensor_columns
  %table = tensor.empty() : !tensor_data
  %centred = linalg.generic {indexing_maps = [#table, #column, #table],
                             iterator_types = ["parallel", "parallel"]}
      ins(%x, %mean : !tensor_data, !tensor_columns) outs(%table : !tensor_data) {
  ^bb0(%value: !f, %center: !f, %unused: !f):
    %difference = arith.subf %value, %center : !f
    linalg.yield %difference : !f
  } -> !tensor_data
  %empty = tensor.empty() : !tensor_cov
  %cov_zeros = linalg.fill ins(%zero : !f) outs(%empty : !tensor_cov) -> !tensor_cov
  %product = linalg.matmul indexing_maps = [#left, #right, #result]
      ins(%centred, %centred : !tensor_data, !tensor_data) outs(%cov_zeros : !tensor_cov) -> !tensor_cov
  %result_empty = tensor.empty() : !tensor_cov
  %scaled = linalg.generic {indexing_maps = [#table, #table], iterator_types = ["parallel", "parallel"]}
      ins(%product : !tensor_cov) outs(%result_empty : !tensor_cov) {
  ^bb0(%total: !f, %unused: !f):
    %quotient = arith.divf %total, %degrees : !f
    linalg.yield %quotient : !f
  } -> !tensor_cov
  bufferization.materialize_in_destination %scaled in restrict writable %cov
      : (!tensor_cov, !memref_cov) -> ()
  return
}
"""


def _covariance_mlir(extents: Extents, dtype: DType) -> str:
    m, n = extents["m"], extents["n"]
    shapes = {"data": (n, m), "columns": (m,), "cov": (m, m)}
    return module_text(_COVARIANCE, dtype, shapes, n=n, degrees=n - 1)


def _covariance_arguments(extents: Extents) -> tuple[Argument, ...]:
    m, n = extents["m"], extents["n"]
    return Argument("data", (n, m)), Argument("cov", (m, m), "out")


def _covariance_reference(extents: Extents, data: Matrix) -> tuple[Matrix, ...]:
    centred = data - data.mean(axis=0)
    return (centred.T @ centred / (extents["n"] - 1),)


COVARIANCE = Program(
    name="covariance",
    env_id="Covariance",
    summary="cov = X^T X / (n - 1), where X has the columns of data less their means",
    suite="PolyBench",
    split="test",
    extents=("m", "n"),
    train=((160, 192), (192, 256), (256, 384)),
    test=((192, 320), (130, 170)),
    arguments=_covariance_arguments,
    mlir=_covariance_mlir,
    reference=_covariance_reference,
    flops=_moments_flops,
    error_terms=lambda e: 2 * e["n"] + 3,
    dtypes=("f32", "f64"),
    minimum={"n": 2},
)

PROGRAMS: tuple[Program, ...] = (
    TWO_MM,
    THREE_MM,
    ATAX,
    BICG,
    CORRELATION,
    COVARIANCE,
    DOITGEN,
    MVT,
)
