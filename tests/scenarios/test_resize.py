"""Pods of the API that are resized while they run: in place, by restart, deferred, refused, across agent restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pykubelet.api.types import ContainerResizePolicy, Pod, PodCondition, ResourceRequirements
from pykubelet.cm.allocation import decode
from pykubelet.hollow.cri_values import Behaviour
from pykubelet.model.cgroups import CgroupLimits
from pykubelet.model.errors import CriError, Unimplemented
from tests.builders import a_container, a_sidecar
from tests.scenarios.cluster_node import ClusterHarness, a_cluster_node

MIB = 1 << 20


def sized(cpu: str, memory: str, cpu_limit: str = "", memory_limit: str = "") -> ResourceRequirements:
    """Requests, and limits: the same unless told otherwise."""
    return ResourceRequirements(
        requests={"cpu": cpu, "memory": memory}, limits={"cpu": cpu_limit or cpu, "memory": memory_limit or memory}
    )


def resize(node: ClusterHarness, resources: ResourceRequirements, container: str = "app", pod: str = "web") -> Pod:
    """What a user does with `kubectl patch --subresource resize`."""
    shown = node.shown(pod)
    assert shown is not None

    def resized(each: Any) -> Any:
        return msgspec.structs.replace(each, resources=resources) if each.name == container else each

    spec = msgspec.structs.replace(
        shown.spec,
        containers=[resized(each) for each in shown.spec.containers],
        init_containers=[resized(each) for each in shown.spec.init_containers],
    )
    generation = (shown.metadata.generation or 0) + 1
    return node.change(msgspec.structs.replace(shown, spec=spec), generation=generation)


def condition(node: ClusterHarness, kind: str, pod: str = "web") -> PodCondition | None:
    shown = node.shown(pod)
    assert shown is not None
    return next((each for each in shown.status.conditions if each.type == kind), None)


def group(node: ClusterHarness, pod: str = "web", qos: str = "") -> CgroupLimits:
    return node.cgroups.groups[f"/kubepods{qos}/poduid-{pod}"]


def updates(node: ClusterHarness, container: str = "app", pod: str = "web") -> list[tuple[int, int, int]]:
    """(shares, quota, memory in MiB) of every change the runtime was asked for."""
    calls = node.cri.called("update_container_resources", container)
    asked = [call.args["resources"] for call in calls if call.pod_uid == f"uid-{pod}"]
    return [(each.cpu_shares, each.cpu_quota, each.memory_limit_in_bytes // MIB) for each in asked]


def order(node: ClusterHarness) -> list[str]:
    """Calls that change sizes, oldest first."""
    words = {"update_container_resources": "container", "update_pod_sandbox_resources": "pod"}
    return [words[call.verb] for call in node.cri.calls if call.verb in words]


async def started(node: ClusterHarness, resources: ResourceRequirements, name: str = "web", **fields: Any) -> None:
    containers = [a_container("app", resources=resources, **fields)]
    node.bind(name, generation=1, containers=containers)
    await node.until(lambda: node.phase(name) == "Running")


async def test_a_running_container_grows_without_a_restart(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("500m", "128Mi"))
        resize(node, sized("1", "256Mi"))
        await node.until(lambda: bool(node.events("ResizeCompleted")))
        # Memory first, with the cpu still as it was; the pod's own group grows before its container each time.
        assert updates(node) == [(512, 50_000, 256), (1024, 100_000, 256)]
        assert order(node) == ["pod", "container", "pod", "pod", "container"]
        limits = group(node)
        assert (limits.memory_bytes, limits.cpu_quota_us, limits.cpu_shares) == (256 * MIB, 100_000, 1024)
        assert len(node.cri.called("start_container")) == 1
        summary = (
            '{"containers":[{"name":"app","resources":{"limits":{"cpu":"1","memory":"256Mi"},'
            '"requests":{"cpu":"1","memory":"256Mi"}}}],"generation":2}'
        )
        assert node.events("ResizeStarted") == [f"Pod resize started: {summary}"]
        assert node.events("ResizeCompleted") == [f"Pod resize completed: {summary}"]

        def told() -> bool:
            shown = node.shown()
            assert shown is not None
            status = shown.status.container_statuses[0]
            assert status.resources is not None
            return (
                status.resources == sized("1", "256Mi")
                and status.allocated_resources == {"cpu": "1", "memory": "256Mi"}
                and shown.status.observed_generation == 2
            )

        await node.until(told)
        assert condition(node, "PodResizeInProgress") is None and condition(node, "PodResizePending") is None


async def test_what_shrinks_shrinks_in_the_container_before_the_pod(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("1", "256Mi"))
        resize(node, sized("500m", "128Mi"))
        await node.until(lambda: bool(node.events("ResizeCompleted")))
        assert updates(node) == [(1024, 100_000, 128), (512, 50_000, 128)]
        assert order(node) == ["container", "pod", "container", "pod", "pod"]
        assert group(node).memory_bytes == 128 * MIB


async def test_containers_that_give_come_before_those_that_take(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        pair = [a_container("one", resources=sized("1", "64Mi")), a_container("two", resources=sized("2", "64Mi"))]
        node.bind(generation=1, containers=pair)
        await node.until(lambda: node.phase() == "Running")
        shown = node.shown()
        assert shown is not None
        swapped = [
            msgspec.structs.replace(each, resources=sized(cpu, "64Mi"))
            for each, cpu in zip(shown.spec.containers, ("2", "1"), strict=True)
        ]
        node.change(
            msgspec.structs.replace(shown, spec=msgspec.structs.replace(shown.spec, containers=swapped)), generation=2
        )
        await node.until(lambda: bool(node.events("ResizeCompleted")))
        assert [call.name for call in node.cri.called("update_container_resources")] == ["two", "one"]
        assert node.cri.called("update_pod_sandbox_resources") == []


async def test_a_resize_policy_restarts_the_container_with_its_new_size(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        policy = [ContainerResizePolicy(resource_name="memory", restart_policy="RestartContainer")]
        await started(node, sized("500m", "128Mi"), resize_policy=policy)
        resize(node, sized("1", "128Mi"))
        await node.until(lambda: len(node.events("ResizeCompleted")) == 1)
        assert len(node.cri.called("start_container")) == 1
        resize(node, sized("1", "256Mi"))
        await node.until(lambda: len(node.events("ResizeCompleted")) == 2)
        assert len(node.cri.called("start_container")) == 2
        assert "Container app resize requires restart" in node.events("Killing")
        config = node.cri.called("create_container")[-1].args["config"]
        assert config.linux.resources.memory_limit_in_bytes == 256 * MIB
        assert group(node).memory_bytes == 256 * MIB
        assert node.phase() == "Running"


async def test_a_resize_that_does_not_fit_waits_until_a_pod_goes(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("1", "64Mi"))
        await started(node, sized("2", "64Mi"), name="other")
        resize(node, sized("3", "64Mi"))
        await node.until(lambda: condition(node, "PodResizePending") is not None)
        pending = condition(node, "PodResizePending")
        assert pending is not None and (pending.status, pending.reason) == ("True", "Deferred")
        assert pending.observed_generation == 2
        assert pending.message == "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000"
        await node.clock.sleep(600)
        assert len(node.events("ResizeDeferred")) == 1
        assert updates(node) == [] and group(node).cpu_quota_us == 100_000
        shown = node.shown()
        assert shown is not None and shown.status.container_statuses[0].allocated_resources["cpu"] == "1"
        await node.delete("other", grace=1)
        await node.until(lambda: bool(node.events("ResizeCompleted")), within=30)
        assert updates(node) == [(3072, 300_000, 64)]
        await node.until(lambda: condition(node, "PodResizePending") is None)
        exposed = node.node.ctx.metrics.expose()
        assert "kubelet_pod_deferred_accepted_resizes_total" in exposed
        assert 'kubelet_container_requested_resizes_total{resource="cpu",requirement="limits"' in exposed


async def test_a_resize_that_waits_goes_ahead_when_another_pod_shrank(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("1", "64Mi"))
        await started(node, sized("2", "64Mi"), name="other")
        resize(node, sized("3", "64Mi"))
        await node.until(lambda: condition(node, "PodResizePending") is not None)
        resize(node, sized("500m", "64Mi"), pod="other")
        await node.until(lambda: updates(node) == [(3072, 300_000, 64)], within=30)


async def test_a_wish_taken_back_leaves_no_trace(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("1", "64Mi"))
        resize(node, sized("8", "64Mi"))
        await node.until(lambda: condition(node, "PodResizePending") is not None)
        resize(node, sized("1", "64Mi"))
        await node.until(lambda: condition(node, "PodResizePending") is None, within=10)
        assert updates(node) == [] and node.events("ResizeStarted") == []


async def test_a_resize_that_can_never_happen_is_called_infeasible(tmp_path: Path) -> None:
    flags = ("--cpu-manager-policy=static", "--kube-reserved=cpu=500m")
    async with a_cluster_node(tmp_path, *flags) as node:
        await started(node, sized("1", "64Mi"))
        resize(node, sized("2", "64Mi"))
        await node.until(lambda: condition(node, "PodResizePending") is not None)
        pending = condition(node, "PodResizePending")
        text = 'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"'
        assert pending is not None and (pending.reason, pending.message) == ("Infeasible", text)
        (event,) = node.events("ResizeInfeasible")
        assert event.startswith('Pod resize Infeasible: {"containers":[') and text.replace('"', '\\"') in event
        await node.clock.sleep(600)
        assert updates(node) == []


async def test_memory_in_use_is_not_taken_away(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("1", "256Mi"))
        node.cri.set_usage("app", memory_bytes=200 * MIB)
        resize(node, sized("1", "128Mi"))
        await node.until(lambda: bool(node.events("ResizeError")))
        await node.until(lambda: (found := condition(node, "PodResizeInProgress")) is not None and bool(found.reason))
        progress = condition(node, "PodResizeInProgress")
        text = (
            'cannot decrease memory limits: attempting to set container "app" memory limit (134217728)'
            " below current usage (209715200)"
        )
        assert progress is not None and (progress.reason, progress.message) == ("Error", text)
        assert updates(node) == [] and group(node).memory_bytes == 256 * MIB
        assert node.running() == ["web/app"]
        node.cri.set_usage("app", memory_bytes=50 * MIB)
        await node.until(lambda: bool(node.events("ResizeCompleted")), within=60)
        assert updates(node) == [(1024, 100_000, 128)]
        assert len(node.events("ResizeError")) == 1


async def test_the_pods_own_group_is_checked_for_memory_in_use_too(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("1", "256Mi"))
        node.cgroups.usage["/kubepods/poduid-web"] = 130 * MIB
        resize(node, sized("1", "128Mi"))
        await node.until(lambda: bool(node.events("ResizeError")))
        assert "attempting to set pod memory limit (134217728) below current usage" in node.events("ResizeError")[0]


async def test_a_runtime_that_refuses_is_told_as_an_error_and_asked_again(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("1", "256Mi"))
        node.cri.fail_next("update_container_resources", CriError("no such cgroup"), times=2)
        resize(node, sized("2", "256Mi"))
        await node.until(lambda: bool(node.events("ResizeError")))
        await node.until(lambda: bool(node.events("ResizeCompleted")), within=60)
        assert len(node.events("ResizeError")) == 1
        assert '"error":"no such cgroup"' in node.events("ResizeError")[0]
        assert node.running() == ["web/app"]


async def test_a_runtime_that_knows_nothing_of_pod_resizes_is_asked_once(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("1", "256Mi"))
        node.cri.fail_next("update_pod_sandbox_resources", Unimplemented("unknown method"), times=None)
        resize(node, sized("2", "512Mi"))
        await node.until(lambda: bool(node.events("ResizeCompleted")))
        assert len(node.cri.called("update_pod_sandbox_resources")) == 1
        assert group(node).memory_bytes == 512 * MIB


async def test_an_agent_that_dies_in_the_middle_finishes_after_its_restart(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("1", "256Mi"))
        stuck = node.cri.hang("update_container_resources")
        resize(node, sized("2", "512Mi"))
        await node.until(lambda: bool(node.cri.called("update_container_resources")))
        await node.kill()
        stuck.release()
        record = decode((node.paths.root / "allocated_pods_state").read_bytes())
        assert record["uid-web"].containers["app"] == sized("2", "512Mi")
        await node.start()
        await node.until(lambda: bool(node.events("ResizeCompleted")))
        assert len(node.cri.called("start_container")) == 1
        assert group(node).memory_bytes == 512 * MIB and group(node).cpu_quota_us == 200_000


async def test_a_restarted_agent_keeps_to_what_was_promised(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("1", "64Mi"))
        await started(node, sized("2", "64Mi"), name="other")
        resize(node, sized("3", "64Mi"))
        await node.until(lambda: condition(node, "PodResizePending") is not None)
        since = condition(node, "PodResizePending")
        await node.kill()
        await node.start()
        await node.clock.sleep(60)
        assert node.running() == ["other/app", "web/app"]
        assert updates(node) == [] and len(node.cri.called("start_container")) == 2
        now = condition(node, "PodResizePending")
        assert now is not None and since is not None and now.last_transition_time == since.last_transition_time
        await node.delete("other", grace=1)
        await node.until(lambda: bool(node.events("ResizeCompleted")))


async def test_an_agent_without_records_neither_restarts_nor_resizes_anything(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        policy = [ContainerResizePolicy(resource_name="cpu", restart_policy="RestartContainer")]
        await started(node, sized("1", "64Mi"), resize_policy=policy)
        await node.kill()
        (node.paths.root / "allocated_pods_state").write_text("{torn")
        (node.paths.root / "actuated_pods_state").unlink()
        await node.start()
        await node.clock.sleep(300)
        assert len(node.cri.called("start_container")) == 1 and updates(node) == []
        assert (node.paths.root / "allocated_pods_state.damaged").exists()
        resize(node, sized("2", "64Mi"))
        await node.until(lambda: len(node.cri.called("start_container")) == 2)


async def test_a_crashing_container_starts_with_its_new_size(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=1, exit_code=1), name="app")
        await started(node, sized("500m", "128Mi"))
        await node.until(lambda: len(node.cri.called("start_container")) == 2)
        await node.clock.sleep(3)
        resize(node, sized("1", "256Mi"))
        await node.until(lambda: len(node.cri.called("start_container")) == 3)
        config = node.cri.called("create_container")[-1].args["config"]
        assert config.linux.resources.memory_limit_in_bytes == 256 * MIB
        assert group(node).memory_bytes == 256 * MIB and updates(node) == []


async def test_sidecars_and_running_init_containers_are_resized(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        small = sized("100m", "64Mi")
        init = [a_sidecar("proxy", resources=small), a_container("setup", resources=small)]
        node.bind(generation=1, init=init, containers=[a_container("app", resources=small)])
        await node.until(lambda: node.running() == ["web/proxy", "web/setup"])
        resize(node, sized("200m", "64Mi"), container="setup")
        await node.until(lambda: len(updates(node, "setup")) == 1)
        resize(node, sized("300m", "64Mi"), container="proxy")
        await node.until(lambda: len(updates(node, "proxy")) == 1)
        assert updates(node, "app") == []


async def test_the_size_of_a_whole_pod_changes_in_place(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind(generation=1, containers=[a_container("app")], resources=sized("1", "256Mi"))
        await node.until(lambda: node.phase() == "Running")
        shown = node.shown()
        assert shown is not None and shown.status.allocated_resources == {"cpu": "1", "memory": "256Mi"}
        spec = msgspec.structs.replace(shown.spec, resources=sized("2", "512Mi"))
        node.change(msgspec.structs.replace(shown, spec=spec), generation=2)
        await node.until(lambda: bool(node.events("ResizeCompleted")))
        assert group(node).memory_bytes == 512 * MIB and group(node).cpu_quota_us == 200_000
        # Without a limit of its own the container lives under the pod's.
        assert [memory for _, _, memory in updates(node)] == [512, 512]

        def told() -> bool:
            now = node.shown()
            return now is not None and now.status.resources == sized("2", "512Mi")

        await node.until(told)


async def test_a_pod_that_had_no_size_of_its_own_gets_one_in_place(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("100m", "64Mi", "200m", "128Mi"))
        assert group(node, qos="/burstable").cpu_quota_us == 20_000
        shown = node.shown()
        assert shown is not None
        spec = msgspec.structs.replace(shown.spec, resources=sized("500m", "256Mi", "1", "512Mi"))
        node.change(msgspec.structs.replace(shown, spec=spec), generation=2)
        await node.until(lambda: bool(node.events("ResizeCompleted")))
        now = group(node, qos="/burstable")
        assert (now.cpu_shares, now.cpu_quota_us, now.memory_bytes) == (512, 100_000, 512 * MIB)
        assert updates(node) == [], "the container keeps its own size"


async def test_an_agent_killed_right_after_a_wish_still_knows_the_promise(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("2", "64Mi"))
        node.bind("other", generation=1, containers=[a_container("app", resources=sized("2", "64Mi"))])
        await node.until(lambda: node.phase("other") == "Running")
        resize(node, sized("4", "64Mi"))
        await node.until(lambda: bool(node.events("ResizeDeferred")))
        # What is on disk at this very moment is all that a killed agent leaves.
        record = decode((node.paths.root / "allocated_pods_state").read_bytes())
        assert {name: held.containers["app"] for name, held in record.items()} == {
            "uid-web": sized("2", "64Mi"),
            "uid-other": sized("2", "64Mi"),
        }


async def test_a_running_pod_that_no_longer_fits_after_a_restart_can_still_be_deleted(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await started(node, sized("2", "64Mi"))
        await started(node, sized("2", "64Mi"), name="other")
        await node.kill()
        resize(node, sized("4", "64Mi"))
        (node.paths.root / "allocated_pods_state").unlink()
        await node.start()
        await node.until(lambda: "Failed" in (node.phase(), node.phase("other")))
        rejected = "other" if node.phase("other") == "Failed" else "web"
        await node.until(lambda: len(node.running()) == 1)
        await node.clock.sleep(5)
        await node.delete(rejected)
        await node.until(lambda: node.shown(rejected) is None, within=60)
