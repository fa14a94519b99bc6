import pickle

import numpy as np
import pytest

from solgym.envs.kernel_dsl.interpreter import interpret
from solgym.envs.kernel_dsl.kernels import KERNELS, KernelTask, parse_task
from solgym.envs.kernel_dsl.random_schedules import random_task
from solgym.errors import UnknownTask
from solgym.hardware.checking import Expected, compare
from solgym.hardware.task import Task
from tests.envs.fakes import SMALL_TASKS

EVERY_TASK = [t for kernel in KERNELS.values() for split in ("train", "test") for t in kernel.task_ids(split)]
SMALL = [
    parse_task(SMALL_TASKS[name].replace("f32", dtype)) for name, k in KERNELS.items() for dtype in k.dtypes
]


def named(tasks):
    return pytest.mark.parametrize("task", tasks, ids=lambda task: task.id)


@pytest.mark.parametrize("task_id", EVERY_TASK)
def test_named_tasks_exist_and_read_back_as_they_were_written(task_id):
    task = parse_task(task_id)
    assert task.id == task_id
    assert isinstance(task, Task)
    assert pickle.loads(pickle.dumps(task)) == task


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: kernel.name)
def test_train_and_test_share_no_shape(kernel):
    shapes = {
        split: {tuple(parse_task(t).extents.items()) for t in kernel.task_ids(split)}
        for split in ("train", "test")
    }
    assert shapes["train"].isdisjoint(shapes["test"])
    assert len(kernel.task_ids("train")) >= 3
    assert len(kernel.task_ids("test")) >= 3
    assert kernel.default_task_id in kernel.task_ids("train")


