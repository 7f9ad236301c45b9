"""SELinux labels of whole volumes, set by the mount instead of relabelling each file. Pure.

As upstream: ReadWriteOncePod persistent volumes (other modes by gate) whose plugin supports it, when the pod does not
request relabelling. All containers that use such a volume have to request the same label.
"""

from __future__ import annotations

from msgspec import Struct

from pykubelet.api.types import Pod, SELinuxOptions
from pykubelet.model.pod import all_containers
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins import validation
from pykubelet.volumes.spec import VolumeSpec

RELABEL = "Recursive"


class SelinuxMounts(Struct, frozen=True, kw_only=True):
    default: str = ""
    """Label of container files on this host, user:role:type:level; empty without SELinux."""
    any_mode: bool = False
    """Gate SELinuxMount: not only ReadWriteOncePod."""

    def concern(self, spec: VolumeSpec) -> bool:
        """Whether a volume of these access modes may be mounted with a label on this host."""
        if not self.default or not (spec.persistent or spec.migrated):
            return False
        return self.any_mode or spec.access_modes == ("ReadWriteOncePod",)

    def label(self, pod: Pod, spec: VolumeSpec, *, supported: bool) -> str:
        """The label to mount the volume with; empty: without one. `supported`: by its plugin."""
        if not self.concern(spec):
            return ""
        labels = {file_label(self.default, options) for options in _requested(pod, spec.name)}
        if len(labels) > 1:
            raise VolumeProblem(f"multiple SELinux labels found: {','.join(sorted(labels))}")
        context = pod.spec.security_context
        if not supported or (context is not None and context.se_linux_change_policy == RELABEL):
            return ""
        return labels.pop() if labels else ""


def file_label(default: str, options: SELinuxOptions | None) -> str:
    """The label of files for a process with these options: same user and level."""
    if options is None or not (options.user or options.role or options.type or options.level):
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
