"""The API server's name, looked up apart from the names that pods make the node look up."""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from pykubelet.kit.names import NameLookups


class ApiResolver(AbstractResolver):
    """Behind aiohttp's connector."""

    def __init__(self, lookups: NameLookups) -> None:
        self._lookups = lookups

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._lookups.addresses(host, port)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=each,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for each, address in found
            if family in (socket.AF_UNSPEC, each)
        ]

    async def close(self) -> None:
        return None
