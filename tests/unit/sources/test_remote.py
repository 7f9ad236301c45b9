from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest

from pykubelet.api.types import Pod
from pykubelet.clients.http.port import Fetched, FetchFailed
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.pod import Source, name_of
from pykubelet.sources.manifests import url_loader
from pykubelet.sources.remote import ApiSource, UrlSource
from tests.fakes.recorded_events import RecordedEvents
from tests.unit.sources.doubles import DeliveredSets, ScriptedFetch, a_delivered_pod, manifest

URL = "http://config/pods"


class UrlSourceFixture:
    def __init__(
        self, *answers: Fetched | Exception, load: Callable[[bytes, str], Sequence[Pod]] | None = None
    ) -> None:
        self.fetch = ScriptedFetch(*answers)
        self.sets = DeliveredSets()
        self.events = RecordedEvents()
        self.clock = LoopClock()
        self.source = UrlSource(
            url=URL,
            headers={"X-Key": "v"},
            check_period=20,
            load=load or url_loader("node"),
            fetch=self.fetch,
            deliver=self.sets.deliver,
            events=self.events,
            clock=self.clock,
        )

    async def check(self, times: int = 1) -> None:
        for _ in range(times):
            await self.source.check()


def _ok(text: str) -> Fetched:
    return Fetched(status=200, body=text.encode())


LIST = """\
apiVersion: v1
kind: PodList
items:
- {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i:1}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {containers: [{name: c, image: i:1}]}}
"""


@pytest.mark.parametrize(
    ("text", "names"), [(manifest("web"), ["web-node"]), (LIST, ["a-node", "b-node"])], ids=["pod", "list"]
)
async def test_a_pod_or_a_list(text: str, names: list[str]) -> None:
    bed = UrlSourceFixture(_ok(text))
    await bed.check()
    assert bed.sets.names == [names]
    assert bed.sets.sets[0][0] is Source.HTTP
    assert bed.fetch.requested == [(URL, {"X-Key": "v"}, 10.0, 10 * 1024 * 1024)]
    pod = bed.sets.sets[0][1][0]
    assert pod.spec.tolerations == []


async def test_an_unchanged_body_is_ignored() -> None:
    bed = UrlSourceFixture(_ok(manifest("web")))
    await bed.check(3)
    assert len(bed.sets.sets) == 1


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (FetchFailed("connection refused"), "connection refused"),
        (Fetched(status=503, body=b"x"), "answered with HTTP status 503"),
        (_ok("kind: Nonsense"), "apiVersion: required, must be v1"),
        (Fetched(status=200, body=b"x" * (10 * 1024 * 1024 + 1)), "more than 10 MiB"),
        (RuntimeError("surprise"), "surprise"),
    ],
)
async def test_trouble_keeps_the_last_good_pods_and_is_told_once(bad: Fetched | Exception, text: str) -> None:
    bed = UrlSourceFixture(_ok(manifest("web")), bad)
    await bed.check(4)
    assert bed.sets.names == [["web-node"]]
    assert len(bed.events.all) == 1
    about, kind, reason, message, _ = bed.events.all[0]
    assert (about, kind, reason) == ("node", "Warning", "FailedValidation")
    assert message.startswith(f"Manifest {URL}: ")
    assert text in message
    assert bed.source.snapshot().problem


async def test_a_first_answer_that_is_bad_leaves_the_source_unheard() -> None:
    bed = UrlSourceFixture(_ok("]"))
    await bed.check(2)
    assert bed.sets.sets == []


async def test_an_empty_body_is_an_empty_set_and_a_problem() -> None:
    bed = UrlSourceFixture(_ok(manifest("web")), _ok(""), _ok(manifest("web")))
    await bed.check(3)
    assert bed.sets.names == [["web-node"], [], ["web-node"]]
    assert ["empty body" in message for _, message in bed.events.node] == [True]
    assert bed.source.snapshot().problem == ""


async def test_it_recovers_from_a_bad_body() -> None:
    bed = UrlSourceFixture(_ok(manifest("web")), _ok("]"), _ok("]"), _ok(manifest("web", "busybox:2")))
    await bed.check(4)
    assert [pods[0].spec.containers[0].image for _, pods in bed.sets.sets] == ["busybox:1", "busybox:2"]


async def test_an_unchanged_body_after_an_outage_ends_the_problem_or_brings_its_own_back() -> None:
    down = FetchFailed("down")
    bed = UrlSourceFixture(_ok(manifest("web")), down, _ok(manifest("web")), _ok("]"), down, _ok("]"))
    problems = []
    for _ in range(6):
        await bed.check()
        problems.append(bed.source.snapshot().problem)
    assert problems[:3] == ["", "down", ""]
    assert problems[4] == "down"
    assert problems[3] == problems[5] != ""
    assert bed.sets.names == [["web-node"]]


async def test_it_asks_again_after_each_period() -> None:
    bed = UrlSourceFixture(_ok(manifest("a")), _ok(manifest("b")))
    async with running(bed.source):
        await bed.clock.sleep(1)
        assert bed.sets.names == [["a-node"]]
        await bed.clock.sleep(19)
        assert bed.sets.names == [["a-node"], ["b-node"]]
        await bed.clock.sleep(59)
        assert len(bed.fetch.requested) == 4


async def test_names_of_pods_are_shown() -> None:
    bed = UrlSourceFixture(_ok(LIST))
    await bed.check()
    assert bed.source.snapshot().pods == ("default/a-node", "default/b-node")
    assert [name_of(pod) for pod in bed.sets.sets[0][1]] == ["a-node", "b-node"]


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
    node, sets, feed = (
        Node(),
        DeliveredSets(),
        Feed([a_delivered_pod("a")], [a_delivered_pod("a"), a_delivered_pod("b")], []),
    )
    async with running(ApiSource(sets=feed.sets, wait_node_known=node.wait_known, deliver=sets.deliver)):
        await asyncio.sleep(5)
        assert not feed.began
        node.known.set()
        await asyncio.sleep(1)
    assert sets.names == [["a"], ["a", "b"], []]
    assert {source for source, _ in sets.sets} == {Source.API}
