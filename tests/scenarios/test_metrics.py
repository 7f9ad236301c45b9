"""What dashboards see of pods: the assembled agent counts their lives and deaths under upstream's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pykubelet.api.types import (
    HostPathVolumeSource,
    ImageVolumeSource,
    Lifecycle,
    LifecycleHandler,
    ResourceRequirements,
    SleepAction,
    Volume,
    VolumeMount,
)
from pykubelet.hollow.cri_values import Behaviour
from pykubelet.kit.clock import utc
from pykubelet.model.errors import CriError
from pykubelet.model.pod import SOURCE_ANNOTATION
from tests.builders import a_container, a_pod
from tests.harness import IMAGE, NodeHarness, a_node
from tests.scenarios.cluster_node import a_cluster_node


def values(node: NodeHarness, name: str) -> dict[tuple[str, ...], float]:
    """Values by labels, in the order of the labels' names. The parser ends the names of counters in _total."""
    families = text_string_to_metric_families(node.node.ctx.metrics.expose())
    names = (name, f"{name}_total")
    found = [sample for family in families for sample in family.samples if sample.name in names]
    return {tuple(value for _, value in sorted(sample.labels.items())): sample.value for sample in found}


async def test_a_pods_life_in_numbers(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=1, exit_code=3), name="bad")
        pod = node.run(a_pod("web", containers=[a_container("good")]))
        node.run(a_pod("crash", containers=[a_container("bad")], restart_policy="Never"))
        await node.until_running(pod)
        ended = "kubelet_terminated_containers_total"
        await node.until(lambda: bool(values(node, ended)))
        assert values(node, ended) == {("container", "3", "Error"): 1}
        assert values(node, "kubelet_started_containers_total") == {("container",): 2}
        assert values(node, "kubelet_started_pods_total") == {(): 2}
        assert sum(values(node, "kubelet_desired_pods").values()) == 2
        assert values(node, "kubelet_running_containers")[("running",)] == 1
        assert values(node, "kubelet_pod_start_duration_seconds_count") == {(): 2}
        assert values(node, "kubelet_containers_per_pod_count_count") == {(): 2}
        assert values(node, "kubelet_pod_worker_duration_seconds_count")[("create",)] == 2
        assert values(node, "kubelet_pleg_pod_relist_duration_seconds_count")[()] >= 2
        assert values(node, "kubelet_node_name") == {("node1",): 1}
        node.remove("web")
        await node.until(lambda: sum(values(node, "kubelet_desired_pods").values()) == 1)
        await node.until(lambda: values(node, "kubelet_running_pods") == {(): 0})


