"""Which signal causes what: every connection between subsystems that is not a plain call, in one place."""

from __future__ import annotations

from pykubelet.api_server import Reporting
from pykubelet.cm.allocation import POD_TERMINATED
from pykubelet.context import Context
from pykubelet.model.pod import PodUID, is_mirror
from pykubelet.recorder import LifeEntry, Outcome, Step
from pykubelet.server.pods_api import PodFeed
from pykubelet.signals import (
    ApiPodObserved,
    ContainerDied,
    ContainerStarted,
    CsiDriverRegistered,
    DeviceHealthChanged,
    DraDriverRegistered,
    InspectionRecovered,
    NodeRead,
    NodeStatusChanged,
    ObjectChanged,
    PodFinished,
    PodPreempted,
    PodRestarts,
    PodSetChanged,
    PodStatusChanged,
    PodUpdated,
    ProbeResultChanged,
    ResizeChanged,
    RuntimeChanged,
    VolumesMounted,
    VolumesUnmounted,
)
from pykubelet.status.sender import uid_here
from pykubelet.sync.build import Subsystems, Sync


def connect(ctx: Context, below: Subsystems, sync: Sync, reporting: Reporting, pod_feed: PodFeed | None) -> None:
    volumes, cm, probes, runtime = below.volumes.manager, below.cm, below.probes, below.runtime
    loop, workers, statuses = sync.loop, sync.workers, sync.statuses
    sender, housekeeping = sync.sender, sync.housekeeping
    on = ctx.signals.subscribe

    def object_changed(changed: ObjectChanged) -> None:
        volumes.object_changed(changed.kind, changed.namespace, changed.name)
        for uid in changed.uids:
            workers.retry_now(uid)

    def api_pod_observed(observed: ApiPodObserved) -> None:
        if is_mirror(observed.change.object):
            # First, or the sender would overwrite what the mirror remembers of the time before a restart.
            statuses.mirror_observed(uid_here(observed.change.object))
        if sender is not None:
            sender.observed(observed.change)

    def step_recorded(uid: str, entry: LifeEntry) -> None:
        # A sync waits for volumes for minutes; any other failure ends it, and the next one sets a status.
        if entry.step is Step.VOLUMES and entry.outcome is Outcome.FAILED:
            statuses.explain_again(uid)

    ctx.recorder.listen(step_recorded)
    on(ContainerDied, loop.container_died)
    on(ContainerDied, runtime.gc.container_died)
    on(ContainerDied, sync.metrics.container_died)
    on(ContainerStarted, loop.container_started)
    on(ContainerStarted, lambda _: runtime.gc.runtime_used())
    on(ContainerStarted, lambda started: cm.resource_managers.reconciler.soon())
    on(InspectionRecovered, loop.inspection_recovered)
    on(RuntimeChanged, lambda _: workers.sync_all())
    on(RuntimeChanged, lambda _: reporting.node_status_changed())
    on(PodSetChanged, lambda _: housekeeping.soon())
    on(PodFinished, lambda _: housekeeping.soon())
    on(PodFinished, lambda finished: runtime.gc.collect_pod_soon(finished.uid))
    on(PodFinished, lambda finished: cm.resource_managers.release(finished.uid))
    on(PodFinished, lambda _: cm.allocation.retry(POD_TERMINATED))
    on(PodRestarts, lambda restarts: statuses.begin_anew(restarts.uid))
    on(ProbeResultChanged, loop.probe_result_changed)
    if sender is not None:
        on(PodStatusChanged, lambda changed: sender.changed(changed.uid))
    on(PodStatusChanged, lambda changed: probes.container_changed(changed.uid))
    on(ObjectChanged, object_changed)
    on(VolumesMounted, lambda mounted: workers.sync_now(mounted.uid))
    on(VolumesUnmounted, lambda unmounted: housekeeping.soon())
    on(CsiDriverRegistered, lambda registered: volumes.driver_registered(registered.name))
    on(ApiPodObserved, api_pod_observed)
    on(DeviceHealthChanged, lambda changed: workers.sync_now(changed.uid))
    on(DraDriverRegistered, lambda registered: workers.retry_now(registered.uid))
    on(ResizeChanged, lambda changed: workers.sync_now(changed.uid))
    on(PodPreempted, lambda preempted: loop.preempt(preempted.pod, preempted.resource))
    on(NodeStatusChanged, lambda _: reporting.node_status_changed())
    on(NodeRead, lambda read: loop.judge_again(PodUID(read.uid)))
    if pod_feed is not None:
        _feed(ctx, pod_feed)


def _feed(ctx: Context, pod_feed: PodFeed) -> None:
    on = ctx.signals.subscribe
    on(PodStatusChanged, lambda changed: pod_feed.changed(changed.uid))
    on(PodUpdated, lambda updated: pod_feed.changed(updated.uid))
    on(PodSetChanged, lambda _: pod_feed.drop_gone())
    on(PodFinished, lambda _: pod_feed.drop_gone())
