"""Eviction signals and thresholds: what is observed, when a threshold is met, and when to act on it. Pure.

Covers filesystem layouts (which decide what can be reclaimed for a signal and what counts when pods are ranked),
minimum reclaim, soft grace periods, and node conditions with their transition period. Does not cover measuring
(stats.py) nor acting (manager.py).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.api.quantity import Format, Quantity
from pykubelet.eviction.stats import MemorySignal, NodeSignals
from pykubelet.model.stats import FsUsage
from pykubelet.node.conditions import DISK_PRESSURE, MEMORY_PRESSURE, PID_PRESSURE
from pykubelet.settings.thresholds import Threshold

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
    signal: MEMORY_PRESSURE if signal in MEMORY_SIGNALS else PID_PRESSURE if signal == PIDS else DISK_PRESSURE
    for signal in RESOURCE
}


class Observation(Struct, frozen=True, kw_only=True):
    available: int
    capacity: int
    time_ns: int


Observations = Mapping[str, Observation]


def observe(found: NodeSignals) -> dict[str, Observation]:
    """Return the observation of each signal; one the host does not have is left out and never met."""
    observations: dict[str, Observation] = {}
    for signal, memory in ((MEMORY, found.memory), (ALLOCATABLE, found.allocatable_memory)):
        if memory is not None:
            observations[signal] = _memory(memory)
    for space, inodes, fs in (
        (NODEFS, NODEFS_INODES, found.node_fs),
        (IMAGEFS, IMAGEFS_INODES, found.image_fs),
        (CONTAINERFS, CONTAINERFS_INODES, found.container_fs),
    ):
        if fs is not None:
            observations[space] = Observation(available=fs.available, capacity=fs.capacity, time_ns=fs.time_ns)
            if fs.inodes > 0:  # filesystems that make inodes on demand report 0
                observations[inodes] = _inodes(fs)
    if found.tasks is not None:
        left = found.tasks.limit - found.tasks.tasks
        observations[PIDS] = Observation(available=left, capacity=found.tasks.limit, time_ns=found.tasks.time_ns)
    return observations


def _memory(memory: MemorySignal) -> Observation:
    return Observation(available=memory.available, capacity=memory.capacity, time_ns=memory.time_ns)


def _inodes(fs: FsUsage) -> Observation:
    return Observation(available=fs.inodes_free, capacity=fs.inodes, time_ns=fs.time_ns)


def shown(signal: str, amount: int) -> str:
    """An amount of what the signal measures, as upstream writes it."""
    counted = signal == PIDS or signal in INODE_SIGNALS
    return str(Quantity.of(amount, Format.DECIMAL_SI if counted else Format.BINARY_SI))


class Layout(enum.Enum):
    """Where images and writable layers are, relative to the filesystem of the root folder."""

    ONE = "everything on one filesystem"
    OWN_IMAGES = "images and writable layers on a filesystem of their own"
    SPLIT = "images on a filesystem of their own, writable layers with the node's files"


def layout_of(found: NodeSignals) -> Layout:
    if not found.has_own_image_fs:
        return Layout.ONE
    return Layout.OWN_IMAGES if found.has_own_container_fs else Layout.SPLIT


class Reclaim(enum.Enum):
    """What the node can remove without evicting a pod, in this order."""

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


class WatchState(Struct, frozen=True, kw_only=True):
    """What is kept from check to check."""

    met: tuple[Threshold, ...] = ()
    """Thresholds acted on at the last check; they stay until their minimum is reclaimed."""
    since: Mapping[Threshold, float] = field(default_factory=dict)
    """When each threshold that is met was first met."""
    pressed: Mapping[str, float] = field(default_factory=dict)
    """When each condition last held."""
    observed: Mapping[str, int] = field(default_factory=dict)
    """The time of each signal's newest observation."""


class Judgement(Struct, frozen=True, kw_only=True):
    state: WatchState
    conditions: tuple[str, ...] = ()
    """The node's conditions now, sorted."""
    due: tuple[Threshold, ...] = ()
    """Thresholds to act on, most urgent first."""
    next_due: float | None = None
    """Seconds until a soft threshold's grace is over, if one is running."""


def effective(thresholds: Sequence[Threshold], layout: Layout, *, pods_enforced: bool) -> tuple[Threshold, ...]:
    """Add the thresholds that follow from the configured ones: memory of all pods, and writable layers.

    Configured thresholds for containerfs are ignored: it is always the same disk as one of the others.
    """
    found = [each for each in thresholds if each.signal not in CONTAINERFS_SIGNALS]
    if pods_enforced:
        found += [replace(each, signal=ALLOCATABLE) for each in found if each.signal == MEMORY and not each.soft]
    alike = (
        {IMAGEFS: CONTAINERFS, IMAGEFS_INODES: CONTAINERFS_INODES}
        if layout is Layout.OWN_IMAGES
        else {NODEFS: CONTAINERFS, NODEFS_INODES: CONTAINERFS_INODES}
    )
    found += [replace(each, signal=alike[each.signal]) for each in found if each.signal in alike]
    return tuple(found)


def value_of(threshold: Threshold, observation: Observation, *, with_reclaim: bool = False) -> int:
    """Return the amount that must be available, on request with the minimum reclaim on top."""
    value = threshold.amount.of(observation.capacity)
    if with_reclaim and threshold.minimum_reclaim is not None:
        value += threshold.minimum_reclaim.of(observation.capacity)
    return value


def met(thresholds: Iterable[Threshold], observations: Observations, *, with_reclaim: bool = False) -> list[Threshold]:
    found = []
    for each in thresholds:
        observed = observations.get(each.signal)
        if observed is not None and value_of(each, observed, with_reclaim=with_reclaim) > observed.available:
            found.append(each)
    return found


def judge(
    before: WatchState, thresholds: Sequence[Threshold], observations: Observations, *, now: float, transition: float
) -> Judgement:
    """Judge the node once. `now` is monotonic, `transition` is how long a condition outlasts its cause."""
    crossed = met(thresholds, observations)
    crossed += [each for each in met(before.met, observations, with_reclaim=True) if each not in crossed]
    since = {each: before.since.get(each, now) for each in crossed}
    pressed = {**before.pressed, **{CONDITION[each.signal]: now for each in crossed}}
    pressed = {name: at for name, at in pressed.items() if now - at < transition or at == now}
    over = tuple(each for each, at in since.items() if now - at >= each.grace_period)
    waits = [each.grace_period - (now - at) for each, at in since.items() if each not in over]
    fresh = [each for each in over if observations[each.signal].time_ns > before.observed.get(each.signal, -1)]
    state = WatchState(
        met=over, since=since, pressed=pressed, observed={name: each.time_ns for name, each in observations.items()}
    )
    return Judgement(
        state=state, conditions=tuple(sorted(pressed)), due=by_urgency(fresh), next_due=min(waits, default=None)
    )


def by_urgency(thresholds: Iterable[Threshold]) -> tuple[Threshold, ...]:
    """Memory first: it runs out fastest. The rest in the order of the settings."""
    return tuple(sorted(thresholds, key=lambda each: each.signal not in MEMORY_SIGNALS))
