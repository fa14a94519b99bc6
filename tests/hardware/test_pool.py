"""Workers: started when needed, replaced when they must be, gone with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from solgym.errors import ClosedEnvironment, InvalidOption
from solgym.hardware.measurement import MeasurePolicy, Status
from solgym.hardware.pool import STARTS_MAX, WorkerPool, WorkerProcess, default_pool
from solgym.hardware.target import Artifact, CpuTarget
from tests.hardware.ir_candidates import AddTask, add_candidate

QUICK = MeasurePolicy(max_seconds=0.02, timeout_s=5.0, unstable_ci=1e9)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool() as made:
        yield made


@pytest.fixture
def target(pool: WorkerPool) -> CpuTarget:
    return CpuTarget(1, pool)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def test_nothing_starts_before_it_is_needed(pool: WorkerPool, target: CpuTarget) -> None:
    assert pool.pids() == []
    target.evaluate(add_candidate(), AddTask(), QUICK)
    assert len(pool.pids()) == 1


def test_a_worker_persists(pool: WorkerPool, target: CpuTarget) -> None:
    for seed in range(3):
        assert target.evaluate(add_candidate(), AddTask(), QUICK, seed=seed).ok
    (first,) = pool.pids()
    assert target.evaluate(add_candidate(), AddTask(2048, name="other"), QUICK).status is Status.WRONG_RESULT
    assert pool.pids() == [first]


def test_a_worker_is_recycled_after_its_number_of_artifacts(pool: WorkerPool, target: CpuTarget) -> None:
    policy = replace(QUICK, recycle_after=2)
    seen = []
    for _ in range(4):
        assert target.evaluate(add_candidate(), AddTask(), policy).ok
        seen.append(pool.pids())
    assert [len(pids) for pids in seen] == [1, 0, 1, 0]
    assert seen[0] != seen[2]


def test_a_worker_that_was_killed_is_replaced(pool: WorkerPool, target: CpuTarget) -> None:
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok
    (pid,) = pool.pids()
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(pid))
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok
    assert pool.pids() != [pid]


def test_close_ends_workers_and_leaves_no_zombie(pool: WorkerPool, target: CpuTarget) -> None:
    target.evaluate(add_candidate(), AddTask(), QUICK)
    (pid,) = pool.pids()
    pool.close()
    pool.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(ClosedEnvironment, match="closed"):
        target.evaluate(add_candidate(), AddTask(), QUICK)


def test_close_from_another_thread_ends_a_measurement(pool: WorkerPool, target: CpuTarget) -> None:
    endless = add_candidate(before="br label %spin\nspin:\nbr label %spin\nnever:\n")
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(target.evaluate, endless, AddTask(), replace(QUICK, timeout_s=60.0))
        assert wait_until(lambda: bool(pool.pids()) and bool(children_of(pool.pids()[0])))
        pool.close()
        with pytest.raises(ClosedEnvironment):
            future.result(timeout=20)


def test_a_crash_leaves_no_process_descriptor_or_file(pool: WorkerPool, target: CpuTarget) -> None:
    crash = add_candidate(before="store float 0.0, ptr null\n")
    endless = add_candidate(before="br label %spin\nspin:\nbr label %spin\nnever:\n")

    def try_all() -> None:
        assert target.evaluate(crash, AddTask(), QUICK).status is Status.CRASHED
        assert target.evaluate(endless, AddTask(), replace(QUICK, timeout_s=0.1)).status is Status.TIMEOUT

    try_all()
    (worker,) = pool.pids()
    shared_memory = sorted(os.listdir("/dev/shm"))
    descriptors = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), worker)]
    for _ in range(3):
        try_all()
    assert pool.pids() == [worker]
    assert children_of(worker) == []
    assert [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), worker)] == descriptors
    assert sorted(os.listdir("/dev/shm")) == shared_memory


def test_threads_share_a_pool(pool: WorkerPool, target: CpuTarget) -> None:
    tasks = [AddTask(256 + 64 * i) for i in range(4)]

    def evaluate(task: AddTask) -> bool:
        return target.evaluate(add_candidate(count=task.count), task, QUICK).ok

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(evaluate, tasks * 5))
    assert len(pool.pids()) == 1


def test_two_workers_run_at_the_same_time() -> None:
    with WorkerPool(workers=2) as pool:
        barrier = threading.Barrier(2)

        def lease() -> int:
            with pool.lease() as worker:
                barrier.wait(timeout=30)  # passes only if both are leased at once
                return worker.pid

        with ThreadPoolExecutor(2) as executor:
            assert len({future.result() for future in [executor.submit(lease) for _ in range(2)]}) == 2


def test_a_worker_outlives_the_thread_that_started_it(pool: WorkerPool, target: CpuTarget) -> None:
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(target.evaluate, add_candidate(), AddTask(), QUICK).result().ok
    (pid,) = pool.pids()
    time.sleep(0.1)
    assert is_alive(pid)
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok
    assert pool.pids() == [pid]


def killed_while_starting(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    start, left = WorkerProcess.__init__, [times]

    def killed(worker: WorkerProcess, *arguments: Any) -> None:
        start(worker, *arguments)
        if left[0]:
            left[0] -= 1
            os.kill(worker.pid, signal.SIGKILL)

    monkeypatch.setattr(WorkerProcess, "__init__", killed)


def test_a_worker_that_is_killed_while_it_starts_is_started_again(
    target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_while_starting(monkeypatch, STARTS_MAX - 1)
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok


def test_workers_that_are_always_killed_are_a_status(
    target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_while_starting(monkeypatch, 2 * STARTS_MAX)
    measurement = target.evaluate(add_candidate(), AddTask(), QUICK)
    assert measurement.status is Status.RUNTIME_ERROR
    assert "killed while they start" in str(measurement.error)
    artifact = target.compile(add_candidate(), AddTask())
    assert isinstance(artifact, Artifact)
    (measurement,) = target.measure_in_turns([artifact], AddTask(), QUICK)
    assert measurement.ok, "of two attempts the second starts a worker that lives"


def test_workers_keep_to_cores_of_their_own() -> None:
    with WorkerPool() as first, WorkerPool() as second, first.lease() as a, second.lease() as b:
        for worker in (a, b):
            affinity = os.sched_getaffinity(worker.pid)
            assert affinity == ({worker.core} if worker.core is not None else os.sched_getaffinity(0))
        assert a.core is None or a.core != b.core


def test_workers_for_several_threads_are_not_pinned() -> None:
    with WorkerPool(threads=2) as pool, pool.lease() as worker:
        assert worker.core is None
        assert os.sched_getaffinity(worker.pid) == os.sched_getaffinity(0)


def test_an_interrupt_does_not_mix_up_replies(
    pool: WorkerPool, target: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok

    def interrupted(*args: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("solgym.hardware.process.receive_message", interrupted)
        with pytest.raises(KeyboardInterrupt):
            target.evaluate(add_candidate(), AddTask(), QUICK)
    assert pool.pids() == []
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok


def test_tasks_beyond_the_cap_are_forgotten(pool: WorkerPool, target: CpuTarget) -> None:
    for count in range(1, 25):
        assert target.evaluate(add_candidate(count=count), AddTask(count), QUICK).ok
    (worker,) = pool.pids()
    assert len([1 for fd in os.listdir(f"/proc/{worker}/fd")]) < 25
    assert target.evaluate(add_candidate(count=1), AddTask(1), QUICK).ok


def test_memory_stays_flat(pool: WorkerPool, target: CpuTarget) -> None:
    """Three hundred different artifacts in one worker; benchmarks/ holds the long run."""
    task = AddTask(4096)

    def resident(pid: int) -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096

    policy = replace(QUICK, max_seconds=1e-4)
    before: list[int] = []
    for number in range(300):
        tag = f"@tag = global i64 {number}\n"
        assert target.evaluate(add_candidate(count=4096, declarations=tag), task, policy).ok
        if number == 100:
            before = [resident(os.getpid()), resident(pool.pids()[0])]
    after = [resident(os.getpid()), resident(pool.pids()[0])]
    assert after[0] - before[0] < 16 << 20
    assert after[1] - before[1] < 4 << 20


def test_pickling_keeps_the_settings(pool: WorkerPool, target: CpuTarget) -> None:
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok
    copy = pickle.loads(pickle.dumps(CpuTarget(2, WorkerPool(3, 2))))
    assert (copy.threads, copy.pool.workers, copy.pool.threads) == (2, 3, 2)
    assert copy.pool.pids() == []
    again = pickle.loads(pickle.dumps(target))
    assert again.evaluate(add_candidate(), AddTask(), QUICK).ok
    assert again.pool.pids() != pool.pids()
    again.close()


def test_the_default_pool_is_shared_and_replaced_once_closed() -> None:
    assert CpuTarget().pool is CpuTarget().pool
    first = default_pool()
    CpuTarget().close()
    assert default_pool() is first
    first.close()
    assert default_pool() is not first


@pytest.mark.parametrize(("workers", "threads"), [(0, 1), (1, 0), (1, 100_000)])
def test_impossible_pools_are_refused(workers: int, threads: int) -> None:
    with pytest.raises(InvalidOption):
        WorkerPool(workers, threads)


def test_a_fork_gets_workers_of_its_own(pool: WorkerPool, target: CpuTarget) -> None:
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok
    (ours,) = pool.pids()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ok = target.evaluate(add_candidate(), AddTask(), QUICK).ok
            os.write(write, f"{ok} {pool.pids()[0]}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    ok, theirs = os.read(read, 100).decode().split()
    os.close(read)
    assert ok == "True"
    assert int(theirs) != ours
    assert wait_until(lambda: not is_alive(int(theirs)))
    assert is_alive(ours)
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok
    assert pool.pids() == [ours]


def measure_in_daemon(queue: multiprocessing.Queue[str]) -> None:
    queue.put(str(CpuTarget().evaluate(add_candidate(), AddTask(), QUICK).status))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_daemonic_processes_can_measure(method: str) -> None:
    """Gymnasium's AsyncVectorEnv runs its environments in such."""
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=measure_in_daemon, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=60) == "ok"
    process.join(30)


