"""The CSINode object: which storage drivers this node has, under which ids, with which limits.

Created when the Node is known; without it the node is not Ready, because the scheduler would not know the limits.
Drivers are added as they register and removed as they leave; their ids are in an annotation of the Node, too, and
their topology in its labels.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from pykubelet.api.types import (
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    Node,
    ObjectMeta,
    OwnerReference,
    VolumeNodeResources,
)
from pykubelet.clients.kube.port import KubeClient, PatchType
from pykubelet.clients.plugins.port import CsiNodeInfo
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import ApiError, Conflict, NotFound, PykubeletError
from pykubelet.node.own_node import OwnNode
from pykubelet.signals import NodeStatusChanged, Signals

logger = logging.getLogger(__name__)

NODE_ID = "csi.volume.kubernetes.io/nodeid"
MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"
MIGRATED_PLUGINS = (
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
)
MOST_VOLUMES = 2**31 - 1
TRIES, FIRST_PAUSE, PAUSE_GROWTH = 5, 0.01, 5.0


class TopologyConflict(PykubeletError):
    """The Node has another value for a label than the driver reports."""


class CsiNodeKeeper:
    name = "csi node"

    def __init__(self, *, client: KubeClient, own: OwnNode, clock: Clock, signals: Signals) -> None:
        self._client = client
        self._signals = signals
        self._own = own
        self._clock = clock
        self._made = False
        self._changing = asyncio.Lock()
        """All node ids are in one annotation: each change must start from the last one."""
        self._changed = Wakeup()
        own.listen(lambda node: self._changed.set())

    def problems(self) -> Sequence[str]:
        """For the Ready condition."""
        return () if self._made else ("CSINode is not yet initialized",)

    async def run(self) -> None:
        """Create the CSINode, and again whenever the Node was replaced by another one."""
        await self._own.wait_known()
        backoff = Backoff(initial=0.03, maximum=60.0, factor=8.0)
        uid = ""
        while True:
            owner = self._own.owner()
            wait: float | None = None
            if owner is not None and owner.uid != uid:
                try:
                    await self._ensure(owner)
                    uid, self._made = owner.uid or "", True
                    backoff.reset()
                    self._signals.publish(NodeStatusChanged())
                except ApiError as error:
                    wait = backoff.next()
                    logger.warning("CSINode not made, will retry", extra={"problem": str(error), "retry_in": wait})
            await self._changed.wait(wait)

    async def add_driver(self, name: str, info: CsiNodeInfo) -> None:
        await self._own.wait_known()

        async def on_node() -> None:
            await self._patch_node(name, info)

        async def on_list() -> None:
            await self._change(lambda drivers: with_driver(drivers, entry_of(name, info)))

        async with self._changing:
            await self._trying(on_node)
            await self._trying(on_list)

    async def remove_driver(self, name: str) -> None:
        async def on_list() -> None:
            await self._change(lambda drivers: [each for each in drivers if each.name != name])

        async def on_node() -> None:
            await self._patch_node(name, None)

        async with self._changing:
            await self._trying(on_list)
            await self._trying(on_node)

    async def _trying(self, step: Callable[[], Awaitable[None]]) -> None:
        pauses = Backoff(initial=FIRST_PAUSE, maximum=60.0, factor=PAUSE_GROWTH)
        for _ in range(TRIES - 1):
            try:
                return await step()
            except ApiError as error:
                logger.debug("CSINode not changed, will retry", extra={"problem": str(error)})
                await self._clock.sleep(pauses.next())
        await step()

    async def _ensure(self, owner: OwnerReference) -> None:
        found = await self._find()
        if found is not None and all(each.uid != owner.uid for each in found.metadata.owner_references):
            await self._client.delete(CSINode, self._own.name, uid=found.metadata.uid or "")
            found = None
        if found is None:
            await self._client.create(self._new(owner))
        elif found.metadata.annotations.get(MIGRATED) != ",".join(MIGRATED_PLUGINS):
            annotations = {**found.metadata.annotations, MIGRATED: ",".join(MIGRATED_PLUGINS)}
            metadata = msgspec.structs.replace(found.metadata, annotations=annotations)
            await self._client.update(msgspec.structs.replace(found, metadata=metadata))

    async def _find(self) -> CSINode | None:
        try:
            return await self._client.get(CSINode, self._own.name)
        except NotFound:
            return None

    def _new(self, owner: OwnerReference) -> CSINode:
        return CSINode(
            api_version="storage.k8s.io/v1",
            kind="CSINode",
            metadata=ObjectMeta(
                name=self._own.name,
                annotations={MIGRATED: ",".join(MIGRATED_PLUGINS)},
                owner_references=[owner],
            ),
        )

    async def _change(self, change: Callable[[Sequence[CSINodeDriver]], list[CSINodeDriver]]) -> None:
        found = await self._find()
        if found is None:
            owner = self._own.owner()
            if owner is None:
                raise Conflict(f"Node {self._own.name} is going, so its CSINode is not made")
            found = await self._client.create(self._new(owner))
        drivers = change(found.spec.drivers)
        if drivers != found.spec.drivers:
            await self._client.update(msgspec.structs.replace(found, spec=CSINodeSpec(drivers=drivers)))

    async def _patch_node(self, name: str, info: CsiNodeInfo | None) -> None:
        node = self._own.node or await self._client.get(Node, self._own.name)
        metadata = node_metadata(node, name, info)
        if metadata:
            body: dict[str, Any] = {"metadata": metadata}
            changed = await self._client.patch(
                Node, self._own.name, body, patch_type=PatchType.STRATEGIC, subresource="status"
            )
            self._own.learn(changed)


def node_metadata(node: Node, driver: str, info: CsiNodeInfo | None) -> dict[str, Any]:
    """What is to be patched into the Node's metadata; empty when nothing is."""
    text = node.metadata.annotations.get(NODE_ID, "")
    try:
        ids = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        ids = {}
    known = dict(ids) if isinstance(ids, dict) else {}
    wanted = {key: value for key, value in known.items() if key != driver}
    labels: dict[str, str] = {}
    if info is not None:
        wanted[driver] = info.node_id
        for key, value in (info.topology or {}).items():
            present = node.metadata.labels.get(key)
            if present is not None and present != value:
                raise TopologyConflict(f'label {key} of this Node is "{present}", but driver {driver} says "{value}"')
            if present is None:
                labels[key] = value
    found: dict[str, Any] = {}
    if wanted != known:
        found["annotations"] = {NODE_ID: json.dumps(wanted, sort_keys=True) if wanted else None}
    if labels:
        found["labels"] = labels
    return found


def entry_of(name: str, info: CsiNodeInfo) -> CSINodeDriver:
    limit = min(info.max_volumes, MOST_VOLUMES)
    return CSINodeDriver(
        name=name,
        node_id=info.node_id,
        topology_keys=sorted(info.topology or {}),
        allocatable=VolumeNodeResources(count=limit) if limit > 0 else None,
    )


def with_driver(drivers: Sequence[CSINodeDriver], entry: CSINodeDriver) -> list[CSINodeDriver]:
    return [*(each for each in drivers if each.name != entry.name), entry]
