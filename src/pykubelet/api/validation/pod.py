"""Validation of a whole Pod, as an API server would do it when the pod is created.

Covers: everything that a manifest on a node can get wrong, all problems at once.
Does not cover: Windows pods in detail, rules for updates, and limits that depend on a node
(admission). Defaults must have been set before: a missing default is reported as required.
"""

from collections.abc import Sequence

from pykubelet.api.types import (
    Affinity,
    LabelSelector,
    NodeAffinity,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodAntiAffinity,
    PodSpec,
    Toleration,
    TopologySpreadConstraint,
)
from pykubelet.api.validation import names
from pykubelet.api.validation.containers import RESTART_POLICIES, PodFacts, validate_containers, validate_host_network
from pykubelet.api.validation.findings import FieldError, Findings, show
from pykubelet.api.validation.names import validate_labels, validate_metadata, validate_selector
from pykubelet.api.validation.resources import (
    validate_overhead,
    validate_pod_claims,
    validate_pod_resources,
)
from pykubelet.api.validation.security import validate_pod_security, validate_security_annotations
from pykubelet.api.validation.volumes import validate_volumes

MAX_DEADLINE = 2**31 - 1
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


def validate_pod(pod: Pod, *, users_in_host_network: bool = False) -> list[FieldError]:
    """Every problem of a defaulted pod; empty when it is good.

    Ephemeral containers are checked but not forbidden: pods that already run may carry them, and
    manifest.py, which takes only new pods, refuses them itself.
    """
    found = Findings()
    validate_metadata(pod.metadata, "metadata", found)
    if MIRROR_ANNOTATION in pod.metadata.annotations and not pod.spec.node_name:
        found.add("spec.nodeName", f"required with the annotation {MIRROR_ANNOTATION}")
    volumes = validate_volumes(pod, found)
    claims = validate_pod_claims(pod.spec.resource_claims, found)
    validate_containers(
        PodFacts(spec=pod.spec, volumes=volumes, claims=frozenset(claims)),
        found,
    )
    validate_pod_resources(pod.spec, found)
    validate_overhead(pod.spec.overhead, found)
    validate_host_network(pod.spec, found)
    validate_network(pod.spec, found)
    validate_pod_security(pod.spec, found, users_in_host_network=users_in_host_network)
    validate_security_annotations(pod, found)
    validate_scheduling(pod.spec, found)
    _validate_lifetime(pod.spec, found)
    _validate_references(pod.spec, found)
    return found.all()


