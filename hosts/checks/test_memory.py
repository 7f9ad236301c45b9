"""Memory that runs out on cgroup v2: the kernel's alarms, eviction, kills in a container and of the machine.

Sizes come from the guest's own memory, and nothing is judged by time: whether an alarm rang is in the agent's log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hosts.machine import Kind
from hosts.node import Node, a_pod, node_on

MIB = 1 << 20
DEBUG = ["--v=4"]
NO_EVICTION = {"evictionHard": {"nodefs.available": "1%"}}
"""Setting any signal takes the defaults of the others away."""
RANG = "the kernel's memory alarm rang"
CONTRACT = "/run/alarms.py"
CHILD = "tail /dev/zero; echo child ended with $?; sleep 1000000"
"""tail keeps what it reads until a line ends, and there is no line in /dev/zero."""

ALARMS = """
import asyncio, os, subprocess, sys
from pathlib import Path
from pykubelet.clients.host.kernel import KernelMemoryAlarms

GROUP = Path("/sys/fs/cgroup/alarms")
EAT = "import os,sys; open(sys.argv[1]+'/cgroup.procs','w').write(str(os.getpid())); x=b'x'*int(sys.argv[2])"


async def use(size):
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", EAT, str(GROUP), str(size)])


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
    alarms, seen = KernelMemoryAlarms(), {}
    group, quiet = asyncio.Event(), asyncio.Event()
    alarm = alarms.watch("/alarms", 1, group.set)
    closed = alarms.watch("/alarms", 1, quiet.set)
    machine = alarms.watch("/", 1, lambda: None)
    closed.close()
    await use(16 << 20)
    seen["below the limit"] = await rings(group, 3)
    await use(128 << 20)
    seen["at the limit"] = await rings(group, 120)
    seen["closed"] = quiet.is_set()
    group.clear()
    GROUP.rmdir()
    seen["group gone"] = await rings(group, 120) and alarm.is_over
    alarm.close()
    machine.close()
    print(seen)


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="memory", cpus=2, memory="2G")) as node:
        node.start_runtime()
        yield node


def events(node: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(node.machine.run("pykubelet events -A -o json"))
    return found


def test_the_kernels_alarms_keep_their_contract(node: Node, record_property: Any) -> None:
    """What tests/contracts/test_memory_alarms.py asks of cgroup v1, of pressure and memory.events here."""
    node.machine.put(CONTRACT, ALARMS)
    printed = node.machine.run(f"/opt/pykubelet/bin/python {CONTRACT}").strip()
    assert printed == str({"below the limit": False, "at the limit": True, "closed": False, "group gone": True})
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
    node.wait(lambda: [each for each in events(node) if each["reason"] == "OOMKilling"], "an event of the kill")
    node.delete("whole")


def test_with_single_process_kill_the_rest_of_the_container_runs_on(node: Node, record_property: Any) -> None:
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
        return [each["message"] for each in events(node) if each["reason"] == "OOMKilling" and "single" in each["name"]]

    (message,) = node.wait(told, "an event of the kill")
    assert "process tail" in message and "runs on without it" in message and "it hit its memory limit" in message
    counted = re.search(
        r'^container_oom_events_total\{container="main"[^}]*pod="single-guest"\} (\d+)',
        node.get("/metrics/cadvisor"),
        re.MULTILINE,
    )
    assert counted and counted[1] == "1"
    record_property("event", message)
    node.delete("single")


def test_a_machine_out_of_memory_is_an_event_of_the_node(node: Node, record_property: Any) -> None:
    """A process of the system takes all there is: the kernel kills it and says so in its log."""
    node.start(NO_EVICTION)
    node.apply(a_pod("bystander"))
    node.running("bystander")
    hog = "import os; print(os.getpid(), flush=True); x = [b'x' * (16 << 20) for _ in range(4096)]"
    pid = node.machine.run(f'choom -n 1000 -- python3 -c "{hog}"', check=False, within=600).strip()
    text = f"System OOM encountered, victim process: python3, pid: {pid}"

    def told() -> list[str]:
        return [each["message"] for each in events(node) if each["reason"] == "SystemOOM"]

    assert node.wait(told, "an event of the node") == [text]
    assert "running" in node.container("bystander", "main")["state"]
    record_property("event", text)
    node.delete("bystander")


def _available(node: Node) -> int:
    return int(json.loads(node.get("/stats/summary"))["node"]["memory"]["availableBytes"])


FILL = "dd if=/dev/zero of=/mem/file bs=1M count={} && sleep 1000000"
MEMORY = {"volumes": [{"name": "mem", "emptyDir": {"medium": "Memory"}}]}
MOUNTED = {"volumeMounts": [{"name": "mem", "mountPath": "/mem"}]}


def _evicted(pod: Any) -> None:
    assert pod["status"]["reason"] == "Evicted", pod["status"]
    assert any(
        each["type"] == "DisruptionTarget" and each["reason"] == "TerminationByKubelet"
        for each in pod["status"]["conditions"]
    )


def test_a_node_short_of_memory_evicts_what_has_the_least_claim(node: Node, record_property: Any) -> None:
    node.start(NO_EVICTION)
    threshold = _available(node) - 200 * MIB
    node.stop()
    node.start({"evictionHard": {"memory.available": str(threshold)}, "evictionPressureTransitionPeriod": "10s"})
    kept = {"resources": {"requests": {"memory": "100Mi"}}}
    node.apply(a_pod("entitled", FILL.format(40), container=kept | MOUNTED, **MEMORY))
    node.running("entitled")
    node.apply(a_pod("greedy", FILL.format(300), container=MOUNTED, **MEMORY))
    pod = node.phase("greedy", "Failed")
    _evicted(pod)
    message = pod["status"]["message"]
    assert message.startswith("The node was low on resource: memory. Threshold quantity: "), message
    assert "running" in node.container("entitled", "main")["state"]
    assert "EvictionThresholdMet" in {each["reason"] for each in events(node)}
    assert "/mem" not in node.machine.run("grep kubernetes.io~empty-dir /proc/mounts | grep greedy", check=False)
    record_property("message", message)
    node.delete("greedy", "entitled")


def test_pods_that_reach_their_common_limit_ring_the_alarm_and_one_is_evicted(node: Node, record_property: Any) -> None:
    """All pods together may use 320 MiB here, far below what the machine has: only their group comes under pressure."""
    memory = int(node.machine.run("awk '/^MemTotal/ {print $2}' /proc/meminfo")) * 1024
    node.machine.run("journalctl --rotate --quiet; journalctl --vacuum-time=1s --quiet")
    node.start(
        {
            "systemReserved": {"memory": str(memory - 320 * MIB)},
            "evictionHard": {"memory.available": "60Mi"},
            "evictionPressureTransitionPeriod": "10s",
        },
        flags=DEBUG,
    )
    assert RANG not in node.log(1000)
    node.apply(a_pod("flood", FILL.format(1000), container=MOUNTED, restartPolicy="Never", **MEMORY))
    pod = node.phase("flood", "Failed")
    _evicted(pod)
    log = node.machine.run("journalctl -u pykubelet -o cat -b")
    rang = [line for line in log.splitlines() if RANG in line]
    assert any("allocatableMemory.available" in line for line in rang), "the kernel did not ring"
    assert log.index(RANG) < log.index("EvictionThresholdMet")
    record_property("alarms that rang", len(rang))
    record_property("message", pod["status"]["message"])
    node.delete("flood")
