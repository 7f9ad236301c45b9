"""Steps of the clock by an hour, forward and back: no pod ends or restarts by them, nothing waits for old time.

Without a cluster there is no lease; its renewal is on monotonic time (tests/unit/node/test_lease.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

from hosts.machine import Kind
from hosts.node import UNIT, WITNESSED, Node, a_pod, a_witness, node_on

PROBED = f"{WITNESSED}/probes"
CERTIFICATE = "/var/lib/kubelet/pki/kubelet.crt"
HOUR = 3600
STEPS = [pytest.param(HOUR, id="forward"), pytest.param(-2 * HOUR, id="back")]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="clock")) as node:
        node.machine.run("systemctl disable --now systemd-timesyncd", check=False)
        node.start_runtime()
        # Else a container that crashes waits up to five minutes, which is nothing against the steps here.
        node.start({"crashLoopBackOff": {"maxContainerRestartPeriod": "20s"}})
        command = ["sh", "-c", "echo probed >>/out/probes"]
        probe = {
            "exec": {"command": command},
            "periodSeconds": 3,
            "timeoutSeconds": 60,
            "failureThreshold": 10,
        }
        node.apply(
            a_witness(
                "steady",
                container={
                    "volumeMounts": [{"name": "out", "mountPath": "/out"}],
                    "livenessProbe": probe,
                },
            ),
            a_pod("crashing", "sleep 1; exit 1"),
        )
        node.running("steady")
        node.wait(
            lambda: node.container("crashing", "main")["restartCount"] >= 2,
            "crashing restarted twice",
        )
        yield node


def step(node: Node, seconds: int) -> None:
    node.machine.run(f"date -s @$(($(date +%s) + {seconds}))")


def now(node: Node) -> float:
    return float(node.machine.run("date +%s"))


@pytest.mark.parametrize("seconds", STEPS)
def test_pods_probes_and_back_offs_go_on(node: Node, seconds: int) -> None:
    before, agent = node.container("steady", "main"), node.show(UNIT, "MainPID")
    certificate = node.machine.run(f"sha256sum {CERTIFICATE}")
    crashes = node.container("crashing", "main")["restartCount"]
    step(node, seconds)
    probed = len(node.machine.get(PROBED).splitlines())
    node.wait(
        lambda: len(node.machine.get(PROBED).splitlines()) >= probed + 5,
        "probed five times more",
    )
    node.wait(
        lambda: node.container("crashing", "main")["restartCount"] >= crashes + 1,
        "restarted after its back-off",
    )
    after = node.container("steady", "main")
    assert (after["containerID"], after["restartCount"]) == (
        before["containerID"],
        before["restartCount"],
    )
    assert after["state"] == before["state"]
    assert [word for word, _ in node.witnessed("steady")] == ["started"]
    assert node.show(UNIT, "MainPID") == agent and node.get("/healthz") == "ok"
    assert node.machine.run(f"sha256sum {CERTIFICATE}") == certificate
    assert "Traceback" not in node.log(500)


@pytest.mark.parametrize("seconds", STEPS)
def test_a_pod_has_its_grace_whole_and_no_more(node: Node, seconds: int) -> None:
    name = "patient" if seconds > 0 else "impatient"
    node.apply(a_witness(f"{name}-quick", 8, terminationGracePeriodSeconds=60))
    node.apply(a_witness(f"{name}-slow", 100_000, terminationGracePeriodSeconds=15))
    node.running(f"{name}-quick"), node.running(f"{name}-slow")
    slow = node.container_id(f"{name}-slow", "main")
    node.machine.run(f"rm /etc/kubernetes/manifests/{name}-*.json")
    node.wait(lambda: "term" in dict(node.witnessed(f"{name}-quick")), "asked to end")
    step(node, seconds)
    # The agent lists a static pod no more as soon as its file is gone: only its containers tell when it has ended.
    node.wait(lambda: "ended" in dict(node.witnessed(f"{name}-quick")), "the quick one ended")
    node.wait(lambda: slow not in node.machine.run("ctr -n k8s.io tasks ls"), "the slow one killed")
    quick = dict(node.witnessed(f"{name}-quick"))
    assert quick["ended"] - quick["term"] >= 8


def test_an_initial_delay_is_not_begun_anew(node: Node) -> None:
    delayed = {
        "exec": {"command": ["true"]},
        "initialDelaySeconds": 30,
        "timeoutSeconds": 60,
    }
    node.apply(a_pod("delayed", container={"readinessProbe": delayed}))
    node.phase("delayed", "Running")
    step(node, -HOUR)
    node.running("delayed")
    node.delete("delayed")


def test_new_pods_have_the_time_of_the_clock(node: Node) -> None:
    earliest = now(node) - 1
    node.apply(a_pod("new"))
    status = node.running("new")["status"]
    times = [
        status["startTime"],
        *(each["lastTransitionTime"] for each in status["conditions"]),
    ]
    for text in times:
        assert earliest <= datetime.fromisoformat(text).timestamp() <= now(node)
