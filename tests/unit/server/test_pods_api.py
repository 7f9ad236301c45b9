"""The Pods service: what it says over a real socket, and callers that are too many, too slow or too curious."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from pykubelet.api.types import Pod, PodStatus
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.pod import uid_of
from pykubelet.pods.record import ReportedStatus
from pykubelet.pods.table import PodTable
from pykubelet.server import local_grpc, pods_api
from pykubelet.server.pods_api import MAX_WAITING, MAX_WATCHERS, PodFeed, PodsServer, TooSlow, Watcher
from pykubelet.wire import core_v1_pod_pb2 as core
from pykubelet.wire import pods_v1alpha1_pb2 as v1alpha1
from tests.builders import a_pod
from tests.grpc_services import Stub


def a_table(*names: str) -> PodTable:
    table = PodTable()
    for name in names:
        table.put(a_pod(name, uid=f"uid-{name}", status=PodStatus(phase="Pending")))
    return table


def report(table: PodTable, pod: Pod, phase: str = "Running", *, finished: bool = False) -> None:
    status = PodStatus(phase=phase)
    table.report(ReportedStatus(pod=pod, status=status, version=1, plain=status, finished=finished))


@asynccontextmanager
async def served(folder: Path, feed: PodFeed, metrics: Registry | None = None) -> AsyncIterator[Stub]:
    socket = folder / "pods-api.sock"
    server = PodsServer(socket=socket, feed=feed, clock=SystemClock(), metrics=metrics or Registry())
    fixed_window = [("grpc.http2.bdp_probe", 0)]  # or gRPC takes more and more for a caller that does not read
    async with running(server), grpc.aio.insecure_channel(f"unix:{socket}", fixed_window) as channel:
        stub = Stub(channel, v1alpha1, "Pods")
        await channel.channel_ready()
        yield stub
    assert not socket.exists()


def shown(content: bytes) -> tuple[str, str]:
    pod = core.Pod.FromString(content)
    return pod.metadata.name, pod.status.phase


async def events(call: Any, count: int) -> list[tuple[str, str, str]]:
    found = []
    for _ in range(count):
        event = await call.read()
        found.append((v1alpha1.EventType.Name(event.type), *shown(event.pod)))
    return found


@pytest.mark.real_loop
async def test_pods_are_listed_found_and_watched(tmp_path: Path) -> None:
    table = a_table("b", "a")
    first = table.pod("uid-a")
    assert first is not None
    report(table, first)
    feed = PodFeed(table)
    async with served(tmp_path, feed) as stub:
        listed = await stub.ListPods(v1alpha1.ListPodsRequest())
        assert [shown(each) for each in listed.pods] == [("a", "Running"), ("b", "Pending")]
        got = await stub.GetPod(v1alpha1.GetPodRequest(podUID="uid-a"))
        assert shown(got.pod) == ("a", "Running")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetPod(v1alpha1.GetPodRequest(podUID="uid-x"))
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.NOT_FOUND,
            "pod with UID uid-x not found",
        )

        call = stub.WatchPods(v1alpha1.WatchPodsRequest())
        begun = [("ADDED", "a", "Running"), ("ADDED", "b", "Pending"), ("INITIAL_SYNC_COMPLETE", "", "")]
        assert await events(call, 3) == begun
        new = a_pod("c", uid="uid-c")
        table.put(new)
        feed.changed("uid-c")  # without a status yet
        for phase in ("Pending", "Running"):
            report(table, new, phase)
            feed.changed("uid-c")
        report(table, new, "Succeeded", finished=True)
        feed.changed("uid-c")
        feed.changed("uid-c")
        report(table, first, "Failed")
        feed.changed("uid-a")
        assert await events(call, 4) == [
            ("ADDED", "c", "Pending"),
            ("MODIFIED", "c", "Running"),
            ("DELETED", "c", ""),
            ("MODIFIED", "a", "Failed"),
        ]
        table.remove(first)
        feed.drop_gone()
        event = await call.read()
        assert event.type == v1alpha1.DELETED
        gone = core.Pod.FromString(event.pod)
        assert gone.metadata == core.ObjectMeta(name="a", namespace="default", uid="uid-a")
        assert (gone.spec, gone.status) == (core.PodSpec(), core.PodStatus())
        call.cancel()


@pytest.mark.real_loop
async def test_a_watcher_that_does_not_read_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods_api, "SEND_WITHIN", 0.3)
    monkeypatch.setattr(pods_api, "END_WITHIN", 0.1)
    table, metrics = a_table(), Registry()
    for index in range(50):
        table.put(a_pod(f"p{index}", uid=f"uid-{index}", annotations={"big": "x" * 200_000}))
    feed = PodFeed(table)
    async with served(tmp_path, feed, metrics) as stub:
        call = stub.WatchPods(v1alpha1.WatchPodsRequest())
        assert (await call.read()).type == v1alpha1.ADDED
        async with asyncio.timeout(10):
            while "kubelet_pod_watch_events_dropped_total 1" not in metrics.expose():
                await SystemClock().sleep(0.05)
        async with asyncio.timeout(10):
            while feed.watchers:
                await SystemClock().sleep(0.05)
        await SystemClock().sleep(0.3)  # the service has given up; what it said is there for who reads on
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(10):
                while await call.read() is not grpc.aio.EOF:
                    pass
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "watch client channel closed",
        )


@pytest.mark.real_loop
async def test_only_so_many_watchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_grpc, "BURST", 1000)
    feed = PodFeed(a_table("a"))
    async with served(tmp_path, feed) as stub:
        calls = [stub.WatchPods(v1alpha1.WatchPodsRequest()) for _ in range(MAX_WATCHERS)]
        for call in calls:
            assert len(await events(call, 2)) == 2
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await events(stub.WatchPods(v1alpha1.WatchPodsRequest()), 1)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        calls[0].cancel()
        async with asyncio.timeout(10):
            while feed.watchers == MAX_WATCHERS:
                await SystemClock().sleep(0.05)
        assert len(await events(stub.WatchPods(v1alpha1.WatchPodsRequest()), 2)) == 2


@pytest.mark.real_loop
async def test_too_many_calls_and_too_big_ones_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path, PodFeed(a_table())) as stub:
        refused = 0
        for _ in range(local_grpc.BURST * 20):
            try:
                await stub.ListPods(v1alpha1.ListPodsRequest())
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                refused += 1
        assert refused
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetPod(v1alpha1.GetPodRequest(podUID="x" * local_grpc.MAX_REQUEST))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_events_do_not_pile_up_for_a_watcher() -> None:
    table = a_table("a")
    pod = table.pod("uid-a")
    assert pod is not None
    feed = PodFeed(table)
    watcher = feed.open()
    assert isinstance(watcher, Watcher)
    for _ in range(MAX_WAITING + 5):
        report(table, pod)
        feed.changed("uid-a")
    with pytest.raises(TooSlow):
        await watcher.next()


async def test_what_is_asked_for_again_is_encoded_once() -> None:
    table = a_table("a")
    feed = PodFeed(table)
    (before,) = feed.pods()
    assert feed.pod("uid-a") is before
    pod = table.pod("uid-a")
    assert pod is not None
    report(table, pod)
    (after,) = feed.pods()
    assert after is not before and uid_of(pod) == after.uid
    table.remove(pod)
    table.forget_reported("uid-a")
    feed.drop_gone()
    assert feed.pods() == [] and feed.pod("uid-a") is None