async def test_preemptions_by_what_was_missing(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        most = ResourceRequirements(requests={"cpu": "3"})
        await node.until_running(node.run(a_pod("lesser", containers=[a_container(resources=most)], priority=1)))
        assert values(node, "kubelet_preemptions") == {}
        await node.until_running(node.run(a_pod("greater", containers=[a_container(resources=most)], priority=2)))
        assert values(node, "kubelet_preemptions") == {("cpu",): 1}


async def test_pods_that_nobody_wants_any_more(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        await node.until_running(node.run(a_pod("left")), node.run(a_pod("kept")))
        await node.kill()
        del node.wanted["left"]
        await node.start()
        await node.until_running_only("kept/app")
        assert values(node, "kubelet_orphaned_runtime_pods_total") == {(): 1}
        await node.until(lambda: values(node, "kubelet_orphan_pod_cleaned_volumes") == {(): 1})
        assert values(node, "kubelet_orphan_pod_cleaned_volumes_errors") == {(): 0}
        await node.clock.sleep(60)  # the next sweep finds nothing
        assert values(node, "kubelet_orphan_pod_cleaned_volumes") == {(): 0}


async def test_a_pod_written_again_while_it_ends(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(stops_after=1.0), name="app")
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        node.remove("web")
        await node.clock.sleep(0.1)
        node.run(a_pod("web"))
        await node.until(lambda: values(node, "kubelet_restarted_pods_total") == {("",): 0, ("true",): 1})
        await node.until_running(pod)


async def test_a_sleep_that_is_cut_short(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        lifecycle = Lifecycle(pre_stop=LifecycleHandler(sleep=SleepAction(seconds=60)))
        pod = a_pod("web", containers=[a_container(lifecycle=lifecycle)], grace=2)
        await node.until_running(node.run(pod))
        node.remove("web")
        await node.until_running_only()
        assert values(node, "kubelet_sleep_action_terminated_early_total") == {(): 1}


async def test_the_names_of_a_node_at_rest(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        await node.until(lambda: values(node, "kubelet_evented_pleg_connection_success_count") == {(): 1})
        assert values(node, "kubelet_evented_pleg_connection_error_count") == {(): 0}
        assert values(node, "kubelet_node_startup_pre_registration_duration_seconds")[()] >= 0
        assert values(node, "kubelet_lifecycle_handler_http_fallbacks_total") == {(): 0}


async def test_pods_with_user_namespaces_are_counted_apart(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(start_error=CriError("no mapping")), name="bad")
        good = node.run(a_pod("good", host_users=False))
        node.run(a_pod("plain"))
        node.run(a_pod("bad", host_users=False, containers=[a_container("bad")]))
        await node.until_running(good)
        await node.clock.sleep(100)
        assert values(node, "kubelet_started_user_namespaced_pods_total") == {(): 2}
        assert values(node, "kubelet_started_user_namespaced_pods_errors_total") == {(): 1}


async def test_image_volumes_in_numbers(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        failing = CriError("ImageVolumeMountFailed: no such layer")
        node.cri.program(Behaviour(create_error=failing), name="bad")
        volume = Volume(name="data", image=ImageVolumeSource(reference=IMAGE, pull_policy="IfNotPresent"))
        mount = VolumeMount(name="data", mount_path="/data")
        for name in ("app", "bad"):
            node.run(a_pod(name, containers=[a_container(name, volume_mounts=[mount])], volumes=[volume]))
        await node.clock.sleep(5)
        tries = len([call for call in node.cri.called("create_container") if call.name == "bad"])
        assert values(node, "kubelet_image_volume_mounted_errors_total") == {(): tries}
        assert values(node, "kubelet_image_volume_mounted_succeed_total") == {(): 1}
        assert values(node, "kubelet_image_volume_requested_total") == {(): tries + 1}


async def test_the_first_pod_with_a_network_is_measured_apart(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        first = "kubelet_first_network_pod_start_sli_duration_seconds"
        assert values(node, first) == {(): 0}
        pods: dict[str, dict[str, Any]] = {
            "host": {"host_network": True},
            "stateful": {"volumes": [HOST_PATH]},
            "web": {},
            "later": {},
        }
        for number, (name, fields) in enumerate(pods.items()):
            pod = a_pod(name, node_name="node1", **fields)
            del pod.metadata.annotations[SOURCE_ANNOTATION]
            pod.metadata.creation_timestamp = utc(node.clock.now() - 10 * number - 1)
            node.api.add(pod)
            await node.until_running_only(*(f"{each}/app" for each in list(pods)[: number + 1]))
        assert round(values(node, first)[()]) == 21
        assert values(node, "kubelet_pod_start_sli_duration_seconds_count") == {(): 3}
        assert values(node, "kubelet_pod_start_total_duration_seconds_count") == {(): 4}


@pytest.mark.parametrize(("policy", "figures"), [("TieredReservation", (256 << 20, 64 << 20)), ("None", (0, 0))])
async def test_protected_memory(tmp_path: Path, policy: str, figures: tuple[int, int]) -> None:
    (tmp_path / "config.yaml").write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        f"featureGates: {{MemoryQoS: true}}\nmemoryReservationPolicy: {policy}\n"
    )
    harness = NodeHarness(tmp_path, f"--config={tmp_path / 'config.yaml'}")
    harness.machine = msgspec.structs.replace(harness.machine, cgroup_v2=True)
    await harness.start()
    try:
        sure = ResourceRequirements(requests={"cpu": "1", "memory": "256Mi"}, limits={"cpu": "1", "memory": "256Mi"})
        some = ResourceRequirements(requests={"memory": "64Mi"})
        pods = [a_pod("sure", containers=[a_container(resources=sure)])]
        pods += [a_pod("some", containers=[a_container(resources=some)]), a_pod("none")]
        await harness.until_running(*(harness.run(pod) for pod in pods))
        assert values(harness, "kubelet_memory_qos_node_memory_min_bytes") == {(): figures[0]}
        assert values(harness, "kubelet_memory_qos_node_memory_low_bytes") == {(): figures[1]}
    finally:
        await harness.kill()


HOST_PATH = Volume(name="data", host_path=HostPathVolumeSource(path="/"))
