from __future__ import annotations

import pytest

from pykubelet.pods.sysctls import (
    BadSysctlPattern,
    SysctlAllowList,
    kernel_version,
    normalized,
    safe_sysctls,
)


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.1.0-13-amd64", (6, 1)), ("4.15", (4, 15)), ("v5.10.1+", (5, 10)), ("unknown", None), ("", None)],
)
def test_kernel_version(release: str, version: tuple[int, int] | None) -> None:
    assert kernel_version(release) == version


@pytest.mark.parametrize(
    ("release", "newest", "count"),
    [
        ("unknown", "net.ipv4.ip_unprivileged_port_start", 5),
        ("3.10.0", "net.ipv4.ip_unprivileged_port_start", 5),
        ("3.16.0", "net.ipv4.ip_local_reserved_ports", 6),
        ("4.5.0", "net.ipv4.tcp_keepalive_probes", 9),
        ("4.6.0", "net.ipv4.tcp_keepalive_probes", 10),
        ("4.15.0", "net.ipv4.tcp_wmem", 12),
        ("6.12.3", "net.ipv4.tcp_wmem", 12),
    ],
)
def test_safe_sysctls_grow_with_the_kernel(release: str, newest: str, count: int) -> None:
    safe = safe_sysctls(release)
    assert (safe[-1], len(safe)) == (newest, count)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("net.ipv4.conf.eno2/100.rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
        ("net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
        ("kernel", "kernel"),
        ("", ""),
    ],
)
def test_normalized(name: str, expected: str) -> None:
    assert normalized(name) == expected


@pytest.mark.parametrize(
    ("name", "net", "ipc", "complaint"),
    [
        ("net.ipv4.tcp_syncookies", False, False, None),
        ("net/ipv4/tcp_syncookies", False, True, None),
        ("net.ipv4.tcp_syncookies", True, False, '"net.ipv4.tcp_syncookies" not allowed with host Net enabled'),
        ("kernel.shm_rmid_forced", True, False, None),
        ("kernel.shm_rmid_forced", False, True, '"kernel.shm_rmid_forced" not allowed with host IPC enabled'),
        ("kernel.msgmax", False, False, None),
        ("kernel.msgmax", False, True, '"kernel.msgmax" not allowed with host IPC enabled'),
        ("net.core.somaxconn", False, False, '"net.core.somaxconn" not allowlisted'),
        ("kernel.panic", False, False, '"kernel.panic" not allowlisted'),
    ],
)
def test_complaints(name: str, net: bool, ipc: bool, complaint: str | None) -> None:
    allowed = SysctlAllowList.for_kernel("6.1", ["kernel.msg*"])
    assert allowed.complaint(name, host_network=net, host_ipc=ipc) == complaint


@pytest.mark.parametrize("pattern", ["net.*", "kernel.shm*", "kernel.sem", "fs.mqueue.*", "net/ipv4/conf/*"])
def test_patterns_that_may_be_allowed(pattern: str) -> None:
    SysctlAllowList.of([pattern])


@pytest.mark.parametrize("pattern", ["*", "", "kernel.*", "vm.swappiness", "net..x", "Net.x", "net.*.x", "n" * 300])
def test_patterns_that_may_not(pattern: str) -> None:
    with pytest.raises(BadSysctlPattern, match="allowedUnsafeSysctls"):
        SysctlAllowList.of([pattern])
