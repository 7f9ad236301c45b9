"""How each pod's resize stands: the PodResizePending and PodResizeInProgress conditions, complete with times.

Only a store with upstream's rules of what a new word changes; who judges is `allocation.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from pykubelet.api.types import Pod, PodCondition
from pykubelet.kit.clock import Clock, utc
from pykubelet.kit.metrics import Registry
from pykubelet.model.pod import uid_of
from pykubelet.model.reasons import RESIZE_IN_PROGRESS, RESIZE_PENDING
from pykubelet.resources.resize_rules import DEFERRED, INFEASIBLE


class _Standing(Struct):
    pending: PodCondition | None = None
    in_progress: PodCondition | None = None


class ResizeConditions:
    def __init__(self, *, clock: Clock, metrics: Registry) -> None:
        self._clock = clock
        self._pods: dict[str, _Standing] = {}
        pending = metrics.gauge("kubelet_pod_pending_resizes", "Resizes that wait or can never happen.", ("reason",))
        running = metrics.gauge("kubelet_pod_in_progress_resizes", "Resizes being put into force.")

        def refresh() -> None:
            reasons = [each.pending.reason or "" for each in self._pods.values() if each.pending is not None]
            pending.replace({(reason.lower(),): float(reasons.count(reason)) for reason in set(reasons)})
            running.set(float(sum(each.in_progress is not None for each in self._pods.values())))

        metrics.on_scrape(refresh)

    # --- questions ------------------------------------------------------------------------------

    def of(self, uid: str) -> tuple[PodCondition, ...]:
        standing = self._pods.get(uid)
        if standing is None:
            return ()
        return tuple(each for each in (standing.pending, standing.in_progress) if each is not None)

    def is_deferred(self, uid: str) -> bool:
        return self._pending_reason(uid) == DEFERRED

    def is_infeasible(self, uid: str) -> bool:
        return self._pending_reason(uid) == INFEASIBLE

    def pending_since(self, uid: str) -> float | None:
        pending = self._pods[uid].pending if uid in self._pods else None
        moment = pending.last_transition_time if pending is not None else None
        return moment.timestamp() if moment is not None else None

    def _pending_reason(self, uid: str) -> str | None:
        pending = self._pods[uid].pending if uid in self._pods else None
        return pending.reason if pending is not None else None

    # --- changes --------------------------------------------------------------------------------

    def set_pending(self, pod: Pod, reason: str, message: str) -> bool:
        """True when the reason or the generation is news."""
        standing = self._pods.setdefault(uid_of(pod), _Standing())
        old = standing.pending
        standing.pending = self._renewed(RESIZE_PENDING, old, reason, message, pod.metadata.generation)
        return old is None or old.reason != reason or old.observed_generation != pod.metadata.generation

    def set_in_progress(self, pod: Pod, reason: str = "", message: str = "") -> tuple[int | None, bool]:
        """The generation being put into force, and whether anything about the condition is news.

        A word without reason never clears an error told before, and the generation stays until the condition
        was cleared.
        """
        standing = self._pods.setdefault(uid_of(pod), _Standing())
        old, generation = standing.in_progress, pod.metadata.generation
        if old is not None:
            generation = old.observed_generation
            if not reason and not message:
                reason, message = old.reason or "", old.message or ""
        standing.in_progress = self._renewed(RESIZE_IN_PROGRESS, old, reason, message, generation)
        return generation, standing.in_progress is not old

    def clear_pending(self, uid: str) -> None:
        if uid in self._pods:
            self._pods[uid].pending = None

    def clear_in_progress(self, uid: str) -> tuple[int | None, bool]:
        """The generation whose resize was in progress, and whether there was one."""
        standing = self._pods.get(uid)
        if standing is None or standing.in_progress is None:
            return None, False
        generation, standing.in_progress = standing.in_progress.observed_generation, None
        return generation, True

    def adopt(self, pod: Pod) -> None:
        """Take over what was told about the pod before this agent started."""
        for condition in pod.status.conditions:
            if condition.type not in (RESIZE_PENDING, RESIZE_IN_PROGRESS) or condition.status != "True":
                continue
            standing = self._pods.setdefault(uid_of(pod), _Standing())
            if condition.type == RESIZE_PENDING:
                standing.pending = standing.pending or condition
            else:
                standing.in_progress = standing.in_progress or condition

    def keep_only(self, uids: Iterable[str]) -> None:
        wanted = set(uids)
        for uid in [uid for uid in self._pods if uid not in wanted]:
            del self._pods[uid]

    def _renewed(
        self, kind: str, old: PodCondition | None, reason: str, message: str, generation: int | None
    ) -> PodCondition:
        told = (reason, message, generation)
        if old is not None and (old.reason or "", old.message or "", old.observed_generation) == told:
            return old  # a new probe time alone would only make statuses differ
        now = utc(self._clock.now())
        same_reason = old is not None and (old.reason or "") == reason
        return PodCondition(
            type=kind,
            status="True",
            last_probe_time=now,
            last_transition_time=old.last_transition_time if old is not None and same_reason else now,
            reason=reason or None,
            message=message or None,
            observed_generation=generation,
        )
