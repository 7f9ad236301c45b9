"""What dynamic resources ask the API server for: claims, read anew each time, and slices of this node to delete."""

from __future__ import annotations

from pykubelet.api.types import ResourceResourceClaim, ResourceSlice
from pykubelet.clients.kube.port import KubeClient
from pykubelet.model.errors import NotFound


class KubeClaimObjects:
    def __init__(self, client: KubeClient, node_name: str) -> None:
        self._client = client
        self._node_name = node_name

    async def resource_claim(self, namespace: str, name: str) -> ResourceResourceClaim | None:
        try:
            return await self._client.get(ResourceResourceClaim, name, namespace)
        except NotFound:
            return None

    async def delete_slices(self, driver: str) -> None:
        selector = f"spec.nodeName={self._node_name}" + (f",spec.driver={driver}" if driver else "")
        page = await self._client.list(ResourceSlice, field_selector=selector)
        for each in page.items:
            try:
                await self._client.delete(ResourceSlice, each.metadata.name or "", uid=each.metadata.uid or "")
            except NotFound:
                continue
