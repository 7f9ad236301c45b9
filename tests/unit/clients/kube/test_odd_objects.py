"""Thousands of objects that a real API server would store, through list and watch: every one that can be read is seen.

An ordinary run takes a few thousand; `PYKUBELET_FUZZ_OBJECTS=100000` takes that many (about a minute).
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from pykubelet.api.codec import encode_json
from pykubelet.api.types import ConfigMap, Pod, Secret, Service
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.decoding import UnreadableObjects
from pykubelet.clients.kube.reflector import Query, Reflector
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from tests.fakes.fake_transport import FakeTransport
from tests.odd_objects import OddObjects

OBJECTS = int(os.environ.get("PYKUBELET_FUZZ_OBJECTS", "4000"))
ROUND = 400
"""Objects of one list and the watch after it."""
KINDS: list[type[Any]] = [Pod, Service, Secret, ConfigMap]

pytestmark = pytest.mark.real_loop


@pytest.mark.parametrize("kind", KINDS)
async def test_whatever_is_stored_nothing_readable_is_missed(kind: type[Any]) -> None:
    for seed in range(max(1, OBJECTS // len(KINDS) // ROUND)):
        await one_round(kind, seed)


async def one_round(kind: type[Any], seed: int) -> None:
    source, objects = random.Random(seed), OddObjects(seed)
    bad = {number for number in range(ROUND) if source.random() < 0.1}

    def made(number: int, version: int) -> str:
        make = objects.broken if number in bad else objects.odd
        return make(kind.__name__, f"o{number}", version)

    half = ROUND // 2
    items = ",".join(made(number, 1) for number in range(half))
    transport = FakeTransport(f'{{"metadata":{{"resourceVersion":"1"}},"items":[{items}]}}'.encode())
    book = UnreadableObjects()
    client = RestKubeClient(transport.as_transport, unreadable=book)
    seen, done = [], asyncio.Event()

    def heard(change: Any) -> None:
        seen.append(change.object.metadata.name)
        if change.object.metadata.name == "last":
            done.set()

    live: Reflector[Any] = Reflector(client=client, query=Query(kind=kind), clock=LoopClock(), on_change=heard)
    async with running(live):
        for number in range(half, ROUND):
            transport.send(f'{{"type":"ADDED","object":{made(number, number)}}}'.encode())
        gone = sorted(set(range(0, ROUND, 7)))
        for number in gone:
            transport.send(f'{{"type":"DELETED","object":{made(number, ROUND + number)}}}'.encode())
        transport.send(b'{"type":"ADDED","object":{"metadata":{"name":"last","resourceVersion":"9999"}}}')
        async with asyncio.timeout(300):
            await done.wait()
        kept = {obj.metadata.name for obj in live.all()}
        assert kept == {f"o{number}" for number in range(ROUND) if number not in bad and number not in gone} | {"last"}
        assert transport.watched_from == ["1"], "the watch never broke"
        lacking = {each.name for each in book.now()}
        assert lacking == {f"o{number}" for number in bad if number not in gone}
        for obj in live.all():
            encode_json(obj)
    await client.close()
