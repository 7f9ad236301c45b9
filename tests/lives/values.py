"""What the model remembers of a pod: who wanted it stopped, and every container it had."""

from __future__ import annotations

from dataclasses import dataclass, field

from pykubelet.hollow.cri_values import MemoryContainer
from tests.lives.history import Program, Spec


@dataclass(frozen=True, slots=True)
class Wish:
    """Somebody wants containers to stop."""

    at: float
    grace: float
    ends_pod: bool
    only: str = ""
    """One container; empty for all."""
    lasts: float = 0.0
    """Seconds for which it also holds for containers that are started later."""
    probe: bool = False
    """A probe fails: with policy Never the container is not started again."""


@dataclass(slots=True)
class Run:
    """One container of the runtime, from its creation to its end."""

    container: MemoryContainer
    created: float
    agent: int
    started: float | None = None
    ended: float | None = None
    pre: dict[int, int] = field(default_factory=dict)
    """preStop hooks by life of the agent."""
    post: int = 0
    told_by: int = 0
    """The life of the agent in which it ended."""
    lost: bool = False
    """The runtime could not tell its state, so nothing was left to be given a grace."""


@dataclass(slots=True)
class Wait:
    """A container's crash back-off as upstream counts it."""

    delay: float
    updated: float


@dataclass(slots=True)
class PodModel:
    uid: str
    spec: Spec
    grace: int
    added: float
    wishes: list[Wish] = field(default_factory=list)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    touched: list[float] = field(default_factory=list)
    """When something other than time happened to it."""
    unsure: bool = False
    """Its back-off may be longer than the model thinks."""
    orphaned: bool = False
    box_lost: bool = False
    rejected: bool = False
    """Admission said no, for instance because the node goes down."""
    gone: bool = False
    deletion_grace: int | None = None

    def program(self, name: str) -> Program:
        found: Program = next(each for each in self.spec["programs"] if each["name"] == name)
        return found

    @property
    def ends(self) -> bool:
        return any(wish.ends_pod for wish in self.wishes)

    def last(self, name: str) -> Run | None:
        runs = self.runs.get(name)
        return runs[-1] if runs else None
