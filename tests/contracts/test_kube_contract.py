"""What the agent relies on in an API server, shown on the fake and on the real one side by side."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
import pytest

from pykubelet.api.types import (
    ConfigMap,
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    Lease,
    LeaseSpec,
    Node,
    NodeAddress,
    NodeCondition,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodCondition,
    PodIP,
    PodSpec,
    PodStatus,
    ResourceAttributes,
    ServiceAccount,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    TokenRequest,
    TokenRequestSpec,
    TokenReview,
    TokenReviewSpec,
)
from pykubelet.clients.kube.patch import node_status_patch, pod_status_patch
from pykubelet.clients.kube.port import Change, ChangeType, KubeClient, PatchType
from pykubelet.clients.kube.reflector import Query, Reflector, list_all
from pykubelet.kit.clock import Clock, LoopClock, SystemClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import AlreadyExists, Conflict, Expired, Invalid, NotFound, TooManyRequests
from tests.fakes.fake_kube import FakeKube

NAMESPACE = "default"
THEN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
_numbers = itertools.count(1)


class Subject(Protocol):
    clock: Clock
    real: bool

    def open(self) -> Any: ...

    def restart(self) -> None: ...


class FakeSubject:
    real = False

    def __init__(self) -> None:
        self.clock: Clock = LoopClock()

    def restart(self) -> None:
        raise AssertionError("the fake is told to compact instead")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[KubeClient]:
        fake = FakeKube(self.clock)
        fake.add(ServiceAccount(metadata=ObjectMeta(name="default", namespace=NAMESPACE)))
        yield fake


class ClusterSubject:
    real = True

    def __init__(self, cluster: Any, environ: dict[str, str]) -> None:
        self.clock: Clock = SystemClock()
        self.cluster = cluster
        self._environ = environ

    def restart(self) -> None:
        self.cluster.stop_apiserver()
        self.cluster.start_apiserver()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[KubeClient]:
        from pykubelet.clients.kube.client import RestKubeClient
        from pykubelet.clients.kube.connections import ServerConnections
        from pykubelet.clients.kube.kubeconfig import load_kubeconfig
        from pykubelet.clients.kube.transport import Transport

        config = load_kubeconfig(self.cluster.admin_kubeconfig)
        client = RestKubeClient(
            Transport(ServerConnections(config, clock=self.clock, environ=self._environ), agent="contract")
        )
        try:
            yield client
        finally:
            await client.close()


REAL = {"real": {}, "real over HTTP/1.1": {"DISABLE_HTTP2": "1"}}


@pytest.fixture(params=["fake", *(pytest.param(name, marks=pytest.mark.cluster) for name in REAL)])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "fake":
        yield FakeSubject()
    else:
        yield ClusterSubject(request.getfixturevalue("cluster"), REAL[request.param])


def a_name() -> str:
    return f"contract-{next(_numbers)}"


def a_map(name: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=NAMESPACE), data=data)


def a_bound_pod(name: str, node: str = "") -> Pod:
    # Bound to a node that is not there: nobody else touches its status. A node of its own: after 40 s the garbage
    # collector takes the pods of such a node, also one that was made just then.
    spec = PodSpec(node_name=node or None, containers=[Container(name="main", image="nowhere/nothing:1")])
    return Pod(metadata=ObjectMeta(name=name, namespace=NAMESPACE), spec=spec)


@asynccontextmanager
async def made(kube: KubeClient, obj: Any) -> AsyncIterator[Any]:
    created = await kube.create(obj)
    try:
        yield created
    finally:
        with suppress(NotFound):
            await kube.delete(type(obj), created.metadata.name, created.metadata.namespace or "", grace_seconds=0)


async def next_change(changes: Any) -> Change[Any]:
    async with asyncio.timeout(60):
        while True:
            change: Change[Any] = await anext(changes)
            if change.type is not ChangeType.BOOKMARK:
                return change


async def test_names_are_unique_and_absence_is_told(subject: Subject) -> None:
    async with subject.open() as kube:
        name = a_name()
        with pytest.raises(NotFound):
            await kube.get(ConfigMap, name, NAMESPACE)
        async with made(kube, a_map(name, a="b")) as created:
            assert created.metadata.uid and created.metadata.resource_version
            with pytest.raises(AlreadyExists):
                await kube.create(a_map(name))
            assert (await kube.get(ConfigMap, name, NAMESPACE)).data == {"a": "b"}
        with pytest.raises(NotFound):
            await kube.delete(ConfigMap, name, NAMESPACE)


async def test_update_needs_the_current_version(subject: Subject) -> None:
    async with subject.open() as kube:
        lease = Lease(
            metadata=ObjectMeta(name=a_name(), namespace=NAMESPACE),
            spec=LeaseSpec(holder_identity="me", lease_duration_seconds=40, renew_time="2024-05-06T07:08:09.000001Z"),
        )
        async with made(kube, lease) as old:
            spec = msgspec.structs.replace(old.spec, renew_time="2024-05-06T07:08:19.000001Z")
            new = await kube.update(msgspec.structs.replace(old, spec=spec))
            assert new.spec.renew_time == "2024-05-06T07:08:19.000001Z"
            assert new.metadata.resource_version != old.metadata.resource_version
            with pytest.raises(Conflict):
                await kube.update(old)


async def test_watch_tells_changes_in_order_and_resumes(subject: Subject) -> None:
    async with subject.open() as kube:
        name = a_name()
        query = Query(kind=ConfigMap, namespace=NAMESPACE, field_selector=f"metadata.name={name}")
        listed = await list_all(kube, query)
        assert listed.items == []
        options = {"field_selector": query.field_selector}
        changes = kube.watch(ConfigMap, NAMESPACE, resource_version=listed.resource_version, **options)
        async with aclosing(changes), made(kube, a_map(name, v="1")):
            added = await next_change(changes)
            assert (added.type, added.object.data) == (ChangeType.ADDED, {"v": "1"})
            await kube.patch(ConfigMap, name, {"data": {"v": "2"}}, patch_type=PatchType.MERGE, namespace=NAMESPACE)
            changed = await next_change(changes)
            assert (changed.type, changed.object.data) == (ChangeType.MODIFIED, {"v": "2"})
        again = kube.watch(ConfigMap, NAMESPACE, resource_version=added.object.metadata.resource_version, **options)
        async with aclosing(again):
            assert (await next_change(again)).object.data == {"v": "2"}
            gone = await next_change(again)
            assert (gone.type, gone.object.metadata.name) == (ChangeType.DELETED, name)


async def test_reflector_follows_whether_or_not_the_server_begins_watches_with_the_full_set(subject: Subject) -> None:
    """The real one cannot: it has Debian's etcd."""
    async with subject.open() as kube:
        await follows(kube, subject.clock)
        assert kube.watch_lists.usable(subject.clock.monotonic()) == (not subject.real)


