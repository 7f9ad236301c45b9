"""Builds what reports this node to the API server, its status and its lease, and the node's graceful shutdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.clients.kube.patch import node_status_patch
from pykubelet.context import Context
from pykubelet.edges import ClusterEdges, Edges
from pykubelet.kit.tasks import Services
from pykubelet.node.addresses import AddressFinder, LocalAddresses, provided_node_ip
from pykubelet.node.conditions import NodeConditions
from pykubelet.node.facts import FactsGatherer, ImageList, NodeSources
from pykubelet.node.lease import LeaseKeeper
from pykubelet.node.own_node import OwnNode
from pykubelet.node.register import node_identity
from pykubelet.node.shutdown import (
    STATE_FILE,
    Leftovers,
    PodEnder,
    ShutdownManager,
    ShutdownPeriod,
    ShutdownRecord,
    configured_periods,
)
from pykubelet.node.shutdown_inhibitor import ShutdownWatch
from pykubelet.node.status import NodeReporter, ReportTiming
from pykubelet.pods.table import PodTable
from pykubelet.settings.settings import Settings
from pykubelet.status.sender import StatusSender


class NodeReporting(Struct, frozen=True, kw_only=True):
    reporter: NodeReporter
    services: Services


def build(ctx: Context, edges: Edges, cluster: ClusterEdges, node: OwnNode, sources: NodeSources) -> NodeReporting:
    settings, clock = ctx.settings, ctx.clock
    addresses = AddressFinder(
        network=cluster.network,
        node_ips=settings.node_ips,
        node_name=node.name,
        hostname=node.name,
        external_cloud=settings.flags.cloud_provider == "external",
    )
    timing = ReportTiming(
        update_every=settings.config.node.node_status_update_frequency,
        report_every=settings.config.node.node_status_report_frequency,
        timeout=_heartbeat_timeout(settings),
    )
    facts = FactsGatherer(
        ctx,
        machine=edges.machine,
        addresses=addresses,
        images=ImageList(runtime=edges.cri, limit=settings.config.node.node_status_max_images, clock=clock),
        runtime_version=cluster.runtime_version,
        storage_size=cluster.storage_size,
        sources=sources,
    )
    reporter = NodeReporter(
        ctx,
        client=cluster.heartbeat,
        own=node,
        facts=facts,
        identity=node_identity(settings, edges.machine, provided_ip=provided_node_ip(addresses.fixed)),
        sources=sources,
        make_patch=node_status_patch,
        timing=timing,
    )
    node.listen(reporter.observed)
    lease = LeaseKeeper(
        client=cluster.heartbeat,
        own=node,
        clock=clock,
        duration=settings.config.node.node_lease_duration_seconds,
        timeout=timing.timeout,
        on_silence=cluster.abandon,
    )
    return NodeReporting(reporter=reporter, services=Services(managers=[reporter, lease]))


def _heartbeat_timeout(settings: Settings) -> float:
    node = settings.config.node
    return min(node.node_status_update_frequency, float(node.node_lease_duration_seconds))


def container_addresses(ctx: Context, edges: Edges, own: OwnNode) -> Callable[[], Sequence[str]]:
    """Return the addresses of a node without an API server for containers; statuses, as upstream, omit them."""
    if edges.host_network is None:
        return own.host_ips
    return LocalAddresses(network=edges.host_network, node_ips=ctx.settings.node_ips, clock=ctx.clock).host_ips


# --- shutdown


class Shutdown(Struct, frozen=True, kw_only=True):
    manager: ShutdownManager
    periods: tuple[ShutdownPeriod, ...]
    leftovers: Leftovers | None
    services: Services

    async def sweep(self) -> None:
        """Delete pods that an earlier shutdown ended; for housekeeping."""
        if self.leftovers is not None:
            await self.leftovers.sweep()


def build_shutdown(
    ctx: Context,
    edges: Edges,
    *,
    conditions: NodeConditions,
    table: PodTable,
    ender: PodEnder,
    own: OwnNode,
    sender: StatusSender | None,
    api_pods: Callable[[], Iterable[Pod]],
) -> Shutdown:
    record = ShutdownRecord(edges.paths.root / STATE_FILE, metrics=ctx.metrics)
    record.load()
    manager = ShutdownManager(
        ctx, table=table, ender=ender, record=record, conditions=conditions, own=own, sender=sender
    )
    enabled = ctx.settings.gates.enabled("GracefulNodeShutdown")
    periods = configured_periods(ctx.settings.config.shutdown) if enabled else ()
    services = Services()
    if periods and edges.logind is not None:
        services.managers.append(ShutdownWatch(logind=edges.logind, manager=manager, periods=periods, clock=ctx.clock))
    leftovers = None
    if edges.cluster is not None:
        leftovers = Leftovers(client=edges.cluster.client, pods=api_pods, table=table, conditions=conditions)
    return Shutdown(manager=manager, periods=periods, leftovers=leftovers, services=services)
