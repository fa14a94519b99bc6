import itertools

import numpy as np
import pytest

from solgym.envs.mlir_passes.programs.polybench_solvers import PROGRAMS
from solgym.envs.mlir_passes.programs.task import ProgramTask
from solgym.errors import UnknownTask
from tests.envs.mlir_passes.counting import Counter, values

BY_NAME = {program.name: program for program in PROGRAMS}


def make(name, *shape):
    program = BY_NAME[name]
    return ProgramTask(program, program.dtypes[0], dict(zip(program.extents, shape, strict=True)))


def drawn(task, seed=0):
    """The inputs in float64."""
    return [np.array(x, dtype=np.float64) for x in task.make_inputs(seed)]


def agree(task, got):
    expected = task.reference(task.make_inputs(0))
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_cholesky_is_its_definition():
    task = make("cholesky", 6)
    (a,) = drawn(task)
    (result,) = task.reference(task.make_inputs(0))
    lower = np.tril(result)
    np.testing.assert_allclose(np.tril(lower @ lower.T), np.tril(a), rtol=1e-12)
    np.testing.assert_array_equal(np.triu(result, 1), np.triu(a, 1))

    counter = Counter()
    a = counter.array(a)
    for i in range(6):
        for j in range(i):
            a[i, j] = (a[i, j] - sum(a[i, k] * a[j, k] for k in range(j))) / a[j, j]
        a[i, i] = (a[i, i] - sum(a[i, k] * a[i, k] for k in range(i))).root()
    agree(task, [values(a)])
    assert task.work.flops == counter.operations
    assert task.work.read_bytes == task.work.written_bytes == 4 * 21


def test_durbin_solves_the_toeplitz_system():
    n = 7
    task = make("durbin", n)
    (r,) = drawn(task)
    column = np.append(1.0, r[:-1])
    toeplitz = np.array([[column[abs(i - j)] for j in range(n)] for i in range(n)])
    agree(task, [np.linalg.solve(toeplitz, -r)])
    assert np.linalg.eigvalsh(toeplitz).min() > 0.3

    counter = Counter()
    r = counter.array(r)
    y = [-r[0]]
    alpha, beta = -r[0], 1
    for k in range(1, n):
        beta = (1.0 - alpha * alpha) * (counter.array(np.ones(1))[0] if k == 1 else beta)
        alpha = -(r[k] + sum(r[k - i - 1] * y[i] for i in range(k))) / beta
        y = [y[i] + alpha * y[k - i - 1] for i in range(k)] + [alpha]
    agree(task, [values(np.array(y))])
    assert task.work.flops == counter.operations


@pytest.mark.parametrize(("n", "m"), [(4, 6), (5, 5), (1, 1)])
def test_gramschmidt_is_its_definition(n, m):
    task = make("gramschmidt", n, m)
    (a,) = drawn(task)
    _, r, q = task.reference(task.make_inputs(0))
    np.testing.assert_allclose(q.T @ q, np.eye(n), atol=1e-12)
    np.testing.assert_allclose(q @ r, a, rtol=1e-10)
    np.testing.assert_array_equal(np.tril(r, -1), 0.0)

    counter = Counter()
    a = counter.array(a)
    q, r = np.zeros((m, n), dtype=object), np.zeros((n, n), dtype=object)
    for k in range(n):
        r[k, k] = sum(a[i, k] * a[i, k] for i in range(m)).root()
        for i in range(m):
            q[i, k] = a[i, k] / r[k, k]
        for j in range(k + 1, n):
            r[k, j] = sum(q[i, k] * a[i, j] for i in range(m))
            for i in range(m):
                a[i, j] = a[i, j] - q[i, k] * r[k, j]
    agree(task, [values(a), values(r), values(q)])
    assert task.work.flops == counter.operations


def test_gramschmidt_refuses_more_columns_than_rows():
    with pytest.raises(UnknownTask, match="m of program 'gramschmidt' is 3"):
        make("gramschmidt", 4, 3)


def eliminate(a):
    """Overwrite a with its factors, in the order of the definition."""
    n = len(a)
    for i in range(n):
        for j in range(i):
            a[i, j] = (a[i, j] - sum(a[i, k] * a[k, j] for k in range(j))) / a[j, j]
        for j in range(i, n):
            a[i, j] = a[i, j] - sum(a[i, k] * a[k, j] for k in range(i))


def test_lu_is_its_definition():
    task = make("lu", 6)
    (a,) = drawn(task)
    (result,) = task.reference(task.make_inputs(0))
    np.testing.assert_allclose((np.tril(result, -1) + np.eye(6)) @ np.triu(result), a, rtol=1e-12)

    counter = Counter()
    a = counter.array(a)
    eliminate(a)
    agree(task, [values(a)])
    assert task.work.flops == counter.operations


def test_ludcmp_is_its_definition():
    n = 6
    task = make("ludcmp", n)
    a, b = drawn(task)
    _, x = task.reference(task.make_inputs(0))
    np.testing.assert_allclose(a @ x, b, rtol=1e-12)

    counter = Counter()
    a, b = counter.array(a), counter.array(b)
    eliminate(a)
    x, y = np.zeros(n, dtype=object), np.zeros(n, dtype=object)
    for i in range(n):
        y[i] = b[i] - sum(a[i, j] * y[j] for j in range(i))
    for i in reversed(range(n)):
        x[i] = (y[i] - sum(a[i, j] * x[j] for j in range(i + 1, n))) / a[i, i]
    agree(task, [values(a), values(x)])
    assert task.work.flops == counter.operations