async def follows(kube: KubeClient, clock: Clock) -> None:
    name = a_name()
    query = Query(kind=ConfigMap, namespace=NAMESPACE, field_selector=f"metadata.name={name}")
    heard: list[ChangeType] = []
    live = Reflector(client=kube, query=query, clock=clock, on_change=lambda each: heard.append(each.type))
    async with running(live):
        assert await live.wait_synced(within=10)
        assert live.all() == []
        async with made(kube, a_map(name, v="1")):
            await until(lambda: heard == [ChangeType.ADDED], clock)
        await until(lambda: heard == [ChangeType.ADDED, ChangeType.DELETED], clock)


async def until(holds: Callable[[], bool], clock: Clock) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await clock.sleep(0.02)


async def test_all_pages_are_one_set(subject: Subject) -> None:
    async with subject.open() as kube:
        label = a_name()
        for index in range(5):
            await kube.create(
                ConfigMap(metadata=ObjectMeta(name=f"{label}-{index}", namespace=NAMESPACE, labels={"set": label}))
            )
        try:
            page = await kube.list(ConfigMap, NAMESPACE, label_selector=f"set={label}", limit=2)
            assert len(page.items) == 2 and page.continue_token
            names = [each.metadata.name for each in page.items]
            while page.continue_token:
                page = await kube.list(
                    ConfigMap,
                    NAMESPACE,
                    label_selector=f"set={label}",
                    limit=2,
                    continue_token=page.continue_token,
                )
                names += [each.metadata.name for each in page.items]
            assert names == [f"{label}-{index}" for index in range(5)]
        finally:
            for index in range(5):
                await kube.delete(ConfigMap, f"{label}-{index}", NAMESPACE)


