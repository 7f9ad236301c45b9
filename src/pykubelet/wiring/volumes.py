"""What volumes are told of this node: limits, SELinux, quotas, where persistent volumes may be used."""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.api.types import Pod
from pykubelet.clients.host.selinux import container_file_label
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.edges import Edges
from pykubelet.model.pod_resources import MEMORY
from pykubelet.pods.predicates import NodeInfo, matches_selector
from pykubelet.settings.settings import Settings
from pykubelet.volumes.manager import VolumeRules
from pykubelet.volumes.selinux import SelinuxMounts

QUOTA_GATE = "LocalStorageCapacityIsolationFSQuotaMonitoring"
LABEL_GATE = "SELinuxMount"


def volume_rules(
    settings: Settings,
    edges: Edges,
    spec: NodeSpec,
    *,
    node: Callable[[], NodeInfo],
    recursive_read_only: Callable[[Pod], bool],
) -> VolumeRules:
    def allocatable_memory() -> int:
        amount = node().allocatable.get(MEMORY)
        return amount.value() if amount is not None else spec.memory_bytes

    return VolumeRules(
        allocatable_memory=allocatable_memory,
        selinux=spec.selinux,
        labels=SelinuxMounts(
            default=container_file_label() if spec.selinux else "", any_mode=settings.gates.enabled(LABEL_GATE)
        ),
        supports_recursive_read_only=recursive_read_only,
        fits_node=lambda selector: matches_selector(selector, node()),
        quotas=edges.quotas if settings.gates.enabled(QUOTA_GATE) else None,
    )
