"""Decoding answers of the API server object by object, without holding the loop for long.

An object that cannot be decoded becomes an `Unreadable`: lists and watches leave it out and go on, it is counted,
logged once and known for as long as it stays so. A copy keeps the last version of it that could be decoded, except that
a deletion is always taken over (reflector.py). Large answers are decoded in a thread, in steps of one object: a list
may be of any size, and users may store large odd objects.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from pykubelet.api.codec import ManifestError
from pykubelet.api.stored import decode_stored, loose_metadata, split_list, without_depths
from pykubelet.api.types import ListMeta, Status
from pykubelet.clients.kube.port import (
    RESOURCES,
    Change,
    ChangeType,
    K,
    Page,
    Unreadable,
    UnreadableChange,
    resource_of,
)
from pykubelet.clients.kube.transport import error_of_status
from pykubelet.kit.host_calls import HostCallStuck, host_calls
from pykubelet.kit.limits import Once
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import ApiServerError

LARGE = 128 * 1024
"""Bytes from which on an answer is read in the thread; the loop reads some 100 KB a millisecond, odd ones a tenth."""
READ_WITHIN = 300.0
LONGEST_REASON = 300

T = TypeVar("T")


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _RawList(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


_FRAMES = msgspec.json.Decoder(_Frame)
_LISTS = msgspec.json.Decoder(_RawList)


async def object_of(kind: type[K], data: bytes) -> K | Unreadable:
    return await _read(len(data), lambda: read_object(kind, data))


async def page_of(kind: type[K], data: bytes) -> Page[K]:
    return await _read(len(data), lambda: read_page(kind, data))


async def change_of(kind: type[K], line: bytes) -> Change[K] | UnreadableChange | None:
    return await _read(len(line), lambda: read_change(kind, line))


async def _read(size: int, work: Callable[[], T]) -> T:
    """Decode small answers on the loop, large ones in a thread."""
    if size < LARGE:
        return work()
    try:
        return await host_calls.run(work, name="reading an answer of the API server", within=READ_WITHIN)
    except HostCallStuck as error:
        raise ApiServerError(str(error)) from error


def read_object(kind: type[K], data: bytes) -> K | Unreadable:
    try:
        return decode_stored(kind, data)
    except ManifestError as error:
        return _unreadable(kind, data, str(error))


def read_page(kind: type[K], data: bytes) -> Page[K]:
    try:
        try:
            metadata, items = _parts(data)
        except RecursionError:
            metadata, items = _parts(without_depths(data))
    except (ValueError, msgspec.DecodeError) as error:
        raise ApiServerError(f"list of {resource_of(kind).plural}: {error}") from None
    page = _Sorted(kind)
    for item in items:
        page.take(bytes(item))
    return Page(
        items=page.items,
        unreadable=page.unreadable,
        resource_version=metadata.resource_version or "",
        continue_token=metadata.continue_ or "",
    )


def read_change(kind: type[K], line: bytes) -> Change[K] | UnreadableChange | None:
    """One event of a watch; None for one of a type that is not known."""
    try:
        try:
            frame = _FRAMES.decode(line)
        except RecursionError:
            frame = _FRAMES.decode(without_depths(line))
        body = bytes(frame.object)
        if frame.type == "ERROR":
            raise error_of_status(decode_stored(Status, body))
    except (msgspec.DecodeError, ManifestError) as error:
        raise ApiServerError(f"watch event of {kind.__name__}: {error}") from None
    if frame.type not in ChangeType.__members__:
        return None
    type_, found = ChangeType(frame.type), read_object(kind, body)
    return UnreadableChange(type_, found) if isinstance(found, Unreadable) else Change(type_, found)


class _Sorted(Generic[K]):
    """The objects of a list: those that can be read, and the others."""

    def __init__(self, kind: type[K]) -> None:
        self._kind = kind
        self.items: list[K] = []
        self.unreadable: list[Unreadable] = []

    def take(self, data: bytes) -> None:
        found = read_object(self._kind, data)
        if isinstance(found, Unreadable):
            self.unreadable.append(found)
        else:
            self.items.append(found)


def _parts(data: bytes) -> tuple[ListMeta, list[bytes] | list[msgspec.Raw]]:
    if len(data) < LARGE:
        found = _LISTS.decode(data)
        return found.metadata, found.items or []
    metadata, items = ListMeta(), []
    for key, part in split_list(data):
        if key == "items":
            items.append(part)
        else:
            metadata = decode_stored(ListMeta, part)
    return metadata, items


def _unreadable(kind: type[K], data: bytes, why: str) -> Unreadable:
    metadata, resource = loose_metadata(data), RESOURCES.get(kind)

    def text(key: str) -> str:
        value = metadata.get(key)
        return value[:LONGEST_REASON] if isinstance(value, str) else ""

    grace = metadata.get("deletionGracePeriodSeconds")
    return Unreadable(
        kind=kind.__name__,
        resource=resource.plural if resource is not None else kind.__name__.lower(),
        name=text("name"),
        namespace=text("namespace"),
        uid=text("uid"),
        resource_version=text("resourceVersion"),
        deletion_timestamp=metadata.get("deletionTimestamp"),
        deletion_grace=grace if isinstance(grace, int) else None,
        why=why[:LONGEST_REASON],
    )


logger = logging.getLogger(__name__)


class UnreadableObjects:
    def __init__(self, metrics: Registry | None = None) -> None:
        self._total = (metrics or Registry()).counter(
            "pykubelet_unreadable_objects_total",
            "Objects from the API server that could not be read and were left out, by resource.",
            ("resource",),
        )
        self._logged: Once[tuple[str, ...]] = Once()
        self._held: dict[object, Sequence[Unreadable]] = {}
        self._listeners: list[Callable[[Unreadable], None]] = []

    def listen(self, listener: Callable[[Unreadable], None]) -> None:
        """Tell `listener` of an object when it is first found to be unreadable for a reason."""
        self._listeners.append(listener)

    def count(self, found: Unreadable) -> None:
        """Count one; the same one again is not logged again."""
        self._total.inc(found.resource)
        key = (found.resource, found.namespace, found.name, found.uid, found.why)
        if not self._logged.is_new(key):
            return
        logger.warning(
            "object from the API server cannot be read and is left out",
            extra={"object": found.shown, "uid": found.uid, "problem": found.why},
        )
        for listener in self._listeners:
            listener(found)

    def hold(self, owner: object, found: Sequence[Unreadable]) -> None:
        """Set the objects that are missing or old in the copy of `owner`."""
        if found:
            self._held[owner] = tuple(found)
        else:
            self._held.pop(owner, None)

    def now(self) -> list[Unreadable]:
        """Every object that some copy lacks, or has only in an older version."""
        return [each for found in self._held.values() for each in found]
