"""Whether a pod may run on this node at all: a chain of small checks, the first objection decides.

Order, reasons and messages are upstream's; other software reads them. Each check is a pure function of the
pod and a context that the caller fills with the facts of the moment. The one side effect admission can have,
stopping lesser pods for a critical one, comes back as a list of victims. Devices, CPUs and memory of single
NUMA nodes are allocated by the resource managers: their check is passed to `admission_chain`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from pykubelet.api.types import AppArmorProfile, Pod, Taint
from pykubelet.model.pod import AnyContainer, QosClass, all_containers, is_critical, is_sidecar, qos_class
from pykubelet.model.pod_resources import has_pod_level_resources
from pykubelet.model.problems import NotAdmitted, Shortage
from pykubelet.model.runtime_status import RuntimeConditions
from pykubelet.pods.predicates import (
    NODE_AFFINITY,
    Failure,
    InsufficientResource,
    NodeInfo,
    find_failures,
    tolerates,
)
from pykubelet.pods.preemption import NoVictims, choose_victims
from pykubelet.pods.sysctls import SysctlAllowList, sysctl_complaint
from pykubelet.settings.gates import Gates

OS_LABEL: Final = "kubernetes.io/os"
OPERATING_SYSTEM: Final = "linux"
MEMORY_PRESSURE: Final = "MemoryPressure"
MEMORY_PRESSURE_TAINT: Final = Taint(key="node.kubernetes.io/memory-pressure", effect="NoSchedule")
APPARMOR_ANNOTATION: Final = "container.apparmor.security.beta.kubernetes.io/"
MOST_CONTAINERS: Final = 500


class Rejection(Struct, frozen=True, kw_only=True):
    reason: str
    message: str
    failures: tuple[Failure, ...] = ()
    """Everything the fit check found; only the first is reported."""
    unpreempted: Shortage | None = None
    """What would be missing even if every pod of lower priority were stopped."""

    @property
    def status_message(self) -> str:
        """The message in the status of the rejected pod."""
        return f"Pod was rejected: {self.message}"

    @property
    def problem(self) -> NotAdmitted:
        """As it is kept in the pod's life."""
        first = self.failures[0] if self.failures else None
        short_of = self.unpreempted or (first.shortage if isinstance(first, InsufficientResource) else None)
        return NotAdmitted(reason=self.reason, text=self.message, short_of=short_of)

    @property
    def may_pass_on_fresh_node(self) -> bool:
        """Only labels stood in the way: worth one more try against the Node as the API server has it now."""
        return bool(self.failures) and all(each.reason == NODE_AFFINITY for each in self.failures)


class AdmissionContext(Struct, frozen=True, kw_only=True):
    """The facts of the moment. `others` are the active pods with their allocated resources."""

    node: NodeInfo | None
    others: Sequence[Pod]
    sysctls: SysctlAllowList
    pressure: Sequence[str] = ()
    """Pressure conditions the eviction manager has set, such as MemoryPressure."""
    shutting_down: bool = False
    apparmor_problem: str | None = None
    """Why AppArmor profiles cannot be enforced here; None when they can."""
    pod_level_resources: bool = True
    taint_comparison: bool = False
    declared_features: frozenset[str] | None = None
    """Features this node declares; None when the gate NodeDeclaredFeatures is off."""


Check = Callable[[Pod, AdmissionContext], Rejection | None]


class Verdict(Struct, frozen=True, kw_only=True):
    rejection: Rejection | None = None
    victims: tuple[Pod, ...] = ()
    """Pods to stop first; only ever for an admitted critical pod."""
    short_of: str = ""
    """The first resource that was insufficient, for which the victims are stopped."""

    @property
    def admitted(self) -> bool:
        return self.rejection is None


def check_size(pod: Pod, _context: AdmissionContext) -> Rejection | None:
    """Not in upstream: every pass over a pod costs its number of containers, and all other pods wait meanwhile."""
    spec = pod.spec
    count = len(spec.containers) + len(spec.init_containers) + len(spec.ephemeral_containers)
    if count <= MOST_CONTAINERS:
        return None
    return Rejection(
        reason="TooManyContainers",
        message=f"Pod has {count} containers, this node takes at most {MOST_CONTAINERS} in a pod",
    )


def check_pressure(pod: Pod, context: AdmissionContext) -> Rejection | None:
    if not context.pressure or is_critical(pod):
        return None
    if list(context.pressure) == [MEMORY_PRESSURE] and (
        qos_class(pod) is not QosClass.BEST_EFFORT
        or tolerates(pod, MEMORY_PRESSURE_TAINT, compare=context.taint_comparison)
    ):
        return None
    conditions = " ".join(context.pressure)
    return Rejection(reason="Evicted", message=f"The node had condition: [{conditions}]. ")


