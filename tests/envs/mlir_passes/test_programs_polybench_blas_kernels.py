"""PolyBench's BLAS, kernels and data mining: references and counts against the definitions, loop by loop."""

import itertools
import math

import numpy as np
import pytest

from solgym.envs.mlir_passes.programs.polybench_blas import ALPHA, BETA
from solgym.envs.mlir_passes.programs.polybench_blas import PROGRAMS as BLAS
from solgym.envs.mlir_passes.programs.polybench_kernels import PROGRAMS as KERNELS
from solgym.envs.mlir_passes.programs.polybench_kernels import chain_flops
from solgym.envs.mlir_passes.programs.task import ProgramTask, parse_task

PROGRAMS = {program.name: program for program in (*BLAS, *KERNELS)}


class Number:
    """A float that counts the operations on all of them."""

    operations = 0

    def __init__(self, value):
        self.value = float(value)

    def _counted(self, value):
        Number.operations += 1
        return Number(value)

    def __add__(self, other):
        return self._counted(self.value + float(other))

    def __sub__(self, other):
        return self._counted(self.value - float(other))

    def __mul__(self, other):
        return self._counted(self.value * float(other))

    def __truediv__(self, other):
        return self._counted(self.value / float(other))

    __radd__, __rmul__ = __add__, __mul__

    def __float__(self):
        return self.value


numbers = np.vectorize(Number, otypes=[object])
floats = np.vectorize(float, otypes=[float])


def zeros(*shape):
    """Plain zeros, so that a sum of n products counts 2 n operations, as a chain of multiply-adds does."""
    return np.zeros(shape).astype(object)


