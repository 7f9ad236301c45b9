"""Pods that only the labels of the Node keep out, until the Node was read anew.

A pod and the Node come by two watches. A label that was put on the Node just before a pod was sent here may not be
known yet, so such a pod is judged once more by the Node as the API server has it then. Upstream's loop waits for that
answer; here only the pod waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pykubelet.context import Context
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.pod import PodUID
from pykubelet.signals import NodeRead


class FreshNode:
    name = "fresh-node"

    def __init__(self, ctx: Context, *, read: Callable[[], Awaitable[None]]) -> None:
        """`read` has the Node renewed for all, or gives up; it never raises."""
        self._signals = ctx.signals
        self._read = read
        self._waiting: set[PodUID] = set()
        self._filled = Wakeup()

    def add(self, uid: PodUID) -> None:
        self._waiting.add(uid)
        self._filled.set()

    def __contains__(self, uid: PodUID) -> bool:
        return uid in self._waiting

    async def run(self) -> None:
        while True:
            await self._filled.wait()
            # Who comes while the Node is being read waits for the next time: that answer may be too old for it.
            waiting = set(self._waiting)
            await self._read()
            for uid in sorted(waiting):
                self._waiting.discard(uid)
                self._signals.publish(NodeRead(uid))
