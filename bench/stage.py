"""The ground all subjects stand on in turn: one private containerd, one cgroup, one set of folders.

Between subjects every pod is removed and containerd is restarted, so that each begins alike. Nothing outlives the
block, and nothing meets another containerd or kubelet of the machine.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bed.cgroups import CgroupTree

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.kit.clock import SystemClock
from pykubelet.standalone import images, programs
from pykubelet.standalone.cleanup import unmount_below
from pykubelet.standalone.containerd import PrivateContainerd
from pykubelet.standalone.layout import Layout

PREFIX = "pklbench-"


@dataclass(frozen=True, slots=True)
class Stage:
    folder: Path
    containerd: PrivateContainerd
    cgroups: CgroupTree

    @property
    def endpoint(self) -> str:
        return self.containerd.endpoint

    @property
    def run(self) -> Path:
        """containerd's folder of running containers."""
        return self.containerd.layout.run

    def client(self) -> GrpcCriClient:
        return GrpcCriClient(self.endpoint, clock=SystemClock())

    async def clean(self) -> None:
        """Remove every pod and restart containerd."""
        async with self.client() as cri:
            sandboxes = [sandbox.id for sandbox in await cri.list_pod_sandboxes()]
            await asyncio.gather(*[cri.stop_pod_sandbox(sandbox) for sandbox in sandboxes])
            await asyncio.gather(*[cri.remove_pod_sandbox(sandbox) for sandbox in sandboxes])
        await self.containerd.restart()


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    """A stage for as long as the block lasts."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    cgroups = CgroupTree(f"/{folder.name}")
    containerd = PrivateContainerd(Layout(folder / "c"), programs.find_runtime(), clock=SystemClock())
    try:
        cgroups.make()
        await containerd.start()
        try:
            await images.ensure_images(containerd.ctr, [images.PAUSE, images.BUSYBOX], clock=SystemClock())
            yield Stage(folder, containerd, cgroups)
        finally:
            await containerd.stop(containers=True)
    finally:
        await asyncio.to_thread(cgroups.remove)
        unmount_below(folder)
        shutil.rmtree(folder)
