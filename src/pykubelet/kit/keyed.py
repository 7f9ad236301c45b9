"""One task per key, which works until nothing is left to do for that key.

Keys do not wait for each other. A wake during a run leads to another run, so no change is lost; wakes are merged,
never queued. A run that raises is that key's failure alone: it is kept as the last error and retried with back-off.
Does not cover what a run does and how long it may take, nor what is logged about a failure (`on_error`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct, field

from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import Slots
from pykubelet.kit.tasks import TaskSet

K = TypeVar("K", bound=Hashable)

WHEN_WOKEN = math.inf
"""Returned by a run after which the key waits for a wake only."""


class KeySnapshot(Struct, frozen=True, kw_only=True):
    is_running: bool
    failures: int
    last_error: str
    next_run_in: float | None
    """Seconds; None while it runs or waits for a wake only."""


class KeyState(Struct):
    """What is known of one key while it has a task."""

    backoff: Backoff
    last_error: str = ""
    due: float | None = None
    """When it runs next; None while it runs, or waits for a free slot."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    skips_backoff: bool = False
    """Whether a wake requested a run although the last one failed."""
    scope: asyncio.Timeout | None = None
    """Around the run in flight; expiring it cancels the run and nothing else."""


class KeyedTasks(Generic[K]):
    """All keys of one owner; tasks live inside `async with`. Keys woken outside of it begin when it is entered.

    `work(key)` returns the seconds until its next run (0: at once, `WHEN_WOKEN`: never by itself) or None when
    nothing is left to do: the task ends and the key is forgotten, then `on_finished(key)` is called.
    `on_error(key, error, state)` returns the seconds until the next try; `state` still has the error before.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[K], Awaitable[float | None]],
        *,
        clock: Clock,
        first_retry: float,
        last_retry: float,
        on_error: Callable[[K, Exception, KeyState], float] = lambda key, error, state: state.backoff.next(),
        on_finished: Callable[[K], None] = lambda key: None,
        slots: Slots[K] | None = None,
    ) -> None:
        """`slots`: how many keys run at once, and which of the others is next; without it all of them do."""
        self._name = name
        self._work = work
        self._clock = clock
        self._retries = (first_retry, last_retry)
        self._on_error = on_error
        self._on_finished = on_finished
        self._slots = slots
        self._states: dict[K, KeyState] = {}
        self._tasks = TaskSet(name)
        self._is_open = False

    async def __aenter__(self) -> KeyedTasks[K]:
        await self._tasks.__aenter__()
        self._is_open = True
        for key, state in self._states.items():
            self._spawn(key, state)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._is_open = False
        try:
            await self._tasks.__aexit__(*exc)
        finally:
            self._states.clear()

    def __contains__(self, key: K) -> bool:
        """Whether the key has work to do, or to wait for."""
        return key in self._states

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._states))

    def get(self, key: K) -> KeyState | None:
        return self._states.get(key)

    def wake(self, key: K, *, skip_backoff: bool = True) -> None:
        """Run the key at once, or again when a run is under way.

        Without `skip_backoff` a key that failed is left to its next try."""
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = KeyState(Backoff(*self._retries))
            if self._is_open:
                self._spawn(key, state)
        elif state.due is not None and state.last_error and not skip_backoff:
            return
        state.skips_backoff = state.skips_backoff or skip_backoff
        state.woken.set()

    def interrupt(self, key: K) -> None:
        """Cancel the run in flight, which does not count as a failure, and run again at once."""
        state = self._states.get(key)
        if state is not None:
            if state.scope is not None and not state.scope.expired():
                state.scope.reschedule(self._clock.monotonic())
            self.wake(key)

    def reset(self, key: K) -> None:
        """Let the key's back-off begin anew: what failed before says nothing about the next try."""
        if (state := self._states.get(key)) is not None:
            state.backoff.reset()

    def snapshot(self) -> Mapping[K, KeySnapshot]:
        now = self._clock.monotonic()
        return {
            key: KeySnapshot(
                is_running=state.scope is not None,
                failures=state.backoff.failures,
                last_error=state.last_error,
                next_run_in=None if state.due is None or state.due == WHEN_WOKEN else max(0.0, state.due - now),
            )
            for key, state in self._states.items()
        }

    def _spawn(self, key: K, state: KeyState) -> None:
        self._tasks.spawn(self._live(key, state), name=f"{self._name} {key}")

    async def _live(self, key: K, state: KeyState) -> None:
        while True:
            async with self._slot(key):
                # Cleared before the run: what changes from here on must lead to another one.
                state.woken.clear()
                state.skips_backoff = False
                delay = await self._run(key, state)
            if delay is not None:
                await self._wait(state, delay)
            elif not state.woken.is_set():
                break
        del self._states[key]
        self._on_finished(key)

    def _slot(self, key: K) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext() if self._slots is None else self._slots.taken(key)

    async def _run(self, key: K, state: KeyState) -> float | None:
        try:
            async with asyncio.timeout(None) as scope:
                state.scope = scope
                delay = await self._work(key)
        except Exception as error:
            if isinstance(error, TimeoutError) and scope.expired():
                return 0
            delay = self._on_error(key, error, state)
            state.last_error = str(error) or type(error).__name__
            if not state.skips_backoff:
                state.woken.clear()
            return delay
        finally:
            state.scope = None
        state.backoff.reset()
        state.last_error = ""
        return delay

    async def _wait(self, state: KeyState, delay: float) -> None:
        state.due = self._clock.monotonic() + delay
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if delay == WHEN_WOKEN else delay):
                await state.woken.wait()
        state.due = None
