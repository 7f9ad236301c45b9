"""Block volumes on disk: the driver publishes a device at one place, pods are shown it at another.

The node's own place is a bind mount of the published device; the pod's folder has a link to it, and the link is what
the runtime is given.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from msgspec import Struct

from pykubelet.clients.host.port import Mounts
from pykubelet.volumes.csi.records import DATA_FILE, CsiPaths
from pykubelet.volumes.plugins.plugin import make_folder
from pykubelet.volumes.problems import VolumeProblem


class BlockPlaces(Struct, frozen=True, kw_only=True):
    paths: CsiPaths
    mounts: Mounts

    def is_shown(self, folder: str, uid: str) -> bool:
        link, shown = self.paths.device_link(uid, folder), self.paths.device_map(folder, uid)
        return os.path.lexists(link) and is_mount_point(self.mounts, shown)

    def unlinked(self, folder: str) -> list[str]:
        """Pods for which the device is, or may be, published although nothing in their folders says so: the link is
        the last to come and the first to go, so an agent was killed in between."""
        pods = self.paths.published_pods(folder)
        return [uid for uid in pods if not os.path.lexists(self.paths.device_link(uid, folder))]

    def show(self, folder: str, uid: str) -> None:
        published, shown = self.paths.device_publish(folder, uid), self.paths.device_map(folder, uid)
        try:
            kind = os.stat(published).st_mode
        except FileNotFoundError:
            raise VolumeProblem(f"the driver published nothing at {published}") from None
        if not stat.S_ISBLK(kind):
            raise VolumeProblem(f"what the driver published at {published} is no block device")
        make_folder(shown.parent)
        if not is_mount_point(self.mounts, shown):
            shown.touch(mode=0o660)
            self.mounts.bind(published, shown, read_only=False)
        link = self.paths.device_link(uid, folder)
        make_folder(link.parent)
        if os.path.lexists(link):
            if os.readlink(link) == str(shown):
                return
            link.unlink()
        link.symlink_to(shown)

    def hide(self, folder: str, uid: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.paths.device_link(uid, folder).unlink()
        shown = self.paths.device_map(folder, uid)
        self.mounts.unmount(shown)
        with contextlib.suppress(FileNotFoundError):
            shown.unlink()
        _remove_if_empty(shown.parent)

    def forget(self, folder: str, uid: str) -> None:
        """After the driver gave the device back, or refused it."""
        self.hide(folder, uid)
        published = self.paths.device_publish(folder, uid)
        if is_mount_point(self.mounts, published):
            raise VolumeProblem(f"{published} is still mounted although its driver said that it is not")
        try:
            published.unlink()
        except IsADirectoryError:
            os.rmdir(published)
        except FileNotFoundError:
            pass
        _remove_if_empty(published.parent)

    def forget_staging(self, folder: str) -> None:
        _remove_if_empty(self.paths.device_staging(folder))
        home = self.paths.device_home(folder)
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(home):
                if name.lstrip(".").startswith(DATA_FILE):
                    (home / name).unlink()
        for place in (home, home.parent / "dev", home.parent):
            _remove_if_empty(place)


def is_mount_point(mounts: Mounts, path: Path) -> bool:
    """By the kernel's table: a dead server cannot hang that."""
    return any(entry.mount_point == str(path) for entry in mounts.table())


def _remove_if_empty(folder: Path) -> None:
    """Another pod may still have something in it."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
