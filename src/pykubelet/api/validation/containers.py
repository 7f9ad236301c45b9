"""Containers of all three sorts with their ports, probes, hooks and mounts: what they share, and what each may have."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from pykubelet.api.types import (
    Container,
    ContainerPort,
    ContainerRestartRule,
    EphemeralContainer,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    PodSpec,
    Probe,
    SecurityContext,
    SleepAction,
    TCPSocketAction,
    Volume,
    VolumeDevice,
    VolumeMount,
)
from pykubelet.api.validation import names
from pykubelet.api.validation.env import validate_env, validate_env_from
from pykubelet.api.validation.findings import Findings, show
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


class PodFacts(Struct, frozen=True, kw_only=True):
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
        name = container.name
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


PROTOCOLS = ("TCP", "UDP", "SCTP")


def validate_ports(ports: Sequence[ContainerPort], at: str, found: Findings) -> None:
    seen: set[str] = set()
    for i, port in enumerate(ports):
        path = f"{at}[{i}]"
        if port.name:
            complaint = names.port_name(port.name)
            if complaint is None and port.name in seen:
                complaint = f"is used twice: {show(port.name)}"
            found.check(f"{path}.name", complaint)
            seen.add(port.name)
        if port.container_port is None:
            found.add(f"{path}.containerPort", "required")
        else:
            found.between(f"{path}.containerPort", port.container_port, 1, 65535)
        if port.host_port:
            found.between(f"{path}.hostPort", port.host_port, 1, 65535)
        if port.host_ip:
            found.check(f"{path}.hostIP", names.ip_address(port.host_ip))
        if found.required(f"{path}.protocol", port.protocol):
            found.choice(f"{path}.protocol", port.protocol, PROTOCOLS)


def validate_host_ports(containers: Sequence[tuple[str, Container]], found: Findings) -> None:
    """No two ports of containers that run together may claim the same place on the host."""
    claimed: dict[tuple[str, str, int], str] = {}
    for at, container in containers:
        for i, port in enumerate(container.ports):
            if not port.host_port:
                continue
            place = (port.protocol or "", port.host_ip or "", port.host_port)
            path = f"{at}.ports[{i}].hostPort"
            if place in claimed:
                found.add(path, f"{port.host_port}/{port.protocol} is already taken by {claimed[place]}")
            else:
                claimed[place] = path


def validate_host_network(spec: PodSpec, found: Findings) -> None:
    """On the host's network a container cannot listen elsewhere than where it listens."""
    if not spec.host_network:
        return
    for i, container in enumerate(spec.containers):
        for j, port in enumerate(container.ports):
            if port.host_port != port.container_port:
                found.add(
                    f"spec.containers[{i}].ports[{j}].hostPort",
                    f"must equal containerPort {show(port.container_port)} with hostNetwork,"
                    f" not {show(port.host_port)}",
                )


_SIGNAL_NAME = re.compile(
    "SIG(?:ABRT|ALRM|BUS|CHLD|CLD|CONT|FPE|HUP|ILL|INT|IO|IOT|KILL|PIPE|POLL|PROF|PWR|QUIT|SEGV|STKFLT|STOP|SYS"
    "|TERM|TRAP|TSTP|TTIN|TTOU|URG|USR1|USR2|VTALRM|WINCH|XCPU|XFSZ"
    r"|RTMIN(?:\+(?:[1-9]|1[0-5]))?|RTMAX(?:-(?:[1-9]|1[0-4]))?)"
)

Action = ExecAction | HTTPGetAction | TCPSocketAction | GRPCAction | SleepAction


def validate_probes(container: Container, at: str, found: Findings) -> None:
    """The three probes of a container that keeps running."""
    for name, probe in (
        ("livenessProbe", container.liveness_probe),
        ("readinessProbe", container.readiness_probe),
        ("startupProbe", container.startup_probe),
    ):
        if probe is None:
            continue
        path = f"{at}.{name}"
        _validate_probe(probe, path, found)
        if name == "readinessProbe":
            if probe.termination_grace_period_seconds is not None:
                found.add(f"{path}.terminationGracePeriodSeconds", "must not be set for a readiness probe")
        elif (probe.success_threshold or 0) > 1:
            found.add(f"{path}.successThreshold", f"must be 1, not {probe.success_threshold}")


def _validate_probe(probe: Probe, at: str, found: Findings) -> None:
    _validate_action(
        {"exec": probe.exec, "httpGet": probe.http_get, "tcpSocket": probe.tcp_socket, "grpc": probe.grpc},
        at,
        None,
        found,
    )
    for name, number in (
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ):
        found.at_least(f"{at}.{name}", number, 0)
    found.at_least(f"{at}.terminationGracePeriodSeconds", probe.termination_grace_period_seconds, 1)


def validate_lifecycle(
    lifecycle: Lifecycle | None, at: str, grace: int | None, os: str | None, found: Findings
) -> None:
    if lifecycle is None:
        return
    for name, hook in (("postStart", lifecycle.post_start), ("preStop", lifecycle.pre_stop)):
        if hook is not None:
            _validate_action(_actions(hook), f"{at}.{name}", grace, found)
    if lifecycle.stop_signal is None:
        return
    if os is None:
        found.add(f"{at}.stopSignal", "must not be set without spec.os.name")
    elif os == "linux" and not _SIGNAL_NAME.fullmatch(lifecycle.stop_signal):
        found.add(f"{at}.stopSignal", f"must be a signal such as SIGTERM, not {show(lifecycle.stop_signal)}")


