"""What a cgroup is limited to, and the arithmetic between CPU amounts and kernel figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MIN_SHARES = 2
MAX_SHARES = 262_144
MIN_QUOTA_US = 1000
PERIOD_US = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """None = leave as it is; -1 = no limit."""

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int = PERIOD_US
    memory_bytes: int | None = None
    pids: int | None = None
    hugepages: Mapping[int, int] = field(default_factory=dict)
    """Bytes allowed by page size in bytes."""


def milli_to_shares(milli: int) -> int:
    if milli <= 0:
        return MIN_SHARES
    return max(MIN_SHARES, min(MAX_SHARES, milli * 1024 // 1000))


def milli_to_quota(milli: int, period_us: int = PERIOD_US) -> int:
    """Microseconds of CPU per period; 0 = not limited."""
    if milli <= 0:
        return 0
    return max(MIN_QUOTA_US, milli * period_us // 1000)


def shares_to_weight(shares: int) -> int:
    """cgroup v2 weight as the kubelet writes it (linear)."""
    if shares >= MAX_SHARES:
        return 10_000
    return 1 + (max(shares, MIN_SHARES) - 2) * 9999 // 262_142