SCRIPT = """
import sys, time
sys.path.insert(0, {root!r})
from solgym.hardware.measurement import MeasurePolicy
from solgym.hardware.target import CpuTarget
from tests.hardware.ir_candidates import AddTask, add_candidate
target = CpuTarget()
measurement = target.evaluate(add_candidate(), AddTask(), MeasurePolicy(unstable_ci=1e9))
print(measurement.status, *target.pool.pids(), flush=True)
"""


def script(rest: str = "") -> str:
    return textwrap.dedent(SCRIPT.format(root=str(ROOT))) + rest


def test_a_script_without_a_main_guard_works_from_standard_input(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-"],
        input=script(),
        text=True,
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    status, worker = done.stdout.split()
    assert status == "ok"
    assert done.stderr == ""
    assert wait_until(lambda: not is_alive(int(worker)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("busy", [False, True])
def test_workers_die_with_a_process_that_is_killed(tmp_path: Path, busy: bool) -> None:
    """Also in the middle of an endless candidate, in its first run or timed."""
    rest = "time.sleep(1000)\n"
    if busy:
        endless = 'add_candidate(before="br label %spin\\nspin:\\nbr label %spin\\nnever:\\n")'
        rest = f"target.evaluate({endless}, AddTask(), MeasurePolicy(timeout_s=1000))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script(rest)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    status, pid = process.stdout.readline().split()
    assert status == "ok"
    worker = int(pid)
    family = [worker]
    if busy:
        assert wait_until(lambda: bool(children_of(worker)))
        family += children_of(worker)
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_until(lambda: not any(map(is_alive, family)))
    assert list(tmp_path.iterdir()) == []


def test_a_busy_worker_dies_with_its_pool(tmp_path: Path) -> None:
    """The candidate loops in the worker itself, where no Python code could notice that the pool is gone."""
    late = (
        'declarations="@n = internal global i64 0\\n", before="%n = load i64, ptr @n\\n%m = add i64 %n, 1\\n'
    )
    late += "store i64 %m, ptr @n\\n%late = icmp uge i64 %n, 3\\nbr i1 %late, label %spin, label %good\\n"
    late += 'spin:\\nbr label %spin\\ngood:\\n"'
    rest = f"target.evaluate(add_candidate({late}), AddTask(), MeasurePolicy(timeout_s=1000))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script(rest)], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    worker = int(process.stdout.readline().split()[1])

    def seconds_used() -> float:
        fields = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) / os.sysconf("SC_CLK_TCK")

    start = seconds_used()
    assert wait_until(lambda: seconds_used() > start + 0.2)
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_until(lambda: not is_alive(worker))


def test_ctrl_c_reaches_only_the_user(pool: WorkerPool, target: CpuTarget) -> None:
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok
    (pid,) = pool.pids()
    assert os.getpgid(pid) != os.getpgid(0)
    os.kill(pid, signal.SIGINT)
    assert target.evaluate(add_candidate(), AddTask(), QUICK).ok
    assert pool.pids() == [pid]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: there is nothing to spread over")
def test_threads_of_a_candidate_have_a_core_each() -> None:
    with WorkerPool(threads=2) as two, CpuTarget(2, two) as target:
        target.evaluate(add_candidate(threads=2), AddTask(), QUICK)
        (pid,) = two.pids()
        cores = [os.sched_getaffinity(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")]
        with WorkerPool() as one, one.lease() as later:
            assert later.core is None or {later.core} not in cores
    assert len(cores) == 2
    assert all(len(own) == 1 for own in cores)
    assert cores[0] != cores[1]
