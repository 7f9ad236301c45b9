"""When a threshold is met and when it has to be acted upon. Pure: one state in, the next one out.

Covers minimum reclaim, soft grace periods, observations that are not newer than the last ones, and node conditions
with their transition period (facts/node.md 4.2). Does not cover what is then done (manager.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct, field

from pykubelet.eviction.signals import (
    ALLOCATABLE,
    CONDITION,
    CONTAINERFS,
    CONTAINERFS_INODES,
    CONTAINERFS_SIGNALS,
    IMAGEFS,
    IMAGEFS_INODES,
    MEMORY,
    MEMORY_SIGNALS,
    NODEFS,
    NODEFS_INODES,
    Layout,
    Observation,
    Observations,
)
from pykubelet.settings.thresholds import Threshold


class WatchState(Struct, frozen=True, kw_only=True):
    """What has to be remembered from look to look."""

    met: tuple[Threshold, ...] = ()
    """Those that were to be acted upon at the last look; they stay until their minimum is reclaimed."""
    since: Mapping[Threshold, float] = field(default_factory=dict)
    """When each one that is met was first seen so."""
    pressed: Mapping[str, float] = field(default_factory=dict)
    """When each condition was last seen."""
    observed: Mapping[str, int] = field(default_factory=dict)
    """The time of each signal's newest observation."""


class Judgement(Struct, frozen=True, kw_only=True):
    state: WatchState
    conditions: tuple[str, ...] = ()
    """That the node has now, sorted."""
    due: tuple[Threshold, ...] = ()
    """To be acted upon, most urgent first."""
    next_due: float | None = None
    """Seconds until a soft threshold's grace is over, if one is running."""


def effective(thresholds: Sequence[Threshold], layout: Layout, *, pods_enforced: bool) -> tuple[Threshold, ...]:
    """With what follows from the configured ones: the memory of all pods, and writable layers.

    Thresholds somebody wrote for containerfs do not count: it is always the same disk as one of the others.
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


def value_of(threshold: Threshold, seen: Observation, *, with_reclaim: bool = False) -> int:
    """What must be left; with the minimum reclaim on top, if it is asked for."""
    value = threshold.amount.of(seen.capacity)
    if with_reclaim and threshold.minimum_reclaim is not None:
        value += threshold.minimum_reclaim.of(seen.capacity)
    return value


def met(thresholds: Iterable[Threshold], seen: Observations, *, with_reclaim: bool = False) -> list[Threshold]:
    found = []
    for each in thresholds:
        observed = seen.get(each.signal)
        if observed is not None and value_of(each, observed, with_reclaim=with_reclaim) > observed.available:
            found.append(each)
    return found


def judge(
    before: WatchState, thresholds: Sequence[Threshold], seen: Observations, *, now: float, transition: float
) -> Judgement:
    """One look at the node. `now` is monotonic, `transition` is how long a condition outlasts its cause."""
    crossed = met(thresholds, seen)
    crossed += [each for each in met(before.met, seen, with_reclaim=True) if each not in crossed]
    since = {each: before.since.get(each, now) for each in crossed}
    pressed = {**before.pressed, **{CONDITION[each.signal]: now for each in crossed}}
    pressed = {name: at for name, at in pressed.items() if now - at < transition or at == now}
    over = tuple(each for each, at in since.items() if now - at >= each.grace_period)
    waits = [each.grace_period - (now - at) for each, at in since.items() if each not in over]
    fresh = [each for each in over if seen[each.signal].time_ns > before.observed.get(each.signal, -1)]
    state = WatchState(
        met=over, since=since, pressed=pressed, observed={name: each.time_ns for name, each in seen.items()}
    )
    return Judgement(
        state=state, conditions=tuple(sorted(pressed)), due=by_urgency(fresh), next_due=min(waits, default=None)
    )


def by_urgency(thresholds: Iterable[Threshold]) -> tuple[Threshold, ...]:
    """Memory first: it runs out fastest. The rest in the order of the settings."""
    return tuple(sorted(thresholds, key=lambda each: each.signal not in MEMORY_SIGNALS))
