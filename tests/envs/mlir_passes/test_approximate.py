import ctypes
import math

import numpy as np
import pytest
from torch_mlir import ir

from solgym.envs.mlir_passes.approximate import FUNCTIONS, approximate_math
from solgym.envs.mlir_passes.codegen import machine_code
from solgym.hardware.object_file import link

COUNT = 1 << 16
CONTEXT = ir.Context()
CONTEXT.enable_multithreading(False)

EXACT = {
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.log": np.log,
    "math.tanh": np.tanh,
    "math.erf": np.vectorize(math.erf, otypes=[np.float64]),
}
# exp reaches the largest f32 at log(2**128) and the smallest normal one at log(2**-126).
RANGES = {
    "math.exp": (126 * -math.log(2.0) + 1e-4, 128 * math.log(2.0) - 1e-4),
    "math.exp2": (-126.0 + 1e-4, 128.0 - 1e-4),
    "math.tanh": (-12.0, 12.0),
    "math.erf": (-6.0, 6.0),
}
# What the function has at points where no rounding is involved, or where it leaves the range of f32.
INF, NAN = math.inf, math.nan
SPECIAL = {
    "math.exp": [(0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (89, INF), (1e38, INF), (-1e38, 0), (NAN, NAN)],
    "math.exp2": [(0, 1), (3, 8), (-5, 2**-5), (128, INF), (1e38, INF), (-200, 0), (-INF, 0), (NAN, NAN)],
    "math.log": [(1, 0), (0, -INF), (-0.0, -INF), (-1, NAN), (INF, INF), (-INF, NAN), (NAN, NAN)],
    "math.tanh": [(0, 0), (INF, 1), (-INF, -1), (20, 1), (-1e38, -1), (NAN, NAN)],
    "math.erf": [(0, 0), (INF, 1), (-INF, -1), (20, 1), (-1e38, -1), (NAN, NAN)],
}


def elementwise(name, lanes):
    if lanes == 1:
        body, kind = (
            "%x = memref.load %a[%i] : SHAPE\n%y = NAME %x : f32\nmemref.store %y, %b[%i] : SHAPE",
            "f32",
        )
    else:
        kind = f"vector<{lanes}xf32>"
        body = "%x = vector.load %a[%i] : SHAPE, KIND\n%y = NAME %x : KIND\n"
        body += "vector.store %y, %b[%i] : SHAPE, KIND"
    text = f"""
    func.func @main(%a: SHAPE, %b: SHAPE) {{
      %start = arith.constant 0 : index
      %step = arith.constant {lanes} : index
      %end = arith.constant {COUNT} : index
      scf.for %i = %start to %end step %step {{
        {body}
      }}
      return
    }}"""
    text = text.replace("SHAPE", f"memref<{COUNT}xf32>").replace("NAME", name).replace("KIND", kind)
    return ir.Module.parse(text, CONTEXT)


def run(module, values, **options):
    arguments = [((COUNT,), 4, "in"), ((COUNT,), 4, "out")]
    code = machine_code(module.operation, "main", arguments, **options)
    linked = link(code.code, ("solgym_entry",))
    entry = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(linked.addresses["solgym_entry"])
    arrays = []
    for _ in range(2):
        raw = np.zeros(COUNT * 4 + 64, np.uint8)
        start = -raw.ctypes.data % 64
        arrays.append(raw[start : start + COUNT * 4].view(np.float32))
    arrays[0][: len(values)] = values
    entry((ctypes.c_void_p * 2)(*(array.ctypes.data for array in arrays)), None, None)
    return arrays[1][: len(values)].copy()


def samples(name):
    generator = np.random.default_rng(0)
    if name == "math.log":
        # Every positive f32 alike, subnormal ones too, and the neighbourhood of 1, where it vanishes.
        values = generator.integers(1, 0x7F800000, COUNT, dtype=np.uint32).view(np.float32)
        near = 1 + generator.uniform(-1, 1, COUNT // 4) * 10.0 ** -generator.uniform(0.1, 7, COUNT // 4)
    else:
        values = generator.uniform(*RANGES[name], COUNT).astype(np.float32)
        near = generator.uniform(-1, 1, COUNT // 4) * 10.0 ** -generator.uniform(0, 30, COUNT // 4)
    values[: COUNT // 4] = near
    return values


@pytest.mark.parametrize("jit", ["llvmlite", "mlir"])
@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_exact_to_a_few_roundings(name, lanes, jit):
    module = elementwise(name, lanes)
    assert approximate_math(module.operation) == 1
    values = samples(name)
    computed = run(module, values, jit=jit).astype(np.float64)
    exact = EXACT[name](values.astype(np.float64))
    error = np.abs(computed - exact)
    if name in ("math.tanh", "math.erf"):
        assert error.max() <= 2e-7
        assert np.abs(computed).max() <= 1.0
    else:
        assert (error / np.maximum(np.abs(exact), 1e-300)).max() <= 2e-7


@pytest.mark.parametrize("mode", ["contract", "strict"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_do_not_need_contraction(name, mode):
    module = elementwise(name, 16)
    approximate_math(module.operation)
    values = samples(name)
    computed = run(module, values, mode=mode).astype(np.float64)
    exact = EXACT[name](values.astype(np.float64))
    scale = 1.0 if name in ("math.tanh", "math.erf") else np.maximum(np.abs(exact), 1e-300)
    assert (np.abs(computed - exact) / scale).max() <= 2e-7


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name, lanes):
    module = elementwise(name, lanes)
    approximate_math(module.operation)
    points, values = zip(*SPECIAL[name], strict=True)
    np.testing.assert_array_equal(run(module, np.array(points, np.float32)), values)


def test_odd_functions_keep_the_sign_of_zero():
    for name in ("math.tanh", "math.erf"):
        module = elementwise(name, 16)
        approximate_math(module.operation)
        assert np.signbit(run(module, np.array([-0.0], np.float32)))[0]


def test_results_below_the_smallest_normal_number_become_zero():
    module = elementwise("math.exp", 16)
    approximate_math(module.operation)
    values = np.linspace(-104.0, -87.4, 1000).astype(np.float32)
    assert not run(module, values).any()


def test_only_f32_scalars_and_vectors_are_rewritten():
    module = ir.Module.parse(
        """
        #map = affine_map<(d0) -> (d0)>
        func.func @main(%x: f32, %y: f64, %v: vector<2x3xf32>, %t: tensor<4xf32>, %m: memref<4xf32>)
            -> (f32, f64, vector<2x3xf32>, tensor<4xf32>, f32, tensor<4xf32>) {
          %0 = math.exp %x : f32
          %1 = math.exp %y : f64
          %2 = math.tanh %v : vector<2x3xf32>
          %3 = math.exp %t : tensor<4xf32>
          %4 = math.sqrt %x : f32
          linalg.exp ins(%m : memref<4xf32>) outs(%m : memref<4xf32>)
          linalg.map { math.exp } ins(%m : memref<4xf32>) outs(%m : memref<4xf32>)
          %5 = linalg.generic {indexing_maps = [#map], iterator_types = ["parallel"]}
            outs(%t : tensor<4xf32>) {
            ^bb0(%out: f32):
              %6 = math.log %out : f32
              linalg.yield %6 : f32
          } -> tensor<4xf32>
          return %0, %1, %2, %3, %4, %5 : f32, f64, vector<2x3xf32>, tensor<4xf32>, f32, tensor<4xf32>
        }""",
        CONTEXT,
    )
    # The scalar, the vector, the body of the map and that of the generic operation.
    assert approximate_math(module.operation) == 4
    assert module.operation.verify()
    text = str(module)
    assert "math.tanh" not in text
    assert "math.log" not in text
    for kept in ("math.exp %arg1 : f64", "math.exp %arg3 : tensor", "math.sqrt", "linalg.exp"):
        assert kept in text
    assert str(ir.Module.parse(text, CONTEXT)) == text
    assert approximate_math(module.operation) == 0


def test_equal_modules_become_equal():
    modules = [elementwise("math.erf", 16) for _ in range(2)]
    for module in modules:
        approximate_math(module.operation)
    assert str(modules[0]) == str(modules[1])
