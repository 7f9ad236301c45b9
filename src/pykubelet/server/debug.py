"""/debug: where the agent spends its time, what its tasks wait for, and how much it logs.

The paths are upstream's, the contents are Python's: stacks as text instead of Go profiles. `profile` samples the
event loop's thread from another one, so it costs nothing while nobody asks.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import host_calls
from pykubelet.server.calls import Answer, Call, Refused, Reply

PROFILES = ("cmdline", "goroutine", "profile", "threads")
SAMPLE_EVERY = 0.01
MAX_SECONDS = 300.0
DEFAULT_SECONDS = 10.0
STACK_LIMIT = 30


class DebugRoutes:
    def __init__(self, *, set_verbosity: Callable[[int], None], clock: Clock) -> None:
        self._set_verbosity = set_verbosity
        self._clock = clock

    async def index(self, call: Call) -> Reply:
        lines = "".join(f"/debug/pprof/{name}\n" for name in PROFILES)
        return Answer.text(f"{lines}\ngoroutine: stacks of all tasks; profile?seconds=N: samples, one stack a line\n")

    async def profile(self, call: Call) -> Reply:
        match call.params["name"]:
            case "cmdline":
                return Answer.text("\0".join(sys.argv))
            case "goroutine":
                return Answer.text(task_stacks())
            case "threads":
                return Answer.text(thread_stacks())
            case "profile":
                return Answer.text(await self._samples(_seconds(call)))
        raise Refused(404, "Unknown profile\n")

    async def _samples(self, seconds: float) -> str:
        """Collapsed stacks with counts, the form flame graph tools read."""
        found: Counter[str] = Counter()
        stop = threading.Event()
        watched = threading.get_ident()

        def sample() -> None:
            while not stop.wait(SAMPLE_EVERY):
                if frame := sys._current_frames().get(watched):
                    found[_collapsed(frame)] += 1

        thread = threading.Thread(target=sample, name="profile", daemon=True)
        thread.start()
        try:
            await self._clock.sleep(seconds)
        finally:
            stop.set()
        await host_calls.run(thread.join, name="ending a profile", within=10.0)
        return "".join(f"{stack} {count}\n" for stack, count in found.most_common())

    async def verbosity(self, call: Call) -> Reply:
        text = (await call.body(64)).decode(errors="replace").strip()
        if not (text.isascii() and text.isdigit()):
            raise Refused(400, f'error when setting value: strconv.ParseInt: parsing "{text[:20]}": invalid syntax\n')
        self._set_verbosity(int(text))
        return Answer.text(f"successfully set klog.logging.verbosity to {int(text)}")


def _seconds(call: Call) -> float:
    text = call.get("seconds")
    if not text:
        return DEFAULT_SECONDS
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= MAX_SECONDS):
        raise Refused(400, f"seconds must be 1 to {MAX_SECONDS:g}\n")
    return float(text)


def _collapsed(frame: FrameType | None) -> str:
    parts: list[str] = []
    while frame is not None:
        code = frame.f_code
        parts.append(f"{code.co_filename.rpartition('/')[2]}:{code.co_name}")
        frame = frame.f_back
    return ";".join(reversed(parts))


def task_stacks() -> str:
    """Every task by name with the chain of what it waits for, outermost first."""
    parts: list[str] = []
    for task in sorted(asyncio.all_tasks(), key=lambda each: each.get_name()):
        parts.append(f"task {task.get_name()}\n" + "".join(f"  {line}\n" for line in _awaited(task.get_coro())))
    return "\n".join(parts)


def _awaited(waiting: Any) -> Iterator[str]:
    for _ in range(STACK_LIMIT):
        frame = next((f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(waiting, name, None))), None)
        if frame is None:
            if waiting is not None:
                yield f"waits for {type(waiting).__name__}"
            return
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
        links = ("cr_await", "gi_yieldfrom", "ag_await")
        waiting = next((w for name in links if (w := getattr(waiting, name, None)) is not None), None)


def thread_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts: list[str] = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}\n" + "".join(traceback.format_stack(frame, STACK_LIMIT)))
    return "\n".join(parts)
