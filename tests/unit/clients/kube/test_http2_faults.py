"""Many watches over HTTP/2 while connections break in every way there is: no change is lost, nobody is hammered."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import h2.exceptions
import h2.settings
import pytest

from pykubelet.api.types import ConfigMap
from pykubelet.clients.http2 import frames as wire
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.kubeconfig import ClusterEntry, Kubeconfig, UserEntry
from pykubelet.clients.kube.port import Change
from pykubelet.clients.kube.reflector import INITIAL_EVENTS_END, Query, Reflector
from pykubelet.clients.kube.transport import Transport
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import running
from tests.bed.rough_wire import rough_wire
from tests.unit.clients.http2.servers import Asked, Http2Server, Peer, serving
from tests.unit.clients.kube.api_server import an_authority

pytestmark = [pytest.mark.uvloop, pytest.mark.slow]

CLOCK = SystemClock()
OBJECTS, FAULTS = 40, 60
WATCHES, RESTARTS = 60, 5
QPS, BURST = 50, 30
ENVIRON = {"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "1", "HTTP2_PING_TIMEOUT_SECONDS": "1"}


@dataclass
class Store:
    """Config maps with every version they had; lists and watches of one at a time, as a node may ask for."""

    version: int = 1
    log: list[tuple[int, str]] = field(default_factory=list)
    """(version, name) of each change."""
    watches: dict[Asked, str] = field(default_factory=dict)

    def change(self, name: str) -> None:
        self.version += 1
        self.log.append((self.version, name))
        for asked, watched in list(self.watches.items()):
            if watched == name:
                with suppress(h2.exceptions.ProtocolError, KeyError):
                    asked.say(self.event(name, self.version))

    def versions(self, name: str) -> list[int]:
        return [version for version, changed in self.log if changed == name]

    def latest(self, name: str) -> int:
        return max(self.versions(name), default=1)

    @staticmethod
    def document(name: str, version: int) -> dict[str, object]:
        metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version)}
        return {"metadata": metadata, "data": {"version": str(version)}}

    def event(self, name: str, version: int) -> bytes:
        return json.dumps({"type": "MODIFIED", "object": self.document(name, version)}).encode() + b"\n"

    def full_set(self, name: str) -> bytes:
        """What a watch begins with if that is asked for."""
        added = {"type": "ADDED", "object": self.document(name, self.latest(name))}
        end = {"annotations": {INITIAL_EVENTS_END: "true"}, "resourceVersion": str(self.version)}
        return b"".join(
            json.dumps(each).encode() + b"\n" for each in (added, {"type": "BOOKMARK", "object": {"metadata": end}})
        )

    async def answer(self, asked: Asked) -> None:
        query = dict(parse_qsl(urlsplit(asked.path).query))
        name = query["fieldSelector"].partition("=")[2]
        if "watch" not in query:
            items = [self.document(name, self.latest(name))]
            asked.answer(json.dumps({"metadata": {"resourceVersion": str(self.version)}, "items": items}).encode())
            return
        asked.head()
        if "sendInitialEvents" in query:
            asked.say(self.full_set(name))
        for version, changed in self.log if "sendInitialEvents" not in query else ():
            if changed == name and version > int(query["resourceVersion"]):
                asked.say(self.event(name, version))
        self.watches[asked] = name


def goodbye(server: Http2Server, peer: Peer, source: random.Random) -> None:
    last = max(peer.asked, default=0)
    peer.goaway(source.choice([2**31 - 1, last, last // 2]))


def hang_up(server: Http2Server, peer: Peer, source: random.Random) -> None:
    peer.abort()


def fall_silent(server: Http2Server, peer: Peer, source: random.Random) -> None:
    peer.silent = True


def reset_some(server: Http2Server, peer: Peer, source: random.Random) -> None:
    for asked in source.sample(sorted(peer.asked.values(), key=lambda each: each.stream), min(5, len(peer.asked))):
        with suppress(h2.exceptions.ProtocolError, KeyError):
            asked.reset(source.choice([wire.REFUSED_STREAM, wire.INTERNAL_ERROR, wire.CANCEL]))


def end_some(server: Http2Server, peer: Peer, source: random.Random) -> None:
    for asked in source.sample(sorted(peer.asked.values(), key=lambda each: each.stream), min(5, len(peer.asked))):
        with suppress(h2.exceptions.ProtocolError, KeyError):
            asked.end()


def talk_nonsense(server: Http2Server, peer: Peer, source: random.Random) -> None:
    peer.raw(source.randbytes(200))


KINDS: list[Callable[[Http2Server, Peer, random.Random], None]] = [
    *(goodbye, hang_up, fall_silent, reset_some, end_some, talk_nonsense),
]


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_change_is_lost_however_connections_end(tmp_path: Path, seed: int) -> None:
    source, store = random.Random(seed), Store()
    authority, tls = an_authority(tmp_path)
    tls.set_alpn_protocols(["h2"])
    limit = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 25}
    async with serving(store.answer, tls=tls, settings=limit) as server:
        cluster = ClusterEntry(server=server.url, ca_data=authority.pair.certificate.read_bytes())
        connections = ServerConnections(
            Kubeconfig(cluster=cluster, user=UserEntry(), source="test"), clock=CLOCK, environ=ENVIRON
        )
        client = RestKubeClient(Transport(connections, agent="test", qps=200, burst=200))
        names = [f"map-{number}" for number in range(OBJECTS)]
        seen: dict[str, list[int]] = {name: [] for name in names}
        reflectors = [
            Reflector(
                client=client,
                query=Query(kind=ConfigMap, namespace="default", field_selector=f"metadata.name={name}"),
                clock=CLOCK,
                on_change=partial(_note, seen[name]),
            )
            for name in names
        ]
        async with running(*reflectors):
            for _ in range(FAULTS):
                for name in source.sample(names, 5):
                    store.change(name)
                if server.open:
                    source.choice(KINDS)(server, source.choice(server.open), source)
                await CLOCK.sleep(source.uniform(0.0, 0.15))
            with suppress(TimeoutError):
                async with asyncio.timeout(30):
                    while any(versions[-1:] != [store.latest(name)] for name, versions in seen.items()):
                        await CLOCK.sleep(0.05)
        await connections.close()
    # The full set, then every change once and in order.
    assert seen == {name: [1, *store.versions(name)][-len(seen[name]) :] for name in names}
    assert all(versions[-1] == store.latest(name) for name, versions in seen.items())
    assert len(server.requests) < FAULTS * OBJECTS  # each fault costs a watch at most a request or two
    assert len(server.peers) < 3 * FAULTS


@dataclass
class RestartedStore(Store):
    """As an API server after a restart: what happened before it is not known any more."""

    began: int = 0

    async def answer(self, asked: Asked) -> None:
        version = dict(parse_qsl(urlsplit(asked.path).query)).get("resourceVersion", "")
        if version and 0 < int(version) < self.began:
            asked.answer(json.dumps({"kind": "Status", "code": 410, "reason": "Expired"}).encode(), status=410)
            return
        await super().answer(asked)


async def test_restarts_behind_a_rough_wire_lose_nothing_and_cause_no_stampede(tmp_path: Path) -> None:
    source, store = random.Random(3), RestartedStore()
    authority, tls = an_authority(tmp_path)
    tls.set_alpn_protocols(["h2"])
    limit = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 25}
    names = [f"map-{number}" for number in range(WATCHES)]
    asked: list[float] = []

    async def answer(request: Asked) -> None:
        asked.append(CLOCK.monotonic())
        await store.answer(request)

    async with (
        serving(answer, tls=tls, settings=limit) as server,
        rough_wire(server.port, clock=CLOCK, source=source) as wire_,
    ):
        url = server.url.replace(str(server.port), str(wire_.port))
        cluster = ClusterEntry(server=url, ca_data=authority.pair.certificate.read_bytes())
        config = Kubeconfig(cluster=cluster, user=UserEntry(), source="test")
        connections = ServerConnections(config, clock=CLOCK, environ=ENVIRON)
        client = RestKubeClient(Transport(connections, agent="test", qps=QPS, burst=BURST))
        reflectors = [
            Reflector(
                client=client,
                query=Query(kind=ConfigMap, namespace="default", field_selector=f"metadata.name={name}"),
                clock=CLOCK,
            )
            for name in names
        ]
        wire_.delay = 0.02
        async with running(*reflectors):
            for _ in range(RESTARTS):
                await _until_current(reflectors, names, store)
                wire_.drop(0.3)
                await server.stop()
                for name in source.sample(names, WATCHES // 2):
                    store.change(name)
                await CLOCK.sleep(source.uniform(0.0, 0.5))
                store.began, store.watches = store.version, {}
                await server.start()
            await _until_current(reflectors, names, store)
        await connections.close()
    assert max(_in_a_second(asked)) <= BURST + QPS + 10
    assert max(_in_a_second(wire_.opened)) <= 15, "connections are asked for one at a time, and not without end"


async def _until_current(reflectors: list[Reflector[ConfigMap]], names: list[str], store: Store) -> None:
    async with asyncio.timeout(40):
        while not all(_has(each, name, store) for each, name in zip(reflectors, names, strict=True)):
            await CLOCK.sleep(0.05)


def _has(reflector: Reflector[ConfigMap], name: str, store: Store) -> bool:
    found = reflector.get(name, "default")
    return found is not None and found.data == {"version": str(store.latest(name))}


def _in_a_second(times: list[float]) -> list[int]:
    """How many there are in the second from each on."""
    return [sum(1 for other in times if time <= other < time + 1) for time in times]


def _note(seen: list[int], change: Change[ConfigMap]) -> None:
    seen.append(int((change.object.data or {})["version"]))
