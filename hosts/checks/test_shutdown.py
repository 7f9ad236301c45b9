"""Power-off and reboot with the real logind: the delay lock, pods in the order of their priorities, and the next boot.

One guest with three boots: the checks build on each other, in the order of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hosts.machine import Kind
from hosts.node import UNIT, WITNESSED, Node, a_pod, a_witness, node_on

WHOLE, CRITICAL = 600, 200
"""Seconds; long, for guests without hardware virtualization. Pods that are quick do not use them up."""
REPORTS = 9
"""Seconds that the agent adds: 3 for each of two groups and 3 for the Node."""
SYSTEM_NODE_CRITICAL = 2_000_001_000
DROP_IN = "/etc/systemd/logind.conf.d/99-kubelet.conf"
LOGIND = "org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
PODS = ("plain", "stubborn", "critical")
GRACE = 20


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="shutdown")) as node:
        node.start_runtime()
        node.start(
            {
                "shutdownGracePeriod": f"{WHOLE}s",
                "shutdownGracePeriodCriticalPods": f"{CRITICAL}s",
            }
        )
        node.apply(
            a_witness("plain", 4, terminationGracePeriodSeconds=60),
            a_witness("stubborn", 100_000, terminationGracePeriodSeconds=GRACE),
            a_witness(
                "critical",
                3,
                priority=SYSTEM_NODE_CRITICAL,
                terminationGracePeriodSeconds=60,
            ),
        )
        yield node


def logind(node: Node, name: str) -> str:
    """A property of logind's manager without its type."""
    return node.machine.run(f"busctl get-property {LOGIND} {name}").split(" ", 1)[1].strip()


def locks(node: Node) -> list[dict[str, Any]]:
    printed = node.machine.run(f"busctl --json=short call {LOGIND} ListInhibitors")
    named = ("what", "who", "why", "mode", "uid", "pid")
    return [dict(zip(named, each, strict=True)) for each in json.loads(printed)["data"][0]]


def starts(node: Node, name: str) -> int:
    return [word for word, _ in node.witnessed(name)].count("started")


def boot_after(node: Node, command: str) -> None:
    """Take the guest down by that command and boot it again; the unit starts the agent."""
    node.machine.run(f"rm -f {WITNESSED}/*; sync")
    node.machine.power_off(command, within=1500)
    node.machine.boot()


def assert_went_down_in_order(node: Node) -> None:
    """What the agent said before this boot."""
    words = node.machine.run(f"journalctl -b -1 -u {UNIT} -o cat")
    assert "pods are stopped, the machine may go down" in words and "did not end" not in words
    assert "Traceback" not in words


def assert_only_the_pods_are_left(node: Node, names: tuple[str, ...], finished: tuple[str, ...] = ()) -> None:
    """After a boot: folders, mounts, cgroups, addresses and sandboxes of these pods alone; of finished ones folders."""
    pods = node.pods()
    uids = {pods[name]["metadata"]["uid"] for name in names}
    known = uids | {pods[name]["metadata"]["uid"] for name in finished}
    folders = "ls /var/lib/kubelet/pods"
    node.wait(lambda: set(node.machine.run(folders).split()) == known, f"folders of {known} alone")
    mounted = node.machine.run("findmnt -rn -o TARGET | grep -o '/pods/[^/]*' | sort -u", check=False).split()
    assert {each.removeprefix("/pods/") for each in mounted} <= uids
    slices = node.machine.run("find /sys/fs/cgroup/kubepods.slice -name '*-pod*.slice' -printf '%f\\n'").split()
    assert len(slices) == len(uids)
    assert {each.rpartition("-pod")[2].removesuffix(".slice").replace("_", "-") for each in slices} == uids
    node.wait(
        lambda: len(node.addresses()) == len(uids),
        f"{len(uids)} addresses in use: {node.addresses()}",
    )
    # Beside the one that runs a pod keeps the sandbox of its last dead container, whose log can be asked for.
    node.wait(
        lambda: len(node.sandboxes()) <= 2 * len(uids) + len(finished),
        f"few sandboxes: {node.sandboxes()}",
    )


def test_a_delay_lock_is_held_and_logind_allows_as_long_as_needed(node: Node) -> None:
    for name in PODS:
        node.running(name)
    held = node.wait(lambda: [each for each in locks(node) if each["who"] == "kubelet"], "a lock")
    assert [(each["what"], each["mode"]) for each in held] == [("shutdown", "delay")]
    assert str(held[0]["pid"]) == node.show(UNIT, "MainPID")
    assert "kubelet" in node.machine.run("systemd-inhibit --list")
    written = node.machine.get(DROP_IN)
    assert "[Login]" in written and f"InhibitDelayMaxSec={WHOLE + REPORTS}" in written
    assert logind(node, "InhibitDelayMaxUSec") == str((WHOLE + REPORTS) * 1_000_000)