def _actions(hook: LifecycleHandler) -> dict[str, Action | None]:
    return {
        "exec": hook.exec,
        "httpGet": hook.http_get,
        "tcpSocket": hook.tcp_socket,
        "sleep": hook.sleep,
    }


def _validate_action(actions: dict[str, Action | None], at: str, grace: int | None, found: Findings) -> None:
    chosen = {name: action for name, action in actions.items() if action is not None}
    if not chosen:
        found.add(at, f"must have one of {', '.join(actions)}")
    elif len(chosen) > 1:
        found.add(at, f"must have only one handler, not {' and '.join(chosen)}")
    for name, action in chosen.items():
        path = f"{at}.{name}"
        if isinstance(action, ExecAction):
            found.required(f"{path}.command", action.command)
        elif isinstance(action, HTTPGetAction):
            _validate_http_get(action, path, found)
        elif isinstance(action, SleepAction):
            _validate_sleep(action, path, grace, found)
        else:
            found.check(f"{path}.port", names.port_number_or_name(action.port))


def _validate_http_get(action: HTTPGetAction, at: str, found: Findings) -> None:
    found.required(f"{at}.path", action.path)
    found.check(f"{at}.port", names.port_number_or_name(action.port))
    found.choice(f"{at}.scheme", action.scheme, ("HTTP", "HTTPS"))
    for i, header in enumerate(action.http_headers):
        found.check(f"{at}.httpHeaders[{i}].name", names.header_name(header.name or ""))


def _validate_sleep(action: SleepAction, at: str, grace: int | None, found: Findings) -> None:
    seconds = action.seconds or 0
    # A bad grace period is reported where it stands; comparing with it would only repeat that.
    if grace is not None and grace >= 0 and not 0 <= seconds <= grace:
        found.add(f"{at}.seconds", f"must be 0..{grace} (the grace period), not {show(seconds)}")


PROPAGATIONS = ("None", "HostToContainer", "Bidirectional")


def validate_mounts(
    mounts: Sequence[VolumeMount],
    devices: Sequence[VolumeDevice],
    volumes: Mapping[str | None, Volume],
    context: SecurityContext | None,
    at: str,
    found: Findings,
) -> None:
    """Check both lists together: a volume or a path may appear in only one of them."""
    privileged = context is not None and bool(context.privileged)
    device_names = {device.name for device in devices if device.name}
    paths: set[str] = set()
    for i, mount in enumerate(mounts):
        path = f"{at}.volumeMounts[{i}]"
        if found.required(f"{path}.name", mount.name):
            if mount.name not in volumes:
                found.add(f"{path}.name", f"there is no volume named {show(mount.name)}")
            if mount.name in device_names:
                found.add(f"{path}.name", f"volume {show(mount.name)} is also in volumeDevices")
        if found.required(f"{path}.mountPath", mount.mount_path):
            if mount.mount_path in paths:
                found.add(f"{path}.mountPath", f"is used twice: {show(mount.mount_path)}")
            paths.add(mount.mount_path or "")
        _validate_sub_path(mount, path, found)
        found.choice(f"{path}.mountPropagation", mount.mount_propagation, PROPAGATIONS)
        if mount.mount_propagation == "Bidirectional" and not privileged:
            found.add(f"{path}.mountPropagation", "Bidirectional needs a privileged container")
        _validate_recursive(mount, path, found)
    _validate_devices(devices, volumes, paths, at, found)


def _validate_sub_path(mount: VolumeMount, at: str, found: Findings) -> None:
    if mount.sub_path:
        found.check(f"{at}.subPath", names.relative_path(mount.sub_path))
    if mount.sub_path_expr:
        found.check(f"{at}.subPathExpr", names.relative_path(mount.sub_path_expr))
        if mount.sub_path:
            found.add(f"{at}.subPathExpr", "must not be set together with subPath")


def _validate_recursive(mount: VolumeMount, at: str, found: Findings) -> None:
    path, value = f"{at}.recursiveReadOnly", mount.recursive_read_only
    found.choice(path, value, ("Disabled", "IfPossible", "Enabled"))
    if value in ("IfPossible", "Enabled"):
        if not mount.read_only:
            found.add(path, "needs readOnly true")
        if mount.mount_propagation not in (None, "None"):
            found.add(path, "needs mountPropagation None")


def _validate_devices(
    devices: Sequence[VolumeDevice],
    volumes: Mapping[str | None, Volume],
    mount_paths: set[str],
    at: str,
    found: Findings,
) -> None:
    used_names: set[str] = set()
    used_paths: set[str] = set()
    for i, device in enumerate(devices):
        path = f"{at}.volumeDevices[{i}]"
        if found.required(f"{path}.name", device.name):
            volume = volumes.get(device.name)
            if volume is None:
                found.add(f"{path}.name", f"there is no volume named {show(device.name)}")
            elif volume.persistent_volume_claim is None and volume.ephemeral is None:
                found.add(f"{path}.name", f"volume {show(device.name)} must be a claim to be a block device")
            if device.name in used_names:
                found.add(f"{path}.name", f"is used twice: {show(device.name)}")
            used_names.add(device.name or "")
        target = device.device_path or ""
        if not found.required(f"{path}.devicePath", target):
            continue
        found.check(f"{path}.devicePath", names.no_backsteps(target))
        if target in used_paths or target in mount_paths:
            found.add(f"{path}.devicePath", f"is used twice: {show(target)}")
        used_paths.add(target)
