"""Counting trees that strangers made: links, depth, many files, passes, and folders moved in mid-walk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pykubelet.clients.host.folders import remove_tree
from pykubelet.kit.clock import ThreadDeadline
from pykubelet.volumes import usage as module
from pykubelet.volumes.usage import UsageWalk

MIB = 1 << 20
LONG = 60.0


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tree"
    folder.mkdir()
    yield folder
    remove_tree(folder)  # pytest's own removal does not go so deep


def counted(folder: Path) -> UsageWalk:
    walk = UsageWalk(folder)
    assert walk.advance(ThreadDeadline(LONG))
    return walk


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def dig(folder: Path, depth: int, bottom: Callable[[int], None]) -> None:
    """Folders in folders, deeper than a path can name."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    bottom(here)
    os.close(here)


def big_file(folder: int) -> None:
    file = os.open("big", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    os.posix_fallocate(file, 0, MIB)
    os.close(file)


def test_links_are_counted_once_and_not_followed(tree: Path) -> None:
    (tree / "big").write_bytes(b"x" * MIB)
    alone = counted(tree)
    os.link(tree / "big", tree / "again")
    (tree / "etc").symlink_to("/etc")
    twice = counted(tree)
    assert twice.bytes - alone.bytes < 8192 and twice.inodes == alone.inodes + 1


@pytest.mark.parametrize("depth", [7, 8, 9, 205, 600])
def test_no_depth_hides_data_or_costs_descriptors(tree: Path, depth: int) -> None:
    dig(tree, depth, big_file)
    for number in range(3):  # on the way back every level is still known
        (tree / "d" / f"beside-{number}").mkdir()
        (tree / "d" / f"beside-{number}" / "file").touch()
    before = descriptors()
    walk = UsageWalk(tree)
    most = 0
    while not walk.advance(ThreadDeadline(0)):
        most = max(most, descriptors() - before)
    assert walk.bytes >= MIB and walk.inodes == 1 + depth + 1 + 6
    assert most <= module.MAX_OPEN + 3 and descriptors() == before


def test_a_walk_goes_on_where_it_stopped(tree: Path) -> None:
    for number in range(1500):
        (tree / f"f{number}").touch()
    walk = UsageWalk(tree)
    assert not walk.advance(ThreadDeadline(0))
    passes, so_far = 1, walk.inodes
    assert 0 < so_far < 1500
    while not walk.advance(ThreadDeadline(0)):
        assert walk.inodes > so_far
        passes, so_far = passes + 1, walk.inodes
    assert walk.inodes == 1501 and passes > 3


def test_more_folders_than_are_remembered_at_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLDERS_AT_ONCE", 7)
    for number in range(30):
        (tree / f"d{number}").mkdir()
        (tree / f"d{number}" / "file").touch()
    (tree / "file").touch()
    assert counted(tree).inodes == 1 + 30 + 30 + 1


def test_a_folder_moved_out_of_the_tree_leads_nowhere(tree: Path, tmp_path: Path) -> None:
    dig(tree, 20, lambda folder: [os.mkdir(f"x{n}", dir_fd=folder) for n in range(600)] and None)
    (tree / "d/d/d/beside").mkdir()
    (tmp_path / "outside").mkdir()
    with open(tmp_path / "outside" / "secret", "wb") as secret:
        os.posix_fallocate(secret.fileno(), 0, 64 * MIB)
    before = descriptors()
    walk = UsageWalk(tree)
    while walk.inodes < 100:
        walk.advance(ThreadDeadline(0))
    os.rename(tree / "d/d/d/d/d", tmp_path / "outside/moved")
    assert walk.advance(ThreadDeadline(LONG))
    assert walk.bytes < 64 * MIB and descriptors() == before
    assert walk.inodes > 600, "what was read before is counted"
    remove_tree(tmp_path / "outside")


def test_a_walk_that_is_given_up_leaves_nothing_open(tree: Path) -> None:
    dig(tree, 30, lambda folder: [os.mkdir(f"x{n}", dir_fd=folder) for n in range(600)] and None)
    before = descriptors()
    walk = UsageWalk(tree)
    assert not walk.advance(ThreadDeadline(0))
    walk.close()
    assert descriptors() == before
