"""The host as managers see it: pod folders, machine facts.

Managers take the part they need. Implementations are beside this file; tests give a temporary root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pykubelet.api.types import Pod


class PodFolders(Protocol):
    """The folders of pods. All calls are quick and safe to repeat."""

    def make_pod(self, uid: str) -> None:
        """Folders every pod has before anything of it runs."""
        ...

    def make_logs(self, pod: Pod) -> Path:
        """The pod's log folder, made if missing."""
        ...

    def make_container_logs(self, pod: Pod, container: str) -> Path: ...

    def log_files(self, pod: Pod, container: str) -> Sequence[str]:
        """Names of the log files a container left, any restart."""
        ...

    def link_log(self, pod: Pod, container: str, container_id: str, target: Path) -> None:
        """The short link in the folder that log collectors read."""
        ...

    def unlink_log(self, namespace: str, name: str, container: str, container_id: str) -> None: ...

    def make_termination_log(self, uid: str, container: str) -> Path:
        """A fresh, empty file the container may write its last words into."""
        ...

    def read_head(self, path: Path, limit_bytes: int) -> bytes:
        """The beginning of a file up to a limit; empty when there is none."""
        ...

    def write_etc_hosts(self, uid: str, content: str) -> Path: ...

    def read_text(self, path: Path) -> str:
        """A host file such as /etc/hosts; empty when there is none."""
        ...

    def pod_uids(self) -> Sequence[str]:
        """Pods that have a folder on disk."""
        ...

    def remove_pod(self, uid: str) -> None:
        """Remove a pod's folder, never crossing into a mount; raises OSError with the path that is busy."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts about the machine that do not change while the agent runs."""

    hostname: str
    cpus: int
    memory_bytes: int
    swap_bytes: int
    kernel: str
    os_image: str
    machine_id: str
    system_uuid: str
    boot_id: str
    architecture: str
    hugepage_sizes: tuple[int, ...] = ()
    """In bytes."""
    hugepages: tuple[tuple[int, int], ...] = ()
    """(size in bytes, count) that the kernel has set aside."""
    cgroup_v2: bool = False
    apparmor: bool = False
    selinux: bool = False
