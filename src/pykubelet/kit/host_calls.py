"""The one place through which calls go that the host may answer late or never: file systems, programs, look-ups.

Each call runs in a thread, has a name, and its caller a deadline. Threads are started when none is idle, so that no
call waits behind one that hangs, and they are daemons: a dead file server cannot keep the agent from leaving. A call
that is not back at its deadline is stuck, and the same call for the same key (a volume, a file) is refused at once
until it comes back: a hanging mount costs one thread, however often it is called.
Does not cover: programs run on the loop (programs.py), and cancelling what the kernel does not give back.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from pykubelet.kit.metrics import Registry

T = TypeVar("T")

logger = logging.getLogger(__name__)

MOST_THREADS: Final = 512
MOST_FOR_PODS: Final = 384
"""Threads for calls about pods' files, of all pods together. The rest is for the agent's own: its checkpoints, the
signals of eviction."""
MOST_PER_KEY: Final = 8
SLOW_AFTER: Final = 1.0
IDLE_SECONDS: Final = 20.0


class HostCallStuck(TimeoutError):
    """The host has not answered in time. Being a TimeoutError it is an OSError, as every failure of the host is."""


class HostCall(Generic[T], Struct, eq=False):
    """One call under way."""

    work: Callable[[], T]
    name: str
    key: str
    pod: str
    """UID of the pod whose files it is about; none: the agent's own."""
    within: float
    began: float | None = None
    """When a thread took it."""
    ended: bool = False
    given_up: bool = False
    """No caller waits for it any more; if it has not begun, it must not begin."""

    def __call__(self) -> T:
        try:
            if self.given_up:
                raise HostCallStuck(f"{self} was given up")
            self.began = time.monotonic()
            return self.work()
        finally:
            self.ended = True

    def __str__(self) -> str:
        return f"{self.name} of {self.key}" if self.key else self.name

    @property
    def took(self) -> float:
        return time.monotonic() - self.began if self.began is not None else 0.0

    @property
    def is_stuck(self) -> bool:
        return self.began is not None and not self.ended and (self.given_up or self.took >= self.within)


_Job = tuple[Future[Any], Callable[[], Any]]


class _Threads(Executor):
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._held: deque[_Job] = deque()
        """Calls of pods that use all the threads reserved for pods."""
        self._alive = self._idle = self._for_pods = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if _is_for_pod(fn):
                if self._for_pods >= MOST_FOR_PODS:
                    self._held.append((future, fn))
                    return future
                self._for_pods += 1
            self._jobs.append((future, fn))
            if self._idle >= len(self._jobs):
                self._changed.notify()
            elif self._alive < MOST_THREADS:
                self._start()
        return future

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, daemon=True, name="host call").start()
        except RuntimeError:
            # No more processes on this host. The call waits for a thread that is there; the next one tries again.
            logger.warning("no thread can be started for a call of the host", extra={"threads": self._alive})
        else:
            self._alive += 1

    def _work(self) -> None:
        while (job := self._next()) is not None:
            _carry_out(*job)
            if _is_for_pod(job[1]):
                self._let_next_pod()
            del job  # an idle thread keeps nothing alive

    def _let_next_pod(self) -> None:
        with self._changed:
            if self._held:
                self._jobs.append(self._held.popleft())  # for this very thread
            else:
                self._for_pods -= 1

    def _next(self) -> _Job | None:
        """None: this thread is not needed any more."""
        with self._changed:
            while not self._jobs:
                self._idle += 1
                woken = self._changed.wait(IDLE_SECONDS)
                self._idle -= 1
                if not woken and not self._jobs:
                    self._alive -= 1
                    return None
            return self._jobs.popleft()


def _is_for_pod(work: Callable[..., Any]) -> bool:
    return isinstance(work, HostCall) and bool(work.pod)


def _carry_out(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class HostCalls:
    """Its bookkeeping happens on the loop; the threads only set marks on their own call."""

    def __init__(self) -> None:
        self._threads = _Threads()
        self._calls: set[HostCall[Any]] = set()
        self._late: Counter[str] = Counter()
        """Calls that came back after their deadline."""

    async def run(self, work: Callable[[], T], *, name: str, within: float, key: str = "", pod: str = "") -> T:
        """The work's result, or HostCallStuck after `within` seconds, or at once while the same call is stuck.

        Neither the deadline nor a cancel stops work that has begun; the caller only stops waiting.
        """
        call, future = self._begin(work, name, within, key, pod)
        try:
            await asyncio.wait({future}, timeout=within)
        except asyncio.CancelledError:
            call.given_up = call.began is None
            raise
        if future.done():
            return future.result()
        call.given_up = True
        if call.began is None:
            raise HostCallStuck(f"{call} was not begun within {within:g} s: too much hangs on this host")
        raise HostCallStuck(f"{call} has not come back after {within:g} s")

    def begin(
        self, work: Callable[[], T], *, name: str, within: float, key: str = "", pod: str = ""
    ) -> asyncio.Future[T]:
        """As `run`, for callers that wait in their own way; after `within` seconds it only counts as stuck."""
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
            for name, count in (self._late + now).items():
                overdue.inc(name, by=count - overdue.value(name))

        metrics.on_scrape(refresh)

    # --- inside ---------------------------------------------------------------------------------

    def _begin(
        self, work: Callable[[], T], name: str, within: float, key: str, pod: str
    ) -> tuple[HostCall[T], asyncio.Future[T]]:
        if key:
            self._refuse(name, key)
        if pod:
            self._refuse_more(name, key)
        # Log lines of the work keep the caller's context.
        in_context = partial(contextvars.copy_context().run, work)
        call = HostCall(work=in_context, name=name, key=key, pod=pod, within=within)
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        if not future.done():
            self._calls.add(call)
        future.add_done_callback(partial(self._ended, call))
        return call, future

    def _ended(self, call: HostCall[Any], future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            future.exception()  # retrieved: the caller may have left before work that hung fails
        elif call.began is not None and not call.ended:
            return  # the caller stopped waiting, its thread goes on
        if call in self._calls:
            self._calls.remove(call)
            self._late[call.name] += call.began is not None and (call.given_up or call.took >= call.within)

    def _refuse(self, name: str, key: str) -> None:
        same = [call for call in self._under_way() if call.name == name and call.key == key]
        for call in same:
            if call.is_stuck:
                raise HostCallStuck(f"an earlier {call} has not come back for {call.took:.0f} s")
        if len(same) >= MOST_PER_KEY:
            raise HostCallStuck(f"{len(same)} calls of the same kind are under way: {same[0]}")

    def _refuse_more(self, name: str, key: str) -> None:
        if sum(1 for call in self._under_way() if call.pod and call.took >= SLOW_AFTER) >= MOST_FOR_PODS:
            raise HostCallStuck(f"{name} of {key} was not begun: {MOST_FOR_PODS} calls hang on this host")

    def _under_way(self) -> list[HostCall[Any]]:
        # A call whose loop is closed by now cannot be notified.
        self._calls = {call for call in self._calls if not call.ended}
        return list(self._calls)


host_calls = HostCalls()
"""The one of this process: what bounds the threads of a process must know all of them."""
