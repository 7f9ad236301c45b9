"""The orderly shutdown, wired: who ends pods, who is told, and who says that the machine goes down.

Made before the Node's reporter, which asks it; bound to the workers and the API server once they exist.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.api_server import ApiServer
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Service
from pykubelet.model.events import EventSink
from pykubelet.model.pod import is_static
from pykubelet.node.setters import is_ready
from pykubelet.node.shutdown import FILE, Leftovers, MarkStatus, ShutdownManager, ShutdownRecord, Turn, turns_of
from pykubelet.node.shutdown_inhibitor import ShutdownWatch
from pykubelet.pods.record import WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.server.routing import Route
from pykubelet.server.shutdown import ShutdownRoutes
from pykubelet.settings.settings import Settings
from pykubelet.signals import NodeStatusChanged
from pykubelet.status.sender import StatusSender
from pykubelet.sync.worker import KillRequest, PodWorkers, UpdateKind


class WorkerPods:
    """The pods' workers as the shutdown sees them."""

    def __init__(self, table: PodTable) -> None:
        self._table = table
        self.workers: PodWorkers | None = None

    def active(self) -> Sequence[Pod]:
        return [worker.pod for worker in self._table.workers() if worker.pod is not None and worker.is_active]

    def end(self, pod: Pod, grace: int, mark: MarkStatus) -> None:
        if self.workers is not None:
            self.workers.update(UpdateKind.KILL, pod, KillRequest(grace_override=grace, change_status=mark))

    def again(self, pod: Pod) -> None:
        """Static pods have no controller that would make a new one."""
        if self.workers is not None and is_static(pod):
            self.workers.update(UpdateKind.CREATE, pod)

    def is_over(self, uid: str) -> bool:
        worker = self._table.worker(uid)
        return worker is None or worker.state is WorkerState.FINISHED

    def is_stopped(self, uid: str) -> bool:
        worker = self._table.worker(uid)
        return worker is None or not worker.is_active


class ShutdownParts(Struct, kw_only=True):
    manager: ShutdownManager
    services: list[Service]
    routes: list[Route]
    """For the local socket."""
    pods: WorkerPods
    ctx: Context | None = None
    api: ApiServer | None = None
    sender: StatusSender | None = None
    leftovers: Leftovers | None = None

    def bind(self, workers: PodWorkers, api: ApiServer, sender: StatusSender | None, ctx: Context) -> None:
        self.pods.workers, self.api, self.sender, self.ctx = workers, api, sender, ctx
        if api.client is not None and api.pods is not None:
            self.leftovers = Leftovers(
                client=api.client, pods=api.pods.all, is_over=self.pods.is_over, shutting_down=self.is_on
            )

    async def sweep(self) -> None:
        """A chore: what earlier shutdowns left in the cluster."""
        if self.leftovers is not None:
            await self.leftovers.sweep()

    def is_on(self) -> bool:
        return self.manager.shutting_down

    def tell_node(self) -> None:
        if self.ctx is not None:
            self.ctx.signals.publish(NodeStatusChanged())

    def node_told(self) -> bool:
        node = self.api.node.node if self.api is not None else None
        return node is None or not is_ready(node.status)

    def untold(self, uids: Collection[str]) -> Collection[str]:
        return self.sender.unsent(uids) if self.sender is not None else ()


def shutdown_parts(
    settings: Settings, edges: Edges, *, table: PodTable, events: EventSink, metrics: Registry
) -> ShutdownParts:
    record = ShutdownRecord(edges.paths.root / FILE, metrics=metrics)
    record.load()
    pods = WorkerPods(table)
    manager = ShutdownManager(
        pods=pods,
        record=record,
        events=events,
        clock=edges.clock,
        tell_node=lambda: parts.tell_node(),
        node_told=lambda: parts.node_told(),
        untold=lambda uids: parts.untold(uids),
    )
    turns = configured_turns(settings)
    services: list[Service] = []
    if turns and edges.logind is not None:
        services = [ShutdownWatch(logind=edges.logind, manager=manager, turns=turns, clock=edges.clock)]
    routes = ShutdownRoutes(manager=manager, turns=turns).routes()
    parts = ShutdownParts(manager=manager, services=services, routes=routes, pods=pods)
    return parts


def configured_turns(settings: Settings) -> tuple[Turn, ...]:
    return turns_of(settings.config.shutdown) if settings.gates.enabled("GracefulNodeShutdown") else ()
