"""Cluster trust bundles for projected volumes: a live copy from the moment the first pod asks.

Certificates of several bundles are put together, each once. A listener hears of every bundle that came, changed or
went. The API group is off by default in clusters, and so is the gate ClusterTrustBundleProjection here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping

from pykubelet.api.types import ClusterTrustBundle, LabelSelector, LabelSelectorRequirement
from pykubelet.clients.kube.port import KubeClient
from pykubelet.clients.kube.reflector import Reflector
from pykubelet.clients.kube.watch import Query
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import PykubeletError

FIRST_READ_WITHIN = 10.0
_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class BundlesUnavailable(PykubeletError):
    """The bundles could not be read in time."""


class TrustBundleWatcher:
    name = "trust bundles"

    def __init__(self, *, kube: KubeClient, clock: Clock, on_change: Callable[[str], None] = lambda name: None) -> None:
        """`on_change` is called with the name of a bundle."""
        self._live = Reflector(
            client=kube,
            query=Query(kind=ClusterTrustBundle),
            clock=clock,
            on_change=lambda change: on_change(change.object.metadata.name or ""),
        )
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        await self._wanted.wait()
        await self._live.run()

    async def by_name(self, name: str) -> str | None:
        await self._synced()
        found = self._live.get(name)
        return None if found is None else joined([found])

    async def by_signer(self, signer: str, selector: LabelSelector | None) -> str:
        await self._synced()
        return joined(
            each
            for each in self._live.all()
            if each.spec.signer_name == signer and selects(selector, each.metadata.labels)
        )

    async def _synced(self) -> None:
        self._wanted.set()
        if not await self._live.wait_synced(FIRST_READ_WITHIN):
            raise BundlesUnavailable(f"cluster trust bundles could not be read within {FIRST_READ_WITHIN:g} s")


def joined(bundles: Iterable[ClusterTrustBundle]) -> str:
    """Every certificate once, in an order that depends on nothing but the certificates."""
    blocks = {block for bundle in bundles for block in _BLOCK.findall(bundle.spec.trust_bundle or "")}
    return "".join(f"{block}\n" for block in sorted(blocks))


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """No selector selects nothing, an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    return all(_holds(each, labels) for each in selector.match_expressions)


def _holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key or "")
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
