"""What the local socket offers beyond a kubelet's server: explanations, events, restarts in place, images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pykubelet.api.types import Pod
from pykubelet.explain.service import Explainer
from pykubelet.model.life import LifeRecorder
from pykubelet.model.pod import AnyContainer
from pykubelet.node.local_events import LocalEvents
from pykubelet.pleg.cache import PodStatusCache
from pykubelet.pleg.relist import Pleg
from pykubelet.pods.manager import PodManager
from pykubelet.runtime.logs import LogFiles
from pykubelet.runtime.stop import Stopper
from pykubelet.server.local import LocalRoutes
from pykubelet.server.restart import InPlaceRestart
from pykubelet.server.routing import Route
from pykubelet.settings.settings import Settings
from pykubelet.status.manager import StatusManager
from pykubelet.sync.phases import PodPhases
from pykubelet.sync.runtime_state import RuntimeState
from pykubelet.sync.worker import PodWorkers
from pykubelet.volumes.manager import VolumeManager
from pykubelet.wiring.edges import Edges


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNeeds:
    pods: PodManager
    phases: PodPhases
    statuses: StatusManager
    workers: PodWorkers
    recorder: LifeRecorder
    volumes: VolumeManager
    events: LocalEvents
    cache: PodStatusCache
    runtime: RuntimeState
    pleg: Pleg
    stopper: Stopper
    started: float
    forgive: Callable[[Pod, AnyContainer], None] = lambda pod, container: None
    """Forgets the crashes of a container (runtime/backoff.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalService:
    explainer: Explainer
    """Also what the server's /explain asks."""
    routes: list[Route]


def local_service(settings: Settings, edges: Edges, needs: LocalNeeds) -> LocalService:
    explainer = Explainer(
        pods=needs.pods,
        states=needs.phases,
        status=needs.statuses.get,
        seen=needs.cache.last_known,
        lives=needs.recorder,
        workers=needs.workers,
        events=needs.events,
        runtime=needs.runtime,
        logs=LogFiles(),
        clock=edges.clock,
        volumes=needs.volumes,
    )

    def is_ending(uid: str) -> bool:
        state = needs.phases.get(uid)
        return state is not None and state.is_ending

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
        }

    routes = LocalRoutes(
        pods=explainer,
        status=needs.statuses.get,
        is_ending=is_ending,
        events=needs.events.all,
        restarts=InPlaceRestart(look=needs.pleg, stopper=needs.stopper, is_ending=is_ending, forgive=needs.forgive),
        images=edges.cri,
        about=about,
        clock=edges.clock,
    ).routes()
    return LocalService(explainer=explainer, routes=routes)
