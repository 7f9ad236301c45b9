"""CRI messages into the frozen values of model/runtime_status.py.

Covers: every message whose content travels above the client, and the list filters going the other way.
Does not cover: stats and metrics, which stay CRI messages. Pure functions only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pykubelet.model.container_keys import (
    CONTAINER_NAME_LABEL,
    POD_NAME_LABEL,
    POD_NAMESPACE_LABEL,
    POD_UID_LABEL,
)
from pykubelet.model.runtime_status import (
    NO_LABELS,
    ContainerEvent,
    ContainerRecord,
    ContainerResources,
    ContainerState,
    ContainerStatus,
    ContainerUser,
    EventKind,
    FilesystemUsage,
    Image,
    ImageFilesystems,
    MountRecord,
    NamespaceMode,
    RuntimeCondition,
    RuntimeConditions,
    RuntimeHandler,
    SandboxRecord,
    SandboxState,
    SandboxStatus,
)
from pykubelet.wire import cri_pb2

_CONTAINER_STATES = {
    cri_pb2.CONTAINER_CREATED: ContainerState.CREATED,
    cri_pb2.CONTAINER_RUNNING: ContainerState.RUNNING,
    cri_pb2.CONTAINER_EXITED: ContainerState.EXITED,
}

_EVENTS = {
    cri_pb2.CONTAINER_CREATED_EVENT: EventKind.CREATED,
    cri_pb2.CONTAINER_STARTED_EVENT: EventKind.STARTED,
    cri_pb2.CONTAINER_STOPPED_EVENT: EventKind.STOPPED,
    cri_pb2.CONTAINER_DELETED_EVENT: EventKind.DELETED,
}


def _labels(pairs: Mapping[str, str]) -> Mapping[str, str]:
    return dict(pairs) if pairs else NO_LABELS


def sandbox_state(state: int) -> SandboxState:
    return SandboxState.READY if state == cri_pb2.SANDBOX_READY else SandboxState.NOT_READY


def container_state(state: int) -> ContainerState:
    """A state this agent does not know counts as unknown, like a runtime that does not know."""
    return _CONTAINER_STATES.get(state, ContainerState.UNKNOWN)  # type: ignore[call-overload,no-any-return]


def sandbox_image(info: Mapping[str, str]) -> str:
    """The image in the verbose info of containerd and CRI-O, a JSON text of their own."""
    try:
        details = json.loads(info.get("info", ""))
    except ValueError:
        return ""
    image = details.get("image") if isinstance(details, dict) else None
    return image if isinstance(image, str) else ""


def sandbox_record(item: cri_pb2.PodSandbox) -> SandboxRecord:
    return SandboxRecord(
        id=item.id,
        pod_uid=item.metadata.uid,
        pod_name=item.metadata.name,
        pod_namespace=item.metadata.namespace,
        attempt=item.metadata.attempt,
        state=sandbox_state(item.state),
        created_at=item.created_at,
        labels=_labels(item.labels),
        annotations=_labels(item.annotations),
        runtime_handler=item.runtime_handler,
    )


def sandbox_status(item: cri_pb2.PodSandboxStatus) -> SandboxStatus:
    network = item.network
    addresses = (network.ip, *(extra.ip for extra in network.additional_ips))
    return SandboxStatus(
        id=item.id,
        pod_uid=item.metadata.uid,
        pod_name=item.metadata.name,
        pod_namespace=item.metadata.namespace,
        attempt=item.metadata.attempt,
        state=sandbox_state(item.state),
        created_at=item.created_at,
        ips=tuple(address for address in addresses if address),
        network_mode=NamespaceMode(item.linux.namespaces.options.network),
        labels=_labels(item.labels),
        annotations=_labels(item.annotations),
        runtime_handler=item.runtime_handler,
    )


def container_record(item: cri_pb2.Container) -> ContainerRecord:
    labels = _labels(item.labels)
    return ContainerRecord(
        id=item.id,
        sandbox_id=item.pod_sandbox_id,
        pod_uid=labels.get(POD_UID_LABEL, ""),
        pod_name=labels.get(POD_NAME_LABEL, ""),
        pod_namespace=labels.get(POD_NAMESPACE_LABEL, ""),
        name=labels.get(CONTAINER_NAME_LABEL, ""),
        attempt=item.metadata.attempt,
        state=container_state(item.state),
        created_at=item.created_at,
        image=item.image.image,
        image_ref=item.image_ref,
        image_id=item.image_id,
        labels=labels,
        annotations=_labels(item.annotations),
    )


def container_status(item: cri_pb2.ContainerStatus) -> ContainerStatus:
    return ContainerStatus(
        id=item.id,
        name=item.metadata.name,
        attempt=item.metadata.attempt,
        state=container_state(item.state),
        created_at=item.created_at,
        started_at=item.started_at,
        finished_at=item.finished_at,
        exit_code=item.exit_code,
        image=item.image.image,
        image_ref=item.image_ref,
        image_id=item.image_id,
        reason=item.reason,
        message=item.message,
        labels=_labels(item.labels),
        annotations=_labels(item.annotations),
        mounts=tuple(mount_record(mount) for mount in item.mounts),
        log_path=item.log_path,
        resources=linux_resources(item.resources.linux) if _has_resources(item) else None,
        user=_user(item),
        stop_signal=cri_pb2.Signal.Name(item.stop_signal) if item.stop_signal else "",
    )


def mount_record(mount: cri_pb2.Mount) -> MountRecord:
    return MountRecord(
        container_path=mount.container_path,
        host_path=mount.host_path,
        readonly=mount.readonly,
        image=mount.image.image,
    )


def _has_resources(item: cri_pb2.ContainerStatus) -> bool:
    return item.HasField("resources") and item.resources.HasField("linux")


def linux_resources(linux: cri_pb2.LinuxContainerResources) -> ContainerResources:
    """A figure of 0 counts as not reported: no limit of this kind can be 0 on Linux."""
    return ContainerResources(
        cpu_shares=linux.cpu_shares or None,
        cpu_quota=linux.cpu_quota or None,
        cpu_period=linux.cpu_period or None,
        memory_limit_bytes=linux.memory_limit_in_bytes or None,
        memory_swap_limit_bytes=linux.memory_swap_limit_in_bytes or None,
        cpuset_cpus=linux.cpuset_cpus,
        cpuset_mems=linux.cpuset_mems,
        unified=_labels(linux.unified),
    )


def _user(item: cri_pb2.ContainerStatus) -> ContainerUser | None:
    if not item.HasField("user") or not item.user.HasField("linux"):
        return None
    user = item.user.linux
    return ContainerUser(uid=user.uid, gid=user.gid, supplemental_groups=tuple(user.supplemental_groups))


def runtime_conditions(answer: cri_pb2.StatusResponse) -> RuntimeConditions:
    return RuntimeConditions(
        conditions=tuple(
            RuntimeCondition(type=item.type, status=item.status, reason=item.reason, message=item.message)
            for item in answer.status.conditions
        ),
        handlers=tuple(
            RuntimeHandler(
                name=item.name,
                recursive_read_only_mounts=item.features.recursive_read_only_mounts,
                user_namespaces=item.features.user_namespaces,
            )
            for item in answer.runtime_handlers
        ),
        supplemental_groups_policy=answer.features.supplemental_groups_policy if answer.HasField("features") else None,
        user_namespaces_host_network=answer.features.user_namespaces_host_network,
    )


def image(item: cri_pb2.Image) -> Image:
    return Image(
        id=item.id,
        tags=tuple(item.repo_tags),
        digests=tuple(item.repo_digests),
        size_bytes=item.size,
        uid=item.uid.value if item.HasField("uid") else None,
        username=item.username,
        pinned=item.pinned,
    )


def image_filesystems(answer: cri_pb2.ImageFsInfoResponse) -> ImageFilesystems:
    return ImageFilesystems(
        images=tuple(filesystem_usage(item) for item in answer.image_filesystems),
        containers=tuple(filesystem_usage(item) for item in answer.container_filesystems),
    )


def filesystem_usage(item: cri_pb2.FilesystemUsage) -> FilesystemUsage:
    return FilesystemUsage(
        mountpoint=item.fs_id.mountpoint,
        used_bytes=item.used_bytes.value,
        inodes_used=item.inodes_used.value,
        timestamp=item.timestamp,
    )


def container_event(item: cri_pb2.ContainerEventResponse) -> ContainerEvent | None:
    """None for a kind of event this agent does not know; a later relist will see what happened."""
    kind = _EVENTS.get(item.container_event_type)
    if kind is None:
        return None
    return ContainerEvent(
        container_id=item.container_id,
        kind=kind,
        pod_uid=item.pod_sandbox_status.metadata.uid,
        created_at=item.created_at,
        labels=_labels(item.pod_sandbox_status.labels),
    )


def _selector(pod_uid: str | None) -> dict[str, str]:
    return {POD_UID_LABEL: pod_uid} if pod_uid else {}


def sandbox_filter(*, pod_uid: str | None, id: str | None, ready_only: bool) -> cri_pb2.PodSandboxFilter:
    wanted = cri_pb2.PodSandboxFilter(id=id or "", label_selector=_selector(pod_uid))
    if ready_only:
        wanted.state.state = cri_pb2.SANDBOX_READY
        wanted.state.SetInParent()  # READY is 0: without this the message would stay absent
    return wanted


def container_filter(
    *, pod_uid: str | None, id: str | None, sandbox_id: str | None, running_only: bool
) -> cri_pb2.ContainerFilter:
    wanted = cri_pb2.ContainerFilter(id=id or "", pod_sandbox_id=sandbox_id or "", label_selector=_selector(pod_uid))
    if running_only:
        wanted.state.state = cri_pb2.CONTAINER_RUNNING
    return wanted


def container_stats_filter(
    *, pod_uid: str | None, id: str | None, sandbox_id: str | None
) -> cri_pb2.ContainerStatsFilter:
    return cri_pb2.ContainerStatsFilter(id=id or "", pod_sandbox_id=sandbox_id or "", label_selector=_selector(pod_uid))


def image_filter(name: str | None) -> cri_pb2.ImageFilter | None:
    return cri_pb2.ImageFilter(image=cri_pb2.ImageSpec(image=name)) if name else None
