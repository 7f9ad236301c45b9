"""What a node without an API server says in place of its Node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from pykubelet.api_server import ApiServer
from pykubelet.edges import Edges
from pykubelet.node.addresses import LocalAddresses
from pykubelet.pods.predicates import NodeInfo
from pykubelet.settings.settings import Settings
from pykubelet.sync.runtime_state import RuntimeState


def with_features(local: NodeInfo, runtime: RuntimeState) -> NodeInfo:
    """Where no Node tells what the runtime can do, the runtime itself is asked."""
    return replace(local, supplemental_groups_policy=bool(runtime.conditions.supplemental_groups_policy))


def host_ips(settings: Settings, edges: Edges, api: ApiServer) -> Callable[[], Sequence[str]]:
    """Containers learn the node's address even where no Node exists; statuses, as upstream, do not."""
    if edges.cluster is not None or edges.host_network is None:
        return api.node.host_ips
    return LocalAddresses(network=edges.host_network, node_ips=settings.node_ips, clock=edges.clock).host_ips
