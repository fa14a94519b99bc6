"""Times a schedule and every peer of its task in turns, so that drifts of the machine meet all alike."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.peer_process import PeerProcess, Round
from benchmarks.scoreboard import SpeedRow
from solgym.envs.kernel_dsl.experts import expert_schedule
from solgym.envs.kernel_dsl.kernels.task import parse_task
from solgym.hardware.measurement import MeasurePolicy, Status
from solgym.hardware.pool import WorkerPool
from solgym.hardware.profile import HardwareProfile
from solgym.hardware.speed_of_light import Bound, sol_fraction, speed_of_light
from solgym.hardware.target import Candidate, CpuTarget, Failure
from solgym.hardware.task import Task

__all__ = ["Bench", "Comparison"]

SEED = 0
HOPELESS = 1.3
"""After two rounds, peers that take this many times longer than the best of their library are left out."""


def only_core(pid: int) -> int | None:
    """The core to which a process is bound, if it is bound to one."""
    cores = os.sched_getaffinity(pid)
    return min(cores) if len(cores) == 1 else None


@dataclass(frozen=True)
class Comparison:
    """The rounds of a task: ours, and by name those of each peer that stayed in the race to the end."""

    task: str
    threads: int
    ours: tuple[Round, ...]
    peers: Mapping[str, tuple[Round, ...]]
    bound: Bound

    @property
    def ours_s(self) -> float:
        """Median over rounds of our median."""
        return median(r.median_s for r in self.ours)

    def fastest(self, library: str = "") -> str | None:
        """The peer with the smallest time, among those of one library or all."""
        times = {
            name: median(r.median_s for r in rounds)
            for name, rounds in self.peers.items()
            if name.startswith(library)
        }
        return min(times, key=times.__getitem__, default=None)

    def row(
        self,
        name: str,
        *,
        library: str = "",
        ratio_target: float | None = None,
        sol_target: float | None = None,
    ) -> SpeedRow:
        """The comparison with the fastest peer, of one library or all, against targets."""
        row = SpeedRow(
            name=name,
            task=self.task,
            threads=self.threads,
            ours_s=self.ours_s,
            ratio_target=ratio_target,
            sol_fraction=sol_fraction(self.ours_s, self.bound.time_s),
            sol_target=sol_target,
            bound=self.bound.binding,
        )
        peer = self.fastest(library)
        if peer is None:
            return row
        theirs = self.peers[peer]
        ratios = [p.median_s / o.median_s for p, o in zip(theirs, self.ours, strict=True)]
        return row.model_copy(
            update={
                "peer": peer,
                "peer_s": median(r.median_s for r in theirs),
                "ratio": median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "ratio_of_best": min(r.min_s for r in theirs) / min(r.min_s for r in self.ours),
            }
        )


class Bench:
    """Our targets and the peers' processes, started when first needed and kept for the session."""

    def __init__(self, profile: HardwareProfile, rounds: int, round_s: float) -> None:
        """Start nothing yet.

        Args:
            profile: peaks for the speed of light.
            rounds: how often each contender has its turn.
            round_s: how long a turn lasts, about.
        """
        self.profile, self.rounds = profile, rounds
        self._round_s = round_s
        self._targets: dict[int, CpuTarget] = {}
        self._peers: dict[tuple[str, int], PeerProcess] = {}

    @property
    def labels(self) -> dict[str, str]:
        """What the peers that were used are, exactly."""
        return {f"{library} ({threads})": peer.label for (library, threads), peer in self._peers.items()}

    def target(self, threads: int) -> CpuTarget:
        """The CPU with so many threads, and a worker of its own."""
        if threads not in self._targets:
            self._targets[threads] = CpuTarget(threads, WorkerPool(threads=threads))
        return self._targets[threads]

    def policy(self, threads: int) -> MeasurePolicy:
        """How candidates and peers are timed in a turn.

        The interval is wide because a turn need not be precise by itself, and a busy machine is no error.
        Several threads get twice as long, as samples in which one of them lost its core are thrown away.
        """
        turn_s = self._round_s if threads == 1 else 2 * self._round_s
        return MeasurePolicy(warmup=4, max_seconds=turn_s, target_ci=0.005, unstable_ci=1e6, timeout_s=60.0)

    def _peer(self, library: str, threads: int) -> PeerProcess:
        if (library, threads) not in self._peers:
            self._peers[library, threads] = PeerProcess(library, threads)
        return self._peers[library, threads]

    def compare(
        self, task_id: str, threads: int = 1, other: tuple[Task, Candidate] | None = None
    ) -> Comparison:
        """Time the expert's schedule of a task and its peers in turns.

        Args:
            task_id: a task of the schedule language; says what the peers compute.
            threads: threads on both sides.
            other: a task of another family that computes the same, and a candidate, in place of the expert's.

        Raises:
            AssertionError: the schedule has no artifact, or is wrong: then there is nothing to compare.
            PeerFailed: a peer failed, or computes something else.
        """
        target, policy = self.target(threads), self.policy(threads)
        task: Task = parse_task(task_id) if other is None else other[0]
        candidate: Candidate = (
            expert_schedule(parse_task(task_id), target.spec) if other is None else other[1]
        )
        artifact = target.compile(candidate, task)
        assert not isinstance(artifact, Failure), artifact.error

        def our_round() -> Round:
            measured = target.measure(artifact, task, policy, SEED)
            assert measured.status in (Status.OK, Status.UNSTABLE), f"{task_id}: {measured.error}"
            assert measured.time_s is not None
            assert measured.min_s is not None
            return Round(measured.time_s, measured.min_s, len(measured.samples_s))

        our_round()  # starts the worker and its threads, and brings inputs and reference into being
        (worker,) = target.pool.pids()
        runners: dict[str, PeerProcess] = {}
        for library in [name for name in ("numpy", "torch") if importlib.util.find_spec(name) is not None]:
            peer = self._peer(library, threads)
            # On one thread, peers run on the worker's core: cores of one machine differ.
            runners |= dict.fromkeys(peer.prepare(task_id, SEED, only_core(worker)), peer)
        ours: list[Round] = []
        theirs: dict[str, list[Round]] = {name: [] for name in runners}
        for number in range(self.rounds):
            if number == 2:
                theirs = _in_the_race(theirs, runners)
            order = ["", *theirs]
            for name in order if number % 2 == 0 else reversed(order):
                if name:
                    theirs[name].append(runners[name].sample(name, policy))
                else:
                    ours.append(our_round())
        return Comparison(
            task_id,
            threads,
            tuple(ours),
            {name: tuple(rounds) for name, rounds in theirs.items()},
            speed_of_light(task.work, self.profile, threads),
        )

    def close(self) -> None:
        """End all processes."""
        for target in self._targets.values():
            target.close()
        for peer in self._peers.values():
            peer.close()


def _in_the_race(
    rounds: dict[str, list[Round]], runners: Mapping[str, PeerProcess]
) -> dict[str, list[Round]]:
    best: dict[str, float] = {}
    for name, taken in rounds.items():
        library = runners[name].library
        best[library] = min(best.get(library, float("inf")), *(r.median_s for r in taken))
    return {
        name: taken
        for name, taken in rounds.items()
        if min(r.median_s for r in taken) <= HOPELESS * best[runners[name].library]
    }
