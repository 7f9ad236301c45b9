"""The single source of stats: reads the node on request and keeps the reading for a moment.

Summary, metrics, eviction and `top` ask here, so scrapes that fall together cost one reading. Usage is read each time;
limits, disks and process tables change slowly or cost much and are read less often. Reading happens in a thread. Does
not cover volumes (volumes.py) nor how stats are shown.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from pykubelet.clients.cri.port import CriClient
from pykubelet.edges import GuardEdges
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import finish, gather_all
from pykubelet.model.errors import CriError, Unimplemented
from pykubelet.model.stats import (
    CgroupBounds,
    CgroupDetail,
    CgroupUsage,
    DiskCounters,
    NetworkCounters,
    ProcessCounts,
    TaskCounts,
)
from pykubelet.pods.table import PodTable
from pykubelet.stats.disk import READ_WITHIN, DiskReader, DiskSample, Run, StatPaths, read_host
from pykubelet.stats.runtime_stats import sample_of
from pykubelet.stats.snapshot import (
    CgroupNames,
    ContainerSample,
    Group,
    Look,
    NodeSample,
    PodItem,
    PodSample,
    Snapshot,
    pod_groups,
    sum_of,
    take_inventory,
)
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)

ROOT = "/"
SHORTEST_NS = 1_000_000_000
LONGEST_NS = 10_000_000_000
ANSWER_WITHIN = 10.0
"""Seconds that the runtime has for the figures of all pods."""
MOST_IMAGES = 64
"""Sandboxes whose image is requested in one reading."""
MOST_PROCESSES = 64
"""How many processes of one container have their descriptors counted."""


class StatsSettings(Struct, frozen=True, kw_only=True):
    cgroups: CgroupNames = field(default_factory=CgroupNames)
    system_cgroups: Mapping[str, str] = field(default_factory=dict)
    """Name in the summary (kubelet, runtime, misc) to cgroup."""
    fresh_for: float = 1.0
    """Seconds for which one reading serves all requests."""
    disks_every: float = 10.0
    bounds_every: float = 30.0
    processes_every: float = 60.0
    from_runtime: bool = False
    """Gate PodAndContainerStatsFromCRI: pods are measured by the runtime, cgroups are read for the node alone."""


class _Reading(Struct, kw_only=True):
    """What one pass in the thread found."""

    usages: dict[str, CgroupUsage] = field(default_factory=dict)
    details: dict[str, CgroupDetail] = field(default_factory=dict)
    networks: dict[str, NetworkCounters] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    """When the groups that are no pod's were made."""
    node_network: NetworkCounters | None = None
    tasks: TaskCounts | None = None
    disks: tuple[DiskCounters, ...] = ()


