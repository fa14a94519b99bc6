"""Kinds of MLIR operations, for features: a handful of classes in place of hundreds of names."""

from __future__ import annotations

import functools
from typing import Final

__all__ = ["KINDS", "kind_of"]

KINDS: Final = (
    "load",
    "store",
    "float",
    "function",
    "integer",
    "selection",
    "constant",
    "contraction",
    "structured",
    "view",
    "allocation",
    "shuffle",
    "control",
    "other",
)
"""Classes of operations.

``float`` is arithmetic on floating-point numbers, ``function`` an elementary function (exp), ``integer``
arithmetic on integers and indices, ``selection`` a comparison or a choice, ``contraction`` a product or
reduction of vectors, ``structured`` an operation on whole tensors or buffers (linalg), ``view`` a slice or a
reshape, ``shuffle`` anything that moves the elements of vectors, ``control`` a loop, a branch, a function or
the end of a block.
"""

# Operations by name; of those that are not here, the dialect tells.
_BY_KIND: Final[dict[str, str]] = {
    "load": "affine.load affine.vector_load memref.load tensor.extract vector.load vector.maskedload "
    "vector.transfer_read vector.gather vector.expandload llvm.load",
    "store": "affine.store affine.vector_store memref.store tensor.insert vector.store vector.maskedstore "
    "vector.transfer_write vector.scatter vector.compressstore llvm.store",
    "float": "arith.addf arith.subf arith.mulf arith.divf arith.remf arith.negf arith.maximumf "
    "arith.minimumf arith.maxnumf arith.minnumf arith.extf arith.truncf arith.sitofp arith.uitofp "
    "arith.fptosi arith.fptoui arith.scaling_extf arith.scaling_truncf math.absf math.copysign math.fma "
    "vector.fma llvm.fadd llvm.fsub llvm.fmul llvm.fdiv llvm.frem llvm.fneg llvm.intr.fma "
    "llvm.intr.fmuladd llvm.intr.fabs llvm.intr.copysign llvm.intr.maximum llvm.intr.minimum "
    "llvm.intr.maxnum llvm.intr.minnum llvm.fpext llvm.fptrunc llvm.sitofp llvm.uitofp llvm.fptosi "
    "llvm.fptoui",
    "function": "llvm.intr.exp llvm.intr.exp2 llvm.intr.log llvm.intr.log2 llvm.intr.log10 llvm.intr.pow "
    "llvm.intr.powi llvm.intr.sin llvm.intr.cos llvm.intr.tan llvm.intr.tanh llvm.intr.sqrt "
    "llvm.intr.floor llvm.intr.ceil llvm.intr.round llvm.intr.roundeven llvm.intr.trunc llvm.intr.rint",
    "integer": "affine.apply affine.min affine.max affine.delinearize_index affine.linearize_index "
    "linalg.index memref.dim tensor.dim math.absi math.ctlz math.cttz math.ctpop math.ipowi vector.vscale",
    "selection": "arith.select arith.cmpf arith.cmpi index.cmp llvm.select llvm.fcmp llvm.icmp",
    "constant": "arith.constant index.constant memref.get_global llvm.mlir.constant llvm.mlir.zero "
    "llvm.mlir.addressof llvm.mlir.poison llvm.mlir.undef ub.poison",
    "contraction": "vector.contract vector.outerproduct vector.reduction vector.multi_reduction vector.scan",
    "structured": "memref.copy tensor.generate bufferization.materialize_in_destination",
    "allocation": "memref.alloc memref.alloca memref.dealloc memref.realloc tensor.empty "
    "bufferization.alloc_tensor bufferization.dealloc_tensor bufferization.dealloc llvm.alloca",
    "shuffle": "llvm.extractelement llvm.insertelement llvm.shufflevector llvm.extractvalue llvm.insertvalue",
    "control": "affine.for affine.parallel affine.if affine.yield linalg.yield tensor.yield llvm.func "
    "llvm.return llvm.br llvm.cond_br llvm.call llvm.unreachable llvm.mlir.global vector.mask vector.yield",
    "other": "affine.prefetch memref.prefetch llvm.intr.assume",
}
_BY_NAME: Final = {name: kind for kind, names in _BY_KIND.items() for name in names.split()}
_BY_DIALECT: Final = {
    "arith": "integer",
    "index": "integer",
    "llvm": "integer",
    "math": "function",
    "linalg": "structured",
    "tensor": "view",
    "memref": "view",
    "bufferization": "view",
    "vector": "shuffle",
    "scf": "control",
    "cf": "control",
    "func": "control",
    "builtin": "control",
}


@functools.cache
def kind_of(name: str) -> int:
    """The index in ``KINDS`` of the kind of the operation called ``name``."""
    kind = _BY_NAME.get(name) or _BY_DIALECT.get(name.partition(".")[0], "other")
    return KINDS.index(kind)
