"""Structured tasks: every task lives inside an `async with` block that waits for it.

`running()` keeps services alive for the length of a block, `TaskSet` owns the tasks of a registry
(one per pod, one per probe), `finish()` completes clean-up under a deadline even when cancelled, and
`periodic()` is the slow safety net behind a `Wakeup`. Nothing else may create tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct, field

from pykubelet.kit import tracing
from pykubelet.kit.clock import Clock

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")


class Service(Protocol):
    """Something that runs until it is cancelled."""

    @property
    def name(self) -> str: ...

    async def run(self) -> None: ...


class Services(Struct):
    """Services by the order in which they start; they stop in reverse, so the last changes reach the sinks."""

    sinks: list[Service] = field(default_factory=list)
    """Keep and send what others find out."""
    managers: list[Service] = field(default_factory=list)
    producers: list[Service] = field(default_factory=list)
    """Bring in work: pod sources, the loop, servers."""

    @staticmethod
    def of(*parts: Services) -> Services:
        """Join the services of several subsystems, in their order."""
        return Services(
            sinks=[each for part in parts for each in part.sinks],
            managers=[each for part in parts for each in part.managers],
            producers=[each for part in parts for each in part.producers],
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with running(*self.sinks), running(*self.managers), running(*self.producers):
            yield


class ServiceStopped(RuntimeError):
    """A service returned although it should have run until cancelled; always a bug."""


async def _forever(service: Service) -> None:
    await service.run()
    raise ServiceStopped(f"service {service.name} returned; it must run until it is cancelled")


@asynccontextmanager
async def running(*services: Service) -> AsyncIterator[None]:
    """Run services for as long as the block lasts; cancel and await them on the way out."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_forever(service), name=service.name) for service in services]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


class TaskSet:
    """Tasks of one owner, alive only inside `async with`; leaving cancels and awaits all of them.

    An exception in a task goes to `on_error` when given, else it ends the block: a service whose
    worker breaks unexpectedly must not limp on.
    """

    def __init__(self, name: str, *, on_error: Callable[[BaseException], None] | None = None) -> None:
        self.name = name
        self._on_error = on_error
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[asyncio.Task[None], Coroutine[Any, Any, None]] = {}

    async def __aenter__(self) -> TaskSet:
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        group, self._group = self._group, None
        for task in list(self._tasks):
            task.cancel()
        if group is not None:
            await group.__aexit__(*exc)

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        if self._group is None:
            work.close()
            raise RuntimeError(f"{self.name}: not running, cannot start {name}")
        guarded = work if self._on_error is None else self._guard(work, self._on_error)
        task = self._group.create_task(guarded, name=name, context=tracing.unrelated())
        self._tasks[task] = work
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Cancelled before its first step the work was never begun, and Python would complain.
        self._tasks.pop(task).close()

    async def _guard(self, work: Coroutine[Any, Any, None], on_error: Callable[[BaseException], None]) -> None:
        try:
            await work
        except Exception as error:
            on_error(error)


async def finish(cleanup: Coroutine[Any, Any, T], *, within: float) -> T:
    """Run clean-up to its end, at most `within` seconds, even when cancelled; the cancel still goes through."""
    task = asyncio.create_task(_deadline(cleanup, within), name="cleanup")
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})  # wait() leaves the task alone when we are cancelled
        except asyncio.CancelledError as error:
            interrupted = error
    if interrupted is not None:
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # retrieved, so that a failed clean-up is not reported twice
        raise interrupted
    return task.result()


async def _deadline(work: Coroutine[Any, Any, T], within: float) -> T:
    async with asyncio.timeout(within):
        return await work


async def gather_all(*work: Coroutine[Any, Any, T]) -> list[T]:
    """Run all to their end; then raise the first error if there was one. A failure stops no sibling."""
    tasks = [asyncio.create_task(each) for each in work]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()
        raise
    errors = [error for task in tasks if (error := task.exception()) is not None]
    if errors:
        raise errors[0]
    return [task.result() for task in tasks]


async def both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """As `gather_all`, for two things with results of different kinds."""
    first, second = await gather_all(cast(Coroutine[Any, Any, Any], one), other)
    return first, second


async def first_of(*work: Coroutine[Any, Any, T]) -> T:
    """Run all until one ends; its result or error. The others are cancelled and waited for."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task in done).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()


class Beginner(Protocol):
    """Begins work beside a block; see `beside`."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> asyncio.Task[T]: ...


@asynccontextmanager
async def beside() -> AsyncIterator[Beginner]:
    """Work beside a block that ends with it: leaving cancels and awaits what is still under way.

    The block's own error passes as it is; an error of the work is raised where it is awaited, or
    at the block's end.
    """
    tasks: list[asyncio.Task[Any]] = []

    def begin(work: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        tasks.append(task)
        return task

    try:
        yield begin
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


class Ending:
    """The end of something that has no callback for it, as an event for any number of waiters.

    `work` must end by itself when its owner closes; an error it raises only means the end.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], *, name: str) -> None:
        self._task = asyncio.create_task(work, name=name)

    async def wait(self) -> None:
        """Cancelling this leaves the work alone."""
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()


class Closing:
    """contextlib.aclosing without a dictionary of its own, for what exists hundreds of times."""

    __slots__ = ("_stream",)

    def __init__(self, stream: AsyncGenerator[Any, None]) -> None:
        self._stream = stream

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *exc: object) -> None:
        await self._stream.aclose()


async def periodic(clock: Clock, period: float, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` now and then again `period` seconds after each pass ended, until cancelled."""
    while True:
        await work()
        await clock.sleep(period)


class Chore:
    """Work that housekeeping requests and must not wait for: it runs beside it, once for any number of requests."""

    def __init__(
        self, name: str, work: Callable[[], Awaitable[None]], *, may_raise: tuple[type[Exception], ...]
    ) -> None:
        """`may_raise`: what is logged and left for the next request."""
        self.name = name
        self._work = work
        self._may_raise = may_raise
        self._due = Wakeup()

    async def soon(self) -> None:
        self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            try:
                await self._work()
            except self._may_raise as error:
                logger.warning("a clean-up chore failed, will retry", extra={"chore": self.name, "error": str(error)})


class Wakeup:
    """Wakes one waiting task, never lost between two waits. Any number of sets before a wait wake it once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, at_most: float | None = None) -> bool:
        """Wait for a set, at most that long; True when it was set. It is consumed."""
        try:
            async with asyncio.timeout(at_most):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
