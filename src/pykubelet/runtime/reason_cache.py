"""Why containers could not be started, remembered until they start.

The status shows these as waiting reasons (CrashLoopBackOff, ErrImagePull ...). Bounded: the entries
longest untouched are dropped first. Nothing is kept across a restart of the agent; the next try
finds the reason again.
"""

from __future__ import annotations

from collections import OrderedDict

from pykubelet.model.problems import ContainerProblem

ENTRIES_KEPT = 1000


class ReasonCache:
    def __init__(self, size: int = ENTRIES_KEPT) -> None:
        self._size = size
        self._entries: OrderedDict[tuple[str, str], ContainerProblem] = OrderedDict()

    def failed(self, uid: str, problem: ContainerProblem) -> None:
        key = (uid, problem.container)
        self._entries[key] = problem
        self._entries.move_to_end(key)
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def started(self, uid: str, container: str) -> None:
        """The container started, so nothing is in its way any more."""
        self._entries.pop((uid, container), None)

    def get(self, uid: str, container: str) -> ContainerProblem | None:
        key = (uid, container)
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def of_pod(self, uid: str, containers: list[str]) -> dict[str, ContainerProblem]:
        """What is known about these containers of the pod, by name."""
        found = {name: self.get(uid, name) for name in containers}
        return {name: failure for name, failure in found.items() if failure is not None}

    def __len__(self) -> int:
        return len(self._entries)
