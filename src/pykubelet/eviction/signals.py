"""What the signals are: which resource runs short, which condition the node gets, and what was observed. Pure.

Covers how filesystems may be laid out, which decides what can be freed for a signal and what counts when pods are
ranked (facts/node.md 4.1, 4.3). Does not cover measuring (stats/signals.py) and judging (thresholds.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pykubelet.api.quantity import Format, Quantity
from pykubelet.model.figures import FsFigures
from pykubelet.model.signals import MemorySignal, NodeSignals

MEMORY: Final = "memory.available"
ALLOCATABLE: Final = "allocatableMemory.available"
NODEFS: Final = "nodefs.available"
NODEFS_INODES: Final = "nodefs.inodesFree"
IMAGEFS: Final = "imagefs.available"
IMAGEFS_INODES: Final = "imagefs.inodesFree"
CONTAINERFS: Final = "containerfs.available"
CONTAINERFS_INODES: Final = "containerfs.inodesFree"
PIDS: Final = "pid.available"

MEMORY_SIGNALS: Final = frozenset({MEMORY, ALLOCATABLE})
INODE_SIGNALS: Final = frozenset({NODEFS_INODES, IMAGEFS_INODES, CONTAINERFS_INODES})
CONTAINERFS_SIGNALS: Final = frozenset({CONTAINERFS, CONTAINERFS_INODES})

_DISK, _INODES = "ephemeral-storage", "inodes"
RESOURCE: Final[Mapping[str, str]] = {
    MEMORY: "memory",
    ALLOCATABLE: "memory",
    NODEFS: _DISK,
    IMAGEFS: _DISK,
    CONTAINERFS: _DISK,
    NODEFS_INODES: _INODES,
    IMAGEFS_INODES: _INODES,
    CONTAINERFS_INODES: _INODES,
    PIDS: "pids",
}
CONDITION: Final[Mapping[str, str]] = {
    signal: "MemoryPressure" if signal in MEMORY_SIGNALS else "PIDPressure" if signal == PIDS else "DiskPressure"
    for signal in RESOURCE
}


class Observation(Struct, frozen=True, kw_only=True):
    available: int
    capacity: int
    time_ns: int


Observations = Mapping[str, Observation]


def observe(found: NodeSignals) -> dict[str, Observation]:
    """What the host tells; a signal it does not know is left out and never met."""
    seen: dict[str, Observation] = {}
    for signal, memory in ((MEMORY, found.memory), (ALLOCATABLE, found.allocatable_memory)):
        if memory is not None:
            seen[signal] = _memory(memory)
    for space, inodes, fs in (
        (NODEFS, NODEFS_INODES, found.node_fs),
        (IMAGEFS, IMAGEFS_INODES, found.image_fs),
        (CONTAINERFS, CONTAINERFS_INODES, found.container_fs),
    ):
        if fs is not None:
            seen[space] = Observation(available=fs.available, capacity=fs.capacity, time_ns=fs.time_ns)
            if fs.inodes > 0:  # filesystems that make inodes as they need them say 0
                seen[inodes] = _inodes(fs)
    if found.tasks is not None:
        left = found.tasks.limit - found.tasks.tasks
        seen[PIDS] = Observation(available=left, capacity=found.tasks.limit, time_ns=found.tasks.time_ns)
    return seen


def _memory(memory: MemorySignal) -> Observation:
    return Observation(available=memory.available, capacity=memory.capacity, time_ns=memory.time_ns)


def _inodes(fs: FsFigures) -> Observation:
    return Observation(available=fs.inodes_free, capacity=fs.inodes, time_ns=fs.time_ns)


def shown(signal: str, amount: int) -> str:
    """An amount of what the signal measures, as upstream writes it."""
    counted = signal == PIDS or signal in INODE_SIGNALS
    return str(Quantity.of(amount, Format.DECIMAL_SI if counted else Format.BINARY_SI))


class Layout(enum.Enum):
    """Where images and writable layers are, seen from the filesystem of the root folder."""

    ONE = "everything on one filesystem"
    OWN_IMAGES = "images and writable layers on a filesystem of their own"
    SPLIT = "images on a filesystem of their own, writable layers with the node's files"


def layout_of(found: NodeSignals) -> Layout:
    if not found.has_own_image_fs:
        return Layout.ONE
    return Layout.OWN_IMAGES if found.has_own_container_fs else Layout.SPLIT


class Reclaim(enum.Enum):
    """What the node can give without touching a pod, in the order it is given."""

    DEAD_CONTAINERS = "dead containers"
    UNUSED_IMAGES = "unused images"


def reclaims(signal: str, layout: Layout) -> tuple[Reclaim, ...]:
    if signal in MEMORY_SIGNALS or signal == PIDS:
        return ()
    which = signal.partition(".")[0]
    if layout is Layout.ONE:
        return tuple(Reclaim)
    if layout is Layout.OWN_IMAGES:
        return () if which == "nodefs" else tuple(Reclaim)
    return (Reclaim.UNUSED_IMAGES,) if which == "imagefs" else (Reclaim.DEAD_CONTAINERS,)


class Counted(Struct, frozen=True, kw_only=True):
    """Which of a pod's files lie on the filesystem that is short."""

    layers: bool = False
    logs: bool = False
    volumes: bool = False


def counted(signal: str, layout: Layout) -> Counted:
    which = signal.partition(".")[0]
    if layout is Layout.ONE:
        return Counted(layers=True, logs=True, volumes=True)
    if layout is Layout.OWN_IMAGES:
        return Counted(logs=True, volumes=True) if which == "nodefs" else Counted(layers=True)
    return Counted() if which == "imagefs" else Counted(layers=True, logs=True, volumes=True)
