"""SELinux labels of whole volumes, set by the mount instead of relabelling each file. Pure.

As upstream: ReadWriteOncePod persistent volumes (other modes by gate) of kinds that support it, when all containers
that use the volume request the same label and the pod does not request relabelling.
"""

from __future__ import annotations

from msgspec import Struct

from pykubelet.api.types import Pod, SELinuxOptions
from pykubelet.model.pod import all_containers
from pykubelet.volumes.plugins import validation
from pykubelet.volumes.spec import FC, ISCSI, VolumeSpec

MOUNTED_WITH_LABEL = (ISCSI, FC)
RELABEL = "Recursive"


class SelinuxMounts(Struct, frozen=True, kw_only=True):
    default: str = ""
    """Label of container files on this host, user:role:type:level; empty without SELinux."""
    any_mode: bool = False
    """Gate SELinuxMount: not only ReadWriteOncePod."""

    def label(self, pod: Pod, spec: VolumeSpec) -> str:
        """The label to mount the volume with; empty: without one."""
        if not self.default or not spec.persistent or spec.plugin not in MOUNTED_WITH_LABEL:
            return ""
        if not self.any_mode and spec.access_modes != ("ReadWriteOncePod",):
            return ""
        context = pod.spec.security_context
        if context is not None and context.se_linux_change_policy == RELABEL:
            return ""
        labels = {file_label(self.default, options) for options in _requested(pod, spec.name)}
        return labels.pop() if len(labels) == 1 else ""


def file_label(default: str, options: SELinuxOptions | None) -> str:
    """The label of files for a process with these options: same user and level."""
    if options is None:
        return ""
    user, role, kind, *level = default.split(":", 3)
    return ":".join([options.user or user, role, kind, options.level or (level[0] if level else "s0")])


def mount_option(label: str) -> tuple[str, ...]:
    """Quoted because levels contain commas."""
    return (f'context="{validation.label(label)}"',) if label else ()


def _requested(pod: Pod, volume: str) -> list[SELinuxOptions | None]:
    of_pod = pod.spec.security_context.se_linux_options if pod.spec.security_context else None
    found = []
    for _, container in all_containers(pod):
        if any(mount.name == volume for mount in container.volume_mounts):
            own = container.security_context.se_linux_options if container.security_context else None
            found.append(own or of_pod)
    return found
