"""Which pod is evicted first, and the messages of its status and event. Pure.

Upstream's order: pods without stats, then those that use more than they request, then by priority, then by how much
more than requested they use. For process ids priority and the number of processes decide. Critical pods are ranked
like others and skipped. Messages begin with upstream's text to the letter, spaces at the end included; our part gives
the signal, what was measured, and why this pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Container, Pod
from pykubelet.eviction.stats import ContainerUse, PodUse
from pykubelet.eviction.thresholds import (
    INODE_SIGNALS,
    MEMORY_SIGNALS,
    PIDS,
    RESOURCE,
    Counted,
    Layout,
    Observations,
    counted,
    shown,
    value_of,
)
from pykubelet.model.pod import is_critical, name_of, readable, uid_of
from pykubelet.model.pod_resources import EPHEMERAL_STORAGE, MEMORY, has_pod_level_resources, pod_requests
from pykubelet.settings.thresholds import Threshold


class Candidate(Struct, frozen=True, kw_only=True):
    pod: Pod
    use: PodUse | None
    used: int | None
    """Of the resource that is short; None when the pod has no stats."""
    requested: int = 0

    @property
    def priority(self) -> int:
        return self.pod.spec.priority or 0

    @property
    def over(self) -> int:
        """How much more than requested; negative when less, 0 when unknown."""
        return self.used - self.requested if self.used is not None else 0

    @property
    def is_spared(self) -> bool:
        return is_critical(self.pod)


def rank(signal: str, pods: Iterable[Pod], uses: Mapping[str, PodUse], layout: Layout) -> list[Candidate]:
    """Return candidates, the first to be evicted first."""
    candidates = [candidate(signal, pod, uses.get(uid_of(pod)), layout) for pod in pods]
    if signal == PIDS:
        return sorted(candidates, key=lambda each: (each.priority, each.used is not None, -(each.used or 0)))
    return sorted(candidates, key=lambda each: (each.used is not None, each.over <= 0, each.priority, -each.over))


def candidate(signal: str, pod: Pod, use: PodUse | None, layout: Layout) -> Candidate:
    if use is None:
        return Candidate(pod=pod, use=None, used=None, requested=requested(signal, pod))
    return Candidate(pod=pod, use=use, used=used(signal, use, layout), requested=requested(signal, pod))


def used(signal: str, use: PodUse, layout: Layout) -> int:
    if signal in MEMORY_SIGNALS:
        return use.memory or 0
    if signal == PIDS:
        return use.processes
    which = counted(signal, layout)
    return _inodes(use, which) if signal in INODE_SIGNALS else _bytes(use, which)


def _bytes(use: PodUse, which: Counted) -> int:
    total = use.volumes if which.volumes else 0
    for each in use.containers.values():
        total += (each.layer if which.layers else 0) + (each.logs if which.logs else 0)
    return total


def _inodes(use: PodUse, which: Counted) -> int:
    total = use.volumes_inodes if which.volumes else 0
    for each in use.containers.values():
        total += (each.layer_inodes if which.layers else 0) + (each.logs_inodes if which.logs else 0)
    return total


def requested(signal: str, pod: Pod) -> int:
    """Return the request for the signal's resource; inodes and process ids cannot be requested."""
    if signal == PIDS or signal in INODE_SIGNALS:
        return 0
    amount = pod_requests(pod).get(MEMORY if signal in MEMORY_SIGNALS else EPHEMERAL_STORAGE)
    return amount.value() if amount is not None else 0


OFFENDERS = "offending_containers"
OFFENDERS_USAGE = "offending_containers_usage"
OFFENDING_POD = "offending_pod"
OFFENDING_POD_USAGE = "offending_pod_usage"
STARVED = "starved_resource"


