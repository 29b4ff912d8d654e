"""Atomic writes: all of a file or nothing, whatever its name, and one sentence where it cannot be."""

import os

import pytest

from sightline import files
from sightline.errors import OutputError
from sightline.files import write_atomically, write_output


def test_a_file_is_written_into_folders_that_are_made_and_replaced(tmp_path):
    path = tmp_path / "a" / "b" / "c.bin"
    write_atomically(path, b"first")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_a_name_may_be_as_long_as_names_can_be(tmp_path):
    path = tmp_path / ("é" * 125 + ".png")  # 254 bytes; a temporary name that held it would be too long
    write_atomically(path, b"x")
    assert path.read_bytes() == b"x"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


def test_a_user_is_told_in_a_sentence(tmp_path):
    assert write_output(str(tmp_path / "a.txt"), b"x") == tmp_path / "a.txt"
    with pytest.raises(OutputError, match=r"^cannot write .*: its folder is a file; choose a folder that can be"):
        write_output(tmp_path / "a.txt" / "b", b"x")


def test_the_temporary_file_of_a_living_process_is_no_orphan(tmp_path):
    own = tmp_path / f".sightline.{files.host_name()}.{os.getpid()}.ab{files.TEMPORARY}"
    own.write_bytes(b"")
    assert not files.is_orphan(own)
    long_ago = own.stat().st_mtime - 2 * files.STALE
    os.utime(own, (long_ago, long_ago))
    assert files.is_orphan(own)