class StatsProvider:
    def __init__(
        self,
        guard: GuardEdges,
        *,
        cri: CriClient,
        table: PodTable,
        paths: StatPaths,
        clock: Clock,
        settings: StatsSettings,
        run: Run[Any] = read_host,
    ) -> None:
        host = guard.host
        self._cgroups = guard.cgroups
        self._host = host
        self._table = table
        self._clock = clock
        self._settings = settings
        self._run = run
        self._cri = cri
        self._sandbox_images: dict[str, str] = {}
        self._disk_reader = DiskReader(cri=cri, host=host, paths=paths, clock=clock)
        self._lock = asyncio.Lock()
        self._rates = CpuRates()
        self._boot = host.boot_seconds()
        self._places: dict[str, str] = {}
        """Container and sandbox ids to cgroups."""
        self._bounds: dict[str, CgroupBounds] = {}
        self._processes: dict[str, ProcessCounts] = {}
        self._disk = DiskSample()
        self.disk_problem: CriError | None = None
        """Why the latest attempt to read disk stats failed."""
        self._due: dict[str, float] = {}
        self._has_unlocated = False
        """Some running container has no known cgroup: its stats come from the runtime."""
        self._load = (0.0, 0)
        self._runtime_cannot = False
        """The runtime does not measure pods, and that was logged."""
        self._last: dict[Look, tuple[float, Snapshot]] = {}

    @property
    def disk(self) -> DiskSample:
        """Return the latest disk stats, however old."""
        return self._disk

    async def snapshot(self, look: Look, *, stale_disk: bool = False, at_most: float | None = None) -> Snapshot:
        """The node now, or at most `at_most` seconds ago.

        Raises CriError when the runtime does not answer, unless older disk stats suffice (`stale_disk`).
        """
        oldest = self._clock.monotonic() - (self._settings.fresh_for if at_most is None else at_most)
        async with self._lock:
            is_bad = look > Look.USAGE and self.disk_problem is not None and not stale_disk
            for wider in range(look, Look.EVERYTHING + 1):
                known = self._last.get(Look(wider))
                if known is not None and known[0] >= oldest and not is_bad:
                    return known[1]
            return await self._read_all(look, stale_disk)

    async def _read_all(self, look: Look, stale_disk: bool) -> Snapshot:
        full = look > Look.USAGE
        started = self._clock.monotonic()
        settings = self._settings
        groups = pod_groups(self._table.pods(), settings.cgroups)
        inventory = take_inventory(self._table, groups, self._sandbox_images)
        measured = await self._measured(full) if settings.from_runtime else None
        if look is Look.EVERYTHING and measured is None and await self._learn_images(inventory):
            inventory = take_inventory(self._table, groups, self._sandbox_images)
        if (full or self._has_unlocated) and self._is_due("disks", settings.disks_every):
            try:
                self._disk = await self._read_disk(inventory)
                self.disk_problem = None
            except CriError as error:
                self.disk_problem = error
                self._due.pop("disks", None)  # the next reading tries again
                if full and not stale_disk:
                    raise
        bounds_due = self._is_due("bounds", settings.bounds_every)
        processes_due = look is Look.EVERYTHING and self._is_due("processes", settings.processes_every)
        # To its end even when the caller is cancelled: the thread works on this object's state.
        looked_at = inventory if measured is None else ()
        reading = await finish(self._reading(looked_at, look, bounds_due, processes_due), within=READ_WITHIN)
        snapshot = self._assemble(inventory, reading, measured)
        self._last[look] = (started, snapshot)
        return snapshot

    async def _measured(self, full: bool) -> Mapping[str, cri_pb2.PodSandboxStats] | None:
        """The runtime's figures by sandbox; None where cgroups are read: it has no such call, or does not answer now.

        Eviction must see memory run out although the runtime hangs, so only a full look depends on its answer.
        """
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                found = await self._cri.list_pod_sandbox_stats()
        except Unimplemented as error:
            if not self._runtime_cannot:
                logger.warning("the runtime does not measure pods, cgroups are read", extra={"error": str(error)})
            self._runtime_cannot = True
            return None
        except (CriError, TimeoutError) as error:
            if full:
                raise CriError(str(error) or f"no figures of pods within {ANSWER_WITHIN:g} s") from error
            return None
        return {each.attributes.id: each for each in found}

    async def _learn_images(self, inventory: Sequence[PodItem]) -> bool:
        """Read the images of new sandboxes; return whether there were any. What fails is tried at the next reading."""
        known = self._sandbox_images
        wanted = [pod.sandbox_id for pod in inventory if pod.sandbox_id]
        new = [each for each in wanted if each not in known][:MOST_IMAGES]
        self._sandbox_images = {each: known[each] for each in wanted if each in known}

        async def learn(sandbox: str) -> None:
            try:
                self._sandbox_images[sandbox] = await self._cri.sandbox_image(sandbox)
            except CriError as error:
                logger.debug("image of a sandbox not known", extra={"sandbox": sandbox, "error": str(error)})

        await gather_all(*(learn(each) for each in new))
        return bool(new)

    def _is_due(self, what: str, period: float) -> bool:
        now = self._clock.monotonic()
        if now < self._due.get(what, -math.inf):
            return False
        self._due[what] = now + period
        return True

    async def _reading(
        self, inventory: Sequence[PodItem], look: Look, bounds_due: bool, processes_due: bool
    ) -> _Reading:
        found: _Reading = await self._run(lambda: self._read(inventory, look, bounds_due, processes_due))
        return found

    def idle(self) -> list[str]:
        """Return pods of which no container runs: no snapshot has them, and they use no memory."""
        uids = [pod.metadata.uid or "" for pod in self._table.pods()]
        return [uid for uid in uids if not self._table.runtime_status(uid).running()]

    async def disks(self, uids: Collection[str] | None) -> DiskSample:
        """Read disk stats of some pods, or of all, without the cost of a whole snapshot. Raises CriError."""
        every = take_inventory(self._table, pod_groups(self._table.pods(), self._settings.cgroups))
        return await self._read_disk([pod for pod in every if uids is None or pod.uid in uids], uids)

    async def _read_disk(self, inventory: Sequence[PodItem], uids: Collection[str] | None = None) -> DiskSample:
        layers, usages = await self._disk_reader.runtime_stats(uids)
        image_fs_info = await self._disk_reader.image_filesystems()
        found: DiskSample = await self._run(lambda: self._disk_reader.read(inventory, layers, usages, image_fs_info))
        return found

    # --- in the thread; one at a time by the lock -------------------------------------------------------------

    def _read(self, inventory: Sequence[PodItem], look: Look, bounds_due: bool, processes_due: bool) -> _Reading:
        if bounds_due:
            self._bounds = {}
        if processes_due:
            self._processes = {}
        self._locate(inventory)
        reading = _Reading()
        names = self._settings.cgroups
        self._read_group(ROOT, reading, look)
        for path in (names.pods(), *self._settings.system_cgroups.values(), *names.classes()):
            self._read_group(path, reading, look)
            reading.made[path] = self._cgroups.created_ns(path)
        for pod in inventory:
            if pod.group is not None:
                self._read_group(pod.group, reading, look)
            for container in pod.containers:
                place = self._places.get(container.id)
                if place is not None:
                    self._read_group(place, reading, look, leaf=True)
                    if look is Look.EVERYTHING and place not in self._processes:
                        pids = self._cgroups.processes(place)[:MOST_PROCESSES]
                        self._processes[place] = self._host.processes(pids)
            if look > Look.USAGE:
                self._read_sandbox(pod, reading, look)
        if look > Look.USAGE:
            now = self._clock.now_ns()
            reading.node_network = self._host.network(now)
            reading.tasks = self._host.tasks(now)
        if look is Look.EVERYTHING:
            reading.disks = self._host.disks()
        return reading

    def _locate(self, inventory: Sequence[PodItem]) -> None:
        known, self._places = self._places, {}
        self._has_unlocated = False
        for pod in inventory:
            parent = pod.group if pod.group is not None else self._settings.cgroups.root
            for wanted in (pod.sandbox_id, *(container.id for container in pod.containers)):
                place = known.get(wanted) or self._cgroups.locate(parent, wanted)
                if place is not None:
                    self._places[wanted] = place
                elif wanted != pod.sandbox_id:
                    self._has_unlocated = True

    def _read_group(self, path: str, reading: _Reading, look: Look, *, leaf: bool = False) -> None:
        usage = self._cgroups.usage(path, self._clock.now_ns())
        if usage is None:
            return
        reading.usages[path] = usage
        bounds = self._bounds.get(path)
        if bounds is None:
            bounds = self._bounds[path] = self._cgroups.bounds(path)
        if look > Look.USAGE:
            reading.details[path] = self._cgroups.detail(path, bounds, leaf=leaf, counters=look is Look.EVERYTHING)

    def _read_sandbox(self, pod: PodItem, reading: _Reading, look: Look) -> None:
        now = self._clock.now_ns()
        place = self._places.get(pod.sandbox_id) if look is Look.EVERYTHING else None
        if place is not None and (usage := self._cgroups.usage(place, now)) is not None:
            reading.usages[place] = usage
        if not pod.host_network and (network := self._pod_network(pod, now)) is not None:
            reading.networks[pod.uid] = network

    def _pod_network(self, pod: PodItem, now: int) -> NetworkCounters | None:
        """Read through a process of the sandbox, or of a container where the sandbox has none (CRI-O)."""
        for member in (pod.sandbox_id, *(container.id for container in pod.containers)):
            # Read each time: the kernel may have reused a process id that was kept.
            place = self._places.get(member)
            pids = self._cgroups.processes(place) if place is not None else ()
            if pids:
                return self._host.network(now, pids[0])
        return None

    # --- back on the loop -------------------------------------------------------------------------------------

    def _assemble(
        self,
        inventory: Sequence[PodItem],
        reading: _Reading,
        measured: Mapping[str, cri_pb2.PodSandboxStats] | None,
    ) -> Snapshot:
        settings = self._settings
        system = {name: self._group(path, reading) for name, path in settings.system_cgroups.items()}
        system["pods"] = self._group(settings.cgroups.pods(), reading)
        node = NodeSample(
            boot_seconds=self._boot,
            root=self._group(ROOT, reading),
            system={name: group for name, group in system.items() if group.usage is not None},
            classes=tuple(self._group(path, reading) for path in settings.cgroups.classes()),
            network=reading.node_network,
            tasks=reading.tasks,
            load=self._smoothed(reading.tasks),
            disks=reading.disks,
            fs=self._disk.fs,
            image_fs=self._disk.image_fs,
            container_fs=self._disk.container_fs,
            filesystems=self._disk.filesystems,
        )
        if measured is None:
            pods = tuple(self._pod(item, reading) for item in inventory)
        else:
            pods = tuple(
                sample_of(item, stats, self._disk, self._rates.update)
                for item in inventory
                if (stats := measured.get(item.sandbox_id)) is not None
            )
        known = {each.id for pod in inventory for each in pod.containers} | {pod.sandbox_id for pod in inventory}
        self._rates.keep(reading.usages.keys() | known)
        return Snapshot(time_ns=self._clock.now_ns(), node=node, pods=pods)

    def _group(self, path: str, reading: _Reading) -> Group:
        usage = reading.usages.get(path)
        rate = None
        if usage is not None and usage.cpu_ns is not None:
            rate = self._rates.update(path, usage.time_ns, usage.cpu_ns)
        return Group(
            path=path,
            usage=usage,
            rate=rate,
            detail=reading.details.get(path),
            bounds=self._bounds.get(path),
            created_ns=reading.made.get(path, 0),
        )

    def _pod(self, item: PodItem, reading: _Reading) -> PodSample:
        disk = self._disk
        containers = []
        for each in item.containers:
            place = self._places.get(each.id, "")
            group = self._group(place, reading)
            if group.usage is None and (usage := disk.usages.get(each.id)) is not None:
                rate = self._rates.update(each.id, usage.time_ns, usage.cpu_ns) if usage.cpu_ns is not None else None
                group = Group(path=place, usage=usage, rate=rate)
            containers.append(
                ContainerSample(
                    item=each,
                    group=group,
                    layer=disk.layers.get(each.id),
                    logs=disk.logs.get((item.uid, each.name)),
                    processes=self._processes.get(place),
                )
            )
        group = self._group(item.group, reading) if item.group is not None else Group(path="")
        if group.usage is None:
            group = sum_of(containers, group.path)
        sandbox = self._places.get(item.sandbox_id)
        return PodSample(
            item=item,
            group=group,
            sandbox=self._group(sandbox, reading) if sandbox is not None else None,
            network=reading.networks.get(item.uid),
            containers=tuple(containers),
            own_logs=disk.own_logs.get(item.uid),
            etc_hosts=disk.etc_hosts.get(item.uid),
        )

    def _smoothed(self, tasks: TaskCounts | None) -> float:
        if tasks is not None:
            value, at = self._load
            keep = math.exp(-max(0, tasks.time_ns - at) / 10e9)
            self._load = (value * keep + tasks.running * (1 - keep), tasks.time_ns)
        return self._load[0]


class CpuRates:
    """CPU in use, from two readings of a counter that only grows.

    Readings closer together than a second are too short to divide by; the last rate stands then. After ten seconds a
    reading becomes the new base, so the rate is of the last one to ten seconds, or since the reading before that.
    """

    def __init__(self) -> None:
        self._bases: dict[str, tuple[int, int]] = {}
        self._rates: dict[str, int] = {}

    def update(self, key: str, time_ns: int, cpu_ns: int) -> int | None:
        """Nanoseconds of CPU per second; None after only one reading."""
        base = self._bases.get(key)
        if base is None or time_ns < base[0] or cpu_ns < base[1]:  # new, or the cgroup was created again
            self._bases[key] = (time_ns, cpu_ns)
            self._rates.pop(key, None)
            return None
        passed = time_ns - base[0]
        if passed >= SHORTEST_NS:
            self._rates[key] = (cpu_ns - base[1]) * 1_000_000_000 // passed
        if passed >= LONGEST_NS:
            self._bases[key] = (time_ns, cpu_ns)
        return self._rates.get(key)

    def keep(self, keys: Container[str]) -> None:
        """Forget all others."""
        for key in [key for key in self._bases if key not in keys]:
            del self._bases[key]
            self._rates.pop(key, None)
