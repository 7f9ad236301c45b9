"""Static pods of one name run one at a time, in the order they came."""

from __future__ import annotations

from pykubelet.model.pod import PodUID
from pykubelet.sync.phases import PodPhases, PodState


class StaticTurns:
    def __init__(self, phases: PodPhases) -> None:
        self._phases = phases
        self._queues: dict[str, list[PodUID]] = {}

    def queue(self, state: PodState) -> None:
        self._queues.setdefault(state.full_name, []).append(state.uid)

    def has_turn(self, state: PodState) -> bool:
        """Whether nobody of the pod's name is before it; always so for a pod that never queued."""
        turns = self._queues.get(state.full_name)
        if turns is None or state.uid not in turns:
            return True
        for uid in turns:
            if uid == state.uid:
                return True
            other = self._phases.get(uid)
            if other is not None and (other.started or not other.is_ending):
                return False
        return True

    def leave(self, state: PodState) -> list[PodUID]:
        """The pod is done; those of its name that have yet to start."""
        turns = self._queues.get(state.full_name)
        if turns is None or state.uid not in turns:
            return []
        turns.remove(state.uid)
        if not turns:
            del self._queues[state.full_name]
        waiting = (self._phases.get(uid) for uid in turns)
        return [other.uid for other in waiting if other is not None and not other.started]
