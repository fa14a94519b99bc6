"""OpenTuner itself, asked for one vector at a time; the only module that imports it.

The techniques and their bandit are those that OpenTuner uses by default (Ansel et al., PACT 2014). A few
parts are replaced: it draws from the global random generators, differential evolution orders its population
by memory addresses and by the clock, comparing with a configuration that has no result yet raises, and it
looks more up in its database than it needs to.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import random
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import numpy as np
import opentuner
import sqlalchemy
from opentuner import tuningrunmain
from opentuner.api import TuningRunManager
from opentuner.measurement.driver import MeasurementDriver
from opentuner.measurement.inputmanager import FixedInputManager
from opentuner.measurement.interface import DefaultMeasurementInterface
from opentuner.resultsdb.models import Configuration, DesiredResult, Result
from opentuner.search import differentialevolution, evolutionarytechniques, simplextechniques, technique
from opentuner.search.bandittechniques import AUCBanditMetaTechnique
from opentuner.search.driver import SearchDriver
from opentuner.search.manipulator import ConfigurationManipulator, EnumParameter, IntegerParameter
from opentuner.search.objective import MinimizeTime

from solgym.envs.spaces import Vector
from solgym.errors import InvalidOption

__all__ = ["Engine", "Request"]

Request: TypeAlias = DesiredResult
"""A vector that OpenTuner wants to know the time of."""

_ROOT: Final = "solgym: AUC bandit over the default techniques"
_OPTIONS: Final = (
    "--database",
    "sqlite://",
    "--parallelism",
    "1",
    "--no-dups",
    "--quiet",
    "--technique",
    _ROOT,
)


class _Member(differentialevolution.PopulationMember):  # type: ignore[misc]
    """A member of a population that is older than those made or touched after it, by count."""

    def __init__(self, config: Configuration, counter: Iterator[int]) -> None:
        super().__init__(config, submitted=False)
        self._counter = counter
        self._number = self.timestamp = next(counter)

    def touch(self) -> None:
        self.timestamp = next(self._counter)

    def __hash__(self) -> int:
        # Members are kept in a set, which is shuffled in the order of the hashes.
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _DifferentialEvolution(differentialevolution.DifferentialEvolutionAlt):  # type: ignore[misc]
    """OpenTuner's differential evolution over members whose order is the same in every process.

    It begins with the fastest configurations, if there are as many results as it has members.
    """

    def initial_population(self) -> None:
        counter = itertools.count()
        times: dict[Configuration, float] = self.driver.times
        size: int = self.population_size
        fastest = sorted(times, key=times.__getitem__)[:size] if len(times) >= size else []
        drawn = (self.driver.get_configuration(self.manipulator.random()) for _ in range(size - len(fastest)))
        self.population = [_Member(config, counter) for config in (*fastest, *drawn)]


class _SearchDriver(SearchDriver):  # type: ignore[misc]
    """OpenTuner's search driver with what it asks its database most often in dictionaries."""

    def __init__(self, **kwargs: Any) -> None:
        self._configurations: dict[str, Configuration] = {}
        self.times: dict[Configuration, float] = {}
        super().__init__(**kwargs)

    def get_configuration(self, cfg: dict[str, int]) -> Configuration:
        key = self.manipulator.hash_config(cfg)
        if key not in self._configurations:
            self._configurations[key] = super().get_configuration(cfg)
        return self._configurations[key]

    def has_results(self, config: Configuration) -> bool:
        return config in self.times


class _MeasurementDriver(MeasurementDriver):  # type: ignore[misc]
    """OpenTuner's measurement driver for one process, which has no time limits to work out."""

    def run_time_limit(self, desired_result: Request, default: float | None = None) -> float | None:
        return default

    def claim_desired_result(self, desired_result: Request) -> bool:
        desired_result.state = "RUNNING"
        return True

    def report_result(self, desired_result: Request, result: Result, input: None = None) -> None:
        self.tuning_run_main.search_driver.times[desired_result.configuration] = result.time
        super().report_result(desired_result, result, input)


class _ShortestTime(MinimizeTime):  # type: ignore[misc]
    """Compares configurations by their times; one that is still being measured is worse than any other."""

    def config_compare(self, config1: Configuration, config2: Configuration) -> int:
        first, second = (self.driver.times.get(config, math.inf) for config in (config1, config2))
        return int(first > second) - int(first < second)

    def limit_from_config(self, config: Configuration) -> None:
        return None