async def test_four_kinds_of_patches(subject: Subject) -> None:
    async with subject.open() as kube:
        name = a_name()
        async with made(kube, a_map(name, a="1", b="2")):
            bodies: list[tuple[PatchType, Any]] = [
                (PatchType.JSON, [{"op": "add", "path": "/data/c", "value": "3"}, {"op": "remove", "path": "/data/a"}]),
                (PatchType.MERGE, {"data": {"b": None, "d": "4"}}),
                (PatchType.STRATEGIC, {"data": {"e": "5"}}),
                (
                    PatchType.APPLY,
                    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"f": "6"}},
                ),
            ]
            for patch_type, body in bodies:
                manager = "contract" if patch_type is PatchType.APPLY else ""
                result = await kube.patch(
                    ConfigMap, name, body, patch_type=patch_type, namespace=NAMESPACE, field_manager=manager
                )
            assert result.data == {"c": "3", "d": "4", "e": "5", "f": "6"}
            with pytest.raises(Invalid):
                await kube.patch(
                    ConfigMap,
                    name,
                    [{"op": "remove", "path": "/data/none"}],
                    patch_type=PatchType.JSON,
                    namespace=NAMESPACE,
                )


def a_status(ip: str, *, ready: bool) -> PodStatus:
    running = ContainerState(running=ContainerStateRunning(started_at=THEN))
    conditions = [
        PodCondition(type="PodReadyToStartContainers", status="True", last_transition_time=THEN),
        PodCondition(type="Initialized", status="True", last_transition_time=THEN),
        PodCondition(
            type="Ready",
            status="True" if ready else "False",
            reason=None if ready else "ContainersNotReady",
            last_transition_time=THEN,
        ),
    ]
    return PodStatus(
        phase="Running",
        qos_class="BestEffort",
        host_ip="10.1.1.1",
        pod_ip=ip,
        pod_ips=[PodIP(ip=ip)],
        start_time=THEN,
        conditions=conditions,
        container_statuses=[
            ContainerStatus(
                name="main",
                image="nowhere/nothing:1",
                image_id="sha256:1",
                ready=ready,
                restart_count=0,
                started=True,
                state=running,
            )
        ],
    )


async def send_status(kube: KubeClient, pod: Pod, status: PodStatus) -> Pod:
    body = pod_status_patch(pod, status)
    assert body is not None
    return await kube.patch(
        Pod,
        pod.metadata.name or "",
        body,
        patch_type=PatchType.STRATEGIC,
        namespace=NAMESPACE,
        subresource="status",
    )


async def test_status_patch_gives_exactly_the_wanted_status(subject: Subject) -> None:
    async with subject.open() as kube, made(kube, a_bound_pod(a_name(), node=a_name())) as pod:
        first = a_status("10.9.0.1", ready=False)
        after = await send_status(kube, pod, first)
        assert pod_status_patch(after, first) is None, "nothing is left to say"
        second = a_status("10.9.0.2", ready=True)
        after = await send_status(kube, after, second)
        assert [each.ip for each in after.status.pod_ips] == ["10.9.0.2"]
        kinds = ["PodReadyToStartContainers", "Initialized", "Ready"]
        assert [each.type for each in after.status.conditions if each.type in kinds] == kinds
        assert after.status.conditions[-1].reason is None
        assert pod_status_patch(after, second) is None


async def test_status_patch_keeps_what_others_wrote(subject: Subject) -> None:
    async with subject.open() as kube, made(kube, a_bound_pod(a_name(), node=a_name())) as pod:
        foreign = {"status": {"conditions": [{"type": "example.com/gate", "status": "True"}]}}
        await kube.patch(
            Pod,
            pod.metadata.name,
            foreign,
            patch_type=PatchType.STRATEGIC,
            namespace=NAMESPACE,
            subresource="status",
        )
        after = await send_status(kube, pod, a_status("10.9.0.1", ready=True))
        assert "example.com/gate" in [each.type for each in after.status.conditions]


async def test_status_of_another_uid_is_refused(subject: Subject) -> None:
    async with subject.open() as kube, made(kube, a_bound_pod(a_name(), node=a_name())) as pod:
        body = {**(pod_status_patch(pod, a_status("10.9.0.1", ready=True)) or {}), "metadata": {"uid": "another"}}
        with pytest.raises(Conflict):
            await kube.patch(
                Pod,
                pod.metadata.name,
                body,
                patch_type=PatchType.STRATEGIC,
                namespace=NAMESPACE,
                subresource="status",
            )


