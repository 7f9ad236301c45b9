"""This node's Node object as the API server last showed it, and waiting for volumes to be attached to it.

Fed by a watch and by the responses to our own writes, whichever is newer. Does not write anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pykubelet.api.types import Node, OwnerReference, Pod
from pykubelet.clients.kube.port import Change, ChangeType
from pykubelet.node.addresses import internal_ips
from pykubelet.signals import NodeStatusChanged, Signals


class OwnNode:
    def __init__(self, name: str) -> None:
        self.name = name
        self._node: Node | None = None
        self._known = asyncio.Event()
        self._listeners: list[Callable[[Node], None]] = []

    def listen(self, listener: Callable[[Node], None]) -> None:
        """Call `listener(node)` after each change. Must be quick."""
        self._listeners.append(listener)

    # -- changes

    def learn(self, node: Node) -> None:
        """Take over what the server showed unless something newer is known already."""
        if self._node is not None and not is_newer(node, self._node):
            return
        self._node = node
        self._known.set()
        for listener in self._listeners:
            listener(node)

    def changed(self, change: Change[Node]) -> None:
        """Take over a change of the watched object."""
        if change.type is ChangeType.DELETED:
            self.forget()
        elif change.object.metadata.name == self.name:
            self.learn(change.object)

    def forget(self) -> None:
        """The object was deleted; `wait_known` does not wait again."""
        self._node = None

    # -- questions

    @property
    def node(self) -> Node | None:
        return self._node

    async def wait_known(self) -> None:
        """Return when the Node object has been read once."""
        await self._known.wait()

    def host_ips(self) -> tuple[str, ...]:
        """The node's addresses as pods show them; empty while unknown."""
        return internal_ips(self._node.status.addresses) if self._node is not None else ()

    def owner(self, *, controller: bool = False) -> OwnerReference | None:
        """A reference for objects that belong to this node; None while it is unknown or going."""
        node = self._node
        if node is None or node.metadata.deletion_timestamp is not None or not node.metadata.uid:
            return None
        return OwnerReference(
            api_version="v1",
            kind="Node",
            name=node.metadata.name,
            uid=node.metadata.uid,
            controller=True if controller else None,
        )


def is_newer(new: Node, old: Node) -> bool:
    """Resource versions of one object grow; another UID is another object."""
    if new.metadata.uid != old.metadata.uid:
        return True
    before, after = old.metadata.resource_version or "", new.metadata.resource_version or ""
    if before.isdigit() and after.isdigit():
        return int(after) > int(before)
    return after != before


class NodeAttachments:
    """Waits until the control plane has attached a volume to this node.

    It reports that in the Node's status (volumesAttached), which is watched anyway: nothing is polled. Before that the
    node must have reported that it uses the volume (volumesInUse), or the control plane might detach it under the pod.
    `changed` must be called when the Node changed, `reported` when its status was written.
    """

    def __init__(self, own: OwnNode, signals: Signals) -> None:
        self._own = own
        self._signals = signals
        self._reported: frozenset[str] = frozenset()
        self._waiting: set[asyncio.Future[None]] = set()

    def reported(self, names: Sequence[str]) -> None:
        """The API server knows that this node uses these."""
        self._reported = frozenset(names)
        self._wake()

    def changed(self, _node: Node) -> None:
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def wait_attached(self, pod: Pod, unique_name: str) -> str:
        """Return the device path that the control plane reports; empty for kinds that need none."""
        if unique_name not in self._reported:
            self._signals.publish(NodeStatusChanged())
        while True:
            node = self._own.node
            for attached in node.status.volumes_attached if node is not None else ():
                if attached.name == unique_name and unique_name in self._reported:
                    return attached.device_path or ""
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)
