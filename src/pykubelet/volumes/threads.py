"""Threads for file work that may hang with its filesystem.

A call that never returns costs one thread and delays nobody: threads are started when none is idle instead
of making work queue behind stuck work, and they are daemons, so that a dead file server cannot keep the
agent from leaving. The ordinary pool of the loop promises neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")

MOST_THREADS = 512
IDLE_SECONDS = 20.0

_Job = tuple["Future[Any]", Callable[[], Any]]


class UnstuckThreads(Executor):
    """An executor whose jobs never wait for other jobs."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._alive = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._alive >= MOST_THREADS:
                raise RuntimeError(f"{self._alive} file operations hang; no more are begun")
            else:
                self._alive += 1
                threading.Thread(target=self._work, daemon=True, name="volumes").start()
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
        return future

    def _work(self) -> None:
        while True:
            try:
                future, job = self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty() and self._idle > 0:
                        self._idle -= 1
                        self._alive -= 1
                        return
                continue
            _carry_out(future, job)
            with self._lock:
                self._idle += 1


def _carry_out(future: Future[Any], job: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = job()
    except BaseException as error:
        with contextlib.suppress(Exception):
            future.set_exception(error)
    else:
        with contextlib.suppress(Exception):
            future.set_result(result)


class Offload:
    """Runs blocking work off the loop. What was begun is never abandoned half-way by a cancel."""

    def __init__(self) -> None:
        self._threads = UnstuckThreads()

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Start the work; the future is the caller's to wait for, and cancelling it does not stop the work."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.shield(self.begin(work))
