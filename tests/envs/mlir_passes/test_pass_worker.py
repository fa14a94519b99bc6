"""The process that passes run in: what it is asked depends on nothing but the question, and it can be
lost."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from solgym.envs.mlir_passes import client, session
from solgym.envs.mlir_passes.catalogue import ACTION_INDEX, ACTIONS
from solgym.envs.mlir_passes.client import ModuleView, PassFailure, PassWorker
from solgym.envs.mlir_passes.programs import parse_task
from solgym.envs.mlir_passes.user_program import UserTask
from solgym.errors import InvalidSchedule
from solgym.hardware.measurement import Status
from solgym.hardware.target import CompiledKernel

GEMM = parse_task("gemm/f32/m32n32k32")
JACOBI = parse_task("jacobi_2d/f32/steps2n34")
LOWERED = ("bufferize", "linalg-to-affine", "affine-tile-8", "canonicalize")


@pytest.fixture
def worker():
    made = PassWorker()
    yield made
    made.close()


def text(worker, task, actions):
    made = worker.code(task, actions)
    assert isinstance(made, str), made
    return made


def test_equal_actions_give_equal_text_in_any_worker(worker):
    texts = [text(worker, GEMM, LOWERED)]
    worker.close()
    texts.append(text(worker, GEMM, LOWERED))
    text(worker, JACOBI, ("canonicalize",))
    texts.append(text(worker, GEMM, LOWERED))
    assert worker.starts == 2
    assert len(set(texts)) == 1


def test_a_failed_action_leaves_the_module_as_it_was(worker):
    before = text(worker, JACOBI, ())
    failed = worker.step(JACOBI, (), "convolution-to-matmul", enforce_masks=False)
    refused = worker.step(JACOBI, (), "bufferize")
    assert isinstance(refused, PassFailure)
    assert refused.status is Status.ILLEGAL
    assert isinstance(failed, PassFailure | ModuleView)
    assert text(worker, JACOBI, ()) == before


def test_views_describe_the_module(worker):
    view = worker.view(GEMM, ())
    assert isinstance(view, ModuleView)
    assert view.level == "tensor"
    assert view.mask.shape == (len(ACTIONS),)
    assert view.mask[ACTION_INDEX["bufferize"]]
    assert not view.mask[ACTION_INDEX["affine-tile-8"]]
    assert view.numbers.shape == (28,)
    after = worker.step(GEMM, (), "bufferize", want="text")
    assert isinstance(after, ModuleView)
    assert after.changed
    assert "memref.alloc" in after.text
    assert "tensor<" not in after.text
    same = worker.step(GEMM, ("canonicalize",), "canonicalize")
    assert isinstance(same, ModuleView)
    assert not same.changed


def test_masks_explain_themselves(worker):
    assert worker.why_not(GEMM, (), "bufferize") is None
    reason = worker.why_not(GEMM, (), "affine-tile-8")
    assert reason
    assert "\n" not in reason


def test_features_can_be_asked_for_in_two_sizes(worker):
    few, many = worker.view(GEMM, (), "mqss"), worker.view(GEMM, (), "full")
    assert isinstance(few, ModuleView)
    assert isinstance(many, ModuleView)
    assert np.array_equal(many.numbers[:28], few.numbers)
    assert len(many.numbers) > 28


def test_a_hang_is_a_timeout_and_the_next_question_is_answered(worker):
    text(worker, GEMM, ())
    worker.pass_timeout_s = 0.2
    os.kill(worker._process.pid, signal.SIGSTOP)
    failure = worker.step(GEMM, (), "canonicalize")
    assert isinstance(failure, PassFailure)
    assert failure.status is Status.TIMEOUT
    worker.pass_timeout_s = 5.0
    assert isinstance(worker.step(GEMM, (), "canonicalize"), ModuleView)


def test_a_slow_pass_is_a_timeout_however_many_passes_came_before():
    # Several hundred accesses, which the analysis compares in pairs: that takes seconds.
    before = (*["affine-unroll-8"] * 3, *["cse"] * 100)
    worker = PassWorker(pass_timeout_s=0.5)
    try:
        failure = worker.step(
            parse_task("jacobi_2d/f32/steps4n130"), before, "affine-scalar-replacement", enforce_masks=False
        )
    finally:
        worker.close()
    assert isinstance(failure, PassFailure)
    assert failure.status is Status.TIMEOUT


def test_code_that_takes_too_long_to_compile_is_a_timeout_except_the_programs_own(worker, monkeypatch):
    monkeypatch.setattr(client, "BUILD_CPU_S", 1e-3)
    assert isinstance(worker.build(GEMM, ()), CompiledKernel)
    monkeypatch.setattr(client, "BUILD_FACTOR", 1e-3)
    failure = worker.build(GEMM, LOWERED)
    assert isinstance(failure, PassFailure)
    assert failure.status is Status.TIMEOUT
    assert "the compiler needed more than 0.001 s of CPU time" in failure.error
    monkeypatch.setattr(client, "BUILD_FACTOR", 1e3)
    assert isinstance(worker.build(GEMM, LOWERED), CompiledKernel)


def test_a_crash_is_told_and_logged_and_the_next_question_is_answered():
    told = []
    worker = PassWorker(on_failure=lambda *what: told.append(what))
    try:
        text(worker, GEMM, ())
        process = worker._process.pid
        os.kill(process, signal.SIGSTOP)
        later = threading.Timer(
            0.1, lambda: (os.kill(process, signal.SIGSEGV), os.kill(process, signal.SIGCONT))
        )
        later.start()
        failure = worker.step(GEMM, LOWERED[:2], LOWERED[2])
        later.join()
        assert isinstance(failure, PassFailure)
        assert failure.status is Status.CRASHED
        assert "SIGSEGV" in failure.error
        assert told == [(GEMM, LOWERED[:2], LOWERED[2], failure)]
        assert isinstance(worker.step(GEMM, LOWERED[:2], LOWERED[2]), ModuleView)
    finally:
        worker.close()


def test_a_worker_killed_from_outside_costs_nothing_but_time(worker):
    before = text(worker, GEMM, LOWERED)
    os.kill(worker._process.pid, signal.SIGKILL)
    assert text(worker, GEMM, LOWERED) == before
    process = worker._process.pid
    os.kill(process, signal.SIGSTOP)
    threading.Timer(0.1, os.kill, (process, signal.SIGKILL)).start()
    assert text(worker, GEMM, LOWERED) == before


def test_code_can_be_made_and_read(worker):
    for jit in ("llvmlite", "mlir"):
        assert isinstance(worker.build(GEMM, LOWERED, jit), CompiledKernel)
    assert "define" in worker.code(GEMM, LOWERED, "llvm")
    assert "solgym_entry" in worker.code(GEMM, LOWERED, "asm")


def test_object_files_are_remembered_as_far_as_they_fit(monkeypatch):
    known = session.Session()
    known.introduce(GEMM.id, GEMM.module_text, GEMM.function, GEMM.signature)

    def build(*actions):
        return known.build(GEMM.id, actions, "strict", "llvmlite")

    first = build()
    assert build("bufferize", "linalg-to-affine", "affine-tile-8") is not first
    assert build() is first
    monkeypatch.setattr(session, "OBJECT_BYTES_MAX", 1)
    assert build("bufferize", "linalg-to-affine", "affine-unroll-8") is not first
    assert build() is not first
    assert build().code == first.code


def test_float_modes_reach_the_code(worker):
    modes = {mode: worker.code(GEMM, (), "llvm", mode) for mode in ("contract,reassoc", "contract", "strict")}
    assert "fadd reassoc contract" in modes["contract,reassoc"]
    assert "fadd contract" in modes["contract"]
    assert "fadd float" in modes["strict"]


def test_a_module_that_is_none_is_refused(worker):
    task = UserTask("bad", "func.func @f(", "f", ())
    with pytest.raises(InvalidSchedule, match="cannot be read"):
        worker.view(task, ())


def test_a_fork_gets_a_worker_of_its_own(worker):
    text(worker, GEMM, ())
    mine = worker._process.pid
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            made = worker.code(GEMM, ())
            os.write(write, b"1" if isinstance(made, str) and worker._process.pid != mine else b"0")
            worker.close()
        finally:
            os._exit(0)
    os.close(write)
    assert os.read(read, 1) == b"1"
    os.waitpid(child, 0)
    os.close(read)
    assert worker._process.pid == mine
    assert isinstance(text(worker, GEMM, ()), str)


def test_workers_end_with_their_owner():
    worker = PassWorker()
    text(worker, GEMM, ())
    process = worker._process.pid
    worker.close()
    for _ in range(50):
        if not os.path.exists(f"/proc/{process}"):
            break
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{process}")


def test_a_worker_killed_while_it_is_told_of_a_program_is_replaced(worker):
    text(worker, GEMM, ())
    process = worker._process.pid
    os.kill(process, signal.SIGSTOP)
    threading.Timer(0.1, os.kill, (process, signal.SIGKILL)).start()
    assert isinstance(worker.view(JACOBI, ()), ModuleView)


def test_a_worker_killed_while_it_starts_is_started_again(worker, monkeypatch):
    made = []

    class Killed(client.ServerProcess):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            if not made:
                os.kill(self.pid, signal.SIGKILL)
            made.append(self.pid)

    monkeypatch.setattr(client, "ServerProcess", Killed)
    assert isinstance(worker.view(GEMM, ()), ModuleView)
    assert len(made) == 2


def test_a_worker_replaced_between_two_messages_is_told_again(worker, monkeypatch):
    before = text(worker, GEMM, LOWERED)
    introduce, losses = worker._introduce, [True]

    def introduce_and_lose(source):
        introduce(source)
        if losses:
            losses.pop()
            worker.close()

    monkeypatch.setattr(worker, "_introduce", introduce_and_lose)
    assert text(worker, GEMM, LOWERED) == before


def test_a_worker_that_has_grown_is_replaced_before_it_is_asked(worker, monkeypatch):
    before = text(worker, GEMM, LOWERED)
    monkeypatch.setattr(client, "RESIDENT_MAX_BYTES", 1)
    assert text(worker, GEMM, LOWERED) == before
    assert text(worker, JACOBI, ()) != before
    assert worker.starts == 3


def test_a_module_that_cannot_be_described_is_no_crash_of_an_action():
    told = []
    worker = PassWorker(on_failure=lambda *what: told.append(what))
    nested = "scf.if %t {\n" * 3000 + "}\n" * 3000
    task = UserTask("nested", f"func.func @f() {{ %t = arith.constant true\n{nested} return }}", "f", ())
    try:
        assert isinstance(worker.view(task, ()), PassFailure)
        assert told == []
    finally:
        worker.close()


CONVOLUTION = parse_task("conv2d_nhwc/f32/n4h5w6f9c8")


@pytest.mark.parametrize("task_id", [CONVOLUTION.id, "conv1d/f32/n2w9f5c3", "gaussian_blur/f32/h9w9"])
def test_convolutions_are_rewritten_where_they_can_be(worker, task_id):
    task = parse_task(task_id)
    for actions in ((), ("generalize",), ("tile-contraction-m1-n8-k1",)):
        for name in ("convolution-to-matmul", "decompose-convolution"):
            if worker.why_not(task, actions, name) is None:
                assert isinstance(worker.step(task, actions, name), ModuleView), (actions, name)
    is_of_images = task_id == CONVOLUTION.id
    assert (worker.why_not(task, (), "convolution-to-matmul") is None) == is_of_images


def test_images_laid_out_in_columns_can_be_tiled(worker):
    for name in ("tile-contraction-m8-n32-k1", "tile-contraction-m32-n32", "tile-contraction-n64"):
        assert isinstance(
            worker.step(CONVOLUTION, ("convolution-to-matmul",), name, "mqss", False), ModuleView
        )
    assert worker.starts == 1
