"""The door every call to the runtime in memory goes through: makes it slow, fail, hang or find the daemon away.

Covers: hang/release, fail_next, slow, crash/restore, the deadlines the real client has.
Does not cover: what the calls do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pykubelet.hollow.cri_values import NOTHING, Call, Subject
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import CallTimedOut, CriError, RuntimeDown


@dataclass(slots=True, kw_only=True, eq=False)
class Fault:
    """A planted fault. `hits` counts the calls it caught; remove() or release() ends it."""

    verb: str
    name: str | None
    error: CriError | None = None
    delay: float = 0.0
    hangs: bool = False
    left: int | None = None
    hits: int = 0
    owner: FaultGate
    waiting: list[asyncio.Future[None]]

    def matches(self, call: Call) -> bool:
        if self.left == 0 or self.verb not in (call.verb, "*"):
            return False
        return self.name is None or self.name in (call.name, call.id, call.pod_uid)

    def remove(self) -> None:
        self.owner.forget(self)

    def release(self) -> None:
        """Let hanging calls go on as if nothing had been, and stop catching new ones."""
        self.remove()
        for future in self.waiting:
            if not future.done():
                future.set_result(None)


class FaultGate:
    """Decides what each call meets at the door."""

    def __init__(self, clock: Clock, request_timeout: float = 120.0) -> None:
        self.clock = clock
        self.request_timeout = request_timeout
        self.down = False
        self._faults: list[Fault] = []
        self._in_flight: set[asyncio.Future[None]] = set()
        self._on_crash: list[Callable[[], None]] = []

    def hang(self, verb: str, name: str | None = None, *, times: int | None = None) -> Fault:
        """Calls of `verb` (about pod/container/image/id `name`) wait until release() or their deadline."""
        return self._plant(Fault(verb=verb, name=name, hangs=True, left=times, owner=self, waiting=[]))

    def fail_next(self, verb: str, error: CriError, name: str | None = None, *, times: int | None = 1) -> Fault:
        """The next `times` calls raise `error` without doing anything; None = until removed."""
        return self._plant(Fault(verb=verb, name=name, error=error, left=times, owner=self, waiting=[]))

    def slow(self, verb: str, seconds: float, name: str | None = None, *, times: int | None = None) -> Fault:
        """Calls take that much longer."""
        return self._plant(Fault(verb=verb, name=name, delay=seconds, left=times, owner=self, waiting=[]))

    def crash(self) -> None:
        """The runtime's daemon dies: calls under way and new ones raise RuntimeDown; containers live on."""
        self.down = True
        for future in list(self._in_flight):
            if not future.done():
                future.set_exception(RuntimeDown("connection reset by the runtime"))
        for callback in self._on_crash:
            callback()

    def restore(self) -> None:
        """The daemon is back and knows everything again."""
        self.down = False

    def forget(self, fault: Fault) -> None:
        if fault in self._faults:
            self._faults.remove(fault)

    def _plant(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    async def _enter(
        self,
        verb: str,
        about: Subject = NOTHING,
        *,
        args: Mapping[str, object] | None = None,
        deadline: float | None = -1.0,
    ) -> None:
        """Every call begins here. A deadline below 0 means the default; None means none."""
        # Even the fastest runtime lets other tasks run before it answers.
        await self.clock.sleep(0)
        self._check_up()
        if self._faults:
            call = Call(verb=verb, about=about, args=args or {}, at=self.clock.monotonic())
            limit = self.request_timeout if deadline is not None and deadline < 0 else deadline
            for fault in [f for f in self._faults if f.matches(call)]:
                await self._suffer(fault, limit)

    async def _suffer(self, fault: Fault, deadline: float | None) -> None:
        fault.hits += 1
        if fault.left is not None:
            fault.left -= 1
        if fault.hangs:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            fault.waiting.append(future)
            await self._wait(future, deadline)
        if fault.delay:
            await self._spend(fault.delay, deadline)
        if fault.error is not None:
            raise fault.error

    async def _spend(self, seconds: float, deadline: float | None = None) -> None:
        """Take time, as work in the runtime does; the daemon may crash meanwhile."""
        if seconds <= 0:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _resolve, future)
        try:
            await self._wait(future, deadline)
        finally:
            timer.cancel()

    async def _wait(self, future: asyncio.Future[None], deadline: float | None) -> None:
        """Wait inside a call: ends early by crash (RuntimeDown) or by the client's deadline."""
        self._in_flight.add(future)
        try:
            async with asyncio.timeout(deadline):
                await future
        except TimeoutError as error:
            raise CallTimedOut("Deadline Exceeded") from error
        finally:
            self._in_flight.discard(future)

    def _check_up(self) -> None:
        if self.down:
            raise RuntimeDown("failed to connect to the runtime: connection refused")


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
