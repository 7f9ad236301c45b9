"""The services of the cluster, for the variables containers get about them.

A copy of all services is kept from the moment the first pod asks for them; a node that runs only static pods never
reads them. Which variables a container gets is decided in runtime/spec/services.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from pykubelet.api.types import Service

FIRST_READ_WITHIN = 10.0


class LiveServices(Protocol):
    """A reflector of all services."""

    async def run(self) -> None: ...

    async def wait_synced(self, within: float | None = None) -> bool: ...

    def all(self) -> Sequence[Service]: ...


class ServiceLister:
    name = "services"

    def __init__(self, *, live: LiveServices) -> None:
        self._live = live
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        await self._wanted.wait()
        await self._live.run()

    async def services(self, namespace: str) -> Sequence[Service] | None:
        """All services of a namespace; None when they could not be read in time."""
        self._wanted.set()
        if not await self._live.wait_synced(FIRST_READ_WITHIN):
            return None
        return [each for each in self._live.all() if each.metadata.namespace == namespace]
