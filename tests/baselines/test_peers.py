import os
import subprocess
import sys

import numpy as np
import pytest

from solgym.baselines import peer_timing
from solgym.baselines.peer_timing import time_call, time_numpy
from solgym.baselines.peers import NUMPY_PEERS
from solgym.baselines.peers_programs import PROGRAM_PEERS
from solgym.baselines.peers_torch import TORCH_PEERS
from solgym.envs.kernel_dsl.kernels import KERNELS
from solgym.envs.kernel_dsl.kernels.task import parse_task
from solgym.envs.mlir_passes.programs.task import parse_task as program_task
from solgym.hardware.measurement import MeasurePolicy, Status

# Ragged and small; stencils with 9 points, as those have all the terms.
SHAPES = {
    "gemm": "m17n23k9",
    "batched_gemm": "b3m7n11k5",
    "gemv": "m19n31",
    "gemm_bias_gelu": "m17n23k9",
    "mlp": "batch5in7hidden11out3",
    "conv2d": "n2h6w9ci5co7r3s5",
    "depthwise_conv2d": "n2h6w9c7r3s5",
    "stencil2d": "points9h7w11",
    "stencil3d": "d5h7w9",
    "reduction": "rows7cols13",
    "softmax": "rows7cols13",
    "layernorm": "rows7cols13",
    "attention": "seq13dim5",
    "transpose": "rows7cols13",
    "elementwise": "rows7cols13",
}


def test_every_kernel_has_peers_and_a_shape_here():
    assert set(NUMPY_PEERS) == set(TORCH_PEERS) == set(KERNELS) == set(SHAPES)


@pytest.mark.parametrize("kernel", SHAPES)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_peer_computes_what_the_kernel_means_and_leaves_its_inputs_alone(kernel, library):
    if library == "torch":
        pytest.importorskip("torch")
    peers = NUMPY_PEERS if library == "numpy" else TORCH_PEERS
    task = parse_task(f"{kernel}/f32/{SHAPES[kernel]}")
    inputs = task.make_inputs(0)
    kept = [array.copy() for array in inputs]
    (expected,) = task.reference(inputs)
    call = peers[kernel](task.extents, inputs)
    for _ in range(2):  # reused temporaries must not matter
        result = np.asarray(call())
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    for array, before in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(array, before)


PROGRAM_SHAPES = {
    "gemm": "m17n23k9",
    "batch_matmul": "b3m7n11k5",
    "gemv": "m19n31",
    "matmul_transposed_b": "m17n23k9",
    "gemv_transposed": "m19n31",
    "gemm_update": "m17n23k9",
    "2mm": "ni5nj7nk9nl11",
    "3mm": "ni5nj7nk9nl11nm13",
    "atax": "m19n31",
    "bicg": "n19m31",
    "mvt": "n19",
    "gesummv": "n19",
    "bias_relu_matmul": "m17n23k9",
    "attention": "n13d5",
    "softmax": "m7n13",
    "layernorm": "m7n13",
    "transpose": "m7n13",
    "elementwise_chain": "m7n13",
}


@pytest.mark.parametrize("program", PROGRAM_PEERS)
def test_a_peer_of_a_program_computes_what_the_program_means_and_leaves_its_inputs_alone(program):
    task = program_task(f"{program}/f32/{PROGRAM_SHAPES[program]}")
    inputs = task.make_inputs(0)
    kept = [array.copy() for array in inputs]
    expected = task.reference(inputs)
    call = PROGRAM_PEERS[program](task.extents, inputs)
    for _ in range(2):
        made = call()
        results = made if isinstance(made, tuple) else (made,)
        for result, reference in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, reference, rtol=1e-4, atol=1e-5)
    for array, before in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(array, before)


def test_a_kernel_and_a_program_of_one_name_are_timed_each_in_its_own_way():
    for task in (parse_task("gemm/f32/m32n32k32"), program_task("gemm/f32/m32n32k32")):
        peer = time_numpy(task)
        assert peer is not None
        assert peer.label.startswith("numpy ")
    assert time_numpy(program_task("jacobi_2d/f32/steps2n18")) is None


def test_timing_a_call_gives_a_measurement_like_any_other():
    result = time_call(lambda: np.arange(1000), MeasurePolicy(max_seconds=0.05))
    assert result.status in (Status.OK, Status.UNSTABLE)
    assert result.ci_low_s <= result.time_s <= result.ci_high_s
    assert len(result.samples_s) >= 3


def test_on_several_threads_samples_that_were_disturbed_are_left_out(monkeypatch):
    switches = iter(range(10**6))
    monkeypatch.setattr(peer_timing, "_involuntary_switches", lambda: next(switches) // 5)
    result = time_call(lambda: sum(range(30_000)), MeasurePolicy(max_seconds=0.05), threads=2)
    assert result.clock == "wall"
    assert result.discarded > 0


def test_the_threads_of_a_process_get_a_core_each():
    code = (
        "import os, threading\n"
        "from solgym.baselines.peer_timing import spread_threads\n"
        "from solgym.hardware.fingerprint import host_device\n"
        "end = threading.Event()\n"
        "other = threading.Thread(target=end.wait)\n"
        "other.start()\n"
        "spread_threads()\n"
        "cores = [os.sched_getaffinity(thread) for thread in (os.getpid(), other.native_id)]\n"
        "end.set()\n"
        "assert all(len(core) == 1 for core in cores)\n"
        "assert len(set.union(*cores)) == min(2, host_device().cores)\n"
    )
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # or BLAS has threads too
    subprocess.run([sys.executable, "-c", code], env=alone, check=True, timeout=60)


def test_numpy_is_timed_without_what_forces_it_to_an_older_core(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    peer = time_numpy(parse_task("gemm/f32/m32n32k32"))
    assert peer is not None
    assert peer.label.startswith("numpy ")
    assert os.environ["OPENBLAS_CORETYPE"] == "Haswell"
