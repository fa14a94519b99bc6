"""Memory that a task's arrays live in while a candidate runs: anonymous, shared, and guarded on both sides.

The memory is a Linux memfd: it has no name, so nothing is left behind by any kind of exit. Here in the user's
process it is mapped in one piece; the child that runs a candidate for the first time maps each array by
itself, its end (up to 63 bytes of alignment) against a page that may not be touched. The few bytes between an
array and its guard pages hold a canary.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from solgym.hardware.checking import POISON_BYTE, first_difference
from solgym.hardware.task import NUMPY_DTYPES, Array, TensorSpec

__all__ = ["ALIGNMENT", "Layout", "Segment", "SharedBuffers"]

ALIGNMENT: Final = 64
"""Of every array and of the workspace, in bytes: a cache line, and the widest vector."""

PAGE: Final = mmap.PAGESIZE

CANARY: Final = np.frombuffer(np.uint32(0xFFF5A5E5).tobytes(), dtype=np.uint8)
"""A NaN both as float32 and as two words of float64, so that a kernel that reads it shows it."""


@dataclass(frozen=True)
class Segment:
    """One array in the shared memory: it starts ``front`` bytes into whole pages of ``span`` bytes at
    ``offset``.
    """

    name: str
    offset: int
    span: int
    front: int
    nbytes: int

    @classmethod
    def at(cls, name: str, offset: int, nbytes: int) -> Segment:
        """Place ``nbytes`` so that they end, rounded up to the alignment, at the end of a page."""
        aligned = _round_up(nbytes, ALIGNMENT)
        span = _round_up(max(aligned, 1), PAGE)
        return cls(name, offset, span, span - aligned, nbytes)


@dataclass(frozen=True)
class Layout:
    """Where everything of a task lies in its shared memory.

    ``inputs`` and ``outputs`` are what the checked run works on; ``timed_offset`` is where the outputs of the
    timed run are copied to, packed one after the other; the workspace, whose size differs between candidates,
    comes last.
    """

    inputs: tuple[Segment, ...]
    outputs: tuple[Segment, ...]
    timed_offset: int
    workspace_offset: int

    @classmethod
    def of(cls, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Layout:
        """Lay out the arrays of a task."""
        offset = 0
        placed: list[Segment] = []
        for spec in (*inputs, *outputs):
            placed.append(Segment.at(spec.name, offset, spec.nbytes))
            offset += placed[-1].span
        timed_bytes = sum(_round_up(spec.nbytes, ALIGNMENT) for spec in outputs)
        end = offset + _round_up(timed_bytes, PAGE)
        return cls(tuple(placed[: len(inputs)]), tuple(placed[len(inputs) :]), offset, end)

    def to_json(self) -> dict[str, Any]:
        """Return the layout as plain data for the worker."""
        return asdict(self)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class SharedBuffers:
    """The arrays of one task and seed, shared with one worker process.

    Use: the inputs are written once; before each checked run ``prepare`` poisons what the candidate must
    write; after it ``violation`` says whether it respected its arrays, and ``outputs`` holds what it
    computed.
    """

    def __init__(
        self, inputs: Sequence[Array], input_specs: Sequence[TensorSpec], output_specs: Sequence[TensorSpec]
    ):
        """Allocate the memory and write the inputs.

        Args:
            inputs: one array per input spec, of its shape and dtype.
            input_specs: the task's inputs.
            output_specs: the task's outputs.
        """
        self.layout = Layout.of(input_specs, output_specs)
        self.fd = os.memfd_create("solgym-task", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.layout.workspace_offset)
        self._bytes: NDArray[np.uint8] = np.frombuffer(
            mmap.mmap(self.fd, self.layout.workspace_offset), dtype=np.uint8
        )
        self._workspace: tuple[Segment, NDArray[np.uint8]] | None = None
        self._pristine = tuple(inputs)
        self._inputs = tuple(map(self._view, self.layout.inputs, input_specs))
        self.outputs: tuple[Array, ...] = tuple(map(self._view, self.layout.outputs, output_specs))
        self.timed_outputs: tuple[Array, ...] = self._timed_views(output_specs)
        self._slack = [
            (segment, part)
            for segment in (*self.layout.inputs, *self.layout.outputs)
            for part in _slack_of(segment, self._bytes[segment.offset : segment.offset + segment.span])
        ]
        self.restore()

    def _view(self, segment: Segment, spec: TensorSpec) -> Array:
        start = segment.offset + segment.front
        flat = self._bytes[start : start + segment.nbytes].view(NUMPY_DTYPES[spec.dtype])
        return flat.reshape(spec.shape)

    def _timed_views(self, specs: Sequence[TensorSpec]) -> tuple[Array, ...]:
        views: list[Array] = []
        offset = self.layout.timed_offset
        for spec in specs:
            flat = self._bytes[offset : offset + spec.nbytes].view(NUMPY_DTYPES[spec.dtype])
            views.append(flat.reshape(spec.shape))
            offset += _round_up(spec.nbytes, ALIGNMENT)
        return tuple(views)

    @property
    def nbytes(self) -> int:
        """Shared memory in use."""
        workspace = self._workspace[0].span if self._workspace else 0
        return self.layout.workspace_offset + workspace

    def restore(self) -> None:
        """Write inputs and canaries anew, as after a candidate that damaged them."""
        for target, source in zip(self._inputs, self._pristine, strict=True):
            target[...] = source
        for _, part in self._slack:
            _write_canary(part)

    def prepare(self, workspace_bytes: int) -> Segment | None:
        """Poison outputs and workspace for the next run; returns where the workspace is, or None if it is
        empty.
        """
        for segment in self.layout.outputs:
            start = segment.offset + segment.front
            self._bytes[start : start + segment.nbytes] = POISON_BYTE
        if not workspace_bytes:
            return None
        segment, view = self._workspace_of(workspace_bytes)
        view[segment.front : segment.front + segment.nbytes] = POISON_BYTE
        for part in _slack_of(segment, view):
            _write_canary(part)
        return segment

    def _workspace_of(self, nbytes: int) -> tuple[Segment, NDArray[np.uint8]]:
        segment = Segment.at("workspace", self.layout.workspace_offset, nbytes)
        if self._workspace is None or self._workspace[0].span != segment.span:
            self._workspace = None  # drops the old mapping before the file changes size
            os.ftruncate(self.fd, segment.offset + segment.span)
            view = np.frombuffer(mmap.mmap(self.fd, segment.span, offset=segment.offset), dtype=np.uint8)
            self._workspace = (segment, view)
        else:
            self._workspace = (segment, self._workspace[1])
        return self._workspace

    def violation(self, uses_workspace: bool) -> str | None:
        """Say how the last run broke its bounds or changed its inputs, or None; damage is repaired."""
        found = self._written_outside(uses_workspace) or self._changed_input()
        if found:
            self.restore()
        return found

    def _written_outside(self, uses_workspace: bool) -> str | None:
        slack = list(self._slack)
        if uses_workspace and self._workspace is not None:
            segment, view = self._workspace
            slack += [(segment, part) for part in _slack_of(segment, view)]
        for segment, part in slack:
            if not _is_canary(part):
                where = f"next to {segment.name!r} ({segment.nbytes} bytes)"
                return f"the candidate wrote outside its buffer: {where}"
        return None

    def _changed_input(self) -> str | None:
        for segment, now, before in zip(self.layout.inputs, self._inputs, self._pristine, strict=True):
            at = first_difference(now, before)
            if at is not None:
                return (
                    f"the candidate modified its input {segment.name!r}, first at {at}; inputs are read-only"
                )
        return None

    def close(self) -> None:
        """Give the memory back. Closing twice does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._inputs = self.outputs = self.timed_outputs = ()
            self._slack, self._workspace, self._bytes = [], None, np.empty(0, np.uint8)
            os.close(fd)


def _slack_of(segment: Segment, pages: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """The bytes of a segment's pages that are not the array's: before it and after it."""
    return [part for part in (pages[: segment.front], pages[segment.front + segment.nbytes :]) if part.size]


def _write_canary(part: NDArray[np.uint8]) -> None:
    part[...] = np.resize(CANARY, part.size)


def _is_canary(part: NDArray[np.uint8]) -> bool:
    return bool(np.array_equal(part, np.resize(CANARY, part.size)))
