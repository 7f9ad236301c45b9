"""Allocated resources of each pod, and resizes on their way from the spec to an allocation.

Pods are admitted, run and reported with what is allocated; the spec may request something else. A request that does
not fit waits here and is judged again when resources may have been freed. Actuating an allocation is the runtime's
work (`runtime/resize.py`); this module only sees from its record whether that is done.

Both are kept across restarts in upstream's format, both ways: `allocated_pods_state`, `actuated_pods_state`. Changes
are made in memory at once and written by `flush`. After damage the state is rebuilt from the pods as they are.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from pykubelet.api.types import Pod, PodCondition, ResourceRequirements
from pykubelet.cm.admission import PodAdmission
from pykubelet.cm.resize import (
    DEFERRED,
    INFEASIBLE,
    ResizeConditions,
    ResizeRules,
    asks_for_resize,
    changes_between,
    refusal,
    resize_text,
    shrank,
    urgency,
)
from pykubelet.context import Context
from pykubelet.kit.files import Checkpoint, Envelope
from pykubelet.kit.tasks import Wakeup
from pykubelet.kit.text import fnv1a_32
from pykubelet.model.pod import is_sidecar, readable, uid_of
from pykubelet.model.pod_resources import PodResourceInfo, allocation_of, differing, effective_resources, with_resources
from pykubelet.model.reasons import NORMAL, WARNING
from pykubelet.model.runtime_status import ContainerState, PodRuntimeStatus
from pykubelet.pods.table import PodTable
from pykubelet.signals import PodPreempted, ResizeChanged

logger = logging.getLogger(__name__)


# --- state, in upstream's files -------------------------------------------------------------------------------


ALLOCATED_FILE = "allocated_pods_state"
ACTUATED_FILE = "actuated_pods_state"


class AllocationState:
    """Reads its file at the first use."""

    def __init__(self, path: Path, *, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change`: called when something waits for a flush."""
        self.path = path
        # Not synced to disk: after a power cut no container runs any more.
        self._checkpoint = Checkpoint(path, encode=encode, decode=decode, durable=False)
        self._on_change = on_change
        self._loaded: dict[str, PodResourceInfo] | None = None
        self._dirty = False

    @property
    def _entries(self) -> dict[str, PodResourceInfo]:
        if self._loaded is None:
            self._loaded = self._checkpoint.load() or {}
        return self._loaded

    def get(self, uid: str) -> PodResourceInfo | None:
        return self._entries.get(uid)

    def put(self, uid: str, info: PodResourceInfo) -> None:
        if self._entries.get(uid) != info:
            self._entries[uid] = info
            self._changed()

    def put_container(self, uid: str, name: str, resources: ResourceRequirements) -> None:
        info = self._entries.get(uid) or PodResourceInfo()
        self.put(uid, PodResourceInfo(containers={**info.containers, name: resources}, pod=info.pod))

    def put_pod_level(self, uid: str, resources: ResourceRequirements | None) -> None:
        info = self._entries.get(uid) or PodResourceInfo()
        self.put(uid, PodResourceInfo(containers=info.containers, pod=resources))

    def drop(self, uid: str) -> None:
        if self._entries.pop(uid, None) is not None:
            self._changed()

    def keep_only(self, uids: Iterable[str]) -> None:
        wanted = set(uids)
        for uid in [uid for uid in self._entries if uid not in wanted]:
            self.drop(uid)

    def flush(self) -> None:
        """Write what changed; OSError when the disk refuses, and then it is still to be written."""
        if self._dirty:
            self._checkpoint.save_now(self._entries)
            self._dirty = False

    def _changed(self) -> None:
        self._dirty = True
        self._on_change()


# --- the file ---------------------------------------------------------------------------------------------


def encode(entries: dict[str, PodResourceInfo]) -> bytes:
    rows = {
        uid: {
            "ContainerResources": {name: msgspec.to_builtins(each) for name, each in info.containers.items()},
            "PodLevelResources": None if info.pod is None else msgspec.to_builtins(info.pod),
        }
        for uid, info in entries.items()
    }
    return ENVELOPE.seal(json.dumps({"entries": rows} if rows else {}, separators=(",", ":")))


