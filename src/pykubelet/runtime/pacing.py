"""How many starts and stops the runtime is asked for at a time, and whose turn is next.

Fifty starts at once make every one of them slow: nothing runs before almost everything does, and the processors switch
between them instead of working. So a few go at a time, each as fast as the machine can, in an order: containers that
crashed, containers of pods that have their sandbox, critical pods, new pods, the small ones first. Every few turns the
call that waited longest is next, whatever it is, so that none starves. Ends of sandboxes have places of their own, many
more: they wait for others most of the time.

The width is twice the number of processors. While all places are taken and processors are idle nevertheless, the
calls wait for something else (a network plugin, say), and the width grows. A call that takes much longer than
others goes on without its place: what hangs holds no other up.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec import Struct

from pykubelet.context import Context
from pykubelet.kit.clock import Clock
from pykubelet.recorder import Step

PLACES_PER_CPU = 2
MOST_PLACES_PER_CPU = 8
STOPS_PER_CPU = 24
"""Bounded for the sake of a node that ends hundreds of pods; fifty end soonest all at once."""
OLDEST_EVERY = 8
"""Each turn of this number goes to the one that waited longest."""

LOOK_EVERY = 0.25
"""Seconds between two looks at how busy the processors are."""
IDLE, BUSY = 0.25, 0.05
"""Share of the processors' time that is unused: above the first the width grows, below the second it shrinks again."""

SHORTEST_PATIENCE, LONGEST_PATIENCE = 2.0, 20.0
"""Seconds that a call may hold its place."""
TIMES_USUAL = 4.0
"""A call that takes this many times the usual is slow."""
KEPT = 0.1
"""Seconds for which a pod that got its sandbox keeps the place for its first container, which is about to come."""
STOP_HOLDS = 0.5
"""Seconds the stop of a sandbox holds its place."""


class Rank(enum.IntEnum):
    """What goes before what."""

    RESTART = 0
    """A container that has run before."""
    CONTAINER = 1
    """The first start of a container: its pod's sandbox is there and waits for it."""
    CRITICAL = 2
    """The sandbox of a critical pod."""
    NEW = 3
    """The sandbox of any other pod."""
    STOP = 4
    """The end of a sandbox. Containers are stopped without a turn: they take their grace period, not processors."""


class _Call(Struct, eq=False):
    """One call that waits for its turn or has it."""

    uid: str
    rank: Rank
    size: int
    number: int
    """Counts up with the calls."""
    begun: float | None = None
    """When its turn came."""
    turn: asyncio.Future[None] | None = None
    """Done when its turn has come; None if that was at once."""
    timer: asyncio.TimerHandle | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        return self.rank, self.size, self.number


class _Line:
    """Calls that share places."""

    def __init__(self) -> None:
        self.waiting: dict[_Call, None] = {}
        """In the order they came."""
        self.held: set[_Call] = set()
        self.turns = 0


class Width:
    """How many starts go at a time."""

    def __init__(self, cpus: int, clock: Clock, idle: Callable[[], float | None]) -> None:
        """`idle` are the seconds that all processors together did nothing so far."""
        self._cpus = cpus
        self._clock = clock
        self._idle = idle
        self._least, self._most = PLACES_PER_CPU * cpus, MOST_PLACES_PER_CPU * cpus
        self.stops = STOPS_PER_CPU * cpus
        self._look: tuple[float, float] | None = None
        self.now = self._least

    def slack(self) -> None:
        """None waits: what was seen so far says nothing about the next burst."""
        self._look, self.now = None, self._least

    def crowded(self) -> None:
        """All places are taken and others wait. Called often."""
        now = self._clock.monotonic()
        if self._look is not None and now - self._look[0] < LOOK_EVERY:
            return
        idle = self._idle()
        if idle is None:
            return
        before, self._look = self._look, (now, idle)
        if before is None:
            return
        share = (idle - before[1]) / ((now - before[0]) * self._cpus)
        if share > IDLE:
            self.now = min(self._most, self.now + 1)
        elif share < BUSY:
            self.now = max(self._least, self.now - 1)


