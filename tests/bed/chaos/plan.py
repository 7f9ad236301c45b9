"""What happens in each round of chaos, as data made from a seed: pods come and go while trouble begins and ends.

`plan_round` is pure: what a round does depends on the seed, its number and the pods that are wanted before it, and
those depend on the rounds before. So any round can be played again on a fresh node: `wanted_before` says which pods it
must have.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LONG_LIVED = tuple(f"keep-{number}" for number in range(3))
"""Their containers must live through everything."""
CHURN = tuple(f"churn-{number}" for number in range(5))
API_PODS = 3
"""At most so many pods come from the API server, where there is one."""
WINDOW = 1.2
"""Seconds in which the pods of a round come and go, and its troubles begin."""
LASTS = 1.0
"""Seconds that a trouble lasts at most."""
STEPS = (-3600.0, -90.0, -5.0, 0.0, 5.0, 90.0, 3600.0)
"""How far the agent's wall clock may be off."""

AGENT_KILLED, RUNTIME_KILLED, RUNTIME_FROZEN = "agent killed", "runtime killed", "runtime frozen"
DISK_FULL, CLOCK_STEPPED, CRASH = "disk full", "clock stepped", "container crashed"
NETWORK_SILENT, API_FROZEN = "network silent", "API server frozen"
ALONE = (AGENT_KILLED, RUNTIME_KILLED, RUNTIME_FROZEN, DISK_FULL, CLOCK_STEPPED, CRASH)
"""Troubles of a node without an API server."""
CLUSTER = (NETWORK_SILENT, API_FROZEN)
WEIGHTS = {AGENT_KILLED: 4, RUNTIME_KILLED: 2, RUNTIME_FROZEN: 2, DISK_FULL: 3, CLOCK_STEPPED: 2, CRASH: 2}
EXCLUDE = ({RUNTIME_KILLED, RUNTIME_FROZEN}, {NETWORK_SILENT, API_FROZEN})
"""Troubles of which a round has one at most."""
SPANS = {
    AGENT_KILLED: ("kill agent", "start agent"),
    RUNTIME_KILLED: ("kill runtime", "start runtime"),
    RUNTIME_FROZEN: ("freeze runtime", "thaw runtime"),
    DISK_FULL: ("fill disk", "empty disk"),
    NETWORK_SILENT: ("cut network", "mend network"),
    API_FROZEN: ("freeze API server", "thaw API server"),
}
"""How a trouble begins and how it ends."""


class Step(NamedTuple):
    at: float
    """Seconds after the round began."""
    what: str
    name: str = ""
    """The pod."""
    generation: str = ""
    seconds: float = 0.0
    """How far the clock is off from then on."""
    flavour: str = ""
    """What kind of pod."""


@dataclass(frozen=True, slots=True)
class Round:
    seed: int
    number: int
    kinds: tuple[str, ...]
    steps: tuple[Step, ...]


def plan_round(seed: int, number: int, wanted: Mapping[str, str], troubles: Sequence[str] = ALONE) -> Round:
    """`wanted`: pod name -> generation before the round."""
    dice = random.Random(f"{seed}/{number}")
    kinds = _choose(dice, troubles)
    now = dict(wanted)
    steps = _churn(dice, now)
    if API_FROZEN in troubles:
        # Users get no answer while it is frozen, so theirs come before.
        at = 0.0 if API_FROZEN in kinds else dice.uniform(0, WINDOW)
        steps += _api_churn(dice, now, number, at)
    touched = {step.name for step in steps}
    for kind in kinds:
        steps += _trouble(dice, kind, sorted(set(wanted) & set(CHURN) - touched))
    return Round(seed, number, kinds, tuple(sorted(steps, key=lambda step: step.at)))


def wanted_after(round: Round, wanted: Mapping[str, str]) -> dict[str, str]:
    now = dict(wanted)
    for step in round.steps:
        if step.what == "add":
            now[step.name] = step.generation
        elif step.what == "drop":
            del now[step.name]
    return now


def wanted_before(seed: int, number: int, troubles: Sequence[str] = ALONE) -> dict[str, str]:
    """What is wanted when round `number` begins."""
    now = dict.fromkeys(LONG_LIVED, "0")
    for earlier in range(number):
        now = wanted_after(plan_round(seed, earlier, now, troubles), now)
    return now


def is_api_pod(name: str) -> bool:
    return name.startswith("api-")


def _choose(dice: random.Random, troubles: Sequence[str]) -> tuple[str, ...]:
    chosen: list[str] = []
    for _ in range(dice.choice((1, 1, 1, 2, 2, 3))):
        left = [kind for kind in troubles if not _clashes(kind, chosen)]
        if left:
            chosen += dice.choices(left, [WEIGHTS.get(kind, 2) for kind in left])
    return tuple(chosen)


def _clashes(kind: str, chosen: Collection[str]) -> bool:
    return kind in chosen or any(kind in group and group & set(chosen) for group in EXCLUDE)


def _churn(dice: random.Random, now: dict[str, str]) -> list[Step]:
    """Some pods come, some go, some are replaced; no two steps are about one pod."""
    steps = []
    for name in dice.sample(CHURN, dice.randrange(1, 4)):
        at = dice.uniform(0, WINDOW)
        if name in now and dice.random() < 0.7:
            steps.append(Step(at, "drop", name))
            del now[name]
        else:
            # Two generations only: a pod often comes back with the very UID of the one that is just going.
            now[name] = str(dice.randrange(2))
            steps.append(_add(dice, at, name, now[name]))
    return steps


def _api_churn(dice: random.Random, now: dict[str, str], number: int, at: float) -> list[Step]:
    here = sorted(name for name in now if is_api_pod(name))
    if here and (len(here) == API_PODS or dice.random() < 0.4):
        gone = dice.choice(here)
        del now[gone]
        return [Step(at, "drop", gone)]
    name = f"api-{number}"
    now[name] = "0"
    return [_add(dice, at, name, "0")]


def _add(dice: random.Random, at: float, name: str, generation: str) -> Step:
    return Step(at, "add", name, generation, flavour=dice.choice(("plain", "plain", "stubborn", "volumes")))


def _trouble(dice: random.Random, kind: str, crashable: Sequence[str]) -> list[Step]:
    begin = dice.uniform(0.05, WINDOW)
    if kind == CLOCK_STEPPED:
        return [Step(begin, "step clock", seconds=dice.choice(STEPS))]
    if kind == CRASH:
        return [Step(begin, "crash", dice.choice(crashable))] if crashable else []
    first, last = SPANS[kind]
    steps = [Step(begin, first), Step(end := begin + dice.uniform(0.0, LASTS), last)]
    if kind == AGENT_KILLED and dice.random() < 0.33:
        # So soon that it is hit while it starts.
        again = end + dice.uniform(0.05, 0.9)
        steps += [Step(again, first), Step(again + dice.uniform(0.0, 0.3), last)]
    return steps
