"""Pod folders on the real disk, with the modes upstream uses.

Small, quick calls made inline on the loop. Trees that containers could write to are removed safely against links,
races and mounts: everything is done relative to open descriptors, so a folder swapped for a link in mid-walk leads
nowhere. A folder that is the root of another mount is never entered but reported: its mount id, not only its device,
is compared, because a bind mount has the device of its source. Depth is unbounded; open descriptors are not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from pykubelet.api.types import Pod
from pykubelet.clients.host.port import NodePaths
from pykubelet.kit.files import open_checked, remove_unfinished
from pykubelet.model.pod import name_of, namespace_of, uid_of

MAX_OPEN = 64
"""Levels kept open at once; what lies deeper is first moved up."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def mount_id(descriptor: int) -> int:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as info:
        for line in info:
            if line.startswith("mnt_id:"):
                return int(line[7:])
    raise OSError(f"the kernel does not show the mount of descriptor {descriptor}")


def remove_tree(folder: Path) -> None:
    """Remove `folder` and all below it on one mount; OSError names what is in the way. Not there is success."""
    try:
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        home = mount_id(parent)
        try:
            _remove_at(parent, folder.name, folder, home)
        except FileNotFoundError:
            return
    finally:
        os.close(parent)


def _remove_at(parent: int, name: str, shown: Path, home: int) -> None:
    try:
        top = os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=parent)
        return
    try:
        if mount_id(top) != home:
            raise OSError(f"{shown} is still mounted")
        # Folders moved up from too deep are new ones at the top: look again until none is left.
        while _empty(top, shown, home):
            pass
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _empty(top: int, shown: Path, home: int) -> bool:
    """Depth first with an explicit stack: a hostile depth costs neither recursion nor descriptors.

    True when something was removed or moved up, so that there may be more.
    """
    stack: list[tuple[int, str, list[str]]] = [(top, "", _unlink_files(top))]
    busy = bool(stack[0][2])
    try:
        while True:
            here, name, left = stack[-1]
            if not left:
                if len(stack) == 1:
                    return busy
                stack.pop()
                os.close(here)
                os.rmdir(name, dir_fd=stack[-1][0])
                continue
            child = left.pop()
            if len(stack) >= MAX_OPEN:
                os.rename(child, f".removing-{secrets.token_hex(8)}", src_dir_fd=here, dst_dir_fd=top)
                continue
            descriptor = os.open(child, _FOLDER, dir_fd=here)
            stack.append((descriptor, child, []))
            if mount_id(descriptor) != home:
                raise OSError(f"{shown.joinpath(*(step for _, step, _ in stack))} is still mounted")
            stack[-1][2].extend(_unlink_files(descriptor))
    finally:
        for descriptor, _, _ in stack[1:]:
            os.close(descriptor)


def _unlink_files(folder: int) -> list[str]:
    """Unlink all that is no folder; the names of the folders."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders


class DiskFolders:
    def __init__(self, paths: NodePaths) -> None:
        self._paths = paths

    def make_roots(self) -> None:
        """Make the folders that must exist before the agent starts; what a killed agent was just writing goes."""
        for folder, mode in (
            (self._paths.root, 0o750),
            (self._paths.pods, 0o750),
            (self._paths.plugins, 0o750),
            (self._paths.plugin_sockets, 0o750),
            (self._paths.pod_logs, 0o755),
            (self._paths.container_logs, 0o755),
        ):
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
        for folder in (self._paths.root, self._paths.device_plugins, *(self._paths.root / "image_manager").glob("*")):
            remove_unfinished(folder)

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
            os.fchmod(descriptor, 0o666)  # any user of the container may write, regardless of our umask
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