def product(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = zeros(m, n)
    for i, j, p in itertools.product(range(m), range(n), range(k)):
        c[i, j] = c[i, j] + a[i, p] * b[p, j]
    return c


def gemm(extents, a, b):
    return (product(a, b),)


def gemm_update(extents, c, a, b):
    result = product(a, b)
    for i, j in np.ndindex(c.shape):
        result[i, j] = result[i, j] * ALPHA + c[i, j] * BETA
    return (result,)


def gemver(extents, a, u1, v1, u2, v2, y, z):
    n = extents["n"]
    updated, x, w = a.copy(), zeros(n), zeros(n)
    for i, j in np.ndindex(n, n):
        updated[i, j] = a[i, j] + u1[i] * v1[j] + u2[i] * v2[j]
    for i in range(n):
        for j in range(n):
            x[i] = x[i] + updated[j, i] * y[j]
        x[i] = x[i] * BETA + z[i]
    for i in range(n):
        for j in range(n):
            w[i] = w[i] + updated[i, j] * x[j]
        w[i] = w[i] * ALPHA
    return updated, x, w


def gesummv(extents, a, b, x):
    n = extents["n"]
    y = zeros(n)
    for i in range(n):
        from_a, from_b = 0.0, 0.0
        for j in range(n):
            from_a = from_a + a[i, j] * x[j]
            from_b = from_b + b[i, j] * x[j]
        y[i] = from_a * ALPHA + from_b * BETA
    return (y,)


def symm(extents, a, b, c):
    m, n = extents["m"], extents["n"]
    result = c.copy()
    for i, j in np.ndindex(m, n):
        total = 0.0
        for k in range(m):
            total = total + (a[i, k] if k <= i else a[k, i]) * b[k, j]
        result[i, j] = total * ALPHA + c[i, j] * BETA
    return (result,)


def syrk(extents, c, a):
    n, m = extents["n"], extents["m"]
    result = c.copy()
    for i in range(n):
        for j in range(i + 1):
            total = 0.0
            for k in range(m):
                total = total + a[i, k] * a[j, k]
            result[i, j] = total * ALPHA + c[i, j] * BETA
    return (result,)


def syr2k(extents, c, a, b):
    n = extents["n"]
    once = product(a, b.T)
    result = c.copy()
    for i in range(n):
        for j in range(i + 1):
            result[i, j] = (once[i, j] + once[j, i]) * ALPHA + c[i, j] * BETA
    return (result,)


def trmm(extents, a, b):
    m, n = extents["m"], extents["n"]
    result = b.copy()
    for i, j in np.ndindex(m, n):
        for k in range(i + 1, m):
            result[i, j] = result[i, j] + a[k, i] * b[k, j]
        result[i, j] = result[i, j] * ALPHA
    return (result,)


def two_mm(extents, a, b, c, d):
    result = product(product(a, b), c)
    for i, j in np.ndindex(d.shape):
        result[i, j] = result[i, j] * ALPHA + d[i, j] * BETA
    return (result,)


def three_mm(extents, a, b, c, d):
    return (product(product(a, b), product(c, d)),)


def atax(extents, a, x):
    a_x = product(a, x[:, None])
    return (product(a.T, a_x)[:, 0],)


def bicg(extents, a, p, r):
    return product(a.T, r[:, None])[:, 0], product(a, p[:, None])[:, 0]


def doitgen(extents, a, c4):
    nr, nq, np_ = a.shape
    result = zeros(nr, nq, np_)
    for r, q, p, s in itertools.product(range(nr), range(nq), range(np_), range(np_)):
        result[r, q, p] = result[r, q, p] + a[r, q, s] * c4[s, p]
    return (result,)


def mvt(extents, x1, x2, y1, y2, a):
    first, second = x1.copy(), x2.copy()
    for i, j in np.ndindex(a.shape):
        first[i] = first[i] + a[i, j] * y1[j]
        second[i] = second[i] + a[j, i] * y2[j]
    return first, second


def centred(data):
    n, m = data.shape
    result = data.copy()
    for j in range(m):
        mean = 0.0
        for i in range(n):
            mean = mean + data[i, j]
        mean = mean / n
        for i in range(n):
            result[i, j] = data[i, j] - mean
    return result


def symmetric_product(table):
    """Each pair of columns once."""
    n, m = table.shape
    result = zeros(m, m)
    for i in range(m):
        for j in range(i + 1):
            for k in range(n):
                result[i, j] = result[i, j] + table[k, i] * table[k, j]
            result[j, i] = result[i, j]
    return result


def correlation(extents, data):
    table = centred(data)
    n, m = data.shape
    for j in range(m):
        squares = 0.0
        for i in range(n):
            squares = squares + table[i, j] * table[i, j]
        deviation = math.sqrt(float(squares) / n)
        length = (1.0 if deviation <= 0.1 else deviation) * math.sqrt(n)
        for i in range(n):
            table[i, j] = table[i, j] / length
    return (symmetric_product(table),)


def covariance(extents, data):
    result = symmetric_product(centred(data))
    for i, j in np.ndindex(result.shape):
        result[i, j] = result[i, j] / (extents["n"] - 1)
    return (result,)


DEFINITIONS = {
    "gemm": gemm,
    "gemm_update": gemm_update,
    "gemver": gemver,
    "gesummv": gesummv,
    "symm": symm,
    "syr2k": syr2k,
    "syrk": syrk,
    "trmm": trmm,
    "2mm": two_mm,
    "3mm": three_mm,
    "atax": atax,
    "bicg": bicg,
    "correlation": correlation,
    "covariance": covariance,
    "doitgen": doitgen,
    "mvt": mvt,
}

SHAPES = ((3, 4, 5, 6, 7), (7, 6, 5, 4, 3), (4, 4, 4, 4, 4), (2, 9, 2, 9, 2))

TASKS = [
    ProgramTask(program, program.dtypes[-1], dict(zip(program.extents, shape, strict=False)))
    for program in PROGRAMS.values()
    for shape in SHAPES
]


def test_every_program_has_a_definition_here():
    assert set(DEFINITIONS) == set(PROGRAMS)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_the_reference_is_the_definition_and_leaves_its_inputs_alone(task):
    inputs = tuple(x.astype(np.float64) for x in task.make_inputs(1))
    kept = tuple(x.copy() for x in inputs)
    outputs = task.program.reference(task.extents, *inputs)
    for x, original in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(x, original)
    defined = DEFINITIONS[task.program.name](task.extents, *map(numbers, inputs))
    assert [y.shape for y in outputs] == [spec.shape for spec in task.output_specs]
    for output, expected in zip(outputs, defined, strict=True):
        np.testing.assert_allclose(output, floats(expected), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_flops_are_those_of_the_definition_but_for_what_can_be_saved(task):
    inputs = tuple(numbers(x) for x in task.make_inputs(1))
    Number.operations = 0
    DEFINITIONS[task.program.name](task.extents, *inputs)
    elements = sum(math.prod(argument.shape) for argument in task.arguments)
    # A scaling or a start from zero may be saved, and a product of three matrices taken in another order.
    assert task.work.flops <= Number.operations
    if task.program.name not in ("2mm", "3mm"):
        assert Number.operations - task.work.flops <= 4 * elements
    if task.program.name in ("gemm", "atax", "bicg", "doitgen", "mvt", "trmm"):
        assert Number.operations == task.work.flops


def test_products_of_several_matrices_count_the_cheapest_order():
    assert chain_flops((2, 3)) == 0
    assert chain_flops((2, 3, 4)) == 2 * 2 * 3 * 4
    # A column times a row times a column: the inner product first.
    assert chain_flops((10, 1, 10, 1)) == 2 * (10 + 10)
    # (A B)(C D) with an inner extent of 1 between B and C: both halves are vectors.
    assert chain_flops((5, 6, 1, 7, 8)) == 2 * (5 * 6 + 7 * 8 + 5 * 8)


@pytest.mark.parametrize("name", ["correlation", "covariance"])
def test_statistics_are_numpys(name):
    task = parse_task(f"{name}/f32/m6n50")
    (data,) = task.make_inputs(2)
    (result,) = task.reference((data,))
    expected = {"correlation": np.corrcoef, "covariance": np.cov}[name](data.astype(np.float64), rowvar=False)
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-12)


def test_a_constant_column_correlates_with_nothing():
    data = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    (result,) = PROGRAMS["correlation"].reference({"m": 2, "n": 3}, data)
    np.testing.assert_allclose(result, [[1.0, 0.0], [0.0, 0.0]], atol=1e-15)


@pytest.mark.parametrize("name", ["syrk", "syr2k"])
def test_the_other_triangle_keeps_its_values(name):
    task = parse_task(f"{name}/f32/n5m4")
    inputs = task.make_inputs(0)
    (result,) = task.reference(inputs)
    np.testing.assert_array_equal(np.triu(result, 1), np.triu(inputs[0], 1))


@pytest.mark.parametrize("name", ["symm", "trmm"])
def test_the_other_triangle_does_not_matter(name):
    task = parse_task(f"{name}/f32/m5n4")
    inputs = task.make_inputs(0)
    lower = (np.tril(inputs[0]), *inputs[1:])
    np.testing.assert_array_equal(task.reference(inputs)[0], task.reference(lower)[0])
