"""When to check the node for pressure again, and the kernel's memory notifications.

The nearer a signal is to its threshold the sooner the next check: the pause is the time in which the distance could be
used up at a rate no ordinary program reaches, at least one second and at most ten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from pykubelet.clients.host.port import AlarmRefused, MemoryAlarm, MemoryAlarms
from pykubelet.eviction.stats import MemorySignal, NodeSignals
from pykubelet.eviction.thresholds import (
    ALLOCATABLE,
    INODE_SIGNALS,
    MEMORY,
    MEMORY_SIGNALS,
    PIDS,
    Observations,
    observe,
    value_of,
)
from pykubelet.settings.thresholds import Threshold

logger = logging.getLogger(__name__)


SHORTEST: Final = 1.0
LONGEST: Final = 10.0
MEMORY_RATE: Final = 2 << 30
DISK_RATE: Final = 512 << 20
INODE_RATE: Final = 50_000
PID_RATE: Final = 2_000


def rate_of(signal: str) -> int:
    """Return units per second."""
    if signal in MEMORY_SIGNALS:
        return MEMORY_RATE
    if signal == PIDS:
        return PID_RATE
    return INODE_RATE if signal in INODE_SIGNALS else DISK_RATE


def next_check(thresholds: Sequence[Threshold], observations: Observations) -> float:
    """Return seconds until the next check; thresholds already met do not shorten it."""
    pause = LONGEST
    for each in thresholds:
        observed = observations.get(each.signal)
        if observed is None:
            continue
        distance = observed.available - value_of(each, observed)
        if distance >= 0:
            pause = min(pause, distance / rate_of(each.signal))
    return max(SHORTEST, pause)


def alarm_at(
    signal: str, thresholds: Sequence[Threshold], observations: Observations, memory: MemorySignal
) -> int | None:
    """Return the cgroup's usage, as the kernel counts it, at which its nearest threshold not yet met is crossed."""
    observed = observations.get(signal)
    if observed is None:
        return None
    distances = [observed.available - value_of(each, observed) for each in thresholds if each.signal == signal]
    ahead = [distance for distance in distances if distance >= 0]
    return memory.usage + min(ahead) if ahead else None


SAME = 16 << 20
"""Bytes by which an alarm may be off before it is set anew."""


class AlarmKeeper:
    """Keeps the kernel's memory notifications set: one for the machine, one for the cgroup of all pods."""

    def __init__(self, *, alarms: MemoryAlarms | None, groups: Mapping[str, str], wake: Callable[[], None]) -> None:
        """`groups` is signal to cgroup. Without `alarms` none is ever set."""
        self._alarms = alarms
        self._groups = groups
        self._wake = wake
        self._set: dict[str, tuple[int, MemoryAlarm]] = {}
        self._refused: set[str] = set()

    @property
    def active(self) -> frozenset[str]:
        """Return the signals that the kernel watches."""
        return frozenset(self._set)

    def update(self, thresholds: Sequence[Threshold], signals: NodeSignals) -> None:
        observations = observe(signals)
        for signal, memory in ((MEMORY, signals.memory), (ALLOCATABLE, signals.allocatable_memory)):
            at = alarm_at(signal, thresholds, observations, memory) if memory is not None else None
            if signal in self._refused or self._alarms is None:
                continue
            if signal in self._set and self._set[signal][1].is_over:
                self._drop(signal)  # the cgroup may exist again
                if at is not None:
                    self._arm(self._alarms, signal, at, for_good=False)
            elif at is None:
                self._drop(signal)
            elif signal not in self._set or (self._alarms.by_usage and abs(self._set[signal][0] - at) > SAME):
                self._drop(signal)
                self._arm(self._alarms, signal, at)

    def close(self) -> None:
        for signal in list(self._set):
            self._drop(signal)

    def _arm(self, alarms: MemoryAlarms, signal: str, at: int, *, for_good: bool = True) -> None:
        """`for_good`: a refusal is final."""
        try:
            self._set[signal] = (at, alarms.watch(self._groups[signal], at, partial(self._rang, signal)))
        except AlarmRefused as error:
            if not for_good:
                logger.debug("no memory alarm for a group that is gone", extra={"signal": signal, "error": str(error)})
                return
            self._refused.add(signal)
            logger.warning(
                "the kernel gives no memory alarms; memory is looked at every 1 to 10 seconds instead",
                extra={"signal": signal, "error": str(error)},
            )

    def _rang(self, signal: str) -> None:
        logger.debug("the kernel's memory alarm rang", extra={"signal": signal})
        self._wake()

    def _drop(self, signal: str) -> None:
        known = self._set.pop(signal, None)
        if known is not None:
            known[1].close()
