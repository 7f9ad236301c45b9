"""Settings that exist only as command-line flags: files, folders, the node's name, addresses and labels.

Covers the node name rule and the reading of --node-ip. Does not cover flags that are another spelling of a
configuration field (the schema has those) nor flags without any effect here (flags.py).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from msgspec import Struct

from pykubelet.settings.default_root import DEFAULT_ROOT
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.flag_forms import LABELS
from pykubelet.settings.kinds import BOOL, DURATION, INT32, PATH, STRING, STRING_MAP, SettingsGroup, setting

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class ContainerGcSettings(Struct, frozen=True, kw_only=True):
    """Which dead containers are kept."""

    min_age: float
    """Seconds a dead container is kept at least."""
    max_per_container: int
    """Dead instances kept of each container; negative is no limit."""
    max_total: int
    """Dead containers kept on the node; negative is no limit."""


class NodeFlags(SettingsGroup):
    """What only the command line says."""

    config: str = setting("config", PATH, "", "Configuration file, YAML or JSON.", flag="config")
    config_dir: str = setting(
        "config-dir", PATH, "", "Folder of .conf files merged over --config in name order.", flag="config-dir"
    )
    kubeconfig: str = setting(
        "kubeconfig",
        PATH,
        "",
        "How to reach the API server. Empty: run without one, from static pods alone.",
        flag="kubeconfig",
    )
    bootstrap_kubeconfig: str = setting(
        "bootstrap-kubeconfig",
        PATH,
        "",
        "Credentials to ask for a client certificate with, while --kubeconfig is missing or unusable.",
        flag="bootstrap-kubeconfig",
    )
    cert_dir: str = setting(
        "cert-dir", PATH, "/var/lib/kubelet/pki", "Folder of this node's certificates.", flag="cert-dir"
    )
    root_dir: str = setting("root-dir", PATH, DEFAULT_ROOT, "Folder of everything the agent keeps.", flag="root-dir")
    hostname_override: str = setting(
        "hostname-override", STRING, "", "Node name instead of the host name.", flag="hostname-override"
    )
    node_ip: str = setting(
        "node-ip",
        STRING,
        "",
        "Address of the node, or two of different families with a comma. :: and 0.0.0.0 only choose a family.",
        flag="node-ip",
    )
    node_labels: Mapping[str, str] = setting(
        "node-labels",
        STRING_MAP,
        {},
        "Labels of the Node object; in the kubernetes.io and k8s.io namespaces only the known ones.",
        flag="node-labels",
        flag_form=LABELS,
    )
    cloud_provider: str = setting(
        "cloud-provider",
        STRING,
        "",
        "Empty, or external: a cloud controller completes the node.",
        flag="cloud-provider",
    )
    image_credential_provider_config: str = setting(
        "image-credential-provider-config",
        PATH,
        "",
        "Configuration of registry credential plugins: a file, or a folder read in name order.",
        flag="image-credential-provider-config",
    )
    image_credential_provider_bin_dir: str = setting(
        "image-credential-provider-bin-dir",
        PATH,
        "",
        "Folder of registry credential plugins; goes together with the configuration.",
        flag="image-credential-provider-bin-dir",
    )
    runtime_cgroups: str = setting(
        "runtime-cgroups",
        STRING,
        "",
        "Cgroup the container runtime lives in, for statistics.",
        flag="runtime-cgroups",
    )
    seccomp_default: bool = setting(
        "seccomp-default",
        BOOL,
        False,
        "Use the runtime's seccomp profile where a pod names none.",
        flag="seccomp-default",
    )
    lock_file: str = setting("lock-file", PATH, "", "File that only one agent at a time may hold.", flag="lock-file")
    exit_on_lock_contention: bool = setting(
        "exit-on-lock-contention",
        BOOL,
        False,
        "Leave when another process opens the lock file; needs --lock-file.",
        flag="exit-on-lock-contention",
    )
    minimum_container_ttl_duration: float = setting(
        "minimum-container-ttl-duration",
        DURATION,
        0.0,
        "Age a dead container must reach before it is removed.",
        flag="minimum-container-ttl-duration",
    )
    maximum_dead_containers_per_container: int = setting(
        "maximum-dead-containers-per-container",
        INT32,
        1,
        "Dead instances kept of each container.",
        flag="maximum-dead-containers-per-container",
    )
    maximum_dead_containers: int = setting(
        "maximum-dead-containers",
        INT32,
        -1,
        "Dead containers kept on the node; negative is no limit.",
        flag="maximum-dead-containers",
    )
    experimental_mounter_path: str = setting(
        "experimental-mounter-path",
        PATH,
        "",
        "Program to mount with.",
        flag="experimental-mounter-path",
    )
    experimental_allocatable_ignore_eviction: bool = setting(
        "experimental-allocatable-ignore-eviction",
        BOOL,
        False,
        "Do not take the hard eviction thresholds off what pods may use.",
        flag="experimental-allocatable-ignore-eviction",
    )
    housekeeping_interval: float = setting(
        "housekeeping-interval",
        DURATION,
        10.0,
        "How often container statistics are collected.",
        flag="housekeeping-interval",
    )

    @property
    def standalone(self) -> bool:
        """No API server at all."""
        return not self.kubeconfig

    @property
    def container_gc(self) -> ContainerGcSettings:
        return ContainerGcSettings(
            min_age=self.minimum_container_ttl_duration,
            max_per_container=self.maximum_dead_containers_per_container,
            max_total=self.maximum_dead_containers,
        )


def node_name(*, hostname_override: str, hostname: str) -> str:
    """The name of the Node object: the override or the host name, trimmed and in lower case."""
    name = (hostname_override or hostname).strip().lower()
    if not name:
        raise SettingsError(["--hostname-override: the node name is empty; the machine has no host name either"])
    return name


def parse_node_ips(text: str) -> tuple[tuple[IPAddress, ...], list[str]]:
    """The addresses of --node-ip and a warning for each part that is no address and is left out.

    Raises SettingsError for a combination that cannot be used.
    """
    addresses: list[IPAddress] = []
    warnings = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        try:
            addresses.append(ipaddress.ip_address(part))
        except ValueError:
            warnings.append(f"--node-ip: {part[:80]!r} is not an IP address and is ignored")
    if len(addresses) > 2:
        raise SettingsError([f"--node-ip: at most two addresses are allowed, got {text[:200]!r}"])
    if len(addresses) == 2:
        if addresses[0].version == addresses[1].version:
            raise SettingsError([f"--node-ip: the two addresses {text!r} must be one IPv4 and one IPv6"])
        if any(address.is_unspecified for address in addresses):
            raise SettingsError([f"--node-ip: {text!r} must not contain 0.0.0.0 or :: beside another address"])
    return tuple(addresses), warnings
