"""Applies actions to a program and runs the result in a forked child, so that a crash fails one test only."""

import ctypes
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from solgym.envs.mlir_passes.apply import apply_action
from solgym.envs.mlir_passes.catalogue import ACTION_INDEX, ACTIONS
from solgym.envs.mlir_passes.codegen import machine_code
from solgym.envs.mlir_passes.programs.task import ProgramTask, parse_task
from solgym.hardware.checking import Expected, compare
from solgym.hardware.object_file import link
from solgym.hardware.task import NUMPY_DTYPES


@dataclass(frozen=True)
class Outcome:
    """What became of a sequence of actions: ``ok``, ``wrong``, ``failed`` or the signal that ended it."""

    status: str
    message: str = ""


def run(task_id: str, actions: Sequence[str], seconds: int = 30) -> Outcome:
    """Apply actions to the untouched module of a task, compile, run once and compare with the reference."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        try:
            os.write(writing, json.dumps(_outcome(parse_task(task_id), actions)).encode())
        except BaseException as error:
            os.write(writing, json.dumps(["failed", f"{type(error).__name__}: {error}"]).encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    if not said:
        return Outcome(signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "failed")
    return Outcome(*json.loads(said))


def apply_all(module: ir.Operation, actions: Sequence[str]) -> None:
    """Apply actions by name, without asking the masks."""
    for name in actions:
        apply_action(module, ACTIONS[ACTION_INDEX[name]])


def _outcome(task: ProgramTask, actions: Sequence[str]) -> list[str]:
    width = NUMPY_DTYPES[task.dtype].itemsize
    context = ir.Context()
    context.enable_multithreading(False)
    with context, ir.Location.unknown():
        module = ir.Module.parse(task.module_text)
        apply_all(module.operation, actions)
        shapes = [(argument.shape, width, argument.role) for argument in task.arguments]
        made = machine_code(module.operation, "main", shapes)
    expected = Expected.of(task, 1)
    inputs = [_aligned(array) for array in expected.inputs]
    outputs = [_aligned(np.full(spec.shape, np.nan, NUMPY_DTYPES[spec.dtype])) for spec in task.output_specs]
    workspace = _aligned(np.zeros(made.workspace_bytes + 64, np.uint8))
    linked = link(made.code, ("solgym_entry",))
    entry = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(linked.addresses["solgym_entry"])
    buffers = [array.ctypes.data for array in (*inputs, *outputs)]
    entry((ctypes.c_void_p * len(buffers))(*buffers), workspace.ctypes.data, None)
    verdict = compare(outputs, expected)
    return ["ok" if verdict.accepted else "wrong", str(verdict.error or "")]


def _aligned(values: np.ndarray) -> np.ndarray:
    """A copy whose first byte lies at a multiple of 64."""
    raw = np.zeros(values.nbytes + 64, np.uint8)
    offset = -raw.ctypes.data % 64
    copy = raw[offset : offset + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy
