"""A volume manager on a temporary root with fakes, pods with volumes, and claims bound to persistent volumes."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import (
    ConfigMap,
    ConfigMapVolumeSource,
    CSIDriverSpec,
    CSIPersistentVolumeSource,
    CSIVolumeSource,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    LabelSelector,
    ObjectMeta,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Pod,
    PodCertificateProjection,
    ResourceFieldSelector,
    Secret,
    SecretVolumeSource,
    Volume,
    VolumeMount,
)
from pykubelet.clients.host.port import NodePaths
from pykubelet.clients.kube.references import ObjectName, ObjectUnavailable, referred
from pykubelet.clients.plugins.port import Observe
from pykubelet.context import Context
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.pod import uid_of
from pykubelet.runtime.spec.downward import Addresses, field_value, resource_value
from pykubelet.settings.settings import Settings
from pykubelet.signals import Signals
from pykubelet.volumes.csi.drivers import CsiDrivers
from pykubelet.volumes.csi.plugin import CsiVolumes
from pykubelet.volumes.csi.records import CsiPaths
from pykubelet.volumes.image_volumes import ImageVolumes
from pykubelet.volumes.manager import VolumeManager
from pykubelet.volumes.objects import Credentials, VolumeObjects, VolumeRules
from tests.builders import a_container, a_context, a_pod
from tests.fakes.fake_csi import FakeCsiDriver, FakeCsiObjects, NoCsiNode
from tests.fakes.fake_mounts import FakeMounts
from tests.fakes.recorded_events import RecordedEvents


class Downward:
    """As the agent wires it: the spec builder's functions."""

    def field(self, pod: Pod, path: str) -> str:
        return field_value(pod, path, Addresses())

    def resource(self, pod: Pod, selector: ResourceFieldSelector) -> str:
        return resource_value(pod, pod.spec.containers[0], selector, {"cpu": Quantity.of(4)})


@dataclass
class ApiObjects:
    """The API server's side, as dictionaries: reads that go past every watch."""

    config_maps: dict[tuple[str, str], ConfigMap] = field(default_factory=dict)
    secrets: dict[tuple[str, str], Secret] = field(default_factory=dict)
    claims: dict[tuple[str, str], PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)
    bundles: dict[str, str] = field(default_factory=dict)
    tokens: int = 0
    reads: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        self.reads.append(f"configmap {namespace}/{name}")
        return self.config_maps.get((namespace, name))

    async def secret(self, namespace: str, name: str) -> Secret | None:
        self.reads.append(f"secret {namespace}/{name}")
        return self.secrets.get((namespace, name))

    async def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self.claims.get((namespace, name))

    async def volume(self, name: str) -> PersistentVolume | None:
        return self.volumes.get(name)

    async def token(self, pod: Pod, audience: str, expiration_seconds: int) -> str:
        self.tokens += 1
        return f"token-{pod.metadata.name}-{audience}-{expiration_seconds}"

    def forget(self, uid: str) -> None:
        self.forgotten.append(uid)

    async def by_name(self, name: str) -> str | None:
        return self.bundles.get(name)

    async def by_signer(self, signer: str, selector: LabelSelector | None) -> str:
        return "".join(pem for name, pem in self.bundles.items() if name.startswith(signer))

    async def credentials(self, pod: Pod, volume: str, index: int, source: PodCertificateProjection) -> Credentials:
        return Credentials(key_pem=b"KEY\n", chain_pem=f"CHAIN {source.signer_name}\n".encode())


@dataclass
class RegisteredObjects:
    """As strict as the real watcher: what no registered pod refers to is an error, even if the API server has it."""

    objects: ApiObjects
    pods: dict[str, Collection[ObjectName]] = field(default_factory=dict)

    def register(self, pod: Pod) -> None:
        self.pods[uid_of(pod)] = referred(pod)

    def unregister(self, pod: Pod) -> None:
        self.pods.pop(uid_of(pod), None)

    async def config_map(self, namespace: str, name: str) -> ConfigMap | None:
        self._check(ObjectName(ConfigMap, namespace, name))
        return await self.objects.config_map(namespace, name)

    async def secret(self, namespace: str, name: str) -> Secret | None:
        self._check(ObjectName(Secret, namespace, name))
        return await self.objects.secret(namespace, name)

    def _check(self, key: ObjectName) -> None:
        if not any(key in names for names in self.pods.values()):
            raise ObjectUnavailable(f"object {key} not registered")


