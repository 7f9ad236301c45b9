"""Merge of full pod sets, one per source, into what changed: add, update, remove, delete, reconcile.

A source hands over its complete set with `deliver`; the sync loop takes the changes with `next_changes`.
Only the newest set of each source is kept until then, and which pods were missing in a set before it, so memory
is bounded, no source ever waits for the loop and nothing is lost. Also keeps which sources are ready. Does not
cover where sets come from (static.py, remote.py) nor what a change causes (sync/loop.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from pykubelet.api.times import format_nano_time
from pykubelet.api.types import Pod
from pykubelet.kit.clock import Clock
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import (
    MIRROR_ANNOTATION,
    SEEN_ANNOTATION,
    SOURCE_ANNOTATION,
    Operation,
    PodsChanged,
    PodUID,
    Source,
    full_name,
    log_form,
    name_of,
    readable,
    uid_of,
)
from pykubelet.model.reasons import WARNING

logger = logging.getLogger(__name__)

FAILED_VALIDATION = "FailedValidation"

LOCAL_ANNOTATIONS = frozenset((SOURCE_ANNOTATION, MIRROR_ANNOTATION, SEEN_ANNOTATION))
"""Annotations of this agent's own: never compared, and kept when a pod changes."""


Deliver = Callable[[Source, Sequence[Pod]], None]
"""Takes the complete set of pods of one source."""


class _Known(Struct):
    """A pod of a source: the pod passed on, and the very object it was made from."""

    pod: Pod
    delivered: Pod


class SourceSnapshot(Struct, frozen=True, kw_only=True):
    source: Source
    pods: int
    seen: bool
    ready: bool
    pending: bool


class PodMux:
    def __init__(
        self,
        *,
        sources: Iterable[Source],
        events: EventRecorder,
        clock: Clock,
        filtered: Callable[[Pod], Pod] | None = None,
    ) -> None:
        """`filtered` removes from each pod the fields this node ignores."""
        self._sources = frozenset(sources)
        self._filtered = filtered
        self._events = events
        self._clock = clock
        self._known: dict[Source, dict[PodUID, _Known]] = {}
        self._pending: dict[Source, tuple[Pod, ...]] = {}
        self._missed: dict[Source, set[PodUID]] = {}
        """Known pods missing from a set that was not taken yet: they ended, even if a later set has them again."""
        self._filled = asyncio.Event()
        self._ready: set[Source] = set()
        self._refused: dict[Source, frozenset[tuple[str, str]]] = {}

    # -- sources

    def deliver(self, source: Source, pods: Sequence[Pod]) -> None:
        """Hand over the complete set of pods of one source. Never waits; the newest set wins."""
        if source not in self._sources:
            raise ValueError(f"source {source.value} is not configured")
        self._pending[source] = tuple(pods if self._filtered is None else map(self._filtered, pods))
        there = {uid_of(pod) for pod in pods}
        gone = {uid for uid in self._known.get(source, ()) if uid not in there}
        if gone:
            self._missed.setdefault(source, set()).update(gone)
        self._filled.set()

    # -- the sync loop

    async def next_changes(self) -> list[PodsChanged]:
        """Wait for a delivery, then return what changed; may be empty when a set held no change."""
        await self._filled.wait()
        return self.take_nowait()

    def take_nowait(self) -> list[PodsChanged]:
        """What changed since the last call, in delivery order of the sources."""
        pending, self._pending = self._pending, {}
        self._filled.clear()
        return [change for source, pods in pending.items() for change in self._merge(source, pods)]

    def mark_ready(self, source: Source) -> None:
        """The loop has handled a change of this source: its pods are known from here on."""
        self._ready.add(source)

    # -- any reader

    def seen(self, source: Source) -> bool:
        """Whether the source's first set has been merged."""
        return source in self._known

    def all_ready(self) -> bool:
        """Every configured source has delivered and was handled. Before that nothing may be cleaned up."""
        return all(source in self._ready and source in self._known for source in self._sources)

    def snapshot(self) -> tuple[SourceSnapshot, ...]:
        return tuple(
            SourceSnapshot(
                source=source,
                pods=len(self._known.get(source, ())),
                seen=self.seen(source),
                ready=source in self._ready,
                pending=source in self._pending,
            )
            for source in sorted(self._sources, key=lambda each: each.value)
        )

    # -- merge

    def _merge(self, source: Source, delivered: Sequence[Pod]) -> list[PodsChanged]:
        first = source not in self._known
        before = self._known.get(source, {})
        missed = self._missed.pop(source, set())
        after: dict[PodUID, _Known] = {}
        found: dict[Operation, list[Pod]] = {op: [] for op in Operation}
        for pod in self._without_duplicates(source, delivered):
            uid = uid_of(pod)
            known = before.get(uid) if uid not in missed else None
            if known is None:
                fresh = self._adopt(source, pod)
                after[uid] = _Known(fresh, pod)
                found[Operation.ADD].append(fresh)
                continue
            after[uid] = known
            op = _renew(known, pod)
            if op is not None:
                found[op].append(known.pod)
        found[Operation.REMOVE] = [known.pod for uid, known in before.items() if uid not in after or uid in missed]
        self._known[source] = after
        return _emission(source, found, first)

    def _adopt(self, source: Source, pod: Pod) -> Pod:
        annotations = {
            **pod.metadata.annotations,
            SOURCE_ANNOTATION: source.value,
            SEEN_ANNOTATION: format_nano_time(self._clock.now_ns(), fixed=True),
        }
        metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
        return msgspec.structs.replace(pod, metadata=metadata)

    def _without_duplicates(self, source: Source, pods: Sequence[Pod]) -> list[Pod]:
        """Names and UIDs are unique within a source; the first pod of a set wins."""
        names: set[str] = set()
        uids: set[PodUID] = set()
        kept: list[Pod] = []
        refused: set[tuple[str, str]] = set()
        for pod in pods:
            name, uid = full_name(pod), uid_of(pod)
            if name not in names and uid not in uids:
                names.add(name)
                uids.add(uid)
                kept.append(pod)
                continue
            mark = (name, uid)
            refused.add(mark)
            # A set is delivered again and again; one line and one event per duplicate are enough.
            if mark not in self._refused.get(source, frozenset()):
                self._refuse(source, pod, "pod name" if name in names else "pod UID")
        self._refused[source] = frozenset(refused)
        return kept

    def _refuse(self, source: Source, pod: Pod, what: str) -> None:
        shown = name_of(pod) if what == "pod name" else uid_of(pod)
        message = (
            f'Error validating pod {log_form(pod)} from {source.value} due to duplicate {what} "{shown}", ignoring'
        )
        logger.warning(
            "pod ignored: the source has another one of the same name or UID",
            extra={"pod": readable(pod), "uid": uid_of(pod), "source": source.value, "duplicate": what},
        )
        self._events.pod_event(pod, WARNING, FAILED_VALIDATION, message)


