"""Memory that runs out on cgroup v2: the kernel's alarms, eviction, kills in a container and of the machine.

Sizes come from the guest's own memory, and nothing is judged by time: whether an alarm rang is in the agent's log.
Static pods are never evicted nor resized: pods for that come from an API server beside the guest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.bed.cluster import Cluster

from hosts.machine import Kind
from hosts.node import UNIT, Node, Record, a_pod, node_on

MIB = 1 << 20
DEBUG = ["--v=4"]
NO_EVICTION = {"evictionHard": {"nodefs.available": "1%"}}
"""Setting any signal takes the defaults of the others away."""
RANG = "the kernel's memory alarm rang"
CONTRACT = "/run/alarms.py"
CHILD = "tail /dev/zero; echo child ended with $?; sleep 1000000"
"""tail keeps what it reads until a line ends, and there is no line in /dev/zero."""

ALARMS = """
import asyncio, subprocess, sys
from pathlib import Path
from pykubelet.clients.host.kernel import PRESSURE_TRIGGER, FileAlarm, KernelMemoryAlarms

GROUP = Path("/sys/fs/cgroup/alarms")
EAT = "import os,sys; open(sys.argv[1]+'/cgroup.procs','w').write(str(os.getpid())); x=b'x'*int(sys.argv[2])"


def eater(size):
    return subprocess.Popen([sys.executable, "-c", EAT, str(GROUP), str(size)])


async def rings(event, seconds):
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def main():
    GROUP.mkdir(exist_ok=True)
    (GROUP / "memory.max").write_text(str(64 << 20))
    names = ("group", "closed", "machine", "pressure", "events")
    rang = {name: asyncio.Event() for name in names}
    alarms = KernelMemoryAlarms()
    group = alarms.watch("/alarms", 1, rang["group"].set)
    alarms.watch("/alarms", 1, rang["closed"].set).close()
    machine = alarms.watch("/", 1, rang["machine"].set)
    pressure = FileAlarm({GROUP / "memory.pressure": PRESSURE_TRIGGER}, rang["pressure"].set)
    events = FileAlarm({GROUP / "memory.events": None}, rang["events"].set)
    print("below the limit:", await asyncio.to_thread(eater(16 << 20).wait), await rings(rang["group"], 3))
    print("at the limit:", await asyncio.to_thread(eater(128 << 20).wait))
    print("group:", await rings(rang["group"], 120), "events:", await rings(rang["events"], 120))
    rang["pressure"].clear()
    rang["machine"].clear()
    (GROUP / "memory.high").write_text(str(4 << 20))
    slowed = eater(32 << 20)
    print("slowed down, pressure:", await rings(rang["pressure"], 120), "machine:", await rings(rang["machine"], 120))
    slowed.kill()
    await asyncio.to_thread(slowed.wait)
    rang["group"].clear()
    GROUP.rmdir()
    print("gone:", await rings(rang["group"], 120) and group.is_over)
    print("closed:", rang["closed"].is_set())
    for each in (group, machine, pressure, events):
        each.close()


asyncio.run(main())
"""
ALARMED = """\
below the limit: 0 False
at the limit: -9
group: True events: True
slowed down, pressure: True machine: True
gone: True
closed: False
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="memory", cpus=2, memory="2G")) as node:
        node.start_runtime()
        yield node


def test_the_kernels_alarms_keep_their_contract(node: Node, record_property: Record) -> None:
    """What tests/contracts/test_memory_alarms.py asks of cgroup v1, of pressure and memory.events here."""
    node.machine.put(CONTRACT, ALARMS)
    assert node.machine.run(f"/opt/pykubelet/bin/python {CONTRACT}", within=600) == ALARMED
    record_property("alarms", "memory.pressure, memory.events, /proc/pressure/memory")


def _ended(pod: Any) -> Any:
    return pod["status"]["containerStatuses"][0]["state"]["terminated"]


