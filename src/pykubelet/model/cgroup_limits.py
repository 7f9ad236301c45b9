"""What a cgroup is limited to, and the arithmetic between CPU amounts and kernel figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

MIN_SHARES = 2
MAX_SHARES = 262_144
MIN_QUOTA_US = 1000
PERIOD_US = 100_000


class CgroupLimits(Struct, frozen=True, kw_only=True):
    """None = leave as it is; -1 = no limit."""

    cpu_shares: int | None = None
    cpu_quota_us: int | None = None
    cpu_period_us: int = PERIOD_US
    memory_bytes: int | None = None
    pids: int | None = None
    hugepages: Mapping[int, int] = field(default_factory=dict)
    """Bytes allowed by page size in bytes."""
    unified: Mapping[str, str] = field(default_factory=dict)
    """Files of cgroup v2 by name; without meaning on v1."""

    def over(self, other: CgroupLimits) -> CgroupLimits:
        """These, and the other's where these say nothing."""
        quota = self if self.cpu_quota_us is not None else other
        return CgroupLimits(
            cpu_shares=self.cpu_shares if self.cpu_shares is not None else other.cpu_shares,
            cpu_quota_us=quota.cpu_quota_us,
            cpu_period_us=quota.cpu_period_us,
            memory_bytes=self.memory_bytes if self.memory_bytes is not None else other.memory_bytes,
            pids=self.pids if self.pids is not None else other.pids,
            hugepages={**other.hugepages, **self.hugepages},
            unified={**other.unified, **self.unified},
        )


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


def weight_to_shares(weight: int) -> int:
    """The way back; not exact, as a weight is coarser."""
    return (weight - 1) * 262_142 // 9999 + 2
