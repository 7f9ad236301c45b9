"""The parts that keep what pods hold of the machine, made together: promises, cgroups, resizes, id ranges.

They know each other through small seams; `app.py` hands in the rest and takes the finished parts. Constructors
only store.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Container, Pod, ResourceRequirements
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.host.paths import NodePaths
from pykubelet.clients.host.port import CgroupHost, Machine, Slices
from pykubelet.cm.allocation import Admission, Allocations
from pykubelet.cm.allocation_state import ACTUATED_FILE, ALLOCATED_FILE, ResourceLedger
from pykubelet.cm.capacity import machine_capacity, quantities, reserved
from pykubelet.cm.cgroup_limits import CgroupRules, add_protection_metrics, swap_limit
from pykubelet.cm.cgroups import OwnGroup, PodCgroups
from pykubelet.cm.node_allocatable import (
    PIDS,
    Enforcement,
    NodeAllocatable,
    NodeAmounts,
    NodeLimits,
    pods_limits,
    reserved_groups,
)
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.cm.resize import ResizeConditions, ResizeRules
from pykubelet.cm.resource_managers import PinningManager
from pykubelet.cm.user_namespaces import Handlers, PodUserNamespaces, id_range
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Service
from pykubelet.model.events import EventSink
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.table import PodTable
from pykubelet.runtime.resize import PodResizer
from pykubelet.settings.settings import Settings


class ResourceParts(Struct, frozen=True, kw_only=True):
    allocations: Allocations
    cgroups: PodCgroups
    node: NodeAllocatable
    own: OwnGroup
    resizer: PodResizer
    user_namespaces: PodUserNamespaces

    @property
    def services(self) -> list[Service]:
        return [self.allocations, self.cgroups, self.node, self.own]


class Surroundings(Struct, frozen=True, kw_only=True):
    """What the parts are made from."""

    cri: CriClient
    runtime: RuntimeState
    cgroups: CgroupHost
    slices: Slices | None
    """Where systemd keeps the cgroups; None with plain cgroupfs."""
    machine: Machine
    paths: NodePaths
    table: PodTable
    admission: Admission
    handlers: Handlers
    sources_ready: Callable[[], bool]
    host_ids: tuple[int, int] | None
    """First and length of the ids that the host set aside for pods; None = the usual ones."""
    pinning: PinningManager
    """Knows who owns CPUs, which no quota may slow down."""
    events: EventSink
    clock: Clock
    metrics: Registry


def resource_parts(settings: Settings, spec: NodeSpec, around: Surroundings) -> ResourceParts:
    clock, metrics, root = around.clock, around.metrics, around.paths.root
    actuated = ResourceLedger(root / ACTUATED_FILE)
    allocations = Allocations(
        allocated=ResourceLedger(root / ALLOCATED_FILE),
        actuated=actuated,
        conditions=ResizeConditions(clock=clock, metrics=metrics),
        admission=around.admission,
        active=around.table.active_pods,
        desired=around.table.pod,
        sources_ready=around.sources_ready,
        rules=resize_rules(settings, spec),
        events=around.events,
        clock=clock,
        metrics=metrics,
    )
    rules = replace(
        cgroup_rules(settings, spec),
        unthrottled=lambda pod: spec.exclusive_cpus_unthrottled and around.pinning.has_exclusive_cpus(pod),
    )
    cgroups = PodCgroups(
        host=around.cgroups,
        rules=rules,
        active=allocations.active_pods,
        in_force=allocations.in_force,
        clock=clock,
        slices=around.slices,
    )
    add_protection_metrics(metrics, rules, allocations.active_pods)
    node = NodeAllocatable(
        host=around.cgroups,
        rules=rules,
        limits=node_limits(settings, around.machine),
        events=around.events,
        clock=clock,
        slices=around.slices,
        old_cgroups=not around.machine.cgroup_v2,
    )
    own = OwnGroup(
        host=around.cgroups, group=settings.config.cgroups.kubelet_cgroups, driver=spec.cgroup_driver, clock=clock
    )
    resizer = PodResizer(
        cri=around.cri,
        groups=cgroups,
        record=actuated,
        node=spec,
        clock=clock,
        metrics=metrics,
        exclusive=around.pinning.is_exclusive,
    )
    ids = id_range(
        settings.config.runtime.user_namespaces.ids_per_pod, settings.config.cgroups.max_pods, around.host_ids
    )
    namespaces = PodUserNamespaces(
        pods=around.paths.pods,
        ids=ids,
        handlers=around.handlers,
        supports=lambda handler: supports_user_namespaces(around.runtime, handler),
    )
    return ResourceParts(
        allocations=allocations, cgroups=cgroups, node=node, own=own, resizer=resizer, user_namespaces=namespaces
    )


def node_limits(settings: Settings, machine: Machine) -> NodeLimits:
    """What the groups above pods, and those the reservations name, are held to."""
    reservations = settings.config.reservations
    capacity = machine_capacity(machine, settings.config.cgroups, None)
    if machine.pids:
        capacity[PIDS] = Quantity.of(machine.pids)
    amounts = NodeAmounts(
        capacity=capacity,
        system=quantities(reservations.system_reserved),
        kube=quantities(reservations.kube_reserved),
        reserved=reserved(reservations),
    )
    enforcement = Enforcement(
        what=frozenset(reservations.enforce_node_allocatable),
        system_group=reservations.system_reserved_cgroup,
        kube_group=reservations.kube_reserved_cgroup,
    )
    return NodeLimits(
        pods=pods_limits(amounts, enforcement),
        enforced=enforcement.pods,
        reserved=reserved_groups(amounts, enforcement),
    )


def cgroup_rules(settings: Settings, spec: NodeSpec) -> CgroupRules:
    return CgroupRules(
        root=spec.cgroup_root,
        driver=spec.cgroup_driver,
        enabled=spec.cgroups_per_qos,
        cfs_quota=spec.cpu_cfs_quota,
        period_us=spec.cpu_period_us,
        pids_per_pod=settings.config.cgroups.pod_pids_limit,
        hugepage_sizes=spec.hugepage_sizes,
        memory_qos=spec.memory_qos and spec.cgroup_v2,
        tiered_reservation=spec.tiered_memory_reservation,
        memory_reserve_percent=_qos_reserve(settings),
        allocatable_memory_bytes=spec.allocatable["memory"].value() if "memory" in spec.allocatable else 0,
    )


def _qos_reserve(settings: Settings) -> int:
    if not settings.gates.enabled("QOSReserved"):
        return 0
    return int(settings.config.reservations.qos_reserved.get("memory", "0%").removesuffix("%"))


def resize_rules(settings: Settings, spec: NodeSpec) -> ResizeRules:
    gates, managers = settings.gates, settings.config.managers
    pinned_cpus = managers.cpu_manager_policy == "static"
    pinned_memory = managers.memory_manager_policy == "Static"

    def uses_swap(pod: Pod, container: Container) -> bool:
        held = container.resources or ResourceRequirements()
        return spec.cgroup_v2 and spec.swap_controller and swap_limit(pod, held, spec) > 0

    return ResizeRules(
        init_containers=gates.enabled("InPlacePodVerticalScalingInitContainers"),
        pod_level=gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
        pinned_cpus=pinned_cpus and not gates.enabled("InPlacePodVerticalScalingExclusiveCPUs"),
        pinned_memory=pinned_memory and not gates.enabled("InPlacePodVerticalScalingExclusiveMemory"),
        uses_swap=uses_swap,
    )


def supports_user_namespaces(runtime: RuntimeState, handler: str) -> bool:
    return any(each.name == handler and each.user_namespaces for each in runtime.conditions.handlers)
