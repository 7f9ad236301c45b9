"""Resources held by pods, kept across restarts in the file format of upstream's kubelet, both ways.

One ledger is what was admitted (`allocated_pods_state`), another what was put into force
(`actuated_pods_state`). Changes are remembered at once and written by `flush`; when to flush is the owner's
business. A damaged file is set aside and rebuilt from the pods as they are.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from pykubelet.api.types import ResourceRequirements
from pykubelet.kit.files import CheckpointDamaged, set_aside, write_atomic
from pykubelet.kit.go_text import fnv1a_32
from pykubelet.model.held_resources import HeldResources

logger = logging.getLogger(__name__)

ALLOCATED_FILE = "allocated_pods_state"
ACTUATED_FILE = "actuated_pods_state"


class ResourceLedger:
    """Reads its file when first asked. `on_change` is told that something waits for a flush."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_change: Callable[[], None] = lambda: None
        self._loaded: dict[str, HeldResources] | None = None
        self._dirty = False

    @property
    def _entries(self) -> dict[str, HeldResources]:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def get(self, uid: str) -> HeldResources | None:
        return self._entries.get(uid)

    def put(self, uid: str, held: HeldResources) -> None:
        if self._entries.get(uid) != held:
            self._entries[uid] = held
            self._changed()

    def put_container(self, uid: str, name: str, resources: ResourceRequirements) -> None:
        held = self._entries.get(uid) or HeldResources()
        self.put(uid, HeldResources(containers={**held.containers, name: resources}, pod=held.pod))

    def put_pod_level(self, uid: str, resources: ResourceRequirements | None) -> None:
        held = self._entries.get(uid) or HeldResources()
        self.put(uid, HeldResources(containers=held.containers, pod=resources))

    def drop(self, uid: str) -> None:
        if self._entries.pop(uid, None) is not None:
            self._changed()

    def keep_only(self, uids: Iterable[str]) -> None:
        wanted = set(uids)
        for uid in [uid for uid in self._entries if uid not in wanted]:
            self.drop(uid)

    def flush(self) -> None:
        """Write what changed; OSError when the disk refuses, and then it is still to be written."""
        if not self._dirty:
            return
        data = encode(self._entries)
        # Not synced to disk: a killed agent loses nothing, and after a power cut no container runs any more.
        write_atomic(self.path, data, durable=False)
        self._dirty = False

    def _changed(self) -> None:
        self._dirty = True
        self.on_change()

    def _load(self) -> dict[str, HeldResources]:
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            return decode(raw)
        except CheckpointDamaged as problem:
            aside = set_aside(self.path)
            logger.error(
                "checkpoint is damaged and was set aside; it will be rebuilt",
                extra={"path": str(self.path), "aside": str(aside), "problem": str(problem)},
            )
            return {}


# --- the file ---------------------------------------------------------------------------------------------


def encode(entries: dict[str, HeldResources]) -> bytes:
    rows = {
        uid: {
            "ContainerResources": {name: msgspec.to_builtins(each) for name, each in held.containers.items()},
            "PodLevelResources": None if held.pod is None else msgspec.to_builtins(held.pod),
        }
        for uid, held in entries.items()
    }
    text = json.dumps({"entries": rows} if rows else {}, separators=(",", ":"))
    return json.dumps({"data": text, "checksum": checksum(text)}).encode()


def decode(raw: bytes) -> dict[str, HeldResources]:
    """The entries; CheckpointDamaged when this is not a whole file of ours."""
    try:
        envelope = json.loads(raw)
        text, told = envelope["data"], envelope["checksum"]
    except (ValueError, KeyError, TypeError) as problem:
        raise CheckpointDamaged(f"not a checkpoint: {problem}") from problem
    if not isinstance(text, str) or told != checksum(text):
        raise CheckpointDamaged("checksum does not match the data")
    try:
        rows = json.loads(text).get("entries") or {}
        return {uid: _held(row) for uid, row in rows.items()}
    except (ValueError, TypeError, AttributeError, msgspec.ValidationError) as problem:
        raise CheckpointDamaged(f"unreadable entry: {problem}") from problem


def _held(row: dict[str, Any]) -> HeldResources:
    pod_level = row.get("PodLevelResources")
    return HeldResources(
        containers={
            name: msgspec.convert(each, ResourceRequirements)
            for name, each in (row.get("ContainerResources") or {}).items()
        },
        pod=None if pod_level is None else msgspec.convert(pod_level, ResourceRequirements),
    )


def checksum(text: str) -> int:
    """As upstream computes it: FNV-1a of the text with its Go type in front."""
    return fnv1a_32(f"(string){text}")
