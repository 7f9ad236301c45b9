"""A unit with a short watchdog: ten minutes of work under load, then an agent that hangs.

An emulated guest is 10 to 20 times slower than its clock, so ten seconds there are less than one of a real machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from hosts.machine import Kind
from hosts.node import MANIFESTS, UNIT, Node, Record, a_pod, node_on

TEN_MINUTES = 600.0
KEPT = ("kept-1", "kept-2")
AT_ONCE = 4
DROP_IN = f"/etc/systemd/system/{UNIT}.service.d/watchdog.conf"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="watchdog")) as node:
        node.start_runtime()
        # After the bed's own drop-in, which is more patient.
        node.machine.put(DROP_IN, "[Service]\nWatchdogSec=10\n")
        node.start()
        half = {"resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}}
        node.apply(a_pod("busy", "while :; do :; done", container=half), *(a_pod(name) for name in KEPT))
        for name in ("busy", *KEPT):
            node.running(name)
        yield node


def identities(node: Node) -> dict[str, tuple[str, int, str]]:
    """Container id, restarts and start of the pods that stay."""
    found = {name: node.container(name, "main") for name in KEPT}
    return {
        name: (each["containerID"], each["restartCount"], each["state"]["running"]["startedAt"])
        for name, each in found.items()
    }


def silence(node: Node) -> float:
    """Seconds since systemd heard of the agent."""
    property_of = f"systemctl show --value -p WatchdogTimestampMonotonic {UNIT}"
    heard, up = node.machine.run(f"{property_of}; cut -d' ' -f1 /proc/uptime").split()
    return float(up) - int(heard) / 1e6


def send(node: Node, *names: str) -> None:
    """Static pods by one command: the work is the agent's, not the connection's."""
    for name in names:
        node.machine.put(f"/run/batch/{name}.json", json.dumps(a_pod(name, terminationGracePeriodSeconds=1)))
    node.machine.run(f"cp /run/batch/*.json {MANIFESTS}/; rm -r /run/batch")


def test_ten_minutes_of_work_leave_it_alone(node: Node, record_property: Record) -> None:
    assert node.show(UNIT, "Type") == "notify" and node.show(UNIT, "WatchdogUSec") == "10s"
    before, pid = identities(node), node.show(UNIT, "MainPID")
    deadline, made, longest = time.monotonic() + TEN_MINUTES, 0, 0.0
    while time.monotonic() < deadline:
        names = [f"churn-{made + number}" for number in range(AT_ONCE)]
        send(node, *names)
        for name in names:
            node.running(name)
            longest = max(longest, silence(node))
        assert "busy" in node.get("/stats/summary") and node.get("/metrics")
        node.delete(*names)
        made += AT_ONCE
    assert made >= 5 * AT_ONCE
    assert (node.show(UNIT, "NRestarts"), node.show(UNIT, "MainPID")) == ("0", pid)
    said = [each["MESSAGE"] for each in node.journal("-u", UNIT)]
    assert not [line for line in said if "Watchdog timeout" in line or "Traceback" in line]
    assert identities(node) == before
    record_property("pods made and ended", made)
    record_property("longest silence seen in s", round(longest, 1))


def test_an_agent_that_hangs_under_load_is_restarted_and_adopts_its_pods(node: Node, record_property: Record) -> None:
    names = [f"late-{number}" for number in range(AT_ONCE)]
    before, pid = identities(node), node.show(UNIT, "MainPID")
    send(node, *names)
    node.machine.run(f"kill -STOP {pid}")
    node.wait(lambda: node.show(UNIT, "NRestarts") == "1", "restarted by the watchdog")
    node.wait(lambda: node.show(UNIT, "ActiveState") == "active", "active")
    assert node.show(UNIT, "MainPID") != pid
    said = [each["MESSAGE"] for each in node.journal("-u", UNIT)]
    record_property("systemd", next(line for line in said if "Watchdog timeout" in line))
    for name in (*KEPT, *names):  # those that came before it hung, too
        node.running(name)
    assert identities(node) == before
    assert not [line for line in said if "Traceback" in line]
