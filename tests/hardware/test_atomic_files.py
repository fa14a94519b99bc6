"""Files of results are written whole or not at all, and nothing but them is replaced."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from solgym.hardware.atomic_files import write_all_atomically, write_atomically


def test_folders_are_made_and_the_file_has_the_mode_of_any_other(tmp_path):
    write_atomically(tmp_path / "a" / "b" / "new", "text\n")
    (tmp_path / "usual").write_text("")
    assert (tmp_path / "a" / "b" / "new").read_text() == "text\n"
    assert (tmp_path / "a" / "b" / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path):
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    """As root, replacing /dev/stdout would take it away from every program of the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_atomically(tmp_path / "link", "text")
    reader.join(timeout=30)
    assert read == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert (tmp_path / "link").is_symlink()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_of_several_files_none_is_written_if_one_finds_no_room(tmp_path):
    first, second = tmp_path / "new" / "folder" / "first", tmp_path / "second"
    second.write_text("old")
    with pytest.raises(OSError, match="No space left") as raised:
        write_all_atomically({Path("/dev/full"): "text", first: "text", second: "text"})
    assert raised.value.filename == "/dev/full"
    assert [path.name for path in tmp_path.iterdir()] == ["second"]
    assert second.read_text() == "old"


@pytest.mark.parametrize(("place", "number"), [("folder", errno.EISDIR), ("file/below", errno.ENOTDIR)])
def test_an_error_names_what_was_asked_for(place, number, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError) as raised:  # noqa: PT011 (its number is what matters)
        write_atomically(tmp_path / place, "text")
    assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path / place))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
