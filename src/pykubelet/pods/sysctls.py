"""Which kernel parameters a pod may set: the safe ones of this kernel and those the operator allowed.

A list entry is a name or a prefix ending in `*`, and must belong to a kernel namespace of its own (IPC or
Net); otherwise one pod would change it for the whole node. Setting them is the runtime's work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.model.errors import PykubeletError

IPC: Final = "IPC"
NET: Final = "Net"

_NAMESPACED_NAMES: Final = frozenset(
    (
        *("kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced", "kernel.shm"),
        *("kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.msg", "kernel.sem"),
    )
)  # all of IPC; the bare kernel.shm and kernel.msg are what is left of kernel.shm* and kernel.msg*

# Name, and the first kernel version in which it is per namespace; (0, 0) for always.
_SAFE: Final[tuple[tuple[str, tuple[int, int]], ...]] = (
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
)

_MAX_LENGTH: Final = 253
_SEGMENT: Final = r"[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?"
_PATTERN: Final = re.compile(rf"(?:{_SEGMENT}[./])*(?:\*|{_SEGMENT}|[a-z0-9][-_a-z0-9]*\*)")
_VERSION: Final = re.compile(r"v?([0-9]+)\.([0-9]+)")
_SWAP: Final = str.maketrans("./", "/.")


class BadSysctlPattern(PykubeletError):
    """An entry of allowedUnsafeSysctls is malformed or names something that is not per pod."""


def kernel_version(release: str) -> tuple[int, int] | None:
    """(major, minor) of a kernel release such as 6.1.0-13-amd64; None when it cannot be read."""
    match = _VERSION.match(release.strip())
    return (int(match[1]), int(match[2])) if match else None


def safe_sysctls(release: str) -> list[str]:
    """The parameters any pod may set on this kernel. An unknown kernel gets only the oldest ones."""
    version = kernel_version(release) or (0, 0)
    return [name for name, since in _SAFE if since <= version]


def normalized(name: str) -> str:
    """With dots between the parts; `net/ipv4/conf/eno2.100/x` becomes `net.ipv4.conf.eno2/100.x`."""
    first = next((ch for ch in name if ch in "./"), ".")
    return name if first == "." else name.translate(_SWAP)


def namespace_of(name: str) -> str | None:
    """The kernel namespace that isolates the parameter; None when nothing does."""
    if name in _NAMESPACED_NAMES or name.startswith("fs.mqueue."):
        return IPC
    return NET if name.startswith("net.") else None


class SysctlAllowList(Struct, frozen=True, kw_only=True):
    """Names and prefixes that pods may set, each with its kernel namespace."""

    names: Mapping[str, str]
    prefixes: Mapping[str, str]

    @staticmethod
    def of(patterns: Iterable[str]) -> SysctlAllowList:
        names: dict[str, str] = {}
        prefixes: dict[str, str] = {}
        for pattern in patterns:
            if len(pattern) > _MAX_LENGTH or not _PATTERN.fullmatch(pattern):
                raise BadSysctlPattern(f'allowedUnsafeSysctls: "{pattern}" is not a sysctl name or prefix')
            name, star, _ = normalized(pattern).partition("*")
            namespace = namespace_of(name)
            if namespace is None:
                raise BadSysctlPattern(f'allowedUnsafeSysctls: "{pattern}" is not known to be per pod (namespaced)')
            (prefixes if star else names)[name] = namespace
        return SysctlAllowList(names=MappingProxyType(names), prefixes=MappingProxyType(prefixes))

    @staticmethod
    def for_kernel(release: str, allowed_unsafe: Iterable[str] = ()) -> SysctlAllowList:
        """The safe parameters of this kernel and what the operator added."""
        return SysctlAllowList.of((*safe_sysctls(release), *allowed_unsafe))

    def complaint(self, name: str, *, host_network: bool, host_ipc: bool) -> str | None:
        """Why a pod may not set the parameter, as upstream puts it."""
        name = normalized(name)
        namespace = self.names.get(name)
        if namespace is None:
            matching = (space for prefix, space in self.prefixes.items() if name.startswith(prefix))
            namespace = next(matching, None)
        if namespace is None:
            return f'"{name}" not allowlisted'
        if (namespace == IPC and host_ipc) or (namespace == NET and host_network):
            return f'"{name}" not allowed with host {namespace} enabled'
        return None


def sysctl_complaint(pod: Pod, allowed: SysctlAllowList) -> str | None:
    """The first thing wrong with the kernel parameters a pod wants."""
    context = pod.spec.security_context
    for sysctl in context.sysctls if context is not None else ():
        complaint = allowed.complaint(
            sysctl.name or "", host_network=bool(pod.spec.host_network), host_ipc=bool(pod.spec.host_ipc)
        )
        if complaint is not None:
            return complaint
    return None
