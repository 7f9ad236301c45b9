"""List and watch as one endless stream that recovers by itself, and a live copy of the objects made from it.

The first item of the stream, and every item after an interruption that lost events (410), is the full set; in between
come single changes. The set is the beginning of the watch where the server has that (WatchListClient): one request
instead of two, and the server need not put a whole list together. Else, and when a watch ends before it gave the whole
set, it is listed. Failures are logged and retried with growing delays: up to 30 s for refusals, up to 4 s while the
server cannot be reached at all, since then waiting longer only delays the node's return.

`Reflector.run()` keeps the copy current for as long as it runs; readers look at it without waiting. An object that
cannot be decoded stays in its last version that could be; with no such version it is missing. Only that it is being
deleted, or was replaced by another of its name, is taken over at once. Such objects are reported to the client's
`unreadable` until they can be decoded again or are gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Generic

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.clients.kube.port import (
    Change,
    ChangeType,
    K,
    KubeClient,
    Unreadable,
    UnreadableChange,
    resource_of,
)
from pykubelet.kit.backoff import Backoff, jittered
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import Closing
from pykubelet.model.errors import ApiDown, ApiError, ApiNotFound, Expired, Forbidden, TooManyRequests, Unauthorized

logger = logging.getLogger(__name__)

PAGE_SIZE = 500
FIRST_DELAY, LONGEST_DELAY, LONGEST_WHILE_DOWN = 0.8, 30.0, 4.0
QUICK_DELAYS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""After a Forbidden: the server learns from the pod, as we just did, which objects a node may read."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark behind the last object of the full set."""
SET_SILENCE = 30.0
"""Seconds without an event, from when the request was sent, before a watch is not waited for any longer to say that
the full set is there."""
WATCH_MIN, WATCH_MAX = 300.0, 600.0
"""A watch lasts a random time between these, so that a cluster's watches do not all end together."""


class Query(Struct, Generic[K], frozen=True, kw_only=True):
    """The objects to list and watch."""

    kind: type[K]
    namespace: str = ""
    field_selector: str = ""
    label_selector: str = ""
    one_of_many: bool = False
    """There may be hundreds like it: that the server cannot be reached is for others to tell."""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        which = "".join(f" with {text}" for text in (self.field_selector, self.label_selector) if text)
        return f"{resource_of(self.kind).plural}{where}{which}"


class Listed(Struct, Generic[K], frozen=True, kw_only=True):
    """The full set at one moment."""

    items: Sequence[K]
    unreadable: Sequence[Unreadable] = ()
    """Those of the set that cannot be read."""
    resource_version: str


async def list_all(client: KubeClient, query: Query[K], *, resource_version: str = "") -> Listed[K]:
    """All pages. A token that expires half-way starts over without pages, so that the set is of one moment."""
    try:
        return await _pages(client, query, resource_version)
    except Expired:
        page = await client.list(
            query.kind,
            query.namespace,
            field_selector=query.field_selector,
            label_selector=query.label_selector,
        )
        return Listed(items=page.items, unreadable=page.unreadable, resource_version=page.resource_version)


async def _pages(client: KubeClient, query: Query[K], resource_version: str) -> Listed[K]:
    items: list[K] = []
    unreadable: list[Unreadable] = []
    token = ""
    while True:
        page = await client.list(
            query.kind,
            query.namespace,
            field_selector=query.field_selector,
            label_selector=query.label_selector,
            resource_version="" if token else resource_version,
            limit=PAGE_SIZE,
            continue_token=token,
        )
        items += page.items
        unreadable += page.unreadable
        token = page.continue_token
        if not token:
            return Listed(items=items, unreadable=unreadable, resource_version=page.resource_version)


