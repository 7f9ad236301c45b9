"""A live copy of some objects of the API server.

`run()` keeps the copy current for as long as it runs; readers look at it without waiting. A listener hears of
every change: the full set or the single change, as it likes.

An object that cannot be read stays in its last version that could be; with no such version it is missing. Only that it
is being deleted, or was replaced by another of its name, is taken over at once. All this is told to the client's
`unreadable` until the object can be read again or is gone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Generic

from msgspec.structs import replace

from pykubelet.clients.kube.port import Change, ChangeType, K, KubeClient, Unreadable, UnreadableChange
from pykubelet.clients.kube.watch import Listed, Query, list_and_watch
from pykubelet.kit.clock import Clock

Key = tuple[str, str]
"""(namespace, name)"""


class Reflector(Generic[K]):
    def __init__(
        self,
        *,
        client: KubeClient,
        query: Query[K],
        clock: Clock,
        on_set: Callable[[Sequence[K]], None] | None = None,
        on_change: Callable[[Change[K]], None] | None = None,
        source: random.Random | None = None,
        rest: float = 0.0,
    ) -> None:
        """`on_set` gets the full set after every list and every change. `on_change` gets single changes; after a
        list it gets the differences to what was known, deletions too. `rest`: see `list_and_watch`."""
        self.name = f"reflector {query}"
        self._client = client
        self._query = query
        self._clock = clock
        self._on_set = on_set
        self._on_change = on_change
        self._source = source
        self._rest = rest
        self._store: dict[Key, K] = {}
        self._unreadable: dict[Key, Unreadable] = {}
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether the full set was seen at least once."""
        return self._synced.is_set()

    async def wait_synced(self, within: float | None = None) -> bool:
        try:
            async with asyncio.timeout(within):
                await self._synced.wait()
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
        async with aclosing(self.sets()) as sets:
            async for _ in sets:
                pass

    async def sets(self) -> AsyncGenerator[Sequence[K], None]:
        """The same as an iterator of full sets, instead of run()."""
        stream = list_and_watch(self._client, self._query, self._clock, source=self._source, rest=self._rest)
        try:
            async with aclosing(stream):
                async for item in stream:
                    if isinstance(item, Listed):
                        self._replace(item)
                    elif isinstance(item, UnreadableChange):
                        self._apply_unreadable(item)
                    else:
                        self._unreadable.pop(_key(item.object), None)
                        self._apply(item)
                    self._client.unreadable.hold(self, list(self._unreadable.values()))
                    yield self.all()
        finally:
            self._client.unreadable.hold(self, ())

    def _replace(self, listed: Listed[K]) -> None:
        before, self._store = self._store, {_key(obj): obj for obj in listed.items}
        self._unreadable = {(each.namespace, each.name): each for each in listed.unreadable}
        for key, unreadable in self._unreadable.items():
            known = before.get(key)
            if known is not None and _is_same(known, unreadable):
                self._store[key] = _with_deletion(known, unreadable)
        self._synced.set()
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
    """What changed between two lists; an object of another UID under the same name was deleted in between."""
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
