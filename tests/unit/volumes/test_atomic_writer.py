"""The layout atomic updates leave, what they never do, and that any interruption can be repaired."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from pykubelet.volumes import atomic_writer
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.plugin import FileContent

NOW = 1_706_702_400.0  # 2024-01-31 12:00:00 UTC


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def write(folder: Path, gid: int | None = None, mode: int = 0o644, **files: str) -> bool:
    contents = {name.replace("__", "/"): FileContent(data=text.encode(), mode=mode) for name, text in files.items()}
    return atomic_writer.write_volume(folder, contents, gid=gid, now=NOW, remove=remove)


def modes(folder: Path) -> dict[str, int]:
    top = folder / os.readlink(folder / "..data")
    return {str(p.relative_to(top)): p.stat().st_mode & 0o7777 for p in top.rglob("*")}


def test_layout(tmp_path: Path) -> None:
    assert write(tmp_path, a="1", dir__b="2")
    target = os.readlink(tmp_path / "..data")
    assert re.fullmatch(r"\.\.2024_01_31_12_00_00\.\d+", target)
    assert (tmp_path / target).stat().st_mode & 0o7777 == 0o755
    assert sorted(os.listdir(tmp_path)) == sorted(["..data", target, "a", "dir"])
    assert os.readlink(tmp_path / "a") == "..data/a" and os.readlink(tmp_path / "dir") == "..data/dir"
    assert (tmp_path / "dir/b").read_text() == "2"
    assert modes(tmp_path) == {"a": 0o644, "dir": 0o755, "dir/b": 0o644}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_modes_do_not_hang_on_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write(tmp_path, a="1", d__b="2", mode=0o666)
    finally:
        os.umask(before)
    assert modes(tmp_path) == {"a": 0o666, "d": 0o755, "d/b": 0o666}


def test_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    write(tmp_path, a="1")
    target = os.readlink(tmp_path / "..data")
    assert not write(tmp_path, a="1")
    assert os.readlink(tmp_path / "..data") == target
    (tmp_path / "a").unlink()
    assert not write(tmp_path, a="1")
    assert (tmp_path / "a").read_text() == "1", "a lost link is made again"


@pytest.mark.parametrize(
    "change", [{"a": "2", "b": "x"}, {"a": "1"}, {"a": "1", "b": "x", "c": ""}, {"a": "1", "b": "y"}]
)
def test_updates_leave_only_the_new(tmp_path: Path, change: dict[str, str]) -> None:
    write(tmp_path, a="1", b="x")
    old = os.readlink(tmp_path / "..data")
    assert write(tmp_path, **change)
    new = os.readlink(tmp_path / "..data")
    assert new != old
    assert sorted(os.listdir(tmp_path)) == sorted(["..data", new, *change])
    assert {name: (tmp_path / name).read_text() for name in change} == change


def test_a_changed_mode_is_a_change(tmp_path: Path) -> None:
    write(tmp_path, a="1")
    assert write(tmp_path, a="1", mode=0o400)
    assert modes(tmp_path) == {"a": 0o400}


def test_readers_never_see_a_mixture(tmp_path: Path) -> None:
    """One who opens `..data` once sees one generation, also while the next is being written."""
    write(tmp_path, a="1", b="1")
    generation = os.open(tmp_path / "..data", os.O_RDONLY | os.O_DIRECTORY)
    held = os.open("a", os.O_RDONLY, dir_fd=generation)
    write(tmp_path, a="2", b="2")
    assert os.read(held, 9) == b"1"
    os.close(held)
    os.close(generation)


def test_fs_group(tmp_path: Path) -> None:
    write(tmp_path, gid=os.getgid(), mode=0o400, a="1", d__b="2")
    assert modes(tmp_path) == {"a": 0o440, "d": 0o2755, "d/b": 0o440}


@pytest.mark.parametrize(
    "path, problem",
    [
        ("/etc/passwd", "must be relative"),
        ("", "must be relative"),
        ("a/../../b", "must not contain '..'"),
        ("..hidden", "must not start with '..'"),
        ("x" * 256, "at most 255"),
        ("a/" * 2049, "4096"),
    ],
)
def test_paths_that_could_harm_are_refused(tmp_path: Path, path: str, problem: str) -> None:
    with pytest.raises(VolumeProblem, match=problem):
        atomic_writer.write_volume(
            tmp_path, {path: FileContent(data=b"", mode=0o644)}, gid=None, now=NOW, remove=remove
        )
    assert os.listdir(tmp_path) == []


def test_what_an_interrupted_write_left_is_removed(tmp_path: Path) -> None:
    write(tmp_path, a="1")
    (tmp_path / "..2024_01_31_11_59_59.77").mkdir()
    (tmp_path / "..data_tmp").symlink_to("..2024_01_31_11_59_59.77")
    write(tmp_path, a="2")
    assert sorted(os.listdir(tmp_path)) == sorted(["..data", os.readlink(tmp_path / "..data"), "a"])


def test_a_data_link_that_is_not_ours_is_replaced_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("keep")
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "..data").symlink_to("../outside")
    write(volume, a="1")
    assert (outside / "a").read_text() == "keep" and (volume / "a").read_text() == "1"


def test_a_folder_in_the_way_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(VolumeProblem, match="a cannot be shown"):
        write(tmp_path, a="1")
