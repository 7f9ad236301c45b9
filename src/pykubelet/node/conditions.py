"""The node's conditions: what holds right now, and how the Node's status shows it.

Eviction and the shutdown manager write `NodeConditions`; admission and the Node's status read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from pykubelet.api.types import NodeCondition, NodeStatus
from pykubelet.kit.clock import utc
from pykubelet.signals import NodeStatusChanged, Signals

MEMORY_PRESSURE: Final = "MemoryPressure"
DISK_PRESSURE: Final = "DiskPressure"
PID_PRESSURE: Final = "PIDPressure"
READY: Final = "Ready"

TRUE: Final = "True"
FALSE: Final = "False"


class PressureTexts(NamedTuple):
    """Reason, message and event of a pressure while it holds and while it does not."""

    on: tuple[str, str, str]
    off: tuple[str, str, str]


PRESSURES: Final[Mapping[str, PressureTexts]] = {
    MEMORY_PRESSURE: PressureTexts(
        ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory"),
        ("KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"),
    ),
    DISK_PRESSURE: PressureTexts(
        ("KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"),
        ("KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"),
    ),
    PID_PRESSURE: PressureTexts(
        ("KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"),
        ("KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"),
    ),
}

SHUTTING_DOWN: Final = "node is shutting down"


class NodeConditions:
    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._pressures: tuple[str, ...] = ()
        self._shutting_down = False

    def pressures(self) -> tuple[str, ...]:
        """Return the pressure conditions that hold, such as MemoryPressure; sorted."""
        return self._pressures

    def set_pressures(self, pressures: tuple[str, ...]) -> None:
        if pressures != self._pressures:
            self._pressures = pressures
            self._signals.publish(NodeStatusChanged())

    def shutting_down(self) -> bool:
        return self._shutting_down

    def set_shutting_down(self, shutting_down: bool) -> None:
        self._shutting_down = shutting_down
        self._signals.publish(NodeStatusChanged())

    def problems(self) -> Sequence[str]:
        """Return why the node is not ready."""
        return (SHUTTING_DOWN,) if self._shutting_down else ()


def conditions(
    old: Sequence[NodeCondition], pressures: Collection[str], problems: Sequence[str], now: float
) -> list[NodeCondition]:
    """Return the Node's conditions: the four of this agent, in place where the Node has them, among those of others."""
    made = {kind: pressure_condition(kind, kind in pressures) for kind in PRESSURES}
    made[READY] = ready_condition(problems)
    at = utc(now)
    for kind, condition in made.items():
        _stamp(condition, find_condition(old, kind), at)
    kept = [made.pop(condition.type, condition) if condition.type else condition for condition in old]
    return [*kept, *made.values()]


def _stamp(condition: NodeCondition, before: NodeCondition | None, now: datetime) -> None:
    same = before is not None and before.status == condition.status
    condition.last_heartbeat_time = now
    condition.last_transition_time = before.last_transition_time if before is not None and same else now


def pressure_condition(kind: str, present: bool) -> NodeCondition:
    reason, message, _ = PRESSURES[kind].on if present else PRESSURES[kind].off
    return NodeCondition(type=kind, status=TRUE if present else FALSE, reason=reason, message=message)


def ready_condition(problems: Sequence[str]) -> NodeCondition:
    if problems:
        return NodeCondition(type=READY, status=FALSE, reason="KubeletNotReady", message=joined(problems))
    return NodeCondition(type=READY, status=TRUE, reason="KubeletReady", message="kubelet is posting ready status")


def joined(problems: Sequence[str]) -> str:
    """One problem as it is, several as `[a, b]`, none twice."""
    distinct = list(dict.fromkeys(problems))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"


def find_condition(known: Iterable[NodeCondition], kind: str) -> NodeCondition | None:
    return next((condition for condition in known if condition.type == kind), None)


def is_ready(status: NodeStatus) -> bool:
    ready = find_condition(status.conditions, READY)
    return ready is not None and ready.status == TRUE
