"""Security contexts of the pod and of containers, user namespaces, and their old annotations.

Does not cover: Windows options; this agent runs Linux pods and refuses others at admission.
"""

from collections.abc import Iterator

from pykubelet.api.types import (
    AppArmorProfile,
    Container,
    EphemeralContainer,
    Pod,
    PodSecurityContext,
    PodSpec,
    SeccompProfile,
    SecurityContext,
)
from pykubelet.api.validation import names
from pykubelet.api.validation.findings import Findings, key_path, show

MAX_PROFILE = 4095
PROFILE_TYPES = ("Localhost", "RuntimeDefault", "Unconfined")
APPARMOR_PREFIX = "container.apparmor.security.beta.kubernetes.io/"
SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
SECCOMP_PREFIX = "container.seccomp.security.alpha.kubernetes.io/"
IPC_SYSCTLS = ("kernel.shm", "kernel.msg", "fs.mqueue.")
UNMASKED = "Unmasked"

AnyContainer = Container | EphemeralContainer


def every_container(spec: PodSpec) -> Iterator[tuple[str, AnyContainer]]:
    """All containers of the pod with their paths."""
    for i, init in enumerate(spec.init_containers):
        yield f"spec.initContainers[{i}]", init
    for i, container in enumerate(spec.containers):
        yield f"spec.containers[{i}]", container
    for i, ephemeral in enumerate(spec.ephemeral_containers):
        yield f"spec.ephemeralContainers[{i}]", ephemeral


def validate_pod_security(spec: PodSpec, found: Findings, *, users_in_host_network: bool = False) -> None:
    """`users_in_host_network`: a pod may have a user namespace and the host's network."""
    context = spec.security_context
    if spec.share_process_namespace and spec.host_pid:
        found.add("spec.shareProcessNamespace", "must not be true together with hostPID")
    if spec.host_users is False:
        _validate_user_namespace(spec, found, host_network=users_in_host_network)
    if spec.os is not None and spec.os.name == "linux":
        _validate_linux(spec, found)
    if context is None:
        return
    at = "spec.securityContext"
    for name, number in (
        ("fsGroup", context.fs_group),
        ("runAsUser", context.run_as_user),
        ("runAsGroup", context.run_as_group),
    ):
        _validate_id(f"{at}.{name}", number, found)
    for i, group in enumerate(context.supplemental_groups):
        _validate_id(f"{at}.supplementalGroups[{i}]", group, found)
    _validate_sysctls(spec, context, found)
    found.choice(f"{at}.fsGroupChangePolicy", context.fs_group_change_policy, ("OnRootMismatch", "Always"))
    found.choice(f"{at}.supplementalGroupsPolicy", context.supplemental_groups_policy, ("Merge", "Strict"))
    found.choice(f"{at}.seLinuxChangePolicy", context.se_linux_change_policy, ("Recursive", "MountOption"))
    _validate_seccomp(context.seccomp_profile, f"{at}.seccompProfile", found)
    _validate_apparmor(context.app_armor_profile, f"{at}.appArmorProfile", found)


def validate_container_security(context: SecurityContext | None, at: str, host_users: bool, found: Findings) -> None:
    if context is None:
        return
    _validate_id(f"{at}.runAsUser", context.run_as_user, found)
    _validate_id(f"{at}.runAsGroup", context.run_as_group, found)
    found.choice(f"{at}.procMount", context.proc_mount, ("Default", UNMASKED))
    if context.proc_mount == UNMASKED and host_users:
        found.add(f"{at}.procMount", "Unmasked needs spec.hostUsers false")
    if context.allow_privilege_escalation is False:
        if context.privileged:
            found.add(f"{at}.allowPrivilegeEscalation", "must not be false for a privileged container")
        if context.capabilities is not None and "CAP_SYS_ADMIN" in context.capabilities.add:
            found.add(f"{at}.allowPrivilegeEscalation", "must not be false with CAP_SYS_ADMIN added")
    _validate_seccomp(context.seccomp_profile, f"{at}.seccompProfile", found)
    _validate_apparmor(context.app_armor_profile, f"{at}.appArmorProfile", found)


def _validate_id(path: str, number: int | None, found: Findings) -> None:
    if number is not None:
        found.check(path, names.user_or_group_id(number))


def _validate_user_namespace(spec: PodSpec, found: Findings, *, host_network: bool) -> None:
    for name, on in (
        ("hostNetwork", spec.host_network and not host_network),
        ("hostPID", spec.host_pid),
        ("hostIPC", spec.host_ipc),
    ):
        if on:
            found.add(f"spec.{name}", "must not be true when hostUsers is false")
    for at, container in every_container(spec):
        if container.volume_devices:
            found.add(f"{at}.volumeDevices", "must not be set when hostUsers is false")


def _validate_linux(spec: PodSpec, found: Findings) -> None:
    if spec.security_context is not None and spec.security_context.windows_options is not None:
        found.add("spec.securityContext.windowsOptions", "must not be set for a linux pod")
    for at, container in every_container(spec):
        if container.security_context is not None and container.security_context.windows_options is not None:
            found.add(f"{at}.securityContext.windowsOptions", "must not be set for a linux pod")