def _validate_lifetime(spec: PodSpec, found: Findings) -> None:
    if found.required("spec.restartPolicy", spec.restart_policy):
        found.choice("spec.restartPolicy", spec.restart_policy, RESTART_POLICIES)
    if spec.termination_grace_period_seconds is None:
        found.add("spec.terminationGracePeriodSeconds", "required")
    found.at_least("spec.terminationGracePeriodSeconds", spec.termination_grace_period_seconds, 0)
    found.between("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 1, MAX_DEADLINE)
    if spec.os is not None and found.required("spec.os.name", spec.os.name):
        found.choice("spec.os.name", spec.os.name, ("linux", "windows"))


def _validate_references(spec: PodSpec, found: Findings) -> None:
    for field, name in (
        ("serviceAccountName", spec.service_account_name),
        ("nodeName", spec.node_name),
        ("priorityClassName", spec.priority_class_name),
    ):
        if name:
            found.check(f"spec.{field}", names.dns_subdomain(name))
    if spec.runtime_class_name is not None:
        found.check("spec.runtimeClassName", names.dns_subdomain(spec.runtime_class_name))
    if spec.service_account_name:
        return
    for i, volume in enumerate(spec.volumes):
        for j, source in enumerate(volume.projected.sources if volume.projected is not None else ()):
            if source.service_account_token is not None:
                found.add(
                    f"spec.volumes[{i}].projected.sources[{j}].serviceAccountToken",
                    "must not be set without serviceAccountName",
                )


EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def validate_scheduling(spec: PodSpec, found: Findings) -> None:
    validate_labels(spec.node_selector, "spec.nodeSelector", found)
    _validate_tolerations(spec.tolerations, found)
    if spec.affinity is not None:
        _validate_affinity(spec.affinity, found)
    _validate_spread(spec.topology_spread_constraints, found)
    for i, readiness in enumerate(spec.readiness_gates):
        path = f"spec.readinessGates[{i}].conditionType"
        found.check(path, names.qualified_name(readiness.condition_type or ""))
    seen: set[str] = set()
    for i, gate in enumerate(spec.scheduling_gates):
        path = f"spec.schedulingGates[{i}].name"
        name = gate.name or ""
        found.check(path, names.qualified_name(name))
        if name in seen:
            found.add(path, f"is used twice: {show(name)}")
        seen.add(name)
    if spec.node_name and spec.scheduling_gates:
        found.add("spec.nodeName", "must not be set while there are schedulingGates")
    found.choice("spec.preemptionPolicy", spec.preemption_policy, ("PreemptLowerPriority", "Never"))
    if spec.scheduling_group is not None:
        found.check("spec.schedulingGroup.podGroupName", _group_name(spec.scheduling_group.pod_group_name))


def _group_name(name: str | None) -> str | None:
    return "required" if name is None else names.dns_subdomain(name)


def _validate_tolerations(tolerations: Sequence[Toleration], found: Findings) -> None:
    for i, toleration in enumerate(tolerations):
        at = f"spec.tolerations[{i}]"
        operator, value = toleration.operator or "Equal", toleration.value or ""
        if toleration.key:
            found.check(f"{at}.key", names.qualified_name(toleration.key))
        elif operator != "Exists":
            found.add(f"{at}.operator", f"must be Exists when key is empty, not {show(operator)}")
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            found.add(f"{at}.effect", "must be NoExecute when tolerationSeconds is set")
        # Lt and Gt exist in 1.36 behind a feature gate that is off.
        found.choice(f"{at}.operator", operator, ("Equal", "Exists"))
        if operator == "Equal":
            found.check(f"{at}.value", names.label_value(value))
        elif operator == "Exists" and value:
            found.add(f"{at}.value", f"must be empty with operator Exists, not {show(value)}")
        if toleration.effect:
            found.choice(f"{at}.effect", toleration.effect, EFFECTS)


def _validate_affinity(affinity: Affinity, found: Findings) -> None:
    if affinity.node_affinity is not None:
        _validate_node_affinity(affinity.node_affinity, "spec.affinity.nodeAffinity", found)
    if affinity.pod_affinity is not None:
        _validate_pod_affinity(affinity.pod_affinity, "spec.affinity.podAffinity", found)
    if affinity.pod_anti_affinity is not None:
        _validate_pod_affinity(affinity.pod_anti_affinity, "spec.affinity.podAntiAffinity", found)


def _validate_node_affinity(affinity: NodeAffinity, at: str, found: Findings) -> None:
    required = affinity.required_during_scheduling_ignored_during_execution
    if required is not None:
        path = f"{at}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        found.required(path, required.node_selector_terms)
        for i, term in enumerate(required.node_selector_terms):
            _validate_term(term, f"{path}[{i}]", True, found)
    for i, preferred in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        path = f"{at}.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
        found.between(f"{path}.weight", preferred.weight or 0, 1, 100)
        if preferred.preference is not None:
            _validate_term(preferred.preference, f"{path}.preference", False, found)


def _validate_term(term: NodeSelectorTerm, at: str, check_values: bool, found: Findings) -> None:
    for i, rule in enumerate(term.match_expressions):
        path = f"{at}.matchExpressions[{i}]"
        found.choice(f"{path}.operator", rule.operator or "", OPERATORS)
        if rule.operator in ("In", "NotIn"):
            found.required(f"{path}.values", rule.values)
        elif rule.operator in ("Exists", "DoesNotExist") and rule.values:
            found.add(f"{path}.values", f"must be empty with operator {rule.operator}")
        elif rule.operator in ("Gt", "Lt") and len(rule.values) != 1:
            found.add(f"{path}.values", f"must be one value with operator {rule.operator}")
        found.check(f"{path}.key", names.qualified_name(rule.key or ""))
        if check_values:
            for j, value in enumerate(rule.values):
                found.check(f"{path}.values[{j}]", names.label_value(value))
    for i, rule in enumerate(term.match_fields):
        path = f"{at}.matchFields[{i}]"
        found.choice(f"{path}.operator", rule.operator or "", ("In", "NotIn"))
        found.choice(f"{path}.key", rule.key or "", ("metadata.name",))
        if len(rule.values) != 1:
            found.add(f"{path}.values", "must be one node name")
        for j, value in enumerate(rule.values):
            found.check(f"{path}.values[{j}]", names.dns_subdomain(value))


def _validate_pod_affinity(affinity: PodAffinity | PodAntiAffinity, at: str, found: Findings) -> None:
    for i, term in enumerate(affinity.required_during_scheduling_ignored_during_execution):
        _validate_pod_term(term, f"{at}.requiredDuringSchedulingIgnoredDuringExecution[{i}]", found)
    for i, weighted in enumerate(affinity.preferred_during_scheduling_ignored_during_execution):
        path = f"{at}.preferredDuringSchedulingIgnoredDuringExecution[{i}]"
        found.between(f"{path}.weight", weighted.weight or 0, 1, 100)
        _validate_pod_term(weighted.pod_affinity_term or PodAffinityTerm(), f"{path}.podAffinityTerm", found)


def _validate_pod_term(term: PodAffinityTerm, at: str, found: Findings) -> None:
    validate_selector(term.label_selector, f"{at}.labelSelector", found)
    validate_selector(term.namespace_selector, f"{at}.namespaceSelector", found)
    for i, namespace in enumerate(term.namespaces):
        found.check(f"{at}.namespaces[{i}]", names.dns_label(namespace))
    for name, keys in (
        ("matchLabelKeys", term.match_label_keys),
        ("mismatchLabelKeys", term.mismatch_label_keys),
    ):
        _validate_label_keys(keys, term.label_selector, f"{at}.{name}", found)
    for i, key in enumerate(term.match_label_keys):
        if key in term.mismatch_label_keys:
            found.add(f"{at}.matchLabelKeys[{i}]", f"{show(key)} is in mismatchLabelKeys too")
    if found.required(f"{at}.topologyKey", term.topology_key):
        found.check(f"{at}.topologyKey", names.qualified_name(term.topology_key or ""))


def _validate_label_keys(keys: Sequence[str], selector: LabelSelector | None, at: str, found: Findings) -> None:
    if keys and selector is None:
        found.add(at, "must not be set without labelSelector")
        return
    for i, key in enumerate(keys):
        found.check(f"{at}[{i}]", names.qualified_name(key))


def _validate_spread(constraints: Sequence[TopologySpreadConstraint], found: Findings) -> None:
    seen: set[tuple[str | None, str | None]] = set()
    for i, rule in enumerate(constraints):
        at = f"spec.topologySpreadConstraints[{i}]"
        found.at_least(f"{at}.maxSkew", rule.max_skew or 0, 1)
        found.required(f"{at}.topologyKey", rule.topology_key)
        found.choice(f"{at}.whenUnsatisfiable", rule.when_unsatisfiable or "", ("DoNotSchedule", "ScheduleAnyway"))
        pair = (rule.topology_key, rule.when_unsatisfiable)
        if pair in seen:
            found.add(at, "repeats the topologyKey and whenUnsatisfiable of another constraint")
        seen.add(pair)
        found.at_least(f"{at}.minDomains", rule.min_domains, 1)
        if rule.min_domains is not None and rule.when_unsatisfiable != "DoNotSchedule":
            found.add(f"{at}.minDomains", "needs whenUnsatisfiable DoNotSchedule")
        found.choice(f"{at}.nodeAffinityPolicy", rule.node_affinity_policy, ("Ignore", "Honor"))
        found.choice(f"{at}.nodeTaintsPolicy", rule.node_taints_policy, ("Ignore", "Honor"))
        _validate_label_keys(rule.match_label_keys, rule.label_selector, f"{at}.matchLabelKeys", found)
        validate_selector(rule.label_selector, f"{at}.labelSelector", found)


DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
MAX_NAMESERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_CHARACTERS = 2048
MAX_HOSTNAME = 64


def validate_network(spec: PodSpec, found: Findings) -> None:
    if found.required("spec.dnsPolicy", spec.dns_policy):
        found.choice("spec.dnsPolicy", spec.dns_policy, DNS_POLICIES)
    _validate_dns_config(spec, found)
    _validate_hostname(spec, found)
    for i, alias in enumerate(spec.host_aliases):
        path = f"spec.hostAliases[{i}]"
        found.check(f"{path}.ip", names.ip_address(alias.ip or ""))
        for j, name in enumerate(alias.hostnames):
            found.check(f"{path}.hostnames[{j}]", names.dns_subdomain(name))


def _validate_dns_config(spec: PodSpec, found: Findings) -> None:
    config, at = spec.dns_config, "spec.dnsConfig"
    if spec.dns_policy == "None" and (config is None or not config.nameservers):
        found.add(f"{at}.nameservers", "required with dnsPolicy None")
    if config is None:
        return
    if len(config.nameservers) > MAX_NAMESERVERS:
        found.add(f"{at}.nameservers", f"must be at most {MAX_NAMESERVERS}, not {len(config.nameservers)}")
    for i, server in enumerate(config.nameservers):
        found.check(f"{at}.nameservers[{i}]", names.ip_address(server))
    if len(config.searches) > MAX_SEARCHES:
        found.add(f"{at}.searches", f"must be at most {MAX_SEARCHES}, not {len(config.searches)}")
    size = len(" ".join(config.searches))
    if size > MAX_SEARCH_CHARACTERS:
        found.add(f"{at}.searches", f"must be at most {MAX_SEARCH_CHARACTERS} characters together, not {size}")
    for i, search in enumerate(config.searches):
        found.check(f"{at}.searches[{i}]", names.dns_search(search))
    for i, option in enumerate(config.options):
        found.required(f"{at}.options[{i}].name", option.name)


def _validate_hostname(spec: PodSpec, found: Findings) -> None:
    if spec.hostname:
        found.check("spec.hostname", names.dns_label(spec.hostname))
    if spec.subdomain:
        found.check("spec.subdomain", names.dns_label(spec.subdomain))
    override, path = spec.hostname_override, "spec.hostnameOverride"
    if override is None:
        return
    if spec.set_hostname_as_fqdn:
        found.add(path, "must not be set with setHostnameAsFQDN")
    if spec.host_network:
        found.add(path, "must not be set with hostNetwork")
    if len(override) > MAX_HOSTNAME:
        found.add(path, f"must be at most {MAX_HOSTNAME} characters long, not {show(len(override))}")
    else:
        found.check(path, names.dns_subdomain(override))
