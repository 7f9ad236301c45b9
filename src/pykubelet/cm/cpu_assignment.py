"""Which CPUs to take when some number of them is wanted. Pure; the order is upstream's.

`take_packed` fills the machine from whole NUMA nodes and sockets down to single threads, always from what has the
fewest CPUs left, so that big free pieces stay big. `take_distributed` spreads evenly over as few NUMA nodes as can
hold the request. Both return exactly the number requested or raise `NotEnoughCpus`; a CPU that is not in `available`
is never returned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from pykubelet.cm.errors import NotEnoughCpus
from pykubelet.model.topology import Cpus, Level, Topology


def take_packed(
    topology: Topology, available: Cpus, count: int, *, spread: bool = False, by_cache: bool = False
) -> Cpus:
    """`spread`: whole cores are not preferred; `by_cache`: stay within shared caches where that is possible."""
    pile = _Pile(topology, available, count, spread=spread)
    if pile.needed <= 0:
        return frozenset()
    if pile.needed > len(pile.free):
        raise NotEnoughCpus(requested=count, available=len(available))
    first, second = pile.coarse_levels
    pile.take_whole(first)
    pile.take_whole(second)
    if by_cache:
        pile.take_caches()
    if not spread:
        pile.take_whole("core")
    pile.take_single()
    return frozenset(pile.taken)


def take_distributed(topology: Topology, available: Cpus, count: int, *, group: int = 1, spread: bool = False) -> Cpus:
    """`group`: CPUs are allocated in multiples of this, such as all threads of a core."""
    if count <= 0:
        return frozenset()
    if group < 1 or count % group:
        return take_packed(topology, available, count, spread=spread)
    pile = _Pile(topology, available, count, spread=spread)
    if count > len(pile.free):
        raise NotEnoughCpus(requested=count, available=len(available))
    nodes = pile.ordered("numa")
    free = {node: len(pile.free_in("numa", node)) for node in nodes}
    fewest, most = _nodes_needed(topology, len(nodes), count, group)
    for size in range(fewest, most + 1):
        chosen = _best_share(nodes, free, size, count, group)
        if chosen is None:
            continue
        for node, share in chosen.items():
            # In steps, as upstream: first the even share, then group by group, which decides about cores.
            for part in share:
                pile.take(take_packed(topology, pile.free_in("numa", node), part, spread=spread))
        return frozenset(pile.taken)
    return take_packed(topology, available, count, spread=spread)


class _Pile:
    """CPUs still free, those taken so far and how many are still needed."""

    def __init__(self, topology: Topology, available: Cpus, needed: int, *, spread: bool) -> None:
        self._topology = topology
        self._spread = spread
        self.free = set(available & topology.all_cpus)
        self.needed = needed
        self.taken: set[int] = set()

    @property
    def coarse_levels(self) -> tuple[Level, Level]:
        return ("numa", "socket") if self._topology.is_numa_coarser else ("socket", "numa")

    def free_in(self, level: Level, key: int) -> Cpus:
        return self._topology.groups(level)[key] & self.free

    def take(self, cpus: Iterable[int]) -> None:
        chosen = set(cpus)
        self.taken |= chosen
        self.free -= chosen
        self.needed -= len(chosen)

    def take_whole(self, level: Level) -> None:
        """Every core, socket... that is free as a whole and not bigger than what is needed."""
        for key in self.ordered(level):
            members = self._topology.groups(level)[key]
            if len(members) <= self.needed and members <= self.free:
                self.take(members)

    def take_single(self) -> None:
        level: Level = "socket" if self._spread else "core"
        ordered = [cpu for key in self.ordered(level) for cpu in sorted(self.free_in(level, key))]
        self.take(ordered[: self.needed])

    def take_caches(self) -> None:
        for key in self.ordered("cache"):
            if self.needed >= self._topology.cpus_per_cache:
                self.take_whole("cache")
            if self.needed > 0:
                self._take_part_of_cache(key)
            if self.needed <= 0:
                return

    def _take_part_of_cache(self, key: int) -> None:
        """All that is still needed from one cache, from its lowest cores, or nothing."""
        threads = self._topology.threads_per_core
        free = self.free_in("cache", key)
        cores = sorted(self._topology.spanned("core", free))[: -(-self.needed // threads)]
        chosen = sorted(self._topology.within("core", cores) & self.free)
        if self.needed % 2 and threads > 1 and len(chosen) > self.needed:
            chosen.pop()
        if len(chosen) == self.needed:
            self.take(chosen)

    # --- order: fewest free CPUs first, then the lower number; inside coarser things in their order ---------

    def ordered(self, level: Level) -> list[int]:
        above = self._above(level)
        if above is None:
            return self._sorted(level, self.free)
        found: dict[int, None] = {}
        for key in self.ordered(above):
            found.update(dict.fromkeys(self._sorted(level, self.free_in(above, key))))
        return list(found)

    def _above(self, level: Level) -> Level | None:
        first, second = self.coarse_levels
        if level == "core":
            return second
        if level == "cache":
            return "numa"
        return first if level == second else None

    def _sorted(self, level: Level, cpus: Iterable[int]) -> list[int]:
        keys = self._topology.spanned(level, cpus)
        return sorted(keys, key=lambda key: (len(self.free_in(level, key)), key))


# --- even shares ------------------------------------------------------------------------------------------


def _nodes_needed(topology: Topology, free_nodes: int, count: int, group: int) -> tuple[int, int]:
    """The fewest NUMA nodes that could hold the request if they were empty, and the most that are of any use."""
    groups = math.ceil(len(topology.cpus) / group)
    per_node = math.ceil(groups / len(topology.cpu_nodes))
    wanted = count // group
    return math.ceil(wanted / per_node), min(wanted, free_nodes)


def _best_share(
    nodes: Sequence[int], free: dict[int, int], size: int, count: int, group: int
) -> dict[int, list[int]] | None:
    """What each node of the best combination of this size gives, in steps; None when no combination can."""
    best: tuple[float, tuple[int, ...], tuple[int, ...]] | None = None
    for combo in itertools.combinations(nodes, size):
        if best is not None and best[0] == 0:
            break
        for balance, rest in _fitting(combo, free, count, group):
            if best is None or balance < best[0]:
                best = (balance, combo, rest)
    if best is None:
        return None
    _, combo, rest = best
    even = _even(count, size, group)
    shares = {node: [even] if even else [] for node in combo}
    left = {node: free[node] - even for node in combo}
    for node in _striped(rest, left, count - even * size, group) or ():
        shares[node].append(group)
    return shares


def _fitting(
    combo: Sequence[int], free: dict[int, int], count: int, group: int
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Ways to share over these nodes: how unbalanced the machine is left, and which nodes give what does not divide."""
    even = _even(count, len(combo), group)
    if sum(free[node] // group for node in combo) * group < count or any(free[node] < even for node in combo):
        return
    after = {node: amount - even if node in combo else amount for node, amount in free.items()}
    remainder = count - even * len(combo)
    if remainder == 0:
        yield _deviation(after.values()), ()
        return
    able = [node for node in combo if after[node] >= group]
    for size in range(len(able), 0, -1):
        for subset in itertools.combinations(able, size):
            steps = _striped(subset, after, remainder, group)
            if steps is None:
                continue
            left = dict(after)
            for node in steps:
                left[node] -= group
            yield _deviation(left.values()), subset


def _even(count: int, nodes: int, group: int) -> int:
    return count // nodes // group * group


def _striped(subset: Sequence[int], free: dict[int, int], amount: int, group: int) -> list[int] | None:
    """Nodes that give a group in turn until the amount is there; None when they have not enough."""
    left = {node: free[node] for node in subset}
    steps: list[int] = []
    while len(steps) * group < amount:
        before = len(steps)
        for node in subset:
            if len(steps) * group < amount and left[node] >= group:
                left[node] -= group
                steps.append(node)
        if len(steps) == before:
            return None
    return steps


def _deviation(values: Iterable[int]) -> float:
    """Standard deviation to three digits, rounded as upstream rounds at both steps."""
    amounts = list(values)
    mean = _rounded(sum(amounts) / len(amounts))
    return _rounded(math.sqrt(sum((each - mean) ** 2 for each in amounts) / len(amounts)))


def _rounded(value: float) -> float:
    return math.floor(value * 1000 + 0.5) / 1000
