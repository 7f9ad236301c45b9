"""Where each row of docs/parity.md was seen at work: tests on real parts of any host, checks on guests, or fakes alone.

A guest counts when its checks have run and passed (hosts/results); which do is looked up, not written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Files of tests, from the root of the checkout."""

    host: tuple[str, ...] = ()
    """On real parts of the host that runs `make test`: containerd, kube-apiserver, its kernel."""
    guest: tuple[str, ...] = ()
    """On a guest, by `make hosts`."""
    fakes: tuple[str, ...] = ()
    """On fakes and stand-ins; named where there is nothing else."""


def _node(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/node/test_{name}.py" for name in names)


def _cluster(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/cluster/test_{name}.py" for name in names)


def _unit(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/unit/{name}.py" for name in names)


def _guest(*names: str) -> tuple[str, ...]:
    return tuple(f"hosts/checks/test_{name}.py" for name in names)


def _contract(name: str) -> tuple[str, ...]:
    return (f"tests/contracts/test_{name}_contract.py",)


KUBEADM = "hosts/kubeadm/checks.py"
AREAS: Mapping[str, Seen] = {
    "settings": Seen(host=_node("agent", "documents")),
    "pod sources": Seen(host=_node("agent", "up")),
    "defaulting and validation": Seen(host=(*_node("agent"), *_cluster("odd_objects"))),
    "admission": Seen(host=(*_cluster("pods"), *_node("containers_security"))),
    "pod workers": Seen(host=(*_node("chaos"), *_cluster("pods", "restart"))),
    "runtime": Seen(host=(*_node("containers_lifecycle"), *_cluster("pods", "conformance"))),
    "runtime: restart rules of containers": Seen(fakes=_unit("runtime/test_plan", "status/test_changes")),
    "process": Seen(host=(*_node("containers_process"), *_cluster("containers"))),
    "network files": Seen(host=(*_node("containers_network"), *_cluster("containers"))),
    "security": Seen(host=(*_node("containers_security"), *_cluster("containers"))),
    "security: AppArmor profiles": Seen(guest=_guest("apparmor"), fakes=_unit("runtime/spec/test_security")),
    "hooks": Seen(host=(*_node("containers_lifecycle"), *_cluster("containers"))),
    "images": Seen(host=_node("images")),
    "PLEG": Seen(host=(*_node("chaos"), *_cluster("restart"))),
    "probes": Seen(host=(*_node("containers_probes"), *_cluster("containers")), guest=_guest("clock")),
    "status": Seen(host=_cluster("pods", "explain")),
    "volumes": Seen(host=(*_node("volumes", "containers_volumes"), *_cluster("volumes"), *_contract("mounts"))),
    "volumes: nfs": Seen(guest=_guest("nfs"), fakes=("tests/scenarios/test_dead_file_server.py",)),
    "volumes: iscsi": Seen(guest=_guest("iscsi"), fakes=_unit("volumes/test_iscsi")),
    "volumes: fc and multipath": Seen(fakes=_unit("volumes/test_fc", "volumes/test_disks")),
    "volumes: flexVolume": Seen(host=_node("volume_kinds")),
    "volumes: SELinux labels": Seen(
        fakes=_unit("clients/host/test_selinux", "volumes/test_kinds", "volumes/test_csi_labels")
    ),
    "volumes: counted by project quotas": Seen(guest=_guest("quotas"), fakes=_unit("clients/host/test_quotas")),
    "node allocatable": Seen(host=_node("node_guard"), guest=_guest("cgroups")),
    "shutdown": Seen(guest=_guest("shutdown"), fakes=("tests/scenarios/test_shutdown.py", *_node("node_guard"))),
    "eviction": Seen(host=_cluster("eviction"), guest=_guest("memory", "disks")),
    "eviction: process numbers and inodes": Seen(fakes=("tests/scenarios/test_eviction.py",)),
    "out of memory": Seen(host=(*_node("kernel_log"), *_cluster("eviction")), guest=_guest("memory")),
    "out of memory: `singleProcessOOMKill`": Seen(guest=_guest("memory"), fakes=_unit("runtime/spec/test_resources")),
    "pinning": Seen(host=_node("pinning"), guest=_guest("numa")),
    "pinning: several NUMA nodes": Seen(
        guest=_guest("numa"), fakes=_unit("cm/test_memory_manager", "cm/test_topology_manager")
    ),
    "plugins": Seen(host=_cluster("devices", "csi")),
    "devices": Seen(host=(*_cluster("devices"), *_contract("devices"))),
    "dynamic resources": Seen(host=(*_cluster("devices"), *_contract("dra"))),
    "dynamic resources: extended resources, health": Seen(fakes=_unit("cm/test_dra_manager")),
    "CSI": Seen(host=(*_cluster("csi"), *_contract("csi"))),
    "CSI: a full node": Seen(fakes=("tests/scenarios/test_attached_volumes.py", *_unit("volumes/test_csi_hangs"))),
    "volumes: attached by the agent": Seen(fakes=_unit("volumes/test_csi_hangs", "volumes/test_flex")),
    "CSI migration": Seen(host=_cluster("csi")),
    "swap": Seen(guest=_guest("swap"), fakes=_unit("runtime/spec/test_resources")),
    "huge pages": Seen(host=_node("volume_kinds"), guest=_guest("hugepages")),
    "pressure (PSI)": Seen(guest=_guest("cgroups"), fakes=_unit("stats/test_summary")),
    "cgroups of v1, driver cgroupfs": Seen(host=(*_node("cgroups"), *_contract("cgroups"))),
    "cgroups of v2": Seen(guest=_guest("contracts", "cgroups"), fakes=_unit("clients/host/test_cgroups")),
    "cgroup driver systemd": Seen(guest=_guest("contracts", "cgroups"), fakes=_contract("systemd")),
    "in-place resize": Seen(host=(*_node("cgroups"), *_cluster("resize")), guest=_guest("memory")),
    "user namespaces": Seen(host=_node("containers_users"), guest=_guest("users")),
    "tracing": Seen(host=_node("tracing")),
    "cluster": Seen(host=_cluster("node", "bootstrap", "outage", "volumes")),
    "cluster: made by kubeadm": Seen(guest=(KUBEADM,), fakes=_unit("cli/test_joining")),
    "server": Seen(host=(*_node("server"), *_cluster("access", "kubectl", "serving_certificate"))),
    "logs": Seen(host=(*_node("agent", "server"), *_cluster("kubectl"))),
    "logs: rotation": Seen(fakes=_unit("runtime/test_logs_rotate")),
    "housekeeping": Seen(host=_node("chaos", "cgroups", "up"), guest=_guest("power_cut")),
    "service of systemd": Seen(guest=_guest("systemd", "watchdog"), fakes=_node("agent")),
}
