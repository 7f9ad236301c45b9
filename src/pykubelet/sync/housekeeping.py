"""Housekeeping: forget pods that are over, start again those that were added anew, end those that no source wants.

Runs when a pod finished or the set of pods changed, and now and then as a safety net; never before every source was
read, because until then it is unknown which pods are wanted. A chore that fails is logged and the others still run.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from pykubelet.clients.host.port import PodFolders
from pykubelet.context import Context
from pykubelet.kit.limits import Once
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import PodUID, deletion_requested, is_static, uid_of
from pykubelet.pods.record import WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.sources.mux import PodMux
from pykubelet.sync.worker import PodWorkers, UpdateKind
from pykubelet.volumes.manager import VolumeManager

logger = logging.getLogger(__name__)

PERIOD = 30.0
"""Seconds between passes when nothing signalled one."""
SETTLE = 0.1
"""Seconds to gather changes before a pass, so that fifty pods ending together cost one pass, not fifty."""


class PodHolder(Protocol):
    """A component that keeps something per pod and can drop what belongs to no known pod."""

    def keep_only(self, uids: Iterable[str]) -> None: ...


class Housekeeping:
    name = "housekeeping"

    def __init__(
        self,
        ctx: Context,
        *,
        sources: PodMux,
        table: PodTable,
        workers: PodWorkers,
        folders: PodFolders,
        volumes: VolumeManager,
        holders: Sequence[PodHolder],
        chores: Sequence[Callable[[], Awaitable[None]]],
    ) -> None:
        self._sources = sources
        self._table = table
        self._workers = workers
        self._folders = folders
        self._volumes = volumes
        self._holders = holders
        self._chores = chores
        self._clock = ctx.clock
        self._due = Wakeup()
        self._logged: Once[str] = Once()
        self._measure = _Measures(ctx.metrics)

    def soon(self) -> None:
        self._due.set()

    async def run(self) -> None:
        while True:
            if await self._due.wait(at_most=PERIOD):
                await self._clock.sleep(SETTLE)
            if self._sources.all_ready():
                await self.tidy()

    async def tidy(self) -> None:
        """One pass. Safe at any time once all sources are ready."""
        self._table.mark_synced()
        wanted = {uid_of(pod) for pod in self._table.pods()}
        self._end_unwanted(wanted)
        self._restart(self._forget_finished(wanted))
        self._see_off_deleted()
        self._kill_orphans()
        known = wanted | {worker.uid for worker in self._table.workers()}
        self._table.drop_unknown()
        for holder in self._holders:
            holder.keep_only(known)
        self._remove_folders(known)
        for chore in self._chores:
            try:
                await chore()
            except (PykubeletError, OSError) as error:
                logger.warning("a clean-up chore failed, will retry", extra={"error": str(error)})

    def _end_unwanted(self, wanted: set[PodUID]) -> None:
        """Pods removed before all sources were ready were left alone then; now they can go."""
        for worker in self._table.workers():
            if worker.uid not in wanted and worker.state is WorkerState.SYNCING and worker.pod is not None:
                self._workers.update(UpdateKind.KILL, worker.pod)

    def _forget_finished(self, wanted: set[PodUID]) -> list[PodUID]:
        """Drop pods that are over; returns those that were added again meanwhile."""
        restarts = []
        for worker in self._table.workers():
            # A rejected pod may have been stopped as an orphan: that says nothing about its own end.
            is_over = worker.uid not in wanted or worker.restart_requested or worker.pod is None
            if is_over and self._workers.forget(worker.uid):
                restarts.append(worker.uid)
        return restarts

    def _see_off_deleted(self) -> None:
        """A rejected pod has no worker; when it is deleted one must release what it may hold and report its end."""
        for pod in self._table.pods():
            if deletion_requested(pod) and self._table.worker(uid_of(pod)) is None:
                self._workers.update(UpdateKind.UPDATE, pod)

    def _restart(self, uids: Sequence[PodUID]) -> None:
        for uid in uids:
            pod = self._table.pod(uid)
            if pod is not None and self._table.worker(uid) is None:
                self._measure.restarted.inc("true" if is_static(pod) else "")
                self._workers.update(UpdateKind.CREATE, pod)

    def _kill_orphans(self) -> None:
        for orphan in self._table.orphans():
            logger.info(
                "pod runs although no source wants it, stopping it",
                extra={"pod": f"{orphan.namespace}/{orphan.name}", "uid": orphan.uid},
            )
            self._measure.orphaned.inc()
            self._workers.kill_orphan(orphan)

    def _remove_folders(self, known: set[PodUID]) -> None:
        tried = failed = 0
        for uid in self._folders.pod_uids():
            if uid in known or self._volumes.has_mounts(uid):
                continue
            tried += 1
            try:
                self._folders.remove_pod(uid)
                self._logged.clear(uid)
            except OSError as error:
                failed += 1
                if self._logged.is_new(uid):
                    logger.warning("pod folder cannot be removed yet", extra={"uid": uid, "error": str(error)})
        self._measure.cleaned.set(tried)
        self._measure.not_cleaned.set(failed)


class _Measures:
    def __init__(self, metrics: Registry) -> None:
        self.restarted = metrics.counter(
            "kubelet_restarted_pods_total", "Pods written again under the UID of a life that was ending.", ("static",)
        )
        for static in ("", "true"):
            self.restarted.inc(static, by=0)
        self.orphaned = metrics.counter(
            "kubelet_orphaned_runtime_pods_total", "Pods found in the runtime that no source wanted."
        )
        self.cleaned = metrics.gauge(
            "kubelet_orphan_pod_cleaned_volumes", "Pods without an owner whose folders the last sweep was to remove."
        )
        self.not_cleaned = metrics.gauge(
            "kubelet_orphan_pod_cleaned_volumes_errors", "Those of them whose folders could not be removed."
        )