def decode(raw: bytes) -> dict[str, PodResourceInfo]:
    """Raises CheckpointDamaged, or any error for entries of another shape."""
    rows = json.loads(ENVELOPE.open(raw)).get("entries") or {}
    return {uid: _info_of(row) for uid, row in rows.items()}


def _info_of(row: dict[str, Any]) -> PodResourceInfo:
    pod_level = row.get("PodLevelResources")
    return PodResourceInfo(
        containers={
            name: msgspec.convert(each, ResourceRequirements)
            for name, each in (row.get("ContainerResources") or {}).items()
        },
        pod=None if pod_level is None else msgspec.convert(pod_level, ResourceRequirements),
    )


def checksum(text: str) -> int:
    """As upstream computes it: FNV-1a of the text with its Go type in front."""
    return fnv1a_32(f"(string){text}")


ENVELOPE = Envelope(checksum)


# --- the manager ----------------------------------------------------------------------------------------------


RETRY_UNTIL_READY: Final = 30.0
RETRY_EVERY: Final = 180.0
SETTLE: Final = 0.25
"""Seconds to gather changes before the records are written, so that fifty pods starting together do not cost fifty
writes. A record matters only once a spec requests something else, and that writes at once."""

# Why pending resizes are judged again: labels of a metric.
POD_RESIZED: Final = "pod_resized"
POD_UPDATED: Final = "pod_updated"
PODS_ADDED: Final = "pods_added"
POD_TERMINATED: Final = "pod_terminated"
PERIODIC: Final = "periodic_retry"


