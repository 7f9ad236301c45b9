"""An edge-triggered wake-up for one waiting task, never lost between two waits."""

from __future__ import annotations

import asyncio


class Signal:
    """Something changed; look again. Any number of sets before a wait wake it once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, at_most: float | None = None) -> bool:
        """Wait for a set, at most that long; True when it was set. The signal is consumed."""
        try:
            async with asyncio.timeout(at_most):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
