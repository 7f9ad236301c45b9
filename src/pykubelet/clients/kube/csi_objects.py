"""What volumes of storage drivers ask the API server for.

CSIDriver objects are watched from the first question on: a node without such volumes has no such watch. All else is
read anew each time, since an old answer could mount the wrong disk.
"""

from __future__ import annotations

import asyncio

from pykubelet.api.times import format_time
from pykubelet.api.types import (
    CSIDriver,
    CSIDriverSpec,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Secret,
    VolumeAttachment,
)
from pykubelet.clients.kube.patch import claim_status_patch
from pykubelet.clients.kube.pod_objects import ClaimReader, PodTokens
from pykubelet.clients.kube.port import KubeClient, PatchType
from pykubelet.clients.kube.reflector import Reflector
from pykubelet.model.errors import NotFound


class KubeCsiObjects:
    name = "csi drivers"

    def __init__(
        self, *, client: KubeClient, drivers: Reflector[CSIDriver], tokens: PodTokens, claims: ClaimReader
    ) -> None:
        self._client = client
        self._drivers = drivers
        self._tokens = tokens
        self._claims = claims
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        await self._wanted.wait()
        await self._drivers.run()

    async def known(self) -> None:
        self._wanted.set()
        await self._drivers.wait_synced()

    def driver(self, name: str) -> CSIDriverSpec | None:
        found = self._drivers.get(name)
        return found.spec if found is not None else None

    async def attachment(self, name: str) -> VolumeAttachment | None:
        try:
            return await self._client.get(VolumeAttachment, name)
        except NotFound:
            return None

    async def secret(self, namespace: str, name: str) -> Secret | None:
        try:
            return await self._client.get(Secret, name, namespace)
        except NotFound:
            return None

    async def token(self, pod: Pod, audience: str, expiration_seconds: int) -> tuple[str, str]:
        status = (await self._tokens.answer(pod, audience, expiration_seconds)).status
        return status.token or "", format_time(status.expiration_timestamp) if status.expiration_timestamp else ""

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return await self._claims.claim(namespace, name)

    async def volume(self, name: str) -> PersistentVolume | None:
        return await self._claims.volume(name)

    async def claim_status(self, claim: PersistentVolumeClaim, changed: PersistentVolumeClaim) -> PersistentVolumeClaim:
        body = claim_status_patch(claim, changed.status)
        if body is None:
            return claim
        return await self._client.patch(
            PersistentVolumeClaim,
            claim.metadata.name or "",
            body,
            patch_type=PatchType.STRATEGIC,
            namespace=claim.metadata.namespace or "",
            subresource="status",
        )
