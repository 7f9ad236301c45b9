"""Build the volume manager and, on a node with an API server, the CSI drivers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.types import Pod
from pykubelet.clients.kube.port import KubeClient
from pykubelet.cm.admission import PodAdmission
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.kit.tasks import Chore, Services
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod_resources import MEMORY
from pykubelet.pods.predicates import NodeInfo, matches_selector
from pykubelet.volumes.csi.drivers import CsiDrivers, LimitsKeeper
from pykubelet.volumes.csi.plugin import CsiVolumes
from pykubelet.volumes.image_volumes import ImageVolumes
from pykubelet.volumes.manager import VolumeManager
from pykubelet.volumes.objects import BUNDLE_GATE, CERTIFICATE_GATE, GateOff, VolumeObjects, VolumeRules
from pykubelet.volumes.pod_certificates import PodCertificateKeeper
from pykubelet.volumes.selinux import SelinuxMounts

QUOTA_GATE = "LocalStorageCapacityIsolationFSQuotaMonitoring"
LABEL_GATE = "SELinuxMount"


class Volumes(Struct, frozen=True, kw_only=True):
    manager: VolumeManager
    image_volumes: ImageVolumes
    csi: CsiVolumes | None
    csi_drivers: CsiDrivers | None
    """The plugin manager's handler for CSI drivers; they need an API server, which knows the volumes."""
    services: Services
    chores: Sequence[Callable[[], Awaitable[None]]]
    """For housekeeping."""


def build(
    ctx: Context,
    edges: Edges,
    objects: VolumeObjects,
    admission: PodAdmission,
    supports_recursive_read_only: Callable[[Pod], bool],
) -> Volumes:
    if edges.cluster is not None:
        objects = _projections(ctx, edges.cluster.client, objects)
    csi: CsiVolumes | None = None
    drivers: CsiDrivers | None = None
    services = Services()
    chores = []
    if edges.plugins is not None and objects.csi is not None and objects.csi_node is not None:
        drivers = CsiDrivers(ctx, connect=edges.plugins.csi, node=objects.csi_node)
        csi = CsiVolumes(ctx, drivers=drivers, objects=objects.csi, mounts=edges.mounts, paths=edges.paths)
        sweep = Chore("CSI volumes of pods that are gone", csi.sweep, may_raise=(PykubeletError, OSError))
        services.managers += [LimitsKeeper(drivers=drivers, objects=objects.csi, clock=ctx.clock), sweep]
        chores.append(sweep.soon)
    rules = _rules(ctx, edges, admission.node_info, supports_recursive_read_only)
    images = ImageVolumes()
    manager = VolumeManager(
        ctx, mounts=edges.mounts, paths=edges.paths, objects=objects, rules=rules, images=images, csi=csi
    )
    services.managers.append(manager)
    return Volumes(
        manager=manager, image_volumes=images, csi=csi, csi_drivers=drivers, services=services, chores=chores
    )


def _projections(ctx: Context, client: KubeClient, objects: VolumeObjects) -> VolumeObjects:
    """Trust bundles and pod certificates belong to API groups that clusters have off by default, behind gates."""
    gates, off = ctx.settings.gates, GateOff()
    keeper = PodCertificateKeeper(ctx, kube=client, node_uid=objects.node_uid)
    return replace(
        objects,
        trust=objects.trust if gates.enabled(BUNDLE_GATE) else off,
        certificates=keeper if gates.enabled(CERTIFICATE_GATE) else off,
    )


def _rules(
    ctx: Context,
    edges: Edges,
    node: Callable[[], NodeInfo],
    supports_recursive_read_only: Callable[[Pod], bool],
) -> VolumeRules:
    gates, machine, volumes = ctx.settings.gates, edges.machine, ctx.settings.config.volumes

    def allocatable_memory() -> int:
        amount = node().allocatable.get(MEMORY)
        return amount.value() if amount is not None else machine.memory_bytes

    return VolumeRules(
        allocatable_memory=allocatable_memory,
        selinux=machine.selinux,
        labels=SelinuxMounts(default=machine.container_file_label, any_mode=gates.enabled(LABEL_GATE)),
        supports_recursive_read_only=supports_recursive_read_only,
        flex_drivers=Path(volumes.volume_plugin_dir),
        controller_attaches=volumes.enable_controller_attach_detach and edges.cluster is not None,
        fits_node=lambda selector: matches_selector(selector, node()),
        quotas=edges.quotas if gates.enabled(QUOTA_GATE) else None,
    )
