"""Resizes of pods in place: which can never happen, which goes first, and the two pod conditions that report them.

Whether a resize fits the node at this moment is decided by admission; carrying it out is `runtime/resize.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from pykubelet.api.quantity import ZERO
from pykubelet.api.types import Container, Pod, PodCondition, ResourceRequirements
from pykubelet.cm.cgroups import swap_limit
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.kit.clock import Clock, utc
from pykubelet.kit.metrics import Registry
from pykubelet.model.pod import QosClass, is_sidecar, qos_class, uid_of
from pykubelet.model.pod_resources import CPU, MEMORY, amount_of, differing, pod_requests, same_resources
from pykubelet.model.reasons import RESIZE_IN_PROGRESS, RESIZE_PENDING
from pykubelet.settings.settings import Settings

# --- rules ----------------------------------------------------------------------------------------------------


DEFERRED = "Deferred"
INFEASIBLE = "Infeasible"


class ResizeRules(Struct, frozen=True, kw_only=True):
    """What of this node's settings stands in the way of resizes."""

    init_containers: bool = True
    """Gate InPlacePodVerticalScalingInitContainers: also init containers that run to their end."""
    pod_level: bool = True
    """Gate InPlacePodLevelResourcesVerticalScaling."""
    pinned_cpus: bool = False
    """CPU manager policy static, without the gate that allows resizes beside it."""
    pinned_memory: bool = False
    """Memory manager policy static, without the gate that allows resizes beside it."""
    uses_swap: Callable[[Pod, Container], bool] = lambda pod, container: False


class Refusal(Struct, frozen=True, kw_only=True):
    """Why a resize can never happen on this node."""

    message: str
    detail: str
    """Label of the metric."""


def refusal(pod: Pod, allocated: Pod, rules: ResizeRules) -> Refusal | None:
    """Judge the request (`pod`) against what is allocated."""
    if _swaps(pod, allocated, rules):
        return Refusal(message="In-place resize of containers with swap is not supported.", detail="swap_limitation")
    if not rules.pod_level and not same_resources(pod.spec.resources, allocated.spec.resources):
        return Refusal(message="InPlacePodLevelResourcesVerticalScaling is disabled", detail="plr_feature_gate_off")
    if qos_class(pod) is not QosClass.GUARANTEED:
        return None
    text = 'Resize is infeasible for Guaranteed Pods alongside {} Manager policy "{}"'
    if rules.pinned_cpus and _request_differs(pod, allocated, CPU, rules):
        return Refusal(message=text.format("CPU", "static"), detail="guaranteed_pod_cpu_manager_static_policy")
    if rules.pinned_memory and _request_differs(pod, allocated, MEMORY, rules):
        return Refusal(message=text.format("Memory", "Static"), detail="guaranteed_pod_memory_manager_static_policy")
    return None


def _pairs(pod: Pod, allocated: Pod) -> Iterator[tuple[Container, Container]]:
    """Each container as it is requested and as it is allocated."""
    current = {each.name: each for each in (*allocated.spec.containers, *allocated.spec.init_containers)}
    for wanted in (*pod.spec.containers, *pod.spec.init_containers):
        if wanted.name in current:
            yield wanted, current[wanted.name]


def _swaps(pod: Pod, allocated: Pod, rules: ResizeRules) -> bool:
    """A container's part of the swap follows from its memory request; changing it needs a restart."""
    for wanted, current in _pairs(pod, allocated):
        before, after = amount_of(current.resources, MEMORY), amount_of(wanted.resources, MEMORY)
        if before.request == after.request or _memory_restarts(current):
            continue
        if rules.uses_swap(pod, wanted) or rules.uses_swap(allocated, current):
            return True
    return False


def _memory_restarts(container: Container) -> bool:
    policies = {each.resource_name: each.restart_policy for each in container.resize_policy}
    return policies.get(MEMORY) == "RestartContainer"


def _request_differs(pod: Pod, allocated: Pod, name: str, rules: ResizeRules) -> bool:
    init = {each.name for each in pod.spec.init_containers if not rules.init_containers and not is_sidecar(each)}
    return any(
        amount_of(wanted.resources, name).request != amount_of(current.resources, name).request
        for wanted, current in _pairs(pod, allocated)
        if wanted.name not in init
    )


