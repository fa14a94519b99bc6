import functools
import itertools

import numpy as np
import pytest

from solgym.envs.mlir_passes.programs.polybench_stencils import PROGRAMS
from solgym.envs.mlir_passes.programs.task import ProgramTask
from tests.envs.mlir_passes.counting import Counter, values

BY_NAME = {program.name: program for program in PROGRAMS}


def make(name, *shape):
    program = BY_NAME[name]
    return ProgramTask(program, program.dtypes[0], dict(zip(program.extents, shape, strict=True)))


def drawn(task):
    """The inputs in float64."""
    return [np.array(x, dtype=np.float64) for x in task.make_inputs(0)]


def agree(task, got):
    expected = task.reference(task.make_inputs(0))
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


def alternate(a, b, steps, point):
    """Sweep from a to b and back; ``point`` makes a new value from the old array and an index."""
    for _ in range(steps):
        for source, target in ((a, b), (b, a)):
            new = {
                index: point(source, index)
                for index in itertools.product(*(range(1, extent - 1) for extent in source.shape))
            }
            for index, value in new.items():
                target[index] = value


@pytest.mark.parametrize(
    ("name", "rank", "point"),
    [
        ("jacobi_1d", 1, lambda a, at: (a[at[0] - 1] + a[at[0]] + a[at[0] + 1]) / 3),
        (
            "jacobi_2d",
            2,
            lambda a, at: (
                sum(a[at[0] + i, at[1] + j] for i, j in ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))) / 5
            ),
        ),
        (
            "heat_3d",
            3,
            lambda a, at: (
                a[at]
                + sum(
                    0.125 * (a[tuple(np.add(at, axis))] - 2 * a[at] + a[tuple(np.subtract(at, axis))])
                    for axis in np.eye(3, dtype=int)
                )
            ),
        ),
    ],
)
def test_alternating_stencils_are_their_definitions(name, rank, point):
    task = make(name, 2, 6)
    a, b = drawn(task)
    alternate(a, b, 2, point)
    agree(task, [a, b])
    # All of A's interior and no more than B's interior must move in each direction.
    assert 4 * 4**rank <= task.work.read_bytes <= task.work.written_bytes <= 2 * 4 * 4**rank


def shared_sums():
    """A sum of two elements of an array that is computed once for each array and pair of places."""

    @functools.cache
    def add(version, one, other):
        return version.array[one] + version.array[other]

    return add


class Version:
    """An array at one moment; each is a key of its own."""

    def __init__(self, array):
        self.array = array


def test_jacobi_1d_counts_shared_sums_once():
    steps, n = 2, 8
    task = make("jacobi_1d", steps, n)
    counter = Counter()
    a, b = (counter.array(x) for x in drawn(task))
    for _ in range(steps):
        for source, target in ((a, b), (b, a)):
            for i in range(1, n - 1, 2):
                pair = source[i] + source[i + 1]
                target[i] = (source[i - 1] + pair) * (1 / 3)
                target[i + 1] = (pair + source[i + 2]) * (1 / 3)
    agree(task, [values(a), values(b)])
    assert task.work.flops == counter.operations


def test_jacobi_2d_counts_shared_sums_once():
    steps, n = 1, 7
    task = make("jacobi_2d", steps, n)
    counter = Counter()
    a, b = (counter.array(x) for x in drawn(task))
    add = shared_sums()
    for source, target in ((a, b), (b, a)):
        version = Version(source.copy())
        for i, j in itertools.product(range(1, n - 1), repeat=2):
            pairs = (add(version, (i - 1, j), (i, j - 1)), add(version, (i, j + 1), (i + 1, j)))
            target[i, j] = (source[i, j] + pairs[0] + pairs[1]) * 0.2
    agree(task, [values(a), values(b)])
    # Along two sides of the interior a pair has one user.
    assert counter.operations - task.work.flops == 2 * steps * (2 * (n - 2) - 1)


def test_heat_3d_counts_shared_sums_once():
    steps, n = 1, 6
    task = make("heat_3d", steps, n)
    counter = Counter()
    a, b = (counter.array(x) for x in drawn(task))
    add = shared_sums()
    for source, target in ((a, b), (b, a)):
        version = Version(source.copy())
        for i, j, k in itertools.product(range(1, n - 1), repeat=3):
            pairs = add(version, (i - 1, j, k), (i, j - 1, k)), add(version, (i, j + 1, k), (i + 1, j, k))
            neighbours = pairs[0] + pairs[1] + (source[i, j, k - 1] + source[i, j, k + 1])
            target[i, j, k] = neighbours * 0.125 + source[i, j, k] * 0.25
    agree(task, [values(a), values(b)])
    assert counter.operations - task.work.flops == 2 * steps * (n - 2) * (2 * (n - 2) - 1)


