"""Mirror pods: what the API server shows of static pods.

Each static pod gets one mirror of its very version; a mirror that was deleted or is of an older version is replaced,
and one without a static pod is removed. Pods never wait for any of this: the work is queued and retried while the API
server is away or the Node is not known yet. Does not cover statuses, which go to the mirror (status/sender.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from pykubelet.api.types import ObjectMeta, OwnerReference, Pod, PodStatus
from pykubelet.clients.kube.port import KubeClient
from pykubelet.kit.clock import Clock
from pykubelet.kit.keyed import KeyedTasks, KeyState
from pykubelet.kit.limits import Slots
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


class NotYet(ApiError):
    """The mirror cannot be made now; the next try may succeed."""


class MirrorPods:
    name = "mirror-pods"

    def __init__(
        self,
        *,
        client: KubeClient,
        table: PodTable,
        api_pod: Callable[[str, str], Pod | None],
        node: NodeOwner,
        clock: Clock,
    ) -> None:
        """`api_pod(name, namespace)`: the pod of that name as a watch shows it."""
        self._client = client
        self._table = table
        self._api_pod = api_pod
        self._node = node
        self._tasks = KeyedTasks(
            self.name,
            self._make_equal,
            clock=clock,
            first_retry=FIRST_RETRY,
            last_retry=LONGEST_RETRY,
            on_error=self._failed,
            slots=Slots[str](1),
        )

    async def reconcile(self, pod: Pod) -> None:
        """The static pod's mirror is to be as the pod is. Returns at once."""
        self._tasks.wake(full_name(pod), skip_backoff=False)

    async def remove_orphans(self) -> None:
        """Delete mirrors whose static pod is gone; a chore of housekeeping."""
        for mirror in self._table.orphan_mirrors():
            if not self._table.is_busy(full_name(mirror)):
                await self._delete(mirror)

    async def run(self) -> None:
        await self._node.wait_known()
        for pod in self._table.static_pods():
            await self.reconcile(pod)
        async with self._tasks:
            await asyncio.Event().wait()

    def _failed(self, name: str, error: Exception, state: KeyState) -> float:
        """Log why the mirror is not as it should be; the seconds until the next try."""
        delay = state.backoff.next()
        if isinstance(error, NotYet):
            return delay
        level = logging.WARNING if state.backoff.failures == 1 else logging.DEBUG
        logger.log(
            level,
            "mirror pod: will retry",
            extra={"static_pod": name, "error": str(error)},
            exc_info=not isinstance(error, ApiError),
        )
        return min(delay, LONGEST_WHILE_DOWN) if isinstance(error, ApiDown) else delay

    async def _make_equal(self, name: str) -> None:
        pod = self._table.by_full_name(name)
        if pod is None or not is_static(pod) or deletion_requested(pod):
            return
        found = self._api_pod(name_of(pod), namespace_of(pod))
        if found is not None and not is_mirror(found):
            logger.warning("a pod of the API has the name of a static pod", extra={"pod": readable(pod)})
            return
        if found is not None:
            if is_mirror_of(found, pod) and not deletion_requested(found):
                return
            logger.info("replacing the mirror pod", extra={"pod": readable(pod), "mirror": uid_of(found)})
            await self._delete(found)
        await self._create(pod)

    async def _create(self, pod: Pod) -> None:
        owner = self._node.owner(controller=True)
        if owner is None:
            raise NotYet("the Node is not known")
        try:
            await self._client.create(mirror_for(pod, owner))
        except ApiAlreadyExists:
            there = await self._read(pod)
            # The watch may be behind: what is there can be the right one already.
            if there is None or not is_mirror_of(there, pod):
                raise NotYet("another pod has the name") from None
        else:
            logger.info("mirror pod created", extra={"pod": readable(pod)})

    async def _read(self, pod: Pod) -> Pod | None:
        try:
            return await self._client.get(Pod, name_of(pod), namespace_of(pod))
        except ApiNotFound:
            return None

    async def _delete(self, mirror: Pod) -> None:
        try:
            await self._client.delete(Pod, name_of(mirror), namespace_of(mirror), grace_seconds=0, uid=uid_of(mirror))
        except (ApiNotFound, ApiConflict):
            return  # gone already, or another pod has the name by now
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
