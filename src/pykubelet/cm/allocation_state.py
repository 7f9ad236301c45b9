"""Resources of pods, kept across restarts in the file format of upstream's kubelet, both ways.

One file is what was allocated (`allocated_pods_state`), another what was actuated (`actuated_pods_state`). Changes
are made in memory at once and written by `flush`. After damage the state is rebuilt from the pods as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from pykubelet.api.types import ResourceRequirements
from pykubelet.kit.files import Checkpoint, Envelope
from pykubelet.kit.text import fnv1a_32
from pykubelet.model.pod_resources import PodResourceInfo

ALLOCATED_FILE = "allocated_pods_state"
ACTUATED_FILE = "actuated_pods_state"


class AllocationState:
    """Reads its file at the first use."""

    def __init__(self, path: Path, *, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change`: called when something waits for a flush."""
        self.path = path
        # Not synced to disk: a killed agent loses nothing, and after a power cut no container runs any more.
        self._checkpoint = Checkpoint(path, encode=encode, decode=decode, durable=False)
        self._on_change = on_change
        self._loaded: dict[str, PodResourceInfo] | None = None
        self._dirty = False

    @property
    def _entries(self) -> dict[str, PodResourceInfo]:
        if self._loaded is None:
            self._loaded = self._checkpoint.load() or {}
        return self._loaded

    def get(self, uid: str) -> PodResourceInfo | None:
        return self._entries.get(uid)

    def put(self, uid: str, info: PodResourceInfo) -> None:
        if self._entries.get(uid) != info:
            self._entries[uid] = info
            self._changed()

    def put_container(self, uid: str, name: str, resources: ResourceRequirements) -> None:
        info = self._entries.get(uid) or PodResourceInfo()
        self.put(uid, PodResourceInfo(containers={**info.containers, name: resources}, pod=info.pod))

    def put_pod_level(self, uid: str, resources: ResourceRequirements | None) -> None:
        info = self._entries.get(uid) or PodResourceInfo()
        self.put(uid, PodResourceInfo(containers=info.containers, pod=resources))

    def drop(self, uid: str) -> None:
        if self._entries.pop(uid, None) is not None:
            self._changed()

    def keep_only(self, uids: Iterable[str]) -> None:
        wanted = set(uids)
        for uid in [uid for uid in self._entries if uid not in wanted]:
            self.drop(uid)

    def flush(self) -> None:
        """Write what changed; OSError when the disk refuses, and then it is still to be written."""
        if self._dirty:
            self._checkpoint.save_now(self._entries)
            self._dirty = False

    def _changed(self) -> None:
        self._dirty = True
        self._on_change()


# --- the file ---------------------------------------------------------------------------------------------


def encode(entries: dict[str, PodResourceInfo]) -> bytes:
    rows = {
        uid: {
            "ContainerResources": {name: msgspec.to_builtins(each) for name, each in info.containers.items()},
            "PodLevelResources": None if info.pod is None else msgspec.to_builtins(info.pod),
        }
        for uid, info in entries.items()
    }
    return ENVELOPE.seal(json.dumps({"entries": rows} if rows else {}, separators=(",", ":")))


def decode(raw: bytes) -> dict[str, PodResourceInfo]:
    """Raises CheckpointDamaged, or any error for entries of another shape."""
    rows = json.loads(ENVELOPE.open(raw)).get("entries") or {}
    return {uid: _info_of(row) for uid, row in rows.items()}


def _info_of(row: dict[str, Any]) -> PodResourceInfo:
    pod_level = row.get("PodLevelResources")
    return PodResourceInfo(
        containers={
            name: msgspec.convert(each, ResourceRequirements)
            for name, each in (row.get("ContainerResources") or {}).items()
        },
        pod=None if pod_level is None else msgspec.convert(pod_level, ResourceRequirements),
    )


def checksum(text: str) -> int:
    """As upstream computes it: FNV-1a of the text with its Go type in front."""
    return fnv1a_32(f"(string){text}")


ENVELOPE = Envelope(checksum)