async def list_and_watch(
    client: KubeClient, query: Query[K], clock: Clock, *, source: random.Random | None = None
) -> AsyncGenerator[Listed[K] | Change[K] | UnreadableChange, None]:
    """The full set, then every change, for ever. Bookmarks are not passed on."""
    backoff = Backoff(initial=FIRST_DELAY, maximum=LONGEST_DELAY)
    version: str | None = None
    # At first any recent state will do and spares the server's store; after lost events only the newest will.
    wanted = "0"
    expired = plain = False
    while True:
        try:
            streamed = version is None and not plain and client.watch_lists.usable(clock.monotonic())
            plain = False
            if version is None and not streamed:
                listed = await list_all(client, query, resource_version=wanted)
                version = listed.resource_version
                yield listed
                del listed
            silence = _Silence() if streamed else None
            changes = _watch(client, query, wanted if version is None else version, silence, source)
            started = clock.monotonic()
            async with Closing(changes):
                if silence is not None:
                    listed = await _first_set(changes, silence)
                    silence = None
                    version = listed.resource_version
                    backoff.reset()
                    yield listed
                    del listed
                async for change in changes:
                    backoff.reset()
                    version = _version(change) or version
                    if change.type is not ChangeType.BOOKMARK:
                        yield change
            if clock.monotonic() - started < 1.0:
                await clock.sleep(
                    jittered(FIRST_DELAY, 1.0, source)
                )  # a server that hangs up at once must not be hammered
        except Expired as error:
            logger.info("watch is too old, listing again", extra={"what": str(query), "reason": str(error)})
            version, wanted = None, ""
            if expired:
                await clock.sleep(_delay(backoff, error, source))
            else:
                # The server answers: what an outage before it cost must not delay the list.
                backoff.reset()
            expired = True
            continue
        except ApiError as error:
            if version is None and streamed and not isinstance(error, ApiDown | TooManyRequests):
                plain = True
                if _asks_for_list(client, query, error, clock):
                    continue
            if _is_worth_logging(query, error, backoff.failures):
                logger.warning("list and watch failed, trying again", extra={"what": str(query), "error": str(error)})
            await clock.sleep(_delay(backoff, error, source))
        expired = False


def _watch(
    client: KubeClient, query: Query[K], version: str, silence: _Silence | None, source: random.Random | None
) -> AsyncGenerator[Change[K] | UnreadableChange, None]:
    return client.watch(
        query.kind,
        query.namespace,
        field_selector=query.field_selector,
        label_selector=query.label_selector,
        resource_version=version,
        initial_events=silence is not None,
        timeout=(source or random).uniform(WATCH_MIN, WATCH_MAX),
        sent=silence.sent if silence is not None else None,
    )


class _Silence:
    """How long a server may say nothing before the full set is there; not while we wait to ask it."""

    def __init__(self) -> None:
        self._is_sent = False
        self._scope = asyncio.timeout(None)

    def sent(self, is_sent: bool) -> None:
        self._is_sent = is_sent
        self._scope.reschedule(self._until())

    def scope(self) -> asyncio.Timeout:
        self._scope = asyncio.timeout_at(self._until())
        return self._scope

    def _until(self) -> float | None:
        return asyncio.get_running_loop().time() + SET_SILENCE if self._is_sent else None


class _NoSet(ApiError):
    """A watch ended before it gave the full set."""


class _NoEnd(ApiError):
    """A watch never said that the full set is there."""


async def _first_set(changes: AsyncGenerator[Change[K] | UnreadableChange, None], silence: _Silence) -> Listed[K]:
    """What a watch begins with, as soon as it says that this is all."""
    items: dict[Key, K] = {}
    unreadable: dict[Key, Unreadable] = {}
    while True:
        try:
            async with silence.scope():
                change = await anext(changes)
        except StopAsyncIteration:
            raise _NoSet("the watch ended before the full set was there") from None
        except TimeoutError:
            raise _NoEnd(f"no end of the full set after {SET_SILENCE:g} s of silence") from None
        if isinstance(change, UnreadableChange):
            key = (change.object.namespace, change.object.name)
            items.pop(key, None)
            unreadable[key] = change.object
        elif change.type is ChangeType.BOOKMARK:
            if _ends_set(change.object):
                break
            continue
        else:
            key = _key(change.object)
            unreadable.pop(key, None)
            items[key] = change.object
        if change.type is ChangeType.DELETED:
            items.pop(key, None)
            unreadable.pop(key, None)
    version = _version(change)
    if not version:
        raise _NoEnd("the end of the full set has no version")
    return Listed(items=list(items.values()), unreadable=list(unreadable.values()), resource_version=version)


