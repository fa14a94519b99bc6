"""Schedules as data: JSON, hashes, replay, and code that depends on nothing else."""

import itertools
import json

import pytest

from solgym.envs.kernel_dsl.kernels import parse_task
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.primitives import apply_step
from solgym.envs.kernel_dsl.schedule import MAX_STEPS, Schedule
from solgym.errors import IllegalSchedule, InvalidSchedule
from solgym.hardware.target import cpu_spec
from tests.envs.kernel_dsl.test_primitives import GEMM, REGISTER_TILE

TILED = Schedule(GEMM, REGISTER_TILE)


def test_json_round_trip_keeps_the_hash() -> None:
    again = Schedule.from_json(json.loads(json.dumps(TILED.to_json())))
    assert again == TILED
    assert again.digest == TILED.digest
    assert Schedule.from_json(json.dumps(TILED.to_json())).digest == TILED.digest


def test_different_schedules_have_different_hashes() -> None:
    others = {Schedule(GEMM, REGISTER_TILE[:n]).digest for n in range(len(REGISTER_TILE) + 1)}
    assert len(others) == len(REGISTER_TILE) + 1
    assert Schedule("gemm/f32/m13n37k12", REGISTER_TILE).digest not in others


def test_replay_gives_the_same_code() -> None:
    task = parse_task(GEMM)
    again = Schedule.from_json(TILED.to_json())
    assert again.lower(task, cpu_spec()).ir == TILED.lower(task, cpu_spec()).ir


def test_nests_shows_every_step() -> None:
    nests = list(TILED.nests(ProgramNest.initial(parse_task(GEMM).computation), cpu_spec()))
    assert len(nests) == len(REGISTER_TILE) + 1
    texts = [str(nest) for nest in nests]
    assert all(before != after for before, after in itertools.pairwise(texts))
    assert "hold C in registers" in texts[-1]


def test_a_refused_step_is_named() -> None:
    schedule = TILED.extended({"op": "split", "stage": "C", "loop": "i.o", "factor": 100})
    with pytest.raises(IllegalSchedule, match=r"step 9 \(split\): cannot split"):
        schedule.apply(ProgramNest.initial(parse_task(GEMM).computation), cpu_spec())


@pytest.mark.parametrize(
    "data",
    ["{", "[]", 3, None, {}, {"version": 2, "task": GEMM, "steps": []},
     {"version": 1, "task": 3, "steps": []}, {"version": 1, "task": GEMM, "steps": {}},
     {"version": 1, "task": GEMM, "steps": [3]},
     {"version": 1, "task": GEMM, "steps": [{"stage": "C"}]},
     {"version": 1, "task": GEMM, "steps": [{"op": "split", "factor": object()}]},
     {"version": 1, "task": GEMM, "steps": [{"op": "split", "factor": 10**5000}]},
     {"version": 1, "task": GEMM, "steps": [{"op": "split", (1, 2): 3}]},
     '{"version": 1, "task": "x", "steps": [{"op": "split", "factor": ' + "9" * 5000 + "}]}", "[" * 100_000],
    ids=range(15),
)  # fmt: skip
def test_bad_data_gets_one_sentence(data: object) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        Schedule.from_json(data)
    assert "\n" not in str(caught.value)


def test_code_beyond_the_cap_is_refused_not_compiled() -> None:
    """Peeling multiplies versions: ragged tiles inside ragged tiles, all unrolled."""
    steps = []
    for axis in "ijk":
        steps += [
            {"op": "split", "stage": "C", "loop": axis, "factor": 50},
            {"op": "split", "stage": "C", "loop": f"{axis}.i", "factor": 7},
            {"op": "unroll", "stage": "C", "loop": f"{axis}.i.i"},
        ]
    schedule = Schedule("gemm/f32/m99n99k99", tuple(steps))
    with pytest.raises(IllegalSchedule, match="would exceed"):
        schedule.lower(parse_task("gemm/f32/m99n99k99"), cpu_spec())


def test_fused_loops_of_one_trip_are_none() -> None:
    """LLVM needed two seconds to merge hundreds of them."""
    task = parse_task("conv2d/f32/n2h3w7ci1co1r3s1")
    unrolled = tuple({"op": "unroll", "stage": "Y", "loop": loop} for loop in ("y", "x", "r"))
    plain = Schedule(task.id, unrolled)
    fused = plain.extended({"op": "fuse", "stage": "Y", "loop": "s"})
    assert fused.lower(task, cpu_spec()).ir == plain.lower(task, cpu_spec()).ir


def test_schedules_without_end_are_refused() -> None:
    back_and_forth = [{"op": "reorder", "stage": "C", "loops": order} for order in (["j", "i"], ["i", "j"])]
    task = parse_task(GEMM)
    Schedule(GEMM, tuple(back_and_forth) * (MAX_STEPS // 2)).lower(task, cpu_spec())
    with pytest.raises(IllegalSchedule, match=f"more than {MAX_STEPS}"):
        Schedule(GEMM, (*back_and_forth * (MAX_STEPS // 2), back_and_forth[0])).lower(task, cpu_spec())


def test_names_do_not_grow_without_end() -> None:
    """Splitting a loop and fusing the two again doubles its name each time."""
    nest, name = ProgramNest.initial(parse_task("gemm/f32/m8n8k64").computation), "k"
    with pytest.raises(IllegalSchedule, match="name of"):  # noqa: PT012
        for _ in range(20):
            nest = apply_step(nest, {"op": "split", "stage": "C", "loop": name, "factor": 4}, cpu_spec())
            nest = apply_step(nest, {"op": "fuse", "stage": "C", "loop": f"{name}.o"}, cpu_spec())
            name = f"{name}.o+{name}.i"


def test_scratch_memory_beyond_the_cap_is_refused() -> None:
    task = parse_task("gemm/f32/m16n16384k8192")
    schedule = Schedule(task.id, ({"op": "cache_read", "stage": "C", "tensor": "B"},))
    with pytest.raises(IllegalSchedule, match="scratch memory"):
        schedule.lower(task, cpu_spec())
