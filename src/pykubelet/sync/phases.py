"""The life of a pod on this node as one enum, one table and one store.

Pod workers are the only writers; status, volumes, probes and garbage collection read through the
questions at the bottom. Until the first housekeeping pass (`mark_synced`) the agent has not seen the
whole truth, so questions about pods it does not know are answered in the way that removes nothing.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from pykubelet.api.types import Pod
from pykubelet.model.errors import IllegalMove
from pykubelet.model.pod import PodUID

STORY_LENGTH = 12


class Phase(enum.Enum):
    SYNCING = "syncing"
    """The pod is wanted: bring the runtime to what the spec says, again and again."""
    TERMINATING = "terminating"
    """Containers are being stopped; nothing may be started any more."""
    TERMINATED = "terminated"
    """Nothing runs; volumes, cgroups and the like are being given back."""
    FINISHED = "finished"
    """Nothing of the pod is left to do; remembered until its source forgets it."""


NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.SYNCING: frozenset({Phase.TERMINATING, Phase.TERMINATED, Phase.FINISHED}),
    Phase.TERMINATING: frozenset({Phase.TERMINATED, Phase.FINISHED}),
    Phase.TERMINATED: frozenset({Phase.FINISHED}),
    Phase.FINISHED: frozenset(),
}


class PodState(Struct):
    """What the node has decided about one pod. Changed by its worker only."""

    uid: PodUID
    full_name: str
    pod: Pod | None
    """Newest version seen; None for an orphan that only the runtime knows."""
    phase: Phase = Phase.SYNCING
    started: bool = False
    """Whether the worker was allowed to begin (same-name static pods wait for their turn)."""
    deleted: bool = False
    """Its source asked for the end or has it no more; a pod the node ended for its own sake can still be looked at."""
    evicted: bool = False
    grace: int | None = None
    """Seconds the containers get to stop; only ever shortened."""
    restart_requested: bool = False
    """The same UID was added again while it was ending; housekeeping starts it anew."""
    story: deque[tuple[Phase, str]] = field(default_factory=lambda: deque(maxlen=STORY_LENGTH))

    def move(self, to: Phase, because: str) -> None:
        if to not in NEXT[self.phase]:
            told = f"{self.phase.value} -> {to.value} ({because})"
            raise IllegalMove(f"pod {self.full_name} ({self.uid}): {told}; story: {list(self.story)}")
        self.story.append((to, because))
        self.phase = to

    @property
    def is_ending(self) -> bool:
        return self.phase is not Phase.SYNCING

    def shorten_grace(self, override: int | None) -> bool:
        """Apply the rules for the effective grace period; True when it became shorter than before."""
        before = self.grace
        asked = self.pod.metadata.deletion_grace_period_seconds if self.pod else None
        bounds = [seconds for seconds in (before, asked, override) if seconds is not None]
        if not bounds and self.pod is not None:
            bounds = [self.pod.spec.termination_grace_period_seconds or 0]
        self.grace = max(1, min(bounds, default=0))
        return before is not None and self.grace < before


class PodPhases:
    """The store of all pod states, and what the rest of the agent may ask of it."""

    def __init__(self) -> None:
        self._states: dict[PodUID, PodState] = {}
        self._synced = False
        self.undecided: set[PodUID] = set()
        """Pods whose admission broke: neither wanted nor unwanted until that was tried again. The loop's."""

    def mark_synced(self) -> None:
        self._synced = True

    def get(self, uid: str) -> PodState | None:
        return self._states.get(PodUID(uid))

    def add(self, state: PodState) -> None:
        self._states[state.uid] = state

    def forget(self, uid: str) -> None:
        self._states.pop(PodUID(uid), None)

    def uids(self) -> set[str]:
        """Pods that may hold something."""
        return {*self._states, *self.undecided}

    def __iter__(self) -> Iterator[PodState]:
        return iter(list(self._states.values()))

    def __len__(self) -> int:
        return len(self._states)

    def any_terminating(self) -> bool:
        return any(state.phase is Phase.TERMINATING for state in self._states.values())

    def could_have_running_containers(self, uid: str) -> bool:
        state = self.get(uid)
        if state is None:
            return not self._is_unknown(uid)
        return state.phase in (Phase.SYNCING, Phase.TERMINATING)

    def should_remove_content(self, uid: str) -> bool:
        """Whether logs, containers and volumes of the pod are of no use to anybody any more."""
        state = self.get(uid)
        if state is None:
            return self._is_unknown(uid)
        if state.restart_requested:
            return False  # the next life under this UID goes on counting from this one
        ended = state.phase in (Phase.TERMINATED, Phase.FINISHED)
        return ended and (state.evicted or state.deleted)

    def should_remove_runtime(self, uid: str) -> bool:
        state = self.get(uid)
        if state is None:
            return self._is_unknown(uid)
        return state.phase in (Phase.TERMINATED, Phase.FINISHED)

    def should_be_terminating(self, uid: str) -> bool:
        state = self.get(uid)
        return self._is_unknown(uid) if state is None else state.is_ending

    def is_finished(self, uid: str) -> bool:
        state = self.get(uid)
        return self._is_unknown(uid) if state is None else state.phase is Phase.FINISHED

    def _is_unknown(self, uid: str) -> bool:
        """Whether a pod without a state is one that nobody wants, for all this agent knows."""
        return self._synced and PodUID(uid) not in self.undecided