def check_sysctls(pod: Pod, context: AdmissionContext) -> Rejection | None:
    complaint = sysctl_complaint(pod, context.sysctls)
    return Rejection(reason="SysctlForbidden", message=f"forbidden sysctl: {complaint}") if complaint else None


def check_node_known(_pod: Pod, context: AdmissionContext) -> Rejection | None:
    if context.node is None:
        return Rejection(reason="InvalidNodeInfo", message="Kubelet cannot get node info.")
    return None


def check_os_label(pod: Pod, _context: AdmissionContext) -> Rejection | None:
    if pod.metadata.labels.get(OS_LABEL, OPERATING_SYSTEM) == OPERATING_SYSTEM:
        return None
    return Rejection(
        reason="PodOSSelectorNodeLabelDoesNotMatch",
        message="Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
    )


def check_os_field(pod: Pod, _context: AdmissionContext) -> Rejection | None:
    if pod.spec.os is None or pod.spec.os.name == OPERATING_SYSTEM:
        return None
    return Rejection(reason="PodOSNotSupported", message="Failed to admit pod as the OS field doesn't match node OS")


def check_supplemental_groups(pod: Pod, context: AdmissionContext) -> Rejection | None:
    security = pod.spec.security_context
    strict = security is not None and security.supplemental_groups_policy == "Strict"
    if not strict or (context.node is not None and context.node.supplemental_groups_policy):
        return None
    return Rejection(
        reason="SupplementalGroupsPolicyNotSupported",
        message="SupplementalGroupsPolicy=Strict is not supported in this node",
    )


def check_fit(pod: Pod, context: AdmissionContext) -> Rejection | None:
    """Resources, affinity, name, ports, taints; a critical pod passes when preemption can make room."""
    failures: Sequence[Failure] = _failures(pod, context)
    if not failures:
        return None
    if is_critical(pod):
        beyond_resources = [each for each in failures if not isinstance(each, InsufficientResource)]
        if not beyond_resources:
            return _check_preemption(pod, context, failures)
        failures = beyond_resources
    return Rejection(reason=failures[0].reason, message=failures[0].message, failures=tuple(failures))


def _failures(pod: Pod, context: AdmissionContext) -> list[Failure]:
    assert context.node is not None  # check_node_known comes before every check that fits
    return find_failures(
        pod,
        context.node,
        context.others,
        pod_level=context.pod_level_resources,
        compare_taints=context.taint_comparison,
    )


def _lacking(failures: Sequence[Failure]) -> list[InsufficientResource]:
    return [each for each in failures if isinstance(each, InsufficientResource)]


def _check_preemption(pod: Pod, context: AdmissionContext, failures: Sequence[Failure]) -> Rejection | None:
    try:
        choose_victims(pod, context.others, _lacking(failures))
    except NoVictims as problem:
        what = f"preemption: error finding a set of pods to preempt: {problem}"
        return Rejection(
            reason="UnexpectedAdmissionError",
            message=f"Unexpected error while attempting to recover from admission failure: {what}",
            failures=tuple(failures),
            unpreempted=problem.shortage,
        )
    return None


def check_apparmor(pod: Pod, context: AdmissionContext) -> Rejection | None:
    # A pod that ran before this agent started is not judged again.
    if pod.status.phase != "Pending" or not _wants_apparmor(pod):
        return None
    problem = context.apparmor_problem
    if problem is None and any(_is_nameless(_profile(pod, each)) for _, each in all_containers(pod)):
        problem = 'invalid empty AppArmor profile name: ""'
    return Rejection(reason="AppArmor", message=f"Cannot enforce AppArmor: {problem}") if problem else None


def _wants_apparmor(pod: Pod) -> bool:
    profiles = [pod.spec.security_context.app_armor_profile] if pod.spec.security_context is not None else []
    profiles += [each.security_context.app_armor_profile for _, each in all_containers(pod) if each.security_context]
    if any(profile is not None and profile.type != "Unconfined" for profile in profiles):
        return True
    return any(
        key.startswith(APPARMOR_ANNOTATION) and value != "unconfined" for key, value in pod.metadata.annotations.items()
    )


