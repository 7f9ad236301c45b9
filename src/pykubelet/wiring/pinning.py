"""The CPU, memory and topology managers, made together, and the small adapters by which the rest reaches them.

`app.py` takes the finished parts: the check in admission, what containers are created with, the view for others.
Settings that this machine cannot have are refused here; checkpoints are read by `open`, before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.cm import cpu_manager, cpu_state, memory_manager, memory_state
from pykubelet.cm.capacity import kept_from_pods, machine_capacity
from pykubelet.cm.cpu_manager import StaticCpus, reserved_cpus
from pykubelet.cm.cpu_state import CpuState
from pykubelet.cm.cpuset_reconciler import CpusetKeeper, RunningContainer
from pykubelet.cm.errors import PinningProblem
from pykubelet.cm.memory_manager import StaticMemory, kept_memory
from pykubelet.cm.memory_state import MemoryState
from pykubelet.cm.metrics import PinningMetrics
from pykubelet.cm.policy_options import CPU_FIELD, CpuOptions, cpu_options, topology_options
from pykubelet.cm.resource_managers import PinningManager
from pykubelet.cm.topology_manager import NONE, HintProvider, Merger, TopologyManager
from pykubelet.edges import Edges
from pykubelet.model.assigned import Assigned
from pykubelet.model.pod_resources import CPU
from pykubelet.model.topology import Topology, flat_topology, parse_cpu_list
from pykubelet.pods.table import PodTable
from pykubelet.settings.settings import Settings
from pykubelet.signals import ContainerStarted


class KnownPods(Struct, frozen=True, kw_only=True):
    """Implements pinning.manager.Pods."""

    table: PodTable
    ready: Callable[[], bool]

    def may_run(self, uid: str) -> bool:
        return self.table.could_have_running_containers(uid)

    def is_wanted(self, uid: str) -> bool:
        return self.table.is_desired(uid)

    def sources_ready(self) -> bool:
        return self.ready()


class PinningParts(Struct, frozen=True, kw_only=True):
    manager: PinningManager
    keeper: CpusetKeeper

    def assigned(self, others: Assigned | None = None) -> Assigned:
        return replace(others or Assigned(), cpus=self.manager, memory=self.manager)

    def container_started(self, started: ContainerStarted) -> None:
        """A container that has just started may have been made before the pool changed."""
        self.keeper.soon()

    async def sweep(self) -> None:
        self.manager.release_gone()


def pinning_parts(
    settings: Settings,
    edges: Edges,
    *,
    table: PodTable,
    sources_ready: Callable[[], bool],
) -> PinningParts:
    chosen, gates = settings.config.managers, settings.gates
    machine = edges.machine
    topology = edges.topology or flat_topology(machine.cpus, machine.memory_bytes, machine.hugepages)
    pod_level = gates.enabled("PodLevelResourceManagers") and gates.enabled("PodLevelResources")
    metrics = PinningMetrics(edges.metrics)
    root = edges.paths.root
    books = _Books.at(root, settings, pod_level=pod_level)
    withheld = kept_from_pods(settings, machine_capacity(machine, settings.config.cgroups, None))
    cpus = _cpus(settings, topology, withheld, books.cpus, metrics, pod_level=pod_level)
    memory: StaticMemory | None = None
    if chosen.memory_manager_policy == memory_manager.STATIC:
        kept = kept_memory(topology, chosen.reserved_memory, withheld)
        memory = StaticMemory(topology=topology, kept=kept, state=books.memory, metrics=metrics, pod_level=pod_level)
    providers: list[HintProvider] = [each for each in (cpus, memory) if each is not None]
    keeper = CpusetKeeper(
        cri=edges.cri,
        running=lambda: _running(table) if cpus is not None else (),
        cpus_of=books.cpus.owned_or_shared,
        period=chosen.cpu_manager_reconcile_period if cpus is not None else 0.0,
    )
    manager = PinningManager(
        cpu_state=books.cpus,
        memory_state=books.memory,
        cpus=cpus,
        memory=memory,
        topology=TopologyManager(
            merger=_merger(settings, topology),
            scope=chosen.topology_manager_scope,
            providers=providers,
            metrics=metrics,
            pod_level=pod_level,
        ),
        keeper=keeper,
        pods=KnownPods(table=table, ready=sources_ready),
        pod_level=pod_level,
    )
    return PinningParts(manager=manager, keeper=keeper)


class _Books(Struct, frozen=True, kw_only=True):
    cpus: CpuState
    memory: MemoryState

    @classmethod
    def at(cls, root: Path, settings: Settings, *, pod_level: bool) -> _Books:
        chosen = settings.config.managers
        return cls(
            cpus=CpuState(root / cpu_state.STATE_FILE, policy=chosen.cpu_manager_policy, pod_level=pod_level),
            memory=MemoryState(
                root / memory_state.STATE_FILE, policy=chosen.memory_manager_policy, pod_level=pod_level
            ),
        )


def _cpus(
    settings: Settings,
    topology: Topology,
    kept: dict[str, Quantity],
    state: CpuState,
    metrics: PinningMetrics,
    *,
    pod_level: bool,
) -> StaticCpus | None:
    chosen = settings.config.managers
    if chosen.cpu_manager_policy != cpu_manager.STATIC:
        if chosen.cpu_manager_policy_options:
            raise PinningProblem(f"{CPU_FIELD}: cpuManagerPolicy {chosen.cpu_manager_policy} has no options")
        return None
    options: CpuOptions = cpu_options(
        chosen.cpu_manager_policy_options,
        enabled=settings.gates.enabled,
        topology=topology,
        topology_policy=chosen.topology_manager_policy,
    )
    named = parse_cpu_list(settings.config.reservations.reserved_system_cpus)
    return StaticCpus(
        topology=topology,
        reserved=reserved_cpus(topology, named, kept.get(CPU, ZERO), options),
        options=options,
        state=state,
        metrics=metrics,
        pod_level=pod_level,
    )


def _merger(settings: Settings, topology: Topology) -> Merger:
    chosen = settings.config.managers
    nodes = tuple(node.id for node in topology.nodes)
    if chosen.topology_manager_policy == NONE:
        return Merger(policy=NONE, nodes=nodes)
    options = topology_options(chosen.topology_manager_policy_options, topology=topology)
    distances = {node.id: node.distances for node in topology.nodes} if options.closest else None
    return Merger(policy=chosen.topology_manager_policy, nodes=nodes, distances=distances)


def _running(table: PodTable) -> Iterator[RunningContainer]:
    for record in table:
        if record.worker is not None and record.runtime is not None:
            for each in record.runtime.status.running():
                yield RunningContainer(pod_uid=record.uid, name=each.name, id=each.id)
