"""The objects of the fake API server: one counter of resource versions, a history for watches, selectors.

Objects are kept as their types and never changed in place. `compact()` forgets history as etcd does, after which old
watches and continue tokens are Expired.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pykubelet.api.types import ApiStruct
from pykubelet.clients.kube.patch import plain
from pykubelet.clients.kube.port import Change, ChangeType, resource_of
from pykubelet.model.errors import Expired

Key = tuple[type[ApiStruct], str, str]
"""(kind, namespace, name)"""
Obj = Any


@dataclass(frozen=True, slots=True)
class Selection:
    """What a list or watch asks for."""

    kind: type[ApiStruct]
    namespace: str = ""
    field_selector: str = ""
    label_selector: str = ""

    def takes(self, obj: Obj) -> bool:
        if self.namespace and obj.metadata.namespace != self.namespace:
            return False
        value = plain(obj)
        fields = all(_holds(_look(value, path), sign, want) for path, sign, want in _terms(self.field_selector))
        labels = obj.metadata.labels
        return fields and all(
            _label_holds(labels, name, sign, want) for name, sign, want in _terms(self.label_selector)
        )


def _terms(selector: str) -> Iterator[tuple[str, str, str]]:
    for term in filter(None, selector.split(",")):
        match = re.fullmatch(r"([^=!]+)(==|=|!=)?(.*)", term.strip())
        assert match is not None, f"selector {term} is not one the fake knows"
        yield match[1], match[2] or "", match[3]


def _holds(value: str, sign: str, want: str) -> bool:
    return value != want if sign == "!=" else value == want


def _label_holds(labels: dict[str, str], name: str, sign: str, want: str) -> bool:
    if not sign:
        return name in labels
    return labels.get(name) != want if sign == "!=" else labels.get(name) == want


def _look(value: Any, path: str) -> str:
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class _Moment:
    version: int
    before: Obj | None
    after: Obj | None
    kind: type[ApiStruct]


@dataclass(eq=False, slots=True)
class Watcher:
    """One open watch."""

    selection: Selection
    seen: int
    pending: list[Change[Any]] = field(default_factory=list)
    failure: BaseException | None = None
    ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, moment: _Moment) -> None:
        if moment.kind is not self.selection.kind or moment.version <= self.seen:
            return
        self.seen = moment.version
        was = moment.before is not None and self.selection.takes(moment.before)
        is_ = moment.after is not None and self.selection.takes(moment.after)
        if is_:
            self.pending.append(Change(ChangeType.MODIFIED if was else ChangeType.ADDED, moment.after))
        elif was:
            gone = moment.after if moment.after is not None else moment.before
            self.pending.append(Change(ChangeType.DELETED, _versioned(gone, moment.version)))
        self.news.set()

    def end(self, failure: BaseException | None = None) -> None:
        self.failure, self.ended = failure, True
        self.news.set()


class Store:
    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[Key, Obj] = {}
        self.watchers: set[Watcher] = set()
        self.listeners: list[Callable[[Obj | None, Obj | None], None]] = []
        self._history: list[_Moment] = []
        self._compacted = 0

    def put(self, kind: type[ApiStruct], obj: Obj) -> Obj:
        self.version += 1
        key = (kind, obj.metadata.namespace or "", obj.metadata.name or "")
        before = self.objects.get(key)
        obj = _versioned(obj, self.version)
        self.objects[key] = obj
        self._note(_Moment(self.version, before, obj, kind))
        return obj

    def remove(self, key: Key) -> Obj:
        self.version += 1
        before = self.objects.pop(key)
        self._note(_Moment(self.version, before, None, key[0]))
        return before

    def select(self, selection: Selection) -> Sequence[Obj]:
        found = [(key[1:], obj) for key, obj in self.objects.items() if key[0] is selection.kind]
        return [obj for _, obj in sorted(found, key=lambda pair: pair[0]) if selection.takes(obj)]

    def open_watch(self, selection: Selection, version: int) -> Watcher:
        if version and version < self._compacted:
            raise Expired(f"too old resource version: {version} ({self._compacted})", code=410, reason="Expired")
        watcher = Watcher(selection, version)
        if version == 0:
            watcher.pending = [Change(ChangeType.ADDED, obj) for obj in self.select(selection)]
            watcher.seen = self.version
            watcher.news.set()
        for moment in self._history:
            watcher.offer(moment)
        self.watchers.add(watcher)
        return watcher

    def check_token(self, version: int) -> None:
        if version < self._compacted:
            raise Expired("The provided continue parameter is too old", code=410, reason="Expired")

    def compact(self) -> None:
        """Forget everything before now."""
        self.version += 1
        self._history.clear()
        self._compacted = self.version

    def _note(self, moment: _Moment) -> None:
        self._history.append(moment)
        for watcher in self.watchers:
            watcher.offer(moment)
        for listener in self.listeners:
            listener(moment.before, moment.after)


def _versioned(obj: Obj, version: int) -> Obj:
    metadata = msgspec.structs.replace(obj.metadata, resource_version=str(version))
    return msgspec.structs.replace(obj, metadata=metadata)


def kind_name(kind: type[ApiStruct]) -> str:
    return resource_of(kind).plural
