"""Chaos: pods come and go while the agent is killed at random moments, then while containerd is, then anything at once.

Afterwards the world must be exactly what the manifests say: nothing lost, nothing twice, nothing left over. The
random moments come from a fixed seed; the machine adds its own, so a violation may need several runs to come back.
PYKUBELET_CHAOS_SEED, PYKUBELET_CHAOS_ROUNDS and PYKUBELET_CHAOS_RUNTIME_ROUNDS change them; `python -m bench.endurance`
plays any number of rounds, in a cluster, too, and looks after each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.bed.chaos.node import Chaos, chaos_node
from tests.bed.chaos.plan import AGENT_KILLED, ALONE, LONG_LIVED, RUNTIME_KILLED, plan_round
from tests.bed.runtime import BedContainerd, running_containerd

pytestmark = [pytest.mark.node, pytest.mark.slow]

SEED = int(os.environ.get("PYKUBELET_CHAOS_SEED", "4"))
ROUNDS = int(os.environ.get("PYKUBELET_CHAOS_ROUNDS", "15"))
RUNTIME_ROUNDS = int(os.environ.get("PYKUBELET_CHAOS_RUNTIME_ROUNDS", "5"))


@pytest.fixture
def own_containerd() -> Iterator[BedContainerd]:
    """Not the shared one: it is going to be killed."""
    with running_containerd() as running:
        yield running


def test_nothing_is_lost_doubled_or_left_over(own_containerd: BedContainerd) -> None:
    with chaos_node(own_containerd) as chaos:
        chaos.want(dict.fromkeys(LONG_LIVED, "0"))
        fail_on(chaos, "before any harm was done", chaos.settled())
        fail_on(chaos, f"after {ROUNDS} kills of the agent", rounds(chaos, 0, ROUNDS, AGENT_KILLED))
        kills = rounds(chaos, ROUNDS, RUNTIME_ROUNDS, RUNTIME_KILLED)
        fail_on(chaos, f"after {RUNTIME_ROUNDS} kills of containerd", kills)
        fail_on(chaos, "after all kinds of trouble", rounds(chaos, ROUNDS + RUNTIME_ROUNDS, RUNTIME_ROUNDS, *ALONE))
        chaos.drop_all()
        fail_on(chaos, "after the last manifest went", chaos.settled())
        assert chaos.agent.stop() == 0


def rounds(chaos: Chaos, first: int, count: int, *troubles: str) -> list[str]:
    """One after the other without a pause, so that trouble meets what earlier trouble left."""
    found = []
    for number in range(first, first + count):
        found += chaos.play(plan_round(SEED, number, chaos.wanted, troubles))
    return found + chaos.settled()


def fail_on(chaos: Chaos, when: str, found: list[str]) -> None:
    if found:
        listed = "".join(f"\n  - {text}" for text in found)
        pytest.fail(
            f"{len(found)} violations {when} (seed {SEED}):{listed}\nthe agent's last lines:\n{chaos.agent.tail()}",
            pytrace=False,
        )