def _ends_set(bookmark: Any) -> bool:
    return bool(bookmark.metadata.annotations.get(INITIAL_EVENTS_END) == "true")


def _asks_for_list(client: KubeClient, query: Query[Any], error: ApiError, clock: Clock) -> bool:
    """Whether a watch that gave no full set is to be followed by a list at once."""
    if isinstance(error, ApiNotFound | Forbidden | Unauthorized):
        return False  # so will the list be
    if not isinstance(error, _NoSet):
        # Servers that cannot do it say so in many ways: 422, an ERROR event with 500 because of an old etcd, nothing.
        client.watch_lists.refused(clock.monotonic())
    logger.info("watch without the full set, listing", extra={"what": str(query), "reason": str(error)})
    return True


def _is_worth_logging(query: Query[Any], error: ApiError, failures: int) -> bool:
    if isinstance(error, Forbidden):
        return failures >= len(QUICK_DELAYS)  # before that it is only early
    return not isinstance(error, ApiDown) or (failures in (0, 3) and not query.one_of_many)


def _delay(backoff: Backoff, error: ApiError, source: random.Random | None) -> float:
    failures, delay = backoff.failures, backoff.next()
    if isinstance(error, Forbidden) and failures < len(QUICK_DELAYS):
        return QUICK_DELAYS[failures]
    if isinstance(error, ApiDown):
        return jittered(min(delay, LONGEST_WHILE_DOWN), 0.5, source)
    return max(error.retry_after or 0.0, jittered(delay, 1.0, source))


def _version(change: Change[Any] | UnreadableChange) -> str:
    """The version after a change; also of an unreadable object, or the same event would come again and again."""
    if isinstance(change, UnreadableChange):
        return change.object.resource_version
    return change.object.metadata.resource_version or ""


Key = tuple[str, str]
"""(namespace, name)"""


