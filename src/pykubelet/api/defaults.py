"""Defaults of a Pod, as kube-apiserver 1.36 sets them, for pods that never pass through one.

Covers: the whole Pod including init and ephemeral containers, volumes and pod-level resources.
Does not cover: what admission plugins add (service account, default tolerations, priority) nor what
the static pod sources add (manifest.py). Call it once, before the pod is shared: it changes in place.
"""

import re

from pykubelet.api.pod_resources import (
    aggregate_limits,
    aggregate_requests,
    can_overcommit,
    is_huge_pages,
    is_pod_level,
    rounded_up_to_milli,
)
from pykubelet.api.types import (
    Container,
    ContainerPort,
    EmptyDirVolumeSource,
    EnvVar,
    EphemeralContainer,
    HTTPGetAction,
    ObjectFieldSelector,
    Pod,
    PodIP,
    PodSecurityContext,
    PodSpec,
    PodStatus,
    Probe,
    ProjectedVolumeSource,
    QuantityValue,
    ResourceRequirements,
    Volume,
)

FILE_MODE = 0o644
GRACE_SECONDS = 30
TOKEN_SECONDS = 3600

VOLUME_SOURCES = tuple(name for name in Volume.__struct_fields__ if name != "name")

_DOMAIN = r"[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?"
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"(?:(?:{_DOMAIN}(?:\.{_DOMAIN})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}")
MAX_REPOSITORY = 255


def default_pod(pod: Pod) -> None:
    """Fill in every default, in place. Safe to repeat; bad values are left for validation to report."""
    spec = pod.spec
    # Order matters: pod-level requests are derived from what the containers ask for after their own defaults.
    for container in (*spec.containers, *spec.init_containers):
        if container.resources is not None:
            _requests_from_limits(container.resources)
    everyone: tuple[Container | EphemeralContainer, ...] = (
        *spec.init_containers,
        *spec.containers,
        *spec.ephemeral_containers,
    )
    for any_container in everyone:
        _default_container(any_container)
    if spec.host_network:
        for container in (*spec.containers, *spec.init_containers):
            _host_ports(container.ports)
    _default_pod_resources(spec)
    _default_spec(spec)
    for volume in spec.volumes:
        _default_volume(volume)
    _default_status(pod.status)


def image_tag(image: str) -> str | None:
    """The tag of a reference: "latest" when it names neither tag nor digest; None when malformed."""
    name, at, digest = image.partition("@")
    folder, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    repository = folder + slash + last
    if len(repository) > MAX_REPOSITORY or not _REPOSITORY.fullmatch(repository):
        return None
    if (colon and not _TAG.fullmatch(tag)) or (at and not _DIGEST.fullmatch(digest)):
        return None
    if tag:
        return tag
    return None if at else "latest"


def pull_policy(image: str | None) -> str:
    return "Always" if image_tag(image or "") == "latest" else "IfNotPresent"


def _default_spec(spec: PodSpec) -> None:
    # The deprecated alias and the real field always say the same afterwards; the real one wins.
    spec.service_account_name = spec.service_account_name or spec.service_account
    spec.service_account = spec.service_account_name
    spec.dns_policy = spec.dns_policy or "ClusterFirst"
    spec.restart_policy = spec.restart_policy or "Always"
    spec.scheduler_name = spec.scheduler_name or "default-scheduler"
    if spec.security_context is None:
        spec.security_context = PodSecurityContext()
    if spec.enable_service_links is None:
        spec.enable_service_links = True
    if spec.termination_grace_period_seconds is None:
        spec.termination_grace_period_seconds = GRACE_SECONDS
    elif spec.termination_grace_period_seconds < 0:
        # The API server does not refuse a negative period, it reads it as "at once".
        spec.termination_grace_period_seconds = 1
    _round(spec.overhead)


def _default_container(container: Container | EphemeralContainer) -> None:
    container.image_pull_policy = container.image_pull_policy or pull_policy(container.image)
    container.termination_message_path = container.termination_message_path or "/dev/termination-log"
    container.termination_message_policy = container.termination_message_policy or "File"
    for port in container.ports:
        port.protocol = port.protocol or "TCP"
    for env in container.env:
        _default_env(env)
    for probe in (container.liveness_probe, container.readiness_probe, container.startup_probe):
        if probe is not None:
            _default_probe(probe)
    if container.lifecycle is not None:
        for hook in (container.lifecycle.post_start, container.lifecycle.pre_stop):
            if hook is not None:
                _default_http_get(hook.http_get)
    if container.resources is not None:
        _round(container.resources.limits)
        _round(container.resources.requests)


def _default_env(env: EnvVar) -> None:
    if env.value_from is None:
        return
    _default_field_ref(env.value_from.field_ref)
    if env.value_from.file_key_ref is not None and env.value_from.file_key_ref.optional is None:
        env.value_from.file_key_ref.optional = False


