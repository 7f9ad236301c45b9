"""The secret and config map manager: objects that pods refer to, kept at hand while the pods live.

Three ways, as configMapAndSecretChangeDetectionStrategy says: Watch follows each referenced object with a watch of
its own (the only one a node may open), Cache keeps an answer for a while, Get reads every time. An absent object is
None; other failures are errors. Objects behind volumes are followed for as long as the pod lives, since their files
change with them; those behind variables and image pulls are read only when containers start.
Does not cover: which fields refer (api/references.py), objects that persistent volumes name (readers.py), service
account tokens (tokens.py), services (node/), which pods are registered when (sync/).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec import Struct, field

from pykubelet.api.references import pod_references
from pykubelet.api.types import ApiStruct, ConfigMap, Pod, Secret
from pykubelet.clients.kube.port import K, KubeClient
from pykubelet.clients.kube.reflector import Query, Reflector
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import ApiError, NotFound, PykubeletError
from pykubelet.model.pod import PodUID, uid_of


class ObjectName(Struct, frozen=True):
    kind: type[ApiStruct]
    namespace: str
    name: str

    def __str__(self) -> str:
        return f'"{self.namespace}"/"{self.name}"'


_KINDS: dict[str, type[ApiStruct]] = {"ConfigMap": ConfigMap, "Secret": Secret}


def referred(pod: Pod) -> dict[ObjectName, bool]:
    """Every secret and config map the pod refers to; True where its content must be followed (volumes)."""
    found: dict[ObjectName, bool] = {}
    for reference in pod_references(pod):
        kind = _KINDS.get(reference.kind)
        if kind is not None and reference.name:
            key = ObjectName(kind, reference.namespace, reference.name)
            found[key] = found.get(key, False) or reference.in_volume
    return found


logger = logging.getLogger(__name__)

SYNC_WITHIN = 1.0
DEFAULT_TTL = 60.0
JANITOR_PERIOD = 30.0
LEAST_IDLE = 60.0
FRESH = 5.0
"""Seconds after its first list in which a watch's "absent" is checked: that list may be a little old."""


ObjectListener = Callable[[str, str, str, Sequence[PodUID]], None]
"""(kind, namespace, name, all pods that refer to it)"""


class Strategy(enum.Enum):
    WATCH = "Watch"
    CACHE = "Cache"
    GET = "Get"


class ObjectUnavailable(PykubeletError):
    """A secret or config map cannot be had now; the text is upstream's."""


class _Entry(Struct, kw_only=True, eq=False):
    """One referenced object."""

    key: ObjectName
    on_set: Callable[[_Entry, Sequence[Any]], None]
    """Called with each new state of it."""
    pods: dict[PodUID, bool] = field(default_factory=dict)
    """Pods that refer to it; True for those that must follow changes."""
    last_read: float = 0.0
    # Watch
    reflector: Reflector[Any] | None = None
    task: asyncio.Task[None] | None = None
    synced_at: float | None = None
    frozen: Any = None
    """An immutable object; it is not watched any more."""
    # Cache
    cached: Any = None
    fetched_at: float | None = None
    lock: asyncio.Lock | None = None

    @property
    def followed(self) -> bool:
        return any(self.pods.values())

    def observed(self, items: Sequence[Any]) -> None:
        self.on_set(self, items)


