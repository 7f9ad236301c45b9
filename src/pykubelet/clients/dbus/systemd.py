"""Transient units through org.freedesktop.systemd1, and the cgroups of pods and QoS classes as its slices.

A call returns a job; it is done when the manager says so in a signal, which is subscribed to beforehand. A connection
that broke is made anew by the next call. With cgroupDriver systemd, systemd owns the cgroup tree: what it did not make
it may remove, and limits it does not know it may overwrite at its next reload. So each group is a transient slice, and
its limits are set in systemd besides being written into the files (clients/host/cgroups.py), which also cover limits
that systemd does not have. Errors are OSErrors, as from the files.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pykubelet.clients.dbus.bus import Bus
from pykubelet.clients.dbus.port import BusDown, BusRefused, Property, Systemd, UnitExists
from pykubelet.model.cgroups import PERIOD_US, CgroupLimits, shares_to_weight

if TYPE_CHECKING:
    from dbus_fast import Variant

SERVICE = "org.freedesktop.systemd1"
PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
EXISTS = "org.freedesktop.systemd1.UnitExists"
NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
NOT_LOADED = "org.freedesktop.systemd1.UnitNotLoaded"
JOB_SECONDS = 30.0
AT_ONCE = 32
"""The bus disconnects callers with too many open calls (128 by default)."""

Connect = Callable[[], Awaitable[Bus]]


class DbusSystemd:
    def __init__(self, *, connect: Connect = Bus.connect) -> None:
        self._connect = connect
        self._bus: Bus | None = None
        self._opening = asyncio.Lock()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._early: dict[str, str] = {}
        """Results of jobs whose callers do not have them yet: a signal may arrive before its reply."""
        self._awaited: dict[str, asyncio.Future[str]] = {}
        self._calls = 0

    async def open(self) -> None:
        """Connect and see that systemd is there, so that trouble shows at start. Raises BusDown, BusRefused."""
        bus = await self._connection()
        await bus.read_property(SERVICE, PATH, MANAGER, "Version")

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()

    async def start_unit(self, name: str, properties: Mapping[str, Property]) -> None:
        try:
            await self._job("StartTransientUnit", "ssa(sv)a(sa(sv))", [name, "replace", _pairs(properties), []])
        except BusRefused as error:
            if error.name == EXISTS:
                raise UnitExists(error.name, str(error)) from error
            raise

    async def stop_unit(self, name: str) -> None:
        try:
            await self._job("StopUnit", "ss", [name, "replace"])
        except BusRefused as error:
            if error.name not in (NO_SUCH_UNIT, NOT_LOADED):
                raise

    async def set_properties(self, name: str, properties: Mapping[str, Property]) -> None:
        bus = await self._connection()
        async with self._turns:
            await bus.call(SERVICE, PATH, MANAGER, "SetUnitProperties", "sba(sv)", [name, True, _pairs(properties)])

    # --- inside ---------------------------------------------------------------------------------

    async def _connection(self) -> Bus:
        # The lock keeps a burst of pods from opening a connection each.
        async with self._opening:
            if self._bus is None or not self._bus.is_open:
                await self.close()
                self._bus = await self._connect()
                await self._bus.call(SERVICE, PATH, MANAGER, "Subscribe")
                rule = f"sender='{SERVICE}',interface='{MANAGER}',member='JobRemoved'"
                await self._bus.listen(rule, self._signal)
            return self._bus

    async def _job(self, member: str, signature: str, body: Sequence[Any]) -> None:
        bus = await self._connection()
        self._calls += 1
        try:
            async with self._turns:
                reply = await bus.call(SERVICE, PATH, MANAGER, member, signature, body)
            result = await self._result(str(reply.body[0]), f"{member} {body[0]}")
        finally:
            self._calls -= 1
            if not self._calls:
                self._early.clear()
        if result not in ("done", "skipped"):
            raise BusRefused(f"{SERVICE}.JobFailed", f"{member} {body[0]} ended as {result}")

    async def _result(self, job: str, what: str) -> str:
        if job in self._early:
            return self._early.pop(job)
        self._awaited[job] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(JOB_SECONDS):
                return await self._awaited[job]
        except TimeoutError as error:
            raise BusDown(f"systemd did not finish {what} within {JOB_SECONDS:g}s") from error
        finally:
            del self._awaited[job]

    def _signal(self, interface: str, member: str, body: Sequence[Any]) -> None:
        if interface != MANAGER or member != "JobRemoved":
            return
        job, result = str(body[1]), str(body[3])
        waiter = self._awaited.get(job)
        if waiter is None:
            if self._calls:  # else no call waits for it
                self._early[job] = result
        elif not waiter.done():
            waiter.set_result(result)


def _pairs(properties: Mapping[str, Property]) -> list[list[Any]]:
    return [[name, _variant(value)] for name, value in properties.items()]


def _variant(value: Property) -> Variant:
    from dbus_fast import Variant

    match value:
        case bool():
            return Variant("b", value)
        case int():
            return Variant("t", value)
        case str():
            return Variant("s", value)
        case list():
            return Variant("as", value)


logger = logging.getLogger(__name__)

UNLIMITED = (1 << 64) - 1
SECOND_US = 1_000_000
QUOTA_STEP_US = 10_000
"""systemd keeps whole percents of a CPU only; less precise than the kernel, so it is rounded up."""
MEMORY_PROPERTIES = {"memory.min": "MemoryMin", "memory.low": "MemoryLow", "memory.high": "MemoryHigh"}


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
                await self._systemd.start_unit(name, {**new_slice(name, parent, unified=self._unified), **wanted})
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


def new_slice(name: str, parent: str, *, unified: bool) -> dict[str, Property]:
    """Properties of every slice, beside its limits. Accounting makes systemd enable the controllers."""
    disks: dict[str, Property] = {"IOAccounting": True} if unified else {}
    return disks | {
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
        if unified and limits.cpu_period_us != PERIOD_US:
            found["CPUQuotaPeriodUSec"] = limits.cpu_period_us
    if limits.memory_bytes is not None:
        name = "MemoryMax" if unified else "MemoryLimit"
        found[name] = limits.memory_bytes if limits.memory_bytes > 0 else UNLIMITED
    if limits.pids is not None:
        found["TasksMax"] = limits.pids if limits.pids > 0 else UNLIMITED
    for file, value in limits.unified.items():
        if unified and file in MEMORY_PROPERTIES:
            found[MEMORY_PROPERTIES[file]] = UNLIMITED if value == "max" else int(value)
    return found


def quota_per_second(quota_us: int, period_us: int) -> int:
    if quota_us <= 0:
        return UNLIMITED
    exact = quota_us * SECOND_US // period_us
    return -(-exact // QUOTA_STEP_US) * QUOTA_STEP_US
