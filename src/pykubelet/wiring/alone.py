"""What a node without an API server says in place of its Node."""

from __future__ import annotations

from msgspec.structs import replace

from pykubelet.api_server import ApiServer
from pykubelet.edges import Edges
from pykubelet.node.addresses import LocalAddresses
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.predicates import NodeInfo
from pykubelet.runtime.spec.collaborators import NodeAddresses
from pykubelet.settings.settings import Settings


def with_features(local: NodeInfo, runtime: RuntimeState) -> NodeInfo:
    """Where no Node tells what the runtime can do, the runtime itself is asked."""
    return replace(local, supplemental_groups_policy=bool(runtime.conditions.supplemental_groups_policy))


def told_addresses(settings: Settings, edges: Edges, api: ApiServer) -> NodeAddresses:
    """Containers learn the node's address even where no Node exists; statuses, as upstream, do not."""
    if edges.cluster is not None or edges.host_network is None:
        return api.node
    return LocalAddresses(network=edges.host_network, node_ips=settings.node_ips, clock=edges.clock)
