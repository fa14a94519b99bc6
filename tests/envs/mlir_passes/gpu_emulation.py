"""Runs GPU code on the CPU: the kernels' LLVM IR compiled for this host, with a loop over blocks and threads.

The kernels here have no barriers, so their threads can run one after the other, in any order.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import traceback
from collections.abc import Callable, Sequence

import llvmlite.binding as llvm
import numpy as np

from solgym.envs.mlir_passes.gpu_code import Buffer, GpuCode, Kernel, run_host_steps

_REGISTER = re.compile(
    r"(?:tail )?call (?:[\w()]+ )*?(?:range\([^)]*\) )?i32 @llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.(\w)\(\)"
)
_NAMES = [f"{register}.{axis}" for register in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"]


def host_text(code: GpuCode) -> str:
    """The kernels for this host, with a function ``run_<kernel>(parameters, threads)`` for each.

    ``parameters`` points to a list of 64-bit slots; ``threads`` to twelve 32-bit numbers for every thread, as
    in ``_NAMES``, and the third argument says how many threads there are.
    """
    text = re.sub(r"^target (triple|datalayout) .*$", "", code.llvm_ir, flags=re.MULTILINE)
    text = re.sub(r"^declare [^\n]*@llvm\.nvvm\.read\.ptx\.sreg\.[^\n]*$", "", text, flags=re.MULTILINE)
    text = _REGISTER.sub(r"load i32, ptr @sreg.\1.\2", text).replace("ptx_kernel ", "")
    assert "nvvm.read" not in text
    lines = [f"@sreg.{name} = internal global i32 0" for name in _NAMES]
    for kernel in code.kernels:
        lines += _runner(code, kernel)
    return text + "\n" + "\n".join(lines)


def _runner(code: GpuCode, kernel: Kernel) -> list[str]:
    buffers = {buffer.name for buffer in code.buffers}
    lines = [
        f"define void @run_{kernel.name}(ptr %parameters, ptr %threads, i64 %count) {{",
        "entry:",
    ]
    arguments = []
    for number, name in enumerate(kernel.parameters):
        kind = "ptr" if name in buffers else "i64"
        lines.append(f"  %at{number} = getelementptr i64, ptr %parameters, i64 {number}")
        lines.append(f"  %p{number} = load {kind}, ptr %at{number}")
        arguments.append(f"{kind} %p{number}")
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]"]
    lines.append(f"  %row = mul i64 %i, {len(_NAMES)}")
    for number, name in enumerate(_NAMES):
        lines.append(f"  %j{number} = add i64 %row, {number}")
        lines.append(f"  %a{number} = getelementptr i32, ptr %threads, i64 %j{number}")
        lines.append(f"  %v{number} = load i32, ptr %a{number}")
        lines.append(f"  store i32 %v{number}, ptr @sreg.{name}")
    lines.append(f"  call void @{kernel.name}({', '.join(arguments)})")
    lines += ["  %next = add i64 %i, 1", "  %more = icmp ult i64 %next, %count"]
    lines += ["  br i1 %more, label %loop, label %done", "done:", "  ret void", "}"]
    return lines


class CpuDevice:
    """A device whose memory is numpy arrays and whose threads run one after the other.

    Args:
        code: the compiled function.
        arguments: an array for each argument of the function; they hold the results afterwards.
        order: "forwards" or "backwards": threads that depend on each other differ between the two.
    """

    def __init__(self, code: GpuCode, arguments: Sequence[np.ndarray], order: str = "forwards") -> None:
        self._code = code
        self._arguments = arguments
        self._order = order
        self._memory: dict[str, np.ndarray] = {}
        self._threads: dict[str, np.ndarray] = {}
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), opt=1)
        module = llvm.parse_assembly(host_text(code))
        module.verify()
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def _aligned(self, size: int) -> np.ndarray:
        raw = np.full(size + 64, 0xFF, np.uint8)  # a NaN, where nothing was written
        start = -raw.ctypes.data % 64
        return raw[start : start + size]

    def allocate(self, buffer: Buffer) -> None:
        self._memory[buffer.name] = self._aligned(buffer.bytes)

    def free(self, buffer: Buffer) -> None:
        del self._memory[buffer.name]

    def upload(self, buffer: Buffer) -> None:
        if buffer.kind == "argument":
            data = self._arguments[buffer.argument].tobytes()
        else:
            data = bytes.fromhex(buffer.data)
        self._memory[buffer.name][:] = np.frombuffer(data, np.uint8)

    def download(self, buffer: Buffer) -> None:
        array = self._arguments[buffer.argument]
        array[...] = self._memory[buffer.name].view(array.dtype).reshape(array.shape)

    def copy(self, source: Buffer, destination: Buffer) -> None:
        self._memory[destination.name][:] = self._memory[source.name]

    def launch(self, kernel: Kernel, parameters: Sequence[Buffer | int]) -> None:
        slots = [p if isinstance(p, int) else self._memory[p.name].ctypes.data for p in parameters]
        values = (ctypes.c_int64 * max(1, len(slots)))(*slots)
        threads = self._threads_of(kernel)
        address = self._engine.get_function_address(f"run_{kernel.name}")
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
        call(ctypes.addressof(values), threads.ctypes.data, len(threads))

    def _threads_of(self, kernel: Kernel) -> np.ndarray:
        if kernel.name not in self._threads:
            shape = tuple(reversed(kernel.grid)) + tuple(reversed(kernel.block))
            bz, by, bx, tz, ty, tx = (axis.ravel() for axis in np.indices(shape, dtype=np.int32))
            sizes = [np.full_like(bx, size) for size in (*kernel.block, *kernel.grid)]
            table = np.stack([tx, ty, tz, bx, by, bz, *sizes], axis=1)
            self._threads[kernel.name] = np.ascontiguousarray(
                table[::-1] if self._order == "backwards" else table
            )
        return self._threads[kernel.name]


def run_on_cpu(code: GpuCode, arguments: Sequence[np.ndarray], order: str = "forwards") -> None:
    """Run a compiled function once; ``arguments`` hold its results afterwards."""
    run_host_steps(code, CpuDevice(code, arguments, order))


def error_in_child(work: Callable[[], str]) -> str:
    """Do something in a forked child, so that code that crashes ends only that; returns what it returns."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os.write(send, work().encode())
        except BaseException:
            os.write(send, traceback.format_exc()[-3000:].encode())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return text if status == 0 else f"ended with status {status}"
