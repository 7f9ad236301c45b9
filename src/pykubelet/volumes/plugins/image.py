"""image: the runtime mounts a pulled image itself. Nothing is on disk; the mount builder names the image."""

from __future__ import annotations

from pathlib import Path

from pykubelet.volumes.plugins.plugin import Files, PluginDefaults, SetUp
from pykubelet.volumes.spec import IMAGE, VolumeSpec


class ImageVolume(PluginDefaults):
    name = IMAGE
    relabels = False

    def is_quick(self, spec: VolumeSpec) -> bool:
        return True

    def where(self, path: Path, spec: VolumeSpec) -> Path:
        return Path()

    def always_read_only(self, spec: VolumeSpec) -> bool:
        return True

    def set_up(self, task: SetUp, files: Files | None) -> None:
        """The runtime does it with the container."""

    def tear_down(self, uid: str, folder: str) -> None:
        """The runtime did it with the container."""