def _validate_sysctls(spec: PodSpec, context: PodSecurityContext, found: Findings) -> None:
    seen: set[str] = set()
    for i, sysctl in enumerate(context.sysctls):
        path = f"spec.securityContext.sysctls[{i}].name"
        name = sysctl.name or ""
        if not found.required(path, name):
            continue
        complaint = names.sysctl_name(name)
        if complaint is None and name in seen:
            complaint = f"is used twice: {show(name)}"
        found.check(path, complaint)
        seen.add(name)
        dotted = _dotted(name)
        if spec.host_network and dotted.startswith("net."):
            found.add(path, f"{show(name)} must not be set with hostNetwork")
        elif spec.host_ipc and (dotted.startswith(IPC_SYSCTLS) or dotted == "kernel.sem"):
            found.add(path, f"{show(name)} must not be set with hostIPC")


def _dotted(name: str) -> str:
    """The dotted form. Whichever separator comes first decides: after a slash, a dot is part of a name."""
    dot, slash = name.find("."), name.find("/")
    if slash >= 0 and (dot < 0 or slash < dot):
        return name.translate(str.maketrans("/.", "./"))
    return name


def _validate_seccomp(profile: SeccompProfile | None, at: str, found: Findings) -> None:
    if profile is None:
        return
    if found.required(f"{at}.type", profile.type):
        found.choice(f"{at}.type", profile.type, PROFILE_TYPES)
    if profile.type != "Localhost":
        if profile.localhost_profile is not None:
            found.add(f"{at}.localhostProfile", "must be set only with type Localhost")
    elif profile.localhost_profile is None:
        found.add(f"{at}.localhostProfile", "required with type Localhost")
    else:
        found.check(f"{at}.localhostProfile", names.relative_path(profile.localhost_profile))


def _validate_apparmor(profile: AppArmorProfile | None, at: str, found: Findings) -> None:
    if profile is None:
        return
    if found.required(f"{at}.type", profile.type):
        found.choice(f"{at}.type", profile.type, PROFILE_TYPES)
    name, path = profile.localhost_profile, f"{at}.localhostProfile"
    if profile.type != "Localhost":
        if name is not None:
            found.add(path, "must be set only with type Localhost")
    elif not name:
        found.add(path, "required with type Localhost")
    elif name != name.strip():
        found.add(path, f"must not begin or end with blanks, not {show(name)}")
    elif len(name) > MAX_PROFILE:
        found.add(path, f"must be at most {MAX_PROFILE} characters long, not {len(name)}")


def validate_security_annotations(pod: Pod, found: Findings) -> None:
    """The annotations that came before the fields: still read by runtimes, so still checked."""
    containers = {container.name for _, container in every_container(pod.spec)}
    for key, value in pod.metadata.annotations.items():
        path = key_path("metadata.annotations", key)
        if key == SECCOMP_POD or key.startswith(SECCOMP_PREFIX):
            if value.startswith("localhost/"):
                found.check(path, names.relative_path(value.removeprefix("localhost/")))
            elif value not in ("runtime/default", "docker/default", "unconfined"):
                found.add(path, f"must be a seccomp profile, not {show(value)}")
        elif key.startswith(APPARMOR_PREFIX):
            if key.removeprefix(APPARMOR_PREFIX) not in containers:
                found.add(path, "there is no container of that name")
            if value not in ("", "runtime/default", "unconfined") and not value.startswith("localhost/"):
                found.add(path, f"must be an AppArmor profile, not {show(value)}")
    _validate_annotation_matches(pod, found)


def _validate_annotation_matches(pod: Pod, found: Findings) -> None:
    notes, pod_context = pod.metadata.annotations, pod.spec.security_context
    if not notes:
        return
    if pod_context is not None and pod_context.seccomp_profile is not None and SECCOMP_POD in notes:
        _match(pod_context.seccomp_profile, notes[SECCOMP_POD], "spec.securityContext.seccompProfile", found)
    for at, container in every_container(pod.spec):
        context = container.security_context
        note = notes.get(f"{SECCOMP_PREFIX}{container.name}")
        if note is not None and context is not None and context.seccomp_profile is not None:
            _match(context.seccomp_profile, note, f"{at}.securityContext.seccompProfile", found)
        note = notes.get(f"{APPARMOR_PREFIX}{container.name}")
        armor = pod_context.app_armor_profile if pod_context is not None else None
        if context is not None and context.app_armor_profile is not None:
            armor = context.app_armor_profile
        if note is not None and armor is not None:
            _match(armor, note, f"{at}.securityContext.appArmorProfile", found)


def _match(profile: SeccompProfile | AppArmorProfile, note: str, at: str, found: Findings) -> None:
    allowed = {
        "Unconfined": ("unconfined",),
        "RuntimeDefault": ("runtime/default", "docker/default"),
        "Localhost": (f"localhost/{profile.localhost_profile}",),
    }.get(profile.type or "")
    if allowed is not None and note not in allowed:
        found.add(at, f"differs from the annotation, which says {show(note)}")
