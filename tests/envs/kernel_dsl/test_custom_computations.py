"""Computations that no shipped kernel has, against the interpreter: strides, shared tensors, dead stages."""

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from solgym.envs.kernel_dsl.expression import Builder, Computation
from solgym.envs.kernel_dsl.fuzz import ONCE
from solgym.envs.kernel_dsl.interpreter import interpret
from solgym.envs.kernel_dsl.lowering import lower
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.primitives import apply_step
from solgym.errors import IllegalSchedule
from solgym.hardware.measurement import Status
from solgym.hardware.target import LoweredKernel, TargetSpec, cpu_spec
from solgym.hardware.task import Array, TensorSpec, Work
from tests.envs.kernel_dsl.running import step, target


class CustomTask:
    """A task made of any computation in f32."""

    work = Work("f32", 1, 4, 4)
    relative_tolerance = 1e-4

    def __init__(self, computation: Computation) -> None:
        self.computation = computation
        self.id = hashlib.sha256(str(computation).encode()).hexdigest()
        self.input_specs = tuple(TensorSpec(t.name, t.shape, "f32") for t in computation.inputs)
        self.output_specs = tuple(
            TensorSpec(name, computation.tensor(name).shape, "f32") for name in computation.outputs
        )

    def make_inputs(self, seed: int) -> tuple[Array, ...]:
        rng = np.random.default_rng(seed)
        return tuple(rng.uniform(-1, 1, spec.shape).astype(np.float32) for spec in self.input_specs)

    def reference(self, inputs: tuple[Array, ...]) -> tuple[np.ndarray, ...]:
        return interpret(self.computation, inputs)


class Steps:
    """Steps for any computation, as a candidate."""

    def __init__(self, *steps: dict[str, Any]) -> None:
        self.steps = steps
        self.digest = hashlib.sha256(json.dumps(steps).encode()).hexdigest()

    def nest(self, computation: Computation) -> ProgramNest:
        nest = ProgramNest.initial(computation)
        for one in self.steps:
            nest = apply_step(nest, one, cpu_spec())
        return nest

    def lower(self, task: CustomTask, spec: TargetSpec) -> LoweredKernel:
        return lower(self.nest(task.computation), spec)


def assert_right(computation: Computation, *steps: dict[str, Any]) -> None:
    measurement = target().evaluate(Steps(*steps), CustomTask(computation), ONCE)
    assert measurement.status in (Status.OK, Status.UNSTABLE), measurement.error


def test_pieces_read_with_a_stride_find_their_tiles() -> None:
    """Steps of 3 at a stride of 2 start at tiles of 6."""
    b = Builder("f32")
    X = b.input("X", 48, 4)
    S = b.stage("S", {"i": 48, "j": 4}, lambda i, j: X[i, j] * 2.0)
    b.stage("Y", {"i": 24, "j": 4}, lambda i, j: S[2 * i, j])
    assert_right(
        b.build(),
        step("split", "S", loop="i", factor=6),
        step("reorder", "S", loops=["i.o", "j", "i.i"]),
        step("vectorize", "S", loop="i.i", lanes=8),
        step("cache_read", "S", tensor="X"),
        step("split", "Y", loop="i", factor=3),
        step("compute_at", "S", at="Y", loop="i.o"),
    )


def transposing(stage: str, outer: str, across: str) -> list[dict[str, Any]]:
    return [
        step("reorder", stage, loops=["o", outer, "k", across]),
        step("unroll", stage, loop="k"),
        step("vectorize", stage, loop=across, lanes=4),
        step("unroll", stage, loop=outer),
        step("transpose", stage, tensor="X"),
    ]


def test_stages_transpose_blocks_of_one_tensor_across_different_axes() -> None:
    b = Builder("f32")
    X = b.input("X", 3, 4, 4, 4)
    axes = {"o": 3, "i": 4, "j": 4, "k": 4}
    S = b.stage("S", axes, lambda o, i, j, k: X[o, i, j, k] * 2.0)
    b.stage("Y", axes, lambda o, i, j, k: S[o, i, j, k] + X[o, i, j, k])
    assert_right(
        b.build(),
        *transposing("S", "j", "i"),
        *transposing("Y", "i", "j"),
        step("compute_at", "S", at="Y", loop="o"),
    )


def test_stages_transpose_blocks_of_one_tensor_in_vectors_of_different_lengths() -> None:
    b = Builder("f32")
    X = b.input("X", 3, 10, 10)
    axes = {"o": 3, "j": 10, "k": 10}
    S = b.stage("S", axes, lambda o, j, k: X[o, j, k] * 2.0)
    b.stage("Y", axes, lambda o, j, k: S[o, j, k] + X[o, j, k])
    steps = []
    for stage, lanes in (("S", 8), ("Y", 2)):
        steps += [
            step("split", stage, loop="j", factor=lanes),
            step("split", stage, loop="k", factor=lanes),
            step("reorder", stage, loops=["o", "j.o", "k.o", "k.i", "j.i"]),
            step("unroll", stage, loop="k.i"),
            step("vectorize", stage, loop="j.i", lanes=lanes),
            step("unroll", stage, loop="j.o"),
            step("unroll", stage, loop="k.o"),
            step("transpose", stage, tensor="X"),
        ]
    assert_right(b.build(), *steps, step("compute_at", "S", at="Y", loop="o"))


def chain() -> Computation:
    """M is read at i and 2 i by N, whose own place moves with Y once it is computed there."""
    b = Builder("f32")
    X = b.input("X", 32)
    M = b.stage("M", {"i": 32}, lambda i: X[i] * 2.0)
    N = b.stage("N", {"z": 2, "i": 16}, lambda z, i: M[i] + M[2 * i])
    b.stage("Y", {"i": 16}, lambda i: N[0, i] * 3.0 + N[1, i])
    return b.build()


@pytest.mark.parametrize("inner_first", [True, False])
def test_unrelated_parts_are_refused_when_their_reader_moves(inner_first: bool) -> None:
    moves = [step("compute_at", "M", at="N", loop="z"), step("compute_at", "N", at="Y", loop="i")]
    assert_right(chain(), moves[0])
    assert_right(chain(), moves[1])
    with pytest.raises(IllegalSchedule, match="need different parts"):
        Steps(*(moves if inner_first else reversed(moves))).nest(chain())


@pytest.mark.parametrize("host", ["Y", "D"])
def test_a_stage_that_nothing_reads_stays_where_it_is(host: str) -> None:
    b = Builder("f32")
    X = b.input("X", 8)
    b.stage("D", {"i": 8}, lambda i: X[i] * 2.0)
    b.stage("Y", {"i": 8}, lambda i: X[i] * 3.0)
    assert_right(b.build("Y"))
    with pytest.raises(IllegalSchedule, match="nothing reads"):
        Steps(step("compute_at", "D", at=host, loop="i")).nest(b.build("Y"))
