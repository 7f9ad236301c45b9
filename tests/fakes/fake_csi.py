"""A storage driver in memory over fake mounts: strict about order, remembering every call, failing as planned.

Publishing before staging, staging or publishing twice in different ways, or unstaging what is still published raises
at once: a real driver may forgive it, this one must not.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pykubelet.api.types import (
    CSIDriverSpec,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Secret,
    VolumeAttachment,
)
from pykubelet.clients.plugins.port import CsiNodeInfo, CsiUsage, CsiVolume, Observe, unobserved
from pykubelet.model.errors import PluginError
from tests.fakes.fake_mounts import FakeMounts

ALL = frozenset({"STAGE_UNSTAGE_VOLUME", "GET_VOLUME_STATS", "EXPAND_VOLUME"})


METHODS = {
    "info": "NodeGetInfo",
    "capabilities": "NodeGetCapabilities",
    "stage": "NodeStageVolume",
    "unstage": "NodeUnstageVolume",
    "publish": "NodePublishVolume",
    "unpublish": "NodeUnpublishVolume",
    "expand": "NodeExpandVolume",
    "usage": "NodeGetVolumeStats",
}


class NoCsiNode:
    """Where the CSINode would be updated."""

    async def add_driver(self, name: str, info: CsiNodeInfo) -> None:
        return

    async def remove_driver(self, name: str) -> None:
        return


@dataclass
class FakeCsiDriver:
    mounts: FakeMounts
    can: frozenset[str] = ALL
    node: CsiNodeInfo = field(default_factory=lambda: CsiNodeInfo(node_id="n1"))
    calls: list[str] = field(default_factory=list)
    volumes: list[CsiVolume] = field(default_factory=list)
    staged: dict[str, str] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)
    """Target -> volume."""
    grown: dict[str, int] = field(default_factory=dict)
    plans: list[tuple[str, str, bool]] = field(default_factory=list)
    """(call, gRPC code, whether it takes effect all the same), each used once."""
    hangs: set[str] = field(default_factory=set)
    device: str = "/dev/loop0"
    """What is published for block volumes."""
    condition: str = ""
    """What is wrong with the volumes."""

    observe: Observe = unobserved

    def connect(self, endpoint: Path, observe: Observe) -> FakeCsiDriver:
        """The same driver as one caller sees it; what it remembers is shared."""
        client = copy.copy(self)
        client.observe = observe
        return client

    async def info(self) -> CsiNodeInfo:
        await self._called("info")
        return self.node

    async def capabilities(self) -> frozenset[str]:
        await self._called("capabilities")
        return self.can

    async def stage(self, volume: CsiVolume, staging: Path) -> None:
        self.volumes.append(volume)

        def work() -> None:
            assert staging.is_dir(), "the staging folder is made by the agent"
            if self.staged.setdefault(volume.volume_id, str(staging)) == str(staging):
                self._mounted(staging)

        await self._called("stage", volume.volume_id, work)

    async def unstage(self, volume_id: str, staging: Path) -> None:
        def work() -> None:
            assert volume_id not in self.published.values(), "unstaged while published"
            self.staged.pop(volume_id, None)
            self.mounts.unmount(staging)

        await self._called("unstage", volume_id, work)

    async def publish(self, volume: CsiVolume, target: Path, *, staging: Path | None, read_only: bool) -> None:
        self.volumes.append(volume)

        def work() -> None:
            if "STAGE_UNSTAGE_VOLUME" in self.can and staging is not None:
                assert self.staged.get(volume.volume_id) == str(staging), "published before staged"
            assert target.parent.is_dir(), "the folder of the target is made by the agent"
            self.published[str(target)] = volume.volume_id
            if volume.block:
                if not target.is_symlink():
                    target.symlink_to(self.device)  # as far as stat can tell, it is there
                return
            target.mkdir(exist_ok=True)
            self._mounted(target)

        await self._called("publish", volume.volume_id, work)

    async def unpublish(self, volume_id: str, target: Path) -> None:
        def work() -> None:
            self.published.pop(str(target), None)
            self.mounts.unmount(target)
            if target.is_symlink():
                target.unlink()

        await self._called("unpublish", volume_id, work)

    async def expand(self, volume: CsiVolume, path: Path, *, staging: Path | None, required_bytes: int) -> int:
        def work() -> None:
            assert str(path) in self.published, "expanded before published"
            self.grown[volume.volume_id] = required_bytes

        await self._called("expand", volume.volume_id, work)
        return required_bytes

    async def usage(self, volume_id: str, path: Path, *, staging: Path | None) -> CsiUsage:
        await self._called("usage", volume_id)
        return CsiUsage(
            used_bytes=1,
            total_bytes=10,
            available_bytes=9,
            abnormal=bool(self.condition),
            condition=self.condition,
        )

    def order(self) -> list[str]:
        """Calls that change something."""
        return [call for call in self.calls if call.split()[0] not in ("info", "capabilities", "usage")]

    def _mounted(self, path: Path) -> None:
        if not self.mounts.is_mounted(path):
            self.mounts.bind(path, path, read_only=False)

    async def _called(self, name: str, volume: str = "", work: object = None) -> None:
        with self.observe(METHODS[name]):
            self.calls.append(f"{name} {volume}".strip())
            if name in self.hangs:
                await asyncio.Event().wait()
            plan = next((plan for plan in self.plans if plan[0] == name), None)
            if callable(work) and (plan is None or plan[2]):
                work()
            if plan is not None:
                self.plans.remove(plan)
                raise PluginError("as planned", code=plan[1], call=name, socket="/csi.sock")


@dataclass
class FakeCsiObjects:
    drivers: dict[str, CSIDriverSpec] = field(default_factory=dict)
    attachments: dict[str, VolumeAttachment] = field(default_factory=dict)
    secrets: dict[tuple[str, str], Secret] = field(default_factory=dict)
    claims: dict[tuple[str, str], PersistentVolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, PersistentVolume] = field(default_factory=dict)
    written: list[PersistentVolumeClaim] = field(default_factory=list)

    async def known(self) -> None:
        return

    def driver(self, name: str) -> CSIDriverSpec | None:
        return self.drivers.get(name)

    async def attachment(self, name: str) -> VolumeAttachment | None:
        return self.attachments.get(name)

    async def secret(self, namespace: str, name: str) -> Secret | None:
        return self.secrets.get((namespace, name))

    async def token(self, pod: Pod, audience: str, expiration_seconds: int) -> tuple[str, str]:
        return f"token-{audience}-{expiration_seconds}", "2030-01-01T00:00:00Z"

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self.claims.get((namespace, name))

    async def volume(self, name: str) -> PersistentVolume | None:
        return self.volumes.get(name)

    async def claim_status(self, claim: PersistentVolumeClaim, changed: PersistentVolumeClaim) -> PersistentVolumeClaim:
        self.written.append(changed)
        self.claims[claim.metadata.namespace or "", claim.metadata.name or ""] = changed
        return changed
