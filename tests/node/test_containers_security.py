"""Who a container runs as and what it may do, seen from inside: /proc/self/status, files, namespaces, refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.inside import Inside, Manifest, container_manifest, import_image, looking_inside, pod_manifest
from tests.bed.runtime import BedContainerd

pytestmark = pytest.mark.node

NAMED = "pykubelet.local/in-extra-group:1"
STATUS = "cat /proc/self/status | sed 's/:\\t/=/'"
DEFAULT_CAPABILITIES = 0xA80425FB
NET_BIND_SERVICE, CHOWN, SYS_ADMIN = 1 << 10, 1 << 0, 1 << 21
DENY_MKDIR = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
}
NAMESPACES = "for n in pid ipc net uts mnt; do echo $n=$(readlink /proc/self/ns/$n); done"
MOUNTS = "cat /proc/self/mounts"


def secured(name: str, script: str = STATUS, *, pod: dict[str, Any] | None = None, **context: Any) -> Manifest:
    """A pod with the given fields of its container's security context, and of its own in `pod`."""
    return pod_manifest(name, container_manifest(script=script, securityContext=context), securityContext=pod or {})


def sysctl(name: str, value: str) -> dict[str, Any]:
    return {"sysctls": [{"name": name, "value": value}]}


PODS = [
    secured("default"),
    secured("users", pod={"runAsUser": 1234, "runAsGroup": 2345, "supplementalGroups": [50, 60], "fsGroup": 77}),
    secured("over-pod", pod={"runAsUser": 1234, "runAsGroup": 2345}, runAsUser=99, runAsGroup=98),
    pod_manifest("image-user", container_manifest(image=NAMED, script=STATUS)),
    pod_manifest(
        "strict-groups",
        container_manifest(image=NAMED, script=STATUS),
        securityContext={"supplementalGroupsPolicy": "Strict", "supplementalGroups": [50]},
    ),
    secured("drop-all", capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
    secured("drop-one", capabilities={"drop": ["CHOWN"], "add": ["SYS_ADMIN"]}),
    secured("privileged", f"{STATUS}; {MOUNTS}; ls /dev", privileged=True),
    secured("read-only", "touch /x; touch /dev/shm/x && echo SHM=yes", readOnlyRootFilesystem=True),
    secured("no-new", allowPrivilegeEscalation=False),
    secured("unconfined", seccompProfile={"type": "Unconfined"}),
    secured("seccomp-pod", pod={"seccompProfile": {"type": "Localhost", "localhostProfile": "deny/mkdir.json"}}),
    secured(
        "seccomp-own",
        "mkdir /tmp/x; ls /bin >/dev/null && echo LS=yes",
        seccompProfile={"type": "Localhost", "localhostProfile": "deny/mkdir.json"},
    ),
    secured("seccomp-none", seccompProfile={"type": "Localhost", "localhostProfile": "not-there.json"}),
    secured(
        "masked", f"{MOUNTS}; echo x > /proc/sys/kernel/domainname; cat /proc/keys | wc -c; ls /sys/firmware | wc -l"
    ),
    pod_manifest("host-spaces", container_manifest(script=NAMESPACES), hostPID=True, hostIPC=True),
    pod_manifest("own-spaces", container_manifest(script=NAMESPACES), container_manifest("other", NAMESPACES)),
    pod_manifest(
        "shared",
        container_manifest("first", "exec sleep 4321"),
        container_manifest(
            "second",
            "until ps -o args | grep -q '^sleep 4321'; do sleep 0.1; done; ps -o pid,args; " + NAMESPACES,
            securityContext={"capabilities": {"add": ["SYS_PTRACE"]}},
        ),
        shareProcessNamespace=True,
    ),
    secured(
        "safe", "cat /proc/sys/net/ipv4/ip_local_port_range", pod=sysctl("net.ipv4.ip_local_port_range", "1024 2048")
    ),
    secured("slashes", "cat /proc/sys/net/ipv4/tcp_syncookies", pod=sysctl("net/ipv4/tcp_syncookies", "0")),
    secured("allowed", "cat /proc/sys/kernel/msgmax", pod=sysctl("kernel.msgmax", "12345")),
    secured("forbidden", pod=sysctl("net.core.somaxconn", "12")),
    secured("apparmor", appArmorProfile={"type": "RuntimeDefault"}),
    secured("apparmor-free", appArmorProfile={"type": "Unconfined"}),
]


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory, containerd: BedContainerd) -> Iterator[Inside]:
    import_image(containerd, NAMED, user="app")
    folder = tmp_path_factory.mktemp("security")
    profile = folder / "root" / "seccomp" / "deny" / "mkdir.json"
    profile.parent.mkdir(parents=True)
    profile.write_text(json.dumps(DENY_MKDIR))
    with looking_inside(folder, containerd, *PODS, seccompDefault=True, allowedUnsafeSysctls=["kernel.msg*"]) as found:
        yield found


