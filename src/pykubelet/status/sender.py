"""Sends pod statuses to the API server: the newest of each pod, only real changes, nothing lost while it is away.

One request per pod at a time and a few pods at once, first those whose status controllers wait for; what changes
meanwhile is sent next, so intermediate states never queue up. The patch is made against the pod as our own watch or
our last answer shows it, which saves reading it first; its UID is a precondition. Also deletes pods whose deletion
was requested and that have nothing left here.
Does not cover how a status is made (generate.py) nor which part of it is sent (changes.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from pykubelet.api.types import Pod, PodStatus
from pykubelet.clients.kube.port import Change, ChangeType, KubeClient, PatchType
from pykubelet.context import Context
from pykubelet.kit.keyed import KeyedTasks, KeyState
from pykubelet.kit.limits import Slots
from pykubelet.kit.tasks import finish, gather_all
from pykubelet.model.errors import ApiConflict, ApiError, ApiNotFound, Invalid
from pykubelet.model.pod import (
    HASH_ANNOTATION,
    MIRROR_ANNOTATION,
    deletion_requested,
    is_mirror,
    is_static,
    is_terminal_phase,
    name_of,
    namespace_of,
    readable,
    uid_of,
)
from pykubelet.pods.record import ReportedStatus
from pykubelet.pods.table import PodTable
from pykubelet.status.changes import Urgency, ends_pod, merged_status, only_begins, urgency

logger = logging.getLogger(__name__)

AT_ONCE = 8
FULL_PASS = 10.0
FIRST_RETRY, LONGEST_RETRY = 0.2, 5.0
REFUSED_RETRY = 10.0
"""Seconds until a status is sent again that the server refused: an admission webhook or policy may have
refused it, and may accept it by then."""
ANSWER_HOLDS = 60.0
"""Seconds for which our last answer counts although the watch shows a lower version. A watch is not behind for longer;
versions that stay lower come from an API server whose data was restored from a backup."""
FLUSH_WITHIN = 5.0
BEGIN_WAITS = 0.5
"""Seconds for which a status waits that says only that a pod's containers are being made. Most pods run by then, and
one request says all; the API server and its store do not work beside the runtime while it makes the pod."""
END_WAITS = 0.2
"""Seconds for which a pod's last status waits while its end must be held back; most often it need not be any more by
then, and one request says all."""

PatchMaker = Callable[[Pod, PodStatus], dict[str, Any] | None]


class _Record(Struct):
    """What we know of one pod's status on the server."""

    sent: int = 0
    """The newest version the server has."""
    answer: Pod | None = None
    """The pod as the server answered to our last write."""
    answered_at: float = 0.0
    refused: bool = False
    """The server refused the newest status; another one may be sent at once."""
    held: bool = False
    """The end of the pod was held back; must be sent later."""
    changed_at: float | None = None
    urgency: Urgency = Urgency.TELLS


