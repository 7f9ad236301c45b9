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
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import CriError
from pykubelet.standalone import images, programs
from pykubelet.standalone.cleanup import unmount_below
from pykubelet.standalone.containerd import PrivateContainerd
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.launch import ContainerdLaunch
from pykubelet.standalone.layout import Layout

PREFIX = "pklbench-"
CLEAN_ATTEMPTS = 5


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
        for attempt in range(CLEAN_ATTEMPTS):
            try:
                await self._remove_pods()
                break
            except CriError as error:  # a shim that is just ending, mostly
                if attempt == CLEAN_ATTEMPTS - 1:
                    raise StandaloneError(f"pods of the last subject cannot be removed: {error}") from error
                await asyncio.sleep(1.0)
        await self.containerd.restart()

    async def _remove_pods(self) -> None:
        async with self.client() as cri:
            sandboxes = [sandbox.id for sandbox in await cri.list_pod_sandboxes()]
            await gather_all(*[cri.stop_pod_sandbox(sandbox) for sandbox in sandboxes])
            await gather_all(*[cri.remove_pod_sandbox(sandbox) for sandbox in sandboxes])


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    """A stage for as long as the block lasts."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    cgroups = CgroupTree(f"/{folder.name}")
    containerd = PrivateContainerd(ContainerdLaunch(Layout(folder / "c"), programs.find_runtime()), clock=SystemClock())
    try:
        cgroups.make()
        await containerd.start()
        try:
            built = images.build([images.PAUSE, images.BUSYBOX])
            await images.import_images(containerd.ctr, built, clock=SystemClock())
            yield Stage(folder, containerd, cgroups)
        finally:
            await containerd.stop(containers=True)
    finally:
        await asyncio.to_thread(cgroups.remove)
        unmount_below(folder)
        shutil.rmtree(folder)