class Pacer:
    def __init__(self, ctx: Context, width: Width) -> None:
        self._width = width
        self._clock = ctx.clock
        self._recorder = ctx.recorder
        self._starts, self._stops = _Line(), _Line()
        self._kept: dict[str, _Call] = {}
        """By pod, calls that are over and whose place waits for the pod's next."""
        self._usual: dict[Rank, float] = {}
        """Seconds that calls take, newer ones counting more."""
        self._calls = 0
        self._look: asyncio.TimerHandle | None = None
        self._waited = ctx.metrics.histogram(
            "pykubelet_runtime_turn_wait_seconds", "How long calls to the runtime waited for their turn.", ("kind",)
        )
        places = ctx.metrics.gauge(
            "pykubelet_runtime_turns", "Turns at the runtime: width, taken, waiting.", ("state",)
        )

        def refresh() -> None:
            places.set(self._width.now, "width")
            places.set(len(self._starts.held) + len(self._stops.held), "taken")
            places.set(len(self._starts.waiting) + len(self._stops.waiting), "waiting")

        ctx.metrics.on_scrape(refresh)

    @asynccontextmanager
    async def turn(self, uid: str, rank: Rank, size: int = 0) -> AsyncIterator[None]:
        """Wait for the turn of this call of the pod; the smaller of two goes first."""
        self._calls += 1
        call = _Call(uid, rank, size, self._calls)
        if rank in (Rank.RESTART, Rank.CONTAINER) and uid in self._kept:
            self._leave(self._kept.pop(uid), next_one=call)
        elif self._line(rank).waiting or not self._has_room(self._line(rank)):
            with self._recorder.step(uid, Step.TURN, rank.name.lower()):
                await self._wait(call)
        else:
            self._give(call)
        try:
            yield
        except BaseException:
            self._end(call)
            raise
        self._end(call, succeeded=True)

    def position(self, uid: str) -> int | None:
        """How many turns it is until the pod's, 1 for the next; None when it does not wait."""
        for waiting in (self._starts.waiting, self._stops.waiting):
            own = min((call.order for call in waiting if call.uid == uid), default=None)
            if own is not None:
                return 1 + sum(call.order < own for call in waiting)
        return None

    def _line(self, rank: Rank) -> _Line:
        return self._stops if rank is Rank.STOP else self._starts

    def _has_room(self, line: _Line) -> bool:
        return len(line.held) < (self._width.stops if line is self._stops else self._width.now)

    async def _wait(self, call: _Call) -> None:
        loop = asyncio.get_running_loop()
        begun, call.turn = self._clock.monotonic(), loop.create_future()
        line = self._line(call.rank)
        line.waiting[call] = None
        self._next(line)
        try:
            await call.turn
        except asyncio.CancelledError:
            line.waiting.pop(call, None)
            self._end(call)
            raise
        finally:
            self._waited.observe(self._clock.monotonic() - begun, call.rank.name.lower())

    def _next(self, line: _Line) -> None:
        if line is self._starts:
            self._width.crowded()
            self._look_again()
        while line.waiting and self._has_room(line):
            line.turns += 1
            oldest = line.turns % OLDEST_EVERY == 0
            self._give(next(iter(line.waiting)) if oldest else min(line.waiting, key=lambda call: call.order))

    def _look_again(self) -> None:
        """While starts wait, at the processors: calls that all take long end and come too seldom for that."""
        if self._look is not None:
            self._look.cancel()
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(LOOK_EVERY, self._next, self._starts) if self._starts.waiting else None

    def _give(self, call: _Call) -> None:
        line = self._line(call.rank)
        line.waiting.pop(call, None)
        call.begun = self._clock.monotonic()
        line.held.add(call)
        call.timer = asyncio.get_running_loop().call_later(self._patience(call.rank), self._leave, call)
        if call.turn is not None and not call.turn.done():
            call.turn.set_result(None)

    def _patience(self, rank: Rank) -> float:
        if rank is Rank.STOP:
            return STOP_HOLDS
        return min(LONGEST_PATIENCE, max(SHORTEST_PATIENCE, TIMES_USUAL * self._usual.get(rank, 0.0)))

    def _end(self, call: _Call, *, succeeded: bool = False) -> None:
        if succeeded and call.begun is not None:  # what hung until its deadline says nothing about the usual
            took = self._clock.monotonic() - call.begun
            self._usual[call.rank] = 0.8 * self._usual.get(call.rank, took) + 0.2 * took
        keeps = succeeded and call.rank in (Rank.CRITICAL, Rank.NEW) and call in self._starts.held
        if keeps and call.timer is not None:
            call.timer.cancel()
            self._kept[call.uid] = call
            call.timer = asyncio.get_running_loop().call_later(KEPT, self._leave, call)
        else:
            self._leave(call)

    def _leave(self, call: _Call, next_one: _Call | None = None) -> None:
        """Give the place back, or on; the call itself may go on."""
        if call.timer is not None:
            call.timer.cancel()
        line = self._line(call.rank)
        line.held.discard(call)
        if self._kept.get(call.uid) is call:
            del self._kept[call.uid]
        if next_one is not None:
            self._give(next_one)
        elif line.waiting:
            self._next(line)
        elif line is self._starts and not line.held:
            self._width.slack()
