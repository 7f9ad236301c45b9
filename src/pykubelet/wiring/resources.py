"""The parts that keep what pods hold of the machine, made together: promises, cgroups, resizes, id ranges.

They know each other through small seams; `app.py` hands in the rest and takes the finished parts. Constructors
only store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pykubelet.api.types import Container, Pod, ResourceRequirements
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.host.paths import NodePaths
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.events import EventSink
from pykubelet.model.pod import PodUID, uid_of
from pykubelet.pods.manager import PodManager
from pykubelet.resources.allocation import Admission, Allocations
from pykubelet.resources.cgroups import CgroupHost, PodCgroups
from pykubelet.resources.ledger import ACTUATED_FILE, ALLOCATED_FILE, ResourceLedger
from pykubelet.resources.pod_limits import CgroupRules
from pykubelet.resources.resize_conditions import ResizeConditions
from pykubelet.resources.resize_rules import ResizeRules
from pykubelet.resources.userns import Handlers, PodUserNamespaces, id_range
from pykubelet.runtime.resize import PodResizer
from pykubelet.runtime.spec.node import NodeSpec
from pykubelet.runtime.spec.resources import swap_limit
from pykubelet.settings.settings import Settings
from pykubelet.sync.phases import Phase, PodPhases
from pykubelet.sync.runtime_state import RuntimeState


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceParts:
    allocations: Allocations
    cgroups: PodCgroups
    resizer: PodResizer
    user_namespaces: PodUserNamespaces


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivePods:
    """Pods that hold resources on this node: accepted and not yet ended, as their sources have them."""

    pods: PodManager
    phases: PodPhases

    def __call__(self) -> Iterable[Pod]:
        for pod in self.pods.pods():
            state = self.phases.get(uid_of(pod))
            if state is not None and state.phase in (Phase.SYNCING, Phase.TERMINATING):
                yield pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the parts are made from."""

    cri: CriClient
    runtime: RuntimeState
    cgroups: CgroupHost
    paths: NodePaths
    pods: PodManager
    phases: PodPhases
    admission: Admission
    handlers: Handlers
    sources_ready: Callable[[], bool]
    host_ids: tuple[int, int] | None
    """First and length of the ids that the host set aside for pods; None = the usual ones."""
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
        active=ActivePods(pods=around.pods, phases=around.phases),
        desired=lambda uid: around.pods.get(PodUID(uid)),
        sources_ready=around.sources_ready,
        rules=resize_rules(settings, spec),
        events=around.events,
        clock=clock,
        metrics=metrics,
    )
    cgroups = PodCgroups(
        host=around.cgroups,
        rules=cgroup_rules(settings, spec),
        active=allocations.active_pods,
        in_force=allocations.in_force,
        clock=clock,
    )
    resizer = PodResizer(cri=around.cri, groups=cgroups, record=actuated, node=spec, clock=clock, metrics=metrics)
    ids = id_range(
        settings.config.runtime.user_namespaces.ids_per_pod, settings.config.cgroups.max_pods, around.host_ids
    )
    namespaces = PodUserNamespaces(
        pods=around.paths.pods,
        ids=ids,
        handlers=around.handlers,
        supports=lambda handler: supports_user_namespaces(around.runtime, handler),
    )
    return ResourceParts(allocations=allocations, cgroups=cgroups, resizer=resizer, user_namespaces=namespaces)


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
    )


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
