"""How long single steps hold the loop: the processor time of every callback, whoever else uses the machine.

Processor time of the loop's own thread, not the clock on the wall: a busy machine makes nothing here slower. What
waits for a thread or a socket does not count; that is what waiting is for.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

LONGEST = 0.050
"""Seconds that one step may take: the loop serves every pod, every probe and the node's heartbeat."""


@dataclass
class Steps:
    longest: float = 0.0
    what: str = ""
    _words: tuple[str, ...] = ()
    _not_ours: float = 0.0

    def only(self, *words: str) -> None:
        """Count only steps whose description has one of these words: servers of a test share its loop."""
        self._words = words

    def leave_out(self, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str) -> None:
        """Do not count what this function takes until it first waits; it stands for something outside."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                self._not_ours += time.thread_time() - begin

        @functools.wraps(original)
        async def timed_async(*args: Any, **kwargs: Any) -> Any:
            begin = time.thread_time()
            try:
                return await original(*args, **kwargs)
            finally:
                self._not_ours += time.thread_time() - begin

        if not inspect.isasyncgenfunction(original):
            monkeypatch.setattr(owner, name, timed_async if inspect.iscoroutinefunction(original) else timed)

    def took(self, seconds: float, handle: asyncio.Handle) -> None:
        seconds, self._not_ours = seconds - self._not_ours, 0.0
        words = _words(handle) if seconds > self.longest else ""
        if words and (not self._words or any(word in words for word in self._words)):
            self.longest, self.what = seconds, words

    def check(self, most: float = LONGEST) -> None:
        assert self.longest < most, f"the loop was held for {self.longest * 1000:.0f} ms by {self.what}"


@contextmanager
def measured_steps() -> Iterator[Steps]:
    """Measure every step of the loops of this thread meanwhile."""
    steps, run = Steps(), asyncio.Handle._run  # type: ignore[attr-defined]

    def timed(handle: asyncio.Handle) -> None:
        begin = time.thread_time()
        run(handle)
        steps.took(time.thread_time() - begin, handle)

    # A collection walks over everything the test process holds; the agent's own heap is another matter.
    gc.collect()
    gc.disable()
    asyncio.Handle._run = timed  # type: ignore[attr-defined]
    try:
        yield steps
    finally:
        asyncio.Handle._run = run  # type: ignore[attr-defined]
        gc.enable()


def _words(handle: asyncio.Handle) -> str:
    callback = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    return repr(owner)[:300] if isinstance(owner, asyncio.Task) else repr(callback)[:300]
