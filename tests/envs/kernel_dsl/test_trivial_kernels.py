"""Compiled kernels that do next to nothing are found out, for every kernel of the suite."""

import pytest

from solgym.envs.kernel_dsl.kernels import KERNELS, parse_task
from solgym.hardware.measurement import MeasurePolicy, Status
from solgym.hardware.target import CpuTarget
from tests.envs.fakes import SMALL_TASKS
from tests.hardware.ir_candidates import IrCandidate

QUICK = MeasurePolicy(warmup=1, min_repeats=3, max_repeats=3, max_seconds=0.01)

LOOP = """
define void @kernel(ptr %buffers, ptr %workspace, ptr %runtime) {
entry:
  %out_slot = getelementptr ptr, ptr %buffers, i64 OUTPUT
  %out = load ptr, ptr %out_slot
  %in_slot = getelementptr ptr, ptr %buffers, i64 INPUT
  %in = load ptr, ptr %in_slot
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %k = urem i64 %i, INPUT_SIZE
  %from = getelementptr float, ptr %in, i64 %k
  %copied = load float, ptr %from
  %to = getelementptr float, ptr %out, i64 %i
  store float VALUE, ptr %to
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, OUTPUT_SIZE
  br i1 %more, label %body, label %done
done:
  ret void
}
"""


def candidate(task, value, source=0):
    sizes = [tensor.size for tensor in task.computation.inputs]
    (output,) = task.computation.outputs
    text = LOOP.replace("OUTPUT_SIZE", str(task.computation.tensor(output).size))
    text = text.replace("INPUT_SIZE", str(sizes[source])).replace("VALUE", value)
    return IrCandidate(text.replace("OUTPUT", str(len(sizes))).replace("INPUT", str(source)))


@pytest.fixture(scope="module")
def target():
    with CpuTarget() as opened:
        yield opened


@pytest.mark.parametrize("name", KERNELS)
def test_zeros_constants_and_copies_are_wrong_results(target, name):
    task = parse_task(SMALL_TASKS[name])
    trivial = [candidate(task, "0.0"), candidate(task, "1.0"), candidate(task, "0.03125")]
    trivial += [candidate(task, "%copied", source) for source in range(len(task.input_specs))]
    for attempt in trivial:
        measurement = target.evaluate(attempt, task, QUICK)
        assert measurement.status is Status.WRONG_RESULT, measurement.error