class StatusSender:
    name = "status-sender"

    def __init__(
        self,
        ctx: Context,
        table: PodTable,
        *,
        client: KubeClient,
        api_pod: Callable[[str, str], Pod | None],
        make_patch: PatchMaker,
        could_run: Callable[[str], bool],
    ) -> None:
        """`api_pod(name, namespace)`: the pod as the watch shows it; `could_run(uid)`: whether containers of the pod
        may still run."""
        self._table = table
        self._client = client
        self._api_pod = api_pod
        self._make_patch = make_patch
        self._could_run = could_run
        self._clock = ctx.clock
        self._records: dict[str, _Record] = {}
        self._tasks = KeyedTasks(
            self.name,
            self._work,
            clock=ctx.clock,
            first_retry=FIRST_RETRY,
            last_retry=LONGEST_RETRY,
            on_error=self._failed,
            slots=Slots[str](AT_ONCE, lambda uid: self._record(uid).urgency),
        )
        self._took = ctx.metrics.histogram(
            "kubelet_pod_status_sync_duration_seconds",
            "Seconds from a change of a pod's status until the API server has it.",
        )

    # -- changes

    def changed(self, uid: str) -> None:
        """A status has changed; for PodStatusChanged."""
        record, reported = self._record(uid), self._table.reported(uid)
        if record.changed_at is None:
            record.changed_at = self._clock.monotonic()
        if reported is not None:
            there = self._there(reported.pod, record)
            record.urgency = urgency(there.status if there is not None else PodStatus(), reported.status)
        self._tasks.wake(uid, skip_backoff=record.refused)
        record.refused = False

    def observed(self, change: Change[Pod]) -> None:
        """The watch showed a pod: it may differ from what we reported, or want to be deleted."""
        uid = uid_here(change.object)
        if change.type is ChangeType.DELETED or self._table.reported(uid) is None:
            return
        record = self._records.get(uid)
        if record is not None and _version(record.answer) == _version(change.object):
            return  # the echo of our own write
        self._tasks.wake(uid, skip_backoff=False)

    def keep_only(self, uids: Iterable[str]) -> None:
        wanted = set(uids)
        for uid in [uid for uid in self._records if uid not in wanted and uid not in self._tasks]:
            del self._records[uid]

    def unsent(self, uids: Iterable[str]) -> list[str]:
        """Pods among these of whose newest status the API server does not know."""
        return [uid for uid in uids if self._is_unsent(uid)]

    def _is_unsent(self, uid: str) -> bool:
        reported, record = self._table.reported(uid), self._record(uid)
        if reported is None or self._there(reported.pod, record) is None:
            return False  # no place to send it to
        return record.sent < reported.version or record.held

    # -- the service

    async def run(self) -> None:
        try:
            async with self._tasks:
                while True:
                    await self._clock.sleep(FULL_PASS)
                    self._wake_unsettled()
        finally:
            try:
                await finish(self._flush(), within=FLUSH_WITHIN)
            except TimeoutError:
                logger.warning("the last statuses could not all be sent in time")

    def _wake_unsettled(self) -> None:
        """Find what differs although no change was noticed."""
        for uid, reported in self._table.reports():
            record = self._records.get(uid)
            there = self._api_pod(name_of(reported.pod), namespace_of(reported.pod))
            settled = record is not None and record.sent >= reported.version and not record.held
            if not settled or there is None or record is None or _version(there) != _version(record.answer):
                self._tasks.wake(uid, skip_backoff=False)

    def _failed(self, uid: str, error: Exception, state: KeyState) -> float:
        """Log why a status could not be sent; the seconds until the next try."""
        if not isinstance(error, ApiError):  # this pod's trouble, never the node's
            logger.error("a pod's status cannot be made, will retry", extra={"uid": uid}, exc_info=error)
            return state.backoff.next()
        refused = self._record(uid).refused = isinstance(error, Invalid)
        delay = error.retry_after or state.backoff.next()
        first = logging.ERROR if refused else logging.WARNING
        level = first if state.backoff.failures == 1 else logging.DEBUG
        what = "the API server refuses a status" if refused else "a pod's status cannot be sent"
        logger.log(level, f"{what}, will retry", extra={"uid": uid, "error": str(error)})
        return REFUSED_RETRY if refused else delay

    async def _flush(self) -> None:
        """Send the last changes; what the server does not take in time is found again at the next start."""
        late = [uid for uid, reported in self._table.reports() if self._record(uid).sent < reported.version]
        for start in range(0, len(late), AT_ONCE):
            await gather_all(*(self._try_once(uid) for uid in late[start : start + AT_ONCE]))

    async def _try_once(self, uid: str) -> None:
        try:
            while await self._send_newest(uid):
                pass
        except ApiError as error:
            logger.warning("a pod's last status could not be sent", extra={"uid": uid, "error": str(error)})
        except Exception:
            logger.exception("a pod's last status could not be made", extra={"uid": uid})

    def _record(self, uid: str) -> _Record:
        return self._records.setdefault(uid, _Record())

    # -- one pod

    async def _work(self, uid: str) -> float | None:
        waits = self._waits(uid)
        if waits is not None:
            return waits
        return 0.0 if await self._send_newest(uid) else None

    def _waits(self, uid: str) -> float | None:
        """Seconds that the pod's status may still wait for a better one; None when it is to be sent now."""
        record, reported = self._record(uid), self._table.reported(uid)
        there = self._there(reported.pod, record) if reported is not None else None
        if record.changed_at is None or reported is None or there is None:
            return None
        most = 0.0
        if not record.sent and only_begins(there.status, reported.status):
            most = BEGIN_WAITS
        elif ends_pod(there.status, reported.status) and self._could_run(uid):
            most = END_WAITS
        left = record.changed_at + most - self._clock.monotonic()
        return left if left > 0 else None

    async def _send_newest(self, uid: str) -> bool:
        """Bring the API server up to date; whether a newer status came meanwhile, which has its own turn."""
        record, reported = self._record(uid), self._table.reported(uid)
        there = self._there(reported.pod, record) if reported is not None else None
        if reported is None or there is None:
            # Gone, re-created under its name, or a static pod without mirror: the watch shows when that changes.
            record.answer = None
            return False
        version, since = reported.version, record.changed_at
        there = await self._send(reported, there, record)
        if there is None:
            return False
        if reported.finished and may_be_deleted(there):
            await self._delete(there)
            return False
        newest = self._table.reported(uid)
        if newest is not None and newest.version != version:
            return True
        if since is not None:
            self._took.observe(self._clock.monotonic() - since)
        record.changed_at = None
        return False

    def _there(self, pod: Pod, record: _Record) -> Pod | None:
        """The newest state of the API object this pod's status belongs to; None if there is none."""
        found = self._api_pod(name_of(pod), namespace_of(pod))
        if found is None or not belongs(found, pod):
            return None
        if self._clock.monotonic() - record.answered_at > ANSWER_HOLDS:
            return found
        return newer(found, record.answer)

    async def _send(self, reported: ReportedStatus, there: Pod, record: _Record) -> Pod | None:
        """Write what differs; the object afterwards, or None when the status has no place to go."""
        sent: dict[str, Any] | None = None
        while True:
            could_run = self._could_run(uid_of(reported.pod))
            status = merged_status(there.status, reported.status, could_run=could_run)
            record.held = could_run and ends_pod(there.status, reported.status)
            patch = self._make_patch(there, status)
            # Another writer may have come between: then the answer differs from what we report, in another way than
            # before. What the server refuses to take differs in the same way, for ever.
            if patch is None or patch == sent:
                record.sent, record.answer = reported.version, there
                return there
            answer = await self._write(reported, there, patch, record)
            if answer is None:
                return None
            there, sent = answer, patch

    async def _write(self, reported: ReportedStatus, there: Pod, patch: dict[str, Any], record: _Record) -> Pod | None:
        version = reported.version
        try:
            answer = await self._client.patch(
                Pod,
                name_of(there),
                patch,
                patch_type=PatchType.STRATEGIC,
                namespace=namespace_of(there),
                subresource="status",
            )
        except (ApiNotFound, ApiConflict):
            logger.debug("the pod is gone from the API server", extra={"pod": readable(there)})
            record.sent, record.answer = version, None
            return None
        record.sent, record.answer, record.answered_at = version, answer, self._clock.monotonic()
        logger.debug("status sent", extra={"pod": readable(there), "version": version})
        return answer

    async def _delete(self, pod: Pod) -> None:
        uid = uid_of(pod)
        try:
            await self._client.delete(Pod, name_of(pod), namespace_of(pod), grace_seconds=0, uid=uid)
        except (ApiNotFound, ApiConflict):
            pass  # already gone, or another pod has the name by now
        else:
            logger.info("pod deleted from the API server: nothing of it is left here", extra={"pod": readable(pod)})
        self._table.forget_reported(uid)
        self._records.pop(uid, None)