@named(SMALL)
def test_expression_means_what_the_reference_computes(task):
    inputs = task.make_inputs(3)
    (reference,), (meaning,) = task.reference(inputs), interpret(task.computation, inputs)
    assert reference.shape == task.output_specs[0].shape
    assert reference.dtype == np.float64
    np.testing.assert_allclose(meaning, reference, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("points", [5, 9])
def test_both_stencils_mean_what_the_reference_computes(points):
    task = parse_task(f"stencil2d/f64/points{points}h4w7")
    inputs = task.make_inputs(0)
    np.testing.assert_allclose(interpret(task.computation, inputs)[0], task.reference(inputs)[0], rtol=1e-13)


@named(SMALL)
def test_equal_seeds_give_equal_inputs_of_the_right_form(task):
    first, again, other = task.make_inputs(1), task.make_inputs(1), task.make_inputs(2)
    for spec, a, b, c in zip(task.input_specs, first, again, other, strict=True):
        assert a.shape == spec.shape
        assert a.nbytes == spec.nbytes
        assert np.array_equal(a, b)
        assert not np.array_equal(a, c)


# From the definitions: a multiply-add is two, every function and every reduced maximum one; a factor that
# depends on the row alone counts once per row; padding is skipped.
FLOPS = {
    "gemm/f32/m7n5k3": 2 * 7 * 5 * 3,
    "batched_gemm/f32/b2m7n5k3": 2 * 2 * 7 * 5 * 3,
    "gemv/f32/m7n5": 2 * 7 * 5,
    "gemm_bias_gelu/f32/m7n5k3": 2 * 7 * 5 * 3 + 6 * 7 * 5,
    "mlp/f32/batch2in3hidden5out7": 2 * 2 * 3 * 5 + 2 * 2 * 5 + 2 * 2 * 5 * 7 + 2 * 7,
    # Rows and columns of a 3-tap filter on 5 padded elements meet 13 of 15.
    "conv2d/f32/n1h5w5ci2co7r3s3": 2 * 13 * 13 * 2 * 7,
    "depthwise_conv2d/f32/n1h5w5c2r3s3": 2 * 13 * 13 * 2,
    "stencil2d/f32/points5h3w4": 6 * 12,
    "stencil2d/f32/points9h3w4": 11 * 12,
    "stencil3d/f32/d2h3w4": 8 * 24,
    "reduction/f32/rows3cols5": 15,
    "softmax/f32/rows3cols5": 15 * (1 + 2 + 1 + 1) + 3,
    "layernorm/f32/rows3cols5": 15 * (1 + 3 + 4) + 3 * (1 + 1 + 3),
    "attention/f32/seq5dim3": 25 * 2 * 3 + 25 + 25 * 3 + 25 + 25 * 2 * 3 + 15 + 5,
    "transpose/f32/rows3cols5": 0,
    "elementwise/f32/rows3cols5": 15 * 4,
}


def test_every_kernel_has_its_flops_checked():
    assert {t.split("/")[0] for t in FLOPS} == set(KERNELS)


@pytest.mark.parametrize("task_id", FLOPS)
def test_flops_follow_the_definition(task_id):
    assert parse_task(task_id).work.flops == FLOPS[task_id]


@named(SMALL)
def test_compulsory_bytes_are_inputs_and_outputs_once(task):
    assert task.work.read_bytes == sum(spec.nbytes for spec in task.input_specs)
    assert task.work.written_bytes == sum(spec.nbytes for spec in task.output_specs)


def smallest(kernel, split):
    """The task of a split with the least data: quick to draw and as hard to tell from trivial ones."""
    return min(map(parse_task, kernel.task_ids(split)), key=lambda task: task.work.compulsory_bytes)


REALISTIC = [smallest(kernel, split) for kernel in KERNELS.values() for split in ("train", "test")]


@named(REALISTIC)
def test_arithmetic_in_the_tasks_own_precision_is_accepted(task):
    expected = Expected.of(task, 0)
    computed = np.asarray(
        task.kernel.reference(task.extents, *expected.inputs), dtype=expected.inputs[0].dtype
    )
    assert compare((np.ascontiguousarray(computed),), expected).accepted


def test_a_sequential_sum_in_single_precision_is_accepted():
    task = parse_task("reduction/f32/rows64cols65536")
    expected = Expected.of(task, 0)
    sequential = np.ascontiguousarray(np.cumsum(expected.inputs[0], axis=1, dtype=np.float32)[:, -1])
    assert compare((sequential,), expected).accepted


@named(REALISTIC)
def test_trivial_outputs_are_rejected(task):
    expected = Expected.of(task, 0)
    spec = task.output_specs[0]
    dtype = expected.inputs[0].dtype
    (reference,) = task.reference(expected.inputs)
    for constant in (0.0, 1.0, float(reference.mean()), float(np.median(reference))):
        assert not compare((np.full(spec.shape, constant, dtype),), expected).accepted
    for array in expected.inputs:
        assert not compare((np.resize(array, spec.shape),), expected).accepted


@pytest.mark.parametrize(
    "task_id", ["gemm/f32/m8n8k4096", "gemv/f32/m64n8192", "conv2d/f32/n1h8w8ci64co8r3s3"]
)
def test_leaving_out_one_term_of_a_sum_is_rejected(task_id):
    task = parse_task(task_id)
    expected = Expected.of(task, 0)
    inputs = [array.copy() for array in expected.inputs]
    inputs[1][0 if inputs[1].ndim == 1 else (..., 0, slice(None))] = 0
    (short,) = task.reference(tuple(inputs))
    assert not compare((short.astype(expected.inputs[0].dtype),), expected).accepted


@pytest.mark.parametrize(
    ("task_id", "needle"),
    [
        ("gemm", "<kernel>/<dtype>/<extents>"),
        ("gem/f32/m1n1k1", "no kernel 'gem'"),
        ("gemm/f16/m1n1k1", "no dtype 'f16'"),
        ("gemm_bias_gelu/f64/m1n1k1", "no dtype 'f64'"),
        ("gemm/f32/m1n1", "m<number>n<number>k<number>"),
        ("gemm/f32/n1m1k1", "m<number>n<number>k<number>"),
        ("gemm/f32/m1n1k1x", "m<number>n<number>k<number>"),
        ("gemm/f32/m0n1k1", "at least 1"),
        ("softmax/f32/rows3cols1", "at least 2"),
        ("conv2d/f32/n1h5w5ci1co1r2s2", "one of 1, 3, 5, 7"),
        ("stencil2d/f32/points7h5w5", "one of 5, 9"),
        ("gemm/f32/m99999n99999k9", "choose smaller extents"),
    ],
)
def test_tasks_that_do_not_exist_say_why(task_id, needle):
    with pytest.raises(UnknownTask, match=needle.replace("(", r"\(")):
        parse_task(task_id)


def test_extents_of_any_length_are_read():
    with pytest.raises(UnknownTask):
        parse_task(f"gemm/f32/m1n1k{'9' * 5000}")


def test_random_tasks_keep_to_what_a_task_may_be():
    random_task(np.random.default_rng(165), "conv2d")  # draws 9 GFLOP and 1,700 MiB first


def test_any_shape_is_a_task():
    assert parse_task("gemm/f32/m100n37k5").extents == {"m": 100, "n": 37, "k": 5}
    assert KernelTask(KERNELS["gemm"], "f32", {"k": 5, "n": 37, "m": 100}).id == "gemm/f32/m100n37k5"
