"""A node that runs short, on the whole agent: which pod is evicted, what is reclaimed first, and what is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pykubelet.api.types import EmptyDirVolumeSource, Event, Node, Pod, ResourceRequirements, Volume, VolumeMount
from pykubelet.hollow.cri_values import Behaviour
from pykubelet.model.errors import CriError
from pykubelet.model.pod import uid_of
from tests.builders import a_container
from tests.fakes.fake_guard import GIB, MIB, FakeMachine
from tests.scenarios.cluster_node import ClusterHarness

HARD = "--eviction-hard=memory.available<1Gi,nodefs.available<10%,imagefs.available<15%,pid.available<1k"


@asynccontextmanager
async def guarded(folder: Path, *flags: str) -> AsyncIterator[tuple[ClusterHarness, FakeMachine]]:
    node = ClusterHarness(folder, *(flags or (HARD,)))
    machine = FakeMachine(node.cri)
    node.guard = machine.edges()
    await node.start()
    try:
        await node.until(node.is_ready)
        yield node, machine
    finally:
        await node.kill()


def bind(node: ClusterHarness, name: str, *, memory: str = "", priority: int = 0, **spec: object) -> Pod:
    resources = ResourceRequirements(requests={"memory": memory}) if memory else None
    return node.bind(name, containers=[a_container(resources=resources)], priority=priority, **spec)


async def running(node: ClusterHarness, *names: str) -> None:
    await node.until(lambda: all(node.phase(name) == "Running" for name in names))


def condition(node: ClusterHarness, kind: str) -> str:
    found = node.api.find(Node, "node1")
    assert found is not None
    return next((c.status or "" for c in found.status.conditions if c.type == kind), "")


async def test_the_greedy_pod_goes_within_two_seconds_and_nobody_else(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        bind(node, "modest", memory="2Gi")
        bind(node, "greedy", memory="100Mi")
        bind(node, "small")
        await running(node, "modest", "greedy", "small")
        machine.uses = {"modest": GIB, "greedy": 200 * MIB, "small": 10 * MIB}
        await node.clock.sleep(30)
        assert node.running() == ["greedy/app", "modest/app", "small/app"]
        began = node.clock.monotonic()
        machine.uses["greedy"] = 6 * GIB
        assert machine.alarms.ring("/", machine.used()) == 1
        await node.until(lambda: node.phase("greedy") == "Failed", within=2)
        assert node.clock.monotonic() - began < 2
        shown = node.shown("greedy")
        assert shown is not None and shown.status.reason == "Evicted"
        assert shown.status.message == (
            "The node was low on resource: memory. Threshold quantity: 1Gi, available: 0. "
            "Container app was using 6Gi, request is 100Mi, has larger consumption of memory. "
        )
        target = next(c for c in shown.status.conditions if c.type == "DisruptionTarget")
        assert (target.status, target.reason, target.message) == ("True", "TerminationByKubelet", shown.status.message)
        await node.until(lambda: condition(node, "MemoryPressure") == "True", within=5)
        await node.clock.sleep(200)
        assert node.running() == ["modest/app", "small/app"]
        assert condition(node, "MemoryPressure") == "True"  # for the transition period
        await node.until(lambda: condition(node, "MemoryPressure") == "False", within=200)


async def test_what_the_event_and_explain_say(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        pod = bind(node, "greedy", memory="100Mi")
        bind(node, "other", priority=5)
        bind(node, "vital", priority=2_000_001_000)
        await running(node, "greedy", "other", "vital")
        machine.uses = {"greedy": 6 * GIB + 512 * MIB, "other": 100 * MIB, "vital": GIB}
        machine.alarms.ring("/", machine.used())
        await node.until(lambda: "Evicted" in node.event_reasons())
        event = next(each for each in node.api.everything(Event) if each.reason == "Evicted")
        assert event.metadata.annotations == {
            "offending_containers": "app",
            "offending_containers_usage": "6656Mi",
            "starved_resource": "memory",
        }
        why = (
            "memory.available 0 is below the hard threshold 1Gi. Of 2 pods that may go this one is first: it uses "
            "6656Mi of memory, 6556Mi more than it requests, priority 0. Next would be default/other: it uses 100Mi of "
            "memory, 100Mi more than it requests, priority 5."
        )
        assert event.message is not None and event.message.endswith(why)
        assert why in str(node.node.explainer.explain(pod).to_json())
        await node.until(lambda: "EvictionThresholdMet" in node.event_reasons())
        assert node.events("EvictionThresholdMet") == ["Attempting to reclaim memory"]


async def test_a_pod_that_has_not_started_yet_is_not_blamed(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        node.cri.add_to_registry("slow:1", takes=1000.0)
        bind(node, "greedy")
        node.bind("starting", containers=[a_container(image="slow:1")])
        await running(node, "greedy")
        machine.uses = {"greedy": 7 * GIB}
        await node.until(lambda: node.phase("greedy") == "Failed", within=15)
        assert node.phase("starting") == "Pending"


async def test_figures_that_cannot_be_had_are_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = ClusterHarness(tmp_path, HARD)
    machine = FakeMachine(node.cri)
    node.guard = machine.edges()
    fault = node.cri.fail_next("image_fs_info", CriError("no answer"), times=None)
    await node.start()
    try:
        bind(node, "greedy")
        await running(node, "greedy")
        machine.uses = {"greedy": 7 * GIB}
        await node.clock.sleep(60)
        assert node.running() == ["greedy/app"]
        assert len([r for r in caplog.records if r.message == "the node's resources cannot be judged"]) == 1
        fault.remove()
        await node.until(lambda: node.phase("greedy") == "Failed", within=15)
        node.cri.fail_next("image_fs_info", CriError("no answer"), times=None)
        bind(node, "next", memory="64Mi")  # a pod without requests would not be let in now
        await running(node, "next")
        machine.uses = {"next": 7 * GIB}
        await node.until(lambda: node.phase("next") == "Failed", within=30)  # where images are is known by now
    finally:
        await node.kill()


async def test_a_program_that_ends_well_when_asked_makes_no_success_of_an_eviction(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        node.cri.program(Behaviour(stop_code=0), name="app")
        bind(node, "polite")
        await running(node, "polite")
        machine.uses = {"polite": 7 * GIB}
        await node.until(lambda: node.phase("polite") in ("Failed", "Succeeded"), within=15)
        await node.clock.sleep(30)
        shown = node.shown("polite")
        assert shown is not None and (shown.status.phase, shown.status.reason) == ("Failed", "Evicted")
        assert (shown.status.message or "").startswith("The node was low on resource: memory. ")


async def test_one_after_the_other_until_it_is_enough(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        for name in ("a", "b", "c", "d"):
            bind(node, name)
        await running(node, "a", "b", "c", "d")
        machine.uses = {"a": GIB, "b": 2 * GIB, "c": GIB + MIB, "d": 3 * GIB}
        machine.system = 1 * GIB
        await node.until(lambda: node.phase("d") == "Failed", within=15)
        await node.clock.sleep(60)
        assert node.running() == ["a/app", "b/app", "c/app"]
        machine.uses |= {"a": 3 * GIB, "b": 3 * GIB}
        await node.until(lambda: len(node.running()) == 2, within=20)
        await node.clock.sleep(60)
        assert len(node.running()) == 2


async def test_critical_pods_and_static_ones_stay_and_it_is_said_once(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        bind(node, "vital", priority=2_000_001_000)
        await running(node, "vital")
        machine.uses = {"vital": 7 * GIB}
        await node.clock.sleep(120)
        assert node.running() == ["vital/app"]
        assert len(node.events("EvictionThresholdMet")) == 1
        local = [each for each in node.node.events.all() if each.reason == "EvictionThresholdMet"]
        assert local[0].count == 1


async def test_unused_images_and_dead_containers_go_before_any_pod(tmp_path: Path) -> None:
    async with guarded(tmp_path, HARD, "--minimum-image-ttl-duration=5m") as (node, machine):
        node.cri.add_image("old:1")
        bind(node, "web")
        await running(node, "web")
        before = len(node.cri.images)
        machine.set_disk("/", free=5 * GIB)
        remove = node.cri.remove_image

        async def freeing(image: str) -> None:
            await remove(image)
            machine.set_disk("/", free=30 * GIB)

        node.cri.remove_image = freeing  # type: ignore[method-assign]
        await node.until(lambda: len(node.cri.images) < before, within=15)
        await node.clock.sleep(60)
        assert node.running() == ["web/app"]
        assert condition(node, "DiskPressure") == "True"
        await node.until(lambda: condition(node, "DiskPressure") == "False", within=400)


async def test_a_full_disk_takes_the_pod_with_the_biggest_logs(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        bind(node, "quiet")
        bind(node, "loud")
        await running(node, "quiet", "loud")
        machine.logs = {"loud": 40 * GIB, "quiet": MIB}
        machine.set_disk("/", free=5 * GIB)
        await node.until(lambda: node.phase("loud") == "Failed", within=15)
        machine.set_disk("/", free=45 * GIB)
        await node.clock.sleep(60)
        assert node.running() == ["quiet/app"]
        shown = node.shown("loud")
        assert shown is not None and (shown.status.message or "").startswith(
            "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 5Gi. "
        )


async def test_the_volume_that_grew_just_now_is_the_one(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        mounts = [VolumeMount(name="data", mount_path="/data")]
        volume = Volume(name="data", empty_dir=EmptyDirVolumeSource())
        pods = {
            name: node.bind(name, volumes=[volume], containers=[a_container(volume_mounts=mounts)])
            for name in ("old", "filler")
        }
        await running(node, "old", "filler")

        def write(name: str, size: int) -> None:
            folder = node.paths.volume(uid_of(pods[name]), "kubernetes.io/empty-dir", "data")
            (folder / "x").write_bytes(b"x" * size)

        write("old", 100_000)
        await node.clock.sleep(1.5)  # both were just measured
        write("filler", 900_000)
        machine.set_disk("/", free=5 * GIB)
        await node.until(lambda: node.phase("filler") == "Failed", within=15)
        machine.set_disk("/", free=45 * GIB)
        await node.clock.sleep(30)
        assert node.running() == ["old/app"]


async def test_pods_are_turned_away_while_the_disk_is_full(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        machine.set_disk("/", free=5 * GIB)
        await node.until(lambda: condition(node, "DiskPressure") == "True", within=20)
        bind(node, "late")
        await node.until(lambda: node.phase("late") == "Failed")
        shown = node.shown("late")
        assert shown is not None and shown.status.reason == "Evicted"
        assert shown.status.message == "Pod was rejected: The node had condition: [DiskPressure]. "


async def test_a_soft_threshold_waits_for_its_grace_and_gives_the_pod_its_own(tmp_path: Path) -> None:
    flags = (
        "--eviction-soft=memory.available<2Gi",
        "--eviction-soft-grace-period=memory.available=30s",
        "--eviction-max-pod-grace-period=7",
    )
    async with guarded(tmp_path, *flags) as (node, machine):
        bind(node, "web", grace=20)
        await running(node, "web")
        machine.uses = {"web": 5 * GIB + MIB}
        began = node.clock.monotonic()
        await node.until(lambda: node.phase("web") == "Failed")
        assert 30 <= node.clock.monotonic() - began <= 42
        stop = node.cri.called("stop_container")[-1]
        assert stop.args["timeout"] == 7


async def test_a_short_spell_is_forgiven_by_a_soft_threshold(tmp_path: Path) -> None:
    flags = ("--eviction-soft=memory.available<2Gi", "--eviction-soft-grace-period=memory.available=30s")
    async with guarded(tmp_path, *flags) as (node, machine):
        bind(node, "web")
        await running(node, "web")
        for _ in range(5):
            machine.uses = {"web": 5 * GIB + MIB}
            await node.clock.sleep(20)
            machine.uses = {"web": GIB}
            await node.clock.sleep(20)
        assert node.running() == ["web/app"]
        assert condition(node, "MemoryPressure") == "True"


async def test_a_pod_over_its_own_storage_limit_goes_without_any_pressure(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        limited = ResourceRequirements(limits={"ephemeral-storage": "1Gi"})
        node.bind("loud", containers=[a_container(resources=limited)])
        bind(node, "free")
        await running(node, "loud", "free")
        machine.logs = {"loud": GIB // 2, "free": 9 * GIB}
        await node.clock.sleep(60)
        assert node.running() == ["free/app", "loud/app"]
        machine.logs["loud"] = 2 * GIB
        await node.until(lambda: node.phase("loud") == "Failed", within=30)
        shown = node.shown("loud")
        assert shown is not None and shown.status.reason == "Evicted"
        assert shown.status.message == "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
        assert not any(c.type == "DisruptionTarget" for c in shown.status.conditions)
        assert node.running() == ["free/app"] and condition(node, "DiskPressure") == "False"


async def test_an_empty_dir_over_its_limit(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, _):
        volume = Volume(name="scratch", empty_dir=EmptyDirVolumeSource(size_limit="64Ki"))
        mounts = [VolumeMount(name="scratch", mount_path="/scratch")]
        pod = node.bind("web", volumes=[volume], containers=[a_container(volume_mounts=mounts)])
        await running(node, "web")
        folder = node.paths.volume(uid_of(pod), "kubernetes.io/empty-dir", "scratch")
        (folder / "big").write_bytes(b"x" * 100_000)
        await node.until(lambda: node.phase("web") == "Failed", within=30)
        shown = node.shown("web")
        assert shown is not None
        assert shown.status.message == 'Usage of EmptyDir volume "scratch" exceeds the limit "64Ki". '


async def test_a_kernel_without_alarms_costs_speed_and_one_warning(tmp_path: Path) -> None:
    node = ClusterHarness(tmp_path, HARD)
    machine = FakeMachine(node.cri)
    machine.alarms.refuses = "cgroup.event_control: Permission denied"
    node.guard = machine.edges()
    await node.start()
    try:
        bind(node, "greedy")
        await running(node, "greedy")
        machine.uses = {"greedy": 7 * GIB}
        await node.until(lambda: node.phase("greedy") == "Failed", within=12)
        await node.clock.sleep(60)
        assert machine.alarms.requested == 1
    finally:
        await node.kill()


async def test_an_idle_node_is_hardly_looked_at(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        machine.system = GIB // 2
        for number in range(20):
            bind(node, f"pod{number}")
        await running(node, *(f"pod{number}" for number in range(20)))
        await node.clock.sleep(30)
        before, listed = machine.looks, len(node.cri.called("list_container_stats"))
        await node.clock.sleep(600)
        assert machine.looks - before <= 300
        assert len(node.cri.called("list_container_stats")) == listed


async def test_a_killed_child_is_told_on_its_pod(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        pod = bind(node, "web")
        await running(node, "web")
        container = next(iter(node.cri.containers.values()))
        group = f"/kubepods/besteffort/pod{uid_of(pod)}/{container.id}"
        machine.kernel_log.say(
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg={group},"
            f"task_memcg={group},task=worker,pid=4711,uid=0",
            "Memory cgroup out of memory: Killed process 4711 (worker) total-vm:1kB",
        )
        await node.until(lambda: "OOMKilling" in node.event_reasons())
        assert node.events("OOMKilling") == [
            "Out of memory: the kernel killed process worker (pid 4711) of container app, which runs on without it "
            "(it hit its memory limit)"
        ]
        assert "process worker (pid 4711) was killed" in str(node.node.explainer.explain(pod).to_json())
        assert node.events("SystemOOM") == []
        assert machine.scores == [-999]


async def test_a_machine_out_of_memory_is_told_on_the_node(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (node, machine):
        machine.kernel_log.say(
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
            "task_memcg=/system.slice/db.service,task=postgres,pid=99,uid=0"
        )
        await node.until(lambda: "SystemOOM" in node.event_reasons())
        assert node.events("SystemOOM") == ["System OOM encountered, victim process: postgres, pid: 99"]
        assert node.events("OOMKilling") == []


async def test_without_the_kernels_log_counters_have_to_do(tmp_path: Path) -> None:
    node = ClusterHarness(tmp_path, HARD)
    machine = FakeMachine(node.cri)
    machine.kernel_log.refuses = "/dev/kmsg: Operation not permitted"
    node.guard = machine.edges()
    await node.start()
    try:
        bind(node, "web")
        await running(node, "web")
        await node.clock.sleep(15)
        container = next(iter(node.cri.containers.values()))
        machine.kills[container.id] = 2
        await node.until(lambda: bool(node.events("OOMKilling")), within=15)
        assert "the kernel killed 2 processes of container app, which runs on" in node.events("OOMKilling")[0]
    finally:
        await node.kill()
