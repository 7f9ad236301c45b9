"""Settings that are accepted and change nothing here, each with the reason.

This one table is what `--help`, docs/settings.md and the warning at the start are made from. Everything else must have
a reader outside this package, which tests/unit/settings/test_every_setting.py looks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

LEFTOVER = "a leftover of the statistics library inside the Go kubelet"
WINDOWS = "it belongs to Windows nodes"

LEFTOVER_FLAGS = (
    *("--application-metrics-count-limit", "--boot-id-file", "--container-hints", "--containerd"),
    *("--containerd-namespace", "--enable-load-reader", "--event-storage-age-limit", "--event-storage-event-limit"),
    *("--global-housekeeping-interval", "--log-cadvisor-usage", "--machine-id-file"),
    *("--storage-driver-buffer-duration", "--storage-driver-db", "--storage-driver-host", "--storage-driver-password"),
    *("--storage-driver-secure", "--storage-driver-table", "--storage-driver-user"),
)

FIELDS: Mapping[str, str] = {
    "contentType": "requests and answers are JSON, which is quicker here (docs/decisions/011-json.md)",
    "hairpinMode": "with CRI the network plugin decides",
    "iptablesDropBit": "the Go kubelet does not use it either",
    "iptablesMasqueradeBit": "the Go kubelet does not use it either",
    "kernelMemcgNotification": "the kernel's notices of short memory are always used",
}
"""By wire path."""

FLAGS: Mapping[str, str] = {
    "--experimental-mounter-path": "the host's mount is used",
    "--housekeeping-interval": "statistics are read when they are asked for",
    **dict.fromkeys(LEFTOVER_FLAGS, LEFTOVER),
}
"""Flags that are not another spelling of a field."""

GATES: Mapping[str, str] = {
    "ContextualLogging": "every line has its context",
    "KubeletInUserNamespace": "what a user namespace forbids is a warning on every host",
    "KubeletSeparateDiskGC": "images and writable layers on different disks are always distinguished",
    "PLEGOnDemandRelist": "a pod is looked at whenever its sync needs it",
    "RuntimeClassInImageCriApi": "an image counts once, whatever runtime handlers it was pulled for",
    "TopologyManagerPolicyAlphaOptions": "no option of the topology manager is alpha in this release",
    "TopologyManagerPolicyBetaOptions": "no option of the topology manager is beta in this release",
    "WindowsCPUAndMemoryAffinity": WINDOWS,
    "WindowsGracefulNodeShutdown": WINDOWS,
}
"""Gates that may be switched; a locked one has no effect anyway."""

REASONS: Mapping[str, str] = MappingProxyType({**FIELDS, **FLAGS, **GATES})


def described(doc: str, name: str) -> str:
    """The meaning of a setting, and that it has none here."""
    reason = REASONS.get(name)
    return f"{doc} Accepted, without effect: {reason}.".strip() if reason else doc


def by_reason(names: Iterable[str]) -> dict[str, list[str]]:
    """Reason to the names that share it, in their order."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(REASONS[name], []).append(name)
    return found


def warning(chosen: Iterable[str]) -> str:
    """One sentence about everything that was chosen in vain; empty when nothing was."""
    parts = [f"{', '.join(names)} ({reason})" for reason, names in by_reason(chosen).items()]
    return f"accepted, without effect: {'; '.join(parts)}" if parts else ""
