"""Watches the node and, when it runs short of a resource, reclaims what it can and then evicts one pod after the other.

A check costs a handful of file reads; the kernel wakes us when memory crosses a threshold, and the nearer a signal is
to its threshold the sooner the next check. Node-level reclaim always comes first and is followed by a new measurement.
At most one pod is evicted at a time, and the next check waits until its resources are released. Does not cover: judging
(thresholds.py), ranking and messages (ranking.py), limits of single pods (local_storage.py).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.api.types import Pod
from pykubelet.clients.host.port import MemoryAlarms
from pykubelet.context import Context
from pykubelet.eviction.local_storage import Breach, StorageLimits
from pykubelet.eviction.pressure import LONGEST, SHORTEST, AlarmKeeper, next_check
from pykubelet.eviction.ranking import Candidate, EvictionText, measured, pod_message, rank, reason_for
from pykubelet.eviction.stats import EvictionStats, PodUse
from pykubelet.eviction.thresholds import (
    MEMORY_SIGNALS,
    PIDS,
    RESOURCE,
    Judgement,
    Layout,
    Observations,
    Reclaim,
    WatchState,
    effective,
    judge,
    layout_of,
    met,
    observe,
    reclaims,
)
from pykubelet.kit.tasks import Wakeup, gather_all
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import readable, uid_of
from pykubelet.model.reasons import WARNING
from pykubelet.node.conditions import NodeConditions
from pykubelet.settings.thresholds import Threshold

logger = logging.getLogger(__name__)

HARD_GRACE: Final = 1
SETTLE: Final = 0.5
"""Seconds after a pod's end until the node's stats are reliable."""
CLEANUP_WITHIN: Final = 30.0
MIN_GAP: Final = 0.2
"""Seconds between two checks, however often the kernel notifies."""


class EvictionOrder(Struct, frozen=True, kw_only=True):
    """The eviction of one pod."""

    text: EvictionText
    grace: int
    signal: str
    disruption: bool
    """Whether the pod gets the condition DisruptionTarget: not when it exceeded a limit of its own."""


class Evictor(Protocol):
    def candidates(self) -> Sequence[Pod]:
        """Return the active pods that are not being evicted already."""
        ...

    async def evict(self, pod: Pod, order: EvictionOrder) -> None:
        """End the pod with that status; returns when its containers have stopped or their time is over."""
        ...

    async def cleaned_up(self, pod: Pod, *, within: float) -> bool:
        """Wait until the pod has released all its resources."""
        ...


class EvictionRules(Struct, frozen=True, kw_only=True):
    thresholds: tuple[Threshold, ...] = ()
    transition: float = 300.0
    max_grace: int = 0
    """Longest grace of a soft eviction."""
    pods_enforced: bool = False
    """All pods together have a memory limit."""
    local_storage: bool = True
    groups: Mapping[str, str] = field(default_factory=dict)
    """Memory signal to the cgroup it is about."""


class EvictionManager:
    name = "eviction"

    def __init__(
        self,
        ctx: Context,
        *,
        stats: EvictionStats,
        storage: StorageLimits,
        evictor: Evictor,
        reclaimers: Mapping[Reclaim, Callable[[], Awaitable[None]]],
        conditions: NodeConditions,
        alarms: MemoryAlarms | None,
        rules: EvictionRules,
    ) -> None:
        self._stats = stats
        self._storage = storage
        self._evictor = evictor
        self._reclaimers = reclaimers
        self._conditions = conditions
        self._rules = rules
        self._events = ctx.events
        self._clock = ctx.clock
        self._state = WatchState()
        self._wake = Wakeup()
        self._alarms = AlarmKeeper(alarms=alarms, groups=rules.groups, wake=self._wake.set)
        self._problem = ""
        self._exhausted = False
        self._evictions = ctx.metrics.counter("kubelet_evictions", "Pods evicted, by signal.", ("eviction_signal",))
        self._age = ctx.metrics.histogram(
            "kubelet_eviction_stats_age_seconds", "Age of the figures a pod was evicted by.", ("eviction_signal",)
        )

    async def run(self) -> None:
        try:
            while True:
                began = self._clock.monotonic()
                pause = await self._try_synchronize()
                await self._wake.wait(at_most=pause)
                await self._clock.sleep(max(0.0, MIN_GAP - (self._clock.monotonic() - began)))
        finally:
            self._alarms.close()

    def snapshot(self) -> dict[str, object]:
        return {
            "pressure": list(self._conditions.pressures()),
            "met": [each.signal for each in self._state.met],
            "kernelAlarms": sorted(self._alarms.active),
            "problem": self._problem,
        }

    async def _try_synchronize(self) -> float:
        try:
            pause = await self.synchronize()
        except (PykubeletError, OSError) as error:
            if str(error) != self._problem:
                logger.warning("the node's resources cannot be judged", extra={"error": str(error)})
            self._problem = str(error)
            return LONGEST
        self._problem = ""
        return pause

    async def synchronize(self) -> float:
        """Check the node once and act on it; return the seconds until the next check."""
        rules = self._rules
        if not rules.thresholds and not rules.local_storage:
            return LONGEST
        signals = await self._stats.node()
        layout, observations = layout_of(signals), observe(signals)
        thresholds = effective(rules.thresholds, layout, pods_enforced=rules.pods_enforced)
        now = self._clock.monotonic()
        judged = judge(self._state, thresholds, observations, now=now, transition=rules.transition)
        self._state = judged.state
        self._set_pressures(judged)
        if rules.local_storage and await self._enforce_limits(layout):
            return SETTLE
        if judged.due:
            return await self._relieve(thresholds, judged.due, observations, layout)
        self._exhausted = False
        self._alarms.update(thresholds, signals)
        return self._pause(thresholds, judged, observations)

    def _pause(self, thresholds: Sequence[Threshold], judged: Judgement, observations: Observations) -> float:
        pause = next_check(thresholds, observations)
        if judged.next_due is not None:
            pause = min(pause, max(SHORTEST / 10, judged.next_due))
        return min(pause, max(SHORTEST, self._storage.due_in())) if self._rules.local_storage else pause

    def _set_pressures(self, judged: Judgement) -> None:
        before = self._conditions.pressures()
        if judged.conditions != before:
            logger.info("pressure on the node", extra={"before": list(before), "now": list(judged.conditions)})
        self._conditions.set_pressures(judged.conditions)

    # --- single pods' limits --------------------------------------------------------------------

    async def _enforce_limits(self, layout: Layout) -> bool:
        apart = layout is Layout.OWN_IMAGES
        over = await self._storage.breaches(self._evictor.candidates(), layers_apart=apart)
        for pod, found in over:
            await self._evict(pod, _limit_order(found))
        # At the same time: waits for pods whose volumes hang must not add up.
        await gather_all(*(self._evictor.cleaned_up(pod, within=CLEANUP_WITHIN) for pod, _ in over))
        return bool(over)

    # --- a node that runs short -----------------------------------------------------------------

    async def _relieve(
        self, thresholds: Sequence[Threshold], due: tuple[Threshold, ...], observations: Observations, layout: Layout
    ) -> float:
        first = due[0]
        resource = RESOURCE[first.signal]
        if not self._exhausted:  # else nothing has changed since: logged once
            self._events.node_event(WARNING, "EvictionThresholdMet", f"Attempting to reclaim {resource}")
            logger.warning(
                "the node runs short", extra={"resource": resource, "measured": measured(first, observations)}
            )
        freed = await self._reclaim(first.signal, layout)
        if freed:
            observations = observe(await self._stats.node())
            if not met(thresholds, observations, with_reclaim=True):
                logger.info("enough was freed without ending a pod", extra={"resource": resource, "removed": freed})
                return SHORTEST
        ranked = rank(first.signal, self._evictor.candidates(), await self._uses(first.signal), layout)
        chosen = next((each for each in ranked if not each.is_spared), None)
        if chosen is None:
            self._no_candidate(first, observations, ranked)
            return LONGEST
        self._exhausted = False
        for each in due:
            observed = observations.get(each.signal)
            if observed is not None:
                self._age.observe(max(0.0, (self._clock.now_ns() - observed.time_ns) / 1e9), each.signal)
        text = replace(
            pod_message(resource, chosen, due, observations), why=reason_for(first, observations, chosen, ranked, freed)
        )
        grace = HARD_GRACE if not first.soft else self._soft_grace(chosen.pod)
        await self._evict(chosen.pod, EvictionOrder(text=text, grace=grace, signal=first.signal, disruption=True))
        await self._evictor.cleaned_up(chosen.pod, within=CLEANUP_WITHIN)
        return SETTLE

    async def _uses(self, signal: str) -> Mapping[str, PodUse]:
        if signal in MEMORY_SIGNALS or signal == PIDS:
            return await self._stats.pods(disks=signal == PIDS)
        return await self._stats.disks()

    def _soft_grace(self, pod: Pod) -> int:
        """Return the grace of a soft eviction; as upstream a negative maximum results in the shortest."""
        own = pod.spec.termination_grace_period_seconds
        longest = self._rules.max_grace
        return max(1, min(longest, own) if own is not None else longest)

    async def _reclaim(self, signal: str, layout: Layout) -> list[str]:
        done = []
        for step in reclaims(signal, layout):
            try:
                await self._reclaimers[step]()
            except (PykubeletError, OSError) as error:
                logger.warning(f"{step.value} could not be removed", extra={"error": str(error)})
            done.append(step.value)
        return done

    def _no_candidate(self, threshold: Threshold, observations: Observations, ranked: Sequence[Candidate]) -> None:
        if not self._exhausted:
            logger.warning(
                "no pod can be ended to help the node",
                extra={"measured": measured(threshold, observations), "critical": len(ranked)},
            )
        self._exhausted = True

    async def _evict(self, pod: Pod, order: EvictionOrder) -> None:
        logger.warning("evicting", extra={"pod": readable(pod), "uid": uid_of(pod), "why": order.text.why})
        self._evictions.inc(order.signal)
        await self._evictor.evict(pod, order)


def _limit_order(over: Breach) -> EvictionOrder:
    text = EvictionText(message=over.message, why=over.why)
    return EvictionOrder(text=text, grace=HARD_GRACE, signal=over.signal, disruption=False)
