"""How soon to look again, and at which usage the kernel should raise an alarm. Pure.

The nearer a signal is to its threshold the sooner the next look: a pause is what the node could use up at a rate no
ordinary program reaches, never more than ten seconds and never less than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pykubelet.eviction.signals import INODE_SIGNALS, MEMORY_SIGNALS, PIDS, Observations
from pykubelet.eviction.thresholds import value_of
from pykubelet.model.signals import MemorySignal
from pykubelet.settings.thresholds import Threshold

SHORTEST: Final = 1.0
LONGEST: Final = 10.0
MEMORY_RATE: Final = 2 << 30
DISK_RATE: Final = 512 << 20
INODE_RATE: Final = 50_000
PID_RATE: Final = 2_000


def rate_of(signal: str) -> int:
    """Units a second."""
    if signal in MEMORY_SIGNALS:
        return MEMORY_RATE
    if signal == PIDS:
        return PID_RATE
    return INODE_RATE if signal in INODE_SIGNALS else DISK_RATE


def next_look(thresholds: Sequence[Threshold], seen: Observations) -> float:
    """Seconds; thresholds that are met already do not hurry anybody, acting on them has its own pace."""
    pause = LONGEST
    for each in thresholds:
        observed = seen.get(each.signal)
        if observed is None:
            continue
        distance = observed.available - value_of(each, observed)
        if distance >= 0:
            pause = min(pause, distance / rate_of(each.signal))
    return max(SHORTEST, pause)


def alarm_at(signal: str, thresholds: Sequence[Threshold], seen: Observations, memory: MemorySignal) -> int | None:
    """The usage of the group, as the kernel counts it, at which its nearest threshold not yet met would be crossed."""
    observed = seen.get(signal)
    if observed is None:
        return None
    distances = [observed.available - value_of(each, observed) for each in thresholds if each.signal == signal]
    ahead = [distance for distance in distances if distance >= 0]
    return memory.usage + min(ahead) if ahead else None
