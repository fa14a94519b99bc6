"""exp, tanh, erf and the rest, scalar and in vectors, against libm in float64."""

import ctypes
import math

import numpy as np
import pytest

from solgym.envs.kernel_dsl.expression import Builder, Unary
from solgym.envs.kernel_dsl.lowering import lower
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.primitives import apply_step
from solgym.errors import IllegalSchedule
from solgym.hardware.jit import LoadedObject, compile_object
from solgym.hardware.target import cpu_spec

CASES = {
    ("exp", "f32"): (-86.0, 88.0, 4e-7, np.exp),
    ("exp", "f64"): (-700.0, 709.0, 4e-15, np.exp),
    ("tanh", "f32"): (-12.0, 12.0, 4e-7, np.tanh),
    ("tanh", "f64"): (-25.0, 25.0, 4e-15, np.tanh),
    ("erf", "f32"): (-6.0, 6.0, 1e-6, np.vectorize(math.erf)),
    ("rsqrt", "f32"): (1e-6, 1e6, 4e-7, lambda x: 1 / np.sqrt(x)),
    ("sqrt", "f64"): (0.0, 1e9, 4e-16, np.sqrt),
    ("neg", "f32"): (-9.0, 9.0, 0.0, np.negative),
    ("abs", "f64"): (-9.0, 9.0, 0.0, np.abs),
}


def apply_unary(name: str, dtype: str, values: np.ndarray, lanes: int) -> np.ndarray:
    builder = Builder(dtype)
    x = builder.input("X", values.size)
    builder.stage("Y", {"i": values.size}, lambda i: Unary(name, x[i]))
    nest = ProgramNest.initial(builder.build())
    if lanes > 1:
        step = {"op": "vectorize", "stage": "Y", "loop": "i", "lanes": lanes}
        nest = apply_step(nest, step, cpu_spec())
    lowered = lower(nest, cpu_spec())
    space = np.zeros(values.nbytes * 2 + 192, np.uint8)
    start = -space.ctypes.data % 64
    second = start + -(-values.nbytes // 64) * 64
    source = space[start : start + values.nbytes].view(values.dtype)
    result = space[second : second + values.nbytes].view(values.dtype)
    source[:] = values
    pointers = (ctypes.c_void_p * 2)(source.ctypes.data, result.ctypes.data)
    with LoadedObject(compile_object(lowered.ir), (lowered.entry,)) as code:
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        call(code.addresses[lowered.entry])(ctypes.addressof(pointers), None, None)
    return result.copy()


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize(("name", "dtype"), list(CASES))
def test_relative_error(name: str, dtype: str, lanes: int) -> None:
    low, high, tolerance, reference = CASES[name, dtype]
    numpy_dtype = np.float32 if dtype == "f32" else np.float64
    small = np.geomspace(1e-8, 1.0, 500) if low < 0 else np.geomspace(max(low, 1e-8), 1.0, 500)
    values = np.concatenate([np.linspace(low, high, 4001), small]).astype(numpy_dtype)
    if low < 0:
        values = np.concatenate([values, -small.astype(numpy_dtype)])
    expected = reference(values.astype(np.float64))
    error = np.abs(apply_unary(name, dtype, values, lanes) - expected)
    assert np.all(error <= tolerance * np.abs(expected) + np.finfo(numpy_dtype).tiny)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_exp_saturates_instead_of_overflowing(dtype: str) -> None:
    values = np.array([-1e4, -800.0, 800.0, 1e4], np.float32 if dtype == "f32" else np.float64)
    result = apply_unary("exp", dtype, values, 1)
    assert np.all(np.isfinite(result))
    assert np.all(result[:2] < 1e-37)
    assert np.all(result[2:] > 1e38)


def test_erf_in_f64_is_refused() -> None:
    with pytest.raises(IllegalSchedule, match="f32 only"):
        apply_unary("erf", "f64", np.zeros(3), 1)
