"""An event loop whose time jumps: when every task is blocked, it leaps to the next timer.

A day of back-off passes in milliseconds and `asyncio.timeout` obeys too. Tests with real sockets,
processes or threads use the ordinary loop instead (mark `real_loop`): the leap does not wait for them.
What keeps running without letting time pass is refused (`spin_guard.py`).
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from tests.spin_guard import HotLoop, TurnCounter

RESOLUTION = 1e-9
"""Timers that are due within this time run already."""
STANDSTILL = 1000
"""Turns without any time passing after which a moment does pass. Who is woken by rounding a moment too early, sees that
its time has not come and waits for the rest would do so for ever: on a real clock time passes while it looks."""


class AutojumpSelector(selectors.DefaultSelector):
    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.complaint = ""
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Raised here it ends the loop's run; raised in a task it could be caught by the code under test.
        if self.complaint:
            complaint, self.complaint = self.complaint, ""
            raise HotLoop(complaint)
        # No timer at all: wait for real input a little, then let the loop look again.
        ready = super().select(0 if timeout is not None else 5)
        if not ready and timeout is None:
            raise RuntimeError("the test waits for something that no timer and no task will bring")
        self._turns += 1
        if not ready and timeout:
            self.now += timeout
            self._turns = 0
        elif self._turns >= STANDSTILL:
            self.now += 2 * RESOLUTION
            self._turns = 0
        return ready


class AutojumpLoop(asyncio.SelectorEventLoop):
    _ready: Any

    def __init__(self) -> None:
        self._jumping = AutojumpSelector()
        self._turns = TurnCounter()
        super().__init__(self._jumping)
        self._clock_resolution = RESOLUTION

    def time(self) -> float:
        return self._jumping.now

    def refuse(self, message: str) -> None:
        """End the test with this complaint as soon as the callback that runs now is through."""
        self._jumping.complaint = self._jumping.complaint or message

    def repeated(self, who: str) -> int:
        return self._turns.repeated(self._jumping.now, who)

    def _run_once(self) -> None:
        if complaint := self._turns.turn(self._jumping.now, self._ready):
            self.refuse(complaint)
        super()._run_once()  # type: ignore[misc]

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Inline: the leap must not outrun a thread."""
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future
