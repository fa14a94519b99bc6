"""Memory of the worker process in which kernels are timed: private copies of a task's arrays, and scratch.

Checked runs happen on shared, guarded memory (``hardware.guarded_run``); timed runs happen here, on huge
pages and at fixed offsets, so that a time does not depend on which pages a process happened to get.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import Any, Final

from solgym.hardware.guarded_run import MappedSegment, segment_from
from solgym.hardware.object_file import libc, map_memory

__all__ = ["Arena", "TaskMemory"]

POISON: Final = 0xFF
HUGE_PAGE: Final = 2 << 20

STAGGER: Final = 17 * 64
"""Each array starts this much further into its page than the one before it, so that equal indices of
different arrays do not fall on equal page offsets, which stalls loads behind unrelated stores."""


class Arena:
    """Zeroed private memory, aligned to huge pages and left out of forked children.

    The latter keeps forking cheap, and timed data out of reach of a candidate's first run.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = -(-max(nbytes, 1) // HUGE_PAGE) * HUGE_PAGE
        self._memory = mmap.mmap(-1, self.nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._memory.madvise(mmap.MADV_DONTFORK)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.address = -(-start // HUGE_PAGE) * HUGE_PAGE


class TaskMemory:
    """A task in the worker: its shared memory, and the private copies of its arrays that are timed."""

    def __init__(self, fd: int, layout: dict[str, Any]) -> None:
        """Take over ``fd``; ``layout`` is ``hardware.buffers.Layout`` as plain data."""
        self.fd = fd
        self.inputs = tuple(map(segment_from, layout["inputs"]))
        self.outputs = tuple(map(segment_from, layout["outputs"]))
        self._timed_offset = int(layout["timed_offset"])
        self._shared = map_memory(None, self._timed_offset, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        self._arena: Arena | None = None
        self._addresses: list[int] = []
        self._pointers: Any = None

    @property
    def arrays(self) -> tuple[MappedSegment, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    def pointers(self) -> int:
        """Address of the array of pointers that a timed kernel gets; allocates and fills the arrays at first
        use.
        """
        if self._arena is None:
            offsets, cursor = [], 0
            for index, segment in enumerate(self.arrays):
                cursor = -(-cursor // mmap.PAGESIZE) * mmap.PAGESIZE + index * STAGGER % mmap.PAGESIZE
                offsets.append(cursor)
                cursor += segment.nbytes
            # One page more: a vector load that runs over the last array's end must not leave the arena.
            self._arena = Arena(cursor + mmap.PAGESIZE)
            self._addresses = [self._arena.address + offset for offset in offsets]
            self._pointers = (ctypes.c_void_p * max(1, len(offsets)))(*self._addresses)
            for index in range(len(self.inputs)):
                self._fill_input(index)
        return ctypes.addressof(self._pointers)

    def _fill_input(self, index: int) -> None:
        segment = self.inputs[index]
        ctypes.memmove(self._addresses[index], self._shared + segment.offset + segment.front, segment.nbytes)

    def poison_outputs(self) -> None:
        """Fill the timed outputs with NaN."""
        for address, segment in zip(self._addresses[len(self.inputs) :], self.outputs, strict=True):
            ctypes.memset(address, POISON, segment.nbytes)

    def regions(self) -> list[tuple[int, int]]:
        """(address, bytes) of every timed array."""
        self.pointers()
        return [
            (address, segment.nbytes) for address, segment in zip(self._addresses, self.arrays, strict=True)
        ]

    def hand_back_outputs(self) -> None:
        """Copy the timed outputs to where the user's process reads them."""
        offset = self._timed_offset
        for address, segment in zip(self._addresses[len(self.inputs) :], self.outputs, strict=True):
            view = memoryview((ctypes.c_char * segment.nbytes).from_address(address)).cast("B")
            written = 0
            while written < segment.nbytes:
                written += os.pwrite(self.fd, view[written:], offset + written)
            offset += -(-segment.nbytes // 64) * 64

    def changed_input(self) -> str | None:
        """Name of the first timed input that is not what it was, or None; all inputs are whole again
        afterwards.
        """
        changed = None
        for index, segment in enumerate(self.inputs):
            original = ctypes.c_void_p(self._shared + segment.offset + segment.front)
            if libc.memcmp(
                ctypes.c_void_p(self._addresses[index]), original, ctypes.c_size_t(segment.nbytes)
            ):
                changed = changed or segment.name
                self._fill_input(index)
        return changed

    def close(self) -> None:
        """Give the memory back."""
        libc.munmap(self._shared, self._timed_offset)
        os.close(self.fd)
