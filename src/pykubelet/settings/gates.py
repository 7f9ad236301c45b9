"""Feature gates: which exist, which are on, and why a setting of one is refused.

A Gates value is made once from the merged `featureGates` map and asked with `enabled("Name")`.
Covers the AllAlpha and AllBeta switches, locked gates and gates that need others.
Does not cover where the map comes from (load.py) nor the table itself (gate_table.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from pykubelet.settings.gate_table import KUBELET_GATES, OTHER_GATES
from pykubelet.settings.problems import SettingsError, hint

WITHOUT_EFFECT = {"KubeletSeparateDiskGC": "images and writable layers on different disks are always told apart"}
"""Gates of features that cannot be switched off here, and why."""

# These two switch every gate of a stage at once; a gate named by itself still wins.
GROUP_SWITCHES = {"AllAlpha": "Alpha", "AllBeta": "Beta"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One feature gate as Kubernetes 1.36 knows it."""

    name: str
    default: bool
    stage: str
    locked: bool
    needs: tuple[str, ...]
    kubelet: bool
    """A kubelet looks at it; False: another component's gate, accepted and without effect."""


def _rows(text: str, *, kubelet: bool) -> Iterator[Gate]:
    for line in text.split("\n"):
        words = line.split()
        if not words:
            continue
        needs = tuple(words[-1].split(",")) if "needs" in words else ()
        yield Gate(
            name=words[0],
            default=words[1] == "on",
            stage=words[2],
            locked="locked" in words,
            needs=needs,
            kubelet=kubelet,
        )


@cache
def known_gates() -> Mapping[str, Gate]:
    """Every gate name that may be set, with its defaults."""
    rows = [*_rows(KUBELET_GATES, kubelet=True), *_rows(OTHER_GATES, kubelet=False)]
    return MappingProxyType({gate.name: gate for gate in rows})


@dataclass(frozen=True, slots=True)
class Gates:
    """The effective feature gates. `chosen` holds only what the operator set."""

    chosen: Mapping[str, bool]

    def enabled(self, name: str) -> bool:
        """Whether the gate is on. Asking for an unknown name is a bug of the caller and raises."""
        gate = known_gates().get(name)
        if gate is None:
            raise KeyError(f"unknown feature gate {name}")
        if name in self.chosen:
            return self.chosen[name]
        if gate.locked:
            return gate.default
        for switch, stage in GROUP_SWITCHES.items():
            if gate.stage == stage and switch in self.chosen:
                return self.chosen[switch]
        return gate.default

    def warnings(self) -> list[str]:
        """What an operator should hear about gates that are on their way out."""
        lines = []
        for name in sorted(self.chosen):
            gate = known_gates().get(name)
            if name in WITHOUT_EFFECT and gate is not None and self.chosen[name] != gate.default:
                lines.append(f"featureGates: {name} is accepted, without effect: {WITHOUT_EFFECT[name]}")
            if gate is not None and gate.stage in ("GA", "Deprecated"):
                lines.append(f"featureGates: {name} is {gate.stage} and the gate will be removed in a future release")
        return lines


def gate_problems(chosen: Mapping[str, bool]) -> list[str]:
    """Every reason why this map of gates cannot be used."""
    problems = []
    known = known_gates()
    for name, value in sorted(chosen.items()):
        if name in GROUP_SWITCHES:
            continue
        gate = known.get(name)
        if gate is None:
            problems.append(f"unrecognized feature gate: {name}{hint(name, known)}")
        elif gate.locked and value != gate.default:
            problems.append(
                f"cannot set feature gate {name} to {_word(value)}, feature is locked to {_word(gate.default)}"
            )
    gates = Gates(dict(chosen))
    for gate in known.values():
        missing = [need for need in gate.needs if not gates.enabled(need)]
        if missing and gates.enabled(gate.name):
            problems.append(f"feature gate {gate.name} is on but needs {', '.join(missing)}, which is off")
    return problems


def make_gates(chosen: Mapping[str, bool]) -> Gates:
    """Check the map and freeze it; raises SettingsError with every problem."""
    problems = gate_problems(chosen)
    if problems:
        raise SettingsError(problems)
    return Gates(MappingProxyType(dict(chosen)))


def _word(value: bool) -> str:
    return "true" if value else "false"
