"""Programs compiled for a GPU: what the host is told, what ptxas says, what kernels compute on the CPU."""

import dataclasses
import hashlib
import math
import re
import subprocess
import sys

import numpy as np
import pytest

from solgym.envs.mlir_passes.client import PassFailure, default_pass_worker
from solgym.envs.mlir_passes.gpu_code import GpuCode, evaluate, run_host_steps
from solgym.envs.mlir_passes.programs import parse_task
from solgym.envs.mlir_passes.ptxas import assemble, find_ptxas
from solgym.hardware.checking import POISON_BYTE, Expected, compare
from solgym.hardware.task import NUMPY_DTYPES
from tests.envs.mlir_passes.gpu_emulation import error_in_child, run_on_cpu

# Linear algebra, functions of libm, triangular loops, host loops, values from kernel to kernel, one thread.
PROGRAMS = (
    "gemm/f32/m37n70k19",
    "gemm/f64/m17n5k9",
    "syrk/f32/n19m7",
    "trmm/f32/m17n9",
    "correlation/f32/m13n11",
    "gramschmidt/f32/n9m12",
    "lu/f32/n13",
    "durbin/f32/n17",
    "floyd_warshall/f32/n14",
    "adi/f32/steps2n11",
    "heat_3d/f32/steps2n9",
    "jacobi_2d/f32/steps3n21",
    "attention/f32/n11d7",
    "softmax/f32/m19n45",
    "gelu_mlp/f32/m9d12h20",
    "column_reduction/f32/m40n33",
    "conv2d_nhwc/f32/n2h5w6f7c3",
    "transpose_4d/f32/n2c5h6w7",
    "sobel/f32/h17w23",
)


@dataclasses.dataclass(frozen=True)
class Source:
    module_text: str
    signature: tuple
    function: str = "main"

    @property
    def id(self) -> str:
        return f"test/{hashlib.sha256(self.module_text.encode()).hexdigest()}"


def compiled(source, actions=(), chip="sm_90") -> GpuCode:
    answer = default_pass_worker().gpu(source, actions, chip)
    assert not isinstance(answer, PassFailure), answer.error
    return GpuCode.from_json(answer)


def wrong_results(code: GpuCode, task) -> str:
    """What is wrong with the results in either order of threads; empty if nothing is."""
    expected = Expected.of(task, 1)

    def work() -> str:
        for order in ("forwards", "backwards"):
            inputs = [np.array(array) for array in expected.inputs]
            arrays = []
            for argument in task.arguments:
                if argument.role == "out":
                    array = np.empty(argument.shape, NUMPY_DTYPES[task.dtype])
                    array.view(np.uint8)[...] = POISON_BYTE
                    arrays.append(array)
                else:
                    arrays.append(inputs.pop(0))
            run_on_cpu(code, arrays, order)
            results = [array for array, a in zip(arrays, task.arguments, strict=True) if a.role != "in"]
            verdict = compare(results, expected)
            if not verdict.accepted:
                return f"{order}: {verdict.error}"
        return ""

    return error_in_child(work)


@pytest.mark.parametrize("task_id", PROGRAMS)
def test_kernels_run_on_the_cpu_agree_with_the_reference(task_id):
    task = parse_task(task_id)
    assert wrong_results(compiled(task), task) == ""


@pytest.mark.parametrize(
    ("task_id", "actions"),
    [
        ("gemm/f32/m32n64k16", ("tile-contraction-m8-n32-k1", "generalize", "bufferize")),
        ("gemm/f32/m32n64k16", ("bufferize", "linalg-to-scf")),
        ("gemm/f32/m32n64k16", ("bufferize", "linalg-to-affine", "affine-tile-32")),
        ("jacobi_2d/f32/steps2n34", ("affine-vectorize-8",)),
        ("softmax/f32/m16n64", ("vectorize", "bufferize")),
        ("gemm/f32/m32n64k16", ("tile-contraction-m8-n32-k1", "tile-fill-r8-c32", "vectorize", "bufferize")),
    ],
)
def test_modules_after_actions_compile_too(task_id, actions):
    task = parse_task(task_id)
    assert wrong_results(compiled(task, actions), task) == ""


@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
@pytest.mark.parametrize("task_id", ["gemm/f32/m64n64k64", "gelu_mlp/f32/m9d12h20", "durbin/f32/n17"])
def test_ptxas_takes_every_kernel(task_id, chip):
    ptxas = find_ptxas()
    if ptxas is None:
        pytest.skip("no ptxas here; the extra gpu-check brings it")
    code = compiled(parse_task(task_id), chip=chip)
    resources = assemble(code.ptx, chip, ptxas)
    assert set(resources) == {kernel.name for kernel in code.kernels}
    assert all(taken.registers > 0 and taken.shared_bytes == 0 for taken in resources.values())


