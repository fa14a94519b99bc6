"""Comparison with the reference: what passes, what fails, and what is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from solgym.hardware.checking import (
    Expected,
    ExpectedOutput,
    ReferenceCache,
    bitwise_equal,
    compare,
    first_difference,
)
from solgym.hardware.task import Array
from tests.hardware.ir_candidates import AddTask

TOLERANCE = 1e-5
DTYPES = [np.dtype(np.float32), np.dtype(np.float64)]


def expected(reference: Any, dtype: np.dtype[Any] = DTYPES[0]) -> ExpectedOutput:
    return ExpectedOutput("C", np.asarray(reference, dtype=np.float64), dtype, TOLERANCE)


@pytest.fixture
def reference() -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(size=(300, 257))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_rounded_reference_passes(reference: NDArray[np.float64], dtype: np.dtype[Any]) -> None:
    verdict = expected(reference, dtype).check(reference.astype(dtype))
    assert verdict.accepted
    assert verdict.max_error < 0.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_limit_is_where_it_is_documented(
    reference: NDArray[np.float64], dtype: np.dtype[Any], factor: float
) -> None:
    """An error of tolerance * (|reference| + mean |reference|) is the largest that passes."""
    scale = np.abs(reference).mean()
    output = reference.copy()
    output[7, 9] += factor * TOLERANCE * (abs(reference[7, 9]) + scale)
    verdict = expected(reference, dtype).check(output.astype(dtype))
    assert verdict.accepted == (factor < 1)
    assert verdict.max_error == pytest.approx(factor, abs=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "positive", "cancelling", "sparse", "tiny", "huge"])
def test_trivial_outputs_are_rejected(dtype: np.dtype[Any], kind: str) -> None:
    rng = np.random.default_rng(1)
    reference: NDArray[np.float64] = {
        "normal": rng.normal(size=1000),
        "positive": rng.uniform(size=1000),
        "cancelling": rng.normal(size=1000) * 1e-3 + np.where(np.arange(1000) % 2, 1.0, -1.0),
        "sparse": np.where(np.arange(1000) == 500, 1.0, 0.0),
        "tiny": rng.normal(size=1000) * 1e-30,
        "huge": rng.normal(size=1000) * 1e30,
    }[kind]
    checker = expected(reference, dtype)
    mean, first = reference.mean(), reference[0]
    for trivial in (
        np.zeros(1000),
        np.full(1000, mean),
        np.full(1000, first),
        np.full(1000, np.median(reference)),
    ):
        assert not checker.check(trivial.astype(dtype)).accepted
    assert checker.check(reference.astype(dtype)).accepted


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 299 * 257 + 256, 12345])
def test_nan_and_infinity_fail(
    reference: NDArray[np.float64], dtype: np.dtype[Any], bad: float, index: int
) -> None:
    output = reference.astype(dtype)
    output.flat[index] = bad
    verdict = expected(reference, dtype).check(output)
    assert not verdict.accepted
    assert verdict.max_error == np.inf
    assert str(list(divmod(index, 257))) in str(verdict.error)


def test_a_reference_with_nan_and_infinity_wants_the_same() -> None:
    checker = expected([1.0, np.nan, np.inf, -np.inf])
    right = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    assert checker.check(right).accepted
    for index in (1, 2, 3):
        wrong = right.copy()
        wrong[index] = 1.0
        assert not checker.check(wrong).accepted
    swapped = right.copy()
    swapped[2] = -np.inf
    assert not checker.check(swapped).accepted


def test_a_reference_of_zeros_wants_zeros() -> None:
    checker = expected(np.zeros(100))
    assert checker.check(np.zeros(100, np.float32)).accepted
    assert not checker.check(np.full(100, 1e-20, np.float32)).accepted


def test_the_message_counts_and_names_the_first() -> None:
    reference = np.ones((4, 5))
    output = np.ones((4, 5), np.float32)
    output[1, 2] = 3.0
    output[3, 4] = 5.0
    error = expected(reference).check(output).error
    assert (
        error == "output 'C': 2 of 20 elements are wrong; the first at [1, 2] is 3, expected 1 within 2e-05"
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_called_unwritten(dtype: np.dtype[Any]) -> None:
    output = np.ones(10, dtype)
    output.view(np.uint8)[5 * dtype.itemsize : 7 * dtype.itemsize] = 0xFF
    error = expected(np.ones(10), dtype).check(output).error
    assert "2 of 10 elements were never written" in str(error)
    assert "[5]" in str(error)


def test_every_output_is_compared() -> None:
    outputs = (expected(np.ones(3)), expected(np.full(3, 2.0)))
    both = Expected((), outputs)
    ones, twos = np.ones(3, np.float32), np.full(3, 2.0, np.float32)
    assert compare([ones, twos], both).accepted
    assert not compare([ones, ones], both).accepted
    assert not compare([twos, twos], both).accepted


def test_bits_decide_equality() -> None:
    nan = np.array([np.nan, 1.0], np.float32)
    assert bitwise_equal(nan, nan.copy())
    assert not bitwise_equal(np.array([0.0]), np.array([-0.0]))
    assert first_difference(np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3)) is None
    assert first_difference(np.zeros((2, 3)), np.array([[0.0, 0, 0], [0, 1, 1]])) == [1, 1]


@dataclass(frozen=True)
class CountingTask(AddTask):
    """Counts how often its reference is computed."""

    calls: tuple[list[int], ...] = ([],)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[NDArray[np.float64], ...]:
        self.calls[0].append(1)
        return super().reference(inputs)


def test_references_are_computed_once_per_task_and_seed() -> None:
    cache, task = ReferenceCache(), CountingTask(calls=([],))
    first = cache.get(task, 0)
    assert cache.get(CountingTask(calls=task.calls), 0) is first
    assert len(task.calls[0]) == 1
    other = cache.get(task, 1)
    assert len(task.calls[0]) == 2
    assert not np.array_equal(other.inputs[0], first.inputs[0])


def test_inputs_in_the_cache_cannot_be_changed() -> None:
    inputs = ReferenceCache().get(AddTask(), 0).inputs
    with pytest.raises(ValueError, match="read-only"):
        inputs[0][0] = 1.0  # type: ignore[call-overload]


def test_the_cache_keeps_to_its_bytes_and_drops_the_oldest() -> None:
    size = Expected.of(AddTask(), 0).nbytes
    cache = ReferenceCache(max_bytes=2 * size)
    entries = [cache.get(AddTask(), seed) for seed in range(2)]
    assert cache.get(AddTask(), 0) is entries[0]
    cache.get(AddTask(), 2)
    assert cache.nbytes <= 2 * size
    assert len(cache) == 2
    assert cache.get(AddTask(), 0) is entries[0]
    assert cache.get(AddTask(), 1) is not entries[1]
    small = ReferenceCache(max_bytes=1)
    assert small.get(AddTask(), 0) is small.get(AddTask(), 0)


def test_a_single_output_that_nearly_cancels_is_judged_by_its_usual_size() -> None:
    """A sum of products that happens to be near zero is as inexact as its terms are large."""

    class Cancelling(AddTask):
        def make_inputs(self, seed: int) -> tuple[Array, ...]:
            size = 1.0 if seed else 1e-6
            return (np.array([size], np.float32), np.array([0.0], np.float32))

    expected = Expected.of(Cancelling(1), seed=0)
    assert expected.outputs[0].scale == pytest.approx(1.0)
    assert compare((np.array([1e-6 + 0.5e-6], np.float32),), expected).accepted
    assert not compare((np.array([1e-4], np.float32),), expected).accepted
