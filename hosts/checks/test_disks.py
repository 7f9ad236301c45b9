"""The disk of the agent's root folder: full, almost full, read-only, failing. Pods run on, the agent says what is wrong
in plain words, damages nothing, and goes on by itself when the disk is well again.

Static pods are never evicted, so that what is seen of eviction here is pressure and its end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from hosts.machine import Disk, Kind
from hosts.node import PATIENCE, UNIT, Node, a_pod, node_on

ROOT = "/var/lib/kubelet"
DEVICE = "/dev/disk/by-id/virtio-node"
SHORT = "the node runs short"
FULL, READ_ONLY, FAILED = "No space left on device", "Read-only file system", "Input/output error"
PRESSURE = '"pressure on the node".* now=.*DiskPressure'
NO_PRESSURE = f'{PRESSURE}(.|\n)*"pressure on the node".* now="\\[\\]"'


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with node_on(Kind(name="disks", disks=(Disk(name="node", size="512M"),))) as node:
        # As Debian's installer writes it, so that a boot checks and mounts it.
        line = f"{DEVICE} {ROOT} ext4 errors=remount-ro 0 2"
        node.machine.run(
            f"mkfs.ext4 -q -m 0 {DEVICE} && mkdir -p {ROOT} && echo '{line}' >>/etc/fstab && "
            f"systemctl daemon-reload && mount {ROOT}"
        )
        node.start_runtime()
        node.start(
            {
                "evictionHard": {"nodefs.available": "20%", "memory.available": "50Mi"},
                "evictionPressureTransitionPeriod": "10s",
            }
        )
        node.apply(a_pod("steady"))
        node.running("steady")
        yield node


def same(node: Node) -> tuple[str, int, str]:
    status = node.container("steady", "main")
    return status["containerID"], status["restartCount"], node.show(UNIT, "MainPID")


def mark(node: Node) -> str:
    """Where the journal ends now."""
    return node.machine.run("journalctl -n 0 --show-cursor -o cat").strip().removeprefix("-- cursor: ")


def since(node: Node, cursor: str) -> str:
    """What the agent and systemd said about its unit after the mark."""
    return "\n".join(each["MESSAGE"] for each in node.journal("-u", UNIT, f"--after-cursor={cursor}"))


def fill(node: Node, leave: int = 0) -> None:
    """Leave so many bytes of the disk free."""
    node.machine.run(
        f"free=$(df -B1 --output=avail {ROOT} | tail -1); fallocate -l $((free - {leave})) {ROOT}/filler", check=False
    )
    if not leave:
        node.machine.run(f"dd if=/dev/zero of={ROOT}/filler2 bs=4k; sync", check=False)


def free(node: Node) -> None:
    node.machine.run(f"rm -f {ROOT}/filler {ROOT}/filler2; sync")


def test_pressure_is_seen_and_ends(node: Node) -> None:
    before, began = same(node), mark(node)
    fill(node, leave=40 << 20)
    node.wait(lambda: SHORT in since(node, began), "the shortage said")
    node.wait(lambda: re.search(PRESSURE, since(node, began)), "DiskPressure")
    assert same(node) == before, "static pods are critical and are not evicted"
    free(node)
    node.wait(lambda: re.search(NO_PRESSURE, since(node, began)), "no pressure any more")
    node.apply(a_pod("afterwards"))
    node.running("afterwards")
    node.delete("afterwards")
    assert same(node) == before


def test_a_full_disk_harms_nothing_and_is_said(node: Node) -> None:
    before, began = same(node), mark(node)
    fill(node)
    node.apply(a_pod("waits-for-room"))
    node.wait(lambda: FULL in since(node, began), "a full disk said")
    assert node.get("/healthz") == "ok" and same(node) == before
    assert "waits-for-room" in node.pods() and "Traceback" not in since(node, began)
    free(node)
    node.running("waits-for-room")
    node.machine.run(f"systemctl restart {UNIT}")
    node.running("waits-for-room"), node.running("steady")
    assert same(node)[:2] == before[:2]
    assert "damaged" not in since(node, began) and "Traceback" not in since(node, began)
    node.delete("waits-for-room")


def test_a_start_on_a_full_disk_adopts_what_runs(node: Node) -> None:
    before = same(node)
    node.stop()
    fill(node)
    began = mark(node)
    node.machine.run(f"systemctl start {UNIT}", within=PATIENCE)
    node.running("steady")
    node.wait(lambda: SHORT in since(node, began), "the shortage said")
    assert same(node)[:2] == before[:2] and node.get("/healthz") == "ok"
    free(node)
    node.wait(lambda: re.search(NO_PRESSURE, since(node, began)), "no pressure any more")
    assert "damaged" not in since(node, began) and "Traceback" not in since(node, began)


def test_a_start_that_cannot_keep_its_state_is_said_and_comes_through(node: Node) -> None:
    before = same(node)
    node.stop()
    node.machine.run(f"rm {ROOT}/cpu_manager_state")
    fill(node)
    began = mark(node)
    node.machine.run(f"systemctl start --no-block {UNIT}")
    node.wait(lambda: FULL in since(node, began), "a full disk said")
    free(node)
    node.running("steady")
    assert same(node)[:2] == before[:2]
    assert "damaged" not in since(node, began) and "Traceback" not in since(node, began)


def test_a_disk_that_is_made_read_only_is_said_and_comes_back(node: Node) -> None:
    before, began = same(node), mark(node)
    node.machine.run(f"mount -o remount,ro {ROOT}")
    node.apply(a_pod("waits-to-write"))
    node.wait(lambda: READ_ONLY in since(node, began), "a read-only disk said")
    assert node.get("/healthz") == "ok" and same(node) == before
    node.machine.run(f"mount -o remount,rw {ROOT}")
    node.running("waits-to-write")
    assert same(node) == before and "Traceback" not in since(node, began)
    node.delete("waits-to-write")


def test_a_disk_that_fails_is_said_and_well_after_a_boot(node: Node) -> None:
    """The filesystem itself finds an error and allows no more writing, as it does when a disk dies."""
    before, began = same(node), mark(node)
    node.machine.run(f"echo 1 >/sys/fs/ext4/$(basename $(readlink -f {DEVICE}))/trigger_fs_error")
    node.apply(a_pod("waits-for-a-boot"))
    node.wait(lambda: READ_ONLY in since(node, began) or FAILED in since(node, began), "a failed disk said")
    assert node.get("/healthz") == "ok" and same(node) == before
    assert "Traceback" not in since(node, began)
    node.machine.power_off("systemctl reboot", within=600)
    node.machine.boot()
    node.running("waits-for-a-boot")
    assert node.running("steady")["status"]["containerStatuses"][0]["restartCount"] == before[1] + 1
    words = node.machine.run(f"journalctl -b -u {UNIT} -o cat")
    assert "damaged" not in words and "Traceback" not in words
