"""One place for everything a container needs: the hints of all providers merged by the topology policies. Pure.

Upstream tries every combination of hints. Here equal intermediate results are joined, which gives the same answer
(the order of preference is total) and stays quick with eight NUMA nodes and several resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from pykubelet.pinning.hints import NO_HINT, Hint, Hints, Mask, is_narrower, mask_of, nodes_of
from pykubelet.pinning.options import SINGLE_NUMA_NODE

NONE: Final = "none"
BEST_EFFORT: Final = "best-effort"
RESTRICTED: Final = "restricted"

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
