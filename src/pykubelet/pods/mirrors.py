"""Mirror pods: what the API server shows of static pods.

Each static pod gets one mirror of its very version; a mirror that was deleted or is of an older version is replaced,
and one without a static pod is removed. Pods never wait for any of this: the work is queued and retried while the API
server is away or the Node is not known yet. Does not cover statuses, which go to the mirror (status/sender.py).
"""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec
from msgspec import Struct, field

from pykubelet.api.types import ObjectMeta, OwnerReference, Pod, PodStatus
from pykubelet.clients.kube.port import KubeClient
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import ApiAlreadyExists, ApiConflict, ApiDown, ApiError, ApiNotFound
from pykubelet.model.pod import (
    HASH_ANNOTATION,
    MIRROR_ANNOTATION,
    deletion_requested,
    full_name,
    is_mirror,
    is_static,
    name_of,
    namespace_of,
    readable,
    uid_of,
)
from pykubelet.pods.table import PodTable, is_mirror_of

logger = logging.getLogger(__name__)

FIRST_RETRY, LONGEST_RETRY, LONGEST_WHILE_DOWN = 0.2, 60.0, 5.0


class NodeOwner(Protocol):
    async def wait_known(self) -> None: ...

    def owner(self, *, controller: bool = False) -> OwnerReference | None:
        """A reference to the Node; None while it is unknown or being deleted."""
        ...


class ApiPods(Protocol):
    """The pods of this node as a watch shows them."""

    def get(self, name: str, namespace: str = "") -> Pod | None: ...


class _Try(Struct):
    not_before: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=FIRST_RETRY, maximum=LONGEST_RETRY))


class MirrorPods:
    name = "mirror-pods"

    def __init__(
        self,
        *,
        client: KubeClient,
        table: PodTable,
        api_pods: ApiPods,
        node: NodeOwner,
        clock: Clock,
    ) -> None:
        self._client = client
        self._table = table
        self._api_pods = api_pods
        self._node = node
        self._clock = clock
        self._queue: dict[str, _Try] = {}
        self._wake = Wakeup()

    async def reconcile(self, pod: Pod) -> None:
        """The static pod's mirror is to be as the pod is. Returns at once."""
        self._queue.setdefault(full_name(pod), _Try())
        self._wake.set()

    async def remove_orphans(self) -> None:
        """Delete mirrors whose static pod is gone; a chore of housekeeping."""
        for mirror in self._table.orphan_mirrors():
            if not self._table.is_busy(full_name(mirror)):
                await self._delete(mirror)

    # -- the service

    async def run(self) -> None:
        await self._node.wait_known()
        for pod in self._table.static_pods():
            self._queue.setdefault(full_name(pod), _Try())
        while True:
            wait = await self._work_through()
            await self._wake.wait(at_most=wait)

    async def _work_through(self) -> float | None:
        """Do what is due; seconds until the next retry, None when there is none."""
        waits = []
        for name, attempt in list(self._queue.items()):
            left = attempt.not_before - self._clock.monotonic()
            if left <= 0:
                del self._queue[name]  # before the work, so that a wish that comes meanwhile is not lost
                retry = await self._try(name, attempt)
                if retry is None:
                    continue
                left = retry
                self._queue[name] = attempt
            waits.append(left)
        return min(waits, default=None)

    async def _try(self, name: str, attempt: _Try) -> float | None:
        """Seconds until the next try; None when nothing is left to do."""
        longest = LONGEST_RETRY
        try:
            if await self._make_equal(name):
                return None
        except ApiError as error:
            level = logging.WARNING if attempt.backoff.failures == 0 else logging.DEBUG
            logger.log(level, "mirror pod: will retry", extra={"static_pod": name, "error": str(error)})
            longest = LONGEST_WHILE_DOWN if isinstance(error, ApiDown) else LONGEST_RETRY
        delay = min(attempt.backoff.next(), longest)
        attempt.not_before = self._clock.monotonic() + delay
        return delay

    async def _make_equal(self, name: str) -> bool:
        """True when nothing is left to do for this name."""
        pod = self._table.by_full_name(name)
        if pod is None or not is_static(pod) or deletion_requested(pod):
            return True
        found = self._api_pods.get(name_of(pod), namespace_of(pod))
        if found is not None and not is_mirror(found):
            logger.warning("a pod of the API has the name of a static pod", extra={"pod": readable(pod)})
            return True
        if found is not None:
            if is_mirror_of(found, pod) and not deletion_requested(found):
                return True
            logger.info("replacing the mirror pod", extra={"pod": readable(pod), "mirror": uid_of(found)})
            await self._delete(found)
        return await self._create(pod)

    async def _create(self, pod: Pod) -> bool:
        owner = self._node.owner(controller=True)
        if owner is None:
            return False
        try:
            await self._client.create(mirror_for(pod, owner))
        except ApiAlreadyExists:
            there = await self._read(pod)
            # The watch may be behind: what is there can be the right one already.
            return there is not None and is_mirror_of(there, pod)
        logger.info("mirror pod created", extra={"pod": readable(pod)})
        return True

    async def _read(self, pod: Pod) -> Pod | None:
        try:
            return await self._client.get(Pod, name_of(pod), namespace_of(pod))
        except ApiNotFound:
            return None

    async def _delete(self, mirror: Pod) -> None:
        try:
            await self._client.delete(Pod, name_of(mirror), namespace_of(mirror), grace_seconds=0, uid=uid_of(mirror))
        except (ApiNotFound, ApiConflict):
            return  # gone already, or somebody else's by now
        logger.info("mirror pod deleted", extra={"pod": readable(mirror), "mirror": uid_of(mirror)})


def mirror_for(pod: Pod, owner: OwnerReference) -> Pod:
    """The object to create for a static pod."""
    metadata = ObjectMeta(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        labels=pod.metadata.labels,
        annotations={
            **pod.metadata.annotations,
            MIRROR_ANNOTATION: pod.metadata.annotations.get(HASH_ANNOTATION, ""),
        },
        finalizers=pod.metadata.finalizers,
        owner_references=[owner],
    )
    return msgspec.structs.replace(pod, api_version="v1", kind="Pod", metadata=metadata, status=PodStatus())
