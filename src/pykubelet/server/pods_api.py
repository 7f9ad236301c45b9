"""The Pods service on its local socket (gate PodsAPI): pods with their newest status, listed, by UID, as they change.

Pods are sent as Kubernetes' own protobuf messages. What a watch says fits together: a pod is ADDED once, then MODIFIED,
then DELETED with only its names, and comes again only in another life. Watchers are strangers: their number, the events
that wait for a slow one and the time it may take for one are bounded. Does not cover: the socket (local_grpc.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pykubelet.api.types import ObjectMeta, Pod, PodStatus
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.pod import uid_of
from pykubelet.pods.record import WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.server.local_grpc import CallLimit, abort, handlers, serve
from pykubelet.wire import pods_v1alpha1_pb2 as v1alpha1
from pykubelet.wire.pods_v1alpha1_pb2 import ADDED, DELETED, INITIAL_SYNC_COMPLETE, MODIFIED

MAX_WATCHERS = 100
MAX_WAITING = 100
"""Events that wait for a watcher before it is given up."""
SEND_WITHIN = 30.0
"""Seconds in which a watcher must have taken an event."""
END_WITHIN = 1.0


class TooSlow(Exception):
    """A watcher did not keep up."""


class Sent:
    """A pod as it is sent: encoded once, when it is first needed."""

    def __init__(self, pod: Pod, status: PodStatus | None = None) -> None:
        self.uid: str = uid_of(pod)
        self._pod = pod
        self._status = status

    def is_of(self, pod: Pod, status: PodStatus | None) -> bool:
        return self._pod is pod and self._status is status

    @property
    def meta(self) -> ObjectMeta:
        return self._pod.metadata

    @functools.cached_property
    def content(self) -> bytes:
        """Raises ValueError for a pod that cannot be encoded."""
        # Its messages cost 5 ms and 200 KiB, which nodes with the gate off do not pay.
        from pykubelet.api.protobuf import pod_bytes

        return pod_bytes(self._pod if self._status is None else replace(self._pod, status=self._status))


def names_only(meta: ObjectMeta) -> Pod:
    """All that watchers hear of a pod that is gone."""
    return Pod(metadata=ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid))


class Watcher:
    """One watch: the pods it knows of, and the events that wait to be sent."""

    def __init__(self, first: Iterable[Sent]) -> None:
        self.first = deque(first)
        self._known = {each.uid: names_only(each.meta) for each in self.first}
        self._waiting: deque[tuple[v1alpha1.EventType, Sent]] = deque()
        self._wakeup = Wakeup()
        self._is_too_slow = False

    @property
    def known(self) -> list[str]:
        return list(self._known)

    def changed(self, sent: Sent) -> None:
        if sent.uid in self._known:
            self._add(MODIFIED, sent)
        else:
            self._known[sent.uid] = names_only(sent.meta)
            self._add(ADDED, sent)

    def gone(self, uid: str) -> None:
        pod = self._known.pop(uid, None)
        if pod is not None:
            self._add(DELETED, Sent(pod))

    def _add(self, kind: v1alpha1.EventType, sent: Sent) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._is_too_slow = True
            self._waiting.clear()
        elif not self._is_too_slow:
            self._waiting.append((kind, sent))
        self._wakeup.set()

    async def next(self) -> tuple[v1alpha1.EventType, Sent]:
        while not self._waiting:
            if self._is_too_slow:
                raise TooSlow
            await self._wakeup.wait()
        return self._waiting.popleft()


class PodFeed:
    """The pods of the table with their newest status, and the watchers that hear of their changes."""

    def __init__(self, table: PodTable) -> None:
        self._table = table
        self._watchers: list[Watcher] = []
        self._encoded: dict[str, Sent] = {}
        """The last of each pod: asking again and again costs little."""

    def pods(self) -> list[Sent]:
        return sorted((self._sent(pod) for pod in self._table.pods()), key=lambda sent: sent.uid)

    def pod(self, uid: str) -> Sent | None:
        pod = self._table.pod(uid)
        return self._sent(pod) if pod is not None else None

    def _sent(self, pod: Pod) -> Sent:
        uid, status = uid_of(pod), self._table.reported_status(uid_of(pod))
        if status is not None and status.phase is None:
            status = None  # another life of the pod has only just begun
        sent = self._encoded.get(uid)
        if sent is None or not sent.is_of(pod, status):
            sent = self._encoded[uid] = Sent(pod, status)
        return sent

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def open(self) -> Watcher | None:
        """A watcher that begins with all pods there are; None while there are too many watchers."""
        if len(self._watchers) >= MAX_WATCHERS:
            return None
        watcher = Watcher(self.pods())
        self._watchers.append(watcher)
        return watcher

    def close(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)

    def changed(self, uid: str) -> None:
        """The pod has a new status, or its source changed it. A pod is not shown before its first status."""
        reported = self._table.reported(uid) if self._watchers else None
        if reported is None or reported.status.phase is None:
            return
        if reported.finished:
            for watcher in self._watchers:
                watcher.gone(uid)
            return
        sent = self._sent(self._table.pod(uid) or reported.pod)
        for watcher in self._watchers:
            watcher.changed(sent)

    def drop_gone(self) -> None:
        """Report pods that left their source and have nothing to end: refused ones, those that ended before."""
        for uid in [uid for uid in self._encoded if self._is_gone(uid)]:
            del self._encoded[uid]
        for watcher in self._watchers:
            for uid in watcher.known:
                if self._is_gone(uid):
                    watcher.gone(uid)

    def _is_gone(self, uid: str) -> bool:
        worker = self._table.worker(uid)
        return not self._table.is_desired(uid) and (worker is None or worker.state is WorkerState.FINISHED)


class PodsServer:
    """The service on its socket, for as long as it runs."""

    name = "pods-api"

    def __init__(self, *, socket: Path, feed: PodFeed, clock: Clock, metrics: Registry) -> None:
        self._socket = socket
        self._feed = feed
        self._limit = CallLimit(clock)
        self._dropped = metrics.counter(
            "kubelet_pod_watch_events_dropped_total", "Watchers of the Pods service that were too slow", ()
        )

    async def run(self) -> None:
        unary = {"ListPods": (self._list, v1alpha1.ListPodsRequest), "GetPod": (self._get, v1alpha1.GetPodRequest)}
        streams = {"WatchPods": (self._watch, v1alpha1.WatchPodsRequest)}
        await serve(self._socket, "pods", [handlers("v1alpha1.Pods", unary, streams)])

    async def _list(self, request: Any, context: Any) -> v1alpha1.ListPodsResponse:
        await self._limit.check(context)
        return v1alpha1.ListPodsResponse(pods=[await _content(each, context) for each in self._feed.pods()])

    async def _get(self, request: v1alpha1.GetPodRequest, context: Any) -> v1alpha1.GetPodResponse:
        await self._limit.check(context)
        sent = self._feed.pod(request.podUID)
        if sent is None:
            await abort(context, "NOT_FOUND", f"pod with UID {request.podUID} not found")
        return v1alpha1.GetPodResponse(pod=await _content(sent, context))

    async def _watch(self, request: Any, context: Any) -> None:
        await self._limit.check(context)
        watcher = self._feed.open()
        if watcher is None:
            await abort(context, "RESOURCE_EXHAUSTED", f"there are {MAX_WATCHERS} watchers already")
        try:
            while watcher.first:
                await _send(context, ADDED, watcher.first.popleft())
            await _send(context, INITIAL_SYNC_COMPLETE, None)
            while True:
                await _send(context, *await watcher.next())
        except TooSlow:
            self._dropped.inc()
        finally:
            self._feed.close(watcher)
        # Who takes no events does not take this either: gRPC keeps it until the reader reads or leaves.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_WITHIN):
                await abort(context, "RESOURCE_EXHAUSTED", "watch client channel closed")


async def _send(context: Any, kind: v1alpha1.EventType, sent: Sent | None) -> None:
    content = await _content(sent, context) if sent is not None else None
    try:
        async with asyncio.timeout(SEND_WITHIN):
            await context.write(v1alpha1.WatchPodsEvent(type=kind, pod=content))
    except TimeoutError:
        raise TooSlow from None


async def _content(sent: Sent, context: Any) -> bytes:
    try:
        return sent.content
    except ValueError as error:
        await abort(context, "INTERNAL", f"failed to marshal pod: {error}")