def asks_for_resize(old: Pod, new: Pod) -> bool:
    """Whether an update of the pod changes any cpu or memory of it."""
    if differing(old.spec.resources, new.spec.resources):
        return True
    return any(differing(wanted.resources, before.resources) for wanted, before in _pairs(new, old))


def changes_between(old: Pod, new: Pod) -> Iterator[tuple[str, str, str]]:
    """(resource, requests or limits, increase/decrease/add/remove) of every change, for the metric."""
    for wanted, before in _pairs(new, old):
        for name in (MEMORY, CPU):
            was, now = amount_of(before.resources, name), amount_of(wanted.resources, name)
            for kind, a, b in (("requests", was.request, now.request), ("limits", was.limit, now.limit)):
                if a != b:
                    operation = (
                        "add" if a.is_zero() else "remove" if b.is_zero() else "increase" if b > a else "decrease"
                    )
                    yield name, kind, operation


def grows(pod: Pod, allocated: Pod) -> bool:
    """Whether the request is for more cpu or memory than is allocated; one that is not always fits."""
    before, after = pod_requests(allocated), pod_requests(pod)
    return any(after.get(name, ZERO) > before.get(name, ZERO) for name in (CPU, MEMORY))


def shrank(old: Pod, new: Pod) -> bool:
    """Whether the pod has less cpu or memory than before, by its status."""
    before, after = pod_requests(old, use_status=True), pod_requests(new, use_status=True)
    return any(after.get(name, ZERO) < before.get(name, ZERO) for name in (CPU, MEMORY))


def urgency(pod: Pod, allocated: Pod, pending_since: float | None) -> tuple[bool, int, bool, float]:
    """Sort key of pending resizes, smallest first: shrinking, important, Guaranteed, waiting longest."""
    return (
        grows(pod, allocated),
        -(pod.spec.priority or 0),
        qos_class(pod) is not QosClass.GUARANTEED,
        pending_since if pending_since is not None else float("inf"),
    )


def resize_text(what: str, pod: Pod, generation: int | None, error: str = "") -> str:
    """The event text: `Pod resize started: {"containers":[...],"generation":2}`."""
    summary: dict[str, Any] = {}
    for key, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        if containers:
            summary[key] = [{"name": each.name, "resources": _summary(each)} for each in containers]
    summary["generation"] = generation or 0
    if error:
        summary["error"] = error
    return f"Pod resize {what}: {json.dumps(summary, separators=(',', ':'))}"


def _summary(container: Container) -> dict[str, Any]:
    resources: dict[str, Any] = msgspec.to_builtins(container.resources) if container.resources is not None else {}
    # In upstream's order, so that equal events have equal texts from either kubelet.
    return {key: resources[key] for key in ("limits", "requests", "claims") if key in resources}


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

        An empty reason does not clear a recorded error, and the generation stays until the condition
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
        """Take over the conditions that the pod had before this agent started."""
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
        new = (reason, message, generation)
        if old is not None and (old.reason or "", old.message or "", old.observed_generation) == new:
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


def resize_rules(settings: Settings, spec: NodeSpec) -> ResizeRules:
    gates, managers = settings.gates, settings.config.managers
    pinned_cpus = managers.cpu_manager_policy == "static"
    pinned_memory = managers.memory_manager_policy == "Static"

    def uses_swap(pod: Pod, container: Container) -> bool:
        resources = container.resources or ResourceRequirements()
        return spec.cgroup_v2 and spec.swap_controller and swap_limit(pod, resources, spec) > 0

    return ResizeRules(
        init_containers=gates.enabled("InPlacePodVerticalScalingInitContainers"),
        pod_level=gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
        pinned_cpus=pinned_cpus and not gates.enabled("InPlacePodVerticalScalingExclusiveCPUs"),
        pinned_memory=pinned_memory and not gates.enabled("InPlacePodVerticalScalingExclusiveMemory"),
        uses_swap=uses_swap,
    )
