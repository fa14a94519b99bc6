import math

import numpy as np
import pytest

from solgym.envs.kernel_dsl.expression import Builder, erf, exp, maximum, minimum, rsqrt, sqrt, tanh
from solgym.envs.kernel_dsl.interpreter import interpret, interpret_stages


def test_padding_reads_zero_outside():
    b = Builder("f64")
    x = b.input("X", 3)
    b.stage("Y", {"i": 5}, lambda i: x.pad[i - 1])
    (y,) = interpret(b.build(), [np.array([1.0, 2.0, 3.0])])
    assert y.tolist() == [0.0, 1.0, 2.0, 3.0, 0.0]


def test_reductions_by_sum_and_maximum():
    b = Builder("f64")
    x = b.input("X", 2, 3)
    j = b.reduce("j", 3)
    b.stage("s", {"i": 2}, lambda i: x[i, j], over=[j], combiner="sum")
    b.stage("m", {"i": 2}, lambda i: x[i, j], over=[j], combiner="max")
    s, m = interpret(b.build("s", "m"), [np.array([[1.0, 5.0, 2.0], [-1.0, -5.0, -2.0]])])
    assert s.tolist() == [8.0, -8.0]
    assert m.tolist() == [5.0, -1.0]


def test_strided_indices():
    b = Builder("f64")
    x = b.input("X", 7)
    b.stage("Y", {"i": 3}, lambda i: x[2 * i + 1])
    assert interpret(b.build(), [np.arange(7.0)])[0].tolist() == [1.0, 3.0, 5.0]


def test_functions_agree_with_the_standard_library():
    b = Builder("f64")
    x = b.input("X", 2)
    b.stage("Y", {"i": 2}, lambda i: exp(x[i]) + tanh(x[i]) * erf(x[i]) - sqrt(x[i]) / rsqrt(x[i]))
    b.stage("Z", {"i": 2}, lambda i: maximum(minimum(x[i], 1.0), 0.75) * 2.0)
    values = [0.5, 2.0]
    y, z = interpret(b.build("Y", "Z"), [np.array(values)])
    expected = [math.exp(v) + math.tanh(v) * math.erf(v) - v for v in values]
    np.testing.assert_allclose(y, expected, rtol=1e-14)
    assert z.tolist() == [1.5, 2.0]


def test_intermediate_stages_are_given_by_name():
    b = Builder("f64")
    x = b.input("X", 2)
    h = b.stage("H", {"i": 2}, lambda i: x[i] * 2.0)
    b.stage("Y", {"i": 2}, lambda i: h[i] + 1.0)
    values = interpret_stages(b.build(), [np.array([1.0, 2.0])])
    assert values["H"].tolist() == [2.0, 4.0]
    assert values["Y"].tolist() == [3.0, 5.0]


def test_wrong_inputs_are_refused():
    b = Builder("f64")
    x = b.input("X", 2)
    b.stage("Y", {"i": 2}, lambda i: x[i])
    with pytest.raises(ValueError, match="shape"):
        interpret(b.build(), [np.zeros(3)])
    with pytest.raises(ValueError, match="1 inputs, got 2"):
        interpret(b.build(), [np.zeros(2), np.zeros(2)])
