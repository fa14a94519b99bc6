"""Hardware profiles: what a machine can do at best, in FLOP/s, bytes/s, sizes and overheads.

A profile is *published* (numbers derived from a datasheet, shipped as JSON beside this module) or
*calibrated* (measured on this machine by ``solgym.hardware.calibration`` and kept in the user's cache
folder). Either way every number names its source. Speed-of-light bounds are computed from profiles in
``solgym.hardware.speed_of_light``; nothing here measures anything.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from solgym.errors import InvalidOption, InvalidProfile
from solgym.hardware.atomic_files import write_atomically

__all__ = [
    "FEATURE_NAMES",
    "BandwidthPoint",
    "HardwareProfile",
    "MemoryLevel",
    "Progress",
    "Streams",
    "host_profile",
    "load_profile",
    "profile_path",
    "published_profiles",
    "save_profile",
]

Progress = Callable[[float, str], None]
"""Called with the fraction done (0 to 1) and a few words about what is being measured."""

# No machine is outside of this; numbers far beyond would become infinite or zero when computed with.
Rate = Annotated[float, Field(ge=1e-6, le=1e24)]
Threads = Literal["1", "all"]
ByThreads = dict[Threads, Rate]

PUBLISHED_FOLDER = Path(__file__).parent / "profiles"


def rate_for(values: Mapping[Threads, float], threads: int, cores: int) -> float | None:
    """Pick the rate of ``threads`` threads from a table for one thread and for all.

    Between the two, ``min(threads * one, all)`` is an upper limit: rates grow neither faster than the
    number of threads nor past the machine's total. A table without ``"1"`` describes a device that is
    always used whole. Returns None if the table is empty.
    """
    one, whole = values.get("1"), values.get("all")
    if one is None or whole is None:
        return whole if one is None else one * min(threads, cores)
    if threads == 1:
        return one
    return whole if threads >= cores else min(threads * one, whole)


@dataclass(frozen=True)
class Streams:
    """Bytes per second of four memory streams; None where a profile has no figure.

    ``copy`` (one read, one write) and ``add`` (two reads, one write) count read and written bytes.
    """

    read: float
    copy: float
    add: float | None = None
    write: float | None = None

    def scaled_up_to(self, factor: float, limit: Streams) -> Streams:
        """These rates times ``factor``, none of them above that of ``limit``."""

        def scaled(own: float | None, cap: float | None) -> float | None:
            return None if own is None or cap is None else min(own * factor, cap)

        return Streams(
            min(self.read * factor, limit.read),
            min(self.copy * factor, limit.copy),
            scaled(self.add, limit.add),
            scaled(self.write, limit.write),
        )


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MemoryLevel(_Model):
    """One level of the memory hierarchy.

    Attributes:
        name: ``L1``, ``L2``, ``L3`` or ``DRAM``.
        size_bytes: capacity of one instance; None for the last level.
        shared: whether several cores share one instance.
        instances: how many of them the usable cores have.
        read_bytes_per_s: best read-only stream, by threads (``"1"``, ``"all"``); empty if unknown.
        copy_bytes_per_s: best copy, read and written bytes both counted.
        add_bytes_per_s: best ``c = a + b``, read and written bytes both counted.
        write_bytes_per_s: best write-only stream.
    """

    name: Literal["L1", "L2", "L3", "DRAM"]
    size_bytes: Annotated[int, Field(gt=0)] | None
    shared: bool = False
    instances: Annotated[int, Field(ge=1)] = 1
    read_bytes_per_s: ByThreads = {}
    copy_bytes_per_s: ByThreads = {}
    add_bytes_per_s: ByThreads = {}
    write_bytes_per_s: ByThreads = {}

    def capacity_bytes(self, threads: int) -> float:
        """Bytes that ``threads`` threads can keep in this level; infinite for the last one."""
        return math.inf if self.size_bytes is None else self.size_bytes * min(threads, self.instances)

    def streams(self, threads: int, cores: int) -> Streams | None:
        """Rates of the four streams, or None if the profile has no read bandwidth for this level."""
        read = rate_for(self.read_bytes_per_s, threads, cores)
        if read is None:
            return None
        return Streams(
            read,
            rate_for(self.copy_bytes_per_s, threads, cores) or read,
            rate_for(self.add_bytes_per_s, threads, cores),
            rate_for(self.write_bytes_per_s, threads, cores),
        )


class BandwidthPoint(_Model):
    """Best bandwidths at one working set of a sweep; valid from there up to the next point."""

    working_set_bytes: Annotated[int, Field(gt=0)]
    level: Literal["L1", "L2", "L3", "DRAM"]
    read_bytes_per_s: Rate
    copy_bytes_per_s: Rate
    add_bytes_per_s: Rate
    write_bytes_per_s: Rate

    @property
    def streams(self) -> Streams:
        """The four rates."""
        return Streams(
            self.read_bytes_per_s, self.copy_bytes_per_s, self.add_bytes_per_s, self.write_bytes_per_s
        )


class HardwareProfile(_Model):
    """A target's peaks and sizes, with the source of every number.

    Attributes:
        name: what people call the machine.
        kind: ``published`` or ``calibrated``.
        target: ``cpu``, ``cuda``, ``hip`` or ``opencl``.
        cores: usable physical cores (CPU), or multiprocessors (GPU).
        vector_bits: width of the widest vectors; 0 where the term means nothing.
        peak_flops_per_s: by execution unit (``fma``, ``tensor``), then dtype, then threads.
        levels: memory levels, the nearest first; the last one has no size.
        bandwidth_curve: by threads, the sweep behind ``levels``; empty in published profiles.
        launch_overhead_s: ``call`` (one call of an empty kernel) and ``parallel_region`` (CPU).
        sources: field (``*`` wildcards allowed) to where the number is from.
        fingerprint: identifies device, toolchain and package version; empty if published.
    """

    name: str
    kind: Literal["published", "calibrated"]
    target: Literal["cpu", "cuda", "hip", "opencl"]
    cores: Annotated[int, Field(ge=1)]
    vector_bits: Annotated[int, Field(ge=0)] = 0
    peak_flops_per_s: dict[str, dict[str, ByThreads]]
    levels: Annotated[tuple[MemoryLevel, ...], Field(min_length=1)]
    bandwidth_curve: dict[Threads, tuple[BandwidthPoint, ...]] = {}
    launch_overhead_s: dict[Literal["call", "parallel_region"], Annotated[float, Field(ge=0, le=3600)]] = {}
    sources: Annotated[dict[str, str], Field(min_length=1)]
    fingerprint: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> HardwareProfile:
        sizes = [level.size_bytes for level in self.levels]
        known = [size for size in sizes if size is not None]
        if sizes[-1] is not None or len(known) != len(sizes) - 1:
            raise ValueError("exactly the last memory level must have size_bytes null")
        if any(near >= far for near, far in pairwise(known)):
            raise ValueError("memory levels must come nearest first, each larger than the one before")
        if not self.levels[-1].read_bytes_per_s:
            raise ValueError("the last memory level needs read_bytes_per_s")
        tables = [table for unit in self.peak_flops_per_s.values() for table in unit.values()]
        if not tables or not all(tables):
            raise ValueError("peak_flops_per_s must hold at least one number for each unit and dtype")
        for level in self.levels:
            tables += [level.read_bytes_per_s, level.copy_bytes_per_s]
            tables += [level.add_bytes_per_s, level.write_bytes_per_s]
        if any("1" in table and "all" in table and table["all"] < table["1"] for table in tables):
            raise ValueError("a rate for all threads is below the one for 1 thread")
        for threads, curve in self.bandwidth_curve.items():
            if any(near.working_set_bytes >= far.working_set_bytes for near, far in pairwise(curve)):
                raise ValueError(f"bandwidth_curve {threads!r} must be sorted by working_set_bytes")
        return self

    def peak_flops(self, dtype: str, unit: str = "fma", threads: int = 1) -> float:
        """Peak FLOP/s of ``threads`` threads; a multiply-add counts as two.

        Raises:
            InvalidOption: the profile has no figure for this unit and dtype, or ``threads`` < 1.
        """
        _check_threads(threads)
        value = rate_for(self.peak_flops_per_s.get(unit, {}).get(dtype, {}), threads, self.cores)
        if value is None:
            known = ", ".join(f"{u}/{d}" for u, dtypes in self.peak_flops_per_s.items() for d in dtypes)
            raise InvalidOption(f"profile {self.name!r} has no peak for {unit}/{dtype}; it has {known}")
        return value

    def resident_bytes(self, level: int, threads: int = 1) -> float:
        """Bytes that levels 0 to ``level`` hold together: victim caches do not duplicate nearer ones."""
        return sum(near.capacity_bytes(threads) for near in self.levels[: level + 1])

    def level_for(self, working_set_bytes: float, threads: int = 1) -> MemoryLevel:
        """The nearest level in which a working set stays resident from one call to the next."""
        return next(
            level
            for index, level in enumerate(self.levels)
            if working_set_bytes <= self.resident_bytes(index, threads)
        )

    def measured_streams(self, working_set_bytes: float, threads: int = 1) -> Streams | None:
        """Bandwidths at a working set, from the calibrated sweep; None if the profile has none."""
        one, whole = self.bandwidth_curve.get("1", ()), self.bandwidth_curve.get("all", ())
        if threads == 1 or not whole:
            return _lookup(one, working_set_bytes)
        most = _lookup(whole, working_set_bytes)
        share = _lookup(one, working_set_bytes / threads)
        if threads >= self.cores or share is None or most is None:
            return most
        return share.scaled_up_to(threads, limit=most)

    def features(self) -> list[tuple[str, float]]:
        """The profile as (name, log10 value) pairs for observations, in the order of FEATURE_NAMES.

        Values that a profile does not have are 0, which no real value is.
        """
        fma = self.peak_flops_per_s.get("fma", {})
        values: list[float | None] = [float(self.cores), float(self.vector_bits)]
        for dtype in ("f32", "f64"):
            values += [fma.get(dtype, {}).get(threads) for threads in _THREADS]
        by_name = {level.name: level for level in self.levels}
        for name in _LEVELS:
            level = by_name.get(name)
            values.append(None if level is None or level.size_bytes is None else float(level.size_bytes))
            for threads in _THREADS:
                values.append(None if level is None else level.read_bytes_per_s.get(threads))
                values.append(None if level is None else level.copy_bytes_per_s.get(threads))
        values += [self.launch_overhead_s.get("call"), self.launch_overhead_s.get("parallel_region")]
        return [(name, math.log10(v) if v else 0.0) for name, v in zip(FEATURE_NAMES, values, strict=True)]


_THREADS: tuple[Threads, ...] = ("1", "all")
_LEVELS: tuple[Literal["L1", "L2", "L3", "DRAM"], ...] = ("L1", "L2", "L3", "DRAM")

FEATURE_NAMES: tuple[str, ...] = (
    "log10_cores",
    "log10_vector_bits",
    *(f"log10_peak_{dtype}_flops_per_s_{threads}" for dtype in ("f32", "f64") for threads in _THREADS),
    *(
        f"log10_{name}_{figure}"
        for name in _LEVELS
        for figure in (
            "size_bytes",
            "read_bytes_per_s_1",
            "copy_bytes_per_s_1",
            "read_bytes_per_s_all",
            "copy_bytes_per_s_all",
        )
    ),
    "log10_call_s",
    "log10_parallel_region_s",
)
"""Names of ``HardwareProfile.features()``, in order."""


def _check_threads(threads: int) -> None:
    if threads < 1:
        raise InvalidOption(f"threads is {threads}; expected at least 1")


def _lookup(curve: tuple[BandwidthPoint, ...], working_set_bytes: float) -> Streams | None:
    """The last point at or below the working set: the faster side, so that a bound stays a bound."""
    if not curve:
        return None
    reached = [point for point in curve if point.working_set_bytes <= working_set_bytes]
    return (reached[-1] if reached else curve[0]).streams


def _describe(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the profile"
    return f"{where}: {first['msg']}"


def _read(path: Path) -> HardwareProfile:
    try:
        return HardwareProfile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidProfile(f"cannot read profile {path}: {error.strerror}; check the path") from None
    except ValidationError as error:
        raise InvalidProfile(
            f"{path} is not a valid hardware profile ({_describe(error)}); correct it or calibrate again"
        ) from None


def published_profiles() -> tuple[str, ...]:
    """Names of the profiles that ship with SOLGym, sorted."""
    return tuple(sorted(path.stem for path in PUBLISHED_FOLDER.glob("*.json")))


def load_profile(path_or_name: str | os.PathLike[str]) -> HardwareProfile:
    """Load a published profile by name (``h100-sxm``) or any profile from a JSON file.

    Raises:
        InvalidProfile: there is no such name or file, or its content is damaged or contradictory.
    """
    if isinstance(path_or_name, str) and path_or_name in published_profiles():
        return _read(PUBLISHED_FOLDER / f"{path_or_name}.json")
    path = Path(path_or_name)
    if not path.is_file():
        names = ", ".join(published_profiles())
        raise InvalidProfile(f"{str(path)!r} is neither a profile file nor a published profile ({names})")
    return _read(path)


def save_profile(profile: HardwareProfile, path: str | os.PathLike[str]) -> None:
    """Write a profile as JSON, atomically: readers see the old file or the new one, never a part."""
    write_atomically(Path(path), json.dumps(profile.model_dump(mode="json"), indent=1) + "\n")


def profile_path(threads: int | None = None) -> Path:
    """Where this machine's calibrated profile is kept; ``SOLGYM_CACHE_DIR`` overrides the folder."""
    from solgym.hardware import profile_store

    return profile_store.profile_path(threads)


def host_profile(
    threads: int | None = None, refresh: bool = False, progress: Progress | None = None
) -> HardwareProfile:
    """This machine's calibrated profile: from the cache, or calibrated now (under 20 s).

    Args:
        threads: what "all threads" means; all usable physical cores by default.
        refresh: calibrate again even if there is a valid profile, and keep the better of every figure:
            what was once reached can be reached. Delete ``profile_path()`` to start over.
        progress: told how a calibration gets on; not called if the cache has a profile.

    A cached profile counts only if device, toolchain and package version are those of today; a damaged
    file is replaced with a warning. Processes that ask at once calibrate once.
    """
    from solgym.hardware import profile_store

    return profile_store.host_profile(threads, refresh, progress)
