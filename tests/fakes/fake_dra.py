"""A driver of dynamic resources in memory: fails or hangs as planned.

Passes the contract of a real one (tests/contracts/test_dra_contract.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pykubelet.api.types import ResourceResourceClaim
from pykubelet.clients.plugins.port import ClaimedHealth, ClaimRef, Observe, Prepared, PreparedDevice, unobserved
from pykubelet.model.errors import PluginError


@dataclass
class FakeDraDriver:
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    prepared: set[str] = field(default_factory=set)
    errors: dict[str, str] = field(default_factory=dict)
    """By the name of the claim."""
    known: set[str] | None = None
    """UIDs of the claims that it finds in the API; None: all."""
    skips: set[str] = field(default_factory=set)
    breaks: str = ""
    hangs: bool = False
    crashed: bool = False
    tells_health: bool = True
    news: asyncio.Queue[list[ClaimedHealth] | None] = field(default_factory=asyncio.Queue)

    listens: bool = True
    changes: list[asyncio.Event] = field(default_factory=list)
    """Of those that follow the connection."""
    observe: Observe = unobserved

    def connect(self, socket: Path, version: str, observe: Observe) -> FakeDraDriver:
        self.observe = observe
        return self

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Prepared]:
        await self._called("prepare", claims)
        for each in claims:
            if self.known is not None and each.uid not in self.known:
                text = f"retrieve claim {each.namespace}/{each.name}: not found"
                raise PluginError(text, code="UNKNOWN", call="NodePrepareResources", socket="/d.sock")
        found = {}
        for each in claims:
            if each.name in self.skips:
                continue
            if each.name in self.errors:
                found[each.uid] = Prepared(error=self.errors[each.name])
                continue
            self.prepared.add(each.uid)
            devices = tuple(
                PreparedDevice(
                    pool="p",
                    device=f"{each.name}-{request}",
                    requests=(request,),
                    cdi_ids=(f"d/{each.name}={request}",),
                )
                for request in ("one", "two")
            )
            found[each.uid] = Prepared(devices=devices)
        return found

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        await self._called("unprepare", claims)
        for each in claims:
            self.prepared.discard(each.uid)
        return {each.uid: self.errors.get(each.name, "") for each in claims if each.name not in self.skips}

    async def watch_health(self) -> AsyncGenerator[Sequence[ClaimedHealth], None]:
        if not self.tells_health:
            raise PluginError("unknown service", code="UNIMPLEMENTED", call="NodeWatchResources", socket="/d.sock")
        yield []
        while (devices := await self.news.get()) is not None:
            yield devices
        if self.crashed:
            raise PluginError("connection reset", code="UNAVAILABLE", call="NodeWatchResources", socket="/d.sock")

    def crash(self) -> None:
        """The driver is gone."""
        self.crashed = True
        self.news.put_nowait(None)

    async def connected(self) -> AsyncGenerator[bool, None]:
        changed = asyncio.Event()
        self.changes.append(changed)
        while True:
            yield self.listens
            await changed.wait()
            changed.clear()

    def listen(self, listens: bool) -> None:
        """Its service comes or goes, while its registration stays."""
        self.listens = listens
        for each in self.changes:
            each.set()

    async def close(self) -> None:
        pass

    async def _called(self, name: str, claims: Sequence[ClaimRef]) -> None:
        call = f"Node{name.capitalize()}Resources"
        with self.observe(call):
            self.calls.append((name, tuple(each.name for each in claims)))
            if self.hangs:
                await asyncio.Event().wait()
            if self.breaks:
                raise PluginError(self.breaks, code="UNAVAILABLE", call=call, socket="/d.sock")
            if self.crashed:
                raise PluginError("connection refused", code="UNAVAILABLE", call=call, socket="/d.sock")


@dataclass
class FakeClaimObjects:
    claims: dict[tuple[str, str], ResourceResourceClaim] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)

    async def resource_claim(self, namespace: str, name: str) -> ResourceResourceClaim | None:
        return self.claims.get((namespace, name))

    async def delete_slices(self, driver: str) -> None:
        self.deleted.append(driver)
