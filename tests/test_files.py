"""Files appear whole, private where they must be, and a failed write leaves the folder as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsynth.files import private_folder, write_private, write_whole


@pytest.fixture
def permissive() -> Iterator[None]:
    """A process whose umask takes nothing away."""
    previous = os.umask(0)
    try:
        yield
    finally:
        os.umask(previous)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("permissive")
def test_private_files_are_the_owners_alone_whatever_was_there_before(tmp_path):
    folder = private_folder(tmp_path / "a" / "b")
    assert mode(folder) == 0o700
    path = folder / "secret"
    path.write_text("old")
    assert mode(path) == 0o666
    write_private(path, b"\x00new")
    assert path.read_bytes() == b"\x00new"
    assert mode(path) == 0o600
    assert private_folder(folder) == folder
    write_whole(folder / "public", "é")
    assert (folder / "public").read_bytes() == "é".encode()
    assert mode(folder / "public") == 0o666
    assert sorted(path.name for path in folder.iterdir()) == ["public", "secret"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "text")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "nowhere" / "file", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "other").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    write_private(tmp_path / "link", "secret")
    assert (tmp_path / "other").read_text() == "kept"
    assert not (tmp_path / "link").is_symlink()


def test_folders_above_a_private_one_are_private_too(tmp_path, permissive):
    private_folder(tmp_path / "state" / "runs" / "first")
    for made in ("state", "state/runs", "state/runs/first"):
        assert mode(tmp_path / made) == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    private_folder(tmp_path / "open" / "kept")
    assert mode(tmp_path / "open") == 0o755  # what was there is left as it was
