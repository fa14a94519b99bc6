"""Whether a candidate computed the right thing: comparison of its outputs with a float64 reference.

References and comparisons live in the user's process, where no candidate can reach them. An output is wrong
where it is further from the reference than ``relative_tolerance * (|reference| + scale)``, with ``scale`` the
mean of |reference| over that output. The first term is ordinary relative error; the second lets sums that
nearly cancel be as inexact as their terms were. At the largest element of any output that is not all zeros,
|reference| >= scale, so zeros miss it by at least ``1 / (2 * relative_tolerance)`` times what is allowed;
constants and copies of inputs fail likewise wherever they are further off than that. Where an output has so
few elements that all of them may nearly cancel at once, references of further inputs go into the mean.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from solgym.hardware.task import NUMPY_DTYPES, Array, Task

__all__ = [
    "Expected",
    "ExpectedOutput",
    "ReferenceCache",
    "Verdict",
    "bitwise_equal",
    "compare",
    "first_difference",
]

POISON_BYTE: Final = 0xFF
"""Outputs and workspace are filled with it before a run: a NaN in every floating-point format."""

SMALLEST_F32: Final = float(np.finfo(np.float32).tiny)
SMALLEST_F64: Final = float(np.finfo(np.float64).tiny)

FEW_ELEMENTS: Final = 64
"""Outputs with fewer elements take their scale from ``FURTHER_INPUTS`` more draws of the inputs as well."""

FURTHER_INPUTS: Final = 16

FURTHER_INPUT_BYTES: Final = 8 << 20
"""Larger inputs are drawn once only; drawing and reducing them costs more than the rare help is worth."""

_BLOCK: Final = 1 << 15
"""Elements compared at a time, so that intermediate arrays stay in the L2 cache."""

_CLEARLY_RIGHT: Final = 0.5
"""Errors below this share of the allowed one are settled in the output's own precision; others in float64."""


@dataclass(frozen=True)
class Verdict:
    """What a comparison found.

    Attributes:
        error: one sentence that says what is wrong, or None when the outputs are accepted.
        max_error: the largest error in units of the allowed one (infinite for NaN and infinity).
    """

    error: str | None
    max_error: float

    @property
    def accepted(self) -> bool:
        """Whether the outputs are right."""
        return self.error is None


class ExpectedOutput:
    """The reference of one output, prepared so that comparing with it is cheap."""

    def __init__(
        self,
        name: str,
        reference: NDArray[np.float64],
        dtype: np.dtype[np.generic],
        tolerance: float,
        least_scale: float = 0.0,
    ) -> None:
        """Prepare a reference.

        Args:
            name: the output's name, for messages.
            reference: float64 values, in the output's shape.
            dtype: the output's own dtype.
            tolerance: allowed error relative to |reference| + scale.
            least_scale: the scale, where the mean of |reference| is smaller.
        """
        self.name = name
        self.shape = reference.shape
        self.tolerance = tolerance
        self.reference = np.ascontiguousarray(reference, dtype=np.float64).reshape(-1)
        finite = np.isfinite(self.reference)
        self.all_finite = bool(finite.all())
        magnitudes = np.abs(self.reference) if self.all_finite else np.abs(self.reference[finite])
        self.scale = max(float(magnitudes.mean()) if magnitudes.size else 0.0, least_scale)
        self._rounded: Array = self.reference.astype(dtype)
        # An output of zeros has scale 0; the floor keeps the reciprocal finite and allows no visible error.
        floor = 4 * (SMALLEST_F64 if dtype == np.float64 else SMALLEST_F32)
        allowed = np.maximum(tolerance * (np.abs(self.reference) + self.scale), floor)
        self._reciprocal: Array = (1.0 / allowed).astype(dtype)

    @property
    def nbytes(self) -> int:
        """Memory that the prepared reference takes."""
        return int(self.reference.nbytes + self._rounded.nbytes + self._reciprocal.nbytes)

    def allowed(self, index: int | slice) -> NDArray[np.float64]:
        """Largest accepted error of the elements at a flat ``index``."""
        return np.asarray(self.tolerance * (np.abs(self.reference[index]) + self.scale))

    def check(self, output: Array) -> Verdict:
        """Compare an output of the same shape and dtype with the reference."""
        flat = output.reshape(-1)
        if self.all_finite:
            worst = self._worst_error(flat)
            if worst <= _CLEARLY_RIGHT:
                return Verdict(None, worst)
        return self._check_exactly(flat)

    def _worst_error(self, flat: Array) -> float:
        """Largest error in units of the allowed one, in the output's precision; NaN if the output has any."""
        worst = 0.0
        scratch = np.empty(min(_BLOCK, flat.size), flat.dtype)
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, _BLOCK):
                part = slice(start, min(start + _BLOCK, flat.size))
                error = scratch[: part.stop - part.start]
                np.subtract(flat[part], self._rounded[part], out=error)
                np.abs(error, out=error)
                np.multiply(error, self._reciprocal[part], out=error)
                largest = float(error.max())
                if not largest <= worst:
                    worst = largest
                if not worst <= 1.0:
                    return worst
        return worst

    def _check_exactly(self, flat: Array) -> Verdict:
        wrong_count, first, worst = 0, -1, 0.0
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, _BLOCK):
                part = slice(start, min(start + _BLOCK, flat.size))
                got, wanted = flat[part].astype(np.float64), self.reference[part]
                distance, allowed = np.abs(got - wanted), self.allowed(part)
                same_kind = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
                relative = np.where(same_kind, 0.0, distance / allowed)
                relative[np.isnan(relative)] = np.inf
                wrong = relative > 1.0
                worst = max(worst, float(relative.max()))
                if found := int(np.count_nonzero(wrong)):
                    if first < 0:
                        first = start + int(np.argmax(wrong))
                    wrong_count += found
        if first < 0:
            return Verdict(None, worst)
        return Verdict(self._describe(flat, first, wrong_count), worst)

    def _describe(self, flat: Array, first: int, wrong_count: int) -> str:
        where = [int(i) for i in np.unravel_index(first, self.shape)]
        poisoned = is_poison(flat)
        if poisoned.any():
            count = int(np.count_nonzero(poisoned))
            at = [int(i) for i in np.unravel_index(int(np.argmax(poisoned)), self.shape)]
            return (
                f"output {self.name!r}: {count} of {flat.size} elements were never written, or computed from "
                f"memory that never was; the first is at {at}"
            )
        wanted = self.reference[first]
        return (
            f"output {self.name!r}: {wrong_count} of {flat.size} elements are wrong; the first at {where} is "
            f"{float(flat[first]):.9g}, expected {wanted:.9g} within {float(self.allowed(first)):.3g}"
        )


