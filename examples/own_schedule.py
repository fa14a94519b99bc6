"""Write a schedule by hand, look at the nest, and measure it against the untouched loops and the expert.

Run it with ``python examples/own_schedule.py``.
"""

from solgym.envs.kernel_dsl.experts import expert_schedule
from solgym.envs.kernel_dsl.kernels import parse_task
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.hardware.target import CpuTarget


def main() -> None:
    task = parse_task("gemm/f32/m256n256k256")
    lanes = 8
    own = Schedule(
        task.id,
        (
            {"op": "split", "stage": "C", "loop": "i", "factor": 4},
            {"op": "split", "stage": "C", "loop": "j", "factor": lanes},
            {"op": "reorder", "stage": "C", "loops": ["i.o", "j.o", "k", "i.i", "j.i"]},
            {"op": "unroll", "stage": "C", "loop": "i.i"},
            {"op": "vectorize", "stage": "C", "loop": "j.i", "lanes": lanes},
            {"op": "accumulate", "stage": "C", "loop": "k"},
        ),
    )
    with CpuTarget() as target:
        print(own.apply(ProgramNest.initial(task.computation), target.spec), end="\n\n")
        candidates = {
            "untouched": Schedule(task.id),
            "own": own,
            "expert": expert_schedule(task, target.spec),
        }
        for name, schedule in candidates.items():
            measurement = target.evaluate(schedule, task)
            if measurement.time_s is None:
                print(f"{name:10} {measurement.status.value}: {measurement.error}")
            else:
                gflops = task.work.flops / measurement.time_s / 1e9
                print(f"{name:10} {measurement.time_s * 1e6:10.1f} us {gflops:8.1f} GFLOP/s")


if __name__ == "__main__":
    main()
