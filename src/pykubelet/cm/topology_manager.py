"""Admission by topology: collects the hints of every provider, merges them by the policy, lets every provider allocate.

A `HintProvider` allocates something that sits on NUMA nodes: CPUs, memory, devices. With scope container each
container gets its own place, with scope pod all containers the same one. Providers come in the order they were
added; upstream's order is devices, CPUs, memory. An allocation that fails is undone by the caller, which knows what
the pod had before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

from pykubelet.api.types import Container, Pod
from pykubelet.cm.errors import NotAligned, Refused, ResourceManagerError
from pykubelet.cm.metrics import NUMA_NODE, SCOPES, ResourceManagerMetrics
from pykubelet.cm.requests import containers_of
from pykubelet.kit.clock import Clock
from pykubelet.model.pod_resources import has_pod_level_resources
from pykubelet.model.topology import Topology

# --- options of the policy ------------------------------------------------------------------------------------
# The names were checked with the rest of the configuration.


TOPOLOGY_FIELD: Final = "topologyManagerPolicyOptions"
CLOSEST: Final = "prefer-closest-numa-nodes"
MAX_NODES: Final = "max-allowable-numa-nodes"
DEFAULT_MAX_NODES: Final = 8
SINGLE_NUMA_NODE: Final = "single-numa-node"
# As upstream's language reads a boolean.
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


class TopologyOptions(Struct, frozen=True, kw_only=True):
    closest: bool = False
    """Of equally many NUMA nodes those nearest to each other."""
    max_nodes: int = DEFAULT_MAX_NODES


def topology_options(given: Mapping[str, str], *, topology: Topology) -> TopologyOptions:
    """The options of the topology policies, for a policy other than none."""
    closest = CLOSEST in given and option_value(TOPOLOGY_FIELD, CLOSEST, given[CLOSEST])
    most = DEFAULT_MAX_NODES
    if MAX_NODES in given:
        try:
            most = int(given[MAX_NODES])
        except ValueError as err:
            raise ResourceManagerError(
                f"{TOPOLOGY_FIELD}: {MAX_NODES}: {given[MAX_NODES][:40]!r} is not a number"
            ) from err
        if most < DEFAULT_MAX_NODES:
            raise ResourceManagerError(f"{TOPOLOGY_FIELD}: {MAX_NODES} must be at least {DEFAULT_MAX_NODES}")
    if len(topology.nodes) > most:
        raise ResourceManagerError(
            f"topologyManagerPolicy: this machine has {len(topology.nodes)} NUMA nodes, more than the {most} that "
            f"are allowed; raise {MAX_NODES} in {TOPOLOGY_FIELD} to accept slow admission"
        )
    if closest and not all(node.distances for node in topology.nodes):
        raise ResourceManagerError(
            f"{TOPOLOGY_FIELD}: {CLOSEST}: this machine does not tell the distances of NUMA nodes"
        )
    return TopologyOptions(closest=closest, max_nodes=most)


def option_value(field: str, name: str, text: str) -> bool:
    value = _BOOLEANS.get(text)
    if value is None:
        raise ResourceManagerError(f"{field}: {name}: {text[:40]!r} must be true or false")
    return value


# --- hints: places as bit masks of NUMA nodes -----------------------------------------------------------------


Mask = int
"""Bit n stands for NUMA node n."""


class Hint(Struct, frozen=True):
    nodes: Mask | None
    """Where; None = anywhere."""
    preferred: bool


NO_HINT = Hint(None, False)
"""What providers get when no common place is needed."""

Hints = Mapping[str, Sequence[Hint] | None]
"""By resource name. None: this resource may be anywhere; empty: it cannot be served anywhere."""


class HintProvider(Protocol):
    """All calls are quick and do not wait. Those that allocate raise `Refused`, are safe to repeat for a container
    that was served before, and then allocate the same."""

    def hints(self, pod: Pod, container: Container) -> Hints:
        """Where the container could be served; empty when it requests nothing of this provider."""
        ...

    def pod_hints(self, pod: Pod) -> Hints:
        """The same for all containers of the pod in one place."""
        ...

    def allocate(self, pod: Pod, container: Container, place: Hint) -> None: ...

    def allocate_pod(self, pod: Pod, place: Hint) -> None:
        """For a pod with amounts of its own (gate PodLevelResourceManagers): all of its containers."""
        ...

    def holders(self) -> frozenset[str]:
        """UIDs of pods with an allocation."""
        ...

    def release(self, uid: str) -> None:
        """Release what the pod has, if anything."""
        ...


def mask_of(nodes: Iterable[int]) -> Mask:
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


def nodes_of(mask: Mask) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def masks(nodes: Iterable[int]) -> Iterator[Mask]:
    """Every non-empty set of these nodes, small ones first."""
    ordered = sorted(nodes)
    for size in range(1, len(ordered) + 1):
        for combo in itertools.combinations(ordered, size):
            yield mask_of(combo)


def is_narrower(one: Mask, other: Mask) -> bool:
    """Fewer nodes, or as many with lower numbers."""
    return (one.bit_count(), one) < (other.bit_count(), other)


# --- merging: one place for everything a container needs ------------------------------------------------------
# Upstream tries every combination of hints. Here equal intermediate results are joined, which gives the same answer
# (the order of preference is total) and stays quick with eight NUMA nodes and several resources.


NONE: Final = "none"
BEST_EFFORT: Final = "best-effort"

_ANYWHERE: Final = (Hint(None, True),)
_NOWHERE: Final = (Hint(None, False),)


class Merger(Struct, frozen=True, kw_only=True):
    policy: str
    nodes: tuple[int, ...]
    """All NUMA nodes of the machine."""
    distances: Mapping[int, tuple[int, ...]] | None = None
    """Set when nodes near each other are preferred."""

    def merge(self, offers: Sequence[Hints]) -> tuple[Hint, bool]:
        """The place for these offers, one for each provider, and whether the policy admits it."""
        if self.policy == NONE:
            return NO_HINT, True
        lists = list(spread_out(offers))
        if self.policy == SINGLE_NUMA_NODE:
            lists = [[hint for hint in hints if _is_single(hint)] for hints in lists]
        best = self._best(lists)
        if self.policy == SINGLE_NUMA_NODE and best.nodes == mask_of(self.nodes):
            best = Hint(None, best.preferred)
        return best, best.preferred or self.policy == BEST_EFFORT

    def _best(self, lists: Sequence[Sequence[Hint]]) -> Hint:
        everywhere = mask_of(self.nodes)
        least = max((_fewest_nodes(hints) for hints in lists), default=0)
        found = [hint for hint in _combined(lists, everywhere) if hint.nodes]
        if not found:
            return Hint(everywhere, False)
        return min(found, key=lambda hint: self._rank(hint, least))

    def _rank(self, hint: Hint, least: int) -> tuple[float, ...]:
        """Preferred ones first. Of the others those that span just what the greediest resource needs at least,
        then smaller ones, the biggest of them first, then bigger ones."""
        assert hint.nodes is not None
        count = hint.nodes.bit_count()
        size = (count, self._distance(hint.nodes), hint.nodes)
        if hint.preferred:
            return (0, 0, 0, *size)
        if count == least:
            return (1, 0, 0, *size)
        return (1, 1, -count, *size) if count < least else (1, 2, 0, *size)

    def _distance(self, mask: Mask) -> float:
        if self.distances is None or self.policy == SINGLE_NUMA_NODE:
            return 0.0
        members = nodes_of(mask)
        total = sum(self._between(one, other) for one in members for other in members)
        return total / len(members) ** 2

    def _between(self, one: int, other: int) -> int:
        assert self.distances is not None
        row = self.distances[one]
        # The kernel lists distances to the nodes that exist, in their order.
        return row[self.nodes.index(other)]


def spread_out(offers: Iterable[Hints]) -> Iterable[Sequence[Hint]]:
    """One list for each resource; a provider without opinion agrees to any place."""
    for offer in offers:
        if not offer:
            yield _ANYWHERE
        for hints in offer.values():
            if hints is None:
                yield _ANYWHERE
            else:
                yield hints or _NOWHERE


def _is_single(hint: Hint) -> bool:
    return hint.preferred and (hint.nodes is None or hint.nodes.bit_count() == 1)


def _fewest_nodes(hints: Iterable[Hint]) -> int:
    narrowest: Mask | None = None
    for hint in hints:
        if hint.nodes is not None and (narrowest is None or is_narrower(hint.nodes, narrowest)):
            narrowest = hint.nodes
    return 0 if narrowest is None else narrowest.bit_count()


def _combined(lists: Sequence[Sequence[Hint]], everywhere: Mask) -> set[Hint]:
    """What remains of each combination: the nodes common to all; preferred only while all agree on the same."""
    agreed: set[Mask | None] = {None}
    """All hints so far preferred and for exactly this place."""
    mixed: set[Mask] = set()
    for hints in lists:
        next_agreed: set[Mask | None] = set()
        next_mixed: set[Mask] = set()
        for hint in set(hints):
            for place in agreed:
                if hint.preferred and (place is None or hint.nodes is None or place == hint.nodes):
                    next_agreed.add(hint.nodes if place is None else place)
                else:
                    next_mixed.add(_common(everywhere, place, hint.nodes))
            next_mixed.update(_common(everywhere, place, hint.nodes) for place in mixed)
        agreed, mixed = next_agreed, next_mixed
    return {Hint(_common(everywhere, place), True) for place in agreed} | {Hint(place, False) for place in mixed}


def _common(everywhere: Mask, *places: Mask | None) -> Mask:
    for place in places:
        everywhere &= everywhere if place is None else place
    return everywhere


CONTAINER: Final = "container"
POD: Final = "pod"


class TopologyManager:
    def __init__(
        self,
        *,
        merger: Merger,
        scope: str,
        providers: Sequence[HintProvider],
        metrics: ResourceManagerMetrics,
        clock: Clock,
        pod_level: bool = False,
    ) -> None:
        self._clock = clock
        self._merger = merger
        self._scope = scope
        self._providers = list(providers)
        self._metrics = metrics
        self._pod_level = pod_level
        if merger.policy != NONE:
            metrics.show_alignment(*((each, NUMA_NODE) for each in SCOPES))

    @property
    def providers(self) -> Sequence[HintProvider]:
        return self._providers

    def admit(self, pod: Pod) -> None:
        """Allocate everything for the pod; Refused when that cannot be."""
        self._metrics.admissions.inc()
        begun = self._clock.monotonic()
        try:
            if self._merger.policy == NONE:
                self._allocate_containers(pod, NO_HINT)
            elif self._scope == POD:
                self._admit_pod(pod)
            else:
                self._admit_containers(pod)
        except Refused:
            if self._merger.policy != NONE:
                self._metrics.admission_errors.inc()
            raise
        finally:
            self._metrics.admission_time.observe((self._clock.monotonic() - begun) * 1000)

    def _admit_containers(self, pod: Pod) -> None:
        for container in containers_of(pod):
            place = self._place(CONTAINER, pod, [each.hints(pod, container) for each in self._providers])
            for provider in self._providers:
                provider.allocate(pod, container, place)
            self._aligned(CONTAINER)

    def _admit_pod(self, pod: Pod) -> None:
        place = self._place(POD, pod, [each.pod_hints(pod) for each in self._providers])
        if self._pod_level and has_pod_level_resources(pod):
            for provider in self._providers:
                provider.allocate_pod(pod, place)
        else:
            self._allocate_containers(pod, place)
        self._aligned(POD)

    def _allocate_containers(self, pod: Pod, place: Hint) -> None:
        for container in containers_of(pod):
            for provider in self._providers:
                provider.allocate(pod, container, place)

    def _place(self, scope: str, pod: Pod, offers: Sequence[Hints]) -> Hint:
        place, admitted = self._merger.merge(offers)
        if admitted:
            return place
        if self._merger.policy == SINGLE_NUMA_NODE:
            self._metrics.unaligned.inc(scope, NUMA_NODE)
        if self._pod_level and has_pod_level_resources(pod):
            under = "with a container-level" if scope == CONTAINER else "under pod-scope"
            raise NotAligned(f"Pod Scope pod with pod-level resources failed admission {under} topology manager")
        raise NotAligned

    def _aligned(self, scope: str) -> None:
        if self._merger.policy == SINGLE_NUMA_NODE:
            self._metrics.aligned.inc(scope, NUMA_NODE)
