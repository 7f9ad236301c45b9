"""The one place through which calls go that the host may answer late or never: file systems, programs, look-ups.

Each call runs in a thread, has a name, and its caller a deadline. Quick calls share a few threads; one that turns out
slow keeps its own and another takes its place, so a dead file server makes nobody wait. A call that is not back at its
deadline is remembered as stuck under its name and key (a volume, a file), and the same call for the same key is
refused at once until it comes back: a hanging mount costs one thread, however often it is looked at.
Does not cover: programs run on the loop (programs.py), and cancelling what the kernel does not give back.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from pykubelet.kit.metrics import Registry

T = TypeVar("T")

QUICK_THREADS: Final = 16
"""Threads that calls share which are back within a moment."""
SLOW_AFTER: Final = 1.0
MOST_THREADS: Final = 512
MOST_KEYED: Final = 384
"""Slow calls with a key, of all keys together. The rest is for the agent's own files, whatever strangers' do."""
MOST_PER_KEY: Final = 8
IDLE_SECONDS: Final = 20.0


class HostCallStuck(TimeoutError):
    """The host has not answered in time. Being a TimeoutError it is an OSError, as every failure of the host is."""


@dataclass(slots=True, eq=False)
class HostCall(Generic[T]):
    """One call under way."""

    work: Callable[[], T]
    name: str
    key: str
    pod: str
    """UID of the pod it is for."""
    within: float
    began: float | None = None
    """When a thread took it."""
    is_slow: bool = False
    is_stuck: bool = False
    ended: bool = False
    given_up: bool = False
    """Its deadline passed before a thread was free: not to be begun."""

    def __call__(self) -> T:
        if self.given_up:
            self.ended = True
            raise HostCallStuck(f"{self} was given up")
        self.began = time.monotonic()
        try:
            return self.work()
        finally:
            self.ended = True

    def __str__(self) -> str:
        return f"{self.name} of {self.key}" if self.key else self.name

    @property
    def took(self) -> float:
        return time.monotonic() - self.began if self.began is not None else 0.0


class _Threads(Executor):
    """Daemons, so that a call that never returns cannot keep the agent from leaving."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._alive = self._idle = self._slow = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            self._jobs.append((future, fn))
            self._serve()
        return future

    def set_slow(self, call: HostCall[Any]) -> None:
        """The call keeps its thread; those who wait get another."""
        with self._changed:
            if not call.ended:
                call.is_slow = True
                self._slow += 1
                self._serve()

    def _serve(self) -> None:
        if self._idle >= len(self._jobs):
            self._changed.notify()
        elif self._alive - self._slow < QUICK_THREADS and self._alive < MOST_THREADS:
            self._alive += 1
            threading.Thread(target=self._work, daemon=True, name="host call").start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            with self._changed:
                self._slow -= getattr(call, "is_slow", False)
            del job, future, call  # an idle thread keeps nothing alive

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """None: this thread is not needed any more."""
        with self._changed:
            while not self._jobs:
                self._idle += 1
                woken = self._changed.wait(IDLE_SECONDS)
                self._idle -= 1
                if not woken and not self._jobs:
                    self._alive -= 1
                    return None
            if self._alive - self._slow > QUICK_THREADS:  # slow ones came back
                self._alive -= 1
                return None
            return self._jobs.popleft()


