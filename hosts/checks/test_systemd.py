"""The packaged units under systemd: readiness, watchdog, restarts, the journal, pods that outlive the agent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from hosts.image import PAYLOAD, ROOT
from hosts.machine import Kind
from hosts.node import CONFIGURATION, MANIFESTS, UNIT, Node, a_pod, a_witness, node_on

CONFIG = "/var/lib/kubelet/config.yaml"
DEFAULTS = "/etc/default/kubelet"
NEVER_A_TRACEBACK = "Traceback"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """The units installed as docs/join-with-kubeadm.md has it, flags in the files that the unit reads; not started."""
    with node_on(Kind(name="systemd")) as node:
        node.start_runtime()
        node.machine.put(CONFIG, json.dumps(CONFIGURATION))
        # Without a cluster: no kubeconfig, everything else as packaged.
        node.machine.put(DEFAULTS, "KUBELET_KUBECONFIG_ARGS=\nKUBELET_EXTRA_ARGS=--v=2\n")
        node.machine.run(
            f"mkdir -p {MANIFESTS}; install -m 644 {PAYLOAD}/packaging/*.service /etc/systemd/system/; "
            f"systemctl daemon-reload; systemctl enable --quiet containerd {UNIT}"
        )
        yield node


def identities(node: Node, *names: str) -> dict[str, tuple[str, int, str]]:
    """Container id, restarts and start of each pod's container: all stay as they are when a pod is adopted."""
    found = {}
    for name in names:
        status = node.container(name, "main")
        found[name] = (
            status["containerID"],
            status["restartCount"],
            status["state"]["running"]["startedAt"],
        )
    return found


def main_pid(node: Node) -> str:
    return node.show(UNIT, "MainPID")


def test_every_unit_is_valid(node: Node) -> None:
    printed = node.machine.run("systemd-analyze verify /etc/systemd/system/pykubelet*.service 2>&1")
    assert printed.strip() == ""


def test_systemd_says_active_only_when_the_agent_is_ready(node: Node) -> None:
    node.machine.run(f"systemctl start --no-block {UNIT}")
    seen = node.show(UNIT, "ActiveState")
    node.wait(lambda: node.show(UNIT, "ActiveState") == "active", "active")
    assert node.get("/healthz") == "ok"
    assert seen == "activating"
    entries = node.journal("-u", UNIT)
    ready = next(each for each in entries if "agent is running" in each["MESSAGE"])
    started = next(each for each in entries if each["MESSAGE"].startswith("Started "))
    assert int(ready["__MONOTONIC_TIMESTAMP"]) < int(started["__MONOTONIC_TIMESTAMP"])
    status = node.machine.run(f"systemctl status --no-pager {UNIT}")
    assert "active (running)" in status and "enabled" in status


def test_pods_outlive_a_stop_of_the_agent(node: Node) -> None:
    node.apply(a_pod("one"), a_witness("two"))
    node.running("one"), node.running("two")
    before = identities(node, "one", "two")
    node.stop()
    assert node.show(UNIT, "Result") == "success" and node.show(UNIT, "ActiveState") == "inactive"
    listed = node.machine.run("ctr -n k8s.io tasks ls")
    for identifier, _, _ in before.values():
        assert f"{identifier.rpartition('/')[2]} " in listed and "RUNNING" in listed
    node.machine.run(f"systemctl start {UNIT}")
    node.running("one"), node.running("two")
    assert identities(node, "one", "two") == before
    assert [word for word, _ in node.witnessed("two")] == ["started"]


def test_a_killed_agent_is_started_again_and_adopts_its_pods(node: Node) -> None:
    before, pid, restarts = (
        identities(node, "one", "two"),
        main_pid(node),
        int(node.show(UNIT, "NRestarts")),
    )
    node.machine.run(f"kill -KILL {pid}")
    node.wait(
        lambda: node.show(UNIT, "NRestarts") == str(restarts + 1),
        "restarted by systemd",
    )
    node.wait(lambda: node.show(UNIT, "ActiveState") == "active", "active")
    assert main_pid(node) != pid
    node.running("one"), node.running("two")
    assert identities(node, "one", "two") == before


def test_an_agent_that_hangs_is_restarted_by_the_watchdog_and_adopts_its_pods(
    node: Node,
) -> None:
    assert node.show(UNIT, "WatchdogUSec") == "1min"
    before, pid, restarts = (
        identities(node, "one", "two"),
        main_pid(node),
        int(node.show(UNIT, "NRestarts")),
    )
    node.machine.run(f"kill -STOP {pid}")
    node.wait(
        lambda: node.show(UNIT, "NRestarts") == str(restarts + 1),
        "restarted by the watchdog",
    )
    node.wait(lambda: node.show(UNIT, "ActiveState") == "active", "active")
    said = [each["MESSAGE"] for each in node.journal("-u", UNIT)]
    assert any("Watchdog timeout" in message for message in said)
    node.running("one"), node.running("two")
    assert identities(node, "one", "two") == before


def test_an_agent_that_works_is_left_alone_by_the_watchdog(node: Node) -> None:
    pid = main_pid(node)
    node.machine.run("sleep 75")
    assert main_pid(node) == pid and node.show(UNIT, "ActiveState") == "active"


