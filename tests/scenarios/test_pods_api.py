"""What watchers of the Pods service hear while pods live: one coherent story of each."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pykubelet.hollow.cri_values import Behaviour
from pykubelet.model.pod import name_of
from pykubelet.server.pods_api import PodFeed, Watcher
from pykubelet.wire import core_v1_pod_pb2 as core
from pykubelet.wire.pods_v1alpha1_pb2 import EventType
from tests.builders import a_container, a_pod
from tests.harness import NodeHarness, a_node
from tests.scenarios.cluster_node import a_cluster_node

GATE = "--feature-gates=PodsAPI=true"


class Story:
    """Everything that one watcher hears."""

    def __init__(self, node: NodeHarness) -> None:
        feed = node.node.server.pod_feed
        assert isinstance(feed, PodFeed)
        self.feed = feed
        watcher = feed.open()
        assert isinstance(watcher, Watcher)
        self._watcher = watcher
        self.heard: list[tuple[str, core.Pod]] = []

    async def read(self) -> list[tuple[str, core.Pod]]:
        """All that has been told so far."""
        try:
            while True:
                async with asyncio.timeout(0.01):
                    kind, sent = await self._watcher.next()
                self.heard.append((EventType.Name(kind), core.Pod.FromString(sent.content)))
        except TimeoutError:
            return self.heard

    async def kinds(self, name: str) -> list[str]:
        return [kind for kind, pod in await self.read() if pod.metadata.name == name]


async def test_a_pod_is_added_then_modified_then_deleted(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path, GATE) as node:
        node.cri.program(Behaviour(stops_after=None), name="app")
        story = Story(node)
        pod = node.bind(labels={"state": "initial"})
        await node.until(lambda: node.phase() == "Running")
        for state in ("changed", "changed again"):
            shown = node.shown()
            assert shown is not None
            node.change(shown, labels={"state": state})
            await node.clock.sleep(1)
        await node.delete(grace=10)
        await node.clock.sleep(1)
        shown = node.shown()
        assert shown is not None
        node.change(shown, labels={"state": "while it ends"})
        await node.until(lambda: node.shown() is None)
        heard = await story.read()
        kinds = [kind for kind, _ in heard]
        assert kinds == ["ADDED", *["MODIFIED"] * (len(heard) - 2), "DELETED"]
        assert {each.metadata.uid for _, each in heard} == {pod.metadata.uid}
        states = [each.metadata.labels["state"] for _, each in heard[:-1]]
        assert list(dict.fromkeys(states)) == ["initial", "changed", "changed again", "while it ends"]
        ending = [each.metadata.HasField("deletionTimestamp") for _, each in heard[:-1]]
        assert ending == sorted(ending) and ending[-1]
        assert all(each.status.phase for _, each in heard[:-1])
        await node.clock.sleep(60)
        assert len(await story.read()) == len(heard)


async def test_static_pods_are_told_of_under_their_own_uid(tmp_path: Path) -> None:
    async with a_node(tmp_path, GATE) as node:
        story = Story(node)
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        node.remove("web")
        await node.until_running_only()
        await node.clock.sleep(10)
        kinds = await story.kinds(name_of(pod))
        assert (kinds[0], kinds[-1], kinds.count("DELETED")) == ("ADDED", "DELETED", 1)


async def test_a_pod_that_ended_is_deleted_for_watchers_and_listed_until_it_is_gone(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path, GATE) as node:
        before = Story(node)
        node.bind("job", containers=[a_container("app")], restart_policy="Never")
        await node.until(lambda: node.phase("job") == "Running")
        node.cri.exit("app", 0)
        await node.until(lambda: node.phase("job") == "Succeeded")
        await node.clock.sleep(10)
        assert (await before.kinds("job"))[-1] == "DELETED"
        assert [each.meta.name for each in before.feed.pods()] == ["job"]
        after = Story(node)
        await node.delete("job", grace=0)
        await node.clock.sleep(10)
        assert await after.kinds("job") == ["DELETED"]
        assert (await before.kinds("job")).count("DELETED") == 1


async def test_a_refused_pod_is_told_of_until_its_source_forgets_it(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path, GATE) as node:
        story = Story(node)
        node.bind("odd", node_selector={"no": "node"})
        await node.until(lambda: node.phase("odd") == "Failed")
        await node.delete("odd", grace=0)
        await node.clock.sleep(10)
        kinds = await story.kinds("odd")
        assert (kinds[0], kinds[-1], kinds.count("DELETED")) == ("ADDED", "DELETED", 1)


async def test_without_the_gate_there_is_nothing(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        assert node.node.server.pod_feed is None
