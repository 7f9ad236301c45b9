"""Hints of several providers merged: the policies in a table, and every case against all combinations tried."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.cm.topology_manager import SINGLE_NUMA_NODE, Hint, Hints, Merger, mask_of, masks, nodes_of
from tests.unit.cm.machines import a_machine

P, N = True, False


def hint(preferred: bool, *nodes: int) -> Hint:
    return Hint(mask_of(nodes) if nodes else None, preferred)


@pytest.mark.parametrize(
    ("offers", "policy", "best", "admitted"),
    [
        # Nobody has an opinion: anywhere will do.
        ([{}, {}], "best-effort", hint(P, 0, 1), P),
        ([{"gpu": None}], "restricted", hint(P, 0, 1), P),
        ([{}], "single-numa-node", hint(P), P),
        # A resource that cannot be served anywhere.
        ([{"gpu": ()}], "best-effort", hint(N, 0, 1), P),
        ([{"gpu": ()}], "restricted", hint(N, 0, 1), N),
        ([{"gpu": ()}], "single-numa-node", hint(N), N),
        # Both can be on node 1 only.
        ([{"cpu": (hint(P, 0), hint(P, 1))}, {"gpu": (hint(P, 1),)}], "single-numa-node", hint(P, 1), P),
        # They prefer different nodes: nothing in common.
        ([{"cpu": (hint(P, 0),)}, {"gpu": (hint(P, 1),)}], "best-effort", hint(N, 0, 1), P),
        ([{"cpu": (hint(P, 0),)}, {"gpu": (hint(P, 1),)}], "restricted", hint(N, 0, 1), N),
        # A common node, but not what both prefer.
        ([{"cpu": (hint(P, 0), hint(N, 0, 1))}, {"gpu": (hint(P, 1),)}], "restricted", hint(N, 1), N),
        # Needs both nodes, and prefers that.
        ([{"cpu": (hint(P, 0, 1),)}, {"memory": (hint(P, 0, 1),)}], "restricted", hint(P, 0, 1), P),
        ([{"cpu": (hint(P, 0, 1),)}, {"memory": (hint(P, 0, 1),)}], "single-numa-node", hint(N), N),
        # The lower number of two equals.
        ([{"cpu": (hint(P, 1), hint(P, 0), hint(N, 0, 1))}], "best-effort", hint(P, 0), P),
    ],
)
def test_policies(offers: Sequence[Hints], policy: str, best: Hint, admitted: bool) -> None:
    assert Merger(policy=policy, nodes=(0, 1)).merge(offers) == (best, admitted)


def test_without_a_policy_everything_is_admitted_and_nothing_is_placed() -> None:
    assert Merger(policy="none", nodes=(0, 1)).merge([{"gpu": ()}]) == (Hint(None, False), True)


def test_nodes_near_each_other_are_preferred_when_asked_for() -> None:
    machine = a_machine(sockets=2, nodes_per_socket=2)
    offers: list[Hints] = [{"cpu": (hint(P, 1, 2), hint(P, 2, 3))}]
    nodes = tuple(node.id for node in machine.nodes)
    distances = {node.id: node.distances for node in machine.nodes}
    assert Merger(policy="best-effort", nodes=nodes).merge(offers)[0] == hint(P, 1, 2)
    assert Merger(policy="best-effort", nodes=nodes, distances=distances).merge(offers)[0] == hint(P, 2, 3)


# --- against every combination ------------------------------------------------------------------------------

some_hints = st.lists(
    st.builds(Hint, st.one_of(st.none(), st.sampled_from(list(masks(range(4))))), st.booleans()), max_size=5
)
some_offers = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.one_of(st.none(), some_hints), max_size=2), max_size=3
)
DISTANCES = {node.id: node.distances for node in a_machine(sockets=2, nodes_per_socket=2).nodes}


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(offers=some_offers, policy=st.sampled_from(["best-effort", "restricted", SINGLE_NUMA_NODE]), near=st.booleans())
def test_same_as_trying_every_combination(offers: list[Hints], policy: str, near: bool) -> None:
    distances = DISTANCES if near else None
    found = Merger(policy=policy, nodes=(0, 1, 2, 3), distances=distances).merge(offers)
    assert found == slow_merge(offers, policy, near)


def slow_merge(offers: list[Hints], policy: str, near: bool) -> tuple[Hint, bool]:
    """Combination by combination, the better of two kept, as the facts say it."""
    lists: list[list[Hint]] = []
    for offer in offers:
        if not offer:
            lists.append([Hint(None, True)])
        for hints in offer.values():
            lists.append([Hint(None, True)] if hints is None else list(hints) or [Hint(None, False)])
    if policy == SINGLE_NUMA_NODE:
        lists = [[h for h in hints if h.preferred and (h.nodes is None or h.nodes.bit_count() == 1)] for hints in lists]
    counts = [[h.nodes.bit_count() for h in hints if h.nodes is not None] for hints in lists]
    least = max((min(each) for each in counts if each), default=0)
    best: Hint | None = None
    for combo in itertools.product(*lists):
        common = 0b1111
        for each in combo:
            common &= 0b1111 if each.nodes is None else each.nodes
        places = {each.nodes for each in combo if each.nodes is not None}
        candidate = Hint(common, all(each.preferred for each in combo) and len(places) <= 1)
        if common:
            best = candidate if best is None else better(best, candidate, least, near and policy != SINGLE_NUMA_NODE)
    if best is None:
        best = Hint(0b1111, False)
    if policy == SINGLE_NUMA_NODE and best.nodes == 0b1111:
        best = Hint(None, best.preferred)
    return best, best.preferred or policy == "best-effort"


def better(current: Hint, candidate: Hint, least: int, near: bool) -> Hint:
    assert current.nodes is not None and candidate.nodes is not None
    if current.preferred != candidate.preferred:
        return current if current.preferred else candidate
    mine, other = current.nodes.bit_count(), candidate.nodes.bit_count()
    by_mask = min(current, candidate, key=lambda h: size_of(h.nodes or 0, near))
    if current.preferred or mine > least:
        return by_mask
    if mine == least:
        return by_mask if other == least else current
    if other > least:
        return current
    if other == least:
        return candidate
    return by_mask if other == mine else max(current, candidate, key=lambda h: (h.nodes or 0).bit_count())


def size_of(mask: int, near: bool) -> tuple[float, ...]:
    nodes = nodes_of(mask)
    far = sum(DISTANCES[a][b] for a in nodes for b in nodes) / len(nodes) ** 2 if near else 0.0
    return (len(nodes), far, mask)
