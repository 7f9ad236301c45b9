"""Programs of others that extend the node, made together: who finds them, and what each kind of them is for.

Storage drivers need an API server, which knows the volumes; without one they are not taken. Constructors only store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod, ResourceStatus
from pykubelet.api_server import ApiServer
from pykubelet.cm.capacity import NO_DEVICES, DeviceAmounts
from pykubelet.cm.device_manager import DeviceManager
from pykubelet.cm.dra_manager import DraManager, has_claims
from pykubelet.cm.plugin_manager import PluginHandler, PluginManager
from pykubelet.cm.resource_managers import PinningManager
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.kit.mailbox import Signal
from pykubelet.kit.tasks import Service, TaskSet
from pykubelet.model.assigned import Assigned
from pykubelet.model.errors import PykubeletError
from pykubelet.model.events import ClaimSink
from pykubelet.model.life import LifeRecorder
from pykubelet.model.pod import all_containers, uid_of
from pykubelet.model.runtime_status import ContainerState
from pykubelet.pleg.cache import PodStatusCache
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.table import PodTable
from pykubelet.signals import NodeStatusChanged
from pykubelet.sync.worker import PodWorkers
from pykubelet.volumes.build import Volumes
from pykubelet.wiring.devices import ClaimShares, DeviceHints, amounts_of, health_statuses

logger = logging.getLogger(__name__)


class Sweeps:
    """Chores of housekeeping that wait for plugins, done beside it: one that hangs must hold up nothing else."""

    name = "plugin sweeps"

    def __init__(self, chores: Sequence[Callable[[], Awaitable[None]]]) -> None:
        self._chores = [(chore, Signal()) for chore in chores]

    async def soon(self) -> None:
        for _, due in self._chores:
            due.set()

    async def run(self) -> None:
        async with TaskSet(self.name) as tasks:
            for chore, due in self._chores:
                tasks.spawn(self._repeat(chore, due), name="plugin sweep")
            await asyncio.Event().wait()

    async def _repeat(self, chore: Callable[[], Awaitable[None]], due: Signal) -> None:
        while True:
            await due.wait()
            try:
                await chore()
            except (PykubeletError, OSError) as error:
                logger.warning("a clean-up chore failed, will retry", extra={"error": str(error)})


class PluginParts(Struct, frozen=True, kw_only=True):
    devices: DeviceManager | None = None
    claims: DraManager | None = None
    table: PodTable
    managers: list[Service] = field(default_factory=list)
    chores: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """For housekeeping."""
    finders: list[Service] = field(default_factory=list)
    """Start after the managers: they bring in plugins."""
    numa_nodes: tuple[int, ...] = (0,)

    def _retry_claims(self, workers: PodWorkers) -> None:
        for pod in self.table.pods():
            if has_claims(pod):
                workers.retry_now(uid_of(pod))

    def open(self) -> None:
        """Read what an earlier life left, before anything starts."""
        if self.devices is not None:
            self.devices.open()
        if self.claims is not None:
            self.claims.open()

    def assigned(self) -> Assigned:
        found = Assigned(devices=self.devices) if self.devices is not None else Assigned()
        return replace(found, claims=ClaimShares(self.claims, self.table)) if self.claims is not None else found

    def holds_claims(self, uid: str) -> bool:
        """Whether dynamic resources of the pod must still be given back."""
        return self.claims is not None and self.claims.holds(uid)

    def amounts(self) -> DeviceAmounts:
        return amounts_of(self.devices) if self.devices is not None else NO_DEVICES

    def has_no_history(self) -> bool:
        """Whether amounts of devices that the Node still lists are nobody's word any more."""
        return self.devices is not None and not self.devices.had_checkpoint

    def with_devices(self, node: NodeInfo) -> NodeInfo:
        """Admission judges by what plugins say now, which the API server may not know yet."""
        if self.devices is None:
            return node
        amounts = {name: Quantity.of(count) for name, count in self.devices.admissible().items()}
        return replace(node, allocatable={**node.allocatable, **amounts}) if amounts else node

    def health(self, pod: Pod, container: str) -> list[ResourceStatus]:
        """How the devices are that a container holds, whichever way it got them."""
        found = health_statuses(self.devices, uid_of(pod), container) if self.devices is not None else []
        if self.claims is not None and pod.spec.resource_claims:
            own = next((each for _, each in all_containers(pod) if each.name == container), None)
            found += self.claims.health_of(pod, own) if own is not None else []
        return found

    def join(self, workers: PodWorkers, pinning: PinningManager, ctx: Context) -> None:
        devices = self.devices
        if self.claims is not None:
            self.claims.on_health = workers.sync_now
            self.claims.drivers.on_registered = lambda: self._retry_claims(workers)
        if devices is not None:
            devices.on_health = workers.sync_now
            devices.on_capacity = lambda: ctx.signals.publish(NodeStatusChanged())
            pinning.add_provider(DeviceHints(devices=devices, nodes=self.numa_nodes))


def plugin_parts(
    edges: Edges,
    api: ApiServer,
    *,
    volumes: Volumes,
    table: PodTable,
    cache: PodStatusCache,
    events: ClaimSink,
    recorder: LifeRecorder,
    sources_ready: Callable[[], bool],
) -> PluginParts:
    if edges.plugins is None:
        return PluginParts(table=table)
    metrics = edges.metrics
    folder = edges.paths.device_plugins
    devices = DeviceManager(
        folder=folder,
        connect=edges.plugins.devices,
        read_handed=edges.plugins.read_handed,
        clock=edges.clock,
        metrics=metrics,
        recorder=recorder,
        is_running=lambda uid, container: _is_running(cache, uid, container),
    )
    handlers: dict[str, PluginHandler] = {"DevicePlugin": devices}
    managers: list[Service] = [devices]
    chores: list[Callable[[], Awaitable[None]]] = []
    claims: DraManager | None = None
    if volumes.csi_drivers is not None:
        handlers["CSIPlugin"] = volumes.csi_drivers
    if api.resource_claims is not None:
        claims = DraManager(
            root=edges.paths.root,
            connect=edges.plugins.dra,
            objects=api.resource_claims,
            events=events,
            clock=edges.clock,
            metrics=metrics,
            recorder=recorder,
        )
        handlers["DRAPlugin"] = claims.drivers
        of_volumes = [volumes.csi.sweep] if volumes.csi is not None else []
        sweeps = Sweeps([*of_volumes, partial(claims.sweep, table.could_have_running_containers)])
        managers += [claims, sweeps]
        chores.append(sweeps.soon)
    manager = PluginManager(
        folder=edges.paths.plugin_sockets,
        registrations=edges.plugins.registrations,
        handlers=handlers,
        clock=edges.clock,
        metrics=metrics,
        may_start=sources_ready,
    )
    return PluginParts(
        devices=devices,
        claims=claims,
        table=table,
        managers=managers,
        chores=chores,
        finders=[manager, edges.plugins.device_registry(folder, devices.take)],
        numa_nodes=tuple(node.id for node in edges.topology.nodes) if edges.topology is not None else (0,),
    )


def _is_running(cache: PodStatusCache, uid: str, container: str) -> bool:
    return any(
        each.name == container and each.state is ContainerState.RUNNING for each in cache.last_known(uid).containers
    )
