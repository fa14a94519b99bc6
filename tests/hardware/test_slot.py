"""The measurement slot: a core on which the processes of a run take turns, and that all else keeps off."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from solgym.errors import ClosedEnvironment
from solgym.hardware import slot as slots
from solgym.hardware.fingerprint import core_siblings, device_fingerprint, host_device
from solgym.hardware.measurement import MeasurePolicy
from solgym.hardware.pool import WorkerPool, default_pool
from solgym.hardware.slot import MeasurementSlot, claim_slot, current_slot, use_slot
from solgym.hardware.target import CpuTarget
from solgym.hardware.worker import claim_core
from tests.hardware.ir_candidates import AddTask, add_candidate

QUICK = MeasurePolicy(max_seconds=0.02, timeout_s=5.0, unstable_ci=1e9)
ROOT = Path(__file__).parents[2]
several_cores = pytest.mark.skipif(host_device().cores < 2, reason="one core: nothing is set apart")


@pytest.fixture
def slot() -> Iterator[MeasurementSlot]:
    with claim_slot() as made:
        yield made


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def affinities() -> list[set[int]]:
    """Of all threads of this process."""
    return [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]


class Machine:
    """Affinity as the kernel would keep it, on a machine made up."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, cores: dict[int, set[int]], claimed: set[int]
    ) -> None:
        self.cpus = set().union(*cores.values())
        siblings = {cpu: frozenset(core) for core in cores.values() for cpu in core}
        device = host_device().__class__(
            **{**vars(host_device()), "cpus": tuple(min(c) for c in cores.values())}
        )
        monkeypatch.setattr(slots, "host_device", lambda: device)
        monkeypatch.setattr(slots, "core_siblings", siblings.__getitem__)
        monkeypatch.setattr(slots, "claim_core", lambda core: None if core in claimed else socket.socket())
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(self.cpus))
        monkeypatch.setattr(os, "sched_setaffinity", self.confine)
        self.all = set(self.cpus)

    def confine(self, pid: int, cpus: set[int]) -> None:
        assert set(cpus) <= self.all
        assert cpus
        self.cpus = set(cpus)


def test_the_last_free_core_is_set_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {0: {0}, 1: {1}, 2: {2}}, claimed={2})
    with claim_slot() as slot:
        assert slot.core == 1
        assert slot.other_cpus == {0, 2}
        assert machine.cpus == {0, 1, 2}, "claiming confines nobody"
        use_slot(slot)
        assert machine.cpus == {0, 2}
        with slot.whole_machine():
            assert machine.cpus == {0, 1, 2}
        assert machine.cpus == {0, 2}
    assert machine.cpus == {0, 1, 2}
    assert current_slot() is None


