"""Containers of all three sorts: what they share, and what each sort may and may not have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pykubelet.api.types import (
    Container,
    ContainerRestartRule,
    EphemeralContainer,
    PodSpec,
    Volume,
)
from pykubelet.api.validation import names
from pykubelet.api.validation.env import validate_env, validate_env_from
from pykubelet.api.validation.findings import Findings, show
from pykubelet.api.validation.mounts import validate_mounts
from pykubelet.api.validation.ports import validate_host_ports, validate_ports
from pykubelet.api.validation.probes import validate_lifecycle, validate_probes
from pykubelet.api.validation.resources import (
    container_resource,
    validate_requirements,
    validate_resize,
)
from pykubelet.api.validation.security import AnyContainer, validate_container_security
from pykubelet.api.validation.volumes import PULL_POLICIES

RESTART_POLICIES = ("Always", "OnFailure", "Never")
MAX_RULES = 20
MAX_EXIT_CODES = 255
KEPT_RUNNING_ONLY = (
    ("lifecycle", "lifecycle"),
    ("liveness_probe", "livenessProbe"),
    ("readiness_probe", "readinessProbe"),
    ("startup_probe", "startupProbe"),
)
NOT_EPHEMERAL = (
    *KEPT_RUNNING_ONLY,
    ("ports", "ports"),
    ("resources", "resources"),
    ("resize_policy", "resizePolicy"),
    ("restart_policy", "restartPolicy"),
    ("restart_policy_rules", "restartPolicyRules"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """What a container must know about its pod to be checked."""

    spec: PodSpec
    volumes: Mapping[str | None, Volume]
    claims: frozenset[str]

    @property
    def os(self) -> str | None:
        return self.spec.os.name if self.spec.os is not None else None

    @property
    def host_users(self) -> bool:
        return self.spec.host_users is not False


def validate_containers(facts: PodFacts, found: Findings) -> None:
    spec = facts.spec
    if not spec.containers:
        found.add("spec.containers", "required")
    taken: dict[str, str] = {}
    for i, container in enumerate(spec.containers):
        at = f"spec.containers[{i}]"
        _validate_common(container, at, taken, facts, found)
        _validate_running(container, at, facts, found)
        _validate_restart(container.restart_policy, container.restart_policy_rules, at, found)
    validate_host_ports([(f"spec.containers[{i}]", c) for i, c in enumerate(spec.containers)], found)
    for i, container in enumerate(spec.init_containers):
        _validate_init(container, f"spec.initContainers[{i}]", taken, facts, found)
    others = frozenset(taken)
    for i, ephemeral in enumerate(spec.ephemeral_containers):
        at = f"spec.ephemeralContainers[{i}]"
        _validate_common(ephemeral, at, taken, facts, found)
        _validate_ephemeral(ephemeral, at, others, found)


def _validate_common(container: AnyContainer, at: str, taken: dict[str, str], facts: PodFacts, found: Findings) -> None:
    if found.required(f"{at}.name", container.name):
        name = container.name or ""
        found.check(f"{at}.name", names.dns_label(name))
        if name in taken:
            found.add(f"{at}.name", f"{show(name)} is already the name of {taken[name]}")
        taken.setdefault(name, at)
    if found.required(f"{at}.image", container.image) and container.image != (container.image or "").strip():
        found.add(f"{at}.image", f"must not begin or end with blanks, not {show(container.image)}")
    if found.required(f"{at}.imagePullPolicy", container.image_pull_policy):
        found.choice(f"{at}.imagePullPolicy", container.image_pull_policy, PULL_POLICIES)
    if found.required(f"{at}.terminationMessagePolicy", container.termination_message_policy):
        found.choice(
            f"{at}.terminationMessagePolicy",
            container.termination_message_policy,
            ("File", "FallbackToLogsOnError"),
        )
    validate_ports(container.ports, f"{at}.ports", found)
    validate_env(container.env, f"{at}.env", facts.volumes, found)
    validate_env_from(container.env_from, f"{at}.envFrom", found)
    validate_mounts(
        container.volume_mounts,
        container.volume_devices,
        facts.volumes,
        container.security_context,
        at,
        found,
    )
    validate_requirements(container.resources, f"{at}.resources", facts.claims, container_resource, found)
    validate_resize(container.resize_policy, f"{at}.resizePolicy", facts.spec.restart_policy, found)
    validate_container_security(container.security_context, f"{at}.securityContext", facts.host_users, found)


def _validate_running(container: Container, at: str, facts: PodFacts, found: Findings) -> None:
    """Hooks and probes belong to containers that keep running."""
    grace = facts.spec.termination_grace_period_seconds
    validate_lifecycle(container.lifecycle, f"{at}.lifecycle", grace, facts.os, found)
    validate_probes(container, at, found)


def _validate_init(container: Container, at: str, taken: dict[str, str], facts: PodFacts, found: Findings) -> None:
    _validate_common(container, at, taken, facts, found)
    _validate_restart(container.restart_policy, container.restart_policy_rules, at, found)
    # Init containers run one after the other, so each only competes with itself for a port of the host.
    validate_host_ports([(at, container)], found)
    if container.restart_policy == "Always":
        _validate_running(container, at, facts, found)
        return
    for field, name in KEPT_RUNNING_ONLY:
        if getattr(container, field) is not None:
            found.add(f"{at}.{name}", "must not be set for an init container without restartPolicy Always")
    for i, policy in enumerate(container.resize_policy):
        if policy.restart_policy == "RestartContainer":
            found.add(
                f"{at}.resizePolicy[{i}].restartPolicy",
                "must not be RestartContainer for an init container without restartPolicy Always",
            )


def _validate_ephemeral(container: EphemeralContainer, at: str, others: frozenset[str], found: Findings) -> None:
    for field, name in NOT_EPHEMERAL:
        if getattr(container, field) not in (None, []):
            found.add(f"{at}.{name}", "must not be set for an ephemeral container")
    target = container.target_container_name
    if target and target not in others:
        found.add(f"{at}.targetContainerName", f"there is no container named {show(target)}")
    for i, mount in enumerate(container.volume_mounts):
        if mount.sub_path:
            found.add(f"{at}.volumeMounts[{i}].subPath", "must not be set for an ephemeral container")
        if mount.sub_path_expr:
            found.add(f"{at}.volumeMounts[{i}].subPathExpr", "must not be set for an ephemeral container")


def _validate_restart(policy: str | None, rules: Sequence[ContainerRestartRule], at: str, found: Findings) -> None:
    if policy is None and rules:
        found.add(f"{at}.restartPolicy", "required with restartPolicyRules")
    found.choice(f"{at}.restartPolicy", policy, RESTART_POLICIES)
    if len(rules) > MAX_RULES:
        found.add(f"{at}.restartPolicyRules", f"must be at most {MAX_RULES}, not {len(rules)}")
    for i, rule in enumerate(rules):
        path = f"{at}.restartPolicyRules[{i}]"
        found.choice(f"{path}.action", rule.action or "", ("Restart", "RestartAllContainers"))
        codes = rule.exit_codes
        if codes is None:
            found.add(f"{path}.exitCodes", "required")
            continue
        found.choice(f"{path}.exitCodes.operator", codes.operator or "", ("In", "NotIn"))
        if len(codes.values) > MAX_EXIT_CODES:
            found.add(f"{path}.exitCodes.values", f"must be at most {MAX_EXIT_CODES}, not {len(codes.values)}")
