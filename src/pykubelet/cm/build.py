"""Build the container manager: everything that allocates the machine to pods.

Settings that this machine cannot have are refused here; `open` reads the checkpoints, before anything starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct

from pykubelet.api.quantity import ZERO, Quantity
from pykubelet.api.types import Pod, ResourceStatus
from pykubelet.cm import cpu_manager, memory_manager
from pykubelet.cm.admission import NodeNow, PodAdmission
from pykubelet.cm.allocation import AllocationManager
from pykubelet.cm.capacity import NO_DEVICES, DeviceAmounts, kept_from_pods, machine_capacity
from pykubelet.cm.cgroups import OwnGroup, PodCgroups, SystemGroup, add_protection_metrics, cgroup_rules
from pykubelet.cm.container_resources import AssignedResources, ContainerResourceSource
from pykubelet.cm.cpu_manager import CPU_FIELD, StaticCpuPolicy, cpu_options, reserved_cpus
from pykubelet.cm.device_manager import DeviceManager
from pykubelet.cm.dra_drivers import ClaimObjects
from pykubelet.cm.dra_manager import DraManager
from pykubelet.cm.errors import ResourceManagerError
from pykubelet.cm.memory_manager import StaticMemoryPolicy, kept_memory
from pykubelet.cm.metrics import ResourceManagerMetrics
from pykubelet.cm.node_allocatable import NodeAllocatable, node_limits
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.cm.plugin_manager import PluginHandler, PluginManager
from pykubelet.cm.resize import resize_rules
from pykubelet.cm.resource_managers import CpusetReconciler, ResourceManagers, running_containers
from pykubelet.cm.state import CPU_STATE_FILE, MEMORY_STATE_FILE, CpuState, ManagerStates, MemoryState
from pykubelet.cm.topology_manager import NONE, HintProvider, Merger, TopologyManager, topology_options
from pykubelet.cm.user_namespaces import Handlers, PodUserNamespaces, pod_user_namespaces
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.kit.tasks import Chore, Service, Services
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import uid_of
from pykubelet.model.pod_resources import CPU
from pykubelet.model.topology import Topology, flat_topology, parse_cpu_list
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.sysctls import SysctlAllowList
from pykubelet.pods.table import PodTable


class ContainerManager(Struct, frozen=True, kw_only=True):
    resource_managers: ResourceManagers
    devices: DeviceManager | None
    dra: DraManager | None
    admission: PodAdmission
    allocation: AllocationManager
    cgroups: PodCgroups
    user_namespaces: PodUserNamespaces
    container_resources: ContainerResourceSource
    assigned: AssignedResources
    plugin_handlers: Mapping[str, PluginHandler]
    """By the type that plugins register with."""
    chores: Sequence[Callable[[], Awaitable[None]]]
    """For housekeeping."""
    services: Services

    def open(self) -> None:
        """Read the checkpoints. PykubeletError when the agent must not start with them."""
        self.resource_managers.open()
        if self.devices is not None:
            self.devices.open()
        if self.dra is not None:
            self.dra.open()

    def device_amounts(self) -> DeviceAmounts:
        return self.devices.amounts() if self.devices is not None else NO_DEVICES

    def is_device_capacity_stale(self) -> bool:
        """True when there was no checkpoint: device capacity that the Node still shows counts no more."""
        return self.devices is not None and not self.devices.had_checkpoint

    def device_health(self, pod: Pod, container: str) -> list[ResourceStatus]:
        """Health of all devices of a container, from plugins and from DRA drivers."""
        found = self.devices.health_statuses(uid_of(pod), container) if self.devices is not None else []
        return found + (self.dra.health_statuses(pod, container) if self.dra is not None else [])

    def has_prepared_claims(self, uid: str) -> bool:
        return self.dra is not None and self.dra.has_prepared(uid)


def build(
    ctx: Context,
    edges: Edges,
    spec: NodeSpec,
    table: PodTable,
    node: NodeNow,
    sources_ready: Callable[[], bool],
    claim_objects: ClaimObjects | None,
    runtime_classes: Handlers,
    runtime_state: RuntimeState,
) -> ContainerManager:
    """`claim_objects` is None without an API server: then there are no resource claims."""
    settings, machine = ctx.settings, _machine(ctx, edges)
    devices, dra = _devices(ctx, edges, machine.topology, table), _dra(ctx, edges, claim_objects, table)
    managers = _resource_managers(ctx, edges, machine, devices, table, sources_ready)
    admission = PodAdmission(
        node=node,
        sysctls=SysctlAllowList.for_kernel(edges.machine.kernel, settings.config.runtime.allowed_unsafe_sysctls),
        gates=settings.gates,
        managers=managers,
        devices=devices,
        apparmor_problem=None if edges.machine.apparmor else "AppArmor is not enabled on the host",
        runtime=lambda: runtime_state.conditions,
    )
    allocation = AllocationManager(
        ctx,
        root=edges.paths.root,
        admission=admission,
        table=table,
        sources_ready=sources_ready,
        rules=resize_rules(settings, spec),
    )
    cgroups, groups = _cgroups(ctx, edges, spec, managers, allocation)
    services = Services(sinks=[managers], managers=[allocation, *groups, *([devices] if devices is not None else [])])
    chores: list[Callable[[], Awaitable[None]]] = [managers.sweep]
    handlers: dict[str, PluginHandler] = {} if devices is None else {"DevicePlugin": devices}
    if dra is not None:
        sweep = Chore("claims of pods that are gone", dra.sweep, may_raise=(PykubeletError, OSError))
        services.managers += [dra, sweep]
        chores.append(sweep.soon)
        handlers["DRAPlugin"] = dra.drivers
    return ContainerManager(
        resource_managers=managers,
        devices=devices,
        dra=dra,
        admission=admission,
        allocation=allocation,
        cgroups=cgroups,
        user_namespaces=pod_user_namespaces(settings, edges, handlers=runtime_classes, runtime_state=runtime_state),
        container_resources=ContainerResourceSource(managers, devices, dra),
        assigned=AssignedResources(managers, devices, dra),
        plugin_handlers=handlers,
        chores=chores,
        services=services,
    )


def plugin_services(
    ctx: Context,
    edges: Edges,
    cm: ContainerManager,
    csi_drivers: PluginHandler | None,
    sources_ready: Callable[[], bool],
) -> Services:
    """Build what finds plugins; they start after the managers that use these."""
    devices = cm.devices
    if edges.plugins is None or devices is None:
        return Services()
    plugins = PluginManager(
        folder=edges.paths.plugin_sockets,
        registrations=edges.plugins.registrations,
        handlers={**cm.plugin_handlers, **({"CSIPlugin": csi_drivers} if csi_drivers is not None else {})},
        clock=ctx.clock,
        metrics=ctx.metrics,
        may_start=sources_ready,
    )
    registry = edges.plugins.device_registry(edges.paths.device_plugins, devices.take)
    return Services(producers=[plugins, registry])


# --- devices --------------------------------------------------------------------------------------------------


def _devices(ctx: Context, edges: Edges, topology: Topology, table: PodTable) -> DeviceManager | None:
    if edges.plugins is None:
        return None
    return DeviceManager(
        ctx,
        folder=edges.paths.device_plugins,
        connect=edges.plugins.devices,
        read_allocate_response=edges.plugins.read_allocate_response,
        is_running=table.has_running_container,
        numa_nodes=tuple(node.id for node in topology.nodes),
    )


def _dra(ctx: Context, edges: Edges, objects: ClaimObjects | None, table: PodTable) -> DraManager | None:
    if edges.plugins is None or objects is None:
        return None
    return DraManager(ctx, root=edges.paths.root, connect=edges.plugins.dra, objects=objects, table=table)


# --- CPUs, memory, topology -----------------------------------------------------------------------------------


class _Machine(Struct, frozen=True, kw_only=True):
    """What the policies of all three managers are made from."""

    topology: Topology
    kept: Mapping[str, Quantity]
    """Kept from pods."""
    metrics: ResourceManagerMetrics
    pod_level: bool


def _machine(ctx: Context, edges: Edges) -> _Machine:
    machine, gates = edges.machine, ctx.settings.gates
    return _Machine(
        topology=edges.topology or flat_topology(machine.cpus, machine.memory_bytes, machine.hugepages),
        kept=kept_from_pods(ctx.settings, machine_capacity(machine, ctx.settings.config.cgroups, None)),
        metrics=ResourceManagerMetrics(ctx.metrics),
        pod_level=gates.enabled("PodLevelResourceManagers") and gates.enabled("PodLevelResources"),
    )


def _resource_managers(
    ctx: Context,
    edges: Edges,
    machine: _Machine,
    devices: DeviceManager | None,
    table: PodTable,
    sources_ready: Callable[[], bool],
) -> ResourceManagers:
    states = _states(ctx, edges, pod_level=machine.pod_level)
    cpus, memory = _cpu_policy(ctx, machine, states.cpus), _memory_policy(ctx, machine, states.memory)
    reconciler = CpusetReconciler(
        cri=edges.cri,
        running=lambda: running_containers(table) if cpus is not None else (),
        states=states,
        period=ctx.settings.config.managers.cpu_manager_reconcile_period if cpus is not None else 0.0,
    )
    return ResourceManagers(
        states=states,
        cpus=cpus,
        memory=memory,
        topology=_topology_manager(ctx, machine, [each for each in (devices, cpus, memory) if each is not None]),
        reconciler=reconciler,
        table=table,
        sources_ready=sources_ready,
        pod_level=machine.pod_level,
    )


def _states(ctx: Context, edges: Edges, *, pod_level: bool) -> ManagerStates:
    root, chosen = edges.paths.root, ctx.settings.config.managers
    return ManagerStates(
        CpuState(root / CPU_STATE_FILE, policy=chosen.cpu_manager_policy, pod_level=pod_level),
        MemoryState(root / MEMORY_STATE_FILE, policy=chosen.memory_manager_policy, pod_level=pod_level),
    )


def _cpu_policy(ctx: Context, machine: _Machine, state: CpuState) -> StaticCpuPolicy | None:
    settings, chosen, topology = ctx.settings, ctx.settings.config.managers, machine.topology
    if chosen.cpu_manager_policy != cpu_manager.STATIC:
        if chosen.cpu_manager_policy_options:
            raise ResourceManagerError(f"{CPU_FIELD}: cpuManagerPolicy {chosen.cpu_manager_policy} has no options")
        return None
    options = cpu_options(
        chosen.cpu_manager_policy_options,
        gates=settings.gates,
        topology=topology,
        topology_policy=chosen.topology_manager_policy,
    )
    named = parse_cpu_list(settings.config.reservations.reserved_system_cpus)
    return StaticCpuPolicy(
        topology=topology,
        reserved=reserved_cpus(topology, named, machine.kept.get(CPU, ZERO), options),
        options=options,
        state=state,
        metrics=machine.metrics,
        pod_level=machine.pod_level,
    )


def _memory_policy(ctx: Context, machine: _Machine, state: MemoryState) -> StaticMemoryPolicy | None:
    chosen = ctx.settings.config.managers
    if chosen.memory_manager_policy != memory_manager.STATIC:
        return None
    return StaticMemoryPolicy(
        topology=machine.topology,
        kept=kept_memory(machine.topology, chosen.reserved_memory, machine.kept),
        state=state,
        metrics=machine.metrics,
        pod_level=machine.pod_level,
    )


def _topology_manager(ctx: Context, machine: _Machine, providers: Sequence[HintProvider]) -> TopologyManager:
    return TopologyManager(
        merger=_merger(ctx, machine.topology),
        scope=ctx.settings.config.managers.topology_manager_scope,
        providers=providers,
        metrics=machine.metrics,
        clock=ctx.clock,
        pod_level=machine.pod_level,
    )


def _merger(ctx: Context, topology: Topology) -> Merger:
    chosen = ctx.settings.config.managers
    nodes = tuple(node.id for node in topology.nodes)
    if chosen.topology_manager_policy == NONE:
        return Merger(policy=NONE, nodes=nodes)
    options = topology_options(chosen.topology_manager_policy_options, topology=topology)
    distances = {node.id: node.distances for node in topology.nodes} if options.closest else None
    return Merger(policy=chosen.topology_manager_policy, nodes=nodes, distances=distances)


# --- cgroups --------------------------------------------------------------------------------------------------


def _cgroups(
    ctx: Context, edges: Edges, spec: NodeSpec, managers: ResourceManagers, allocation: AllocationManager
) -> tuple[PodCgroups, list[Service]]:
    """Those of pods, and all that run."""
    settings = ctx.settings
    rules = cgroup_rules(settings, spec, owns_cpus=managers.has_exclusive_cpus)
    cgroups = PodCgroups(
        host=edges.cgroups,
        rules=rules,
        active=allocation.active_pods,
        in_force=allocation.in_force,
        clock=ctx.clock,
        slices=edges.slices,
    )
    add_protection_metrics(ctx.metrics, rules, allocation.active_pods)
    node = NodeAllocatable(
        host=edges.cgroups,
        rules=rules,
        limits=node_limits(settings, edges.machine),
        events=ctx.events,
        clock=ctx.clock,
        slices=edges.slices,
        old_cgroups=not edges.machine.cgroup_v2,
    )
    own = OwnGroup(
        host=edges.cgroups,
        group=settings.config.cgroups.kubelet_cgroups,
        driver=spec.cgroup_driver,
        clock=ctx.clock,
    )
    system = SystemGroup(
        host=edges.cgroups,
        group=settings.config.cgroups.system_cgroups,
        driver=spec.cgroup_driver,
        clock=ctx.clock,
    )
    return cgroups, [cgroups, node, system, own]