class HostCalls:
    """Its bookkeeping happens on the loop; the threads only set marks on their own call."""

    def __init__(self) -> None:
        self._threads = _Threads()
        self._calls: set[HostCall[Any]] = set()
        self._overdue: Counter[str] = Counter()

    async def run(self, work: Callable[[], T], *, name: str, within: float, key: str = "", pod: str = "") -> T:
        """The work's result, or HostCallStuck after `within` seconds, or at once while the same call is stuck.

        Neither the deadline nor a cancel stops work that has begun; only nobody waits for it any more.
        """
        call, future = self._begin(work, name, within, key, pod)
        await asyncio.wait({future}, timeout=within)
        if future.done():
            return future.result()
        if call.began is None:
            call.given_up = True
            raise HostCallStuck(f"{call} was not begun within {within:g} s: too much hangs on this host")
        self._set_stuck(call)
        raise HostCallStuck(f"{call} has not come back after {within:g} s")

    def begin(
        self, work: Callable[[], T], *, name: str, within: float, key: str = "", pod: str = ""
    ) -> asyncio.Future[T]:
        """As `run`, for those who wait in a way of their own; after `within` seconds it only counts as stuck."""
        return self._begin(work, name, within, key, pod)[1]

    def stuck(self, pod: str | None = None) -> list[HostCall[Any]]:
        """Calls that are past their deadline, of one pod or all."""
        return [call for call in self._under_way() if call.is_stuck and pod in (None, call.pod)]

    def measure(self, metrics: Registry) -> None:
        """Show the calls in these metrics from now on."""
        under_way = metrics.gauge(
            "pykubelet_host_calls_stuck", "Calls to the host that are past their deadline and not back.", ("name",)
        )
        overdue = metrics.counter(
            "pykubelet_host_calls_overdue_total", "Calls to the host that were not back in time.", ("name",)
        )

        def refresh() -> None:
            now = Counter(call.name for call in self.stuck())
            under_way.replace({(name,): count for name, count in now.items()})
            for name, count in self._overdue.items():
                overdue.inc(name, by=count - overdue.value(name))

        metrics.on_scrape(refresh)

    # --- inside ---------------------------------------------------------------------------------

    def _begin(
        self, work: Callable[[], T], name: str, within: float, key: str, pod: str
    ) -> tuple[HostCall[T], asyncio.Future[T]]:
        if key:
            self._refuse(name, key)
        # The lines the work logs are about whatever the caller's are about.
        told = partial(contextvars.copy_context().run, work)
        call = HostCall(work=told, name=name, key=key, pod=pod, within=within)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, call)
        if not future.done():
            self._calls.add(call)
            timer = loop.call_later(min(SLOW_AFTER, within), self._look, call, loop)
            future.add_done_callback(lambda _: (self._calls.discard(call), timer.cancel()))
        future.add_done_callback(_retrieve)
        return call, future

    def _refuse(self, name: str, key: str) -> None:
        same = [call for call in self._under_way() if call.name == name and call.key == key]
        for call in same:
            if call.is_stuck:
                raise HostCallStuck(f"an earlier {call} has not come back for {call.took:.0f} s")
        if len(same) >= MOST_PER_KEY:
            raise HostCallStuck(f"{len(same)} calls of the same kind are under way: {same[0]}")
        if sum(1 for call in self._under_way() if call.key and call.is_slow) >= MOST_KEYED:
            raise HostCallStuck(f"{name} of {key} was not begun: {MOST_KEYED} calls hang on this host")

    def _under_way(self) -> list[HostCall[Any]]:
        # One whose loop is closed by now is told by nobody that it ended.
        self._calls = {call for call in self._calls if not call.ended}
        return list(self._calls)

    def _look(self, call: HostCall[Any], loop: asyncio.AbstractEventLoop) -> None:
        if call.ended:
            return
        if call.began is None:
            loop.call_later(SLOW_AFTER, self._look, call, loop)
        elif call.took < call.within:
            if not call.is_slow:
                self._threads.set_slow(call)
            loop.call_later(call.within - call.took + 0.001, self._look, call, loop)
        else:
            self._set_stuck(call)

    def _set_stuck(self, call: HostCall[Any]) -> None:
        if call.is_stuck or call.ended:
            return
        if not call.is_slow:
            self._threads.set_slow(call)
        call.is_stuck = True
        self._overdue[call.name] += 1


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Nobody may be waiting any more when work that hung fails at last."""
    if not future.cancelled():
        future.exception()


host_calls = HostCalls()
"""The one of this process: what bounds the threads of a process must know all of them."""
