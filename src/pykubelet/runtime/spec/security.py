"""Who a container runs as and what it may do: security contexts of sandboxes and containers. Pure.

Effective values are the container's over the pod's. Raises ConfigProblem with upstream's texts when the spec
cannot be honoured. Whether the node offers a feature at all (AppArmor, sysctls) is admission's question.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from pykubelet.api.types import (
    AppArmorProfile,
    Pod,
    PodSecurityContext,
    SeccompProfile,
    SecurityContext,
    SELinuxOptions,
)
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.model.pod import AnyContainer, all_containers, log_form
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.wire import cri_pb2

MASKED_PATHS: Final = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
READONLY_PATHS: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
APPARMOR_ANNOTATION: Final = "container.apparmor.security.beta.kubernetes.io/"
APPARMOR_LOCALHOST: Final = "localhost/"
MAX_USER_ID: Final = 2**31 - 1

_NO_POD_CONTEXT: Final = PodSecurityContext()
_NO_CONTEXT: Final = SecurityContext()
_NODE, _POD, _CONTAINER = cri_pb2.NamespaceMode.NODE, cri_pb2.NamespaceMode.POD, cri_pb2.NamespaceMode.CONTAINER
_Profile = cri_pb2.SecurityProfile


class ImageUser(Struct, frozen=True, kw_only=True):
    """The user an image names; root when it names none."""

    uid: int | None = 0
    username: str = ""


def namespace_options(pod: Pod, userns: cri_pb2.UserNamespace | None, target_id: str = "") -> cri_pb2.NamespaceOption:
    """`userns` None: the runtime knows nothing of user namespaces."""
    options = cri_pb2.NamespaceOption(
        network=_NODE if pod.spec.host_network else _POD,
        ipc=_NODE if pod.spec.host_ipc else _POD,
        pid=_NODE if pod.spec.host_pid else _POD if pod.spec.share_process_namespace else _CONTAINER,
        userns_options=userns,
    )
    if target_id and options.pid == _CONTAINER:
        options.pid = cri_pb2.NamespaceMode.TARGET
        options.target_id = target_id
    return options


# --- sandbox ----------------------------------------------------------------------------------------


def sandbox_security(
    pod: Pod, userns: cri_pb2.UserNamespace | None, extra_groups: Sequence[int] = ()
) -> cri_pb2.LinuxSandboxSecurityContext:
    context = pod.spec.security_context or _NO_POD_CONTEXT
    groups = [] if context.fs_group is None else [context.fs_group]
    return cri_pb2.LinuxSandboxSecurityContext(
        privileged=any(_of(container).privileged for _, container in all_containers(pod)),
        # The pause process needs nothing a profile of the pod could forbid, and the pod's may not let it start.
        seccomp=_Profile(profile_type=_Profile.RuntimeDefault),
        run_as_user=_int64(context.run_as_user),
        run_as_group=_int64(context.run_as_group),
        namespace_options=namespace_options(pod, userns),
        supplemental_groups=[*groups, *extra_groups, *context.supplemental_groups],
        supplemental_groups_policy=_groups_policy(context),
        selinux_options=_selinux(context.se_linux_options),
    )


# --- container --------------------------------------------------------------------------------------


def container_security(
    pod: Pod,
    container: AnyContainer,
    node: NodeSpec,
    *,
    image_user: ImageUser,
    userns: cri_pb2.UserNamespace | None = None,
    extra_groups: Sequence[int] = (),
    target_id: str = "",
) -> cri_pb2.LinuxContainerSecurityContext:
    of_pod, own = pod.spec.security_context or _NO_POD_CONTEXT, _of(container)
    user = own.run_as_user if own.run_as_user is not None else of_pod.run_as_user
    group = own.run_as_group if own.run_as_group is not None else of_pod.run_as_group
    groups = [] if of_pod.fs_group is None else [of_pod.fs_group]
    apparmor, apparmor_text = apparmor_profile(pod, container)
    unmasked = own.proc_mount == "Unmasked"
    return cri_pb2.LinuxContainerSecurityContext(
        capabilities=None
        if own.capabilities is None
        else cri_pb2.Capability(add_capabilities=own.capabilities.add, drop_capabilities=own.capabilities.drop),
        privileged=bool(own.privileged),
        readonly_rootfs=bool(own.read_only_root_filesystem),
        selinux_options=_selinux(own.se_linux_options or of_pod.se_linux_options),
        run_as_user=_int64(image_user.uid if user is None else user),
        run_as_username=image_user.username if user is None else "",
        run_as_group=_int64(group),
        supplemental_groups=[*groups, *of_pod.supplemental_groups, *extra_groups],
        supplemental_groups_policy=_groups_policy(of_pod),
        no_new_privs=own.allow_privilege_escalation is False,
        seccomp=seccomp_profile(own.seccomp_profile or of_pod.seccomp_profile, node),
        apparmor=apparmor,
        apparmor_profile=apparmor_text,
        masked_paths=() if unmasked else (*MASKED_PATHS, *node.thermal_paths),
        readonly_paths=() if unmasked else READONLY_PATHS,
        namespace_options=namespace_options(pod, userns, target_id),
    )


def check_non_root(pod: Pod, container: AnyContainer, image_user: ImageUser) -> None:
    """Refuse a container that promises not to run as root and would, or might."""
    of_pod, own = pod.spec.security_context or _NO_POD_CONTEXT, _of(container)
    wanted = own.run_as_non_root if own.run_as_non_root is not None else of_pod.run_as_non_root
    if not wanted:
        return
    place = f'(pod: "{log_form(pod)}", container: {container.name})'
    user = own.run_as_user if own.run_as_user is not None else of_pod.run_as_user
    if user is not None:
        if user == 0:
            raise ConfigProblem(f"container's runAsUser breaks non-root policy {place}")
        return
    uid = image_user.uid
    if uid is None:
        if image_user.username:
            raise ConfigProblem(
                f"container has runAsNonRoot and image has non-numeric user ({image_user.username}), "
                f"cannot verify user is non-root {place}"
            )
        return
    if uid == 0:
        raise ConfigProblem(f"container has runAsNonRoot and image will run as root {place}")
    if not 0 <= uid <= MAX_USER_ID:
        raise ConfigProblem(
            f"container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({MAX_USER_ID})): "
            f"must be between 0 and {MAX_USER_ID}, inclusive {place}"
        )


def needs_image_user(pod: Pod, container: AnyContainer) -> bool:
    """Whether anything depends on the user the image names."""
    context = pod.spec.security_context or _NO_POD_CONTEXT
    return _of(container).run_as_user is None and context.run_as_user is None


def seccomp_profile(profile: SeccompProfile | None, node: NodeSpec) -> cri_pb2.SecurityProfile:
    if profile is None:
        kind = _Profile.RuntimeDefault if node.seccomp_default else _Profile.Unconfined
        return _Profile(profile_type=kind)
    if profile.type == "RuntimeDefault":
        return _Profile(profile_type=_Profile.RuntimeDefault)
    if profile.type == "Localhost":
        if not profile.localhost_profile:
            raise ConfigProblem("localhostProfile must be set if seccompProfile type is Localhost.")
        path = os.path.normpath(os.path.join(node.seccomp_root, profile.localhost_profile.lstrip("/")))
        return _Profile(profile_type=_Profile.Localhost, localhost_ref=path)
    return _Profile(profile_type=_Profile.Unconfined)


def apparmor_profile(pod: Pod, container: AnyContainer) -> tuple[cri_pb2.SecurityProfile | None, str]:
    """The profile, and the same as the text that older runtimes read."""
    profile = _apparmor_wanted(pod, container)
    if profile is None:
        return None, ""
    if profile.type == "RuntimeDefault":
        return _Profile(profile_type=_Profile.RuntimeDefault), "runtime/default"
    if profile.type == "Unconfined":
        return _Profile(profile_type=_Profile.Unconfined), "unconfined"
    if profile.type == "Localhost":
        if profile.localhost_profile is None:
            raise ConfigProblem("missing localhost apparmor profile name")
        name = profile.localhost_profile
        return _Profile(profile_type=_Profile.Localhost, localhost_ref=name), APPARMOR_LOCALHOST + name
    raise ConfigProblem(f'unknown apparmor profile type: "{profile.type}"')


def _apparmor_wanted(pod: Pod, container: AnyContainer) -> AppArmorProfile | None:
    own = _of(container).app_armor_profile
    if own is not None:
        return own
    # Static pods may carry only the annotation: no API server copied it into the field.
    text = pod.metadata.annotations.get(f"{APPARMOR_ANNOTATION}{container.name}", "")
    if text == "runtime/default":
        return AppArmorProfile(type="RuntimeDefault")
    if text == "unconfined":
        return AppArmorProfile(type="Unconfined")
    if text.startswith(APPARMOR_LOCALHOST):
        return AppArmorProfile(type="Localhost", localhost_profile=text.removeprefix(APPARMOR_LOCALHOST))
    return (pod.spec.security_context or _NO_POD_CONTEXT).app_armor_profile


# --- small things -----------------------------------------------------------------------------------


def _of(container: AnyContainer) -> SecurityContext:
    return container.security_context or _NO_CONTEXT


def _int64(value: int | None) -> cri_pb2.Int64Value | None:
    return None if value is None else cri_pb2.Int64Value(value=value)


def _groups_policy(context: PodSecurityContext) -> cri_pb2.SupplementalGroupsPolicy:
    policy = context.supplemental_groups_policy or "Merge"
    if policy not in ("Merge", "Strict"):
        raise ConfigProblem(f"unsupported supplementalGroupsPolicy: {policy}")
    return cri_pb2.SupplementalGroupsPolicy.Strict if policy == "Strict" else cri_pb2.SupplementalGroupsPolicy.Merge


def _selinux(options: SELinuxOptions | None) -> cri_pb2.SELinuxOption | None:
    if options is None:
        return None
    return cri_pb2.SELinuxOption(
        user=options.user or "", role=options.role or "", type=options.type or "", level=options.level or ""
    )
