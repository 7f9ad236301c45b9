"""A stand-in for org.freedesktop.login1: gives out delay locks, knows which are still held, announces shutdowns.

Passes the contract of the real one (tests/contracts/test_logind_contract.py).
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from typing import Any

from dbus_fast import Variant

from tests.fakes.private_bus import Refusal, StandIn

NAME, PATH = "org.freedesktop.login1", "/org/freedesktop/login1"


class StandInLogind(StandIn):
    def __init__(self, *, max_delay: float = 5.0) -> None:
        super().__init__(NAME, PATH, f"{NAME}.Manager")
        self.requested: list[tuple[str, ...]] = []
        """What, who, why and mode of every lock."""
        self.refuse = ""
        self._held: list[int] = []
        self._given: list[int] = []
        """Our copies of the descriptors that callers hold; closed once they must have been sent."""
        self.methods = {"Inhibit": self._inhibit}
        self.properties["PreparingForShutdown"] = Variant("b", False)
        self.set_max_delay(max_delay)

    def set_max_delay(self, seconds: float) -> None:
        self.properties["InhibitDelayMaxUSec"] = Variant("t", int(seconds * 1_000_000))

    def announce(self, coming: bool) -> None:
        """A shutdown is coming, or does not come after all."""
        self.properties["PreparingForShutdown"] = Variant("b", coming)
        self.signal("PrepareForShutdown", "b", coming)

    def _inhibit(self, *words: str) -> tuple[str, Sequence[Any], list[int]]:
        self.requested.append(words)
        if self.refuse:
            raise Refusal(self.refuse, "no lock for you")
        if self.properties["PreparingForShutdown"].value:
            raise Refusal(f"{NAME}.OperationInProgress", "The operation is already running")
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        self._held.append(ours)
        self._given.append(theirs)
        return "h", [0], [theirs]

    def locks(self) -> int:
        """How many locks are held; a lock is let go by closing its descriptor."""
        while self._given:
            os.close(self._given.pop())
        for ours in list(self._held):
            poll = select.poll()
            poll.register(ours, 0)
            if poll.poll(0):  # the other end is closed everywhere
                self._held.remove(ours)
                os.close(ours)
        return len(self._held)

    def stop(self) -> None:
        super().stop()
        for descriptor in (*self._held, *self._given):
            os.close(descriptor)
        self._held.clear()
        self._given.clear()
