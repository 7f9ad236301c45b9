"""Waiting until the control plane has attached a volume to this node.

It says so in the Node's own status (volumesAttached), which is watched anyway: nothing is polled. Before that the node
must have said that it uses the volume (volumesInUse), or the control plane might detach it under the pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from pykubelet.api.types import Node, Pod


class WatchedNode(Protocol):
    @property
    def node(self) -> Node | None: ...


class NodeAttachments:
    """Give `changed` to the node's listeners and `reported` to who writes the node's status."""

    def __init__(self, own: WatchedNode, *, report: Callable[[], None]) -> None:
        self._own = own
        self._report = report
        self._told: frozenset[str] = frozenset()
        self._waiting: set[asyncio.Future[None]] = set()

    def reported(self, names: Sequence[str]) -> None:
        """The API server knows that this node uses these."""
        self._told = frozenset(names)
        self._wake()

    def changed(self, _node: Node) -> None:
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def wait_attached(self, pod: Pod, unique_name: str) -> str:
        """The device path the control plane tells; empty for kinds that need none."""
        if unique_name not in self._told:
            self._report()
        while True:
            node = self._own.node
            for attached in node.status.volumes_attached if node is not None else ():
                if attached.name == unique_name and unique_name in self._told:
                    return attached.device_path or ""
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)
