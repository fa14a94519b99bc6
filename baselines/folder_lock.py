"""A lock on the folder of a run, so that two runs never write to one."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from solgym.errors import SolgymError

__all__ = ["lock_folder"]


def lock_folder(folder: Path, name: str, failure: type[SolgymError]) -> int:
    """Take the lock of a folder, which is made if missing.

    Args:
        folder: the folder.
        name: of the lock's file in it.
        failure: what to raise.

    Returns:
        A descriptor; closing it releases the lock. The kernel does when the process ends, however it ends.

    Raises:
        SolgymError: as ``failure``: the folder cannot be written, or another process has the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise failure(f"cannot write to {folder}: {error.strerror}; give another --out") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise failure(
            f"another run is writing to {folder}; wait for it to end, or give another --out"
        ) from error
    return lock
