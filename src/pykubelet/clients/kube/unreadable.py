"""Objects of the API server that cannot be read: counted, told once, and known for as long as they are so.

One such object must cost nobody else anything: lists and watches leave it out (client.py) and go on. A copy keeps the
last version of it that could be read, except that a deletion is always taken over (reflector.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pykubelet.clients.kube.port import Unreadable
from pykubelet.kit.limits import Once
from pykubelet.kit.metrics import Registry

logger = logging.getLogger(__name__)


class UnreadableObjects:
    def __init__(self, metrics: Registry | None = None) -> None:
        self._total = (metrics or Registry()).counter(
            "pykubelet_unreadable_objects_total",
            "Objects from the API server that could not be read and were left out, by resource.",
            ("resource",),
        )
        self._logged: Once[tuple[str, ...]] = Once()
        self._held: dict[object, Sequence[Unreadable]] = {}
        self._listeners: list[Callable[[Unreadable], None]] = []

    def listen(self, listener: Callable[[Unreadable], None]) -> None:
        """Tell `listener` of an object when it is first found to be unreadable for a reason."""
        self._listeners.append(listener)

    def count(self, found: Unreadable) -> None:
        """One came; who asks again and again for the same one fills no log."""
        self._total.inc(found.resource)
        key = (found.resource, found.namespace, found.name, found.uid, found.why)
        if not self._logged.is_new(key):
            return
        logger.warning(
            "object from the API server cannot be read and is left out",
            extra={"object": found.shown, "uid": found.uid, "problem": found.why},
        )
        for listener in self._listeners:
            listener(found)

    def hold(self, owner: object, found: Sequence[Unreadable]) -> None:
        """What is missing or old in the copy of `owner` now, in place of what it said before."""
        if found:
            self._held[owner] = tuple(found)
        else:
            self._held.pop(owner, None)

    def now(self) -> list[Unreadable]:
        """Every object that some copy lacks, or has only in an older version."""
        return [each for found in self._held.values() for each in found]