class SyncedVolumes(VolumeManager):
    """Used as by a pod's sync: its objects are registered before its volumes are mounted, until these are gone."""

    registered: RegisteredObjects

    async def wait_mounted(self, pod: Pod) -> None:
        self.registered.register(pod)
        await super().wait_mounted(pod)

    async def wait_unmounted(self, pod: Pod) -> None:
        await super().wait_unmounted(pod)
        self.registered.unregister(pod)


@dataclass
class VolumeNode:
    """One volume manager on one root; `again` is the next run of the agent with the same disk and mounts."""

    root: Path
    mounts: Any = field(default_factory=FakeMounts)
    objects: ApiObjects = field(default_factory=ApiObjects)
    events: RecordedEvents = field(default_factory=RecordedEvents)
    rules: VolumeRules = field(default_factory=VolumeRules)
    clock: LoopClock = field(default_factory=LoopClock)
    metrics: Registry = field(default_factory=Registry)
    signals: Signals = field(default_factory=Signals)
    settings: Settings | None = None

    @property
    def paths(self) -> NodePaths:
        return NodePaths(root=self.root, pod_logs=self.root / "logs", container_logs=self.root / "links")

    def context(self) -> Context:
        return a_context(
            settings=self.settings,
            node_name="here",
            clock=self.clock,
            events=self.events,
            metrics=self.metrics,
            signals=self.signals,
        )

    def manager(self) -> VolumeManager:
        registered = RegisteredObjects(self.objects)
        manager = SyncedVolumes(
            self.context(),
            mounts=self.mounts,
            paths=self.paths,
            objects=VolumeObjects(
                references=registered,
                tokens=self.objects,
                trust=self.objects,
                certificates=self.objects,
                claims=self.objects,
                downward=Downward(),
            ),
            rules=self.rules,
            images=ImageVolumes(),
        )
        manager.registered = registered
        return manager

    @asynccontextmanager
    async def running(self) -> AsyncIterator[VolumeManager]:
        manager = self.manager()
        async with running(manager):
            yield manager

    def again(self) -> VolumeNode:
        return VolumeNode(root=self.root, mounts=self.mounts, objects=self.objects, rules=self.rules)


def problem_texts(manager: VolumeManager, uid: str = "uid-web") -> list[str]:
    """What is wrong with the pod's volumes, one sentence each."""
    return [problem.describe(LoopClock().now()) for problem in manager.problems(uid)]


def a_volume(name: str, **source: Any) -> Volume:
    return Volume(name=name, **source)


def empty_dir(name: str = "scratch", **fields: Any) -> Volume:
    return Volume(name=name, empty_dir=EmptyDirVolumeSource(**fields))


def host_path(path: str, kind: str | None = None, name: str = "host") -> Volume:
    return Volume(name=name, host_path=HostPathVolumeSource(path=path, type=kind))


def config_volume(name: str = "cfg", config: str = "web", **fields: Any) -> Volume:
    return Volume(name=name, config_map=ConfigMapVolumeSource(name=config, **fields))


def secret_volume(name: str = "sec", secret: str = "web", **fields: Any) -> Volume:
    return Volume(name=name, secret=SecretVolumeSource(secret_name=secret, **fields))


def a_config(
    name: str = "web", namespace: str = "default", binary: dict[str, str] | None = None, **data: str
) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace), data=data, binary_data=binary or {})


def a_secret(name: str = "web", namespace: str = "default", **data: str) -> Secret:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return Secret(metadata=ObjectMeta(name=name, namespace=namespace), data=encoded)


