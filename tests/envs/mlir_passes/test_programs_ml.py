"""Programs of machine learning and image processing, against implementations that count what they do."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from solgym.envs.mlir_passes.programs import image, ml, ml_convolutions, ml_rows

PROGRAMS = {
    program.name: program
    for program in (*ml.PROGRAMS, *ml_rows.PROGRAMS, *ml_convolutions.PROGRAMS, *image.PROGRAMS)
}


class Counted:
    """A number that counts the operations on all numbers of its kind."""

    operations = 0

    def __init__(self, value):
        self.value = float(value)

    @classmethod
    def result(cls, value):
        cls.operations += 1
        return cls(value)

    def __add__(self, other):
        return self.result(self.value + value_of(other))

    def __sub__(self, other):
        return self.result(self.value - value_of(other))

    def __mul__(self, other):
        return self.result(self.value * value_of(other))

    def __truediv__(self, other):
        return self.result(self.value / value_of(other))

    def __rsub__(self, other):
        return self.result(value_of(other) - self.value)

    __radd__, __rmul__ = __add__, __mul__


def value_of(number):
    return number.value if isinstance(number, Counted) else float(number)


def apply(function: Callable[[float], float], number: Counted) -> Counted:
    return Counted.result(function(number.value))


def largest(numbers: Iterable[Counted]) -> Counted:
    return functools.reduce(lambda a, b: Counted.result(max(a.value, b.value)), numbers)


def total(numbers: Iterable[Counted]) -> Counted:
    return functools.reduce(lambda a, b: a + b, numbers)


def table(shape, element):
    """The array whose element at ``index`` is ``element(*index)``."""
    array = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
        array[index] = element(*index)
    return array


def multiply_adds(start, pairs):
    """A sum of products as matrix programs count it: two for each term, also for the first."""
    for left, right in pairs:
        start = start + left * right
    return start


def product(left, right, start=lambda i, j: Counted(0)):
    (m, depth), n = left.shape, right.shape[1]
    return table(
        (m, n), lambda i, j: multiply_adds(start(i, j), ((left[i, k], right[k, j]) for k in range(depth)))
    )


def gelu(x):
    """x / (1 + exp(-2u)) for u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    scale = -2.0 * math.sqrt(2.0 / math.pi)
    return x / (1.0 + apply(math.exp, x * (x * x * (scale * 0.044715) + scale)))


def negative_swish(minus):
    """Swish of ``-minus``."""
    return minus / (-1.0 - apply(math.exp, minus))


def inverse_root(x):
    return apply(lambda value: 1.0 / math.sqrt(value), x)


def batch_matmul(e, a, b):
    return [np.array([product(*pair) for pair in zip(a, b, strict=True)])]


def dense(e, x, w, bias):
    sums = product(x, w, lambda i, j: bias[j])
    return [table(sums.shape, lambda i, j: largest([sums[i, j], Counted(0)]))]


def mlp(e, x, w1, b1, w2, b2):
    sums = product(x, w1, lambda i, j: b1[j])
    return [product(table(sums.shape, lambda i, j: gelu(sums[i, j])), w2, lambda i, j: b2[j])]


def swiglu(e, x, g, u):
    # Subtracting the products gives the negative gate at no further cost.
    m, n, k = e.values()
    minus = table((m, n), lambda i, j: functools.reduce(
        lambda sum, p: sum - x[i, p] * g[p, j], range(k), Counted(0)))  # fmt: skip
    up = product(x, u)
    return [table((m, n), lambda i, j: negative_swish(minus[i, j]) * up[i, j])]


def softmax_of_row(row):
    top = largest(row)
    powers = [apply(math.exp, x - top) for x in row]
    return powers, total(powers)


def attention(e, q, k, v):
    scores = product(q * (1.0 / math.sqrt(e["d"])), k.T)
    rows = [softmax_of_row(row) for row in scores]
    mixed = product(np.array([powers for powers, _ in rows]), v)
    return [table(mixed.shape, lambda i, j: mixed[i, j] / rows[i][1])]


def softmax(e, x):
    return [np.array([np.array(powers) / sum for powers, sum in map(softmax_of_row, x)])]


def moments(numbers):
    mean = total(numbers) * (1.0 / len(numbers))
    square = total([x * x for x in numbers]) * (1.0 / len(numbers))
    return mean, square - mean * mean


def layernorm(e, x, gain, bias):
    rows = []
    for row in x:
        mean, variance = moments(row)
        inverse = inverse_root(variance + 1e-5)
        rows.append((row - mean) * inverse * gain + bias)
    return [np.array(rows)]


