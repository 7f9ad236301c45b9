"""Image garbage collection: when the disk is filling up, when images are too old, or when eviction requests it.

Covers: the choice (thresholds, ages, least recently used first; images in use or pinned stay) as pure functions, the
regular pass every five minutes, events, and dropping the pull records of images that are gone. When not enough can be
freed, the reason is reported once, until a pass succeeds again. Does not cover: dead containers (runtime/gc.py).
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.clients.cri.port import CriClient
from pykubelet.context import Context
from pykubelet.images.records import PullRecords
from pykubelet.images.reference import full_name
from pykubelet.kit import tracing
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.tasks import periodic
from pykubelet.model.errors import CriError, PykubeletError
from pykubelet.model.pod import all_containers
from pykubelet.model.reasons import WARNING
from pykubelet.model.runtime_status import Image

logger = logging.getLogger(__name__)


class ImageGcPolicy(Struct, frozen=True, kw_only=True):
    high_percent: int = 85
    low_percent: int = 80
    min_age: float = 120.0
    """Images known for less are left alone: they may just have been pulled for a container to come."""
    max_age: float = 0.0
    """Images unused for longer are removed even if the disk is not full; 0 = never."""

    @property
    def is_off(self) -> bool:
        return self.high_percent >= 100 and self.max_age <= 0


class DiskUsage(Struct, frozen=True, kw_only=True):
    capacity_bytes: int
    available_bytes: int

    @property
    def percent(self) -> int:
        return 100 - min(self.available_bytes, self.capacity_bytes) * 100 // self.capacity_bytes


class ImageRecord(Struct, frozen=True, kw_only=True):
    """What is known about an image on the node."""

    id: str
    size_bytes: int
    pinned: bool
    first_detected: float
    last_used: float = 0.0
    """0 = not since this agent started."""


class Stays(enum.Enum):
    """Why an image cannot go; the order is that of the explanation."""

    USED = "in use"
    PINNED = "pinned by the runtime"
    YOUNG = "seen too recently"
    STUCK = "refused by the runtime"


def mentions(image: Image) -> set[str]:
    """Every way in which a container may name an image."""
    return {image.id, *image.tags, *image.digests}


def is_sandbox_image(image: Image) -> bool:
    """Whether it looks like the image of sandboxes. Older runtimes (containerd before 1.7) do not pin theirs, no
    container names it, and without it no pod starts any more."""
    names = {tag.rpartition("/")[2].partition(":")[0] for tag in image.tags}
    return any(name in ("pause", "mirrored-pause") or name.startswith("pause-") for name in names)


def detected(
    known: Mapping[str, ImageRecord], images: Iterable[Image], used: Collection[str], now: float
) -> dict[str, ImageRecord]:
    """The images of a new listing; `used` holds the names that containers and pods use."""
    found: dict[str, ImageRecord] = {}
    for image in images:
        before = known.get(image.id)
        in_use = not mentions(image).isdisjoint(used)
        found[image.id] = ImageRecord(
            id=image.id,
            size_bytes=image.size_bytes,
            pinned=image.pinned or is_sandbox_image(image),
            first_detected=before.first_detected if before else now,
            last_used=now if in_use else before.last_used if before else 0.0,
        )
    return found


def bytes_to_free(usage: DiskUsage, policy: ImageGcPolicy) -> int:
    """0 while the disk is less full than the high threshold; else what brings it down to the low one."""
    if usage.percent < policy.high_percent:
        return 0
    return max(0, usage.capacity_bytes * (100 - policy.low_percent) // 100 - usage.available_bytes)


def removable(images: Iterable[ImageRecord], now: float) -> list[ImageRecord]:
    """Neither used nor pinned, least recently used first, then longest known. `now`: when the listing was made."""
    free = [image for image in images if image.last_used < now and not image.pinned]
    return sorted(free, key=lambda image: (image.last_used, image.first_detected, image.id))


def too_old(images: Sequence[ImageRecord], policy: ImageGcPolicy, *, now: float, started: float) -> list[ImageRecord]:
    """Unused for longer than the policy allows; none before the agent itself could have seen them used."""
    if policy.max_age <= 0 or now - started <= policy.max_age:
        return []
    return [image for image in images if now - max(image.last_used, image.first_detected) > policy.max_age]


def old_enough(images: Iterable[ImageRecord], policy: ImageGcPolicy, now: float) -> list[ImageRecord]:
    return [image for image in images if now - image.first_detected >= policy.min_age]


def why_they_stay(
    images: Iterable[ImageRecord], policy: ImageGcPolicy, *, now: float, stuck: Collection[str] = ()
) -> dict[Stays, tuple[int, int]]:
    """Reason -> (number, bytes) of the images that are left."""
    found: dict[Stays, tuple[int, int]] = {}
    for image in images:
        if image.last_used >= now:
            reason = Stays.USED
        elif image.pinned:
            reason = Stays.PINNED
        elif image.id in stuck:
            reason = Stays.STUCK
        elif now - image.first_detected < policy.min_age:
            reason = Stays.YOUNG
        else:
            continue
        count, size = found.get(reason, (0, 0))
        found[reason] = count + 1, size + image.size_bytes
    return {reason: found[reason] for reason in Stays if reason in found}


def explain(left: Mapping[Stays, tuple[int, int]]) -> str:
    """`2 images (1.5 GiB) in use, 1 image (0.3 MiB) pinned by the runtime`."""
    if not left:
        return "there are no images"
    return ", ".join(
        f"{count} image{'s' if count != 1 else ''} ({readable_size(size)}) {reason.value}"
        for reason, (count, size) in left.items()
    )


def readable_size(size_bytes: int) -> str:
    size, units = float(size_bytes), ["KiB", "MiB", "GiB", "TiB"]
    if size < 1024:
        return f"{size_bytes} B"
    size /= 1024
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.1f} {units[0]}"


PERIOD: Final = 300.0
DISK_WITHIN: Final = 30.0


Statfs = Callable[[str], DiskUsage]
"""Measures the filesystem of a path. Blocking."""


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
        ctx: Context,
        cri: CriClient,
        *,
        policy: ImageGcPolicy,
        records: PullRecords | None = None,
        also_used: Callable[[], Iterable[str]] = tuple,
        disk: Statfs = statfs,
    ) -> None:
        self._cri = cri
        self._policy = policy
        self._events = ctx.events
        self._clock = ctx.clock
        self._records = records
        self._also_used = also_used
        self._disk = disk
        self._known: dict[str, ImageRecord] = {}
        self._started: float | None = None
        self._failures = 0
        self._reported: set[str] = set()
        self._lock = asyncio.Lock()  # one pass at a time: eviction may ask in the middle of the regular one
        self._removed = ctx.metrics.counter(
            "kubelet_image_garbage_collected_total", "Images removed to free disk space or for their age.", ("reason",)
        )

    async def run(self) -> None:
        self._started = self._clock.now()
        await periodic(self._clock, PERIOD, self._regular_pass)

    async def collect(self) -> int:
        """One pass by age and by thresholds; bytes freed. Raises ImageGcFailed, CriError."""
        with tracing.span("Images/GarbageCollect"):
            return await self._collect()

    async def _collect(self) -> int:
        async with self._lock:
            began = await self._detect()
            freed = await self._remove_old(began)
            usage = await self._usage()
            wanted = bytes_to_free(usage, self._policy)
            if wanted <= 0:
                await self._prune_records(began)
                return freed
            logger.info(
                "image filesystem is filling up",
                extra={"percent": usage.percent, "threshold": self._policy.high_percent, "to_free_bytes": wanted},
            )
            gained, stuck = await self._remove_for_space(began, wanted)
            await self._prune_records(began)
            if gained < wanted:
                raise self._not_enough(usage, gained, stuck, began)
            return freed + gained

    async def remove_unused(self) -> int:
        """Remove every unused image, even if the disk is not full; bytes freed. Raises CriError when none could be.

        However young: an image that was pulled for a container to come is in use already, because its pod names it,
        and a pod must not be evicted for an unused image.
        """
        async with self._lock:
            began = await self._detect()
            freed, stuck = await self._remove_for_space(began, None)
            await self._prune_records(began)
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
                    await self._detect()
            else:
                await self.collect()
        except (PykubeletError, OSError) as error:
            self._failed(str(error))
        else:
            if self._failures > 1:
                logger.info("image garbage collection works again", extra={"failures": self._failures})
            self._failures = 0
            self._reported.clear()

    def _failed(self, text: str) -> None:
        self._failures += 1
        if self._failures == 1:
            logger.warning("image garbage collection failed", extra={"error": text})
        elif "ImageGCFailed" not in self._reported:
            self._reported.add("ImageGCFailed")
            logger.error("image garbage collection failed again", extra={"error": text})
            self._events.node_event(WARNING, "ImageGCFailed", text)

    def _once(self, reason: str, text: str) -> None:
        if reason not in self._reported:
            self._reported.add(reason)
            self._events.node_event(WARNING, reason, text)

    def _not_enough(self, usage: DiskUsage, freed: int, stuck: dict[str, str], now: float) -> ImageGcFailed:
        size = readable_size(usage.capacity_bytes)
        text = (
            f"Insufficient free disk space on the node's image filesystem ({usage.percent}% of {size} used). "
            f"Failed to free sufficient space by deleting unused images (freed {freed} bytes). "
            "Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
        )
        if "FreeDiskSpaceFailed" not in self._reported:
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

    # --- detecting --------------------------------------------------------------------------------

    async def _detect(self) -> float:
        """List images and who uses them; the time that stands for this listing."""
        now = self._clock.now()
        if self._started is None:
            self._started = now
        images = await self._cri.list_images()
        # After the images: what a container started to use meanwhile is included.
        containers = await self._cri.list_containers()
        used = {name for c in containers for name in (c.image, c.image_ref, c.image_id) if name}
        self._known = detected(self._known, images, used | set(self._also_used()), now)
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

    async def _remove(self, image: ImageRecord, reason: str) -> str | None:
        """None when it is gone, else the runtime's error."""
        logger.info("removing image", extra={"image": image.id, "size_bytes": image.size_bytes, "reason": reason})
        try:
            await self._cri.remove_image(image.id)
        except CriError as error:
            return str(error)
        self._known.pop(image.id, None)
        self._removed.inc(reason)
        return None

    async def _prune_records(self, began: float) -> None:
        if self._records is not None:
            await self._records.prune(self._known, began)
