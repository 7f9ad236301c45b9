from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from pykubelet.api.types import Pod
from pykubelet.kit.tasks import running
from pykubelet.model.pod import Source
from pykubelet.sources.api import ApiSource
from tests.unit.sources.doubles import HeardSets, a_pod


class Node:
    def __init__(self) -> None:
        self.known = asyncio.Event()

    async def wait_known(self) -> None:
        await self.known.wait()


class Feed:
    def __init__(self, *sets: Sequence[Pod]) -> None:
        self._sets = sets
        self.began = False

    async def sets(self) -> AsyncGenerator[Sequence[Pod], None]:
        self.began = True
        for each in self._sets:
            yield each
        await asyncio.Event().wait()


async def test_every_set_is_handed_on_once_the_node_is_known() -> None:
    node, sets, feed = Node(), HeardSets(), Feed([a_pod("a")], [a_pod("a"), a_pod("b")], [])
    async with running(ApiSource(feed=feed, node=node, sets=sets)):
        await asyncio.sleep(5)
        assert not feed.began
        node.known.set()
        await asyncio.sleep(1)
    assert sets.names == [["a"], ["a", "b"], []]
    assert {source for source, _ in sets.sets} == {Source.API}
