"""Which pods are stopped when, and how long each gets, when the machine goes down. Pure.

Pods are put into classes by priority; classes end one after the other, from the lowest priority, each within its own
seconds. Does not cover carrying it out (manager.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from pykubelet.api.types import Pod
from pykubelet.settings.schema_resources import ShutdownSettings

CRITICAL = 2_000_000_000
"""Priority of system-cluster-critical, the lowest of the critical ones."""
DEFAULT_GRACE = 30
TELL_WITHIN = 3.0
"""Seconds beyond a class's own for its last statuses to reach the API server; once more for the Node's at the end."""


class Turn(Struct, frozen=True, kw_only=True):
    """One class: pods of at least this priority, up to the next class, and the seconds they get."""

    priority: int
    seconds: float


class Group(Struct, frozen=True, kw_only=True):
    turn: Turn
    pods: list[Pod] = field(default_factory=list)


def two_turns(whole: float, critical: float) -> tuple[Turn, ...]:
    """Ordinary pods first, critical ones with what is set aside for them."""
    return (Turn(priority=0, seconds=whole - critical), Turn(priority=CRITICAL, seconds=critical))


def turns_of(settings: ShutdownSettings) -> tuple[Turn, ...]:
    """The classes that the settings ask for, lowest priority first; none when they leave shutdowns alone."""
    if settings.shutdown_grace_period_by_pod_priority:
        told = [
            Turn(priority=each.priority, seconds=float(each.shutdown_grace_period_seconds))
            for each in settings.shutdown_grace_period_by_pod_priority
        ]
        return tuple(sorted(told, key=lambda turn: turn.priority))
    if settings.shutdown_grace_period <= 0:
        return ()
    return two_turns(settings.shutdown_grace_period, settings.shutdown_grace_period_critical_pods)


def whole_time(turns: Sequence[Turn]) -> float:
    """For how long the machine must be held up at most, telling included: else the last class is cut short."""
    return sum(turn.seconds + TELL_WITHIN for turn in turns) + (TELL_WITHIN if turns else 0.0)


def groups_of(turns: Sequence[Turn], pods: Iterable[Pod]) -> list[Group]:
    """Each pod goes with the highest class that is not above it; below the lowest class it goes with that one."""
    groups = [Group(turn=turn) for turn in turns]
    for pod in pods:
        priority = pod.spec.priority or 0
        fitting = [group for group in groups if group.turn.priority <= priority]
        (fitting[-1] if fitting else groups[0]).pods.append(pod)
    return groups


def grace_of(pod: Pod, turn: Turn) -> int:
    """Seconds a pod's containers get: its own grace, no longer than its class has."""
    own = pod.spec.termination_grace_period_seconds
    own = DEFAULT_GRACE if own is None else own
    # 0 would mean "as the pod likes" further down.
    return max(1, min(own, int(turn.seconds)))
