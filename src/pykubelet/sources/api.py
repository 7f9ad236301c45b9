"""Pods bound to this node by the API server: the seam between a pod watch and the merge.

The watch (clients/kube) yields the complete set after every change; this service hands it on. It starts only
when the Node has been read, because pods judged against an unknown node would be rejected.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from pykubelet.api.types import Pod
from pykubelet.model.pod import Source
from pykubelet.sources.mux import PodSets


def bound_to(node_name: str) -> str:
    """The field selector of the pods a node is responsible for."""
    return f"spec.nodeName={node_name}"


class PodFeed(Protocol):
    def sets(self) -> AsyncGenerator[Sequence[Pod], None]:
        """The full set of this node's pods, now and after every change, for ever; reconnects by itself."""
        ...


class NodeKnown(Protocol):
    async def wait_known(self) -> None:
        """Return when the Node object has been read once."""
        ...


class ApiSource:
    name = "source-api"

    def __init__(self, *, feed: PodFeed, node: NodeKnown, sets: PodSets) -> None:
        self._feed = feed
        self._node = node
        self._sets = sets

    async def run(self) -> None:
        await self._node.wait_known()
        async with aclosing(self._feed.sets()) as sets:
            async for pods in sets:
                self._sets.deliver(Source.API, pods)
