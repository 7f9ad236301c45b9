"""A node's clients: their limits are apart, and pods arrive as full sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.api.types import Container, Node, ObjectMeta, Pod, PodSpec
from pykubelet.clients.kube.connect import connected
from pykubelet.clients.kube.kubeconfig import ClusterEntry, Kubeconfig, KubeconfigError, UserEntry, with_rotation
from pykubelet.clients.kube.pod_feed import ApiPodFeed
from pykubelet.kit.clock import LoopClock, SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import ApiDown
from pykubelet.settings.schema_node import NodeSettings
from tests.fakes.fake_kube import FakeKube
from tests.unit.clients.kube.api_server import an_authority, ok, serving


@pytest.mark.real_loop
async def test_requests_of_all_clients_are_counted_together() -> None:
    metrics = Registry()
    async with serving(ok) as server:
        config = Kubeconfig(cluster=ClusterEntry(server=server.url), user=UserEntry(), source="test.conf")
        async with connected(config, NodeSettings(), clock=SystemClock(), metrics=metrics) as clients:
            for client in (clients.main, clients.events, clients.heartbeat):
                await client.get(Node, "n1")
            await clients.renew()
            await clients.main.get(Node, "n1")
        assert (
            f'rest_client_requests_total{{code="200",host="127.0.0.1:{server.port}",method="GET"}} 4'
            in metrics.expose()
        )
        assert server.requests[0].headers["User-Agent"].startswith("kubelet/v1.36")
        await server.stop()
        async with connected(config, NodeSettings(), clock=SystemClock(), metrics=metrics) as clients:
            assert not await clients.main.is_healthy()
            with pytest.raises(ApiDown):
                await clients.heartbeat.get(Node, "n1")


@pytest.mark.real_loop
async def test_unreadable_credentials_are_told_at_the_start(tmp_path: Path) -> None:
    user = UserEntry(certificate_file=tmp_path / "c", key_file=tmp_path / "k")
    config = Kubeconfig(cluster=ClusterEntry(server="https://127.0.0.1:1"), user=user, source="test.conf")
    with pytest.raises(KubeconfigError, match=r"kubeconfig test\.conf: client-certificate: .*/c: No such file"):
        async with connected(config, NodeSettings(), clock=SystemClock(), metrics=Registry()):
            raise AssertionError("must not get here")


@pytest.mark.real_loop
async def test_rotated_pair_wins_over_the_kubeconfig_as_soon_as_it_is_there(tmp_path: Path) -> None:
    authority, tls = an_authority(tmp_path)
    pair, pem = authority.issue("first"), tmp_path / "kubelet-client-current.pem"
    async with serving(ok, tls=tls) as server:
        cluster = ClusterEntry(server=server.url, ca_data=authority.pair.certificate.read_bytes())
        user = UserEntry(certificate_file=pair.certificate, key_file=pair.key)
        config = with_rotation(Kubeconfig(cluster=cluster, user=user), pem)
        clock = SystemClock()
        async with connected(config, NodeSettings(), clock=clock, metrics=Registry()) as clients:
            await clients.main.get(Node, "n1")
            second = authority.issue("second")
            pem.write_bytes(second.certificate.read_bytes() + second.key.read_bytes())
            await clock.sleep(1.1)
            await clients.main.get(Node, "n1")
    assert server.clients == ["first", "second"]


async def test_feed_gives_this_nodes_pods_after_every_change() -> None:
    clock = LoopClock()
    kube = FakeKube(clock)

    def a_pod(name: str, node: str) -> Pod:
        spec = PodSpec(node_name=node, containers=[Container(name="main")])
        return Pod(metadata=ObjectMeta(name=name, namespace="shop"), spec=spec)

    kube.add(a_pod("mine", "n1"))
    kube.add(a_pod("other", "n2"))
    feed = ApiPodFeed(kube=kube, clock=clock, node_name="n1").pod_sets()
    assert [pod.metadata.name for pod in await anext(feed)] == ["mine"]
    kube.add(a_pod("second", "n1"))
    assert [pod.metadata.name for pod in await anext(feed)] == ["mine", "second"]
    kube.remove(Pod, "mine", "shop")
    assert [pod.metadata.name for pod in await anext(feed)] == ["second"]
    await feed.aclose()
