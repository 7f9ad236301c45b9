"""What statuses say of the resources of a pod as a whole, and of containers that ask for none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.api.types import ContainerStatus, Pod, PodStatus, ResourceRequirements
from pykubelet.clients.kube.patch import pod_status_patch
from pykubelet.model.pod_resources import pod_requests
from tests.builders import a_container, a_pod
from tests.harness import a_node

BURSTABLE = ResourceRequirements(
    requests={"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "1Gi"}, limits={"memory": "128Mi"}
)


async def test_every_pod_says_what_it_was_promised_and_holds(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        containers = [a_container("a", resources=BURSTABLE), a_container("b", resources=BURSTABLE)]
        pod = node.run(a_pod("web", containers=containers, overhead={"memory": "10Mi"}))
        await node.until_running(pod)
        status = node.status(pod)
        requests = {"cpu": "200m", "memory": "138Mi", "ephemeral-storage": "2Gi"}
        assert status.allocated_resources == requests
        assert status.resources == ResourceRequirements(requests=requests, limits={"memory": "266Mi"})


async def test_pod_level_amounts_go_before_those_of_the_containers(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        level = ResourceRequirements(requests={"cpu": "1"}, limits={"cpu": "2"})
        pod = node.run(a_pod("web", containers=[a_container("a", resources=BURSTABLE)], resources=level))
        await node.until_running(pod)
        status = node.status(pod)
        requests = {"cpu": "1", "memory": "64Mi", "ephemeral-storage": "1Gi"}
        assert status.allocated_resources == requests
        assert status.resources is not None
        assert (status.resources.requests, status.resources.limits) == (requests, {"cpu": "2", "memory": "128Mi"})


async def test_with_the_gate_off_nothing_is_said(tmp_path: Path) -> None:
    async with a_node(tmp_path, "--feature-gates=InPlacePodLevelResourcesVerticalScaling=false") as node:
        pod = node.run(a_pod("web", containers=[a_container("a", resources=BURSTABLE)]))
        await node.until_running(pod)
        assert (node.status(pod).allocated_resources, node.status(pod).resources) == ({}, None)


@pytest.mark.parametrize("told", [None, ContainerStatus(name="app")])
def test_empty_resources_of_a_running_container_are_told(told: ContainerStatus | None) -> None:
    """Clients look into them without asking whether they are there."""
    before = PodStatus(phase="Running", container_statuses=[told] if told is not None else [])
    pod = a_pod("web", status=before)
    status = PodStatus(
        phase="Running", container_statuses=[ContainerStatus(name="app", resources=ResourceRequirements())]
    )
    patch = pod_status_patch(pod, status)
    assert patch is not None and patch["status"]["containerStatuses"] == [{"name": "app", "resources": {}}]


def test_overhead_in_a_status_is_not_counted_twice() -> None:
    pod: Pod = a_pod(
        "web",
        overhead={"cpu": "100m"},
        resources=ResourceRequirements(requests={"cpu": "1"}),
        status=PodStatus(
            resources=ResourceRequirements(requests={"cpu": "1100m"}), allocated_resources={"cpu": "1100m"}
        ),
    )
    assert str(pod_requests(pod, use_status=True)["cpu"]) == "1100m"
