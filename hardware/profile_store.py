"""The user's cache folder of calibrated profiles: found, validated, locked, written atomically.

A profile is used only under the fingerprint it was made with. A damaged or outdated file is never an
error: the machine is calibrated again. Processes that need a profile at the same time wait for the one
that calibrates first.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs

from solgym.errors import InvalidProfile
from solgym.hardware.fingerprint import calibration_fingerprint
from solgym.hardware.profile import HardwareProfile, Progress, load_profile, save_profile

__all__ = ["best_of", "cache_folder", "host_profile", "profile_path"]

_loaded: dict[tuple[Path, int, int], HardwareProfile] = {}
_unkept: dict[tuple[Path, str], HardwareProfile] = {}
"""Calibrated by this process, which could not write them."""


def cache_folder() -> Path:
    """The folder for everything that SOLGym caches; ``SOLGYM_CACHE_DIR`` overrides it."""
    override = os.environ.get("SOLGYM_CACHE_DIR")
    return Path(override) if override else Path(platformdirs.user_cache_dir("solgym"))


def profile_path(threads: int | None = None) -> Path:
    """Where this machine's calibrated profile is kept."""
    digest = hashlib.sha256(calibration_fingerprint(threads).encode()).hexdigest()[:16]
    return cache_folder() / "profiles" / f"cpu-{digest}.json"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; without ``fcntl`` (Windows) there is none to hold.

    That is safe too: each process then calibrates for itself and the last file written stays.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cached(path: Path, fingerprint: str) -> HardwareProfile | None:
    """The stored profile if it is valid and of this device, toolchain and version; else None."""
    try:
        status = path.stat()
    except OSError:
        return None
    key = (path, status.st_mtime_ns, status.st_ino)
    if key not in _loaded:
        try:
            profile = load_profile(path)
        except InvalidProfile as error:
            warnings.warn(f"{error}; calibrating again", RuntimeWarning, stacklevel=4)
            return None
        if profile.fingerprint != fingerprint:
            return None
        _loaded[key] = profile
    return _loaded[key]


def best_of(new: HardwareProfile, old: HardwareProfile) -> HardwareProfile:
    """The better of every figure of two calibrations of one device; ``new`` where they do not match.

    A calibration on a busy machine finds less than there is. Calibrating again can therefore only bring a
    bound closer to the truth, never undo what was seen before.
    """
    shape_new, shape_old = (
        [(level.name, level.size_bytes) for level in profile.levels]
        + [(t, p.working_set_bytes) for t, curve in profile.bandwidth_curve.items() for p in curve]
        for profile in (new, old)
    )
    if new.fingerprint != old.fingerprint or shape_new != shape_old:
        return new
    merged = _better(new.model_dump(), old.model_dump())
    overheads = {
        key: min(value, old.launch_overhead_s.get(key, value)) for key, value in new.launch_overhead_s.items()
    }
    return HardwareProfile.model_validate({**merged, "launch_overhead_s": overheads})


def _better(new: Any, old: Any) -> Any:
    """The larger of each pair of rates in two equally shaped trees; the new one of anything else."""
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: _better(value, old.get(key, value)) for key, value in new.items()}
    if isinstance(new, list | tuple) and isinstance(old, list | tuple) and len(new) == len(old):
        return [_better(*pair) for pair in zip(new, old, strict=True)]
    return max(new, old) if isinstance(new, float) and isinstance(old, float) else new


def _calibrate(threads: int | None, progress: Progress | None) -> HardwareProfile:
    # Imported here: calibration compiles code and is not needed when the cache has a profile.
    from solgym.hardware.calibration import calibrate

    return calibrate(threads=threads, progress=progress)


def host_profile(
    threads: int | None = None, refresh: bool = False, progress: Progress | None = None
) -> HardwareProfile:
    """See ``solgym.hardware.profile.host_profile``."""
    path, fingerprint = profile_path(threads), calibration_fingerprint(threads)
    profile = None if refresh else _cached(path, fingerprint) or _unkept.get((path, fingerprint))
    if profile is not None:
        return profile
    try:
        with _locked(path.with_suffix(".lock")):
            # Another process may have finished while this one waited for the lock.
            earlier = _cached(path, fingerprint)
            profile = None if refresh else earlier
            if profile is None:
                profile = _calibrate(threads, progress)
                if earlier is not None:
                    profile = best_of(profile, earlier)
                save_profile(profile, path)
    except OSError as error:
        warnings.warn(
            f"cannot keep the calibrated profile in {path.parent} ({error.strerror}); "
            "set SOLGYM_CACHE_DIR to a folder that can be written",
            RuntimeWarning,
            stacklevel=3,
        )
        if profile is None:
            profile = _calibrate(threads, progress)
        _unkept[path, fingerprint] = profile
    return profile