def pod_with(*volumes: Volume, name: str = "web", **fields: Any) -> Pod:
    """A pod whose one container mounts every volume at /<volume name>."""
    mounts = [VolumeMount(name=volume.name, mount_path=f"/{volume.name}") for volume in volumes]
    containers = fields.pop("containers", [a_container(volume_mounts=mounts)])
    return a_pod(name, containers=containers, volumes=list(volumes), **fields)


def bound(objects: ApiObjects, name: str, *, read_only: bool = False, **source: Any) -> Volume:
    """A volume by claim `name`, bound to the persistent volume `pv-<name>` of this source."""
    objects.claims["default", name] = PersistentVolumeClaim(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=PersistentVolumeClaimSpec(volume_name=f"pv-{name}"),
        status=PersistentVolumeClaimStatus(phase="Bound"),
    )
    spec = PersistentVolumeSpec(claim_ref=ObjectReference(uid=f"uid-{name}"), **source)
    objects.volumes[f"pv-{name}"] = PersistentVolume(metadata=ObjectMeta(name=f"pv-{name}"), spec=spec)
    claim = PersistentVolumeClaimVolumeSource(claim_name=name, read_only=read_only)
    return Volume(name=name, persistent_volume_claim=claim)


NO_ATTACH = CSIDriverSpec(attach_required=False)
INLINE = CSIDriverSpec(attach_required=False, volume_lifecycle_modes=["Ephemeral"])


@dataclass
class CsiVolumeNode:
    """A volume node with one strict fake driver `d`; `life` is one run of the agent."""

    root: Path
    node: VolumeNode = field(init=False)
    driver: FakeCsiDriver = field(init=False)
    objects: FakeCsiObjects = field(init=False)
    others: dict[str, FakeCsiDriver] = field(default_factory=dict)
    """Drivers by the stem of their socket."""
    registered: bool = True
    more_objects: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.node = VolumeNode(self.root)
        self.driver = FakeCsiDriver(self.node.mounts)
        self.objects = FakeCsiObjects(
            drivers={"d": NO_ATTACH}, claims=self.node.objects.claims, volumes=self.node.objects.volumes
        )

    @asynccontextmanager
    async def life(self) -> AsyncIterator[VolumeManager]:
        """One life of the agent on this disk."""
        self.metrics, self.signals = self.node.metrics, self.node.signals = Registry(), Signals()
        host = {"mounts": self.node.mounts, "paths": self.node.paths}
        ctx = self.node.context()
        self.drivers = drivers = CsiDrivers(ctx, connect=self._connect, node=NoCsiNode())
        self.plugin = CsiVolumes(ctx, drivers=drivers, objects=self.objects, **host)
        manager = VolumeManager(
            ctx,
            objects=replace(VolumeObjects(claims=self.node.objects), **self.more_objects),
            rules=self.node.rules,
            images=ImageVolumes(),
            csi=self.plugin,
            **host,
        )
        if self.registered:
            await drivers.register("d", Path("/csi.sock"), ("1.0.0",))
        async with running(manager):
            yield manager

    def _connect(self, endpoint: Path, observe: Observe) -> FakeCsiDriver:
        return self.others.get(endpoint.stem, self.driver).connect(endpoint, observe)

    def volume(self, name: str = "data", **fields: Any) -> Volume:
        source = {"driver": "d", "volume_handle": f"h-{name}", **fields.pop("source", {})}
        return bound(self.node.objects, name, csi=CSIPersistentVolumeSource(**source), **fields)

    @property
    def paths(self) -> CsiPaths:
        return CsiPaths(self.node.paths)

    def is_clean(self) -> bool:
        """A while after the pods are gone: unstaging is not waited for."""
        left = [path for path in self.node.paths.plugins.rglob("*") if not path.is_dir()]
        return not self.node.mounts.points() and not left and not list(self.node.paths.pods.glob("*/volumes/*/*"))


def inline(name: str = "tmp", **fields: Any) -> Volume:
    return Volume(name=name, csi=CSIVolumeSource(driver="d", **fields))
