"""Removing images that nobody needs: when the disk is filling up, when they are too old, or when eviction asks.

Covers: noticing images and their use, the regular pass every five minutes, events, and telling the records of pulls
what is gone. When not enough can be freed, the reason is told once, until a pass succeeds again.
Does not cover: the choice (gc_plan.py), dead containers (runtime/gc.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from pykubelet.api.types import Pod
from pykubelet.images.gc_plan import (
    DiskUsage,
    ImageGcPolicy,
    SeenImage,
    bytes_to_free,
    explain,
    looked,
    old_enough,
    readable_size,
    removable,
    too_old,
    why_they_stay,
)
from pykubelet.images.reference import full_name
from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import periodic
from pykubelet.model.errors import CriError, PykubeletError
from pykubelet.model.events import EventSink
from pykubelet.model.pod import all_containers
from pykubelet.model.reasons import WARNING
from pykubelet.model.runtime_status import ContainerRecord, Image, ImageFilesystems

logger = logging.getLogger(__name__)

PERIOD: Final = 300.0
DISK_WITHIN: Final = 30.0


class ImageRuntime(Protocol):
    async def list_images(self) -> Sequence[Image]: ...

    async def list_containers(self) -> Sequence[ContainerRecord]: ...

    async def remove_image(self, image: str, /) -> None: ...

    async def image_fs_info(self) -> ImageFilesystems: ...


class Statfs(Protocol):
    def __call__(self, path: str, /) -> DiskUsage:
        """How full the filesystem of a path is. Blocks; raises OSError."""
        ...


class PulledRecords(Protocol):
    async def prune(self, image_refs: Iterable[str], older_than: float) -> None: ...


class ImageGcFailed(PykubeletError):
    """A pass did not reach its goal; the text is what the node's event says."""


def statfs(path: str) -> DiskUsage:
    found = os.statvfs(path)
    return DiskUsage(capacity_bytes=found.f_blocks * found.f_frsize, available_bytes=found.f_bavail * found.f_frsize)


def wanted_images(pods: Iterable[Pod]) -> set[str]:
    """Images that pods name, for containers to come and as volumes: to remove them would mean to pull them again."""
    found: set[str] = set()
    for pod in pods:
        found.update(container.image or "" for _, container in all_containers(pod))
        found.update(volume.image.reference or "" for volume in pod.spec.volumes if volume.image is not None)
    return found | {full_name(image) for image in found}