class EvictionText(Struct, frozen=True, kw_only=True):
    message: str
    """For status and condition."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    """Our explanation, for the event and for `explain`."""


def pod_message(resource: str, chosen: Candidate, due: Sequence[Threshold], observations: Observations) -> EvictionText:
    """Return upstream's text. `due` are the thresholds being acted on."""
    text = f"The node was low on resource: {resource}. "
    for each in due:
        observed = observations.get(each.signal)
        if RESOURCE[each.signal] == resource and observed is not None:
            available = shown(each.signal, observed.available)
            text += f"Threshold quantity: {limit_shown(each, observations)}, available: {available}. "
            break
    if chosen.use is None:
        return EvictionText(message=text)
    annotations: dict[str, str] = {}
    pod = chosen.pod
    whole = pod.spec.resources.requests.get(MEMORY) if pod.spec.resources is not None else None
    if resource == MEMORY and has_pod_level_resources(pod) and whole is not None and chosen.use.memory is not None:
        usage = str(Quantity.of_bytes(chosen.use.memory))
        text += _larger("Pod", name_of(pod), usage, str(Quantity.parse(whole)), resource)
        annotations |= {OFFENDING_POD: name_of(pod), OFFENDING_POD_USAGE: usage}
    offenders = _offenders(resource, pod, chosen.use)
    for name, usage, request in offenders:
        text += _larger("Container", name, usage, request, resource)
    annotations[OFFENDERS] = ",".join(name for name, _, _ in offenders)
    annotations[OFFENDERS_USAGE] = ",".join(usage for _, usage, _ in offenders)
    annotations[STARVED] = resource
    return EvictionText(message=text, annotations=annotations)


def _larger(kind: str, name: str, usage: str, request: str, resource: str) -> str:
    return f"{kind} {name} was using {usage}, request is {request}, has larger consumption of {resource}. "


def _offenders(resource: str, pod: Pod, use: PodUse) -> list[tuple[str, str, str]]:
    """Return (container, usage, request) of those that use more than they request; ephemeral ones cannot request."""
    specs: dict[str, Container] = {each.name: each for each in (*pod.spec.containers, *pod.spec.init_containers)}
    found = []
    for name, each in use.containers.items():
        amount = _container_use(resource, each)
        if name not in specs or amount is None:
            continue
        resources = specs[name].resources
        request = Quantity.parse((resources.requests.get(resource) if resources is not None else None) or 0)
        if Quantity.of_bytes(amount) > request:
            found.append((name, str(Quantity.of_bytes(amount)), str(request)))
    return found


def _container_use(resource: str, use: ContainerUse) -> int | None:
    if resource == MEMORY:
        return use.memory
    return use.layer + use.logs if resource == EPHEMERAL_STORAGE else None


def limit_shown(threshold: Threshold, observations: Observations) -> str:
    """Return the threshold as it was written, or the amount of its percentage."""
    if threshold.amount.quantity is not None:
        return str(threshold.amount.quantity)
    return shown(threshold.signal, value_of(threshold, observations[threshold.signal]))


def measured(threshold: Threshold, observations: Observations) -> str:
    """`memory.available 250Mi is below the hard threshold 300Mi`"""
    observed = observations[threshold.signal]
    kind = f"soft threshold (met for {threshold.grace_period:g} s)" if threshold.soft else "hard threshold"
    below = "is below" if value_of(threshold, observed) > observed.available else "has not got far enough above"
    return (
        f"{threshold.signal} {shown(threshold.signal, observed.available)} {below} the {kind} "
        f"{limit_shown(threshold, observations)}"
    )


def reason_for(
    threshold: Threshold,
    observations: Observations,
    chosen: Candidate,
    ranked: Sequence[Candidate],
    freed: Sequence[str],
) -> str:
    """Explain why this pod and not another. `freed` is what node-level reclaim removed before."""
    signal = threshold.signal
    text = f"{measured(threshold, observations)}."
    if freed:
        text += f" Removing {' and '.join(freed)} was not enough."
    may_go = [each for each in ranked if not each.is_spared]
    text += f" Of {len(may_go)} pods that may go this one is first: {standing(signal, chosen)}."
    others = [each for each in may_go if each is not chosen]
    if others:
        text += f" Next would be {readable(others[0].pod)}: {standing(signal, others[0])}."
    spared = sum(1 for each in ranked[: ranked.index(chosen)] if each.is_spared)
    if spared:
        text += f" {spared} ranked before it are critical and stay."
    return text


def standing(signal: str, each: Candidate) -> str:
    """`it uses 512Mi, 412Mi more than it requests, priority 0`"""
    if each.used is None:
        return f"nothing is known about its use, priority {each.priority}"
    if signal == PIDS:
        return f"priority {each.priority}, {each.used} processes"
    uses = shown(signal, each.used)
    if RESOURCE[signal] == "inodes":
        return f"it uses {uses} inodes, priority {each.priority}"
    what = "memory" if signal in MEMORY_SIGNALS else "disk"
    if each.over > 0:
        return f"it uses {uses} of {what}, {shown(signal, each.over)} more than it requests, priority {each.priority}"
    return f"it uses {uses} of {what}, within its request of {shown(signal, each.requested)}, priority {each.priority}"
