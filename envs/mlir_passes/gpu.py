"""Compiles a module for an NVIDIA GPU, without one: to PTX, launch geometry and the steps of the host.

From any level down to loops of scf, the function is split into kernels and host steps (``gpu_outlining``);
the kernels go through MLIR's LLVM dialect and llvmlite's NVPTX back end. There is no libdevice, so functions
such as ``exp`` are written out (``approximate``) and what remains is refused. Runs in the pass worker.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

import llvmlite.binding as llvm
from torch_mlir import ir
from torch_mlir.dialects import linalg

from solgym.envs.mlir_passes import finishing
from solgym.envs.mlir_passes.approximate import approximate_math
from solgym.envs.mlir_passes.finishing import (
    CannotFinish,
    body_of,
    first_line,
    run_passes,
    set_float_mode,
)
from solgym.envs.mlir_passes.gpu_code import CHIPS, GpuCode, Kernel
from solgym.envs.mlir_passes.gpu_operations import VIEWS, walk
from solgym.envs.mlir_passes.gpu_outlining import CannotOutline, outline
from solgym.envs.mlir_passes.gpu_parallel import mark_parallel_loops
from solgym.envs.mlir_passes.gpu_ranges import defining
from solgym.envs.mlir_passes.llvm_text import readable_by_llvmlite
from solgym.envs.mlir_passes.modes import ArgumentShape, FloatMode
from solgym.envs.mlir_passes.transforms import PassFailed, run_transform

__all__ = ["MAX_BLOCK_THREADS", "compile_for_gpu"]

MAX_BLOCK_THREADS: Final = 1024
"""CUDA C++ Programming Guide, technical specifications by compute capability."""

PTX_VERSION: Final = "ptx78"
"""The first version that knows every one of ``CHIPS``."""

_TRIPLE: Final = "nvptx64-nvidia-cuda"

_GENERALIZE: Final = "func.func(linalg-generalize-named-ops)"
_LINALG_TO_LOOPS: Final = "func.func(convert-linalg-to-parallel-loops)"
_AFFINE_PARALLEL: Final = "func.func(affine-parallelize)"
_RAISE: Final = "func.func(raise-scf-to-affine,affine-raise-from-memref)"
_TO_SCF: Final = "func.func(scf-forall-to-parallel),lower-affine,canonicalize,cse"
_KERNELS_TO_LLVM: Final = (
    "func.func(scf-parallel-for-to-nested-fors,lower-vector-multi-reduction),convert-vector-to-scf,canonicalize,"
    "lower-affine,expand-strided-metadata,lower-affine,convert-scf-to-cf,memref-expand,arith-expand,"
    "convert-vector-to-llvm{vector-contract-lowering=outerproduct reassociate-fp-reductions=true},"
    "convert-math-to-llvm,finalize-memref-to-llvm,convert-ub-to-llvm,convert-index-to-llvm,convert-arith-to-llvm,"
    "convert-cf-to-llvm,convert-func-to-llvm{use-bare-ptr-memref-call-conv=true},canonicalize,cse,"
    "reconcile-unrealized-casts"
)

# What the NVPTX back end has instructions for, or expands; anything else aborts the process inside LLVM.
_KNOWN_TO_NVPTX: Final = (
    "abs assume bswap ceil copysign ctlz ctpop cttz fabs floor fma fmuladd fshl fshr lifetime masked maximum "
    "maximumnum maxnum memcpy memmove memset minimum minimumnum minnum nearbyint nvvm rint roundeven smax "
    "smin sqrt stepvector trunc umax umin vector"
)
_INTRINSICS: Final = frozenset(_KNOWN_TO_NVPTX.split())
_DECLARED: Final = re.compile(r"^declare [^@]*@(?:\"([^\"]+)\"|([\w.$]+))", re.MULTILINE)


def compile_for_gpu(
    module: ir.Operation,
    function: str,
    arguments: Sequence[ArgumentShape],
    chip: str,
    mode: FloatMode = "contract,reassoc",
) -> GpuCode:
    """Compile one function of a module; the module stays as it is.

    Args:
        module: at any level from tensors to scf. The function takes memrefs of constant size and returns
            nothing.
        function: the function's name.
        arguments: shape, bytes an element and role of each of its arguments.
        chip: one of ``CHIPS``.
        mode: what the compiler may do with floating-point arithmetic.

    Raises:
        CannotFinish: it has a form that cannot become kernels and host steps; one sentence says which.
    """
    if chip not in CHIPS:
        raise CannotFinish(f"there is no chip {chip!r} to compile for; there are {', '.join(CHIPS)}")
    work = module.clone().operation
    with module.context, ir.Location.unknown():
        try:
            chosen = _to_loops(work, function)
            kernels_module, kernels, buffers, steps = outline(chosen, [role for _, _, role in arguments])
            text = _llvm_ir(kernels_module.operation, kernels, mode)
        except CannotOutline as error:
            raise CannotFinish(str(error)) from error
        except ir.MLIRError as error:
            raise CannotFinish(f"a pass on the way to the GPU fails: {first_line(error)}") from error
    for kernel in kernels:
        threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
        if threads > MAX_BLOCK_THREADS:
            raise CannotFinish(f"{kernel.name} has {threads} threads a block, more than {MAX_BLOCK_THREADS}")
    ptx, optimised = _ptx(text, chip)
    return GpuCode(chip, function, tuple(buffers), tuple(kernels), tuple(steps), ptx, optimised)


# ---------------------------------------------------------------------- to loops


def _to_loops(module: ir.Operation, function: str) -> ir.Operation:
    """Bring the function to scf loops, parallel where their iterations may run side by side, in place."""
    chosen = _only(module, function)
    run_passes(module, _GENERALIZE)
    _parallel_dimensions_first(module)
    finishing.to_buffers(module)
    run_passes(module, "convert-bufferization-to-memref,canonicalize")
    approximate_math(module)
    _copies_to_loops(module)
    run_passes(module, _LINALG_TO_LOOPS)
    _find_parallel_loops(module)
    run_passes(module, _TO_SCF)
    chosen = _only(module, function)
    mark_parallel_loops(chosen)
    for operation in walk(chosen):
        if operation.name.startswith(("linalg.", "tensor.", "func.call", "cf.", "llvm.")):
            raise CannotFinish(
                f"{operation.name} cannot become part of a kernel; stop the passes before it appears"
            )
    return chosen


def _only(module: ir.Operation, function: str) -> ir.Operation:
    """The function, alone in its module with the constants."""
    functions = [each for each in body_of(module) if each.name in ("func.func", "llvm.func")]
    named = {ir.StringAttr(each.attributes["sym_name"]).value: each for each in functions}
    chosen = named.get(function)
    if chosen is None or chosen.name != "func.func" or not len(chosen.regions[0].blocks):
        raise CannotFinish(f"the module has no function {function!r} above the level of LLVM")
    if len(functions) > 1:
        run_passes(module, "inline")
        for name, each in named.items():
            if name != function and each in body_of(module):
                each.erase()
    if ir.FunctionType(ir.TypeAttr(chosen.attributes["function_type"]).value).results:
        raise CannotFinish(f"the function {function!r} returns values; let it write to a memref instead")
    return chosen


def _parallel_dimensions_first(module: ir.Operation) -> None:
    """Put reductions innermost, so that they become a thread's own loop and not the host's."""
    try:
        run_transform(module, "interchange reduction-last")
    except PassFailed as error:
        raise CannotFinish(f"a linalg operation cannot be reordered: {error}") from error


def _copies_to_loops(module: ir.Operation) -> None:
    """Make loops of copies, but for those of whole buffers outside loops, which the host does."""
    for copy in [each for each in walk(module) if each.name == "memref.copy"]:
        source, destination = copy.operands
        parent = copy.parent
        outside_loops = parent is not None and parent.operation.name == "func.func"
        if outside_loops and all(_is_whole_buffer(operand) for operand in copy.operands):
            continue
        with ir.InsertionPoint(copy):
            linalg.copy(source, outs=[destination])
        copy.erase()


def _find_parallel_loops(module: ir.Operation) -> None:
    """Mark loops whose iterations do not depend on each other, where MLIR's analysis can tell.

    It takes different values for different memory, which views would break: they are folded into the
    accesses, and if some remain loops stay sequential.
    """
    run_passes(module, "func.func(fold-memref-alias-ops),canonicalize")
    kept = module.clone().operation
    try:
        run_passes(module, _RAISE)
    except ir.MLIRError:
        _replace_body(module, kept)
    if any(each.name in VIEWS or each.name == "arith.select" for each in walk(module)):
        return
    run_passes(module, _AFFINE_PARALLEL)


def _replace_body(module: ir.Operation, other: ir.Operation) -> None:
    for operation in body_of(module):
        operation.erase()
    for operation in body_of(other):
        operation.detach_from_parent()
        module.regions[0].blocks[0].append(operation)


def _is_whole_buffer(value: ir.Value) -> bool:
    source = defining(value)
    return source is None or source.name not in VIEWS


# ---------------------------------------------------------------------- to PTX


def _llvm_ir(module: ir.Operation, kernels: Sequence[Kernel], mode: FloatMode) -> str:
    """LLVM IR of the kernels, as llvmlite reads it."""
    from torch_mlir._mlir_libs._mlirDialectsLLVM import translate_module_to_llvmir

    run_passes(module, "math-expand-ops")
    approximate_math(module)
    run_passes(module, _KERNELS_TO_LLVM)
    for operation in walk(module):
        if not operation.name.startswith(("llvm.", "nvvm.", "builtin.module")):
            raise CannotFinish(f"{operation.name} is left in a kernel, which LLVM cannot translate")
    set_float_mode(module, mode)
    block = {kernel.name: kernel.block for kernel in kernels}
    known = ir.Attribute.parse("{llvm.noalias, llvm.nonnull, llvm.align = 64 : i64}")
    nothing = ir.Attribute.parse("{}")
    for function in body_of(module):
        if function.name != "llvm.func" or not len(function.regions[0].blocks):
            continue
        name = ir.StringAttr(function.attributes["sym_name"]).value
        x, y, z = block[name]
        function.attributes["nvvm.kernel"] = ir.UnitAttr.get()
        function.attributes["nvvm.reqntid"] = ir.Attribute.parse(f"array<i32: {x}, {y}, {z}>")
        # Every pointer is a buffer of its own.
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [
                known if str(argument.type) == "!llvm.ptr" else nothing
                for argument in function.regions[0].blocks[0].arguments
            ]
        )
    text = readable_by_llvmlite(translate_module_to_llvmir(module))
    for quoted, plain in _DECLARED.findall(text):
        name = quoted or plain
        if not name.startswith("llvm.") or name.split(".")[1] not in _INTRINSICS:
            raise CannotFinish(f"a kernel calls {name}, which does not exist on the device")
    return text


@functools.cache
def _target_machine(chip: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(_TRIPLE)
    return target.create_target_machine(cpu=chip, features=f"+{PTX_VERSION}", opt=3)


def _ptx(text: str, chip: str) -> tuple[str, str]:
    """PTX, and the LLVM IR that it was made from after optimisation at O3."""
    machine = _target_machine(chip)
    try:
        module = llvm.parse_assembly(text)
        module.triple = _TRIPLE
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise CannotFinish(f"LLVM refuses the code: {' '.join(str(error).split())[:400]}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module)), str(module)
