"""Checks PTX with NVIDIA's assembler where a Python package has brought it; needs no driver and no device.

The wheel ``nvidia-cuda-nvcc`` (the extra ``gpu-check``) has ``ptxas`` inside. It is optional: without it PTX
is still made, only unchecked.
"""

from __future__ import annotations

import functools
import re
import shutil
import site
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from solgym.errors import SolgymError

__all__ = ["KernelResources", "PtxRejected", "assemble", "find_ptxas"]

TIMEOUT_S: Final = 120.0

_ENTRY: Final = re.compile(r"Compiling entry function '(?P<name>[^']+)'")
_FIELDS: Final = {
    "registers": re.compile(r"Used (\d+) registers"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}


class PtxRejected(SolgymError):
    """Raised when ptxas does not accept a PTX module."""


@dataclass(frozen=True)
class KernelResources:
    """What ptxas says that one kernel takes.

    Attributes:
        registers: of each thread.
        spill_store_bytes: written to local memory for want of registers, a thread.
        spill_load_bytes: read back.
        stack_bytes: local memory of a thread, spills included.
        shared_bytes: static shared memory of a block.
    """

    registers: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0


@functools.cache
def find_ptxas() -> Path | None:
    """Where ``ptxas`` is: in a package of this Python, or else on the path."""
    folders = dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()])
    for folder in folders:
        found = sorted(Path(folder).glob("nvidia/*/bin/ptxas"))
        if found:
            return found[-1]
    on_path = shutil.which("ptxas")
    return None if on_path is None else Path(on_path)


def assemble(ptx: str, chip: str, ptxas: Path) -> dict[str, KernelResources]:
    """Assemble a PTX module and drop the result; returns what each kernel takes.

    Raises:
        PtxRejected: ptxas refuses the module; says why.
    """
    command = [str(ptxas), f"-arch={chip}", "-v", "-o", "/dev/null", "-"]
    try:
        done = subprocess.run(
            command, input=ptx, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PtxRejected(f"ptxas does not end within {TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise PtxRejected(f"ptxas refuses the code for {chip}: {' '.join(done.stderr.split())[:400]}")
    return _resources(done.stderr)


def _resources(log: str) -> dict[str, KernelResources]:
    """Read the log of ``-v``. Lines about a kernel follow the one that names it; every field is looked for
    alone, as which of them there are depends on the kernel.
    """
    parts = _ENTRY.split(log)[1:]
    return {
        name: KernelResources(
            **{
                field: int(match[1])
                for field, pattern in _FIELDS.items()
                if (match := pattern.search(text)) is not None
            }
        )
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }
