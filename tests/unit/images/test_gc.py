"""Image garbage collection on the fake runtime: thresholds, ages, use, failures told once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from pykubelet.api.types import ImageVolumeSource, Volume
from pykubelet.images.gc import DiskUsage, ImageGc, ImageGcFailed, ImageGcPolicy, wanted_images
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import CriError, RuntimeDown
from pykubelet.model.runtime_status import FilesystemUsage, ImageFilesystems
from pykubelet.wire import cri_pb2
from tests.builders import a_context, a_pod
from tests.fakes.fake_cri import FakeCri
from tests.fakes.recorded_events import RecordedEvents

CAPACITY = 1000


class Records:
    def __init__(self) -> None:
        self.pruned: list[tuple[set[str], float]] = []

    async def prune(self, image_refs: Iterable[str], older_than: float) -> None:
        self.pruned.append((set(image_refs), older_than))


class Runtime(FakeCri):
    no_filesystems = False

    async def image_fs_info(self) -> ImageFilesystems:
        return ImageFilesystems() if self.no_filesystems else await super().image_fs_info()


class ImageGcFixture:
    def __init__(self, **policy: Any) -> None:
        self.clock = LoopClock()
        self.cri = Runtime(self.clock)
        self.events = RecordedEvents()
        self.records = Records()
        self.metrics = Registry()
        self.other_bytes = 0
        self.also_used: set[str] = set()
        self.disk_problem: OSError | None = None
        self.capacity = CAPACITY
        self.gc = ImageGc(
            a_context(clock=self.clock, events=self.events, metrics=self.metrics),
            self.cri,
            policy=ImageGcPolicy(**policy),
            records=self.records,
            also_used=lambda: self.also_used,
            disk=self.disk,
        )

    def disk(self, path: str) -> DiskUsage:
        assert path == "/var/lib/containerd"
        if self.disk_problem is not None:
            raise self.disk_problem
        used = self.other_bytes + sum(image.size_bytes for image in self.cri.images.values())
        return DiskUsage(capacity_bytes=self.capacity, available_bytes=CAPACITY - used)

    async def image(self, name: str, size: int, *, pinned: bool = False) -> str:
        """An image that came a second after the others."""
        await self.clock.sleep(1)
        image = self.cri.add_image(name, size_bytes=size, pinned=pinned)
        await self.gc._detect()
        return image.id

    async def container(self, name: str, image: str) -> str:
        meta = cri_pb2.PodSandboxMetadata(name=name, namespace="default", uid=name)
        sandbox_config = cri_pb2.PodSandboxConfig(metadata=meta)
        sandbox = await self.cri.run_pod_sandbox(sandbox_config)
        config = cri_pb2.ContainerConfig(
            metadata=cri_pb2.ContainerMetadata(name="app"), image=cri_pb2.ImageSpec(image=image)
        )
        return await self.cri.create_container(sandbox, config, sandbox_config)

    @property
    def removed(self) -> list[str]:
        return [call.name for call in self.cri.called("remove_image")]


async def test_nothing_happens_below_the_high_threshold() -> None:
    bench = ImageGcFixture()
    await bench.image("r.io/a:1", 840)
    await bench.clock.sleep(1000)
    assert await bench.gc.collect() == 0
    assert bench.removed == []


async def test_the_least_recently_used_go_until_the_low_threshold() -> None:
    bench = ImageGcFixture()
    used = await bench.image("r.io/used:1", 300)
    container = await bench.container("p", "r.io/used:1")
    once = await bench.image("r.io/once:1", 100)
    gone = await bench.container("q", "r.io/once:1")
    await bench.gc._detect()
    first = await bench.image("r.io/first:1", 50)
    second = await bench.image("r.io/second:1", 60)
    await bench.image("r.io/third:1", 390)
    await bench.cri.remove_container(gone)
    await bench.clock.sleep(1000)
    assert await bench.gc.collect() == 110  # 900 used, 800 wanted
    assert bench.removed == [first, second]
    bench.other_bytes = 150
    await bench.gc.collect()
    assert once not in bench.removed and len(bench.removed) == 3
    assert bench.records.pruned[-1][0] == {used, once}
    await bench.cri.remove_container(container)
    await bench.clock.sleep(1)
    assert await bench.gc.remove_unused() == 400
    assert bench.cri.images == {}
    assert 'kubelet_image_garbage_collected_total{reason="space"} 5' in bench.metrics.expose()


async def test_young_pinned_and_wanted_images_stay() -> None:
    bench = ImageGcFixture()
    await bench.image("r.io/pinned:1", 100, pinned=True)
    await bench.image("registry.k8s.io/pause:3.9", 100)
    await bench.image("docker.io/library/busybox:1", 100)
    volume = Volume(name="v", image=ImageVolumeSource(reference="r.io/volume:1"))
    bench.also_used = wanted_images([a_pod(volumes=[volume])])
    await bench.image("r.io/volume:1", 100)
    await bench.clock.sleep(1000)
    await bench.image("r.io/young:1", 550)
    await bench.clock.sleep(60)
    with pytest.raises(ImageGcFailed):
        await bench.gc.collect()
    assert bench.removed == []
    await bench.clock.sleep(60)
    await bench.gc.collect()
    assert len(bench.removed) == 1


def test_what_pods_want() -> None:
    names = {"busybox:1", "docker.io/library/busybox:1", "r.io/v", "r.io/v:latest"}
    volumes = [Volume(name="v", image=ImageVolumeSource(reference="r.io/v")), Volume(name="w")]
    assert wanted_images([a_pod(volumes=volumes)]) == names


async def test_old_images_go_whatever_the_disk_says() -> None:
    bench = ImageGcFixture(max_age=3600.0)
    bench.gc._started = bench.clock.now()
    await bench.image("r.io/a:1", 10)
    await bench.clock.sleep(3500)
    await bench.image("r.io/b:1", 10)
    await bench.clock.sleep(200)
    assert await bench.gc.collect() == 10
    assert [image.tags for image in bench.cri.images.values()] == [["r.io/b:1"]]
    assert 'reason="age"} 1' in bench.metrics.expose()


async def test_when_nothing_can_be_freed_it_says_why_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = ImageGcFixture()
    await bench.image("r.io/a:1", 300)
    await bench.container("p", "r.io/a:1")
    bench.other_bytes = 650
    async with running(bench.gc):
        await bench.clock.sleep(1600)
        text = (
            "Insufficient free disk space on the node's image filesystem (95% of 1000 B used). "
            "Failed to free sufficient space by deleting unused images (freed 0 bytes). "
            "Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
        )
        assert bench.events.node == [("FreeDiskSpaceFailed", text), ("ImageGCFailed", text)]
        [why] = [r for r in caplog.records if r.message == "images cannot free enough disk space"]
        assert why.__dict__["left"] == "1 image (300 B) in use"
        bench.other_bytes = 0
        await bench.clock.sleep(300)
        bench.other_bytes = 650
        await bench.clock.sleep(300)
        assert [reason for reason, _ in bench.events.node] == [
            "FreeDiskSpaceFailed",
            "ImageGCFailed",
            "FreeDiskSpaceFailed",
        ]


async def test_an_image_that_cannot_be_removed_does_not_stop_the_others() -> None:
    bench = ImageGcFixture()
    await bench.image("r.io/stuck:1", 300)
    await bench.image("r.io/a:1", 600)
    await bench.clock.sleep(1000)
    bench.cri.fail_next("remove_image", CriError("read-only file system"))
    assert await bench.gc.collect() == 600
    bench.other_bytes = 600
    bench.cri.fail_next("remove_image", CriError("read-only file system"))
    with pytest.raises(ImageGcFailed):
        await bench.gc.collect()
    bench.cri.fail_next("remove_image", CriError("read-only file system"))
    with pytest.raises(CriError, match="unused images cannot be removed: read-only file system"):
        await bench.gc.remove_unused()


@pytest.mark.parametrize(
    ("break_it", "said", "event"),
    [
        ("capacity", "invalid capacity 0 on image filesystem", "InvalidDiskCapacity"),
        ("nothing", "imageFs information is unavailable", ""),
        ("statfs", "image filesystem /var/lib/containerd: No such file or directory", ""),
        ("runtime", "gone", ""),
    ],
)
async def test_what_can_be_wrong_with_the_disk(break_it: str, said: str, event: str) -> None:
    bench = ImageGcFixture()
    if break_it == "capacity":
        bench.capacity = 0
    elif break_it == "nothing":
        bench.cri.no_filesystems = True
    elif break_it == "statfs":
        bench.disk_problem = OSError(2, "No such file or directory")
    else:
        bench.cri.fail_next("list_images", RuntimeDown("gone"))
    with pytest.raises((ImageGcFailed, CriError), match=said):
        await bench.gc.collect()
    assert [reason for reason, _ in bench.events.node] == ([event] if event else [])


async def test_one_failed_pass_is_no_event_and_the_service_goes_on() -> None:
    bench = ImageGcFixture()
    bench.cri.fail_next("list_images", RuntimeDown("gone"))
    async with running(bench.gc):
        await bench.clock.sleep(700)
    assert bench.events.node == []
    assert len(bench.cri.called("list_images")) == 3


async def test_switched_off_it_only_watches() -> None:
    bench = ImageGcFixture(high_percent=100)
    bench.cri.image_filesystem = FilesystemUsage(mountpoint="/unused")
    async with running(bench.gc):
        await bench.clock.sleep(700)
    assert bench.cri.called("image_fs_info") == []
    assert len(bench.cri.called("list_images")) == 3
