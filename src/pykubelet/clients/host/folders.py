"""Pod folders on the real disk, with the modes upstream uses.

Small, quick calls made inline on the loop. Removing a pod's folder never follows a symbolic link and
never descends into a mount: a leaked mount keeps its folder and is reported instead of emptied.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from pykubelet.api.types import Pod
from pykubelet.clients.host.paths import NodePaths
from pykubelet.clients.host.trees import remove_tree
from pykubelet.kit.files import open_checked
from pykubelet.model.pod import name_of, namespace_of, uid_of


class DiskFolders:
    def __init__(self, paths: NodePaths) -> None:
        self._paths = paths

    def make_roots(self) -> None:
        """What must exist before the agent starts."""
        for folder, mode in (
            (self._paths.root, 0o750),
            (self._paths.pods, 0o750),
            (self._paths.plugins, 0o750),
            (self._paths.plugin_sockets, 0o750),
            (self._paths.pod_logs, 0o755),
            (self._paths.container_logs, 0o755),
        ):
            folder.mkdir(mode=mode, parents=True, exist_ok=True)

    def make_pod(self, uid: str) -> None:
        for folder in (self._paths.pod(uid), self._paths.volumes(uid), self._paths.pod(uid) / "plugins"):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)

    def make_logs(self, pod: Pod) -> Path:
        folder = self._paths.log_folder(namespace_of(pod), name_of(pod), uid_of(pod))
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        return folder

    def make_container_logs(self, pod: Pod, container: str) -> Path:
        folder = self.make_logs(pod) / container
        folder.mkdir(mode=0o755, exist_ok=True)
        return folder

    def log_files(self, pod: Pod, container: str) -> Sequence[str]:
        folder = self._paths.log_folder(namespace_of(pod), name_of(pod), uid_of(pod)) / container
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return ()

    def link_log(self, pod: Pod, container: str, container_id: str, target: Path) -> None:
        if not target.exists():
            return
        link = self._paths.log_link(namespace_of(pod), name_of(pod), container, container_id)
        try:
            link.symlink_to(target)
        except FileExistsError:
            if os.readlink(link) != str(target):
                link.unlink()
                link.symlink_to(target)

    def unlink_log(self, namespace: str, name: str, container: str, container_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._paths.log_link(namespace, name, container, container_id).unlink()

    def remove_logs(self, folder: Path) -> None:
        remove_tree(folder)

    def make_termination_log(self, uid: str, container: str) -> Path:
        folder = self._paths.container(uid, container)
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        path = folder / secrets.token_hex(4)
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.fchmod(descriptor, 0o666)  # any user of the container may write, whatever our umask is
        finally:
            os.close(descriptor)
        return path

    def read_tail(self, path: Path, limit_bytes: int) -> bytes:
        try:
            # The container owns this file: it may have put a link, a pipe or a device in its place.
            descriptor = open_checked(path, follow=False)
        except OSError:
            return b""
        try:
            size = os.fstat(descriptor).st_size
            return os.pread(descriptor, limit_bytes, max(0, size - limit_bytes))
        finally:
            os.close(descriptor)

    def write_etc_hosts(self, uid: str, content: str) -> Path:
        path = self._paths.etc_hosts(uid)
        if not _holds(path, content.encode()):
            # Written in place: the file is bind mounted into containers, a rename would leave them the old one.
            with open(path, "w", encoding="utf-8") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(content)
        return path

    def read_text(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def pod_uids(self) -> Sequence[str]:
        try:
            with os.scandir(self._paths.pods) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return ()

    def remove_pod(self, uid: str) -> None:
        remove_tree(self._paths.pod(uid))


def _holds(path: Path, content: bytes) -> bool:
    """Whether the file has this content; no more of it is read than that takes, for containers can write to it."""
    try:
        with open(path, "rb") as file:
            return file.read(len(content) + 1) == content
    except OSError:
        return False