class Engine:
    """OpenTuner's search over vectors, with its database in memory.

    Nothing else in the process notices it: global random states and the configuration of logging are left
    as they were, and no file is written. One engine belongs to one thread, like its database.

    Args:
        sizes: how many choices each position has.
        ordered: whether choices that are near in number are near in meaning.
        seed: of its random choices.

    Raises:
        InvalidOption: SQLAlchemy is so new that OpenTuner's filter of duplicates does not work.
    """

    def __init__(self, sizes: Sequence[int], ordered: Sequence[bool], seed: int) -> None:
        if int(sqlalchemy.__version__.split(".")[0]) >= 2:
            raise InvalidOption(
                f"OpenTuner repeats itself with SQLAlchemy {sqlalchemy.__version__}; "
                "install an older one: pip install 'solgym[tuners]'"
            )
        self._names = [f"p{position}" for position in range(len(sizes))]
        numpy_state = np.random.RandomState(seed % 2**32).get_state()
        self._states = (random.Random(seed).getstate(), numpy_state)
        with self._undisturbed():
            self._manager = _manager(self._names, sizes, ordered)
        weakref.finalize(self, _close, self._manager)

    def ask(self) -> tuple[Request, Vector] | None:
        """The next vector to try, or None, which can mean that there will be another one next time."""
        with self._undisturbed():
            request = self._manager.get_next_desired_result()
            if request is None:
                return None
            data = request.configuration.data
            return request, tuple(int(data[name]) for name in self._names)

    def ask_for(self, vector: Vector) -> Request | None:
        """Make OpenTuner want a vector; None if it had it before."""
        with self._undisturbed():
            self._manager.search_driver.seed_cfgs.append(dict(zip(self._names, vector, strict=True)))
            return self._manager.get_next_desired_result()

    def tell(self, request: Request, time_s: float) -> None:
        """The time of a vector; infinite if it failed."""
        state = "OK" if math.isfinite(time_s) else "ERROR"
        with self._undisturbed():
            self._manager.report_result(request, Result(time=time_s, state=state))
            # Without this the best configuration would be out of date in the next request.
            self._manager.search_driver.process_new_results()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Exchange the global random states for OpenTuner's own."""
        outside = (random.getstate(), np.random.get_state())  # noqa: NPY002
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])  # noqa: NPY002
        try:
            yield
        finally:
            self._states = (random.getstate(), np.random.get_state())  # noqa: NPY002
            random.setstate(outside[0])
            np.random.set_state(outside[1])  # noqa: NPY002


def _manager(names: Sequence[str], sizes: Sequence[int], ordered: Sequence[bool]) -> Any:
    """OpenTuner's ask/tell interface for integers (where they are ordered) and words (where not)."""
    manipulator = ConfigurationManipulator()
    for name, size, is_ordered in zip(names, sizes, ordered, strict=True):
        choices = (
            IntegerParameter(name, 0, size - 1) if is_ordered else EnumParameter(name, list(range(size)))
        )
        manipulator.add_parameter(choices)
    _register()
    args = argparse.ArgumentParser(parents=opentuner.argparsers()).parse_args(_OPTIONS)
    interface = DefaultMeasurementInterface(
        args=args,
        manipulator=manipulator,
        objective=_ShortestTime(),
        input_manager=FixedInputManager(),
        project_name="solgym",
    )
    configure_logging, tuningrunmain.init_logging = tuningrunmain.init_logging, lambda: None
    try:
        manager = TuningRunManager(
            interface, args, search_driver=_SearchDriver, measurement_driver=_MeasurementDriver
        )
    finally:
        tuningrunmain.init_logging = configure_logging
    # By default it commits when half a minute is over, which is a clock read and of no use in memory.
    manager.last_commit_time = math.inf
    return manager


def _register() -> None:
    """Add the technique to OpenTuner's table, once in a process; each manager works on a copy of it."""
    if any(known.name == _ROOT for known in technique.the_registry):
        return
    logger = logging.getLogger("opentuner")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)
    members = [
        _DifferentialEvolution(),
        evolutionarytechniques.UniformGreedyMutation(),
        evolutionarytechniques.NormalGreedyMutation(mutation_rate=0.3),
        simplextechniques.RandomNelderMead(),
    ]
    technique.register(AUCBanditMetaTechnique(members, name=_ROOT))


def _close(manager: Any) -> None:
    manager.session.close()
    manager.engine.dispose()