def test_a_container_over_its_limit_is_killed_as_a_whole(node: Node) -> None:
    node.start(NO_EVICTION)
    limits = {"resources": {"limits": {"memory": "32Mi"}}}
    node.apply(a_pod("whole", CHILD, container=limits, restartPolicy="Never"))
    ended = _ended(node.phase("whole", "Failed"))
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)
    assert "child ended" not in node.machine.run("cat /var/log/pods/*whole*/main/*.log")
    node.wait(lambda: node.events("OOMKilling"), "an event of the kill")
    node.delete("whole")


def test_with_single_process_kill_the_rest_of_the_container_runs_on(node: Node, record_property: Record) -> None:
    node.start(NO_EVICTION | {"singleProcessOOMKill": True})
    limits = {"resources": {"limits": {"memory": "32Mi"}}}
    node.apply(a_pod("single", CHILD, container=limits))
    node.wait(
        lambda: "child ended with 137" in node.machine.run("cat /var/log/pods/*single*/main/*.log", check=False),
        "the child killed",
    )
    status = node.container("single", "main")
    assert "running" in status["state"] and status["restartCount"] == 0
    folder = node.cgroup(node.pid("single", "main"))
    files = node.files(folder, "memory.oom.group", "memory.events")
    assert files["memory.oom.group"] == "0"
    assert re.search(r"^oom_kill 1$", files["memory.events"], re.MULTILINE)

    def told() -> list[str]:
        return [each["message"] for each in node.events("OOMKilling") if "single" in each["name"]]

    (message,) = node.wait(told, "an event of the kill")
    assert "process tail" in message and "runs on without it" in message and "(the pod hit its memory limit)" in message
    counted = re.search(
        r'^container_oom_events_total\{container="main"[^}]*pod="single-guest"\} (\d+)',
        node.get("/metrics/cadvisor"),
        re.MULTILINE,
    )
    assert counted and counted[1] == "1"
    record_property("event", message)
    node.delete("single")


HOG = "import os, time; held = b'x' * (200 << 20); print(os.getpid(), flush=True); time.sleep(100000)"


def test_a_kill_by_the_machine_is_an_event_of_the_node(node: Node, record_property: Record) -> None:
    """The kernel is asked to kill as if the machine had no memory left (sysrq): a guest that has none only crawls."""
    node.start(NO_EVICTION)
    node.apply(a_pod("bystander"))
    node.running("bystander")
    node.machine.run(
        f'systemd-run --unit=hog -p OOMScoreAdjust=1000 -p StandardOutput=file:/run/hog python3 -c "{HOG}"'
    )
    pid = node.wait(lambda: node.machine.run("cat /run/hog", check=False).strip(), "the hog")
    node.machine.run("echo f >/proc/sysrq-trigger")
    text = f"System OOM encountered, victim process: python3, pid: {pid}"

    def told() -> list[str]:
        return [each["message"] for each in node.events("SystemOOM")]

    assert node.wait(told, "an event of the node") == [text]
    assert "running" in node.container("bystander", "main")["state"]
    record_property("event", text)
    node.delete("bystander")
    node.stop()


# --- pods of an API server ------------------------------------------------------------------------------------------


def plain(name: str, command: str = "sleep 1000000", **spec: Any) -> dict[str, Any]:
    return a_pod(name, command, automountServiceAccountToken=False, **spec)


def test_limits_change_in_place(node: Node, cluster: Cluster) -> None:
    node.join(cluster, NO_EVICTION)
    amounts = {"cpu": "100m", "memory": "64Mi"}
    node.create(cluster, plain("grows", container={"resources": {"requests": amounts, "limits": amounts}}))
    node.running("grows")
    pid = node.pid("grows", "main")
    folder = node.cgroup(pid)
    more = {"cpu": "200m", "memory": "96Mi"}
    patch = {"spec": {"containers": [{"name": "main", "resources": {"requests": more, "limits": more}}]}}
    cluster.kubectl("patch", "pod", "grows", "--subresource=resize", "--patch", json.dumps(patch))
    wanted = {"cpu.max": "20000 100000", "memory.max": str(96 * MIB)}
    groups = (folder, folder.rpartition("/")[0])
    node.wait(lambda: all(node.files(each, *wanted) == wanted for each in groups), f"new limits in {folder}")
    status = node.wait(
        lambda: (found := node.container("grows", "main")).get("resources", {}).get("limits") == more and found,
        "the new limits in the status",
    )
    assert status["restartCount"] == 0 and node.pid("grows", "main") == pid
    node.remove(cluster, "grows")
    node.stop()