def test_every_iteration_of_a_parallel_nest_has_a_thread():
    code = compiled(parse_task("gemm/f32/m37n70k19"))
    fill, product = code.kernels
    for kernel in (fill, product):
        assert kernel.block == (32, 8, 1)
        # 70 columns along x, 37 rows along y
        assert kernel.grid == (math.ceil(70 / 32), math.ceil(37 / 8), 1)
    assert re.findall(r"\.entry (\w+)", code.ptx) == [fill.name, product.name]
    assert f".target {code.chip}" in code.ptx
    assert code.ptx.count(".reqntid 32, 8, 1") == 2
    assert "fma.rn.f32" in code.ptx


def test_a_product_is_summed_in_a_register():
    code = compiled(parse_task("gemm/f32/m64n64k64"))
    assert code.ptx.count("st.global") == 2  # one of the fill, one of the product


def test_steps_of_a_stencil_are_loops_of_the_host():
    code = compiled(parse_task("jacobi_2d/f32/steps5n10"))
    (loop,) = [step for step in code.steps if step["op"] == "loop"]
    assert (loop["from"], loop["to"], loop["step"]) == (0, 5, 1)
    assert [step["op"] for step in loop["body"]] == ["launch", "launch"]
    assert code.launches == 10


TRIANGLE = """
func.func @main(%A: memref<6x6xf32>) {
  affine.for %i = 0 to 6 {
    affine.for %j = affine_map<(d) -> (d)>(%i) to 6 {
      %x = arith.index_cast %j : index to i64
      %y = arith.sitofp %x : i64 to f32
      affine.store %y, %A[%i, %j] : memref<6x6xf32>
    }
  }
  return
}
"""


def test_a_triangle_is_a_square_of_threads_of_which_some_do_nothing():
    code = compiled(Source(TRIANGLE, (((6, 6), 4, "inout"),)))
    (kernel,) = code.kernels
    # Each warp takes a whole square, as 6 x 6 does not fit into one of 32.
    assert math.prod(kernel.grid) * math.prod(kernel.block) >= 36

    def work() -> str:
        array = np.full((6, 6), -1.0, np.float32)
        run_on_cpu(code, [array])
        i, j = np.indices((6, 6))
        return "" if np.array_equal(array, np.where(j >= i, j, -1.0)) else str(array)

    assert error_in_child(work) == ""


TILES = """
func.func @main(%A: memref<100xf32>) {
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %c1 = arith.constant 1 : index
  %c100 = arith.constant 100 : index
  %x = arith.constant 1.0 : f32
  scf.parallel (%i) = (%c0) to (%c100) step (%c16) {
    %next = arith.addi %i, %c16 : index
    %end = arith.minsi %next, %c100 : index
    scf.parallel (%j) = (%i) to (%end) step (%c1) {
      memref.store %x, %A[%j] : memref<100xf32>
    }
  }
  return
}
"""


def test_a_tile_has_as_many_threads_as_it_is_long():
    (kernel,) = compiled(Source(TILES, (((100,), 4, "out"),))).kernels
    # Seven tiles of 16: the bounds of the inner loop vary by 100, their difference by 16.
    assert math.prod(kernel.grid) * math.prod(kernel.block) == 128


LOOP = """
func.func @main(%A: memref<1024xf32>) {
  %zero = arith.constant 0.0 : f32
  %first = arith.constant 0 : index
  %last = arith.constant 512 : index
  %step = arith.constant STEP : index
  scf.for %i = %first to %last step %step {
    %x = vector.load %A[%i] : memref<1024xf32>, vector<8xf32>
    %y = arith.addf %x, %x : vector<8xf32>
    %to = affine.apply affine_map<(i) -> (TO)>(%i)
    vector.store %y, %A[%to] : memref<1024xf32>, vector<8xf32>
  }
  return
}
"""


