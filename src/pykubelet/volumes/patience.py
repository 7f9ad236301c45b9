"""A volume with many files takes long to give to the pod's group: who waits for it is told, as upstream tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain, repeat

from pykubelet.model.events import EventSink
from pykubelet.model.reasons import WARNING
from pykubelet.volumes.plugins.plugin import SetUp

SLOW_OWNERSHIP = "VolumePermissionChangeInProgress"
FIRST, NEXT = 30.0, 60.0
"""Seconds until it is told, and told again."""


def tell_slow_ownership(events: EventSink, task: SetUp, *, first: bool) -> None:
    where = f"Setting volume ownership for {task.path}"
    if first:
        text = f"{where} is taking longer than expected, consider using OnRootMismatch"
    else:
        text = f"{where}, processed {task.feedback.files} files."
    events.pod_event(task.pod, WARNING, SLOW_OWNERSHIP, text)


async def wait_for_ownership(future: asyncio.Future[None], events: EventSink, task: SetUp) -> None:
    """Until the work is done; a cancel leaves it running."""
    waits: Iterator[float] = chain((FIRST,), repeat(NEXT))
    first = True
    while True:
        await asyncio.wait({future}, timeout=next(waits))
        if future.done():
            return future.result()
        if task.feedback.files:
            tell_slow_ownership(events, task, first=first)
            first = False