def _profile(pod: Pod, container: AnyContainer) -> AppArmorProfile | None:
    """The container's own profile, else that of the old annotation, else the pod's."""
    if container.security_context is not None and container.security_context.app_armor_profile is not None:
        return container.security_context.app_armor_profile
    annotated = pod.metadata.annotations.get(f"{APPARMOR_ANNOTATION}{container.name}")
    if annotated is not None and annotated.startswith("localhost/"):
        return AppArmorProfile(type="Localhost", localhost_profile=annotated.removeprefix("localhost/"))
    if annotated is not None:
        return AppArmorProfile(type="Unconfined" if annotated == "unconfined" else "RuntimeDefault")
    return pod.spec.security_context.app_armor_profile if pod.spec.security_context is not None else None


def _is_nameless(profile: AppArmorProfile | None) -> bool:
    return profile is not None and profile.type == "Localhost" and not (profile.localhost_profile or "").strip()


def check_pod_level_resources(pod: Pod, context: AdmissionContext) -> Rejection | None:
    if context.pod_level_resources or not has_pod_level_resources(pod):
        return None
    return Rejection(reason="PodLevelResourcesNotSupported", message="PodLevelResources feature gate is disabled")


def check_declared_features(pod: Pod, context: AdmissionContext) -> Rejection | None:
    if context.declared_features is None:
        return None
    absent = [name for name in needed_features(pod) if name not in context.declared_features]
    if not absent:
        return None
    return Rejection(
        reason="PodFeatureUnsupported",
        message=f"Pod requires node features that are not available: {', '.join(absent)}",
    )


def needed_features(pod: Pod) -> list[str]:
    """The declared node features without which this pod cannot run as its spec says."""
    needed: list[str] = []
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    if any(rule.action == "RestartAllContainers" for each in containers for rule in each.restart_policy_rules):
        needed.append("RestartAllContainersOnContainerExits")
    if pod.spec.host_network and pod.spec.host_users is False:
        needed.append(HOST_NETWORK_GATE)
    return needed


DECLARED_BY_GATE = (
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
)


HOST_NETWORK_GATE = "UserNamespacesHostNetworkSupport"


def declared_features(gates: Gates, runtime: RuntimeConditions) -> list[str]:
    """What the node says it can do: by its gates and, for one feature, its runtime."""
    if not gates.enabled("NodeDeclaredFeatures"):
        return []
    found = [name for name in DECLARED_BY_GATE if gates.enabled(name)]
    if gates.enabled(HOST_NETWORK_GATE) and runtime.user_namespaces_host_network:
        found.append(HOST_NETWORK_GATE)
    return found


def features_of_change(old: Pod, new: Pod) -> list[str]:
    """The declared node features without which this change of a pod's spec cannot be carried out."""
    needed: list[str] = []
    if old.spec.resources != new.spec.resources:
        needed.append("InPlacePodLevelResourcesVerticalScaling")
    before = {each.name: each.resources for each in old.spec.init_containers if not is_sidecar(each)}
    if any(each.name in before and before[each.name] != each.resources for each in new.spec.init_containers):
        needed.append("InPlacePodVerticalScalingInitContainers")
    return needed


def check_shutdown(_pod: Pod, context: AdmissionContext) -> Rejection | None:
    if not context.shutting_down:
        return None
    return Rejection(reason="NodeShutdown", message="Pod was rejected as the node is shutting down.")


_BEFORE_ALLOCATION: Final[tuple[Check, ...]] = (check_size, check_pressure, check_sysctls)
_AFTER_ALLOCATION: Final[tuple[Check, ...]] = (
    check_node_known,
    check_os_label,
    check_os_field,
    check_supplemental_groups,
    check_fit,
    check_apparmor,
    check_pod_level_resources,
    check_declared_features,
    check_shutdown,
)


def admission_chain(*allocate: Check) -> tuple[Check, ...]:
    """The checks in upstream's order behind one of our own, with those of the resource managers in their place."""
    return (*_BEFORE_ALLOCATION, *allocate, *_AFTER_ALLOCATION)


CHAIN: Final = admission_chain()


def decide_admission(pod: Pod, context: AdmissionContext, chain: Sequence[Check] = CHAIN) -> Verdict:
    """Run the chain; for an admitted critical pod that does not fit as things are, say who must go."""
    for check in chain:
        rejection = check(pod, context)
        if rejection is not None:
            return Verdict(rejection=rejection)
    if not is_critical(pod):
        return Verdict()
    lacking = _lacking(_failures(pod, context))
    if not lacking:
        return Verdict()
    return Verdict(victims=tuple(choose_victims(pod, context.others, lacking)), short_of=lacking[0].resource)
