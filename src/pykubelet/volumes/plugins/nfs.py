"""nfs: mounted by the host's own tools into the pod's folder. Ownership is the server's business."""

from __future__ import annotations

from pathlib import Path

from pykubelet.volumes.plugins.mounted import MountedPlugin
from pykubelet.volumes.plugins.plugin import TOOL_SECONDS, Files, SetUp
from pykubelet.volumes.plugins.words import host, line
from pykubelet.volumes.spec import NFS

FORCE_AFTER = 60.0
"""Seconds an unmount may wait for a server before it is forced."""


class NfsVolume(MountedPlugin):
    name = NFS
    owned = False
    relabels = False

    def mount(self, task: SetUp, files: Files | None) -> None:
        source = task.spec.volume.nfs
        assert source is not None
        server = host(source.server, "nfs.server")
        shown = f"[{server}]" if ":" in server and not server.startswith("[") else server
        options = (*task.spec.mount_options, "ro") if task.spec.read_only else task.spec.mount_options
        exported = f"{shown}:{line(source.path or '', 'nfs.path')}"
        self._mounts.by_tool(exported, task.path, fs_type="nfs", options=options, seconds=TOOL_SECONDS)

    def unmount(self, path: Path) -> None:
        self._mounts.unmount_forced(path, seconds=FORCE_AFTER)
