"""Ranges of host ids for pods with a user namespace of their own (`hostUsers: false`).

Each pod gets one range; no two pods that may hold files or processes share one. The range is written to the pod's
folder before it is used and read back after a restart, so what is taken is known from the folders alone. Does not
cover how files are shown to the container with these ids: the runtime maps its mounts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.edges import Edges
from pykubelet.kit.files import WRITE_WITHIN, write_atomic
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.tasks import finish
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import uid_of
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.settings.settings import Settings
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)

FILE: Final = "userns"
UNIT: Final = 65_536
ALL_IDS: Final = 1 << 32


class UsernsProblem(PykubeletError):
    """A pod cannot have its user namespace; the text is for its status."""


class IdRange(Struct, frozen=True, kw_only=True):
    """Host ids from `first` on that this node may use for pods."""

    first: int
    length: int
    per_pod: int

    @property
    def slots(self) -> int:
        return self.length // self.per_pod


def id_range(per_pod: int, max_pods: int, host: tuple[int, int] | None = None) -> IdRange:
    """Everything above the host's own ids, or what the host set aside; PykubeletError when that cannot work."""
    first, length = host if host is not None else (per_pod, ALL_IDS - per_pod)
    if per_pod % UNIT:
        raise PykubeletError(f"userNamespaces.idsPerPod: {per_pod} is not a multiple of {UNIT}")
    if first % per_pod:
        raise PykubeletError(f"kubelet user assigned ID {first} is not a multiple of {per_pod}")
    if first < per_pod:
        # Id 0 of the host must never be inside a pod's range.
        raise PykubeletError(f"kubelet user assigned ID {first} must be greater or equal to {per_pod}")
    if length % per_pod:
        raise PykubeletError(f"kubelet user assigned IDs length {length} is not a multiple of {per_pod}")
    if length // per_pod < max_pods:
        raise PykubeletError(f"kubelet user assigned IDs are not enough to support {max_pods} pods")
    return IdRange(first=first, length=length, per_pod=per_pod)


class Handlers(Protocol):
    async def handler_for(self, pod: Pod) -> str: ...