def uid_here(api_pod: Pod) -> str:
    """The UID this node knows the API object by: for a mirror that of the static pod it was made from."""
    if is_mirror(api_pod):
        return api_pod.metadata.annotations[MIRROR_ANNOTATION]
    return uid_of(api_pod)


def belongs(api_pod: Pod, pod: Pod) -> bool:
    """Whether the API object is this very pod, or the mirror of this version of a static pod."""
    if not is_static(pod):
        return uid_of(api_pod) == uid_of(pod)
    return is_mirror(api_pod) and uid_here(api_pod) == pod.metadata.annotations.get(HASH_ANNOTATION, "")


def may_be_deleted(api_pod: Pod) -> bool:
    """Whether the API object only waits for the node to confirm that nothing runs any more."""
    return deletion_requested(api_pod) and not is_mirror(api_pod) and is_terminal_phase(api_pod.status.phase)


def newer(found: Pod, answer: Pod | None) -> Pod:
    """Of the watch's state and our last answer the later one; they are states of one object."""
    if answer is None or uid_of(answer) != uid_of(found):
        return found
    seen, own = _version(found), _version(answer)
    if seen.isdigit() and own.isdigit():
        return found if int(seen) >= int(own) else answer
    return found


def _version(pod: Pod | None) -> str:
    return (pod.metadata.resource_version or "") if pod is not None else ""
