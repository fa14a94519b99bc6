"""Files that are written whole or not at all, and are on disk then: what a command leaves behind is never a
half of it, not after a power cut either.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

__all__ = ["write_all_atomically", "write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part of it.

    A device or a pipe such as ``/dev/stdout`` is written to and stays what it is; a symbolic link keeps
    leading to its file, and a file keeps its mode. Folders are made as needed.

    Raises:
        OSError: it cannot be written; its ``filename`` is ``path``.
    """
    write_all_atomically({path: content})


def write_all_atomically(files: Mapping[Path, str | bytes]) -> None:
    """Write several files, as ``write_atomically`` does, or none if one of them finds no room.

    Raises:
        OSError: one cannot be written; its ``filename`` says which. Folders made for it are gone again.
    """
    with ExitStack() as undo:
        ready = [(path, _written_beside(path, _as_bytes(content), undo)) for path, content in files.items()]
        for path, temporary in sorted(ready, key=lambda item: item[1] is not None):  # devices may refuse
            with _named(path):
                if temporary is None:
                    path.write_bytes(_as_bytes(files[path]))
                else:
                    place = path.resolve()
                    os.replace(temporary, place)
                    _sync(place.parent)
        undo.pop_all()


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _written_beside(path: Path, content: bytes, undo: ExitStack) -> Path | None:
    """A temporary file with the content, beside where it belongs; None if it is only written in place."""
    with _named(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            return None
        place = path.resolve()  # where a symbolic link leads
        if place.exists() and not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        _make_folder(place.parent, undo)
        temporary = place.with_name(f".{place.name[:100]}.{secrets.token_hex(6)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        undo.callback(temporary.unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if place.exists():
            os.chmod(temporary, stat.S_IMODE(place.stat().st_mode))
        return temporary


def _sync(folder: Path) -> None:
    """Let the names in a folder be on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path, undo: ExitStack) -> None:
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        with suppress(FileExistsError):  # another process made it at the same time
            missing.mkdir()
            undo.callback(_remove_if_empty, missing)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let errors name the file that was asked for, not a temporary one or none."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
