"""Every path under the state folder of one private runtime.

All that standalone mode creates lives under one folder, so that two of them never meet and removing one is
removing its folder. The bridge is named after the folder for the same reason.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec import Struct

from pykubelet.standalone.errors import StandaloneError

# A unix socket address holds 108 bytes with its closing zero, and containerd adds ".ttrpc" to its own.
LONGEST_SOCKET = 107 - len(".ttrpc")


class Layout(Struct, frozen=True):
    state_dir: Path

    def __post_init__(self) -> None:
        if not self.state_dir.is_absolute():
            raise StandaloneError(f"state folder {self.state_dir}: must be an absolute path")
        if len(bytes(self.socket)) > LONGEST_SOCKET:
            over = len(bytes(self.socket)) - LONGEST_SOCKET
            raise StandaloneError(f"state folder {self.state_dir}: {over} bytes too long for a socket in it")

    @property
    def socket(self) -> Path:
        return self.state_dir / "containerd.sock"

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    @property
    def config(self) -> Path:
        return self.state_dir / "containerd.toml"

    @property
    def pid_file(self) -> Path:
        return self.state_dir / "containerd.pid"

    @property
    def log(self) -> Path:
        return self.state_dir / "containerd.log"

    @property
    def lock(self) -> Path:
        return self.state_dir / "lock"

    @property
    def boot_file(self) -> Path:
        """The boot in which the running containers were started."""
        return self.state_dir / "boot"

    @property
    def version_file(self) -> Path:
        """What `containerd --version` said, and which program it was."""
        return self.state_dir / "containerd-version.json"

    @property
    def images_file(self) -> Path:
        """The offline images that were imported, and what they were packed from."""
        return self.state_dir / "images.json"

    @property
    def root(self) -> Path:
        """Images and snapshots: what outlives a reboot."""
        return self.state_dir / "root"

    @property
    def run(self) -> Path:
        """Running containers: what does not."""
        return self.state_dir / "run"

    @property
    def runc_root(self) -> Path:
        return self.run / "runc"

    @property
    def cni_conf_dir(self) -> Path:
        return self.state_dir / "cni"

    @property
    def cni_conf(self) -> Path:
        return self.cni_conf_dir / "10-pykubelet.conflist"

    @property
    def ipam_dir(self) -> Path:
        return self.state_dir / "ipam"

    @property
    def registry_dir(self) -> Path:
        """containerd's `config_path`: one folder a registry, with a hosts.toml in it."""
        return self.state_dir / "certs.d"

    @property
    def network_name(self) -> str:
        """Name of the network and of its bridge; 15 characters is the kernel's limit for the latter."""
        return "pkl-" + hashlib.sha256(bytes(self.state_dir)).hexdigest()[:8]

    def folders(self) -> list[Path]:
        return [self.state_dir, self.root, self.run, self.cni_conf_dir, self.ipam_dir, self.registry_dir]
