"""Pods of the API on a whole agent: bound, run, deleted with and without grace, re-created, across outages."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from pykubelet.api.codec import encode_json
from pykubelet.api.types import (
    EmptyDirVolumeSource,
    EnvVar,
    EnvVarSource,
    Event,
    ObjectMeta,
    Pod,
    PodCondition,
    PodReadinessGate,
    PodStatus,
    ResourceRequirements,
    Secret,
    SecretKeySelector,
    Volume,
    VolumeMount,
)
from pykubelet.hollow.cri_values import Behaviour
from pykubelet.model.errors import CriError
from pykubelet.model.pod import MIRROR_ANNOTATION
from tests.builders import a_container, a_pod
from tests.scenarios.cluster_node import a_cluster_node


async def test_a_bound_pod_runs_and_the_api_shows_it(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        node.bind(generation=1)
        await node.until(lambda: node.phase() == "Running")
        shown = node.shown()
        assert shown is not None
        assert shown.status.host_ip == "10.1.0.5" and shown.status.pod_ip
        assert shown.status.container_statuses[0].ready
        assert shown.status.observed_generation == 1
        assert {c.type for c in shown.status.conditions if c.status == "True"} >= {"Ready", "PodScheduled"}
        await node.clock.sleep(2)
        assert {"Pulled", "Created", "Started"} <= node.event_reasons()
        patches = node.api.calls_of("patch", Pod)
        assert len(patches) <= 3, [call.body for call in patches]
        assert node.api.calls_of("get", Pod) == []


async def test_the_running_state_reaches_the_api_at_once(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        node.bind()
        await node.until(lambda: node.running() == ["web/app"])
        await node.until(lambda: node.phase() == "Running", within=0.1)


async def test_a_deleted_pod_is_stopped_with_its_grace_and_then_gone_from_the_api(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(Behaviour(stops_after=None), name="app")
        node.bind(grace=30)
        await node.until(lambda: node.phase() == "Running")
        await node.delete()
        begin = node.clock.monotonic()
        await node.clock.sleep(20)
        assert node.phase() == "Running"
        await node.until(lambda: node.shown() is None)
        assert 29 <= node.clock.monotonic() - begin <= 32
        assert node.running() == []
        last = node.api.calls_of("delete", Pod)[-1]
        assert last.body["grace"] == 0 and last.body["uid"]
        await node.until(lambda: not node.cri.sandboxes and not node.folders.pod_uids())


async def test_a_forced_delete_takes_the_pod_down_too(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind(grace=30)
        await node.until(lambda: node.phase() == "Running")
        await node.delete(grace=0)
        assert node.shown() is None
        await node.until(lambda: not node.cri.sandboxes, within=60)


async def test_a_pod_created_anew_under_its_old_name_runs_for_itself(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind(uid="first", grace=5)
        await node.until(lambda: node.phase() == "Running")
        await node.delete(grace=0)
        node.bind(uid="second", grace=5)
        await node.until(lambda: node.phase() == "Running")
        shown = node.shown()
        assert shown is not None and shown.metadata.uid == "second"
        await node.until(lambda: {box.pod_uid for box in node.cri.sandboxes.values()} == {"second"})
        assert node.phase() == "Running"


async def test_a_finished_job_is_told_and_stays(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=2), name="app")
        node.bind(restart_policy="Never")
        await node.until(lambda: node.phase() == "Succeeded")
        await node.clock.sleep(600)
        assert len(node.cri.called("start_container")) == 1
        shown = node.shown()
        assert shown is not None
        ready = next(c for c in shown.status.conditions if c.type == "Ready")
        assert (ready.status, ready.reason) == ("False", "PodCompleted")
        await node.delete()
        await node.until(lambda: not node.cri.sandboxes and not node.folders.pod_uids(), within=120)


@pytest.mark.parametrize(("deleted", "requests"), [(False, 2), (True, 3)])
async def test_a_life_takes_few_status_requests(tmp_path: Path, deleted: bool, requests: int) -> None:
    """That it runs and that it has ended; for a deleted one also that the deletion was seen (observedGeneration)."""
    async with a_cluster_node(tmp_path) as node:
        node.cri.run_takes = 0.2
        node.bind(restart_policy="Never")
        await node.until(lambda: node.phase() == "Running")
        await node.clock.sleep(5)
        if deleted:
            await node.delete()
            await node.until(lambda: node.shown() is None)
        else:
            node.cri.exit("app", 0, pod="web")
            await node.until(lambda: node.phase() == "Succeeded")
        await node.clock.sleep(30)
        assert len(node.api.calls_of("patch", Pod)) == requests


async def test_a_job_is_over_although_its_volume_cannot_be_unmounted_yet(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        volume = Volume(name="memory", empty_dir=EmptyDirVolumeSource(medium="Memory"))
        container = a_container(volume_mounts=[VolumeMount(name="memory", mount_path="/memory")])
        node.bind(restart_policy="Never", volumes=[volume], containers=[container])
        await node.until(lambda: node.phase() == "Running")
        node.mounts.fail("unmount", "memory", "Device or resource busy", times=1000)
        node.cri.slow("stop_pod_sandbox", 0.05)
        node.cri.exit("app", 0, pod="web")
        await node.until(lambda: node.phase() == "Succeeded", within=0.15)
        assert node.mounts.is_mounted(node.paths.root / "pods/uid-web/volumes/kubernetes.io~empty-dir/memory")
        node.mounts.mend()


async def test_an_end_is_not_told_while_another_container_stops(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(Behaviour(stops_after=None), name="app")
        node.bind(active_deadline_seconds=10, grace=20)
        await node.until(lambda: node.phase() == "Running")
        await node.clock.sleep(15)
        assert node.running() == ["web/app"]
        assert node.phase() == "Running"
        await node.until(lambda: node.phase() == "Failed", within=30)
        assert node.running() == []
        shown = node.shown()
        assert shown is not None and shown.status.reason == "DeadlineExceeded"


async def test_a_pod_past_its_deadline_has_failed_even_if_its_containers_end_well(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(Behaviour(stop_code=0), name="app")
        node.bind(active_deadline_seconds=10)
        await node.until(lambda: node.phase() in ("Failed", "Succeeded"), within=30)
        shown = node.shown()
        assert shown is not None and (shown.status.phase, shown.status.reason) == ("Failed", "DeadlineExceeded")
        await node.clock.sleep(100)
        shown = node.shown()
        assert shown is not None and (shown.status.phase, shown.status.reason) == ("Failed", "DeadlineExceeded")


async def test_a_pod_that_does_not_fit_is_rejected_with_upstreams_reason(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        node.bind(containers=[a_container(resources=ResourceRequirements(requests={"cpu": "64"}))])
        await node.until(lambda: node.phase() == "Failed", within=15)
        shown = node.shown()
        assert shown is not None and shown.status.reason == "OutOfcpu"
        assert node.cri.sandboxes == {}


async def test_a_readiness_gate_of_another_controller_counts(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind(readiness_gates=[PodReadinessGate(condition_type="example.com/lb")])
        await node.until(lambda: node.phase() == "Running")
        shown = node.shown()
        assert shown is not None
        assert next(c for c in shown.status.conditions if c.type == "Ready").status == "False"
        gate = PodCondition(type="example.com/lb", status="True")
        status = msgspec.structs.replace(shown.status, conditions=[*shown.status.conditions, gate])
        node.api.change(msgspec.structs.replace(shown, status=status))

        def is_ready() -> bool:
            pod = node.shown()
            return pod is not None and any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)

        await node.until(is_ready, within=2)
        pod = node.shown()
        assert pod is not None and any(c.type == "example.com/lb" for c in pod.status.conditions)


async def test_containers_that_crash_while_the_server_is_away_are_told_later(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        names = [f"p{number}" for number in range(10)]
        for name in names:
            node.bind(name)
        await node.until(lambda: all(node.phase(name) == "Running" for name in names))
        node.api.stop()
        for name in names[:3]:
            node.cri.exit("app", 1, pod=name)
        await node.clock.sleep(60)
        for name in names[5:]:
            # Deleted at the server by somebody while this node cannot hear it.
            node.api.remove(Pod, name, "default")
        starts = len(node.cri.called("start_container"))
        node.api.start()
        await node.clock.sleep(10)
        assert len(node.cri.called("start_container")) == starts == 13
        restarts = {name: node.shown(name).status.container_statuses[0].restart_count for name in names[:5]}  # type: ignore[union-attr]
        assert sum(count or 0 for count in restarts.values()) == 3
        await node.until(lambda: len(node.running()) == 5, within=40)


async def test_an_agent_restarted_touches_no_container_and_flips_no_pod(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        names = [f"p{number}" for number in range(20)]
        for name in names:
            node.bind(name)
        await node.until(lambda: all(node.phase(name) == "Running" for name in names))
        starts = len(node.cri.called("start_container"))
        await node.kill()
        await node.clock.sleep(20)
        seen: list[tuple[str | None, str]] = []

        def watch(before: object, after: object) -> None:
            if isinstance(after, Pod):
                ready = next((c.status or "" for c in after.status.conditions if c.type == "Ready"), "")
                seen.append((after.status.phase, ready))

        node.api.store.listeners.append(watch)
        await node.start()
        await node.clock.sleep(30)
        assert len(node.cri.called("start_container")) == starts
        assert set(seen) <= {("Running", "True")}


async def test_a_static_pod_has_a_mirror_that_shows_its_status(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.run(a_pod("etc"))
        await node.until(lambda: node.phase("etc-node1") == "Running")
        mirror = node.shown("etc-node1")
        assert mirror is not None and MIRROR_ANNOTATION in mirror.metadata.annotations
        assert mirror.metadata.owner_references[0].uid == node.api_node().metadata.uid
        await node.delete("etc-node1", grace=0)
        await node.until(lambda: node.phase("etc-node1") == "Running", within=5)
        await node.delete("etc-node1", grace=30)
        await node.until(
            lambda: (pod := node.shown("etc-node1")) is not None and pod.metadata.deletion_timestamp is None, within=5
        )
        assert len(node.cri.called("start_container")) == 1
        node.remove("etc")
        await node.until(lambda: node.shown("etc-node1") is None, within=60)
        assert node.running() == []


def of_no_uid(pod: Pod) -> Pod:
    """A manifest as people write it: its UID comes from its content."""
    pod.metadata.uid = None
    return pod


async def test_a_changed_static_pod_gets_a_new_mirror(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.run(of_no_uid(a_pod("etc")))
        await node.until(lambda: node.phase("etc-node1") == "Running")
        node.run(of_no_uid(a_pod("etc", labels={"version": "2"})))
        await node.until(
            lambda: (
                (pod := node.shown("etc-node1")) is not None
                and pod.metadata.labels.get("version") == "2"
                and pod.status.phase == "Running"
            )
        )
        assert len(node.running()) == 1


async def test_static_pods_run_although_the_server_is_away_from_the_start(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.api.stop()
        static = node.run(a_pod("etc"))
        await node.until_running(static)
        node.api.start()
        await node.until(lambda: node.phase("etc-node1") == "Running", within=15)


async def test_a_pod_bound_before_the_agent_starts_is_deleted_on_time_after_it(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind(grace=1)
        await node.until(lambda: node.phase() == "Running")
        await node.kill()
        await node.delete()
        await node.start()
        await node.until(lambda: node.shown() is None, within=15)
        assert node.running() == []


async def test_a_pod_whose_containers_vanished_is_reported_by_name(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind(status=PodStatus(phase="Pending"))
        await node.until(lambda: node.phase() == "Running")
        await node.clock.sleep(2)
        about = {
            e.involved_object.name for e in node.api.everything(Event) if e.involved_object and e.reason == "Started"
        }
        assert about == {"web"}


async def test_a_pod_starts_as_soon_as_the_secret_it_waits_for_is_there(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        source = EnvVarSource(secret_key_ref=SecretKeySelector(name="late", key="word"))
        node.bind(containers=[a_container("app", env=[EnvVar(name="WORD", value_from=source)])])
        await node.until(lambda: "Failed" in node.event_reasons())
        await node.clock.sleep(100)
        node.api.add(Secret(metadata=ObjectMeta(name="late", namespace="default"), data={"word": "eA=="}))
        await node.until(lambda: node.phase() == "Running", within=1)


async def test_a_pod_that_ended_is_seen_off_with_its_sandbox(tmp_path: Path) -> None:
    """Its phase was set by somebody else, or the agent ended at the wrong moment: the sandbox is still up."""
    async with a_cluster_node(tmp_path) as node:
        node.bind(restart_policy="Never")
        await node.until(lambda: node.phase() == "Running")
        await node.kill()
        node.cri.exit("app")
        shown = node.shown()
        assert shown is not None
        node.api.change(replace(shown, status=replace(shown.status, phase="Succeeded")))
        await node.start()
        await node.until(lambda: node.ready_sandboxes() == [], within=60)
        assert node.phase() == "Succeeded"


async def test_a_phase_that_somebody_set_ends_the_pod(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind()
        await node.until(lambda: node.phase() == "Running")
        await node.clock.sleep(5)
        shown = node.shown()
        assert shown is not None
        node.api.change(replace(shown, status=replace(shown.status, phase="Failed", reason="Lost")))
        await node.until(lambda: node.running() == [], within=5)
        await node.clock.sleep(100)
        assert node.phase() == "Failed"
        assert len(node.cri.called("start_container")) == 1


async def test_the_worker_knows_what_others_wrote_into_the_status(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        pod = node.bind()
        await node.until(lambda: node.phase() == "Running")
        shown = node.shown()
        assert shown is not None
        theirs = PodCondition(type="example.com/checked", status="True")
        conditions = [*shown.status.conditions, theirs]
        node.api.change(replace(shown, status=replace(shown.status, conditions=conditions)))
        await node.clock.sleep(1)
        state = node.node.table.worker(pod.metadata.uid or "")
        assert state is not None and state.pod is not None
        assert theirs in state.pod.status.conditions


async def test_a_rejected_pod_shows_what_was_looked_at_and_keeps_its_start(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind(generation=3)
        await node.until(lambda: node.phase() == "Running")
        shown = node.shown()
        assert shown is not None and shown.status.start_time is not None
        begun = shown.status.start_time
        await node.kill()
        await node.clock.sleep(3600)
        spec = replace(shown.spec, node_selector={"nobody": "here"})
        node.api.change(replace(shown, spec=spec, metadata=replace(shown.metadata, generation=4)))
        await node.start()
        await node.until(lambda: node.phase() == "Failed")
        shown = node.shown()
        assert shown is not None
        assert (shown.status.observed_generation, shown.status.start_time) == (4, begun)


async def test_a_change_that_needs_what_the_node_lacks_is_told(tmp_path: Path) -> None:
    flag = "--feature-gates=InPlacePodLevelResourcesVerticalScaling=false"
    async with a_cluster_node(tmp_path, flag) as node:
        node.bind(resources=ResourceRequirements(requests={"cpu": "1"}))
        await node.until(lambda: node.phase() == "Running")
        shown = node.shown()
        assert shown is not None
        spec = replace(shown.spec, resources=ResourceRequirements(requests={"cpu": "2"}))
        node.api.change(replace(shown, spec=spec))
        await node.until(lambda: bool(node.events("FailedNodeDeclaredFeaturesCheck")))
        (text,) = node.events("FailedNodeDeclaredFeaturesCheck")
        assert text == "Pod requires node features that are not available: InPlacePodLevelResourcesVerticalScaling"


async def test_an_orphan_that_cannot_be_killed_is_told(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.bind()
        await node.until(lambda: node.phase() == "Running")
        await node.kill()
        await node.delete(grace=0)
        node.cri.fail_next("stop_pod_sandbox", CriError("device busy"))
        await node.start()
        await node.until(lambda: not node.cri.sandboxes)
        assert node.events("FailedKillPod") == ["error killing pod: device busy"]


async def test_a_pod_that_cannot_be_read_costs_no_other_pod_anything_and_everybody_is_told(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        node.api.spoil(Pod, "odd", "default", why="spec.containers: expected array, got str")
        odd = node.bind("odd")
        node.bind("good")
        await node.until(lambda: node.phase("good") == "Running")
        await node.clock.sleep(2)
        told = [event for event in node.api.everything(Event) if event.reason == "UnreadableObject"]
        kinds = {event.involved_object.kind: event for event in told if event.involved_object is not None}
        assert "Pod default/odd cannot be read" in (kinds["Node"].message or "")
        assert kinds["Pod"].involved_object is not None and kinds["Pod"].involved_object.uid == odd.metadata.uid
        assert len(told) == 2
        found = node.node.explainer("default", "odd")
        assert found is not None and [cause["id"] for cause in found["causes"]] == ["unreadable"]
        assert "spec.containers" in str(found["causes"])
        node.api.spoil(Pod, "odd", "default")
        node.change(odd, labels={"now": "readable"})
        await node.until(lambda: node.phase("odd") == "Running")
        found = node.node.explainer("default", "odd")
        assert found is not None and found["healthy"] and found["causes"] == ()


async def test_a_pod_that_can_no_longer_be_read_runs_on_and_can_still_be_deleted(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        pod = node.bind(grace=5)
        await node.until(lambda: node.phase() == "Running")
        node.api.spoil(Pod, "web", "default", why="metadata.x: odd")
        node.change(node.shown() or pod, labels={"odd": "yes"})
        await node.clock.sleep(5)
        assert node.running() == ["web/app"]
        found = node.node.explainer("default", "web")
        assert found is not None and found["healthy"]
        assert [cause["id"] for cause in found["causes"]] == ["unreadable-change"]
        await node.delete()
        await node.until(lambda: node.shown() is None and node.running() == [])


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (0, ("Succeeded", None, None)),
        (143, ("Failed", "Preempting", "Preempted in order to admit critical pod")),
    ],
)
async def test_a_preempted_pod_ends_as_its_containers_do(
    tmp_path: Path, code: int, shown: tuple[str, str | None, str | None]
) -> None:
    most = [a_container("app", resources=ResourceRequirements(requests={"cpu": "3"}))]
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(Behaviour(stop_code=code), pod="lesser")
        node.bind("lesser", containers=most, priority=1)
        await node.until(lambda: node.phase("lesser") == "Running")
        node.bind("greater", containers=most, priority=2_000_000_000)
        await node.until(lambda: node.phase("greater") == "Running")
        await node.clock.sleep(30)
        found = node.shown("lesser")
        assert found is not None
        assert (found.status.phase, found.status.reason, found.status.message) == shown
        conditions = {each.type: each for each in found.status.conditions}
        assert conditions["DisruptionTarget"].reason == "TerminationByKubelet"
        assert conditions["Ready"].reason == ("PodCompleted" if code == 0 else "PodFailed")


async def test_a_secret_that_is_no_text_in_a_path_harms_its_own_pod_only(tmp_path: Path) -> None:
    """Its bytes get into the message of an event and of the status."""
    async with a_cluster_node(tmp_path) as node:
        await node.until(node.is_ready)
        value = base64.b64encode(b"\xff/..").decode()
        node.api.add(Secret(metadata=ObjectMeta(name="odd", namespace="default"), data={"k": value}))
        key = EnvVarSource(secret_key_ref=SecretKeySelector(name="odd", key="k"))
        container = a_container(
            env=[EnvVar(name="X", value_from=key)],
            volume_mounts=[VolumeMount(name="v", mount_path="/v", sub_path_expr="$(X)")],
        )
        volume = Volume(name="v", empty_dir=EmptyDirVolumeSource())
        node.bind(name="odd", uid="u-odd", containers=[container], volumes=[volume])
        await node.clock.sleep(10)
        node.bind(name="well", uid="u-well")
        await node.until(lambda: node.phase("well") == "Running")
        (failed,) = {event.message for event in node.api.everything(Event) if event.reason == "Failed"}
        assert failed is not None and "must not contain '..'" in failed
        assert encode_json(node.shown("odd")) and "?/.." in failed
