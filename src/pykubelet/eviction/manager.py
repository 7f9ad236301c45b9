"""Watches the node and, when it runs short, frees what it can and then ends one pod after the other.

A look costs a handful of file reads; the kernel wakes us when memory crosses a threshold, and the nearer a signal is
to its own the sooner the next look. Node-level things go first, always, and are followed by a new measurement. At
most one pod goes at a time, and the next look waits until its resources are back.
Does not cover: judging (thresholds.py), ranking (ranking.py), texts (messages.py), limits of single pods (limits.py).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct, field

from pykubelet.api.types import Pod
from pykubelet.clients.host.port import MemoryAlarms
from pykubelet.eviction.local_storage import Breach, StorageLimits
from pykubelet.eviction.pressure import LONGEST, SHORTEST, AlarmKeeper, PressureBoard, next_look
from pykubelet.eviction.ranking import Candidate, Told, measured, pod_message, rank, reason_for
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
from pykubelet.kit.clock import Clock
from pykubelet.kit.mailbox import Signal
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import PykubeletError
from pykubelet.model.events import EventSink
from pykubelet.model.pod import readable, uid_of
from pykubelet.model.reasons import WARNING
from pykubelet.model.stats import NodeSignals, PodUse
from pykubelet.settings.thresholds import Threshold

logger = logging.getLogger(__name__)

HARD_GRACE: Final = 1
SETTLE: Final = 0.5
"""Seconds after a pod's end until the node's figures can be believed."""
CLEANUP_WITHIN: Final = 30.0
MIN_GAP: Final = 0.2
"""Seconds between two looks, however often the kernel calls."""


class Order(Struct, frozen=True, kw_only=True):
    """One pod's end."""

    told: Told
    grace: int
    signal: str
    disruption: bool
    """Whether the pod gets the condition DisruptionTarget: not when it broke a limit of its own."""


class Evictor(Protocol):
    async def evict(self, pod: Pod, order: Order) -> None:
        """End the pod with that status; returns when its containers have stopped or their time is over."""
        ...

    async def cleaned_up(self, pod: Pod, *, within: float) -> bool:
        """Wait until everything the pod held is given back."""
        ...

    def is_leaving(self, pod: Pod) -> bool:
        """Whether it was evicted already."""
        ...


