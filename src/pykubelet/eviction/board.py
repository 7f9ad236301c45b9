"""The pressure conditions that hold right now: eviction writes, admission and the Node read."""

from __future__ import annotations

from collections.abc import Callable


class PressureBoard:
    def __init__(self) -> None:
        self._held: tuple[str, ...] = ()
        self.on_change: Callable[[], None] = lambda: None

    def held(self) -> tuple[str, ...]:
        """Such as MemoryPressure; sorted."""
        return self._held

    def set(self, conditions: tuple[str, ...]) -> None:
        if conditions != self._held:
            self._held = conditions
            self.on_change()
