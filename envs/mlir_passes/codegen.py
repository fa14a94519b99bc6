"""From a module to machine code: the finishing pipeline, then one of two code generators.

``llvmlite`` translates to LLVM IR text and lets llvmlite's LLVM optimise it at O3 for this host; ``mlir``
lets the LLVM inside torch-mlir do it through MLIR's ExecutionEngine. Both give a relocatable object file with
SOLGym's entry point, so a candidate is checked and timed by the same machinery whichever made it. Runs in the
pass worker.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import llvmlite.binding as llvm
from torch_mlir import ir

from solgym.envs.mlir_passes.entry_point import ENTRY, add_entry, arena_bytes
from solgym.envs.mlir_passes.finishing import (
    CannotFinish,
    lower_to_llvm_dialect,
    set_float_mode,
)
from solgym.envs.mlir_passes.llvm_text import readable_by_llvmlite
from solgym.envs.mlir_passes.modes import ArgumentShape, FloatMode, Jit
from solgym.hardware.jit import host_cpu

__all__ = ["ObjectCode", "assembly_of", "compile_ir", "llvm_ir", "machine_code"]

ARENA_MAX_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class ObjectCode:
    """A relocatable object file and the workspace that it needs."""

    code: bytes
    workspace_bytes: int


def _finished(
    module: ir.Operation, function: str, arguments: Sequence[ArgumentShape], mode: FloatMode
) -> tuple[ir.Operation, int]:
    lowered = lower_to_llvm_dialect(module)
    workspace = arena_bytes(lowered)
    if workspace > ARENA_MAX_BYTES:
        raise CannotFinish(f"the code allocates {workspace} bytes, more than {ARENA_MAX_BYTES}")
    set_float_mode(lowered, mode)
    add_entry(lowered, function, arguments, workspace)
    return lowered, workspace


def llvm_ir(
    module: ir.Operation,
    function: str,
    arguments: Sequence[ArgumentShape],
    mode: FloatMode = "contract,reassoc",
) -> tuple[str, int]:
    """LLVM IR text with the entry point, as llvmlite reads it, and the bytes of workspace.

    Raises:
        CannotFinish: the module cannot be lowered.
    """
    from torch_mlir._mlir_libs._mlirDialectsLLVM import translate_module_to_llvmir

    lowered, workspace = _finished(module, function, arguments, mode)
    return readable_by_llvmlite(translate_module_to_llvmir(lowered)), workspace


def machine_code(
    module: ir.Operation,
    function: str,
    arguments: Sequence[ArgumentShape],
    mode: FloatMode = "contract,reassoc",
    jit: Jit = "llvmlite",
) -> ObjectCode:
    """Compile a module for this host at O3.

    Raises:
        CannotFinish: the module cannot be lowered, or LLVM refuses the result.
    """
    if jit == "mlir":
        return _by_execution_engine(*_finished(module, function, arguments, mode))
    return compile_ir(*llvm_ir(module, function, arguments, mode))


def compile_ir(text: str, workspace_bytes: int) -> ObjectCode:
    """Compile LLVM IR text for this host at O3.

    Raises:
        CannotFinish: LLVM refuses it.
    """
    try:
        return ObjectCode(_optimised_object(text), workspace_bytes)
    except RuntimeError as error:
        raise CannotFinish(f"LLVM refuses the code: {' '.join(str(error).split())[:400]}") from error


@functools.cache
def _target_machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu = host_cpu()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu.name, features=cpu.features, opt=3, reloc="pic", codemodel="small", jit=True
    )


def _optimised(text: str) -> llvm.ModuleRef:
    machine = _target_machine()
    module = llvm.parse_assembly(text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def _optimised_object(text: str) -> bytes:
    return bytes(_target_machine().emit_object(_optimised(text)))


def assembly_of(text: str) -> str:
    """Assembly of LLVM IR text after the same optimisation, for people."""
    return str(_target_machine().emit_assembly(_optimised(text)))


def _by_execution_engine(lowered: ir.Operation, workspace: int) -> ObjectCode:
    from torch_mlir.execution_engine import ExecutionEngine

    with lowered.context:
        module = ir.Module.parse(str(lowered))
    try:
        engine = ExecutionEngine(module, opt_level=3, enable_object_dump=True, enable_pic=False)
        engine.raw_lookup(ENTRY)
    except (RuntimeError, ValueError) as error:
        raise CannotFinish(f"MLIR's ExecutionEngine refuses the code: {error}") from error
    descriptor = os.memfd_create("solgym-object")
    try:
        engine.dump_to_object_file(f"/proc/self/fd/{descriptor}")
        size = os.fstat(descriptor).st_size
        return ObjectCode(os.pread(descriptor, size, 0), workspace)
    finally:
        os.close(descriptor)
