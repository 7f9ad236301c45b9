"""The client side of a node on the real control plane: it joins, reads what its pods need, tells events, outlives the
server's restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pykubelet.api.types import (
    BoundObjectReference,
    ConfigMap,
    ConfigMapVolumeSource,
    Container,
    Event,
    Node,
    ObjectMeta,
    Pod,
    PodSpec,
    Secret,
    SecretVolumeSource,
    TokenRequest,
    TokenRequestSpec,
    Volume,
)
from pykubelet.certs.bootstrap import Bootstrap, ClusterAddress
from pykubelet.certs.pem import Pair, Wanted
from pykubelet.certs.rotation import CLIENT_SIGNER, CertificateFiles, CertificateRotation
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.kubeconfig import Kubeconfig, load_kubeconfig
from pykubelet.clients.kube.references import ObjectUnavailable, ReferenceWatcher
from pykubelet.clients.kube.reflector import Query, Reflector
from pykubelet.clients.kube.tokens import TokenManager
from pykubelet.clients.kube.transport import Transport
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.events.sink import ApiEventSink
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import Forbidden
from tests.bed.cluster import Cluster

pytestmark = pytest.mark.cluster

CLOCK = SystemClock()
NODE = "contract-node"


@asynccontextmanager
async def logged_in(config: Kubeconfig) -> AsyncIterator[RestKubeClient]:
    client = RestKubeClient(Transport(ServerConnections(config, clock=CLOCK, environ={}), agent="contract"))
    try:
        yield client
    finally:
        await client.close()


async def until(holds: Any, within: float = 60.0) -> None:
    async with asyncio.timeout(within):
        while not holds():
            await CLOCK.sleep(0.02)


async def read(ask: Callable[[], Awaitable[Any]], data: dict[str, str]) -> None:
    """Until the object holds that; like the agent, ask again while the server does not know yet that we may."""
    found = None
    async with asyncio.timeout(60):
        while found is None or found.data != data:
            await CLOCK.sleep(0.02)
            with suppress(ObjectUnavailable):
                found = await ask()


@asynccontextmanager
async def a_node_with_a_pod(admin: RestKubeClient, node: RestKubeClient) -> AsyncIterator[Pod]:
    """The node registers itself; the admin binds a pod to it that mounts a secret and a config map."""
    await node.create(Node(metadata=ObjectMeta(name=NODE)))
    await admin.create(Secret(metadata=ObjectMeta(name="pw", namespace="default"), data={"a": "Yg=="}))
    await admin.create(ConfigMap(metadata=ObjectMeta(name="conf", namespace="default"), data={"v": "1"}))
    spec = PodSpec(
        node_name=NODE,
        containers=[Container(name="main", image="nowhere/nothing:1")],
        volumes=[
            Volume(name="a", secret=SecretVolumeSource(secret_name="pw")),
            Volume(name="b", config_map=ConfigMapVolumeSource(name="conf")),
        ],
    )
    try:
        yield await admin.create(Pod(metadata=ObjectMeta(name="contract-pod", namespace="default"), spec=spec))
    finally:
        await admin.delete(Pod, "contract-pod", "default", grace_seconds=0)
        await admin.delete(ConfigMap, "conf", "default")
        await admin.delete(Secret, "pw", "default")
        await admin.delete(Node, NODE)


async def test_node_reads_exactly_what_its_pods_refer_to(cluster: Cluster) -> None:
    admin_config = load_kubeconfig(cluster.admin_kubeconfig)
    node_config = load_kubeconfig(cluster.node_kubeconfig(NODE))
    async with logged_in(admin_config) as admin, logged_in(node_config) as node, a_node_with_a_pod(admin, node) as pod:
        references = ReferenceWatcher(kube=node, clock=CLOCK)
        tokens = TokenManager(kube=node, clock=CLOCK)
        poked: list[Any] = []
        references.listen(lambda *changed: poked.append(changed))
        async with running(references):
            references.register(pod)
            await read(lambda: references.secret("default", "pw"), {"a": "Yg=="})
            await read(lambda: references.config_map("default", "conf"), {"v": "1"})
            poked.clear()
            await admin.update(ConfigMap(metadata=ObjectMeta(name="conf", namespace="default"), data={"v": "2"}))
            await until(lambda: poked)
            await read(lambda: references.config_map("default", "conf"), {"v": "2"})
        bound = BoundObjectReference(kind="Pod", api_version="v1", name=pod.metadata.name, uid=pod.metadata.uid)
        spec = TokenRequestSpec(expiration_seconds=3607, bound_object_ref=bound)
        answer = await tokens.token("default", "default", TokenRequest(spec=spec))
        assert answer.status.token
        with pytest.raises(Forbidden):
            await node.get(Secret, "other", "default")


async def test_events_are_told_and_counted(cluster: Cluster) -> None:
    admin_config = load_kubeconfig(cluster.admin_kubeconfig)
    node_config = load_kubeconfig(cluster.node_kubeconfig(NODE))
    async with logged_in(admin_config) as admin, logged_in(node_config) as node, a_node_with_a_pod(admin, node) as pod:
        sink = ApiEventSink(kube=node, clock=CLOCK, node_name=NODE, metrics=Registry())
        events = EventBroadcaster(clock=CLOCK, node_name=NODE, sink=sink)
        async with running(sink):
            for _ in range(3):
                events.pod_event(pod, "Normal", "Pulled", "hello", field_path="spec.containers{main}")
            for index in range(12):
                events.pod_event(pod, "Warning", "Failed", f"message {index}")
            events.node_event("Normal", "Starting", "Starting kubelet.")
            await until(lambda: sink.snapshot()["sent"] == 16)
        selector = f"involvedObject.uid={pod.metadata.uid}"
        found = (await admin.list(Event, "default", field_selector=selector)).items
        assert [(each.reason, each.count) for each in found if each.reason == "Pulled"] == [("Pulled", 3)]
        combined = [each for each in found if (each.message or "").startswith("(combined from similar events)")]
        assert [each.count for each in combined] == [3]
        assert "Starting kubelet." in cluster.kubectl("describe", "node", NODE)
        assert "hello" in cluster.kubectl("describe", "pod", "contract-pod")
        for each in [*found, *(await admin.list(Event, "default")).items]:
            if each.involved_object is not None and each.involved_object.name in (NODE, "contract-pod"):
                await delete_quietly(admin, each)


async def delete_quietly(admin: RestKubeClient, event: Event) -> None:
    from pykubelet.model.errors import NotFound

    try:
        await admin.delete(Event, event.metadata.name or "", "default")
    except NotFound:
        return


async def test_copy_of_objects_survives_a_restart_of_the_server(cluster: Cluster) -> None:
    async with logged_in(load_kubeconfig(cluster.admin_kubeconfig)) as admin:
        query = Query(kind=ConfigMap, namespace="default", label_selector="contract=restart")
        reflector = Reflector(client=admin, query=query, clock=CLOCK)
        async with running(reflector):
            assert await reflector.wait_synced(within=60)
            # Not in a thread: the server is made to end together with the thread that started it.
            cluster.stop_apiserver()
            await CLOCK.sleep(3)
            cluster.start_apiserver()
            made = ConfigMap(metadata=ObjectMeta(name="back", namespace="default", labels={"contract": "restart"}))
            await admin.create(made)
            try:
                await until(lambda: reflector.get("back", "default"), within=40)
            finally:
                await admin.delete(ConfigMap, "back", "default")


async def test_bootstrap_gives_an_identity_that_renews_itself(cluster: Cluster, tmp_path: Path) -> None:
    bootstrap_config = load_kubeconfig(cluster.bootstrap_kubeconfig)
    files = CertificateFiles(tmp_path / "pki", "kubelet-client", CLOCK)
    async with logged_in(bootstrap_config) as bootstrap_client:
        bootstrap = Bootstrap(
            kube=bootstrap_client, files=files, clock=CLOCK, node_name=NODE, kubeconfig=tmp_path / "kubelet.conf"
        )
        address = ClusterAddress(server=bootstrap_config.cluster.server, ca_file=bootstrap_config.cluster.ca_file)
        async with asyncio.timeout(180):
            first = await bootstrap.join(address)
    assert (first.facts.common_name, first.facts.organizations) == (f"system:node:{NODE}", ("system:nodes",))
    async with logged_in(load_kubeconfig(tmp_path / "kubelet.conf")) as node:
        await node.create(Node(metadata=ObjectMeta(name=NODE)))
        try:
            await renew_while_working(node, files)
        finally:
            cluster.kubectl("delete", "node", NODE)


async def renew_while_working(node: RestKubeClient, files: CertificateFiles) -> None:
    """Rotate the certificate under a stream of requests; none of them may fail."""
    renewed = asyncio.Event()

    async def on_new(pair: Pair) -> None:
        if pair.certificate not in known:
            await node.renew()
            renewed.set()

    known = {pair.certificate for pair in [files.load()] if pair is not None}
    rotation = CertificateRotation(
        kube=node,
        files=files,
        clock=CLOCK,
        metrics=Registry(),
        signer=CLIENT_SIGNER,
        wanted=lambda: Wanted(node_name=NODE),
        on_new=on_new,
    )
    rotation.source = random.Random(1)
    rotation._adopt = lambda pair: old_adopt(due(pair))  # type: ignore[method-assign]
    old_adopt = CertificateRotation._adopt.__get__(rotation)

    def due(pair: Pair | None) -> Pair | None:
        """Make the pair on disk look as if its time was nearly up; the new one is taken as it is."""
        if pair is None or pair.certificate not in known:
            return pair
        facts = structs.replace(pair.facts, not_before=CLOCK.now() - 95, not_after=CLOCK.now() + 5)
        return structs.replace(pair, facts=facts)

    async with running(rotation):
        async with asyncio.timeout(120):
            while not renewed.is_set():
                await node.get(Node, NODE)
        for _ in range(20):
            await node.get(Node, NODE)
    pair = files.load()
    assert pair is not None and pair.certificate not in known
