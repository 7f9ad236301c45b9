"""The power goes in the middle of work; after the boot everything starts, and damaged files are said and set aside.

One guest with three boots: the checks build on each other, in the order of the file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hosts.machine import Kind
from hosts.node import MANIFESTS, UNIT, Node, Record, a_pod, node_on

BURST = tuple(f"burst-{number}" for number in range(8))
KEEPER = "keeper"
"""Keeps what it made at first in an emptyDir."""
ROOT = "/var/lib/kubelet"
MUST_NOT_BE_GUESSED = {"cpu_manager_state", "memory_manager_state"}
"""What containers own exclusively: the agent asks for a decision instead, as upstream's does."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="power-cut", safe_disks=True)) as node:
        node.start_runtime()
        node.start()
        make = "[ -e /data/made ] || { cat /proc/sys/kernel/random/uuid >/data/made; sync; }; sleep 1000000"
        mounted = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        node.apply(a_pod(KEEPER, make, container=mounted, volumes=[{"name": "data", "emptyDir": {}}]))
        node.running(KEEPER)
        node.machine.run("sync")
        yield node


def sent(node: Node, version: str) -> None:
    node.apply(*(a_pod(name, f"echo {version}; sleep 1000000") for name in BURST))


def cut(node: Node, record_property: Record) -> None:
    """Take the power away and boot again; what was there at the cut is noted."""
    record_property("sandboxes at the cut", len(node.sandboxes()))
    node.machine.cut()
    node.machine.boot()
    logs = node.machine.run("journalctl -b -o cat; cat /run/initramfs/fsck.log 2>&1", check=False)
    recovered = ("recovery complete", "recovering journal")  # by the kernel, by fsck
    assert any(words in logs for words in recovered), "the filesystem was not put down in order"


def assert_well(node: Node, record_property: Record) -> None:
    everything = (KEEPER, *BURST)
    addresses = {node.running(name)["status"]["podIP"] for name in everything}
    assert node.show(UNIT, "ActiveState") == "active" and node.show(UNIT, "NRestarts") == "0"
    assert "Traceback" not in node.machine.run(f"journalctl -b -u {UNIT} -o cat")
    assert len(addresses) == len(everything) and addresses <= set(node.addresses())
    # The runtime had not noted every sandbox that it was making: their addresses are lost, with any agent.
    record_property("addresses lost", len(node.addresses()) - len(addresses))
    node.wait(lambda: len(node.sandboxes()) <= 2 * len(everything), "few sandboxes")
    uids = {pod["metadata"]["uid"] for pod in node.pods().values()}
    assert len(uids) == len(everything)
    node.wait(lambda: set(node.machine.run(f"ls {ROOT}/pods").split()) == uids, f"folders of {uids} alone")


def test_a_cut_in_the_middle_of_a_burst(node: Node, record_property: Record) -> None:
    sent(node, "first")
    node.machine.run("sync")  # the administrator's files are there; what follows from them is not
    node.wait(lambda: len(node.sandboxes()) >= 3, "the first sandboxes")
    cut(node, record_property)
    assert_well(node, record_property)


def test_a_cut_while_all_pods_are_replaced(node: Node, record_property: Record) -> None:
    kept = node.exec(KEEPER, "main", "cat /data/made")
    before = set(node.sandboxes())
    sent(node, "second")
    node.machine.run("sync")
    node.wait(lambda: set(node.sandboxes()) - before, "the first replacement")
    cut(node, record_property)
    assert_well(node, record_property)
    pods = node.pods()
    for name in BURST:
        assert "echo second" in pods[name]["spec"]["containers"][0]["command"][-1]
    assert kept and node.exec(KEEPER, "main", "cat /data/made") == kept, "an emptyDir outlives the boot as its pod does"


@pytest.mark.parametrize("damage", ["truncate -s 0", "truncate -s 20"], ids=["empty", "torn"])
def test_every_damaged_checkpoint_is_set_aside_and_said_once(node: Node, damage: str) -> None:
    before = {name: node.container_id(name, "main") for name in BURST}
    node.stop()
    named = "-name '*_state' -o -name '*checkpoint' -o -path './image_manager/*/sha256-*'"
    found = node.machine.run(f"cd {ROOT}; find . -maxdepth 3 -type f -size +0 \\( {named} \\)").split()
    files = [each.removeprefix("./") for each in found if each.rpartition("/")[2] not in MUST_NOT_BE_GUESSED]
    assert {"allocated_pods_state", "actuated_pods_state"} <= set(files)
    node.machine.run(f"cd {ROOT}; {damage} {' '.join(files)}")
    node.machine.run(f"systemctl start {UNIT}")
    for name in BURST:
        node.running(name)
    assert {name: node.container_id(name, "main") for name in BURST} == before
    this_start = f"_SYSTEMD_INVOCATION_ID={node.show(UNIT, 'InvocationID')}"
    lines = [each["MESSAGE"] for each in node.journal(this_start)]
    for file in files:
        about = [line for line in lines if f'path="{ROOT}/{file}"' in line and "damaged" in line]
        assert len(about) == 1, (file, about)
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize("file", sorted(MUST_NOT_BE_GUESSED))
def test_a_damaged_state_of_exclusive_resources_is_named(node: Node, file: str) -> None:
    node.stop()
    before = node.machine.run("ctr -n k8s.io tasks ls -q | sort")
    node.machine.run(f"truncate -s 0 {ROOT}/{file}; systemctl start --no-block {UNIT}")
    said = node.wait(lambda: [line for line in node.log(20).splitlines() if f"{ROOT}/{file}" in line], "the file named")
    assert all("delete" in line for line in said)
    assert "Traceback" not in node.log(50)
    node.machine.run(f"systemctl stop {UNIT}; rm {ROOT}/{file}; systemctl start {UNIT}")
    for name in BURST:
        node.running(name)
    assert node.machine.run("ctr -n k8s.io tasks ls -q | sort") == before


def test_a_manifest_that_the_cut_emptied_stops_no_other(node: Node) -> None:
    node.machine.run(f": >{MANIFESTS}/empty.json; systemctl restart {UNIT}")
    for name in BURST:
        node.running(name)
    node.wait(lambda: "empty.json" in node.log(300), "the file named")
    node.machine.run(f"rm {MANIFESTS}/empty.json")