def _emission(source: Source, found: dict[Operation, list[Pod]], first: bool) -> list[PodsChanged]:
    changes: list[PodsChanged] = []
    for op in (Operation.REMOVE, Operation.ADD, Operation.UPDATE, Operation.DELETE):
        if found[op]:
            changes.append(PodsChanged(op=op, pods=tuple(found[op]), source=source))
    if first and not changes:
        # No pod, yet the loop must learn that this source has delivered.
        changes.append(PodsChanged(op=Operation.ADD, pods=(), source=source))
    if found[Operation.RECONCILE]:
        changes.append(PodsChanged(op=Operation.RECONCILE, pods=tuple(found[Operation.RECONCILE]), source=source))
    return changes


def _renew(known: _Known, new: Pod) -> Operation | None:
    """Take over what changed; which operation that is, or None when nothing did."""
    if new is known.delivered:
        return None
    known.delivered = new
    old = known.pod
    if same_meaning(old, new):
        if old.status == new.status:
            return None
        known.pod = msgspec.structs.replace(old, status=new.status)
        return Operation.RECONCILE
    kept = {key: value for key, value in old.metadata.annotations.items() if key in LOCAL_ANNOTATIONS}
    metadata = msgspec.structs.replace(
        old.metadata,
        labels=new.metadata.labels,
        annotations={**new.metadata.annotations, **kept},
        deletion_timestamp=new.metadata.deletion_timestamp,
        deletion_grace_period_seconds=new.metadata.deletion_grace_period_seconds,
        generation=new.metadata.generation,
    )
    known.pod = msgspec.structs.replace(old, metadata=metadata, spec=new.spec, status=new.status)
    return Operation.UPDATE if new.metadata.deletion_timestamp is None else Operation.DELETE


def same_meaning(old: Pod, new: Pod) -> bool:
    """Whether nothing changed that the agent must act on; status, owners and the like do not count."""
    return (
        old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        and old.metadata.deletion_grace_period_seconds == new.metadata.deletion_grace_period_seconds
        and old.metadata.labels == new.metadata.labels
        and _foreign_annotations(old) == _foreign_annotations(new)
        and old.spec == new.spec
    )


def _foreign_annotations(pod: Pod) -> dict[str, str]:
    return {key: value for key, value in pod.metadata.annotations.items() if key not in LOCAL_ANNOTATIONS}
