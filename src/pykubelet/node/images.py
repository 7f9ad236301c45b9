"""The images the Node lists, biggest first, read from the runtime now and then.

The list is for schedulers that prefer nodes which have an image already; it may be half a minute old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from pykubelet.api.types import ContainerImage
from pykubelet.kit.clock import Clock
from pykubelet.model.runtime_status import Image

NAMES_KEPT = 5
REFRESH_AFTER = 30.0
ANSWER_WITHIN = 3.0


class ImageLister(Protocol):
    async def list_images(self, image: str | None = None) -> Sequence[Image]: ...


def node_images(images: Iterable[Image], limit: int) -> list[ContainerImage]:
    """At most `limit` images by size, -1 for all; each by its digests and then its tags."""
    ranked = sorted(images, key=lambda image: -image.size_bytes)
    kept = ranked if limit < 0 else ranked[:limit]
    return [
        ContainerImage(names=[*image.digests, *image.tags][:NAMES_KEPT], size_bytes=image.size_bytes) for image in kept
    ]


class ImageList:
    def __init__(self, *, runtime: ImageLister, limit: int, clock: Clock) -> None:
        self._runtime = runtime
        self._limit = limit
        self._clock = clock
        self._images: list[ContainerImage] = []
        self._read_at: float | None = None

    @property
    def last(self) -> list[ContainerImage]:
        """What the runtime listed when it last answered."""
        return self._images

    async def current(self) -> list[ContainerImage]:
        """The list, read anew when it is older than half a minute; raises CriError, TimeoutError."""
        now = self._clock.monotonic()
        if self._limit != 0 and (self._read_at is None or now - self._read_at >= REFRESH_AFTER):
            self._read_at = now
            # The node's status tells that a runtime hangs; it must not hang with it.
            async with asyncio.timeout(ANSWER_WITHIN):
                self._images = node_images(await self._runtime.list_images(), self._limit)
        return self._images