def _default_field_ref(ref: ObjectFieldSelector | None) -> None:
    if ref is not None:
        ref.api_version = ref.api_version or "v1"


def _default_probe(probe: Probe) -> None:
    probe.timeout_seconds = probe.timeout_seconds or 1
    probe.period_seconds = probe.period_seconds or 10
    probe.success_threshold = probe.success_threshold or 1
    probe.failure_threshold = probe.failure_threshold or 3
    _default_http_get(probe.http_get)
    if probe.grpc is not None and probe.grpc.service is None:
        probe.grpc.service = ""


def _default_http_get(action: HTTPGetAction | None) -> None:
    if action is not None:
        action.path = action.path or "/"
        action.scheme = action.scheme or "HTTP"


def _host_ports(ports: list[ContainerPort]) -> None:
    for port in ports:
        port.host_port = port.host_port or port.container_port


def _requests_from_limits(resources: ResourceRequirements) -> None:
    if resources.limits:
        resources.requests = {**resources.limits, **resources.requests}


def _round(amounts: dict[str, QuantityValue]) -> None:
    for name, amount in amounts.items():
        amounts[name] = rounded_up_to_milli(amount)


def _default_pod_resources(spec: PodSpec) -> None:
    resources = spec.resources
    if resources is None or not (resources.limits or resources.requests):
        return
    limits, requests = dict(resources.limits), dict(resources.requests)
    for name, amount in aggregate_limits(spec).items():
        if is_huge_pages(name) and name not in requests:
            limits.setdefault(name, str(amount))
    if limits:
        for name, amount in aggregate_requests(spec).items():
            if is_pod_level(name) and can_overcommit(name):
                requests.setdefault(name, str(amount))
        for name, limit in limits.items():
            if is_pod_level(name):
                requests.setdefault(name, limit)
    resources.limits, resources.requests = limits, requests
    _round(resources.limits)
    _round(resources.requests)


def _default_volume(volume: Volume) -> None:
    if all(getattr(volume, source) is None for source in VOLUME_SOURCES):
        volume.empty_dir = EmptyDirVolumeSource()
    for files in (volume.secret, volume.config_map, volume.downward_api, volume.projected):
        if files is not None and files.default_mode is None:
            files.default_mode = FILE_MODE
    if volume.image is not None:
        volume.image.pull_policy = volume.image.pull_policy or pull_policy(volume.image.reference)
    if volume.host_path is not None and volume.host_path.type is None:
        volume.host_path.type = ""
    if volume.downward_api is not None:
        for item in volume.downward_api.items:
            _default_field_ref(item.field_ref)
    if volume.projected is not None:
        _default_projected(volume.projected)
    if volume.ephemeral is not None and volume.ephemeral.volume_claim_template is not None:
        claim = volume.ephemeral.volume_claim_template.spec
        if claim is not None:
            claim.volume_mode = claim.volume_mode or "Filesystem"
            if claim.resources is not None:
                _round(claim.resources.limits)
                _round(claim.resources.requests)
    _default_network_disk(volume)


def _default_projected(projected: ProjectedVolumeSource) -> None:
    for source in projected.sources:
        if source.downward_api is not None:
            for item in source.downward_api.items:
                _default_field_ref(item.field_ref)
        if source.service_account_token is not None and source.service_account_token.expiration_seconds is None:
            source.service_account_token.expiration_seconds = TOKEN_SECONDS


def _default_network_disk(volume: Volume) -> None:
    if volume.iscsi is not None:
        volume.iscsi.iscsi_interface = volume.iscsi.iscsi_interface or "default"
    if volume.rbd is not None:
        volume.rbd.pool = volume.rbd.pool or "rbd"
        volume.rbd.user = volume.rbd.user or "admin"
        volume.rbd.keyring = volume.rbd.keyring or "/etc/ceph/keyring"
    if volume.scale_io is not None:
        volume.scale_io.storage_mode = volume.scale_io.storage_mode or "ThinProvisioned"
        volume.scale_io.fs_type = volume.scale_io.fs_type or "xfs"
    if (azure := volume.azure_disk) is not None:
        azure.caching_mode = "ReadWrite" if azure.caching_mode is None else azure.caching_mode
        azure.fs_type = "ext4" if azure.fs_type is None else azure.fs_type
        azure.read_only = bool(azure.read_only)
        azure.kind = "Shared" if azure.kind is None else azure.kind


def _default_status(status: PodStatus) -> None:
    # The single address and the list of addresses must agree; the single one is the older contract and wins.
    if status.pod_ip and (not status.pod_ips or status.pod_ips[0].ip != status.pod_ip):
        status.pod_ips = [PodIP(ip=status.pod_ip)]
    elif status.pod_ips and not status.pod_ip:
        status.pod_ip = status.pod_ips[0].ip