class NodeFigures(Protocol):
    async def node(self) -> NodeSignals: ...

    async def pods(self, *, disks: bool) -> Mapping[str, PodUse]:
        """Memory of each pod; with `disks` everything, processes too."""
        ...

    async def disks(self) -> Mapping[str, PodUse]: ...


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
        *,
        figures: NodeFigures,
        storage: StorageLimits,
        active: Callable[[], Sequence[Pod]],
        evictor: Evictor,
        reclaimers: Mapping[Reclaim, Callable[[], Awaitable[None]]],
        board: PressureBoard,
        alarms: MemoryAlarms | None,
        rules: EvictionRules,
        events: EventSink,
        clock: Clock,
        metrics: Registry,
    ) -> None:
        self._figures = figures
        self._storage = storage
        self._active = active
        self._evictor = evictor
        self._reclaimers = reclaimers
        self._board = board
        self._rules = rules
        self._events = events
        self._clock = clock
        self._state = WatchState()
        self._wake = Signal()
        self._alarms = AlarmKeeper(alarms=alarms, groups=rules.groups, wake=self._wake.set)
        self._problem = ""
        self._nobody_told = False
        self._evictions = metrics.counter("kubelet_evictions", "Pods evicted, by signal.", ("eviction_signal",))
        self._age = metrics.histogram(
            "kubelet_eviction_stats_age_seconds", "Age of the figures a pod was evicted by.", ("eviction_signal",)
        )

    async def run(self) -> None:
        try:
            while True:
                began = self._clock.monotonic()
                pause = await self._guarded_look()
                await self._wake.wait(at_most=pause)
                await self._clock.sleep(max(0.0, MIN_GAP - (self._clock.monotonic() - began)))
        finally:
            self._alarms.close()

    def snapshot(self) -> dict[str, object]:
        return {
            "pressure": list(self._board.held()),
            "met": [each.signal for each in self._state.met],
            "kernelAlarms": sorted(self._alarms.active),
            "problem": self._problem,
        }

    async def _guarded_look(self) -> float:
        try:
            pause = await self.look()
        except (PykubeletError, OSError) as error:
            if str(error) != self._problem:
                logger.warning("the node's resources cannot be judged", extra={"error": str(error)})
            self._problem = str(error)
            return LONGEST
        self._problem = ""
        return pause

    async def look(self) -> float:
        """One look at the node, with all that follows from it; seconds until the next."""
        rules = self._rules
        if not rules.thresholds and not rules.local_storage:
            return LONGEST
        signals = await self._figures.node()
        layout, seen = layout_of(signals), observe(signals)
        thresholds = effective(rules.thresholds, layout, pods_enforced=rules.pods_enforced)
        now = self._clock.monotonic()
        judged = judge(self._state, thresholds, seen, now=now, transition=rules.transition)
        self._state = judged.state
        self._tell_pressure(judged)
        if rules.local_storage and await self._enforce_limits(layout):
            return SETTLE
        if judged.due:
            return await self._relieve(thresholds, judged.due, seen, layout)
        self._nobody_told = False
        self._alarms.update(thresholds, signals)
        return self._pause(thresholds, judged, seen)

    def _pause(self, thresholds: Sequence[Threshold], judged: Judgement, seen: Observations) -> float:
        pause = next_look(thresholds, seen)
        if judged.next_due is not None:
            pause = min(pause, max(SHORTEST / 10, judged.next_due))
        return min(pause, max(SHORTEST, self._storage.due_in())) if self._rules.local_storage else pause

    def _tell_pressure(self, judged: Judgement) -> None:
        before = self._board.held()
        if judged.conditions != before:
            logger.info("pressure on the node", extra={"before": list(before), "now": list(judged.conditions)})
        self._board.set(judged.conditions)

    # --- single pods' limits --------------------------------------------------------------------

    async def _enforce_limits(self, layout: Layout) -> bool:
        apart = layout is Layout.OWN_IMAGES
        over = await self._storage.breaches(self._pods(), layers_apart=apart)
        for pod, found in over:
            await self._evict(pod, _limit_order(found))
        # All together: pods whose volumes hang must not add up.
        await gather_all(*(self._evictor.cleaned_up(pod, within=CLEANUP_WITHIN) for pod, _ in over))
        return bool(over)

    def _pods(self) -> list[Pod]:
        return [pod for pod in self._active() if not self._evictor.is_leaving(pod)]

    # --- a node that runs short -----------------------------------------------------------------

    async def _relieve(
        self, thresholds: Sequence[Threshold], due: tuple[Threshold, ...], seen: Observations, layout: Layout
    ) -> float:
        first = due[0]
        resource = RESOURCE[first.signal]
        if not self._nobody_told:  # else nothing has changed since: say it once
            self._events.node_event(WARNING, "EvictionThresholdMet", f"Attempting to reclaim {resource}")
            logger.warning("the node runs short", extra={"resource": resource, "measured": measured(first, seen)})
        freed = await self._reclaim(first.signal, layout)
        if freed:
            seen = observe(await self._figures.node())
            if not met(thresholds, seen, with_reclaim=True):
                logger.info("enough was freed without ending a pod", extra={"resource": resource, "removed": freed})
                return SHORTEST
        ranked = rank(first.signal, self._pods(), await self._uses(first.signal), layout)
        chosen = next((each for each in ranked if not each.is_spared), None)
        if chosen is None:
            self._nobody_left(first, seen, ranked)
            return LONGEST
        self._nobody_told = False
        for each in due:
            observed = seen.get(each.signal)
            if observed is not None:
                self._age.observe(max(0.0, (self._clock.now_ns() - observed.time_ns) / 1e9), each.signal)
        upstream = pod_message(resource, chosen, due, seen)
        why = reason_for(first, seen, chosen, ranked, freed)
        told = Told(message=upstream.message, annotations=upstream.annotations, why=why)
        grace = HARD_GRACE if not first.soft else self._soft_grace(chosen.pod)
        await self._evict(chosen.pod, Order(told=told, grace=grace, signal=first.signal, disruption=True))
        await self._evictor.cleaned_up(chosen.pod, within=CLEANUP_WITHIN)
        return SETTLE

    async def _uses(self, signal: str) -> Mapping[str, PodUse]:
        if signal in MEMORY_SIGNALS or signal == PIDS:
            return await self._figures.pods(disks=signal == PIDS)
        return await self._figures.disks()

    def _soft_grace(self, pod: Pod) -> int:
        """A negative maximum comes out as the shortest grace there is, as upstream has it."""
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

    def _nobody_left(self, threshold: Threshold, seen: Observations, ranked: Sequence[Candidate]) -> None:
        if not self._nobody_told:
            logger.warning(
                "no pod can be ended to help the node",
                extra={"measured": measured(threshold, seen), "critical": len(ranked)},
            )
        self._nobody_told = True

    async def _evict(self, pod: Pod, order: Order) -> None:
        logger.warning("evicting", extra={"pod": readable(pod), "uid": uid_of(pod), "why": order.told.why})
        self._evictions.inc(order.signal)
        await self._evictor.evict(pod, order)


def _limit_order(over: Breach) -> Order:
    return Order(told=Told(message=over.message, why=over.why), grace=HARD_GRACE, signal=over.signal, disruption=False)
