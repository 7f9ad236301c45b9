"""Builds what belongs to the node itself: graceful shutdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.kit.tasks import Services
from pykubelet.node.conditions import NodeConditions
from pykubelet.node.own_node import OwnNode
from pykubelet.node.shutdown import FILE, Leftovers, PodEnder, ShutdownManager, ShutdownRecord, Turn, turns_of
from pykubelet.node.shutdown_inhibitor import ShutdownWatch
from pykubelet.pods.table import PodTable
from pykubelet.status.sender import StatusSender


class Shutdown(Struct, frozen=True, kw_only=True):
    manager: ShutdownManager
    turns: tuple[Turn, ...]
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
    own: OwnNode | None,
    sender: StatusSender | None,
    api_pods: Callable[[], Iterable[Pod]],
) -> Shutdown:
    record = ShutdownRecord(edges.paths.root / FILE, metrics=ctx.metrics)
    record.load()
    manager = ShutdownManager(
        ctx, table=table, ender=ender, record=record, conditions=conditions, own=own, sender=sender
    )
    enabled = ctx.settings.gates.enabled("GracefulNodeShutdown")
    turns = turns_of(ctx.settings.config.shutdown) if enabled else ()
    services = Services()
    if turns and edges.logind is not None:
        services.managers.append(ShutdownWatch(logind=edges.logind, manager=manager, turns=turns, clock=ctx.clock))
    leftovers = None
    if edges.cluster is not None:
        leftovers = Leftovers(
            client=edges.cluster.client, pods=api_pods, is_over=table.is_gone, shutting_down=conditions.shutting_down
        )
    return Shutdown(manager=manager, turns=turns, leftovers=leftovers, services=services)