async def test_graceful_deletion_waits_for_the_node(subject: Subject) -> None:
    async with subject.open() as kube, made(kube, a_bound_pod(a_name(), node=a_name())) as pod:
        name = pod.metadata.name
        with pytest.raises(Conflict):
            await kube.delete(Pod, name, NAMESPACE, grace_seconds=0, uid="another")
        await kube.delete(Pod, name, NAMESPACE, grace_seconds=30)
        marked = await kube.get(Pod, name, NAMESPACE)
        assert marked.metadata.deletion_timestamp is not None
        assert marked.metadata.deletion_grace_period_seconds == 30
        await kube.delete(Pod, name, NAMESPACE, grace_seconds=0, uid=pod.metadata.uid)
        with pytest.raises(NotFound):
            await kube.get(Pod, name, NAMESPACE)


async def test_node_status_and_labels_travel_together(subject: Subject) -> None:
    node = Node(metadata=ObjectMeta(name=a_name(), labels={"a": "1"}))
    async with subject.open() as kube, made(kube, node) as old:
        new = msgspec.structs.replace(
            old,
            metadata=msgspec.structs.replace(old.metadata, labels={**old.metadata.labels, "b": "2"}),
            status=NodeStatus(
                capacity={"cpu": "2", "memory": "1Gi"},
                addresses=[
                    NodeAddress(type="InternalIP", address="10.1.1.1"),
                    NodeAddress(type="InternalIP", address="fd00::1"),
                    NodeAddress(type="Hostname", address="here"),
                ],
                conditions=[
                    NodeCondition(type="Ready", status="True", last_heartbeat_time=THEN, last_transition_time=THEN)
                ],
            ),
        )
        after = await patch_node(kube, old, new)
        assert after.metadata.labels["b"] == "2"
        assert [each.address for each in after.status.addresses] == ["10.1.1.1", "fd00::1", "here"]
        fewer = msgspec.structs.replace(
            after, status=msgspec.structs.replace(after.status, addresses=after.status.addresses[1:])
        )
        last = await patch_node(kube, after, fewer)
        assert [each.address for each in last.status.addresses] == ["fd00::1", "here"]
        # A controller may have written an annotation of its own meanwhile; what we wrote must be as we wrote it.
        assert node_status_patch(last, msgspec.structs.replace(fewer, metadata=last.metadata)) is None


async def patch_node(kube: KubeClient, old: Node, new: Node) -> Node:
    body = node_status_patch(old, new)
    assert body is not None
    name = old.metadata.name or ""
    return await kube.patch(Node, name, body, patch_type=PatchType.STRATEGIC, subresource="status")


async def test_tokens_are_made_and_reviewed(subject: Subject) -> None:
    async with subject.open() as kube:
        request = TokenRequest(spec=TokenRequestSpec(expiration_seconds=600))
        made_token = await kube.create_token(NAMESPACE, "default", request)
        assert made_token.status.token and made_token.status.expiration_timestamp is not None
        wrong = await kube.create(TokenReview(spec=TokenReviewSpec(token="not-a-token")))
        assert not wrong.status.authenticated
        review = SubjectAccessReview(
            spec=SubjectAccessReviewSpec(
                user="admin",
                groups=["system:masters"],
                resource_attributes=ResourceAttributes(verb="get", resource="nodes", subresource="proxy"),
            )
        )
        assert (await kube.create(review)).status.allowed is True
        with pytest.raises(NotFound):
            await kube.create_token(NAMESPACE, "no-such-account", request)


async def test_old_versions_expire(subject: Subject) -> None:
    async with subject.open() as kube:
        if isinstance(kube, FakeKube):
            kube.compact()
        else:  # its memory of changes starts anew with the process
            subject.restart()

        async def oldest() -> None:
            while True:
                with suppress(TooManyRequests):  # its memory is only being filled
                    async with aclosing(kube.watch(ConfigMap, NAMESPACE, resource_version="1")) as changes:
                        await next_change(changes)
                        return
                await subject.clock.sleep(0.1)

        with pytest.raises(Expired):
            async with asyncio.timeout(60):
                await oldest()
