"""A small task and hand-written LLVM IR candidates for it, good and bad, for the tests of measuring."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solgym.hardware.target import LoweredKernel, TargetSpec
from solgym.hardware.task import NUMPY_DTYPES, Array, DType, Task, TensorSpec, Work

ROW = 1 << 10
"""Elements of each array of the default task."""


@dataclass(frozen=True)
class AddTask:
    """``C = A + B``, elementwise, over ``count`` elements."""

    count: int = ROW
    dtype: DType = "f32"
    name: str = "add"

    @property
    def id(self) -> str:
        return f"{self.name}/{self.dtype}/n{self.count}"

    @property
    def work(self) -> Work:
        size = self.input_specs[0].nbytes
        return Work(self.dtype, self.count, 2 * size, size)

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("A", (self.count,), self.dtype), TensorSpec("B", (self.count,), self.dtype))

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("C", (self.count,), self.dtype),)

    @property
    def relative_tolerance(self) -> float:
        return 1e-6

    def make_inputs(self, seed: int) -> tuple[Array, ...]:
        rng = np.random.default_rng(seed)
        return tuple(rng.normal(size=self.count).astype(NUMPY_DTYPES[self.dtype]) for _ in range(2))

    def reference(self, inputs: tuple[Array, ...]) -> tuple[NDArray[np.float64], ...]:
        first, second = inputs
        return (first.astype(np.float64) + second.astype(np.float64),)


@dataclass(frozen=True)
class IrCandidate:
    """LLVM IR text as a candidate."""

    ir: str
    entry: str = "kernel"
    workspace_bytes: int = 0
    thread_workspace_bytes: int = 0
    threads: int = 1

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        return dataclasses.asdict(self)

    def lower(self, task: Task, target: TargetSpec) -> LoweredKernel:
        return LoweredKernel(
            self.ir, self.entry, self.workspace_bytes, self.thread_workspace_bytes, self.threads
        )


_PROLOGUE = """
  %a = load ptr, ptr %buffers
  %b_slot = getelementptr ptr, ptr %buffers, i64 1
  %b = load ptr, ptr %b_slot
  %c_slot = getelementptr ptr, ptr %buffers, i64 2
  %c = load ptr, ptr %c_slot
"""

_ADD_RANGE = """
define internal void @add_range(ptr %buffers, i64 %begin, i64 %end) {
entry:
  PROLOGUE
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %pa = getelementptr FLOAT, ptr %a, i64 %i
  %pb = getelementptr FLOAT, ptr %b, i64 %i
  %pc = getelementptr FLOAT, ptr %c, i64 %i
  %x = load FLOAT, ptr %pa
  %y = load FLOAT, ptr %pb
  %z = fadd FLOAT %x, %y
  store FLOAT %z, ptr %pc
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
define internal void @task_chunk(ptr %buffers, i64 %begin, i64 %end, i64 %thread) {
  CHUNK_EXTRA
  call void @add_range(ptr %buffers, i64 %begin, i64 %end)
  ret void
}
"""

_SERIAL_CALL = "call void @task_chunk(ptr %buffers, i64 0, i64 COUNT, i64 0)"
_PARALLEL_CALL = """
  %parallel_for = load ptr, ptr %runtime
  call void %parallel_for(ptr @task_chunk, ptr %buffers, i64 COUNT, i64 THREADS)
"""


def add_candidate(
    *,
    count: int = ROW,
    done: int | None = None,
    dtype: DType = "f32",
    threads: int = 1,
    before: str = "",
    after: str = "",
    in_chunk: str = "",
    declarations: str = "",
    workspace_bytes: int = 0,
    thread_workspace_bytes: int = 0,
) -> IrCandidate:
    """A candidate for ``AddTask``.

    Args:
        count: elements of the task.
        done: elements that it computes (all, if None).
        dtype: element type.
        threads: with more than one, the additions are shared out by ``parallel_for``.
        before: IR instructions run by the calling thread before the additions; may use %a, %b, %c,
        %workspace.
        after: the same after them.
        in_chunk: IR instructions run by each thread before its share; may use %thread and %buffers.
        declarations: IR at module level.
        workspace_bytes: shared scratch to ask for.
        thread_workspace_bytes: scratch per thread to ask for.
    """
    call = _SERIAL_CALL if threads == 1 else _PARALLEL_CALL
    text = (
        declarations
        + _ADD_RANGE
        + "define void @kernel(ptr %buffers, ptr %workspace, ptr %runtime) {\nstart:\nPROLOGUE\n"
        + before
        + call
        + after
        + "\n  ret void\n}\n"
    )
    replacements = {
        "PROLOGUE": _PROLOGUE,
        "CHUNK_EXTRA": in_chunk,
        "COUNT": str(count if done is None else done),
        "THREADS": str(threads),
        "FLOAT": {"f32": "float", "f64": "double"}[dtype],
    }
    for name, value in replacements.items():
        text = text.replace(name, value)
    return IrCandidate(text, "kernel", workspace_bytes, thread_workspace_bytes, threads)