class ImageGc:
    """A service; `remove_unused` is for eviction."""

    name = "image-gc"

    def __init__(
        self,
        *,
        cri: ImageRuntime,
        policy: ImageGcPolicy,
        events: EventSink,
        clock: Clock,
        metrics: Registry,
        records: PulledRecords | None = None,
        also_used: Callable[[], Iterable[str]] = tuple,
        disk: Statfs = statfs,
    ) -> None:
        self._cri = cri
        self._policy = policy
        self._events = events
        self._clock = clock
        self._records = records
        self._also_used = also_used
        self._disk = disk
        self._known: dict[str, SeenImage] = {}
        self._started: float | None = None
        self._failures = 0
        self._told: set[str] = set()
        self._lock = asyncio.Lock()  # one pass at a time: eviction may ask in the middle of the regular one
        self._removed = metrics.counter(
            "kubelet_image_garbage_collected_total", "Images removed to free disk space or for their age.", ("reason",)
        )

    async def run(self) -> None:
        self._started = self._clock.now()
        await periodic(self._clock, PERIOD, self._regular_pass)

    async def collect(self) -> int:
        """One pass by age and by thresholds; bytes freed. Raises ImageGcFailed, CriError."""
        async with self._lock:
            began = await self._look()
            freed = await self._remove_old(began)
            usage = await self._usage()
            wanted = bytes_to_free(usage, self._policy)
            if wanted <= 0:
                await self._forget_records(began)
                return freed
            logger.info(
                "image filesystem is filling up",
                extra={"percent": usage.percent, "threshold": self._policy.high_percent, "to_free_bytes": wanted},
            )
            gained, stuck = await self._remove_for_space(began, wanted)
            await self._forget_records(began)
            if gained < wanted:
                raise self._not_enough(usage, gained, stuck, began)
            return freed + gained

    async def remove_unused(self) -> int:
        """Remove every image that may go, whatever the disk says; bytes freed. Raises CriError when none could be.

        However young: an image that was pulled for a container to come is in use already, because its pod names it,
        and a pod must not go for an image that nobody wants.
        """
        async with self._lock:
            began = await self._look()
            freed, stuck = await self._remove_for_space(began, None)
            await self._forget_records(began)
            if stuck and not freed:
                raise CriError(f"unused images cannot be removed: {next(iter(stuck.values()))}")
            return freed

    def snapshot(self) -> dict[str, object]:
        return {"images": len(self._known), "failures": self._failures}

    # --- the regular pass -----------------------------------------------------------------------

    async def _regular_pass(self) -> None:
        try:
            if self._policy.is_off:
                async with self._lock:
                    await self._look()
            else:
                await self.collect()
        except (PykubeletError, OSError) as error:
            self._failed(str(error))
        else:
            if self._failures > 1:
                logger.info("image garbage collection works again", extra={"failures": self._failures})
            self._failures = 0
            self._told.clear()

    def _failed(self, text: str) -> None:
        self._failures += 1
        if self._failures == 1:
            logger.warning("image garbage collection failed", extra={"error": text})
        elif "ImageGCFailed" not in self._told:
            self._told.add("ImageGCFailed")
            logger.error("image garbage collection failed again", extra={"error": text})
            self._events.node_event(WARNING, "ImageGCFailed", text)

    def _once(self, reason: str, text: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            self._events.node_event(WARNING, reason, text)

    def _not_enough(self, usage: DiskUsage, freed: int, stuck: dict[str, str], now: float) -> ImageGcFailed:
        size = readable_size(usage.capacity_bytes)
        text = (
            f"Insufficient free disk space on the node's image filesystem ({usage.percent}% of {size} used). "
            f"Failed to free sufficient space by deleting unused images (freed {freed} bytes). "
            "Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
        )
        if "FreeDiskSpaceFailed" not in self._told:
            left = explain(why_they_stay(self._known.values(), self._policy, now=now, stuck=stuck))
            fields = {
                "percent": usage.percent,
                "freed_bytes": freed,
                "left": left,
                "errors": sorted(set(stuck.values())),
            }
            logger.warning("images cannot free enough disk space", extra=fields)
        self._once("FreeDiskSpaceFailed", text)
        return ImageGcFailed(text)

    # --- looking --------------------------------------------------------------------------------

    async def _look(self) -> float:
        """List images and who uses them; the time that stands for this listing."""
        now = self._clock.now()
        if self._started is None:
            self._started = now
        images = await self._cri.list_images()
        # After the images: what a container started to use meanwhile is seen, too.
        containers = await self._cri.list_containers()
        used = {name for c in containers for name in (c.image, c.image_ref, c.image_id) if name}
        self._known = looked(self._known, images, used | set(self._also_used()), now)
        return now

    async def _usage(self) -> DiskUsage:
        filesystems = (await self._cri.image_fs_info()).images
        if not filesystems:
            raise ImageGcFailed("imageFs information is unavailable")
        try:
            place = filesystems[0].mountpoint
            work = partial(self._disk, place)
            usage = await host_calls.run(work, name="measuring the image filesystem", key=place, within=DISK_WITHIN)
        except OSError as error:
            text = f"image filesystem {filesystems[0].mountpoint}: {error.strerror or error}"
            raise ImageGcFailed(text) from error
        if usage.capacity_bytes <= 0:
            text = "invalid capacity 0 on image filesystem"
            self._once("InvalidDiskCapacity", text)
            raise ImageGcFailed(text)
        return usage

    # --- removing -------------------------------------------------------------------------------

    async def _remove_old(self, now: float) -> int:
        started = self._started if self._started is not None else now
        freed, stuck = 0, {}
        for image in too_old(removable(self._known.values(), now), self._policy, now=now, started=started):
            if (problem := await self._remove(image, "age")) is None:
                freed += image.size_bytes
            else:
                stuck[image.id] = problem
        if stuck:
            raise ImageGcFailed(
                f"images past imageMaximumGCAge cannot be removed: {', '.join(sorted(set(stuck.values())))}"
            )
        return freed

    async def _remove_for_space(self, now: float, wanted: int | None) -> tuple[int, dict[str, str]]:
        """Remove until `wanted` bytes are free, None = all that may go; bytes freed, and what the runtime refused."""
        freed, stuck = 0, {}
        free = removable(self._known.values(), now)
        for image in old_enough(free, self._policy, now) if wanted is not None else free:
            if wanted is not None and freed >= wanted:
                break
            if (problem := await self._remove(image, "space")) is None:
                freed += image.size_bytes
            else:
                stuck[image.id] = problem
        return freed, stuck

    async def _remove(self, image: SeenImage, reason: str) -> str | None:
        """None when it is gone, else the runtime's words."""
        logger.info("removing image", extra={"image": image.id, "size_bytes": image.size_bytes, "reason": reason})
        try:
            await self._cri.remove_image(image.id)
        except CriError as error:
            return str(error)
        self._known.pop(image.id, None)
        self._removed.inc(reason)
        return None

    async def _forget_records(self, began: float) -> None:
        if self._records is not None:
            await self._records.prune(self._known, began)
