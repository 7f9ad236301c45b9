"""How many requests a second an agent makes: as its configuration says, for each of its three clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pykubelet.api.types import Event, Lease, ObjectMeta, ObjectReference, Pod
from pykubelet.cli.cluster_edges import connected_cluster
from pykubelet.clients.kube.port import PatchType
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import gather_all
from pykubelet.model.runtime_status import RuntimeVersion
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.settings.settings import Settings
from tests.unit.cli.test_joining import a_kubeconfig
from tests.unit.clients.kube.api_server import ok, serving

pytestmark = pytest.mark.real_loop


class NotedWaits(SystemClock):
    """Waits are noted and are over at once."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)

    def taken(self) -> list[float]:
        found, self.waits = sorted(self.waits), []
        return found


def settings(folder: Path, url: str, **node: int) -> Settings:
    kubeconfig = a_kubeconfig(folder / "k")
    kubeconfig.write_text(kubeconfig.read_text().replace("https://api:6443", url))
    config = folder / "config.json"
    head = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    config.write_text(json.dumps({**head, **node}))
    loaded = load_settings([f"--kubeconfig={kubeconfig}", f"--config={config}"], environ={})
    assert isinstance(loaded, LoadedSettings)
    return loaded.settings


async def test_objects_and_events_have_the_configured_limits_and_heartbeats_none(tmp_path: Path) -> None:
    clock, version = NotedWaits(), RuntimeVersion(name="fake", version="1", api_version="v1")
    async with serving(ok) as server:
        limits = {"kubeAPIQPS": 1, "kubeAPIBurst": 6, "eventRecordQPS": 2, "eventBurst": 3}
        chosen = settings(tmp_path, server.url, **limits)
        async with connected_cluster(
            chosen, clock=clock, metrics=Registry(), runtime=version, root=tmp_path, node_name="n"
        ) as edges:
            assert edges is not None
            client, meta = edges.client, ObjectMeta(name="x", namespace="ns")
            await gather_all(
                *(client.get(Pod, "x", "ns") for _ in range(2)),
                *(client.patch(Pod, "x", {}, patch_type=PatchType.STRATEGIC, namespace="ns") for _ in range(3)),
                *(client.delete(Pod, "x", "ns") for _ in range(2)),
                client.list(Pod),
            )
            assert clock.taken() == [pytest.approx(1.0, abs=0.5), pytest.approx(2.0, abs=0.5)]
            event = Event(metadata=meta, involved_object=ObjectReference())
            await gather_all(*(edges.events.create(event) for _ in range(5)))
            assert clock.taken() == [pytest.approx(0.5, abs=0.2), pytest.approx(1.0, abs=0.2)]
            await gather_all(*(edges.heartbeat.get(Lease, "n", "kube-node-lease") for _ in range(20)))
            assert clock.taken() == []
    assert len(server.requests) == 33
