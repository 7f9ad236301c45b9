"""emptyDir: a folder of the pod's own, on disk, in memory or in huge pages; removed with the pod.

A marker outside the folder records that set-up was finished. It is removed before the content, so that an interrupted
tear-down is never taken for a volume that is ready.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import EmptyDirVolumeSource, Pod
from pykubelet.clients.host.port import MountError, Mounts, NodePaths, Quotas
from pykubelet.model.pod_resources import pod_limits
from pykubelet.volumes import ownership
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.plugin import Files, PluginDefaults, SetUp, make_folder
from pykubelet.volumes.spec import EMPTY_DIR, VolumeSpec

OPEN_TO_ALL = 0o777
HUGE_PAGES = "HugePages"
_PREFIX = "hugepages-"


def memory_size(pod: Pod, source: EmptyDirVolumeSource, allocatable: int) -> int | None:
    """Size of a memory volume in bytes: the least of allocatable memory, the pod's limit and the volume's sizeLimit.

    The pod's limit counts only when every container has one. None is no bound at all.
    """
    bounds = [allocatable] if allocatable > 0 else []
    holders = (*pod.spec.init_containers, *pod.spec.containers)
    if all(c.resources is not None and "memory" in c.resources.limits for c in holders) or (
        pod.spec.resources is not None and "memory" in pod.spec.resources.limits
    ):
        limit = pod_limits(pod).get("memory")
        if limit is not None and not limit.is_zero():
            bounds.append(limit.value())
    if source.size_limit is not None:
        wanted = Quantity.parse(source.size_limit).value()
        if wanted > 0:
            bounds.append(wanted)
    return min(bounds) if bounds else None


def page_size(pod: Pod, medium: str) -> str:
    """The page size of a huge page volume, from its medium or from the requests of the pod and its containers."""
    sizes: set[str] = set()
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    for resources in (pod.spec.resources, *(each.resources for each in containers)):
        amounts = resources.requests if resources is not None else {}
        sizes.update(str(Quantity.parse(name.removeprefix(_PREFIX))) for name in amounts if name.startswith(_PREFIX))
    if medium != HUGE_PAGES:
        wanted = str(Quantity.parse(medium.removeprefix(f"{HUGE_PAGES}-")))
        if wanted not in sizes:
            raise VolumeProblem(f"medium {medium} needs a pod or container that requests hugepages-{wanted}")
        return wanted
    if not sizes:
        raise VolumeProblem("medium HugePages needs a pod or container that requests huge pages")
    if len(sizes) > 1:
        raise VolumeProblem(
            f"medium {HUGE_PAGES} is ambiguous, containers request pages of {', '.join(sorted(sizes))}; "
            f"name the size as in {HUGE_PAGES}-{min(sizes)}"
        )
    return sizes.pop()


class EmptyDir(PluginDefaults):
    name = EMPTY_DIR

    def __init__(
        self,
        *,
        mounts: Mounts,
        paths: NodePaths,
        allocatable_memory: Callable[[], int],
        quotas: Quotas | None = None,
    ) -> None:
        self._quotas = quotas
        self._mounts = mounts
        self._paths = paths
        self._allocatable_memory = allocatable_memory

    def is_quick(self, spec: VolumeSpec) -> bool:
        return not _medium(spec)

    def set_up(self, task: SetUp, files: Files | None) -> None:
        medium = _medium(task.spec)
        marker = self._paths.plugin_data(task.uid, EMPTY_DIR, task.spec.folder) / "ready"
        if marker.exists() and task.path.is_dir() and (not medium or self._mounts.is_mounted(task.path)):
            return
        self.make(task, task.path, medium)
        # Root of the host could change the project id of its files; root of a user namespace cannot.
        if self._quotas is not None and not medium and task.pod.spec.host_users is False:
            self._quotas.begin(task.path, f"{task.uid}/{task.spec.folder}")
        ownership.give(task.path, task.fs_group, on_root_mismatch=task.on_root_mismatch)
        make_folder(marker.parent)
        marker.touch()

    def make(self, task: SetUp, path: Path, medium: str) -> None:
        """Make the folder or mount, accessible to all, without owner and marker; also the base of projected volumes."""
        make_folder(path)
        if medium and not self._mounts.is_mounted(path):
            source = task.spec.volume.empty_dir or EmptyDirVolumeSource()
            if medium == "Memory":
                self._mounts.tmpfs(path, size_bytes=memory_size(task.pod, source, self._allocatable_memory()))
            elif medium == HUGE_PAGES or medium.startswith(f"{HUGE_PAGES}-"):
                limit = Quantity.parse(source.size_limit).value() if source.size_limit is not None else None
                self._mounts.hugetlbfs(path, page_size=page_size(task.pod, medium), size_bytes=limit or None)
            else:
                raise VolumeProblem(f"unknown storage medium {medium}")
        # The kernel sets the sticky bit on a tmpfs, and subPaths are made with the same mode.
        if os.stat(path).st_mode & 0o777 != OPEN_TO_ALL:
            os.chmod(path, OPEN_TO_ALL)

    def tear_down(self, uid: str, folder: str) -> None:
        data = self._paths.plugin_data(uid, EMPTY_DIR, folder)
        with contextlib.suppress(FileNotFoundError):
            (data / "ready").unlink()
        path = self._paths.volume(uid, EMPTY_DIR, folder)
        try:
            self._clear(path)
        except MountError:
            # A container with Bidirectional propagation may leave mounts in it. Only the pod used the volume, so they
            # are unmounted; what they contain is never touched.
            if not unmount_within(self._mounts, path):
                raise
            self._clear(path)
        self._mounts.remove_tree(data)

    def _clear(self, path: Path) -> None:
        self._mounts.unmount(path)
        self._mounts.remove_tree(path)


def unmount_within(mounts: Mounts, folder: Path) -> bool:
    """Unmount everything below a folder, the newest first; False when there is nothing."""
    below = [entry.mount_point for entry in mounts.table() if entry.mount_point.startswith(f"{folder}/")]
    for point in reversed(below):
        mounts.unmount(Path(point))
    return bool(below)


def _medium(spec: VolumeSpec) -> str:
    return (spec.volume.empty_dir.medium if spec.volume.empty_dir else "") or ""
