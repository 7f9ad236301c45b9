"""What the local socket offers beyond a kubelet's server: explanations, events, restarts in place, images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.clients.kube.port import Unreadable
from pykubelet.edges import Edges
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.explain.service import Explainer
from pykubelet.model.pod import AnyContainer
from pykubelet.pleg.pleg import Pleg
from pykubelet.pods.table import PodTable
from pykubelet.runtime.stop import Stopper
from pykubelet.server.local import LocalRoutes
from pykubelet.server.restart import InPlaceRestart
from pykubelet.server.routing import Route
from pykubelet.settings.settings import Settings
from pykubelet.status.manager import StatusManager
from pykubelet.sync.runtime_state import RuntimeState


class LocalNeeds(Struct, frozen=True, kw_only=True):
    explainer: Explainer
    table: PodTable
    statuses: StatusManager
    events: EventBroadcaster
    runtime: RuntimeState
    pleg: Pleg
    stopper: Stopper
    started: float
    forgive: Callable[[Pod, AnyContainer], None] = lambda pod, container: None
    """Forgets the crashes of a container (runtime/backoff.py)."""


def local_routes(settings: Settings, edges: Edges, needs: LocalNeeds) -> list[Route]:
    def is_ending(uid: str) -> bool:
        worker = needs.table.worker(uid)
        return worker is not None and worker.is_ending

    def unreadable() -> Sequence[Unreadable]:
        return edges.cluster.client.unreadable.now() if edges.cluster is not None else ()

    def about() -> dict[str, Any]:
        return {
            "node": settings.node_name(edges.machine.hostname),
            "pid": os.getpid(),
            "version": settings.kubernetes_version,
            "started": needs.started,
            "runtime": edges.runtime_name,
            "endpoint": settings.config.runtime.container_runtime_endpoint,
            "runtimeProblem": "" if needs.runtime.is_up() else needs.runtime.runtime_problem() or "does not answer",
            "networkProblem": needs.runtime.network_problem(),
            "unreadable": [f"{each.shown}: {each.why}" for each in unreadable()],
        }

    return LocalRoutes(
        pods=needs.explainer,
        status=needs.statuses.get,
        is_ending=is_ending,
        events=needs.events.all,
        restarts=InPlaceRestart(look=needs.pleg, stopper=needs.stopper, is_ending=is_ending, forgive=needs.forgive),
        images=edges.cri,
        about=about,
        clock=edges.clock,
    ).routes()
