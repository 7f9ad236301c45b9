from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pykubelet.kit.clock import LoopClock
from pykubelet.model.runtime_status import Image
from pykubelet.node.facts import ImageList, node_images
from tests.unit.node.making import FakeRuntime

SMALL = Image(id="s", tags=("s:1",), size_bytes=1)
BIG = Image(id="b", tags=("b:1", "b:2"), digests=("b@1", "b@2", "b@3", "b@4"), size_bytes=9)


@pytest.mark.parametrize(("limit", "expected"), [(-1, 2), (0, 0), (1, 1), (50, 2)])
def test_the_biggest_images_are_listed_up_to_the_limit(limit: int, expected: int) -> None:
    found = node_images([SMALL, BIG], limit)
    assert len(found) == expected
    if found:
        assert found[0].names == ["b@1", "b@2", "b@3", "b@4", "b:1"]
        assert found[0].size_bytes == 9


async def test_the_runtime_is_asked_every_half_minute_at_most() -> None:
    runtime, clock = FakeRuntime(images=[SMALL]), LoopClock()
    images = ImageList(runtime=runtime, limit=50, clock=clock)
    for _ in range(4):
        assert len(await images.current()) == 1
        await clock.sleep(10)
    assert runtime.lists == 2


async def test_without_a_list_wanted_the_runtime_is_not_asked() -> None:
    runtime = FakeRuntime(images=[SMALL])
    assert await ImageList(runtime=runtime, limit=0, clock=LoopClock()).current() == []
    assert runtime.lists == 0


async def test_a_runtime_that_hangs_is_left_alone_for_a_while() -> None:
    class Hanging(FakeRuntime):
        async def list_images(self, image: str | None = None) -> Sequence[Image]:
            self.lists += 1
            await asyncio.sleep(3600)
            return ()

    runtime = Hanging()
    images = ImageList(runtime=runtime, limit=50, clock=LoopClock())
    with pytest.raises(TimeoutError):
        await images.current()
    assert await images.current() == images.last == []
    assert runtime.lists == 1