@dataclass(frozen=True)
class Expected:
    """Inputs of a task for one seed, and what its outputs must be."""

    inputs: tuple[Array, ...]
    outputs: tuple[ExpectedOutput, ...]

    @classmethod
    def of(cls, task: Task, seed: int) -> Expected:
        """Draw the task's inputs and compute its reference."""
        inputs = tuple(np.ascontiguousarray(array) for array in task.make_inputs(seed))
        for array in inputs:
            array.flags.writeable = False
        references = task.reference(inputs)
        scales = _usual_scales(task, seed)
        outputs = tuple(
            ExpectedOutput(
                spec.name,
                np.asarray(reference).reshape(spec.shape),
                NUMPY_DTYPES[spec.dtype],
                task.relative_tolerance,
                scale,
            )
            for spec, reference, scale in zip(task.output_specs, references, scales, strict=True)
        )
        return cls(inputs, outputs)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(array.nbytes for array in self.inputs) + sum(output.nbytes for output in self.outputs)


def _usual_scales(task: Task, seed: int) -> list[float]:
    """Per output, the mean of |reference| over further inputs if it has few elements, else 0."""
    few = any(np.prod(spec.shape) < FEW_ELEMENTS for spec in task.output_specs)
    if not few or task.work.read_bytes > FURTHER_INPUT_BYTES:
        return [0.0] * len(task.output_specs)
    draws = [task.reference(task.make_inputs(seed + 1 + n)) for n in range(FURTHER_INPUTS)]
    means = [
        float(np.mean([np.abs(draw[i]).mean() for draw in draws])) for i in range(len(task.output_specs))
    ]
    return [mean if np.isfinite(mean) else 0.0 for mean in means]


def compare(outputs: Sequence[Array], expected: Expected) -> Verdict:
    """Compare all outputs of a run with what they must be; the first wrong one decides the text."""
    worst = 0.0
    for output, reference in zip(outputs, expected.outputs, strict=True):
        verdict = reference.check(output)
        worst = max(worst, verdict.max_error)
        if not verdict.accepted:
            return Verdict(verdict.error, worst)
    return Verdict(None, worst)


def is_poison(array: Array) -> NDArray[np.bool_]:
    """Where an array still holds, bit for bit, the NaN that unwritten memory was filled with."""
    bits = np.dtype(f"u{array.dtype.itemsize}")
    return np.asarray(array.view(bits) == np.iinfo(bits).max)


def bitwise_equal(first: Array, second: Array) -> bool:
    """Whether two arrays hold the same bits (NaN equals the same NaN)."""
    bits = np.dtype(f"u{first.dtype.itemsize}")
    return bool(np.array_equal(first.view(bits), second.view(bits)))


def first_difference(first: Array, second: Array) -> list[int] | None:
    """Index of the first element whose bits differ, or None."""
    bits = np.dtype(f"u{first.dtype.itemsize}")
    different = first.view(bits) != second.view(bits)
    if not different.any():
        return None
    return [int(i) for i in np.unravel_index(int(np.argmax(different)), first.shape)]


class ReferenceCache:
    """Inputs and references of the tasks measured lately, within a number of bytes. Safe between threads."""

    def __init__(self, max_bytes: int = 512 << 20) -> None:
        """Keep at most ``max_bytes``, but always the task used last."""
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, str, int], Expected] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, task: Task, seed: int) -> Expected:
        """Return the inputs and reference of ``task`` under ``seed``, computing them at first use."""
        kind = f"{type(task).__module__}.{type(task).__qualname__}"
        key = (kind, task.id, seed)
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        expected = Expected.of(task, seed)
        with self._lock:
            self._entries[key] = expected
            while len(self._entries) > 1 and self.nbytes > self._max_bytes:
                self._entries.popitem(last=False)
        return expected

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return sum(expected.nbytes for expected in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)
