"""The statuses this agent tells about its pods: the one place they are kept, compared and handed on.

Every change gets a version; who sends statuses to an API server takes those that are newer than what it sent.
Equal statuses are dropped and illegal returns (ended, then not ended) are refused. Without an API server this
store is what the node's own server and commands show.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from pykubelet.api.types import Pod, PodStatus
from pykubelet.kit.clock import Clock
from pykubelet.model.pod import deletion_requested, is_static, uid_of
from pykubelet.model.results import ProbeKind, ProbeOutcome
from pykubelet.status.changes import (
    ProbeAbout,
    check_transition,
    recalled,
    statuses_equal,
    terminate_statuses,
    with_container_ready,
    with_container_started,
)
from pykubelet.status.containers import bare_id

logger = logging.getLogger(__name__)


class ToldStatus(Struct):
    """The newest status of one pod."""

    pod: Pod
    status: PodStatus
    version: int
    plain: PodStatus
    """The status before it was explained; what is made anew from a part of it begins here."""
    finished: bool = False
    """Nothing of the pod is left on this node; the API object may be deleted."""


class StatusManager:
    def __init__(self, *, clock: Clock, recalls: bool = True) -> None:
        """`recalls`: `started` and `ready` of running containers survive a restart of the agent."""
        self._clock = clock
        self._recalls = recalls
        self._told: dict[str, ToldStatus] = {}
        self._heard: dict[str, set[ProbeAbout]] = {}
        """Probes of static pods' containers that have spoken since the agent started."""
        self._listeners: list[Callable[[str], None]] = []
        self.explained: Callable[[Pod, PodStatus], PodStatus] = lambda pod, status: status
        """Adds to a status why the pod is not ready; set where the agent is wired."""

        self.status_of: Callable[[Pod], PodStatus] = lambda pod: pod.status
        """What the API server shows of a pod, for a static one of its mirror; set where the agent is wired."""

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener(uid)` after each change. Must be quick."""
        self._listeners.append(listener)

    # --- questions ------------------------------------------------------------------------------

    def get(self, uid: str) -> PodStatus | None:
        told = self._told.get(uid)
        return told.status if told is not None else None

    def entry(self, uid: str) -> ToldStatus | None:
        return self._told.get(uid)

    def __iter__(self) -> Iterator[tuple[str, ToldStatus]]:
        return iter(list(self._told.items()))

    # --- changes --------------------------------------------------------------------------------

    def set_status(self, pod: Pod, status: PodStatus) -> None:
        self._tell(pod, status, force=deletion_requested(pod), finished=False)

    def terminate(self, pod: Pod, status: PodStatus) -> None:
        """The pod holds nothing any more: complete its last status and mark it finished."""
        self._tell(pod, terminate_statuses(pod, status), force=True, finished=True)

    def probe_changed(self, pod: Pod, kind: ProbeKind, container_id: str, outcome: ProbeOutcome) -> None:
        """Show a probe's new result at once, ahead of the next sync."""
        told = self._told.get(uid_of(pod))
        if self._recalls and is_static(pod):
            self._hear(uid_of(pod), (kind, container_id), told)
        if told is None:
            return
        good = outcome is ProbeOutcome.SUCCESS
        if kind is ProbeKind.READINESS:
            changed = with_container_ready(pod, told.plain, container_id, good, self._clock.now())
        else:
            changed = with_container_started(told.plain, container_id, good)
        if changed is not None:
            self._tell(pod, changed, force=False, finished=False)

    def mirror_seen(self, uid: str) -> None:
        """The mirror of a static pod came in, with what was told of it before a restart of the agent."""
        told = self._told.get(uid)
        if told is not None:
            plain = self._recall(told.pod, told.plain)
            if plain is not told.plain:
                self._tell(told.pod, plain, force=False, finished=told.finished)

    def explain_again(self, uid: str) -> None:
        """Something went wrong while the pod's sync goes on: say so without waiting for the next status."""
        told = self._told.get(uid)
        if told is not None:
            self._tell(told.pod, told.plain, force=False, finished=told.finished)

    def keep_only(self, uids: Iterable[str]) -> None:
        wanted = set(uids)
        for uid in [uid for uid in self._told if uid not in wanted]:
            del self._told[uid]
        for uid in [uid for uid in self._heard if uid not in wanted]:
            del self._heard[uid]

    def forget(self, uid: str) -> None:
        self._told.pop(uid, None)
        self._heard.pop(uid, None)

    def begin_anew(self, uid: str) -> None:
        """The pod gets another life under its UID: what was told of the last one binds nobody any more."""
        told = self._told.get(uid)
        if told is not None:
            self._told[uid] = ToldStatus(pod=told.pod, status=PodStatus(), version=told.version + 1, plain=PodStatus())

    def _tell(self, pod: Pod, status: PodStatus, *, force: bool, finished: bool) -> None:
        uid, old = uid_of(pod), self._told.get(uid_of(pod))
        plain = self._recall(pod, status) if old is None else status
        status = self.explained(pod, plain)
        problem = check_transition(pod, old.status if old is not None else pod.status, status)
        if problem is not None:
            logger.error("status refused: a container that ended cannot be running again", extra={"problem": problem})
            return
        if old is not None and not force and statuses_equal(old.status, status):
            old.pod, old.plain = pod, plain
            return
        version = old.version + 1 if old is not None else 1
        was_finished = old is not None and old.finished
        self._told[uid] = ToldStatus(
            pod=pod, status=status, version=version, plain=plain, finished=finished or was_finished
        )
        for listener in self._listeners:
            listener(uid)

    def _recall(self, pod: Pod, status: PodStatus) -> PodStatus:
        """With what the mirror of a static pod remembers of the agent's life before; others carry it themselves."""
        if not self._recalls or not is_static(pod):
            return status
        return recalled(pod, status, self.status_of(pod), self._heard.get(uid_of(pod), ()), self._clock.now())

    def _hear(self, uid: str, probe: ProbeAbout, told: ToldStatus | None) -> None:
        """Remember that the probe has spoken, and forget those of containers that were replaced."""
        heard = self._heard.setdefault(uid, set())
        if told is not None:
            known = (*told.plain.init_container_statuses, *told.plain.container_statuses)
            current = {bare_id(each.container_id) for each in known}
            heard.intersection_update([each for each in heard if each[1] in current])
        heard.add(probe)
