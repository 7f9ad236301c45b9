"""The small objects that appear in lists of the configuration: taints, memory reservations and the like.

Each is a frozen dataclass whose fields know their wire names. Does not cover the groups that hold them
(schema_*.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pykubelet.settings.kinds import INT32, INT64, QUANTITY, STRING, UINT32, MapOf, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTaint:
    """A taint put on the Node when it registers for the first time."""

    key: str = setting("key", STRING, "", "Name of the taint.")
    value: str = setting("value", STRING, "", "Value of the taint.")
    effect: str = setting("effect", STRING, "", "NoSchedule, PreferNoSchedule or NoExecute.")
    time_added: str = setting("timeAdded", STRING, "", "Not allowed here; the validation says so.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReservation:
    """Memory of one NUMA node that pods never get."""

    numa_node: int = setting("numaNode", INT32, 0, "Number of the NUMA node.")
    limits: Mapping[str, str] = setting("limits", MapOf(QUANTITY), {}, "Reserved amounts: memory and hugepages-<size>.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityGracePeriod:
    """How long pods of at least this priority get when the machine shuts down."""

    priority: int = setting("priority", INT32, 0, "Lowest pod priority of the range.")
    shutdown_grace_period_seconds: int = setting("shutdownGracePeriodSeconds", INT64, 0, "Seconds these pods get.")


@dataclass(frozen=True, slots=True, kw_only=True)
class VModuleItem:
    """A log verbosity for the source files that match a pattern."""

    file_pattern: str = setting("filePattern", STRING, "", "Base name of the source file, * and ? allowed.")
    verbosity: int = setting("verbosity", UINT32, 0, "Verbosity for these files.")