@pytest.mark.parametrize(
    ("step", "to", "side_by_side"),
    [
        ("8", "i", True),
        ("4", "i", False),  # vectors of 8 overlap the next iteration's
        ("8", "i + 8", False),  # what the next iteration reads
        ("8", "i + 512", False),  # not so, but that needs more than one look at the subscript
        ("16", "i + 8", True),
        ("8", "2 * i", False),
    ],
)
def test_loops_on_vectors_run_side_by_side_only_where_they_touch_different_memory(step, to, side_by_side):
    source = Source(LOOP.replace("STEP", step).replace("TO", to), (((1024,), 4, "inout"),))
    (kernel,) = compiled(source).kernels
    threads = math.prod(kernel.grid) * math.prod(kernel.block)
    assert threads == (512 // int(step) if side_by_side else 1)


CONSTANTS = """
memref.global "private" constant @weights : memref<3xf32> = dense<[1.0, 2.0, 4.0]>
func.func @main(%A: memref<3xf32>, %B: memref<3xf32>) {
  %w = memref.get_global @weights : memref<3xf32>
  %total = memref.alloc() : memref<f32>
  %zero = arith.constant 0.0 : f32
  memref.store %zero, %total[] : memref<f32>
  affine.for %i = 0 to 3 {
    %a = affine.load %A[%i] : memref<3xf32>
    %b = affine.load %w[%i] : memref<3xf32>
    %c = arith.mulf %a, %b : f32
    %old = affine.load %total[] : memref<f32>
    %new = arith.addf %old, %c : f32
    affine.store %new, %total[] : memref<f32>
  }
  %sum = memref.load %total[] : memref<f32>
  affine.for %i = 0 to 3 { affine.store %sum, %B[%i] : memref<3xf32> }
  return
}
"""


def test_constants_and_numbers_from_one_kernel_reach_the_next():
    code = compiled(Source(CONSTANTS, (((3,), 4, "in"), ((3,), 4, "out"))))
    (constant,) = [buffer for buffer in code.buffers if buffer.kind == "constant"]
    assert bytes.fromhex(constant.data) == np.array([1, 2, 4], np.float32).tobytes()
    uploaded = [step["buffer"] for step in code.steps if step["op"] == "upload"]
    assert uploaded == ["arg0", constant.name]
    assert [step["buffer"] for step in code.steps if step["op"] == "download"] == ["arg1"]
    one, many = code.kernels
    assert (one.grid, one.block) == ((1, 1, 1), (1, 1, 1))
    assert math.prod(many.block) == 32

    def work() -> str:
        result = np.zeros(3, np.float32)
        run_on_cpu(code, [np.array([1, 10, 100], np.float32), result])
        return "" if np.array_equal(result, [421.0] * 3) else str(result)

    assert error_in_child(work) == ""


DYNAMIC = """
func.func @main(%A: memref<i64>) {
  %n = memref.load %A[] : memref<i64>
  %size = arith.index_cast %n : i64 to index
  %x = memref.alloc(%size) : memref<?xi64>
  affine.for %i = 0 to 4 { affine.store %n, %x[%i] : memref<?xi64> }
  %m = affine.load %x[0] : memref<?xi64>
  memref.store %m, %A[] : memref<i64>
  return
}
"""
BRANCHES = """
func.func @main(%A: memref<i64>) {
  %n = memref.load %A[] : memref<i64>
  %c = arith.trunci %n : i64 to i1
  cf.cond_br %c, ^one, ^two
^one:
  memref.store %n, %A[] : memref<i64>
  return
^two:
  return
}
"""
EXPONENTIAL = """
func.func @main(%A: memref<f64>) {
  %x = memref.load %A[] : memref<f64>
  %y = math.exp %x : f64
  memref.store %y, %A[] : memref<f64>
  return
}
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("func.func @main() -> f32 { %x = arith.constant 1.0 : f32 return %x : f32 }", "returns values"),
        ("func.func @other() { return }", "no function 'main'"),
        (DYNAMIC, "constant size"),
        (BRANCHES, "cf.cond_br"),
        (EXPONENTIAL, "llvm.exp.f64, which does not exist"),
    ],
)
def test_what_cannot_be_compiled_is_one_sentence(text, words):
    answer = default_pass_worker().gpu(Source(text, (((), 8, "inout"),)), (), "sm_90")
    assert isinstance(answer, PassFailure)
    assert words in answer.error
    assert "\n" not in answer.error


def test_code_survives_json():
    code = compiled(parse_task("durbin/f32/n17"))
    assert GpuCode.from_json(code.to_json()) == code


def test_the_host_evaluates_what_bounds_are_made_of():
    variables = {"i0": 7}
    assert evaluate(["add", "i0", ["mul", 3, -2]], variables) == 1
    assert evaluate(["select", ["lt", "i0", 8], ["min", 4, "i0"], 0], variables) == 4
    # div and rem round towards zero, floordiv and ceildiv down and up
    assert [evaluate([op, -7, 2], {}) for op in ("div", "rem", "floordiv", "ceildiv")] == [-3, -1, -4, -3]


def test_launches_are_counted_without_running():
    code = compiled(parse_task("lu/f32/n13"))

    class Counter:
        launches = 0

        def launch(self, kernel, parameters):
            self.launches += 1

        def allocate(self, *buffers):
            pass

        free = upload = download = copy = allocate

    counter = Counter()
    run_host_steps(code, counter)
    assert code.launches == counter.launches > 13


def test_host_steps_need_no_mlir():
    script = (
        "import sys, solgym.envs.mlir_passes.gpu_code, solgym.envs.mlir_passes.ptxas; "
        "assert 'torch_mlir' not in sys.modules and 'llvmlite' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