def test_the_other_half_of_the_core_is_kept_free_too(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(monkeypatch, {0: {0, 2}, 1: {1, 3}}, claimed=set())
    with claim_slot() as slot:
        assert (slot.core, slot.other_cpus) == (1, {0, 2})


@pytest.mark.parametrize(
    ("cores", "claimed"), [({0: {0}}, set()), ({0: {0, 1}}, set()), ({0: {0}, 1: {1}}, {0, 1})]
)
def test_where_no_core_can_be_set_apart_nobody_is_confined(
    monkeypatch: pytest.MonkeyPatch, cores: dict[int, set[int]], claimed: set[int]
) -> None:
    machine = Machine(monkeypatch, cores, claimed)
    before = set(machine.cpus)
    with claim_slot() as slot:
        use_slot(slot)
        assert slot.core is None
        assert slot.other_cpus == machine.cpus == before


def test_siblings_are_read_as_the_kernel_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (
        ("3", {3}),
        ("3,7", {3, 7}),
        ("2-3", {2, 3}),
        (None, {3}),
        ("1-3,5", {1, 2, 3, 5}),
    ):
        monkeypatch.setattr("solgym.hardware.fingerprint._text", lambda path, text=text: text)
        assert core_siblings(3) == expected


@several_cores
def test_the_core_is_claimed_until_the_slot_is_closed() -> None:
    with claim_slot() as slot:
        if slot.core is None:
            pytest.skip("all cores are claimed by other processes")
        assert claim_core(slot.core) is None
        core = slot.core
    claim = claim_core(core)
    assert claim is not None
    claim.close()


@several_cores
def test_workers_keep_to_the_core_and_all_threads_off_it(slot: MeasurementSlot) -> None:
    if slot.core is None:
        pytest.skip("all cores are claimed by other processes")
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        use_slot(slot)
        assert all(affinity == slot.other_cpus for affinity in affinities())
        with default_pool().lease() as worker:
            assert worker.core == slot.core
            assert os.sched_getaffinity(worker.pid) == {slot.core}
        with WorkerPool(threads=2, slot=slot) as pool, pool.lease() as worker:
            assert os.sched_getaffinity(worker.pid) == slot.cpus
    finally:
        stop.set()
        thread.join()
    slot.close()
    assert all(affinity == slot.cpus for affinity in affinities())


def test_default_pools_are_replaced_when_the_slot_changes(slot: MeasurementSlot) -> None:
    before = default_pool()
    use_slot(slot)
    inside = default_pool()
    assert before.closed
    assert inside is default_pool()
    assert inside.slot is slot
    assert CpuTarget().evaluate(add_candidate(), AddTask(), QUICK).ok
    slot.close()
    slot.close()
    assert default_pool().slot is None
    assert inside.closed
    assert CpuTarget().evaluate(add_candidate(), AddTask(), QUICK).ok


def test_a_closed_slot_says_so(slot: MeasurementSlot) -> None:
    with WorkerPool(slot=slot) as pool:
        slot.close()
        with pytest.raises(ClosedEnvironment, match="slot is closed"), pool.lease():
            pass


def test_one_at_a_time_within_a_process(slot: MeasurementSlot) -> None:
    """Two pools of a process take turns as two processes do."""
    inside, most = 0, 0

    def measure() -> None:
        nonlocal inside, most
        with slot.turn():
            inside += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1

    threads = [threading.Thread(target=measure) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert slot.holder() is None


CHILD = """
import json, os, sys, time
sys.path.insert(0, {root!r})
from solgym.hardware.fingerprint import device_fingerprint
from solgym.hardware.pool import default_pool
from solgym.hardware.slot import MeasurementSlot, use_slot
slot = MeasurementSlot.from_json(json.loads(sys.argv[1]))
use_slot(slot)
print(device_fingerprint(), flush=True)
print(sorted(os.sched_getaffinity(0)), flush=True)
with default_pool().lease() as worker:
    print(worker.core, worker.pid, flush=True)
    time.sleep(float(sys.argv[2]))
"""


def child(slot: MeasurementSlot, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(CHILD.format(root=str(ROOT))),
            json.dumps(slot.to_json()),
            str(seconds),
        ],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(slot.lock_fd,),
    )


def test_processes_take_turns_and_a_killed_one_loses_its_turn(slot: MeasurementSlot) -> None:
    use_slot(slot)  # a child starts confined, and must describe the machine all the same
    process = child(slot, 1000)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == device_fingerprint()
        assert json.loads(process.stdout.readline()) == sorted(slot.other_cpus)
        core, worker = process.stdout.readline().split()
        assert core == str(slot.core)
        assert slot.holder() == process.pid
        measured = threading.Event()

        def measure() -> None:
            with slot.turn():
                measured.set()

        thread = threading.Thread(target=measure)
        thread.start()
        assert not measured.wait(0.2)
        process.send_signal(signal.SIGKILL)
        assert measured.wait(20)
        thread.join()
        assert wait_until(lambda: not Path(f"/proc/{worker}").exists() or _is_zombie(int(worker)))
    finally:
        process.kill()
        process.communicate()


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_waiting_is_counted(slot: MeasurementSlot) -> None:
    before = slots.waited_s()
    held = threading.Event()

    def hold() -> None:
        with slot.turn():
            held.set()
            time.sleep(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with slot.turn():
        pass
    thread.join()
    assert slots.waited_s() > before