def test_seidel_2d_is_its_definition():
    task = make("seidel_2d", 3, 7)
    (a,) = drawn(task)
    for _ in range(3):
        for i, j in itertools.product(range(1, 6), repeat=2):
            a[i, j] = a[i - 1 : i + 2, j - 1 : j + 2].sum() / 9
    agree(task, [a])


def test_seidel_2d_counts_shared_sums_once():
    steps, n = 3, 8
    task = make("seidel_2d", steps, n)
    counter = Counter()
    (a,) = (counter.array(x) for x in drawn(task))
    add = shared_sums()

    @functools.cache
    def three(version, j):
        return add(version, j - 1, j) + version.array[j + 1]

    rows = [Version(row.copy()) for row in a]
    for _ in range(steps):
        for i in range(1, n - 1):
            new = rows[i].array.copy()
            for j in range(1, n - 1):
                own = new[j - 1] + add(rows[i], j, j + 1)
                new[j] = (three(rows[i - 1], j) + three(rows[i + 1], j) + own) / 9.0
            rows[i] = Version(new)
    agree(task, [values(np.array([row.array for row in rows]))])
    # The excess: two sums of pairs and threes of the rows at first, and one pair at a row's end.
    excess = counter.operations - task.work.flops
    assert 0 <= excess <= 2 * n * n + steps * n


def test_fdtd_2d_is_its_definition():
    steps, nx, ny = 3, 5, 6
    task = make("fdtd_2d", steps, nx, ny)
    counter = Counter()
    ex, ey, hz, source = (counter.array(x) for x in drawn(task))
    for t in range(steps):
        ey[0, :] = source[t]
        for i, j in itertools.product(range(1, nx), range(ny)):
            ey[i, j] = ey[i, j] - 0.5 * (hz[i, j] - hz[i - 1, j])
        for i, j in itertools.product(range(nx), range(1, ny)):
            ex[i, j] = ex[i, j] - 0.5 * (hz[i, j] - hz[i, j - 1])
        for i, j in itertools.product(range(nx - 1), range(ny - 1)):
            curl = ex[i, j + 1] - ex[i, j] + ey[i + 1, j] - ey[i, j]
            hz[i, j] = hz[i, j] - 0.7 * curl
    agree(task, [values(ex), values(ey), values(hz)])
    assert task.work.flops == counter.operations


def test_adi_solves_its_implicit_systems():
    steps, n = 2, 7
    task = make("adi", steps, n)
    (u,) = drawn(task)

    def second_difference(size):
        return 2 * np.eye(size) - np.eye(size, k=1) - np.eye(size, k=-1)

    along_columns, along_rows = 3.0, 1.5
    inside = slice(1, -1)
    for _ in range(steps):
        v = u.copy()
        v[[0, -1], 1:-1] = 1.0
        right = (u - along_rows / 2 * u @ second_difference(n))[inside, inside]
        right[[0, -1]] += along_columns / 2
        v[inside, inside] = np.linalg.solve(
            np.eye(n - 2) + along_columns / 2 * second_difference(n - 2), right
        )
        u[1:-1, [0, -1]] = 1.0
        right = (v - along_columns / 2 * second_difference(n) @ v)[inside, inside]
        right[:, [0, -1]] += along_rows / 2
        solved = np.linalg.solve(np.eye(n - 2) + along_rows / 2 * second_difference(n - 2), right.T)
        u[inside, inside] = solved.T
    agree(task, [u])


def test_adi_counts_what_depends_on_data():
    steps, n = 1, 6
    task = make("adi", steps, n)
    counter = Counter()
    (u,) = (counter.array(x) for x in drawn(task))
    for implicit, explicit in ((3.0, 1.5), (1.5, 3.0)):
        solved = u.copy()
        for i in range(1, n - 1):
            p, q = [0.0] * n, [1] * n
            for j in range(1, n - 1):
                pivot = 1 + implicit - implicit / 2 * p[j - 1]
                p[j] = implicit / 2 / pivot
                right = explicit / 2 * (u[j, i - 1] + u[j, i + 1]) + (1 - explicit) * u[j, i]
                q[j] = (right + implicit / 2 * q[j - 1]) * (1 / pivot)
            solved[0, i] = solved[n - 1, i] = counter.array(np.ones(1))[0]
            after = 1
            for j in range(n - 2, 0, -1):
                after = p[j] * after + q[j]
                solved[j, i] = after
        u = solved.T
    assert task.work.flops == counter.operations


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_references_leave_inputs_alone(program):
    task = make(program.name, *(5 + index for index in range(len(program.extents))))
    inputs = drawn(task)
    kept = [x.copy() for x in inputs]
    program.reference(task.extents, *inputs)
    for one, other in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(one, other)
