"""Every program's plain pipeline computes what its reference says, at every kind of shape."""

import pickle

import numpy as np
import pytest

from solgym.envs.mlir_passes.programs import PROGRAMS, SUITES, parse_task
from solgym.envs.mlir_passes.sequence import PassSequence
from solgym.errors import UnknownTask
from solgym.hardware.checking import Expected, compare
from solgym.hardware.measurement import Status
from solgym.hardware.target import Artifact, CpuTarget
from tests.envs.mlir_passes.settings import QUICK, SMALL_TASKS

TARGET = CpuTarget()


def smallest(program):
    return program.task_id(tuple(program.minimum.get(name, 1) for name in program.extents))


def cases():
    for program in PROGRAMS.values():
        yield smallest(program)
        yield SMALL_TASKS[program.name]
        yield from (program.task_id(program.train[0], dtype) for dtype in program.dtypes)
        yield program.task_id(program.test[-1])


@pytest.mark.parametrize("task_id", list(cases()))
def test_the_plain_pipeline_agrees_with_the_reference(task_id):
    task = parse_task(task_id)
    measured = TARGET.evaluate(PassSequence(task_id), task, QUICK)
    assert measured.status is Status.OK, measured.error


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_code_generators_agree(name):
    task = parse_task(SMALL_TASKS[name])
    measured = TARGET.evaluate(PassSequence(task.id, jit="mlir"), task, QUICK)
    assert measured.status is Status.OK, measured.error


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("cheat", ["zeros", "ones", "input"])
def test_cheap_answers_are_wrong(name, cheat):
    task = parse_task(PROGRAMS[name].default_task_id)
    expected = Expected.of(task, 3)
    outputs = []
    for spec in task.output_specs:
        if cheat == "input":
            values = next((x for x in expected.inputs if x.shape == spec.shape), None)
            if values is None:
                values = np.resize(expected.inputs[0], spec.shape)
        else:
            values = np.full(spec.shape, 0.0 if cheat == "zeros" else 1.0)
        outputs.append(values.astype(expected.inputs[0].dtype))
    assert not compare(outputs, expected).accepted


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_follow_from_the_seed(name):
    task = parse_task(SMALL_TASKS[name])
    first, again, other = task.make_inputs(1), task.make_inputs(1), task.make_inputs(2)
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    assert any(not np.array_equal(x, y) for x, y in zip(first, other, strict=True))


def test_there_are_at_least_as_many_programs_as_promised():
    assert len(SUITES["PolyBench"]) >= 30
    assert len(SUITES["ML"]) >= 18
    assert len(SUITES["All"]) >= 48
    polybench = (
        "2mm 3mm adi atax bicg cholesky correlation covariance deriche doitgen durbin fdtd_2d "
        "floyd_warshall gemm gemver gesummv gramschmidt heat_3d jacobi_1d jacobi_2d lu ludcmp mvt nussinov "
        "seidel_2d symm syr2k syrk trisolv trmm"
    )
    assert set(polybench.split()) <= {program.name for program in SUITES["PolyBench"]}


def test_some_programs_have_both_element_types():
    assert sum("f64" in program.dtypes for program in PROGRAMS.values()) >= 3


def test_suites_hold_out_programs_and_programs_hold_out_shapes():
    for programs in SUITES.values():
        assert {program.split for program in programs} == {"train", "test"}
    for program in PROGRAMS.values():
        assert not set(program.train) & set(program.test)
        assert len(program.train) >= 2
        assert program.test


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_count_of_work_is_consistent(name):
    task = parse_task(PROGRAMS[name].default_task_id)
    assert task.work.flops >= 0
    arguments = sum(spec.nbytes for spec in (*task.input_specs, *task.output_specs))
    assert 0 < task.work.read_bytes + task.work.written_bytes <= arguments
    assert pickle.loads(pickle.dumps(task)) == task


@pytest.mark.parametrize(
    "task_id",
    [
        "gemm",
        "gemm/f32",
        "nothing/f32/m1",
        "gemm/f16/m1n1k1",
        "gemm/f32/m1n1",
        "gemm/f32/m0n1k1",
        "gemm/f32/m1n1k1x",
        "gemm/f32/m99999n99999k99999",
    ],
)
def test_tasks_that_do_not_exist_say_what_does(task_id):
    with pytest.raises(UnknownTask, match=r"[.!]$"):
        parse_task(task_id)


def test_equal_candidates_give_equal_code():
    task = parse_task(SMALL_TASKS["gemm"])
    first, again = (CpuTarget().compile(PassSequence(task.id), task) for _ in range(2))
    assert isinstance(first, Artifact)
    assert isinstance(again, Artifact)
    assert first.code == again.code
