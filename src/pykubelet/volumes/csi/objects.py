"""What CSI volumes ask the API server, as one Protocol. Trouble is any PykubeletError and is retried."""

from __future__ import annotations

from typing import Protocol

from pykubelet.api.types import (
    CSIDriverSpec,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    Secret,
    VolumeAttachment,
)


class CsiObjects(Protocol):
    async def known(self) -> None:
        """Until the CSIDriver objects have been read once."""
        ...

    def driver(self, name: str) -> CSIDriverSpec | None:
        """The cluster's say about a driver; None when there is no such object."""
        ...

    async def attachment(self, name: str) -> VolumeAttachment | None: ...

    async def secret(self, namespace: str, name: str) -> Secret | None: ...

    async def token(self, pod: Pod, audience: str, expiration_seconds: int) -> tuple[str, str]:
        """A token of the pod's service account and when it ends, as the API writes moments."""
        ...

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None: ...

    async def volume(self, name: str) -> PersistentVolume | None: ...

    async def claim_status(self, claim: PersistentVolumeClaim, changed: PersistentVolumeClaim) -> PersistentVolumeClaim:
        """Write the status of a claim as changed from what it was; the claim as it is then."""
        ...