class PodUserNamespaces:
    def __init__(self, *, pods: Path, ids: IdRange, handlers: Handlers, supports: Callable[[str], bool]) -> None:
        """`supports(handler)`: whether the runtime can do it with that handler."""
        self._pods = pods
        self._ids = ids
        self._handlers = handlers
        self._supports = supports
        self._taken: dict[str, int] = {}
        """First host id by pod."""
        self._unwritten: set[str] = set()
        """Pods whose range is not on disk yet, and so not to be used."""
        self._free_from = 0
        self._recovered = False

    async def mappings(self, pod: Pod) -> cri_pb2.UserNamespace:
        """The pod's id mappings, made if missing. Raises UsernsProblem."""
        handler = await self._handlers.handler_for(pod)
        if not self._supports(handler):
            what = f'RuntimeClass handler "{handler}"' if handler else "runtime"
            raise UsernsProblem(f"can't set `spec.hostUsers: false`, {what} does not support user namespaces")
        self._recover()
        uid = uid_of(pod)
        first = self._taken.get(uid)
        if first is None:
            first = self._adopt(uid) or self._allot(uid)
        if uid in self._unwritten:
            await self._write(uid, first)
        mapping = [cri_pb2.IDMapping(host_id=first, container_id=0, length=self._ids.per_pod)]
        return cri_pb2.UserNamespace(mode=cri_pb2.NamespaceMode.POD, uids=mapping, gids=mapping)

    def release(self, uid: str) -> None:
        """Free the range of a pod that has ended."""
        self._recover()
        first = self._taken.get(uid)
        if first is None:
            return
        self._file(uid).unlink(missing_ok=True)
        del self._taken[uid]
        self._unwritten.discard(uid)
        self._free_from = min(self._free_from, self._slot(first))

    def keep_only(self, uids: Iterable[str]) -> None:
        self._recover()
        wanted = set(uids)
        for uid in [uid for uid in self._taken if uid not in wanted]:
            self.release(uid)

    # --- inside ---------------------------------------------------------------------------------

    def _allot(self, uid: str) -> int:
        used = set(self._taken.values())
        for slot in range(self._free_from, self._ids.slots):
            first = self._ids.first + slot * self._ids.per_pod
            if first not in used:
                break
        else:
            raise UsernsProblem(
                "create user namespace: could not find an empty slot to allocate a user namespace:"
                f" all {self._ids.slots} ranges are taken"
            )
        self._taken[uid] = first
        self._unwritten.add(uid)
        self._free_from = slot + 1
        return first

    async def _write(self, uid: str, first: int) -> None:
        """Write the range to disk. It stays the pod's if that fails: the file may be there."""
        row = [{"hostId": first, "containerId": 0, "length": self._ids.per_pod}]
        text = json.dumps({"uidMappings": row, "gidMappings": row}, separators=(",", ":"))
        work = partial(write_atomic, self._file(uid), text.encode())
        writing = host_calls.run(work, name="writing a range of ids", key=uid, pod=uid, within=WRITE_WITHIN)
        await finish(writing, within=WRITE_WITHIN + 1)
        self._unwritten.discard(uid)

    def _recover(self) -> None:
        """Take over the ranges of pods from before a restart. A file that cannot be read blocks only its pod."""
        if self._recovered:
            return
        self._recovered = True
        try:
            uids = sorted(entry.name for entry in self._pods.iterdir())
        except FileNotFoundError:
            return
        for uid in uids:
            try:
                self._adopt(uid)
            except UsernsProblem as problem:
                logger.error("user namespace of a pod cannot be read", extra={"uid": uid, "problem": str(problem)})

    def _adopt(self, uid: str) -> int | None:
        """Take over the range in the pod's folder; None when there is none."""
        try:
            raw = self._file(uid).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not raw:
            return None
        first = self._read(raw)
        owner = next((other for other, taken in self._taken.items() if taken == first and other != uid), None)
        if owner is not None:
            raise UsernsProblem(f'user namespace: range picked for pod "{uid}" already taken by pod "{owner}"')
        self._taken[uid] = first
        return first

    def _read(self, raw: bytes) -> int:
        try:
            content = json.loads(raw)
            (uids,), (gids,) = content["uidMappings"], content["gidMappings"]
            first, inside, length = int(uids["hostId"]), int(uids["containerId"]), int(uids["length"])
        except (ValueError, KeyError, TypeError) as problem:
            raise UsernsProblem(f"user namespace: invalid user namespace mappings file: {problem}") from problem
        if uids != gids:
            raise UsernsProblem("user namespace: GID and UID mappings should be identical")
        if inside != 0:
            raise UsernsProblem("user namespace: UID 0 must be mapped")
        if length != self._ids.per_pod:
            raise UsernsProblem(f"user namespace: wrong user namespace length {length}")
        if first % self._ids.per_pod:
            raise UsernsProblem(f"user namespace: wrong user namespace offset specified {first}")
        if not 0 <= self._slot(first) < self._ids.slots:
            raise UsernsProblem(f"user namespace: id {first} is out of range")
        return first

    def _slot(self, first: int) -> int:
        return (first - self._ids.first) // self._ids.per_pod

    def _file(self, uid: str) -> Path:
        return self._pods / uid / FILE


def pod_user_namespaces(
    settings: Settings, edges: Edges, *, handlers: Handlers, runtime_state: RuntimeState
) -> PodUserNamespaces:
    per_pod = settings.config.runtime.user_namespaces.ids_per_pod
    ids = id_range(per_pod, settings.config.cgroups.max_pods, edges.host_ids)
    return PodUserNamespaces(
        pods=edges.paths.pods,
        ids=ids,
        handlers=handlers,
        supports=lambda handler: runtime_state.conditions.supports_user_namespaces(handler),
    )
