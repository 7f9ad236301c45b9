"""The statuses this agent reports of its pods: compared, versioned and kept in the pods' records.

Every change gets a version; the status sender takes those that are newer than what it sent. Equal statuses are
dropped and illegal returns (ended, then not ended) are refused. Without an API server the records are what the
node's own server and commands show.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pykubelet.api.types import Pod, PodStatus
from pykubelet.context import Context
from pykubelet.model.pod import ProbeKind, ProbeOutcome, deletion_requested, is_static, uid_of
from pykubelet.pods.record import ReportedStatus
from pykubelet.pods.table import PodTable
from pykubelet.signals import PodStatusChanged
from pykubelet.status.changes import (
    check_transition,
    statuses_equal,
    terminate_statuses,
    with_container_ready,
    with_container_started,
    with_reported,
)
from pykubelet.status.containers import bare_id

logger = logging.getLogger(__name__)


class StatusManager:
    def __init__(
        self,
        ctx: Context,
        table: PodTable,
        *,
        status_of: Callable[[Pod], PodStatus] = lambda pod: pod.status,
        explained: Callable[[Pod, PodStatus], PodStatus] = lambda pod, status: status,
    ) -> None:
        """`status_of`: what the API server shows of a pod, for a static one of its mirror.

        `explained` adds to a status why the pod is not ready.
        """
        self._table = table
        self._clock = ctx.clock
        self._signals = ctx.signals
        self._keeps_reported = not ctx.settings.gates.enabled("ChangeContainerStatusOnKubeletRestart")
        """Whether `started` and `ready` of running containers survive a restart of the agent."""
        self.explained = explained
        self.status_of = status_of

    def set_status(self, pod: Pod, status: PodStatus) -> None:
        self._report(pod, status, force=deletion_requested(pod), finished=False)

    def terminate(self, pod: Pod, status: PodStatus) -> None:
        """The pod holds nothing any more: complete its last status and mark it finished."""
        self._report(pod, terminate_statuses(pod, status), force=True, finished=True)

    def probe_changed(self, pod: Pod, kind: ProbeKind, container_id: str, outcome: ProbeOutcome) -> None:
        """Show a probe's new result at once, ahead of the next sync."""
        reported = self._table.reported(uid_of(pod))
        if self._keeps_reported and is_static(pod):
            current = _container_ids(reported.plain) if reported is not None else None
            self._table.note_probed(uid_of(pod), (kind, container_id), current=current)
        if reported is None:
            return
        good = outcome is ProbeOutcome.SUCCESS
        if kind is ProbeKind.READINESS:
            changed = with_container_ready(pod, reported.plain, container_id, good, self._clock.now())
        else:
            changed = with_container_started(reported.plain, container_id, good)
        if changed is not None:
            self._report(pod, changed, force=False, finished=False)

    def mirror_observed(self, uid: str) -> None:
        """The mirror of a static pod came in, with what was reported before a restart of the agent."""
        reported = self._table.reported(uid)
        if reported is not None:
            plain = self._with_reported(reported.pod, reported.plain)
            if plain is not reported.plain:
                self._report(reported.pod, plain, force=False, finished=reported.finished)

    def explain_again(self, uid: str) -> None:
        """Something failed while the pod's sync goes on: explain it without waiting for the next status."""
        reported = self._table.reported(uid)
        if reported is not None:
            self._report(reported.pod, reported.plain, force=False, finished=reported.finished)

    def begin_anew(self, uid: str) -> None:
        """The pod gets another life under its UID: what was reported of the last one does not bind it."""
        old = self._table.reported(uid)
        if old is not None:
            empty = PodStatus()
            self._table.report(ReportedStatus(pod=old.pod, status=empty, version=old.version + 1, plain=empty))

    def _report(self, pod: Pod, status: PodStatus, *, force: bool, finished: bool) -> None:
        old = self._table.reported(uid_of(pod))
        plain = self._with_reported(pod, status) if old is None else status
        status = self.explained(pod, plain)
        problem = check_transition(pod, old.status if old is not None else pod.status, status)
        if problem is not None:
            logger.error("status refused: a container that ended cannot be running again", extra={"problem": problem})
            return
        if old is not None and not force and statuses_equal(old.status, status):
            old.pod, old.plain = pod, plain
            return
        version = old.version + 1 if old is not None else 1
        finished = finished or (old is not None and old.finished)
        self._table.report(ReportedStatus(pod=pod, status=status, version=version, plain=plain, finished=finished))
        self._signals.publish(PodStatusChanged(uid_of(pod)))

    def _with_reported(self, pod: Pod, status: PodStatus) -> PodStatus:
        """With what the mirror of a static pod shows from before a restart; other pods carry it themselves."""
        if not self._keeps_reported or not is_static(pod):
            return status
        record = self._table.get(uid_of(pod))
        probed = record.probed if record is not None else None
        return with_reported(pod, status, self.status_of(pod), probed or (), self._clock.now())


def _container_ids(status: PodStatus) -> set[str]:
    return {bare_id(each.container_id) for each in (*status.init_container_statuses, *status.container_statuses)}