def ids(told: dict[str, str]) -> tuple[str, str, list[str]]:
    return told["Uid"].split()[0], told["Gid"].split()[0], told["Groups"].split()


def test_nothing_asked_for(inside: Inside) -> None:
    told = inside.told("default")
    assert ids(told) == ("0", "0", ["0"])
    assert int(told["CapEff"], 16) == DEFAULT_CAPABILITIES
    assert told["NoNewPrivs"] == "0"
    assert told["Seccomp"] == "2", "seccompDefault is on"


def test_users_and_groups(inside: Inside) -> None:
    assert ids(inside.told("users")) == ("1234", "2345", ["50", "60", "77", "2345"])
    assert ids(inside.told("over-pod"))[:2] == ("99", "98")
    assert ids(inside.told("image-user")) == ("1000", "1000", ["1000", "2000"])
    assert int(inside.told("users")["CapEff"], 16) == 0


def test_a_policy_the_runtime_does_not_know_is_refused(inside: Inside) -> None:
    assert inside.event("strict-groups", "SupplementalGroupsPolicyNotSupported") == (
        "SupplementalGroupsPolicy=Strict is not supported in this node"
    )


def test_capabilities(inside: Inside) -> None:
    assert int(inside.told("drop-all")["CapEff"], 16) == NET_BIND_SERVICE
    assert int(inside.told("drop-one")["CapEff"], 16) == DEFAULT_CAPABILITIES & ~CHOWN | SYS_ADMIN


def test_privileged(inside: Inside) -> None:
    told, said = inside.told("privileged"), inside.said("privileged")
    own = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd"))
    assert int(told["CapEff"], 16) == int(own.split()[1], 16)
    assert told["Seccomp"] == "0"
    mounts = {words[1]: words for line in said.splitlines() if len(words := line.split()) == 6}
    assert not {"/proc/keys", "/proc/sys", "/sys/firmware"} & mounts.keys()
    assert mounts["/sys/fs/cgroup"][3].startswith("rw")
    assert set(os.listdir("/dev")) & {"kmsg", "loop-control", "mem"} <= set(said.split())


def test_a_root_that_is_read_only(inside: Inside) -> None:
    said = inside.said("read-only")
    assert "/x: Read-only file system" in said
    assert "SHM=yes" in said


def test_no_new_privileges_and_system_call_filters(inside: Inside) -> None:
    assert inside.told("no-new")["NoNewPrivs"] == "1"
    assert inside.told("unconfined")["Seccomp"] == "0"
    assert inside.told("seccomp-pod")["Seccomp"] == "2"
    said = inside.said("seccomp-own")
    assert "can't create directory '/tmp/x': Operation not permitted" in said and "LS=yes" in said
    assert "not-there.json" in inside.event("seccomp-none", "Failed")
    assert not inside.has_event("seccomp-none", "Started")


def test_parts_of_proc_and_sys_are_hidden(inside: Inside) -> None:
    said = inside.said("masked")
    mounts = {words[1]: words for line in said.splitlines() if len(words := line.split()) == 6}
    for path in ("/proc/sys", "/proc/bus", "/proc/irq", "/proc/fs"):
        assert mounts[path][3].startswith("ro"), path
    assert {"/proc/keys", "/proc/timer_list", "/sys/firmware"} <= mounts.keys()
    assert said.split()[-2:] == ["0", "0"]
    assert "domainname: Read-only file system" in said
    assert mounts["/sys"][3].startswith("ro")


def test_namespaces(inside: Inside) -> None:
    host = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "ipc", "net", "uts", "mnt")}
    told = inside.told("host-spaces")
    assert {name for name in host if told[name] == host[name]} == {"pid", "ipc"}
    own, other = inside.told("own-spaces"), inside.told("own-spaces", "other")
    assert not [name for name in host if own[name] == host[name]]
    assert {name for name in host if own[name] == other[name]} == {"ipc", "net", "uts"}
    shared = inside.said("shared", "second")
    assert "sleep 4321" in shared and "1 /pause" in shared


def test_kernel_parameters(inside: Inside) -> None:
    assert inside.said("safe").split() == ["1024", "2048"]
    assert inside.said("slashes").split() == ["0"]
    assert inside.said("allowed").split() == ["12345"]
    assert inside.event("forbidden", "SysctlForbidden") == 'forbidden sysctl: "net.core.somaxconn" not allowlisted'


def test_a_profile_the_host_cannot_enforce_is_refused(inside: Inside) -> None:
    if Path("/sys/kernel/security/apparmor").exists():
        assert inside.said("apparmor")
    else:
        text = inside.event("apparmor", "AppArmor")
        assert text == "Cannot enforce AppArmor: AppArmor is not enabled on the host"
    assert inside.said("apparmor-free")