def residual_layernorm(e, a, b, gain, bias):
    sums = a + b
    return [sums, *layernorm(e, sums, gain, bias)]


def rmsnorm(e, x, gain):
    squares = [total(row * row) * (1.0 / e["n"]) for row in x]
    return [np.array([row * inverse_root(s + 1e-5) * gain for row, s in zip(x, squares, strict=True)])]


def batch_norm(e, x, mean, variance, gain, bias):
    factor = table((e["c"],), lambda c: gain[c] * inverse_root(variance[c] + 1e-5))
    term = bias - mean * factor
    return [table(x.shape, lambda n, c, h, w: x[n, c, h, w] * factor[c] + term[c])]


def chain(e, a, b, c):
    def element(i, j):
        positive = largest([(a[i, j] + b[i, j]) * c[i, j], Counted(0)])
        return positive * positive - a[i, j]

    return [table(a.shape, element)]


def column_moments(e, a):
    pairs = [moments(column) for column in a.T]
    return [np.array([mean for mean, _ in pairs]), np.array([variance for _, variance in pairs])]


def conv2d_nchw(e, x, w):
    window = [(c, i, j) for c in range(e["c"]) for i in range(3) for j in range(3)]
    return [table((e["n"], e["f"], e["h"], e["w"]), lambda n, f, h, v: multiply_adds(
        Counted(0), ((x[n, c, h + i, v + j], w[f, c, i, j]) for c, i, j in window)))]  # fmt: skip


def conv2d_nhwc(e, x, w):
    window = [(i, j, c) for i in range(3) for j in range(3) for c in range(e["c"])]
    return [table((e["n"], e["h"], e["w"], e["f"]), lambda n, h, v, f: multiply_adds(
        Counted(0), ((x[n, h + i, v + j, c], w[i, j, c, f]) for i, j, c in window)))]  # fmt: skip


def depthwise(e, x, w):
    window = list(np.ndindex(3, 3))
    return [table((e["n"], e["h"], e["w"], e["c"]), lambda n, h, v, c: multiply_adds(
        Counted(0), ((x[n, h + i, v + j, c], w[i, j, c]) for i, j in window)))]  # fmt: skip


def conv1d(e, x, w):
    window = [(i, c) for i in range(3) for c in range(e["c"])]
    return [table((e["n"], e["w"], e["f"]), lambda n, v, f: multiply_adds(
        Counted(0), ((x[n, v + i, c], w[i, c, f]) for i, c in window)))]  # fmt: skip


def max_pool(e, x):
    return [table((e["n"], e["h"], e["w"], e["c"]), lambda n, h, w, c: largest(
        x[n, 2 * h : 2 * h + 2, 2 * w : 2 * w + 2, c].ravel()))]  # fmt: skip


def avg_pool(e, x):
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    return [(rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]) * (1.0 / 9.0)]


def beside(image):
    """Sums of neighbours in a row."""
    return image[:, :-1] + image[:, 1:]


def below(image):
    """Sums of neighbours in a column."""
    return image[:-1] + image[1:]


def box_sums(image):
    rows = image[:, :-2] + image[:, 1:-1] + image[:, 2:]
    return rows[:-2] + rows[1:-1] + rows[2:]


def box_blur(e, x):
    return [box_sums(x) * (1.0 / 9.0)]


def gaussian_blur(e, x):
    for step in (beside, below):
        x = step(step(step(step(x))))
    return [x * (1.0 / 256.0)]


def unsharp_mask(e, x):
    blurred = below(below(beside(beside(x))))
    return [x[1:-1, 1:-1] * 1.75 - blurred * (0.75 / 16.0)]


def gradients(x):
    squares = below(beside(x))
    falling, rising = squares[1:, 1:] - squares[:-1, :-1], squares[:-1, 1:] - squares[1:, :-1]
    return falling + rising, falling - rising


def sobel(e, x):
    u, v = gradients(x)
    sums = u * u + v * v
    return [table(sums.shape, lambda i, j: apply(math.sqrt, sums[i, j]))]


def harris(e, x):
    u, v = gradients(x)
    first, second, mixed = box_sums(u * u), box_sums(v * v), box_sums(u * v)
    trace = first + second
    return [first * second - mixed * mixed - trace * trace * 0.04]


def halved(image):
    return (image[::2, ::2] + image[::2, 1::2] + image[1::2, ::2] + image[1::2, 1::2]) * 0.25


def pyramid(e, x):
    first = halved(x)
    return [first, halved(first)]


