"""The pods bound to this node, as the full set after every change."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from pykubelet.api.types import Pod
from pykubelet.clients.kube.port import KubeClient
from pykubelet.clients.kube.reflector import Reflector
from pykubelet.clients.kube.watch import Query
from pykubelet.kit.clock import Clock


class ApiPodFeed:
    def __init__(self, *, kube: KubeClient, clock: Clock, node_name: str) -> None:
        self._kube = kube
        self._clock = clock
        self._query = Query(kind=Pod, field_selector=f"spec.nodeName={node_name}")

    async def pod_sets(self) -> AsyncGenerator[Sequence[Pod], None]:
        """Now and after every change, for ever; reconnects by itself."""
        sets = Reflector(client=self._kube, query=self._query, clock=self._clock).sets()
        async with aclosing(sets):
            async for pods in sets:
                yield pods