def test_the_journal_has_priorities_and_no_tracebacks(node: Node) -> None:
    node.machine.put("/run/broken.yaml", "kind: Pod\nspec: [")
    node.machine.run(f"cp /run/broken.yaml {MANIFESTS}/broken.yaml")
    broken = node.wait(
        lambda: [each for each in node.journal("-u", UNIT) if "broken.yaml" in each["MESSAGE"]],
        "a line about the file",
    )
    node.machine.run(f"rm {MANIFESTS}/broken.yaml")
    assert {each["PRIORITY"] for each in broken} <= {"3", "4"}
    own = [each for each in node.journal("-u", UNIT) if each.get("_TRANSPORT") == "stdout"]
    wanted = {"I": {"6", "7"}, "W": {"4"}, "E": {"3"}, "F": {"2"}}
    wrong = [each["MESSAGE"] for each in own if each["PRIORITY"] not in wanted.get(each["MESSAGE"][:1], {"6"})]
    assert not wrong
    assert not [each["MESSAGE"] for each in own if NEVER_A_TRACEBACK in each["MESSAGE"]]


def test_wrong_settings_end_in_plain_words(node: Node) -> None:
    node.stop()
    node.machine.put(CONFIG, json.dumps(CONFIGURATION | {"cgroupDriver": "sistemd"}))
    node.machine.run(f"systemctl start --no-block {UNIT}")
    node.wait(lambda: int(node.show(UNIT, "NRestarts")) > 0, "tried again")
    node.machine.run(f"systemctl stop {UNIT}; systemctl reset-failed {UNIT}", check=False)
    node.machine.put(CONFIG, json.dumps(CONFIGURATION))
    invocation = [each["MESSAGE"] for each in node.journal("-u", UNIT, "-n", "20")]
    assert any("cgroupDriver" in message and "sistemd" in message for message in invocation)
    assert not any(NEVER_A_TRACEBACK in message for message in invocation)
    node.machine.run(f"systemctl start {UNIT}")
    node.running("one")


def test_the_agent_waits_for_a_runtime_that_comes_late(node: Node) -> None:
    """On a boot containerd may need longer than the agent: it gets there by itself, and pods are adopted."""
    before = identities(node, "one", "two")
    node.machine.run(f"systemctl stop {UNIT} containerd")
    node.machine.run(f"systemctl start --no-block {UNIT}")
    time.sleep(20)
    node.machine.run("systemctl start containerd")
    node.wait(lambda: node.show(UNIT, "ActiveState") == "active", "active")
    node.running("one"), node.running("two")
    assert identities(node, "one", "two") == before


def test_the_shutdown_unit_ends_pods_in_order(node: Node) -> None:
    node.delete("one", "two")
    node.apply(a_witness("plain", 3, terminationGracePeriodSeconds=60))
    node.apply(a_witness("critical", 2, priority=2_000_001_000, terminationGracePeriodSeconds=60))
    node.running("plain"), node.running("critical")
    # Longer periods, given as the unit says: a guest without hardware virtualization is slow.
    stop = "/usr/local/bin/pykubelet shutdown --if-running --grace 240s --grace-critical 100s"
    node.machine.put(
        "/etc/systemd/system/pykubelet-shutdown.service.d/slow.conf",
        f"[Service]\nExecStop=\nExecStop={stop}\nTimeoutStopSec=600\n",
    )
    node.machine.run("systemctl daemon-reload; systemctl enable --now --quiet pykubelet-shutdown")
    node.machine.run("systemctl stop pykubelet-shutdown")
    assert node.show("pykubelet-shutdown", "Result") == "success"
    plain, last = dict(node.witnessed("plain")), dict(node.witnessed("critical"))
    assert plain["ended"] - plain["term"] >= 3 and last["ended"] - last["term"] >= 2
    assert plain["ended"] <= last["term"]
    # The machine did not go down after all: a restart of the agent takes pods again.
    node.machine.run(f"systemctl disable --quiet pykubelet-shutdown; systemctl restart {UNIT}")
    node.running("plain"), node.running("critical")
    node.delete("plain", "critical")


def test_the_unit_of_up_runs_an_example_that_outlives_it(node: Node) -> None:
    node.stop()
    node.machine.run("systemctl stop containerd")
    node.machine.put(
        "/etc/pykubelet/manifests/hello.yaml",
        (ROOT / "examples" / "hello.yaml").read_text(),
    )
    node.machine.run("systemctl enable --now --quiet pykubelet-up")

    def pod() -> tuple[str, str] | None:
        printed = node.machine.run("pykubelet get pods -o json 2>/dev/null", check=False)
        for each in json.loads(printed)["items"] if printed.strip() else []:
            for container in each["status"].get("containerStatuses", ()):
                if container["ready"]:
                    return each["status"]["podIP"], container["containerID"]
        return None

    address, identifier = node.wait(pod, "hello ready")
    page = f"curl -sf http://{address}:8080/"
    assert node.machine.run(page).startswith("hello from hello")
    node.machine.run("systemctl stop pykubelet-up")
    assert node.machine.run(page).startswith("hello from hello")
    node.machine.run("systemctl start pykubelet-up")
    assert node.wait(pod, "hello ready again") == (address, identifier)
    own = [each["MESSAGE"] for each in node.journal("-u", "pykubelet-up")]
    assert not any(NEVER_A_TRACEBACK in message for message in own)
    node.machine.run("pykubelet down && systemctl disable --now --quiet pykubelet-up", check=False)