def gray(e, x):
    return [x[:, :, 0] * 0.299 + x[:, :, 1] * 0.587 + x[:, :, 2] * 0.114]


EXACT = {
    "batch_matmul": batch_matmul,
    "gemv": lambda e, a, x: [product(a, x[:, None])[:, 0]],
    "gemv_transposed": lambda e, a, x: [product(x[None], a)[0]],
    "matmul_transposed_b": lambda e, a, b: [product(a, b.T)],
    "bias_relu_matmul": dense,
    "gelu_mlp": mlp,
    "swiglu": swiglu,
    "attention": attention,
    "softmax": softmax,
    "batch_norm_inference": batch_norm,
    "elementwise_chain": chain,
    "transpose": lambda e, a: [table((e["n"], e["m"]), lambda i, j: a[j, i])],
    "transpose_4d": lambda e, x: [table((e["n"], e["h"], e["w"], e["c"]), lambda n, h, w, c: x[n, c, h, w])],
    "row_reduction": lambda e, a: [np.array([apply(math.sqrt, total(row * row)) for row in a])],
    "conv2d_nchw": conv2d_nchw,
    "conv2d_nhwc": conv2d_nhwc,
    "depthwise_conv2d_nhwc": depthwise,
    "conv1d": conv1d,
    "max_pool_nhwc": max_pool,
    "pyramid": pyramid,
    "rgb_to_gray": gray,
}
"""Programs whose count is that of this implementation."""

BOUNDED = {
    "layernorm": layernorm,
    "residual_layernorm": residual_layernorm,
    "rmsnorm": rmsnorm,
    "column_reduction": column_moments,
    "avg_pool_nhwc": avg_pool,
    "box_blur": box_blur,
    "gaussian_blur": gaussian_blur,
    "unsharp_mask": unsharp_mask,
    "sobel": sobel,
    "harris": harris,
}
"""Programs whose count leaves out what a border, a row or a column costs, or what sharing sums may save."""

SHAPES = {
    "attention": (5, 3),
    "avg_pool_nhwc": (1, 20, 23, 2),
    **dict.fromkeys(("box_blur", "gaussian_blur", "unsharp_mask", "sobel", "harris"), (20, 23)),
    **dict.fromkeys(("layernorm", "residual_layernorm", "rmsnorm", "column_reduction"), (23, 20)),
}
"""Shapes to count at; 2, 3, 4, ... for the others."""


def run(name):
    """The reference's and the counted implementation's results, the program's count and the counted one."""
    program = PROGRAMS[name]
    shape = SHAPES.get(name, tuple(range(2, 2 + len(program.extents))))
    extents = dict(zip(program.extents, shape, strict=True))
    generator = np.random.default_rng(7)
    special = program.inputs(extents, generator) if program.inputs else {}
    inputs = [
        special.get(argument.name, generator.uniform(-1.0, 1.0, argument.shape))
        for argument in program.arguments(extents)
        if argument.role != "out"
    ]
    expected = program.reference(extents, *(x.copy() for x in inputs))
    numbers = [table(x.shape, lambda *index, x=x: Counted(x[index])) for x in inputs]
    Counted.operations = 0
    outputs = {**EXACT, **BOUNDED}[name](extents, *numbers)
    found = [np.vectorize(value_of, otypes=[float])(output) for output in outputs]
    return found, expected, program.flops(extents), Counted.operations


def test_every_program_is_counted():
    assert set(EXACT) | set(BOUNDED) == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_reference_is_what_plain_loops_compute(name):
    found, expected, _, _ = run(name)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", EXACT)
def test_flops_are_the_operations_of_the_plain_loops(name):
    _, _, flops, counted = run(name)
    assert flops == counted


@pytest.mark.parametrize("name", BOUNDED)
def test_flops_never_exceed_what_an_implementation_takes(name):
    _, _, flops, counted = run(name)
    assert flops <= counted < 2 * flops


@pytest.mark.parametrize("name", PROGRAMS)
def test_references_leave_their_inputs_alone_and_fill_the_shapes_of_the_arguments(name):
    program = PROGRAMS[name]
    extents = dict(zip(program.extents, program.test[-1], strict=True))
    arguments = program.arguments(extents)
    generator = np.random.default_rng(3)
    inputs = [generator.uniform(0.5, 1.0, a.shape) for a in arguments if a.role != "out"]
    before = [x.copy() for x in inputs]
    outputs = program.reference(extents, *inputs)
    assert [y.shape for y in outputs] == [a.shape for a in arguments if a.role != "in"]
    for one, other in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(one, other)
