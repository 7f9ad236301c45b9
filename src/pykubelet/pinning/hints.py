"""Places on the machine as bit masks of NUMA nodes, and what a provider says about them.

A `HintProvider` hands out something that sits on NUMA nodes: CPUs, memory, devices. Before a container is admitted
each says where it could be served; `merge.py` picks one place for all; then each allocates there. Pure values and
the Protocol; who asks in which order is `topology_manager.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from pykubelet.api.types import Container, Pod

Mask = int
"""Bit n stands for NUMA node n."""


class Hint(Struct, frozen=True):
    nodes: Mask | None
    """Where; None = anywhere."""
    preferred: bool


NO_HINT = Hint(None, False)
"""What providers are given when nobody looks for a common place."""

Hints = Mapping[str, Sequence[Hint] | None]
"""By resource name. None: this resource may be anywhere; empty: it cannot be served anywhere."""


class HintProvider(Protocol):
    """All calls are quick and do not wait. Those that allocate raise `Refused`, are safe to repeat for a container
    that was served before, and give it the same then."""

    def hints(self, pod: Pod, container: Container) -> Hints:
        """Where the container could be served; empty when it asks for nothing of this provider."""
        ...

    def pod_hints(self, pod: Pod) -> Hints:
        """The same for all containers of the pod in one place."""
        ...

    def allocate(self, pod: Pod, container: Container, place: Hint) -> None: ...

    def allocate_pod(self, pod: Pod, place: Hint) -> None:
        """For a pod with amounts of its own (gate PodLevelResourceManagers): all of its containers."""
        ...

    def holders(self) -> frozenset[str]:
        """UIDs of pods that hold something."""
        ...

    def release(self, uid: str) -> None:
        """Give back what the pod holds. Holding nothing is fine."""
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
