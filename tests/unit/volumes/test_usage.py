"""Usage of volumes: walks of big trees in passes, links, depth, folders moved in mid-walk, and limits meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pykubelet.clients.host.folders import remove_tree
from pykubelet.eviction.local_storage import breach
from pykubelet.kit.clock import ThreadDeadline
from pykubelet.volumes import usage
from pykubelet.volumes.usage import UsageWalk
from tests.unit.volumes.builders import VolumeNode, empty_dir, pod_with

MIB = 1 << 20
LONG = 60.0


def over(pod: usage.Pod, found: object) -> bool:
    return breach(pod, found, None, layers_apart=False) is not None  # type: ignore[arg-type]


async def test_a_volume_of_many_files_is_counted_over_several_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "WALK_SECONDS", 0.0)
    pod = pod_with(empty_dir("data", size_limit="2Mi"))
    node = VolumeNode(tmp_path)
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        folder = Path(manager.path_of(pod, "data") or "")
        for number in range(1000):
            (folder / f"f{number}").write_bytes(b"x" * 4096)
        figures = [(await manager.usage(pod))[0]]
        while not figures[-1].complete:
            figures.append((await manager.usage(pod))[0])
        assert len(figures) > 3 and figures[-1].inodes_used == 1001
        sizes = [each.used_bytes for each in figures]
        assert sizes == sorted(sizes), "a lower bound that only grows"
        early = [each for each in figures if not each.complete and over(pod, [each])]
        assert early, "over its limit is over its limit, whatever else there is"
        # The next count begins anew; until it is through, the last whole one stands.
        again = (await manager.usage(pod))[0]
        assert not again.complete and again.used_bytes == figures[-1].used_bytes


async def test_data_far_down_counts_against_the_limit(tmp_path: Path) -> None:
    pod = pod_with(empty_dir("data", size_limit="512Ki"))
    node = VolumeNode(tmp_path)
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        assert not over(pod, await manager.usage(pod))
        dig(Path(manager.path_of(pod, "data") or ""), 205, big_file)
        assert over(pod, await manager.usage(pod))


async def test_a_walk_under_way_ends_with_its_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "WALK_SECONDS", 0.0)
    pod = pod_with(empty_dir("data"))
    node = VolumeNode(tmp_path)
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        folder = Path(manager.path_of(pod, "data") or "")
        for number in range(1000):
            (folder / f"f{number}").touch()
        assert not (await manager.usage(pod))[0].complete
        assert opened(folder)
        await manager.wait_unmounted(pod)
        assert not opened(folder), "without another pod to be measured, too"


def opened(folder: Path) -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if _target(name).startswith(str(folder))]


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


# --- the walk ---------------------------------------------------------------------------------------


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
    assert most <= usage.MAX_OPEN + 3 and descriptors() == before


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
    monkeypatch.setattr(usage, "FOLDERS_AT_ONCE", 7)
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
