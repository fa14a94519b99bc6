"""From LLVM IR text to machine code and back to callable addresses, through llvmlite.

Everything that SOLGym generates for a CPU (candidates, calibration kernels, the thread runtime) goes
through these few functions. They need no C compiler. Compiling is pure: equal IR, options and host give
equal bytes. llvmlite holds a global lock, so compile in several processes, not in several threads.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import llvmlite
import llvmlite.binding as llvm

__all__ = ["HostCpu", "LoadedObject", "assembly", "compile_object", "host_cpu", "toolchain_fingerprint"]


@dataclass(frozen=True)
class HostCpu:
    """The CPU that code is generated for: LLVM's name, its feature string, and the widest vectors."""

    name: str
    features: str
    vector_bits: int


@functools.cache
def host_cpu() -> HostCpu:
    """Identify the host as LLVM sees it. ``vector_bits`` is 512, 256 or 128."""
    flags = llvm.get_host_cpu_features()
    if flags.get("avx512f") and flags.get("avx512vl") and flags.get("avx512dq"):
        vector_bits = 512
    elif flags.get("avx2"):
        vector_bits = 256
    else:
        vector_bits = 128
    return HostCpu(llvm.get_host_cpu_name(), flags.flatten(), vector_bits)


@functools.cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def _target_machine(codegen_level: int) -> llvm.TargetMachine:
    _initialise()
    cpu = host_cpu()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu.name, features=cpu.features, opt=codegen_level, reloc="pic", codemodel="small", jit=True
    )


def toolchain_fingerprint() -> str:
    """Identify what turns IR into code: llvmlite, its LLVM, and the CPU that code is generated for."""
    cpu = host_cpu()
    features = hashlib.sha256(cpu.features.encode()).hexdigest()[:12]
    version = ".".join(map(str, llvm.llvm_version_info))
    return f"llvmlite-{llvmlite.__version__}/llvm-{version}/{cpu.name}/{features}"


def _optimised_module(ir: str, codegen_level: int) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Parse, verify and promote stack slots to registers; nothing else, as SOLGym's IR is explicit."""
    machine = _target_machine(codegen_level)
    module = llvm.parse_assembly(ir)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    builder = llvm.create_pass_builder(machine, options)
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.run(module, builder)
    return module, machine


def compile_object(ir: str, codegen_level: int = 1) -> bytes:
    """Compile LLVM IR text for the host into a relocatable object file.

    Args:
        ir: a module in LLVM's textual form. It should be explicit about vectors and unrolling: only
            stack slots are promoted before code generation.
        codegen_level: LLVM's code generation level, 0 to 3.

    Raises:
        RuntimeError: LLVM rejected the text (its message is kept).
    """
    module, machine = _optimised_module(ir, codegen_level)
    return bytes(machine.emit_object(module))


def assembly(ir: str, codegen_level: int = 1) -> str:
    """Compile LLVM IR text for the host into assembly text, for people."""
    module, machine = _optimised_module(ir, codegen_level)
    return str(machine.emit_assembly(module))


class LoadedObject:
    """An object file linked into this process. Addresses stay valid until ``close()``."""

    def __init__(self, code: bytes, symbols: tuple[str, ...]) -> None:
        """Link ``code`` and look up ``symbols``; libc's symbols resolve from the process.

        Raises:
            RuntimeError: the object is damaged or refers to a symbol that does not exist.
        """
        _initialise()
        self._jit: llvm.LLJIT | None = llvm.create_lljit_compiler(_fresh_target_machine())
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for symbol in symbols:
            builder.export_symbol(symbol)
        name = f"solgym-{hashlib.sha256(code).hexdigest()[:16]}"
        self._tracker = builder.link(self._jit, name)
        self.addresses: dict[str, int] = {symbol: self._tracker[symbol] for symbol in symbols}

    def close(self) -> None:
        """Unload the code; its addresses must not be called any more."""
        if self._jit is not None:
            self._tracker = None
            self.addresses = {}
            self._jit = None

    def __enter__(self) -> LoadedObject:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _fresh_target_machine() -> llvm.TargetMachine:
    cpu = host_cpu()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu.name, features=cpu.features, opt=1, reloc="pic", codemodel="small", jit=True
    )
