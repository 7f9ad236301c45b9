"""SELinux labels of whole volumes, set by the mount instead of relabelling each file.

As upstream: ReadWriteOncePod persistent volumes (other modes by gate) whose plugin supports it, when the pod does not
request relabelling. All containers that use such a volume have to request the same label.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from pykubelet.api.types import Pod, SELinuxOptions
from pykubelet.kit.metrics import Registry
from pykubelet.model.pod import all_containers
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins import validation
from pykubelet.volumes.spec import VolumeSpec, qualified_plugin

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
        labels = self.requested(pod, spec)
        if len(labels) > 1:
            raise VolumeProblem(f"multiple SELinux labels found: {','.join(sorted(labels))}")
        return self.label_in_any_mode(pod, spec, supported=supported)

    def requested(self, pod: Pod, spec: VolumeSpec) -> frozenset[str]:
        """The labels that containers want for the volume; none without SELinux."""
        if not self.default:
            return frozenset()
        return frozenset(file_label(self.default, options) for options in _requested(pod, spec.name))

    def label_in_any_mode(self, pod: Pod, spec: VolumeSpec, *, supported: bool) -> str:
        """What the label would be if every access mode were mounted with one; empty: none, or more than one."""
        labels, context = self.requested(pod, spec), pod.spec.security_context
        if not supported or (context is not None and context.se_linux_change_policy == RELABEL):
            return ""
        return next(iter(labels)) if len(labels) == 1 else ""


class LabelMetrics:
    """Volumes whose labels fit and do not; a warning where that is no error because of the volume's access mode."""

    def __init__(self, metrics: Registry) -> None:
        modes, both = ("access_mode",), ("volume_plugin", "access_mode")
        self._admitted = metrics.gauge(
            "volume_manager_selinux_volumes_admitted_total", "Volumes of which all pods want one SELinux label", both
        )
        text = "Pods whose containers want different SELinux labels for a volume"
        self._in_pod = {
            True: metrics.gauge("volume_manager_selinux_pod_context_mismatch_errors_total", text, modes),
            False: metrics.gauge(
                "volume_manager_selinux_pod_context_mismatch_warnings_total", f"{text}, to no harm yet", modes
            ),
        }
        text = "Pods that want another SELinux label for a volume than the pods that have it"
        self._in_volume = {
            True: metrics.gauge("volume_manager_selinux_volume_context_mismatch_errors_total", text, both),
            False: metrics.gauge(
                "volume_manager_selinux_volume_context_mismatch_warnings_total", f"{text}, to no harm yet", both
            ),
        }

    def count(
        self, labels: SelinuxMounts, pod: Pod, spec: VolumeSpec, *, supported: bool, others: Iterable[Pod]
    ) -> None:
        """Before the volume is set up for a pod; `others` have it, or will have it."""
        mode, matters = access_mode(spec), labels.concern(spec)
        if len(labels.requested(pod, spec)) > 1:
            self._in_pod[matters].inc(mode)
            return
        if not supported:
            return
        label = labels.label_in_any_mode(pod, spec, supported=True)
        known = {labels.label_in_any_mode(each, spec, supported=True) for each in others}
        if known - {label}:
            self._in_volume[matters].inc(qualified_plugin(spec), mode)
        elif label and not known:
            self._admitted.inc(qualified_plugin(spec), mode)


def access_mode(spec: VolumeSpec) -> str:
    """The widest of them, as metrics show it."""
    if not spec.persistent:
        return "inline"
    modes = {"ReadWriteMany": "RWX", "ReadOnlyMany": "ROX", "ReadWriteOnce": "RWO", "ReadWriteOncePod": "RWOP"}
    return next((short for mode, short in modes.items() if mode in spec.access_modes), "")


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
