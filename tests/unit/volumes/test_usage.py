"""What a volume holds that is too big for one look: lower bounds first, then the whole, and limits hold meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.eviction.local_storage import breach
from pykubelet.volumes import usage
from tests.unit.volumes.builders import VolumeNode, empty_dir, pod_with
from tests.unit.volumes.test_walk import big_file, dig

MIB = 1 << 20


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
    pod, other = pod_with(empty_dir("data")), pod_with(empty_dir("data"), name="other")
    node = VolumeNode(tmp_path)
    async with node.running() as manager:
        for each in (pod, other):
            await manager.wait_mounted(each)
        folder = Path(manager.path_of(pod, "data") or "")
        for number in range(1000):
            (folder / f"f{number}").touch()
        assert not (await manager.usage(pod))[0].complete
        assert opened(folder)
        await manager.wait_unmounted(pod)
        await manager.usage(other)
        assert not opened(folder)


def opened(folder: Path) -> list[str]:
    return [name for name in os.listdir("/proc/self/fd") if _target(name).startswith(str(folder))]


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""
