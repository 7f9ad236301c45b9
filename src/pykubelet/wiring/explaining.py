"""The explainer of this node, and its words in the conditions and events of pods."""

from __future__ import annotations

from pykubelet.clients.kube.port import Unreadable
from pykubelet.edges import Edges
from pykubelet.explain.service import Explainer
from pykubelet.explain.told import WhyNotReady
from pykubelet.kit.host_calls import host_calls
from pykubelet.model.events import EventSink
from pykubelet.model.life import LifeEntry, LifeRecorder, Outcome, Step
from pykubelet.node.local_events import LocalEvents
from pykubelet.pods.table import PodTable
from pykubelet.runtime.logs import LogFiles
from pykubelet.status.manager import StatusManager
from pykubelet.sync.runtime_state import RuntimeState
from pykubelet.sync.worker import PodWorkers
from pykubelet.volumes.manager import VolumeManager


def explaining(
    edges: Edges,
    *,
    table: PodTable,
    statuses: StatusManager,
    workers: PodWorkers,
    recorder: LifeRecorder,
    volumes: VolumeManager,
    remembered: LocalEvents,
    events: EventSink,
    runtime: RuntimeState,
) -> Explainer:
    """What answers `explain`. From now on statuses say why their pods are not ready."""
    cluster = edges.cluster

    def unreadable() -> list[Unreadable]:
        return [each for each in cluster.client.unreadable.now() if each.kind == "Pod"] if cluster is not None else []

    explainer = Explainer(
        pods=table,
        states=table,
        status=statuses.get,
        seen=table.runtime_status,
        lives=recorder,
        workers=workers,
        events=remembered,
        runtime=runtime,
        logs=LogFiles(),
        clock=edges.clock,
        volumes=volumes,
        hanging=lambda uid: [(str(call), call.took) for call in host_calls.stuck(uid)],
        unreadable=unreadable,
    )
    statuses.explained = WhyNotReady(explaining=explainer, lives=recorder, events=events)

    def went_wrong(uid: str, entry: LifeEntry) -> None:
        # A sync waits for volumes for minutes; whatever else fails ends it, and the next one tells a status.
        if entry.step is Step.VOLUMES and entry.outcome is Outcome.FAILED:
            statuses.explain_again(uid)

    recorder.listen(went_wrong)
    return explainer
