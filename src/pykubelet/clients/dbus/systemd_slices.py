"""The cgroups of pods and classes as slices of systemd (cgroupDriver systemd).

systemd owns the tree then: what it did not make it may remove, and what it was not told it may overwrite at its next
reload. So each group is a transient slice, and its limits are told to systemd besides being written into the files
(clients/host/cgroups.py), which also cover what systemd has no word for. Trouble is an OSError, as from the files.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping

from pykubelet.clients.dbus.port import BusDown, BusRefused, Property, Systemd, UnitExists
from pykubelet.model.cgroups import CgroupLimits, shares_to_weight

logger = logging.getLogger(__name__)

UNLIMITED = (1 << 64) - 1
SECOND_US = 1_000_000
QUOTA_STEP_US = 10_000
"""systemd keeps whole percents of a CPU only; less precise than the kernel, so it is rounded up."""


class SystemdSlices:
    def __init__(self, *, systemd: Systemd, unified: bool) -> None:
        """`unified`: the host has cgroup v2."""
        self._systemd = systemd
        self._unified = unified
        self._refused: set[str] = set()

    async def hold(self, path: str, limits: CgroupLimits) -> None:
        """Have the slice with these limits, whether it was there or not."""
        name, parent = unit_of(path), parent_of(path)
        wanted = slice_properties(limits, unified=self._unified)
        try:
            try:
                await self._systemd.start_unit(name, {**new_slice(name, parent), **wanted})
            except UnitExists:
                await self._change(name, wanted)
        except (BusDown, BusRefused) as error:
            raise OSError(errno.EIO, f"systemd cannot make the slice {name}: {error}", path) from error

    async def _change(self, name: str, wanted: Mapping[str, Property]) -> None:
        if not wanted:
            return
        try:
            await self._systemd.set_properties(name, wanted)
        except BusRefused as error:
            # The files still get the limits; only a reload of systemd may undo them until the next refresh.
            if error.name not in self._refused:
                self._refused.add(error.name)
                logger.warning(
                    "systemd refuses the limits of a slice; they are written into the cgroup only",
                    extra={"slice": name, "error": str(error)},
                )

    async def drop(self, path: str) -> None:
        """Stop the slice with everything in it; not there is success."""
        name = unit_of(path)
        try:
            await self._systemd.stop_unit(name)
        except (BusDown, BusRefused) as error:
            raise OSError(errno.EIO, f"systemd cannot stop the slice {name}: {error}", path) from error


def unit_of(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def parent_of(path: str) -> str:
    """The slice above; systemd's root slice has a name of its own."""
    above = path.rstrip("/").rpartition("/")[0].rpartition("/")[2]
    return above or "-.slice"


def new_slice(name: str, parent: str) -> dict[str, Property]:
    """What a slice is made with beside its limits. Accounting makes systemd enable the controllers."""
    return {
        "Description": f"pods of this node, {name}",
        "Wants": [parent],
        "MemoryAccounting": True,
        "CPUAccounting": True,
        "TasksAccounting": True,
        "DefaultDependencies": False,
    }


def slice_properties(limits: CgroupLimits, *, unified: bool) -> dict[str, Property]:
    """The limits in systemd's words; what is left as it is has none."""
    found: dict[str, Property] = {}
    if limits.cpu_shares is not None:
        if unified:
            found["CPUWeight"] = shares_to_weight(limits.cpu_shares)
        else:
            found["CPUShares"] = limits.cpu_shares
    if limits.cpu_quota_us is not None:
        found["CPUQuotaPerSecUSec"] = quota_per_second(limits.cpu_quota_us, limits.cpu_period_us)
    if limits.memory_bytes is not None:
        name = "MemoryMax" if unified else "MemoryLimit"
        found[name] = limits.memory_bytes if limits.memory_bytes > 0 else UNLIMITED
    if limits.pids is not None:
        found["TasksMax"] = limits.pids if limits.pids > 0 else UNLIMITED
    return found


def quota_per_second(quota_us: int, period_us: int) -> int:
    if quota_us <= 0:
        return UNLIMITED
    exact = quota_us * SECOND_US // period_us
    return -(-exact // QUOTA_STEP_US) * QUOTA_STEP_US