class Reflector(Generic[K]):
    __slots__ = (
        *("_client", "_clock", "_on_change", "_on_set", "_query", "_source", "_store", "_synced"),
        *("_unreadable", "_waiting", "name"),
    )

    def __init__(
        self,
        *,
        client: KubeClient,
        query: Query[K],
        clock: Clock,
        on_set: Callable[[Sequence[K]], None] | None = None,
        on_change: Callable[[Change[K]], None] | None = None,
        source: random.Random | None = None,
    ) -> None:
        """`on_set` gets the full set after every list and every change. `on_change` gets single changes; after a
        list it gets the differences to what was known, deletions too."""
        self.name = f"reflector {query}"
        self._client = client
        self._query = query
        self._clock = clock
        self._on_set = on_set
        self._on_change = on_change
        self._source = source
        self._store: dict[Key, K] = {}
        self._unreadable: dict[Key, Unreadable] = {}
        self._synced = False
        self._waiting: asyncio.Event | None = None
        """Made when it is waited for: a node has hundreds of these, and few are."""

    @property
    def synced(self) -> bool:
        """Whether the full set was received at least once."""
        return self._synced

    async def wait_synced(self, within: float | None = None) -> bool:
        if self._synced:
            return True
        if self._waiting is None:
            self._waiting = asyncio.Event()
        try:
            async with asyncio.timeout(within):
                await self._waiting.wait()
        except TimeoutError:
            return False
        return True

    def get(self, name: str, namespace: str = "") -> K | None:
        return self._store.get((namespace, name))

    def all(self) -> Sequence[K]:
        return list(self._store.values())

    @property
    def store(self) -> Mapping[Key, K]:
        return self._store

    async def run(self) -> None:
        stream = self._stream()
        try:
            async with Closing(stream):
                async for item in stream:
                    self._take(item)
                    del item  # the stream is silent for most of its life
        finally:
            self._client.unreadable.hold(self, ())

    async def sets(self) -> AsyncGenerator[Sequence[K], None]:
        """The same as an iterator of full sets, instead of run()."""
        stream = self._stream()
        try:
            async with Closing(stream):
                async for item in stream:
                    self._take(item)
                    yield self.all()
        finally:
            self._client.unreadable.hold(self, ())

    def _stream(self) -> AsyncGenerator[Listed[K] | Change[K] | UnreadableChange, None]:
        return list_and_watch(self._client, self._query, self._clock, source=self._source)

    def _take(self, item: Listed[K] | Change[K] | UnreadableChange) -> None:
        if isinstance(item, Listed):
            self._replace(item)
        elif isinstance(item, UnreadableChange):
            self._apply_unreadable(item)
        else:
            self._unreadable.pop(_key(item.object), None)
            self._apply(item)
        self._client.unreadable.hold(self, list(self._unreadable.values()))

    def _replace(self, listed: Listed[K]) -> None:
        before, self._store = self._store, {_key(obj): obj for obj in listed.items}
        self._unreadable = {(each.namespace, each.name): each for each in listed.unreadable}
        for key, unreadable in self._unreadable.items():
            known = before.get(key)
            if known is not None and _is_same(known, unreadable):
                self._store[key] = _with_deletion(known, unreadable)
        self._synced = True
        if self._waiting is not None:
            self._waiting.set()
            self._waiting = None
        if self._on_change is not None:
            for change in _differences(before, self._store):
                self._on_change(change)
        if self._on_set is not None:
            self._on_set(self.all())

    def _apply_unreadable(self, change: UnreadableChange) -> None:
        unreadable = change.object
        key = (unreadable.namespace, unreadable.name)
        known = self._store.get(key)
        if change.type is ChangeType.DELETED:
            self._unreadable.pop(key, None)
        else:
            self._unreadable[key] = unreadable
        if known is None:
            return
        if change.type is ChangeType.DELETED or not _is_same(known, unreadable):
            self._apply(Change(ChangeType.DELETED, known))
        elif (ending := _with_deletion(known, unreadable)) is not known:
            self._apply(Change(ChangeType.MODIFIED, ending))

    def _apply(self, change: Change[K]) -> None:
        if change.type is ChangeType.DELETED:
            self._store.pop(_key(change.object), None)
        else:
            self._store[_key(change.object)] = change.object
        if self._on_change is not None:
            self._on_change(change)
        if self._on_set is not None:
            self._on_set(self.all())


def _key(obj: Any) -> Key:
    return obj.metadata.namespace or "", obj.metadata.name or ""


def _differences(before: Mapping[Key, K], after: Mapping[Key, K]) -> list[Change[K]]:
    """Changes between two lists; an object of another UID under the same name was deleted in between."""
    changes: list[Change[K]] = []
    for key, old in before.items():
        new = after.get(key)
        if new is None or _identity(new)[0] != _identity(old)[0]:
            changes.append(Change(ChangeType.DELETED, old))
    for key, new in after.items():
        known = before.get(key)
        if known is None or _identity(known)[0] != _identity(new)[0]:
            changes.append(Change(ChangeType.ADDED, new))
        elif _identity(known) != _identity(new):
            changes.append(Change(ChangeType.MODIFIED, new))
    return changes


def _identity(obj: Any) -> tuple[str | None, str | None]:
    return obj.metadata.uid, obj.metadata.resource_version


def _is_same(known: Any, unreadable: Unreadable) -> bool:
    return not unreadable.uid or known.metadata.uid == unreadable.uid


def _with_deletion(known: K, unreadable: Unreadable) -> K:
    """The last version that could be read, ending if the one that cannot be read is."""
    metadata: Any = known.metadata  # type: ignore[attr-defined]
    if unreadable.deletion_timestamp is None or (
        metadata.deletion_timestamp == unreadable.deletion_timestamp
        and metadata.deletion_grace_period_seconds == unreadable.deletion_grace
    ):
        return known
    ending = replace(
        metadata,
        deletion_timestamp=unreadable.deletion_timestamp,
        deletion_grace_period_seconds=unreadable.deletion_grace,
        resource_version=unreadable.resource_version,
    )
    return replace(known, metadata=ending)
