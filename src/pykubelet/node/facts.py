"""Gathers what the Node's status is made from: machine, addresses, images, runtime, pressures, problems.

A part that cannot be read leaves the rest unchanged and is logged once. Decides nothing about the status itself
(setters.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from pykubelet.api.types import ContainerImage, NodeAddress
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.host.port import Machine
from pykubelet.cm.build import ContainerManager
from pykubelet.cm.capacity import (
    kept_from_pods,
    machine_capacity,
    missing_essentials,
)
from pykubelet.context import Context
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import CriError, PykubeletError
from pykubelet.model.reasons import WARNING
from pykubelet.model.runtime_status import Image
from pykubelet.node.addresses import AddressFinder
from pykubelet.node.conditions import NodeConditions
from pykubelet.node.csi_node import CsiNodeKeeper
from pykubelet.node.own_node import NodeAttachments
from pykubelet.node.setters import NodeFacts
from pykubelet.pleg.pleg import Pleg
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.admission import declared_features
from pykubelet.volumes.manager import VolumeManager

logger = logging.getLogger(__name__)

IMAGE_NAMES_KEPT = 5
IMAGES_REFRESH_AFTER = 30.0
IMAGES_WITHIN = 3.0


class NodeSources(Struct, frozen=True, kw_only=True):
    """The subsystems that the Node's status is made from, and that learn from it."""

    runtime: RuntimeState
    pleg: Pleg
    cm: ContainerManager
    volumes: VolumeManager
    conditions: NodeConditions
    csi_node: CsiNodeKeeper
    attachments: NodeAttachments
    cri: CriClient


class FactsGatherer:
    def __init__(
        self,
        ctx: Context,
        *,
        machine: Machine,
        addresses: AddressFinder,
        images: ImageList,
        runtime_version: str,
        storage_size: Callable[[], int],
        sources: NodeSources,
    ) -> None:
        self._settings = ctx.settings
        self._events = ctx.events
        self._clock = ctx.clock
        self._machine = machine
        self._addresses = addresses
        self._images = images
        self._runtime_version = runtime_version
        self._storage_size = storage_size
        self._sources = sources
        self._complaints: dict[str, str] = {}

    def problems(self) -> list[str]:
        """Why the node is not ready, in upstream's order; empty when it is."""
        sources, runtime = self._sources, self._sources.runtime
        found = [runtime.runtime_problem(), *sources.pleg.problems()]
        found += [runtime.network_problem(), *sources.conditions.problems(), *sources.csi_node.problems()]
        return [problem for problem in found if problem]

    async def facts(self, shown: Sequence[NodeAddress]) -> NodeFacts:
        """The facts now; `shown` are the addresses the Node has."""
        config, sources = self._settings.config, self._sources
        conditions = sources.runtime.conditions
        capacity = machine_capacity(self._machine, config.cgroups, self._storage())
        problems = self.problems()
        if missing := missing_essentials(capacity):
            problems.append(f"missing node capacity for resources: {', '.join(missing)}")
        return NodeFacts(
            machine=self._machine,
            addresses=await self._find_addresses(shown),
            capacity=capacity,
            kept=kept_from_pods(self._settings, capacity),
            devices=sources.cm.device_amounts(),
            runtime=self._runtime_version,
            kubelet_version=self._settings.kubernetes_version,
            port=config.server.port,
            images=await self._list_images(),
            handlers=conditions.handlers,
            supplemental_groups_policy=conditions.supplemental_groups_policy,
            declared_features=declared_features(self._settings.gates, conditions),
            pressures=frozenset(sources.conditions.pressures()),
            problems=problems,
            volumes_in_use=sources.volumes.volumes_in_use(),
            now=self._clock.now(),
        )

    def _storage(self) -> int | None:
        try:
            size = self._storage_size()
        except OSError as error:
            self._complain("storage", f"the size of the root folder's filesystem cannot be read: {error}")
            return None
        if size <= 0:
            if self._complain("storage", "the root folder's filesystem has no size"):
                self._events.node_event(WARNING, "InvalidDiskCapacity", "invalid capacity 0 on root filesystem")
            return None
        self._complaints.pop("storage", None)
        return size

    async def _find_addresses(self, shown: Sequence[NodeAddress]) -> list[NodeAddress] | None:
        try:
            found = await self._addresses.find(shown)
        except (PykubeletError, OSError) as error:
            self._complain("addresses", str(error))
            return None
        self._complaints.pop("addresses", None)
        return found

    async def _list_images(self) -> list[ContainerImage]:
        try:
            return await self._images.current()
        except (CriError, TimeoutError) as error:
            # Not logged as a warning: the runtime's problem is in the Ready condition already.
            logger.debug("the images cannot be listed", extra={"error": str(error)})
            return self._images.last

    def _complain(self, about: str, text: str) -> bool:
        """Warn unless the same was logged last; return whether it was new."""
        if self._complaints.get(about) == text:
            return False
        self._complaints[about] = text
        logger.warning("part of the node's status cannot be set", extra={"part": about, "error": text})
        return True


def node_images(images: Iterable[Image], limit: int) -> list[ContainerImage]:
    """At most `limit` images by size, -1 for all; each by its digests and then its tags."""
    ranked = sorted(images, key=lambda image: -image.size_bytes)
    kept = ranked if limit < 0 else ranked[:limit]
    return [
        ContainerImage(names=[*image.digests, *image.tags][:IMAGE_NAMES_KEPT], size_bytes=image.size_bytes)
        for image in kept
    ]


class ImageList:
    def __init__(self, *, runtime: CriClient, limit: int, clock: Clock) -> None:
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
        if self._limit != 0 and (self._read_at is None or now - self._read_at >= IMAGES_REFRESH_AFTER):
            self._read_at = now
            # The node's status shows that a runtime hangs, so it must not hang with it.
            async with asyncio.timeout(IMAGES_WITHIN):
                self._images = node_images(await self._runtime.list_images(), self._limit)
        return self._images
