"""What the profiling pages show beside stacks: what held the event loop up, and what is in memory.

`LoopStalls` is Python's counterpart of a contention profile (enableContentionProfiling): there are no locks that tasks
fight for, but one loop that all share, so what matters is who keeps it from turning. A thread looks at the loop's stack
while it stands still, which costs something all the time; hence it runs only when it is wanted.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter
from types import FrameType

from pykubelet.kit.clock import Clock

BEAT = 0.02
LOOK_EVERY = 0.01
LATE = 0.05
"""Seconds the loop may be late before it counts as held up."""
MOST_STACKS = 1000
MOST_TYPES = 200


def collapsed(frame: FrameType | None) -> str:
    """A stack on one line, outermost first, as flame graph tools read it."""
    parts: list[str] = []
    while frame is not None:
        code = frame.f_code
        parts.append(f"{code.co_filename.rpartition('/')[2]}:{code.co_name}")
        frame = frame.f_back
    return ";".join(reversed(parts))


class LoopStalls:
    name = "loop-stalls"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._beats = 0
        self._held: Counter[str] = Counter()
        """Stack to the looks that found the loop standing there."""

    async def run(self) -> None:
        stop = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(threading.get_ident(), stop), name=self.name, daemon=True)
        watcher.start()
        try:
            while True:
                self._beats += 1
                await self._clock.sleep(BEAT)
        finally:
            stop.set()

    def _watch(self, loop_thread: int, stop: threading.Event) -> None:
        seen, looks = 0, 0
        while not stop.wait(LOOK_EVERY):
            if self._beats != seen:
                seen, looks = self._beats, 0
                continue
            looks += 1
            frame = sys._current_frames().get(loop_thread)
            if looks * LOOK_EVERY <= BEAT + LATE or frame is None:
                continue
            stack = collapsed(frame)
            if stack in self._held or len(self._held) < MOST_STACKS:
                self._held[stack] += 1

    def shown(self) -> str:
        """One stack a line with the milliseconds it held the loop, the longest first."""
        milliseconds = round(LOOK_EVERY * 1000)
        found = Counter(dict(self._held)).most_common()
        return "".join(f"{stack} {looks * milliseconds}\n" for stack, looks in found)


def heap_objects() -> str:
    """Objects in memory by type: how many, and their bytes without what they refer to."""
    counts: Counter[type] = Counter()
    sizes: Counter[type] = Counter()
    for each in gc.get_objects():
        counts[type(each)] += 1
        sizes[type(each)] += sys.getsizeof(each, 0)
    lines = [f"{counts.total()} objects, {sizes.total()} bytes"]
    lines += [
        f"{counts[kind]} {size} {kind.__module__}.{kind.__qualname__}" for kind, size in sizes.most_common(MOST_TYPES)
    ]
    return "\n".join(lines) + "\n"
