"""``parallel_for``: every iteration exactly once, in balanced chunks, whatever the numbers."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

import pytest

from solgym.errors import ClosedEnvironment, InvalidOption
from solgym.hardware.thread_runtime import MAX_THREADS, ThreadRuntime

CHUNK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
PARALLEL_FOR = ctypes.CFUNCTYPE(None, CHUNK, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def run(runtime: ThreadRuntime, trips: int, threads: int, body: Callable[[int, int, int], None]) -> None:
    """Call ``parallel_for`` with a Python function as the body."""
    first_word = ctypes.c_void_p.from_address(runtime.pointer).value
    assert first_word is not None
    chunk = CHUNK(lambda context, begin, end, thread: body(begin, end, thread))
    PARALLEL_FOR(first_word)(chunk, None, trips, threads)


def chunks(runtime: ThreadRuntime, trips: int, threads: int) -> list[tuple[int, int, int]]:
    seen: list[tuple[int, int, int]] = []
    run(runtime, trips, threads, lambda begin, end, thread: seen.append((thread, begin, end)))
    return sorted(seen)


@pytest.mark.parametrize("pool", [1, 2, 3, 5])
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("trips", [0, 1, 2, 6, 7, 100])
def test_every_trip_runs_once_in_balanced_chunks(pool: int, threads: int, trips: int) -> None:
    with ThreadRuntime(pool) as runtime:
        seen = chunks(runtime, trips, threads)
    covered = [trip for _, begin, end in seen for trip in range(begin, end)]
    assert covered == list(range(trips))
    sizes = [end - begin for _, begin, end in seen]
    assert all(0 <= thread < threads for thread, _, _ in seen)
    assert len({thread for thread, _, _ in seen}) == len(seen) == min(threads, trips)
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_chunk_zero_runs_on_the_caller_and_the_others_elsewhere() -> None:
    who: dict[int, int] = {}
    with ThreadRuntime(3) as runtime:
        run(runtime, 3, 3, lambda begin, end, thread: who.__setitem__(thread, threading.get_native_id()))
    assert who[0] == threading.get_native_id()
    assert len(set(who.values())) == 3


def test_many_regions_in_a_row() -> None:
    total = [0]
    lock = threading.Lock()

    def body(begin: int, end: int, thread: int) -> None:
        with lock:
            total[0] += end - begin

    with ThreadRuntime(3) as runtime:
        for _ in range(500):
            run(runtime, 10, 3, body)
    assert total[0] == 5000


def test_sleeping_helpers_wake_up_and_a_sleeping_caller_too() -> None:
    """Waits far longer than anybody spins, on both sides."""
    pause = threading.Event()
    done: list[int] = []

    def slow_elsewhere(begin: int, end: int, thread: int) -> None:
        if thread:
            pause.wait(0.05)
        done.append(thread)

    with ThreadRuntime(2) as runtime:
        for _ in range(3):
            run(runtime, 2, 2, slow_elsewhere)
            pause.wait(0.02)
    assert sorted(done) == [0, 0, 0, 1, 1, 1]


def native_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_closing_joins_the_helpers() -> None:
    before = native_threads()
    runtime = ThreadRuntime(4)
    assert native_threads() == before + 3
    runtime.close()
    runtime.close()
    assert native_threads() == before
    with pytest.raises(ClosedEnvironment, match="closed"):
        _ = runtime.pointer


def test_two_pools_at_a_time() -> None:
    with ThreadRuntime(2) as first, ThreadRuntime(3) as second:
        assert first.pointer != second.pointer
        assert len(chunks(first, 10, 2)) == 2
        assert len(chunks(second, 10, 3)) == 3
        assert len(chunks(first, 10, 2)) == 2


def test_a_forked_child_makes_its_own() -> None:
    with ThreadRuntime(2) as runtime:
        chunks(runtime, 2, 2)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    _ = runtime.pointer
                except ClosedEnvironment:
                    with ThreadRuntime(3) as own:
                        code = 0 if len(chunks(own, 9, 3)) == 3 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(chunks(runtime, 2, 2)) == 2


@pytest.mark.parametrize("threads", [0, -1, MAX_THREADS + 1])
def test_impossible_numbers_are_refused(threads: int) -> None:
    with pytest.raises(InvalidOption, match="threads"):
        ThreadRuntime(threads)