def test_trisolv_is_its_definition():
    n = 6
    task = make("trisolv", n)
    lower, b = drawn(task)
    (x,) = task.reference(task.make_inputs(0))
    np.testing.assert_allclose(np.tril(lower) @ x, b, rtol=1e-12)

    counter = Counter()
    lower, b = counter.array(lower), counter.array(b)
    x = np.zeros(n, dtype=object)
    for i in range(n):
        x[i] = (b[i] - sum(lower[i, j] * x[j] for j in range(i))) / lower[i, i]
    agree(task, [values(x)])
    assert task.work.flops == counter.operations


@pytest.mark.parametrize(("w", "h"), [(4, 6), (3, 3), (1, 1), (2, 5)])
def test_deriche_is_its_recursion(w, h):
    task = make("deriche", w, h)
    (image,) = drawn(task)
    alpha = 0.25
    decay = np.exp(-alpha)
    gain = (1 - decay) ** 2 / (1 + 2 * alpha * decay - decay**2)
    a1, a2, a3, a4 = gain * np.array([1, decay * (alpha - 1), decay * (alpha + 1), -(decay**2)])
    b1, b2 = 2 * decay, -(decay**2)

    def smooth(line):
        length = len(line)
        there, back = [0] * length, [0] * length
        for i in range(length):
            terms = [line[i] * float(a1)]
            terms += [line[i - 1] * float(a2), there[i - 1] * b1] if i >= 1 else []
            terms += [there[i - 2] * b2] if i >= 2 else []
            there[i] = sum(terms)
        for i in reversed(range(length)):
            after = range(i + 1, min(i + 3, length))
            terms = [line[j] * float(a) for j, a in zip(after, (a3, a4), strict=False)]
            terms += [back[j] * b for j, b in zip(after, (b1, b2), strict=False)]
            back[i] = sum(terms)
        return [one + other for one, other in zip(there, back, strict=True)]

    counter = Counter()
    rows = np.array([smooth(list(line)) for line in counter.array(image)])
    result = np.array([smooth(list(line)) for line in rows.T]).T
    agree(task, [values(result)])
    assert task.work.flops <= counter.operations
    if min(w, h) >= 3:
        assert task.work.flops == counter.operations


def test_deriche_keeps_a_constant_image():
    (smooth,) = BY_NAME["deriche"].reference({"w": 201, "h": 201}, np.ones((201, 201)))
    assert smooth[100, 100] == pytest.approx(1.0, abs=1e-8)


def test_floyd_warshall_finds_the_shortest_of_all_paths():
    n = 5
    task = make("floyd_warshall", n)
    (weights,) = drawn(task)
    shortest = np.zeros((n, n))
    for start, end in itertools.permutations(range(n), 2):
        others = [place for place in range(n) if place not in (start, end)]
        paths = [
            (start, *stops, end) for count in range(n - 1) for stops in itertools.permutations(others, count)
        ]
        shortest[start, end] = min(
            sum(weights[here, there] for here, there in itertools.pairwise(path)) for path in paths
        )
    (result,) = task.reference(task.make_inputs(0))
    np.testing.assert_array_equal(result, shortest)
    steps = [(k, i, j) for k in range(n) for i in range(n) for j in range(n) if k not in (i, j)]
    assert task.work.flops == 2 * len(steps)


def test_nussinov_finds_the_most_pairs():
    n = 9
    task = make("nussinov", n)
    sequence = np.array([0, 3, 1, 0, 2, 3, 1, 2, 0], dtype=np.float32)

    def most(start, end):
        """The most pairs of the stretch, the first base staying alone or pairing with any other."""
        if end - start < 2:
            return 0
        partners = [k for k in range(start + 2, end + 1) if sequence[start] + sequence[k] == 3]
        paired = [1 + most(start + 1, k - 1) + most(k + 1, end) for k in partners]
        return max([most(start + 1, end), *paired])

    expected = [[most(i, j) if i < j else 0 for j in range(n)] for i in range(n)]
    (table,) = task.reference((sequence,))
    np.testing.assert_array_equal(table, expected)
    assert table.max() >= 2


def test_nussinov_counts_candidates():
    n = 7
    sums = maxima = 0
    for i in range(n):
        for j in range(i + 2, n):
            splits = range(i + 1, j - 1)
            sums += 1 + len(splits)
            maxima += 3 + len(splits) - 1
    assert make("nussinov", n).work.flops == sums + maxima


@pytest.mark.parametrize("name", ["floyd_warshall", "nussinov"])
def test_dynamic_programs_hold_small_integers(name):
    for x in make(name, 20).make_inputs(0):
        np.testing.assert_array_equal(x, np.round(x))
        assert np.abs(x).max() < 1000


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_references_leave_inputs_alone(program):
    shape = tuple(8 + index for index in range(len(program.extents)))
    task = make(program.name, *shape)
    inputs = drawn(task)
    kept = [x.copy() for x in inputs]
    program.reference(task.extents, *inputs)
    for one, other in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(one, other)