def _available(node: Node) -> int:
    return int(json.loads(node.get("/stats/summary"))["node"]["memory"]["availableBytes"])


FILL = "dd if=/dev/zero of=/mem/file bs=1M count={} && sleep 1000000"
MEMORY = {"volumes": [{"name": "mem", "emptyDir": {"medium": "Memory"}}]}
MOUNTED = {"volumeMounts": [{"name": "mem", "mountPath": "/mem"}]}


def _evicted(pod: Any) -> str:
    assert pod["status"]["reason"] == "Evicted", pod["status"]
    assert any(
        each["type"] == "DisruptionTarget" and each["reason"] == "TerminationByKubelet"
        for each in pod["status"]["conditions"]
    )
    return str(pod["status"]["message"])


def test_a_node_short_of_memory_evicts_what_has_the_least_claim(
    node: Node, cluster: Cluster, record_property: Record
) -> None:
    node.join(cluster, NO_EVICTION)
    threshold = _available(node) - 200 * MIB
    node.stop()
    node.join(
        cluster, {"evictionHard": {"memory.available": str(threshold)}, "evictionPressureTransitionPeriod": "10s"}
    )
    kept = {"resources": {"requests": {"memory": "100Mi"}}}
    node.create(cluster, plain("entitled", FILL.format(40), container=kept | MOUNTED, **MEMORY))
    node.running("entitled")
    node.create(cluster, plain("greedy", FILL.format(300), container=MOUNTED, **MEMORY))
    pod = node.phase("greedy", "Failed")
    message = _evicted(pod)
    assert message.startswith("The node was low on resource: memory. Threshold quantity: "), message
    assert "running" in node.container("entitled", "main")["state"]
    assert node.events("EvictionThresholdMet")
    uid = pod["metadata"]["uid"]
    node.wait(lambda: uid not in node.machine.get("/proc/mounts"), "its memory given back")
    record_property("message", message)
    node.remove(cluster, "greedy", "entitled")
    node.stop()


TOGETHER = 320
"""MiB that all pods together may use in the next check."""
CACHE_THEN_HOLD = (
    "dd if=/dev/zero of=/data/cache bs=1M count=330; "
    "head -c 287309824 /dev/zero | tail -c 287309824 | sleep 1000000"  # 274 MiB that nobody can reclaim
)


def test_pods_that_reach_their_common_limit_ring_the_alarm_and_one_is_evicted(
    node: Node, cluster: Cluster, record_property: Record
) -> None:
    """Far below what the machine has: only the group of all pods comes under pressure, first by its page cache."""
    memory = int(node.machine.run("awk '/^MemTotal/ {print $2}' /proc/meminfo")) * 1024
    settings = {
        "systemReserved": {"memory": str(memory - TOGETHER * MIB)},
        "evictionHard": {"memory.available": "60Mi"},
        "evictionPressureTransitionPeriod": "10s",
    }
    node.join(cluster, settings, flags=DEBUG)
    limit = node.files("/sys/fs/cgroup/kubepods.slice", "memory.max")["memory.max"]
    assert limit == str(TOGETHER * MIB)
    data = {"volumes": [{"name": "data", "emptyDir": {}}]}
    mounted = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    node.create(cluster, plain("flood", CACHE_THEN_HOLD, container=mounted, restartPolicy="Never", **data))
    message = _evicted(node.phase("flood", "Failed"))
    run = node.show(UNIT, "InvocationID")
    log = node.machine.run(f"journalctl -o cat _SYSTEMD_INVOCATION_ID={run}")
    rang = [line for line in log.splitlines() if RANG in line and "allocatableMemory.available" in line]
    assert rang, "the kernel did not ring"
    assert log.index(rang[0]) < log.index("EvictionThresholdMet")
    record_property("alarms that rang", len(rang))
    record_property("message", message)
    node.remove(cluster, "flood")
