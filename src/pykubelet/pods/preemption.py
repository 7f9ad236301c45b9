"""Which pods to stop so that a critical pod gets the resources it lacks.

Fewest Guaranteed pods first, then fewest Burstable, then BestEffort; within a class the pod that covers most
of what is missing, the smaller one when two cover the same. Pure: stopping them is the sync loop's work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pykubelet.api.types import Pod
from pykubelet.model.pod import QosClass, is_critical, qos_class
from pykubelet.model.pod_resources import CPU, MEMORY, requested_units
from pykubelet.model.problems import Shortage
from pykubelet.pods.predicates import InsufficientResource

EVENT_MESSAGE: Final = "Preempted in order to admit critical pod"
CONDITION_MESSAGE: Final = "Pod was preempted by Kubelet to accommodate a critical pod."

Missing = Mapping[str, int]


class NoVictims(Exception):
    """Not even stopping every lesser pod would free enough; the message is upstream's."""

    def __init__(self, missing: Missing) -> None:
        shown = "".join(f"(res: {name}, q: {amount}), " for name, amount in missing.items())
        super().__init__(f"no set of running pods found to reclaim resources: [{shown}]")
        resource, amount = next(iter(missing.items()))
        self.shortage = Shortage(resource=resource, missing=amount, preempting=True)
        """The first resource that is missing."""


def can_preempt(preemptor: Pod, other: Pod) -> bool:
    """A critical pod may displace any that is not; otherwise the higher priority decides, if both have one."""
    if is_critical(preemptor) and not is_critical(other):
        return True
    mine, theirs = preemptor.spec.priority, other.spec.priority
    return mine is not None and theirs is not None and mine > theirs


def choose_victims(preemptor: Pod, active: Sequence[Pod], lacking: Sequence[InsufficientResource]) -> list[Pod]:
    """The pods to stop, BestEffort ones first. Raises NoVictims."""
    missing = {each.resource: each.missing for each in lacking}
    by_class: dict[QosClass, list[Pod]] = {each: [] for each in QosClass}
    for pod in active:
        if can_preempt(preemptor, pod):
            by_class[qos_class(pod)].append(pod)
    best_effort = by_class[QosClass.BEST_EFFORT]
    burstable = by_class[QosClass.BURSTABLE]
    guaranteed = by_class[QosClass.GUARANTEED]
    if left := _after(missing, (*best_effort, *burstable, *guaranteed)):
        raise NoVictims(left)
    # Each class gives only what the lesser classes could not give even if they went entirely.
    from_guaranteed = _nearest(guaranteed, _after(missing, (*best_effort, *burstable)))
    from_burstable = _nearest(burstable, _after(missing, (*best_effort, *from_guaranteed)))
    from_best_effort = _nearest(best_effort, _after(missing, (*from_burstable, *from_guaranteed)))
    return [*from_best_effort, *from_burstable, *from_guaranteed]


def _nearest(pods: Iterable[Pod], missing: Missing) -> list[Pod]:
    left = list(pods)
    chosen: list[Pod] = []
    while missing:
        if not left:
            raise NoVictims(missing)
        best = min(left, key=lambda pod: (_distance(pod, missing), *_size(pod)))
        left.remove(best)
        chosen.append(best)
        missing = _after(missing, (best,))
    return chosen


def _distance(pod: Pod, missing: Missing) -> float:
    """How far the pod is from covering everything; each resource counts alike."""
    total = 0.0
    for name, amount in missing.items():
        rest = amount - requested_units(pod, name)
        if rest > 0:
            total += (rest / amount) ** 2
    return total


def _size(pod: Pod) -> tuple[int, int]:
    return requested_units(pod, MEMORY), requested_units(pod, CPU)


def _after(missing: Missing, gone: Iterable[Pod]) -> dict[str, int]:
    """What is still missing when these pods are gone."""
    victims = list(gone)
    left = {name: amount - sum(requested_units(pod, name) for pod in victims) for name, amount in missing.items()}
    return {name: amount for name, amount in left.items() if amount > 0}
