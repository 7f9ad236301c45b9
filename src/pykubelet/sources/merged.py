"""Several manifest paths as one source: each has its own StaticSource, and their pods are one set.

The first delivery waits until every path has been read, as one path alone would promise it: a running pod must never
be taken for an orphan only because its file comes second. `close` takes all pods away, for good.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.api.types import Pod
from pykubelet.model.pod import Source
from pykubelet.sources.mux import PodSets


class MergedSets:
    """Where the sources of several paths deliver; passes the union on, in the order of the paths."""

    def __init__(self, sets: PodSets, count: int) -> None:
        self._sets = sets
        self._parts: list[tuple[Pod, ...] | None] = [None] * count
        self._closed = False

    def part(self, number: int) -> PodSets:
        """What the source of path `number` delivers to."""
        return _Part(self, number)

    def deliver_part(self, number: int, source: Source, pods: Sequence[Pod]) -> None:
        self._parts[number] = tuple(pods)
        if not self._closed and all(part is not None for part in self._parts):
            self._sets.deliver(source, [pod for part in self._parts for pod in part or ()])

    def close(self) -> None:
        """From now on there are no pods, whatever the files say: they are stopped by their grace."""
        self._closed = True
        self._sets.deliver(Source.FILE, [])


class _Part:
    def __init__(self, whole: MergedSets, number: int) -> None:
        self._whole = whole
        self._number = number

    def deliver(self, source: Source, pods: Sequence[Pod]) -> None:
        self._whole.deliver_part(self._number, source, pods)