def test_a_shutdown_called_off_before_its_time_touches_no_pod(node: Node) -> None:
    before = {name: node.container_id(name, "main") for name in PODS}
    node.machine.run("shutdown +5")
    assert "poweroff" in logind(node, "ScheduledShutdown")
    node.machine.run("sleep 5; shutdown -c")
    assert {name: node.container_id(name, "main") for name in PODS} == before
    assert all([word for word, _ in node.witnessed(name)] == ["started"] for name in PODS)


def test_a_shutdown_that_logind_calls_off_starts_the_pods_again(node: Node) -> None:
    """logind announces it, waits for the pods, cannot go on (its target is masked by then), and says that it is off."""
    before = {name: node.container_id(name, "main") for name in PODS}
    node.machine.run("(systemctl poweroff) >/dev/null 2>&1 &")
    node.wait(lambda: "term" in dict(node.witnessed("plain")), "announced")
    # Only now: logind announces nothing that is masked from the start.
    node.machine.run("systemctl mask --runtime --quiet poweroff.target")
    node.wait(lambda: node.witnessed("critical")[-1][0] == "ended", "the last pod ended")
    node.wait(lambda: logind(node, "PreparingForShutdown") == "false", "called off")
    node.machine.run("systemctl unmask --runtime --quiet poweroff.target")
    node.wait(lambda: all(starts(node, name) == 2 for name in PODS), "every pod started again")
    for name in PODS:
        node.running(name)
    assert not set(before.values()) & {node.container_id(name, "main") for name in PODS}
    assert node.wait(
        lambda: [each for each in locks(node) if each["who"] == "kubelet"],
        "a lock again",
    )


def test_a_poweroff_ends_pods_in_order_with_their_graces(node: Node, record_property: Any) -> None:
    boot_after(node, "systemctl poweroff")
    seen = {name: dict(node.witnessed(name)) for name in ("plain", "critical")}
    record_property("witnessed", seen)
    plain, critical = seen["plain"], seen["critical"]
    assert plain["ended"] - plain["term"] >= 4, "a pod that needs four seconds has them"
    assert critical["ended"] - critical["term"] >= 3
    stubborn = dict(node.witnessed("stubborn"))["term"]
    assert critical["term"] >= max(plain["ended"], stubborn + GRACE), "critical pods end after all others are gone"
    assert_went_down_in_order(node)
    record = json.loads(node.machine.get("/var/lib/kubelet/graceful_node_shutdown_state"))
    assert record["startTime"] < record["endTime"]


def test_after_the_boot_static_pods_run_again_and_nothing_old_is_left(
    node: Node,
) -> None:
    for name in PODS:
        pod = node.running(name)
        status = pod["status"]["containerStatuses"][0]
        assert status["restartCount"] >= 1 and pod["status"]["phase"] == "Running"
        assert "reason" not in pod["status"], "the mark of the shutdown is gone"
    assert_only_the_pods_are_left(node, PODS)
    assert node.wait(lambda: [each for each in locks(node) if each["who"] == "kubelet"], "a lock")


def test_a_reboot_ends_pods_by_the_periods_of_their_priorities(node: Node, record_property: Any) -> None:
    node.delete("plain", "stubborn", "critical")
    periods = [(0, 300), (1000, 300), (SYSTEM_NODE_CRITICAL, 200)]
    node.start(
        {
            "shutdownGracePeriodByPodPriority": [
                {"priority": priority, "shutdownGracePeriodSeconds": seconds} for priority, seconds in periods
            ]
        }
    )
    node.apply(
        a_witness("low", 3, terminationGracePeriodSeconds=30),
        a_witness("between", 2, priority=999, terminationGracePeriodSeconds=30),
        a_witness("middle", 100_000, priority=5000, terminationGracePeriodSeconds=GRACE),
        a_witness("high", 2, priority=SYSTEM_NODE_CRITICAL, terminationGracePeriodSeconds=30),
        a_pod("done", "exit 0", restartPolicy="Never"),
    )
    for name in ("low", "between", "middle", "high"):
        node.running(name)
    done = node.phase("done", "Succeeded")["status"]["containerStatuses"][0]["containerID"]
    node.wait(lambda: [each for each in locks(node) if each["who"] == "kubelet"], "a lock")
    boot_after(node, "systemctl reboot")
    seen = {name: dict(node.witnessed(name)) for name in ("low", "between", "middle", "high")}
    record_property("witnessed", seen)
    first = max(seen["low"]["ended"], seen["between"]["ended"])
    assert seen["low"]["ended"] - seen["low"]["term"] >= 3
    assert first <= seen["middle"]["term"], "priorities 0 and 999 are one class, before 1000"
    assert seen["high"]["term"] - seen["middle"]["term"] >= GRACE, "a pod that does not end has its whole grace"
    assert "ended" in seen["high"], "and does not take the time of the next ones"
    assert_went_down_in_order(node)
    for name in ("low", "between", "middle", "high"):
        assert node.running(name)["status"]["containerStatuses"][0]["restartCount"] == 1
    finished = node.phase("done", "Succeeded")["status"]["containerStatuses"][0]
    assert finished["containerID"] == done, "a pod that had ended by itself is not run again"
    assert_only_the_pods_are_left(node, ("low", "between", "middle", "high"), finished=("done",))
