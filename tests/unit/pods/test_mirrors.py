from __future__ import annotations

from typing import Any

from pykubelet.api.types import Node, ObjectMeta, OwnerReference, Pod
from pykubelet.clients.kube.reflector import Query, Reflector
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import Forbidden
from pykubelet.model.pod import HASH_ANNOTATION, MIRROR_ANNOTATION, full_name, uid_of
from pykubelet.node.own_node import OwnNode
from pykubelet.pods.mirrors import MirrorPods, mirror_for
from pykubelet.pods.record import PodWorker, WorkerState
from pykubelet.pods.table import PodTable
from tests.builders import a_pod
from tests.fakes.fake_kube import FakeKube


class MirrorsFixture:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.kube = FakeKube(self.clock)
        self.own = OwnNode("box")
        self.table = PodTable()
        self.api_pods = Reflector(client=self.kube, query=Query(kind=Pod), clock=self.clock, on_set=self._pair)
        self.mirrors = MirrorPods(
            client=self.kube,
            table=self.table,
            api_pod=self.api_pods.get,
            node=self.own,
            clock=self.clock,
        )

    def _pair(self, pods: Any) -> None:
        for gone in self.table.mirrors():
            self.table.remove(gone)
        for pod in pods:
            self.table.put(pod)

    def running(self) -> Any:
        return running(self.api_pods, self.mirrors)

    def node_appears(self) -> None:
        self.own.learn(self.kube.add(Node(metadata=ObjectMeta(name="box", uid="node-1"))))

    def static(self, version: str = "v1") -> Pod:
        pod = a_pod("web-box", static=True, uid=version, node_name="box", labels={"a": "b"})
        for old in self.table.static_pods():
            self.table.remove(old)
        self.table.put(pod)
        return pod

    @property
    def shown(self) -> Pod | None:
        return self.kube.find(Pod, "web-box", "default")


def test_a_mirror_is_the_static_pod_owned_by_the_node() -> None:
    static = a_pod("web-box", static=True, uid="v1", node_name="box", labels={"a": "b"})
    mirror = mirror_for(static, OwnerReference(kind="Node", name="box", uid="node-1", controller=True))
    assert mirror.metadata.uid is None
    assert mirror.metadata.annotations[MIRROR_ANNOTATION] == mirror.metadata.annotations[HASH_ANNOTATION] == "v1"
    assert mirror.metadata.owner_references[0].controller is True
    assert mirror.spec is static.spec and mirror.metadata.labels == {"a": "b"}
    assert MIRROR_ANNOTATION not in static.metadata.annotations


async def test_static_pods_get_their_mirrors_as_soon_as_the_node_is_known() -> None:
    bed = MirrorsFixture()
    await bed.mirrors.reconcile(bed.static())
    async with bed.running():
        await bed.clock.sleep(30)
        assert bed.shown is None
        bed.node_appears()
        await bed.clock.sleep(0.01)
        assert bed.shown is not None
        owner = bed.shown.metadata.owner_references[0]
        assert (owner.api_version, owner.kind, owner.uid, owner.controller) == ("v1", "Node", "node-1", True)


async def test_a_mirror_that_fits_is_left_alone() -> None:
    bed = MirrorsFixture()
    bed.node_appears()
    static = bed.static()
    async with bed.running():
        await bed.clock.sleep(1)
        await bed.mirrors.reconcile(static)
        await bed.clock.sleep(1)
    assert len(bed.kube.calls_of("create", Pod)) == 1
    assert bed.kube.calls_of("delete", Pod) == []


async def test_a_mirror_of_an_older_version_is_replaced() -> None:
    bed = MirrorsFixture()
    bed.node_appears()
    await bed.mirrors.reconcile(bed.static("v1"))
    async with bed.running():
        await bed.clock.sleep(1)
        assert bed.shown is not None
        old = bed.shown.metadata.uid
        await bed.mirrors.reconcile(bed.static("v2"))
        await bed.clock.sleep(1)
        assert bed.shown is not None and bed.shown.metadata.annotations[MIRROR_ANNOTATION] == "v2"
    assert bed.kube.calls_of("delete", Pod)[0].body == {"grace": 0, "uid": old}


async def test_a_mirror_deleted_by_somebody_comes_back() -> None:
    bed = MirrorsFixture()
    bed.node_appears()
    static = bed.static()
    async with bed.running():
        await bed.clock.sleep(1)
        await bed.kube.delete(Pod, "web-box", "default", grace_seconds=30)
        await bed.clock.sleep(1)
        await bed.mirrors.reconcile(static)
        await bed.clock.sleep(1)
        assert bed.shown is not None and bed.shown.metadata.deletion_timestamp is None


async def test_after_a_restart_the_mirror_that_is_there_is_recognised() -> None:
    bed = MirrorsFixture()
    bed.node_appears()
    static = bed.static()
    bed.kube.add(a_pod("web-box", uid="m", node_name="box", annotations={MIRROR_ANNOTATION: "v1"}))
    async with running(bed.mirrors):  # the watch has not shown anything yet
        await bed.mirrors.reconcile(static)
        await bed.clock.sleep(1)
    assert bed.kube.calls_of("delete", Pod) == []
    assert len(bed.kube.calls_of("create", Pod)) == 1


async def test_pods_do_not_wait_for_a_server_that_is_away() -> None:
    bed = MirrorsFixture()
    bed.node_appears()
    bed.kube.stop()
    async with bed.running():
        await bed.mirrors.reconcile(bed.static())
        await bed.clock.sleep(60)
        bed.kube.start()
        await bed.clock.sleep(6)
        assert bed.shown is not None


async def test_a_refusal_is_retried_ever_more_slowly() -> None:
    bed = MirrorsFixture()
    bed.node_appears()
    bed.kube.fail_next("create", Forbidden("no", code=403), times=99)
    async with bed.running():
        await bed.mirrors.reconcile(bed.static())
        await bed.clock.sleep(300)
    assert len(bed.kube.calls_of("create", Pod)) < 15


async def test_mirrors_without_their_pod_are_removed_when_it_has_ended() -> None:
    bed = MirrorsFixture()
    bed.node_appears()
    static = bed.static()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.table.remove(static)
        worker = PodWorker(uid_of(static), full_name(static), static, state=WorkerState.TERMINATED)
        bed.table.add_worker(worker)
        await bed.mirrors.remove_orphans()
        assert bed.shown is not None
        worker.move(WorkerState.FINISHED, "test")
        await bed.mirrors.remove_orphans()
        assert bed.shown is None


async def test_another_pod_of_that_name_is_not_touched() -> None:
    bed = MirrorsFixture()
    bed.node_appears()
    bed.kube.add(a_pod("web-box", uid="theirs"))
    async with bed.running():
        await bed.clock.sleep(1)
        await bed.mirrors.reconcile(a_pod("web-box", static=True, uid="v1"))
        await bed.clock.sleep(10)
    assert bed.shown is not None and bed.shown.metadata.uid == "theirs"
