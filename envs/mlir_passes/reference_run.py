"""Runs a compiled program once, in a process of its own, for its outputs. In the pass worker.

The programs of users are run here before anything is known of them, so whatever they do (crash, end their
process, write where they should not) must not reach the modules that the worker keeps.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from solgym.hardware.guarded_run import address_space_bytes
from solgym.hardware.object_file import link

__all__ = ["ProgramFailed", "run_apart"]

MEMORY_BYTES: Final = 2 << 30
"""Memory that the program may allocate beyond its arguments."""

_PR_SET_PDEATHSIG: Final = 1


class ProgramFailed(Exception):
    """The program cannot be linked, crashed or ended its process; the message says which."""


def run_apart(
    code: bytes,
    entry: str,
    inputs: Sequence[bytes],
    output_bytes: Sequence[int],
    workspace_bytes: int,
    fill: int,
) -> tuple[bytes, ...]:
    """Run a program and return its outputs.

    Args:
        code: a relocatable object file.
        entry: its entry point, of SOLGym's kernel ABI (docs/measuring.md).
        inputs: what it reads.
        output_bytes: the sizes of what it writes.
        workspace_bytes: scratch memory.
        fill: the byte that outputs and workspace are filled with.

    Raises:
        ProgramFailed: there are no outputs; says why.
    """
    sizes = [*map(len, inputs), *output_bytes, workspace_bytes]
    memory = [np.frombuffer(mmap.mmap(-1, max(1, size)), np.uint8) for size in sizes]  # shared with the child
    for array, data in zip(memory, inputs, strict=False):
        array[: len(data)] = np.frombuffer(data, np.uint8)
    for array in memory[len(inputs) :]:
        array[:] = fill
    finished = mmap.mmap(-1, 1)
    try:
        linked = link(code, (entry,))
    except RuntimeError as error:
        raise ProgramFailed(f"cannot be linked: {error}") from error
    try:
        status = _in_child(linked.addresses[entry], memory, finished)
    finally:
        linked.close()
    if os.WIFSIGNALED(status):
        raise ProgramFailed(f"crashes when run ({_signal_name(os.WTERMSIG(status))})")
    if not finished[0]:
        raise ProgramFailed(f"ends its process when run, with exit status {os.WEXITSTATUS(status)}")
    return tuple(
        array[:size].tobytes() for array, size in zip(memory[len(inputs) :], output_bytes, strict=False)
    )


def _in_child(address: int, memory: Sequence[NDArray[np.uint8]], finished: mmap.mmap) -> int:
    """Call a kernel in a fork of this process, which dies with it, and return the wait status."""
    pointers = (ctypes.c_void_p * len(memory))(*(array.ctypes.data for array in memory))
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(address)
    prctl = ctypes.CDLL(None).prctl
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [address_space_bytes() + MEMORY_BYTES, *(n for n in (soft, hard) if n != resource.RLIM_INFINITY)]
    child = os.fork()
    if child == 0:
        try:
            prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
            call(pointers, pointers[len(memory) - 1], None)
            finished[0] = 1
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
