"""Every path the agent uses, under the roots it was given. Layout as upstream keeps it.

Only computes; making and removing is `folders.py`. Names that come from manifests are validated before
they get here, so joining them cannot leave the root.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

LINK_NAME_LIMIT = 255


class NodePaths(Struct, frozen=True, kw_only=True):
    root: Path
    """`--root-dir`: everything the agent keeps about pods and plugins."""
    pod_logs: Path
    container_logs: Path

    @property
    def pods(self) -> Path:
        return self.root / "pods"

    def pod(self, uid: str) -> Path:
        return self.pods / uid

    def volumes(self, uid: str) -> Path:
        return self.pod(uid) / "volumes"

    def volume(self, uid: str, plugin: str, name: str) -> Path:
        """`plugin` is the full name, e.g. kubernetes.io/empty-dir."""
        return self.volumes(uid) / plugin.replace("/", "~") / name

    def plugin_data(self, uid: str, plugin: str, name: str) -> Path:
        return self.pod(uid) / "plugins" / plugin.replace("/", "~") / name

    def volume_devices(self, uid: str) -> Path:
        return self.pod(uid) / "volumeDevices"

    def subpaths(self, uid: str) -> Path:
        return self.pod(uid) / "volume-subpaths"

    def container(self, uid: str, container: str) -> Path:
        return self.pod(uid) / "containers" / container

    def etc_hosts(self, uid: str) -> Path:
        return self.pod(uid) / "etc-hosts"

    def log_folder(self, namespace: str, name: str, uid: str) -> Path:
        return self.pod_logs / f"{namespace}_{name}_{uid}"

    def log_link(self, namespace: str, name: str, container: str, container_id: str) -> Path:
        tail = f"-{container_id}.log"
        head = f"{name}_{namespace}_{container}"[: LINK_NAME_LIMIT - len(tail)]
        return self.container_logs / (head + tail)

    @property
    def plugins(self) -> Path:
        return self.root / "plugins"

    @property
    def plugin_sockets(self) -> Path:
        return self.root / "plugins_registry"

    @property
    def device_plugins(self) -> Path:
        return self.root / "device-plugins"

    @property
    def seccomp(self) -> Path:
        return self.root / "seccomp"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"
