"""Which images to remove, in which order, and why the others stay. Pure.

Covers: thresholds, ages, least recently used first, images in use or pinned. Times are unix seconds.
Does not cover: finding out and removing (gc.py).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from pykubelet.model.runtime_status import Image


class ImageGcPolicy(Struct, frozen=True, kw_only=True):
    high_percent: int = 85
    low_percent: int = 80
    min_age: float = 120.0
    """Images known for less are left alone: they may just have been pulled for a container to come."""
    max_age: float = 0.0
    """Images unused for longer are removed whatever the disk says; 0 = never."""

    @property
    def is_off(self) -> bool:
        return self.high_percent >= 100 and self.max_age <= 0


class DiskUsage(Struct, frozen=True, kw_only=True):
    capacity_bytes: int
    available_bytes: int

    @property
    def percent(self) -> int:
        return 100 - min(self.available_bytes, self.capacity_bytes) * 100 // self.capacity_bytes


class SeenImage(Struct, frozen=True, kw_only=True):
    """What is known about an image on the node."""

    id: str
    size_bytes: int
    pinned: bool
    first_seen: float
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


def looked(
    known: Mapping[str, SeenImage], images: Iterable[Image], used: Collection[str], now: float
) -> dict[str, SeenImage]:
    """The images of a new listing; `used` holds whatever containers and pods name."""
    found: dict[str, SeenImage] = {}
    for image in images:
        before = known.get(image.id)
        in_use = not mentions(image).isdisjoint(used)
        found[image.id] = SeenImage(
            id=image.id,
            size_bytes=image.size_bytes,
            pinned=image.pinned or is_sandbox_image(image),
            first_seen=before.first_seen if before else now,
            last_used=now if in_use else before.last_used if before else 0.0,
        )
    return found


def bytes_to_free(usage: DiskUsage, policy: ImageGcPolicy) -> int:
    """0 while the disk is less full than the high threshold; else what brings it down to the low one."""
    if usage.percent < policy.high_percent:
        return 0
    return max(0, usage.capacity_bytes * (100 - policy.low_percent) // 100 - usage.available_bytes)


def removable(images: Iterable[SeenImage], now: float) -> list[SeenImage]:
    """Neither used nor pinned, least recently used first, then longest known. `now`: when the listing was made."""
    free = [image for image in images if image.last_used < now and not image.pinned]
    return sorted(free, key=lambda image: (image.last_used, image.first_seen, image.id))


def too_old(images: Sequence[SeenImage], policy: ImageGcPolicy, *, now: float, started: float) -> list[SeenImage]:
    """Unused for longer than the policy allows; none before the agent itself could have seen them used."""
    if policy.max_age <= 0 or now - started <= policy.max_age:
        return []
    return [image for image in images if now - max(image.last_used, image.first_seen) > policy.max_age]


def old_enough(images: Iterable[SeenImage], policy: ImageGcPolicy, now: float) -> list[SeenImage]:
    return [image for image in images if now - image.first_seen >= policy.min_age]


def why_they_stay(
    images: Iterable[SeenImage], policy: ImageGcPolicy, *, now: float, stuck: Collection[str] = ()
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
        elif now - image.first_seen < policy.min_age:
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
