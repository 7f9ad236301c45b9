"""The bed's containerd: the product's own private containerd under a short temporary folder, with offline images.

One per pytest run. A run that was killed leaves one behind; the next run finds it by its unlocked folder and
removes it.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from pykubelet.kit.clock import SystemClock
from pykubelet.model.errors import PykubeletError
from pykubelet.standalone import images, programs
from pykubelet.standalone.cleanup import unmount_below
from pykubelet.standalone.containerd import PrivateContainerd
from pykubelet.standalone.launch import ContainerdLaunch
from pykubelet.standalone.layout import Layout
from pykubelet.standalone.packer import Archive
from tests.bed import leaks
from tests.bed.parts import abandoned, blocking, cannot, need_root

PREFIX = "pklbed-"
KNOWN_WITHIN = 60.0
PAUSE, BUSYBOX, TESTSERVER = images.PAUSE, images.BUSYBOX, images.TESTSERVER


class BedContainerd:
    """What tests see of the runtime. Every method blocks and may be called from any test."""

    def __init__(self, private: PrivateContainerd) -> None:
        self._private = private

    @property
    def state_dir(self) -> Path:
        return self._private.layout.state_dir

    @property
    def socket(self) -> Path:
        return self._private.layout.socket

    @property
    def endpoint(self) -> str:
        return self._private.endpoint

    @property
    def gateway_ip(self) -> str:
        """The node's address on the pod network; it exists as long as the bed runs."""
        return self._private.network.gateway_ip

    @property
    def registry_dir(self) -> Path:
        """Folders `<host:port>/hosts.toml` in here tell the runtime how to reach a registry."""
        return self._private.layout.registry_dir

    @property
    def pid(self) -> int:
        if self._private.pid is None:
            cannot("containerd is not running")
        return self._private.pid

    @property
    def log(self) -> str:
        return self._private.layout.log.read_text(errors="replace")

    def ctr(self, *words: str, stdin: bytes = b"") -> str:
        """`ctr -n k8s.io WORDS`, and its output."""
        return blocking(self._private.ctr(*words, stdin=stdin))

    @property
    def version(self) -> str:
        return f"containerd {self.ctr('version').split('Version:')[-1].split()[0]}"

    def load(self, archive: Archive, others: Sequence[str] = ()) -> None:
        """Import an image under the archive's name and `others`; returns when the CRI part knows all of them."""
        self.ctr("images", "import", "-", stdin=archive.data)
        if others:
            self.ctr("images", "tag", "--force", archive.name, *others)
        # The CRI part hears of new images by an event and then marks them.
        deadline = time.monotonic() + KNOWN_WITHIN
        while missing := {archive.name, *others} - self._known_images():
            if time.monotonic() > deadline:
                cannot(f"images the runtime does not know after {KNOWN_WITHIN:g} s: {', '.join(sorted(missing))}")
            time.sleep(0.1)

    def container_ids(self) -> frozenset[str]:
        """Of all containers it knows, and of all sandboxes."""
        return frozenset(self.ctr("containers", "ls", "-q").split())

    def _known_images(self) -> set[str]:
        return {name for name, (_, known) in images.parse_listing(self.ctr("images", "ls")).items() if known}

    def kill(self) -> None:
        """End containerd the hard way; containers go on running. Follow with `restart`."""
        os.kill(self.pid, signal.SIGKILL)

    def restart(self) -> None:
        """End containerd, if it is still there, and start it again; returns when it answers."""
        blocking(self._private.restart())


@contextmanager
def running_containerd(
    folder: Path | None = None, *, runc: Path | None = None, below: Path | None = None
) -> Iterator[BedContainerd]:
    """A containerd for as long as the block lasts; `folder` and `runc` hold another version's programs, `below` is
    where it keeps its things (a temporary folder otherwise)."""
    need_root()
    sweep()
    before = leaks.snapshot()
    state_dir = Path(tempfile.mkdtemp(prefix=PREFIX, dir=below))
    try:
        found = programs.find_runtime(folder=folder)
        found = found if runc is None else replace(found, runc=runc)
        private = PrivateContainerd(ContainerdLaunch(Layout(state_dir), found), clock=SystemClock())
        blocking(private.start())
    except PykubeletError as error:
        shutil.rmtree(state_dir, ignore_errors=True)
        cannot(f"containerd cannot be had: {error}")
    try:
        blocking(images.import_images(private.ctr, images.build([PAUSE, BUSYBOX, TESTSERVER]), clock=SystemClock()))
        yield BedContainerd(private)
    finally:
        blocking(private.stop(containers=True))
        unmount_below(state_dir)
        shutil.rmtree(state_dir)
    leaks.check(state_dir, private.network.name, before)


def sweep() -> None:
    """Remove what killed runs left: folders of ours whose lock nobody holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if abandoned(folder / "lock"):
            private = PrivateContainerd(ContainerdLaunch(Layout(folder), programs.find_runtime()), clock=SystemClock())
            blocking(private.stop(containers=True))
            shutil.rmtree(folder, ignore_errors=True)
