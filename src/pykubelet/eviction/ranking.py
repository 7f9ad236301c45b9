"""Which pod goes first. Pure.

Upstream's order (facts/node.md 4.3): pods without figures, then those that use more than they request, then by
priority, then by how much more than requested they use. For process ids priority and the number of processes decide.
Whether a pod may be evicted at all is asked afterwards: critical pods are ranked like others and passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.eviction.signals import INODE_SIGNALS, MEMORY_SIGNALS, PIDS, Counted, Layout, counted
from pykubelet.model.pod import is_critical, uid_of
from pykubelet.model.pod_resources import EPHEMERAL_STORAGE, MEMORY, pod_requests
from pykubelet.model.signals import PodUse


class Candidate(Struct, frozen=True, kw_only=True):
    pod: Pod
    use: PodUse | None
    used: int | None
    """Of what runs short; None when nothing is known about the pod."""
    requested: int = 0

    @property
    def priority(self) -> int:
        return self.pod.spec.priority or 0

    @property
    def over(self) -> int:
        """How much more than requested; negative when less, 0 when nobody knows."""
        return self.used - self.requested if self.used is not None else 0

    @property
    def is_spared(self) -> bool:
        return is_critical(self.pod)


def rank(signal: str, pods: Iterable[Pod], uses: Mapping[str, PodUse], layout: Layout) -> list[Candidate]:
    """The most deserving first."""
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
    """Nobody can request inodes or process ids."""
    if signal == PIDS or signal in INODE_SIGNALS:
        return 0
    amount = pod_requests(pod).get(MEMORY if signal in MEMORY_SIGNALS else EPHEMERAL_STORAGE)
    return amount.value() if amount is not None else 0