class ReferenceWatcher:
    """Reads work only while it runs, except with strategy Get."""

    name = "references"

    def __init__(
        self,
        *,
        kube: KubeClient,
        clock: Clock,
        strategy: Strategy = Strategy.WATCH,
        sync_frequency: float = 60.0,
        ttl: Callable[[], float] = lambda: DEFAULT_TTL,
    ) -> None:
        """`ttl` is how long strategy Cache keeps an answer; the node's annotation may set it."""
        self._kube = kube
        self._clock = clock
        self._strategy = strategy
        self._idle_after = max(LEAST_IDLE, 5 * sync_frequency)
        self._ttl = ttl
        self._entries: dict[ObjectName, _Entry] = {}
        self._pods: dict[PodUID, set[ObjectName]] = {}
        self._listeners: list[ObjectListener] = []
        self._tasks = TaskSet("references")
        self._running = asyncio.Event()
        self._on_set = self._observed  # one for all entries

    def listen(self, listener: ObjectListener) -> None:
        """Call `listener` whenever an object was first read, was added, changed or was deleted."""
        self._listeners.append(listener)

    def register(self, pod: Pod) -> None:
        """Hold what the pod refers to; again and again is fine, a changed pod replaces the old one."""
        uid, wanted = uid_of(pod), referred(pod)
        before = self._pods.get(uid, set())
        self._pods[uid] = set(wanted)
        for name, followed in wanted.items():
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = _Entry(key=name, on_set=self._on_set, last_read=self._clock.monotonic())
            entry.pods[uid] = followed
            entry.fetched_at = None  # strategy Cache: a pod that starts or changes gets fresh data
            self._start(name, entry)
        for name in before - wanted.keys():
            self._drop(name, uid)

    def unregister(self, pod: Pod) -> None:
        uid = uid_of(pod)
        for name in self._pods.pop(uid, set()):
            self._drop(name, uid)

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        return await self._read(ConfigMap, namespace, name)

    async def secret(self, namespace: str, name: str) -> Secret | None:
        return await self._read(Secret, namespace, name)

    async def run(self) -> None:
        async with self._tasks:
            self._running.set()
            try:
                for name, entry in self._entries.items():
                    self._start(name, entry)
                while True:
                    await self._clock.sleep(JANITOR_PERIOD)
                    self._stop_idle()
            finally:
                self._running.clear()
                for entry in self._entries.values():
                    entry.task = None

    def snapshot(self) -> dict[str, int]:
        watched = sum(1 for entry in self._entries.values() if entry.task is not None)
        return {"objects": len(self._entries), "watched": watched, "pods": len(self._pods)}

    async def _read(self, kind: type[K], namespace: str, name: str) -> K | None:
        key = ObjectName(kind, namespace, name)
        if self._strategy is Strategy.GET:
            return await self._fetch(kind, key)
        entry = self._entries.get(key)
        if entry is None:
            raise ObjectUnavailable(f"object {key} not registered")
        entry.last_read = self._clock.monotonic()
        if self._strategy is Strategy.CACHE:
            return cast("K | None", await self._from_cache(kind, key, entry))
        return cast("K | None", await self._from_watch(kind, key, entry))

    async def _from_watch(self, kind: type[K], key: ObjectName, entry: _Entry) -> K | None:
        if entry.frozen is not None:
            return cast(K, entry.frozen)
        try:
            async with asyncio.timeout(SYNC_WITHIN):
                await self._running.wait()
                self._start(key, entry)
                assert entry.reflector is not None
                reflector = entry.reflector
                await reflector.wait_synced()
        except TimeoutError:
            kind_name = kind.__name__.lower()
            raise ObjectUnavailable(f"failed to sync {kind_name} cache: timed out waiting for the condition") from None
        found = cast("K | None", reflector.get(key.name, key.namespace))
        if found is None and entry.synced_at is not None and self._clock.monotonic() - entry.synced_at < FRESH:
            return await self._fetch(kind, key)
        return found

    async def _from_cache(self, kind: type[K], key: ObjectName, entry: _Entry) -> K | None:
        if entry.lock is None:
            entry.lock = asyncio.Lock()
        async with entry.lock:  # several containers of a starting pod ask at once; one request serves them
            now = self._clock.monotonic()
            if entry.fetched_at is None or now - entry.fetched_at >= self._ttl():
                # A first read must be current; later ones may come from the server's own cache.
                version = "0" if entry.cached is not None and entry.fetched_at is not None else ""
                entry.cached = await self._fetch(kind, key, version)
                entry.fetched_at = self._clock.monotonic()
            return cast("K | None", entry.cached)

    async def _fetch(self, kind: type[K], key: ObjectName, version: str = "") -> K | None:
        try:
            return await self._kube.get(kind, key.name, key.namespace, resource_version=version)
        except NotFound:
            return None
        except ApiError as error:
            raise ObjectUnavailable(f"cannot read {kind.__name__} {key}: {error}") from error

    def _start(self, key: ObjectName, entry: _Entry) -> None:
        """Watch an object unless that is done already, or it can never change."""
        if self._strategy is not Strategy.WATCH or not self._running.is_set() or entry.task is not None:
            return
        if entry.frozen is not None:
            return
        reflector: Reflector[Any] = Reflector(
            client=self._kube,
            query=Query(
                kind=key.kind,
                namespace=key.namespace,
                field_selector=f"metadata.name={key.name}",
                one_of_many=True,
            ),
            clock=self._clock,
            on_set=entry.observed,
        )
        entry.reflector, entry.synced_at = reflector, None
        entry.task = self._tasks.spawn(reflector.run(), name=reflector.name)

    def _observed(self, entry: _Entry, items: Sequence[Any]) -> None:
        key = entry.key
        if self._entries.get(key) is not entry:
            return
        if entry.synced_at is None:
            entry.synced_at = self._clock.monotonic()
        if items and items[0].immutable:
            entry.frozen = items[0]
            self._stop(entry)
        for listener in self._listeners:
            listener(key.kind.__name__, key.namespace, key.name, list(entry.pods))

    def _drop(self, key: ObjectName, uid: PodUID) -> None:
        entry = self._entries.get(key)
        if entry is None:
            return
        entry.pods.pop(uid, None)
        if not entry.pods:
            del self._entries[key]
            self._stop(entry)

    def _stop(self, entry: _Entry) -> None:
        task, entry.task = entry.task, None
        if task is not None:
            task.cancel()

    def _stop_idle(self) -> None:
        """Close watches of objects that only variables or pulls need and that were not read for long."""
        now = self._clock.monotonic()
        for entry in self._entries.values():
            if entry.task is not None and not entry.followed and now - entry.last_read > self._idle_after:
                self._stop(entry)
                entry.reflector = None
