"""Devices on the real control plane: Kubernetes' sample device plugin and its driver of dynamic resources."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from pykubelet.wire import podresources_v1_pb2 as podresources
from tests.bed.cluster import Cluster
from tests.bed.csi import wait_until
from tests.bed.device_plugins import DRA_DRIVER, RESOURCE, Program, dra_driver, running, sample_plugin
from tests.bed.runtime import BedContainerd
from tests.cluster.joined import STAY, Joined, container_manifest, joined, phase, pod_manifest

pytestmark = pytest.mark.cluster

SHOW = f"ls /tmp/Dev-*; {STAY}"


@pytest.fixture(scope="module")
def shared(cluster: Cluster, containerd2: BedContainerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    """On containerd 2: the older one knows nothing of CDI."""
    with joined(cluster, containerd2, tmp_path_factory.mktemp("devices"), name="gadgets") as node:
        yield node


@pytest.fixture
def node(shared: Joined) -> Iterator[Joined]:
    yield shared
    shared.clean()


@pytest.fixture(scope="module")
def plugin(shared: Joined) -> Iterator[Program]:
    folder = shared.agent.folder
    with running(sample_plugin(folder, shared.agent.root)) as program:
        wait_until("devices are listed", lambda: amount(shared) == "2")
        yield program


def amount(node: Joined, kind: str = "allocatable") -> str:
    return str(node.cluster.get("node", "gadgets")["status"][kind].get(RESOURCE, ""))


def wanting(name: str) -> dict[str, Any]:
    """Scheduled, so that a pod that finds no device waits instead of failing."""
    return pod_manifest(name, SHOW, containers=[container_manifest(SHOW, resources={"limits": {RESOURCE: "1"}})])


def devices_of(node: Joined) -> dict[str, list[str]]:
    """By pod, what the podresources service says."""
    with grpc.insecure_channel(f"unix://{node.agent.root}/pod-resources/kubelet.sock") as channel:
        listing = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=podresources.ListPodResourcesRequest.SerializeToString,
            response_deserializer=podresources.ListPodResourcesResponse.FromString,
        )
        said = listing(podresources.ListPodResourcesRequest(), timeout=30)
    return {
        pod.name: sorted(each for c in pod.containers for d in c.devices for each in d.device_ids)
        for pod in said.pod_resources
    }


def test_devices_are_given_once(node: Joined, plugin: Program) -> None:
    node.apply(wanting("one"), wanting("two"))
    seen = {node.wait_log(name, "/tmp/Dev-", within=60).split()[0] for name in ("one", "two")}
    assert seen == {"/tmp/Dev-1", "/tmp/Dev-2"}
    node.apply(wanting("three"))
    assert sorted(itertools.chain(*devices_of(node).values())) == ["Dev-1", "Dev-2"]
    node.wait_pod("three", lambda pod: "Insufficient" in json.dumps(pod["status"]), "is not scheduled", within=60)

    before = devices_of(node)
    node.agent.kill9()
    node.agent.start()
    wait_until("the plugin has registered again", lambda: offered(node) == ["Dev-1", "Dev-2"])
    wait_until("the API server knows", lambda: amount(node) == "2")  # or a pod that comes now may be turned away
    wait_until("the agent answers", lambda: answers(node))
    assert {name: devices_of(node)[name] for name in before} == before
    assert {phase(node.pod(name)) for name in ("one", "two")} == {"Running"}

    node.delete("pod", "one")
    node.wait_running("three", within=60)
    held = devices_of(node)
    assert held["three"] == before["one"] and held["two"] == before["two"]


def offered(node: Joined) -> list[str]:
    """The devices the agent itself could give now; the API server may still tell of those before a restart."""
    with grpc.insecure_channel(f"unix://{node.agent.root}/pod-resources/kubelet.sock") as channel:
        asking = channel.unary_unary(
            "/v1.PodResourcesLister/GetAllocatableResources",
            request_serializer=podresources.AllocatableResourcesRequest.SerializeToString,
            response_deserializer=podresources.AllocatableResourcesResponse.FromString,
        )
        try:
            said = asking(podresources.AllocatableResourcesRequest(), timeout=30)
        except grpc.RpcError:
            return []
    return sorted(each for device in said.devices for each in device.device_ids)


def answers(node: Joined) -> bool:
    try:
        return len(devices_of(node)) >= 2
    except grpc.RpcError:
        return False


def test_a_plugin_gone_and_back(node: Joined, plugin: Program) -> None:
    node.apply(wanting("keeper"))
    node.wait_log("keeper", "/tmp/Dev-", within=60)
    node.wait_running("keeper")
    plugin.kill9()
    wait_until("no device can be given", lambda: (amount(node), amount(node, "capacity")) == ("0", "2"))
    sick = node.wait_pod("keeper", lambda pod: health(pod) == ["Unhealthy"], "tells of its device")
    assert phase(sick) == "Running"
    plugin.start()
    wait_until("devices are listed", lambda: amount(node) == "2")
    node.wait_pod("keeper", lambda pod: health(pod) == ["Healthy"], "tells of its device")
    assert sick["status"]["containerStatuses"][0]["restartCount"] == 0


def health(pod: dict[str, Any]) -> list[str]:
    status = pod["status"]["containerStatuses"][0].get("allocatedResourcesStatus") or []
    return [device["health"] for resource in status for device in resource["resources"]]


# --- dynamic resources ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(shared: Joined) -> Iterator[Program]:
    cluster, folder = shared.cluster, shared.agent.folder
    program = dra_driver(folder, shared.agent.root, cluster.admin_kubeconfig, "gadgets")
    cluster.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "test"},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRA_DRIVER}"'}}]},
        }
    )
    with running(program):
        wait_until("devices are published", lambda: cluster.get("resourceslices")["items"])
        yield program
        shared.clean()
    cluster.kubectl("delete", "deviceclass", "test")
    cluster.kubectl("delete", "resourceclaims,resourceclaimtemplates", "--all")


def a_claim_spec() -> dict[str, Any]:
    parameters = {"opaque": {"driver": DRA_DRIVER, "parameters": {"colour": "green"}}}
    requests = [{"name": "gadget", "exactly": {"deviceClassName": "test"}}]
    return {"devices": {"requests": requests, "config": [parameters]}}


def claiming(name: str, **claim: str) -> dict[str, Any]:
    script = f"env; {STAY}"
    pod = pod_manifest(name, containers=[container_manifest(script, resources={"claims": [{"name": "gadget"}]})])
    pod["spec"]["resourceClaims"] = [{"name": "gadget", **claim}]
    return pod


def test_a_claim_is_prepared_used_and_released(node: Joined, driver: Program) -> None:
    template = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "gadget"}}
    node.apply({**template, "spec": {"spec": a_claim_spec()}}, claiming("first", resourceClaimTemplateName="gadget"))
    assert "colour=green" in node.wait_log("first", "colour=green", within=60)
    assert prepared(node)
    node.delete("pod", "first")
    node.wait_gone("first")
    wait_until("the claim is given back", lambda: not prepared(node))


def test_a_driver_restarted_while_pods_share_a_claim(node: Joined, driver: Program) -> None:
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shared"}}
    driver.kill9()
    node.apply({**claim, "spec": a_claim_spec()})
    node.apply(claiming("early", resourceClaimName="shared"))
    driver.start()
    assert "colour=green" in node.wait_log("early", "colour=green", within=90)
    node.apply(claiming("late", resourceClaimName="shared"))
    node.wait_log("late", "colour=green", within=60)
    node.agent.kill9()
    node.agent.start()
    node.delete("pod", "early")
    node.wait_gone("early")
    assert prepared(node)
    node.delete("pod", "late")
    node.wait_gone("late")
    wait_until("the claim is given back", lambda: not prepared(node))


def prepared(node: Joined) -> list[str]:
    state = json.loads((Path(node.agent.root) / "dra_manager_state").read_text())
    return [each["ClaimName"] for each in json.loads(state["Data"])["ClaimInfoStateList"]]