class AllocationManager:
    """Also a service: writes the records and judges waiting resizes again now and then."""

    name = "allocations"

    def __init__(
        self,
        ctx: Context,
        *,
        root: Path,
        admission: PodAdmission,
        table: PodTable,
        sources_ready: Callable[[], bool],
        rules: ResizeRules,
    ) -> None:
        """`root`: the folder of the two files."""
        self._unsaved = Wakeup()
        self._allocated = AllocationState(root / ALLOCATED_FILE, on_change=self._unsaved.set)
        self.actuation = AllocationState(root / ACTUATED_FILE, on_change=self._unsaved.set)
        """What is in force; written by the runtime's resizes."""
        self._conditions = ResizeConditions(clock=ctx.clock, metrics=ctx.metrics)
        self._admission = admission
        self._table = table
        self._sources_ready = sources_ready
        self._rules = rules
        self._events = ctx.events
        self._clock = ctx.clock
        self._signals = ctx.signals
        self._waiting: list[str] = []
        self._merged: dict[str, tuple[Pod, PodResourceInfo | None, Pod]] = {}
        """By uid what `allocated` made of what: each pod that comes asks for all others."""
        self._requested = ctx.metrics.counter(
            "kubelet_container_requested_resizes_total",
            "Changes of container resources asked for.",
            ("resource", "requirement", "operation"),
        )
        self._infeasible = ctx.metrics.counter(
            "kubelet_pod_infeasible_resizes_total", "Resizes that can never happen here.", ("reason_detail",)
        )
        self._accepted_late = ctx.metrics.counter(
            "kubelet_pod_deferred_accepted_resizes_total", "Resizes that had to wait.", ("retry_trigger",)
        )

    async def run(self) -> None:
        due = self._clock.monotonic() + RETRY_UNTIL_READY
        try:
            while True:
                if await self._unsaved.wait(at_most=max(0.0, due - self._clock.monotonic())):
                    await self._clock.sleep(SETTLE)
                self._save()
                if self._clock.monotonic() >= due:
                    due = self._clock.monotonic() + (RETRY_EVERY if self._sources_ready() else RETRY_UNTIL_READY)
                    self.retry(PERIODIC)
        finally:
            self._save()

    def _save(self) -> None:
        for ledger in (self._allocated, self.actuation):
            try:
                ledger.flush()
            except OSError as error:
                logger.error(
                    "resources of pods cannot be recorded, will retry",
                    extra={"path": str(ledger.path), "error": str(error)},
                )

    # --- what pods have -------------------------------------------------------------------------

    def allocated(self, pod: Pod) -> Pod:
        """The pod with what is allocated instead of what it requests."""
        uid = uid_of(pod)
        info, merged = self._allocated.get(uid), self._merged.get(uid)
        if merged is None or merged[0] is not pod or merged[1] is not info:
            merged = self._merged[uid] = (pod, info, with_resources(pod, info))
        return merged[2]

    def active_pods(self) -> list[Pod]:
        """Active pods with their allocated resources."""
        return [self.allocated(pod) for pod in self._table.active_pods()]

    def in_force(self, pod: Pod) -> Pod:
        """The pod with what is in force for it, as far as that is known."""
        return with_resources(self.allocated(pod), self.actuation.get(uid_of(pod)))

    def actuated(self, uid: str) -> dict[str, ResourceRequirements]:
        info = self.actuation.get(uid)
        return dict(info.containers) if info is not None else {}

    @property
    def tells_pod_resources(self) -> bool:
        """Whether statuses report pod-level resources."""
        return self._rules.pod_level

    def conditions(self, uid: str, *, terminal: bool) -> tuple[PodCondition, ...]:
        if terminal:
            self._conditions.clear_pending(uid)
            self._conditions.clear_in_progress(uid)
        return self._conditions.of(uid)

    # --- news of pods ---------------------------------------------------------------------------

    def admitted(self, pod: Pod) -> None:
        """Record the pod's resources as allocated: it was admitted like this."""
        info = allocation_of(pod, init_containers=self._rules.init_containers)
        self._allocated.put(uid_of(pod), info)

    def added(self, pods: Sequence[Pod]) -> None:
        """Queue the resizes of new pods, as their source has them, whose request differs from their allocation."""
        resizing = []
        for pod in pods:
            self._conditions.adopt(pod)
            if self.allocated(pod) is not pod:
                resizing.append(uid_of(pod))
        for uid in resizing:
            self._push(uid)
        if resizing:
            self.retry(PODS_ADDED)

    def updated(self, old: Pod | None, new: Pod) -> None:
        if old is None or not asks_for_resize(old, new):
            return
        for change in changes_between(old, new):
            self._requested.inc(*change)
        # From here on the spec no longer says what is allocated: only the record does.
        self._save()
        if self.allocated(new) is new:
            # The request was taken back, or was allocated before.
            self._conditions.clear_pending(uid_of(new))
            self._waiting = [uid for uid in self._waiting if uid != uid_of(new)]
            self._signals.publish(ResizeChanged(uid_of(new)))
            return
        self._push(uid_of(new))
        self.retry(POD_UPDATED)

    def reconciled(self, old: Pod | None, new: Pod) -> None:
        """Handle a change of the status alone; it may show that resources were freed."""
        if self._waiting and old is not None and shrank(self.allocated(old), self.allocated(new)):
            self.retry(POD_RESIZED)

    def keep_only(self, uids: Iterable[str]) -> None:
        known = set(uids)
        for holder in (self._allocated, self.actuation, self._conditions):
            holder.keep_only(known)
        self._merged = {uid: merged for uid, merged in self._merged.items() if uid in known}
        self._waiting = [uid for uid in self._waiting if uid in known]

    # --- judging --------------------------------------------------------------------------------

    def _push(self, uid: str) -> None:
        if uid not in self._waiting:
            self._waiting.append(uid)
        self._waiting = [uid for _, uid in sorted(self._keyed(), key=lambda pair: pair[0])]

    def _keyed(self) -> list[tuple[tuple[bool, int, bool, float], str]]:
        keyed = []
        for uid in self._waiting:
            pod = self._table.pod(uid)
            if pod is not None:
                keyed.append((urgency(pod, self.allocated(pod), self._conditions.pending_since(uid)), uid))
        return keyed

    def retry(self, trigger: str) -> None:
        """Judge every waiting resize again. Cheap when none waits."""
        if not self._waiting or not self._sources_ready():
            return
        left = []
        for uid in self._waiting:
            pod = self._table.pod(uid)
            if pod is None:
                continue
            before, had_to_wait = self._conditions.of(uid), self._conditions.is_deferred(uid)
            try:
                changed = self._judge(pod)
            except Exception as error:  # this pod's trouble, never that of the others that wait
                logger.error(
                    "a resize cannot be judged or recorded, will retry",
                    extra={"pod": readable(pod), "error": str(error)},
                    exc_info=not isinstance(error, OSError),
                )
                left.append(uid)
                continue
            if self._conditions.is_deferred(uid):
                left.append(uid)
            elif had_to_wait and not self._conditions.is_infeasible(uid):
                self._accepted_late.inc(trigger)
            if changed or self._conditions.of(uid) != before:
                self._signals.publish(ResizeChanged(uid))
        self._waiting = left

    def _judge(self, pod: Pod) -> bool:
        """Allocate what the pod requests if that is possible now; True when the allocation changed."""
        uid, allocated = uid_of(pod), self.allocated(pod)
        if allocated is pod:
            self._conditions.clear_pending(uid)
            return False
        never = refusal(pod, allocated, self._rules)
        if never is not None:
            self._infeasible.inc(never.detail)
            self._pend(pod, INFEASIBLE, never.message)
            return False
        verdict = self._admission.decide(pod, [each for each in self.active_pods() if uid_of(each) != uid])
        if verdict.rejection is not None:
            self._pend(pod, DEFERRED, verdict.rejection.message)
            return False
        self._allocate(pod)
        for victim in verdict.victims:
            self._signals.publish(PodPreempted(victim, verdict.short_of))
        self._conditions.clear_pending(uid)
        self._conditions.clear_in_progress(uid)
        self._conditions.set_in_progress(pod)
        logger.info("resize started", extra={"pod": readable(pod)})
        self._events.pod_event(pod, NORMAL, "ResizeStarted", resize_text("started", pod, pod.metadata.generation))
        return True

    def _allocate(self, pod: Pod) -> None:
        """Recorded on disk before anything of it is put into force."""
        before = self._allocated.get(uid_of(pod))
        self.admitted(pod)
        try:
            self._allocated.flush()
        except OSError:
            if before is not None:
                self._allocated.put(uid_of(pod), before)
            raise

    def _pend(self, pod: Pod, reason: str, message: str) -> None:
        if self._conditions.set_pending(pod, reason, message):
            logger.info("resize cannot start", extra={"pod": readable(pod), "reason": reason, "why": message})
            text = resize_text(reason, pod, pod.metadata.generation, message)
            self._events.pod_event(pod, WARNING, f"Resize{reason}", text)

    # --- watching it being put into force -------------------------------------------------------

    def review(self, pod: Pod, status: PodRuntimeStatus) -> None:
        """Bring the PodResizeInProgress condition to what the record of actuated resources says."""
        # Read anew: the allocation may have changed while the caller was busy with an older one.
        current = self.allocated(pod)
        if self._is_unfinished(current, status):
            self._conditions.set_in_progress(current)
            return
        generation, was = self._conditions.clear_in_progress(uid_of(pod))
        if was:
            self._events.pod_event(current, NORMAL, "ResizeCompleted", resize_text("completed", current, generation))

    def failed(self, pod: Pod, why: str) -> None:
        generation, news = self._conditions.set_in_progress(pod, "Error", why)
        if news:
            self._events.pod_event(pod, WARNING, "ResizeError", resize_text("error", pod, generation, why))

    def _is_unfinished(self, pod: Pod, status: PodRuntimeStatus) -> bool:
        info = self.actuation.get(uid_of(pod))
        if info is None:
            return False
        if differing(pod.spec.resources, info.pod):
            return True
        init = [each for each in pod.spec.init_containers if self._rules.init_containers or is_sidecar(each)]
        for container in (*init, *pod.spec.containers):
            run, own = status.container(container.name or ""), info.containers.get(container.name or "")
            if run is None or run.state is not ContainerState.RUNNING or own is None:
                continue  # what does not run gets the right size when it starts
            if differing(effective_resources(pod.spec.resources, container), own):
                return True
        return False
