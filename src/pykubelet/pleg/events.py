"""Where hints come from: the runtime's event stream, opened again after a growing pause when it breaks.

Events are hints only, so nothing is lost by a break: `active` says whether to relist often instead. Which kind of
stream the runtime has is found out by the CRI client. Does not cover: what a hint causes (pleg.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pykubelet.clients.cri.port import EventSource
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import CriError, Unimplemented
from pykubelet.model.runtime_status import ContainerEvent

logger = logging.getLogger(__name__)

TRIAL = 2.0
"""A stream that says nothing counts as working after so many seconds: opening one is not acknowledged."""
UNOFFERED_PAUSE = 60.0
"""Seconds until a runtime that offers no stream at all is tried again; it may have been upgraded."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class EventFeed:
    def __init__(
        self,
        *,
        source: EventSource | None,
        clock: Clock,
        on_event: Callable[[ContainerEvent], None],
        on_change: Callable[[bool], None],
        metrics: Registry | None = None,
    ) -> None:
        self._offered = source
        self._clock = clock
        self._on_event = on_event
        self._on_change = on_change
        self._pause = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._source = ""
        self._complained = False
        self._measure = _Measures(metrics or Registry())

    @property
    def active(self) -> bool:
        """Whether a stream is open and believed to work."""
        return bool(self._source)

    @property
    def source(self) -> str:
        """The name of the stream in use; empty while there is none."""
        return self._source

    async def run(self) -> None:
        """Follow the stream for ever. Without a source it only waits."""
        if self._offered is None:
            await asyncio.Event().wait()
            return
        while True:
            offered = await self._try(self._offered)
            await self._clock.sleep(self._pause.next() if offered else UNOFFERED_PAUSE)

    async def _try(self, source: EventSource) -> bool:
        """Follow the stream until it breaks; False when the runtime does not offer it."""
        try:
            await self._follow(source)
        except Unimplemented:
            logger.debug("runtime does not offer this event stream", extra={"source": source.name})
            return False
        except CriError as error:
            self._complain(source, error)
        else:
            self._complain(source, None)
        finally:
            self._set_source("")
        return True

    async def _follow(self, source: EventSource) -> None:
        stream = source.open()
        trial = asyncio.get_running_loop().call_later(TRIAL, self._believe, source)
        try:
            async for event in stream:
                self._believe(source)
                if event.created_at:
                    self._measure.latency.observe(max(0.0, self._clock.now() - event.created_at / 1e9))
                self._on_event(event)
        finally:
            trial.cancel()
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    def _believe(self, source: EventSource) -> None:
        if self._source != source.name:
            self._pause.reset()
            self._complained = False
            self._measure.opened.inc()
            logger.info("runtime events are followed", extra={"source": source.name})
            self._set_source(source.name)

    def _set_source(self, name: str) -> None:
        changed = bool(name) != bool(self._source)
        self._source = name
        if changed:
            self._on_change(bool(name))

    def _complain(self, source: EventSource, error: CriError | None) -> None:
        self._measure.broken.inc()
        level = logging.DEBUG if self._complained else logging.WARNING
        self._complained = True
        problem = str(error) if error is not None else "the runtime ended it"
        logger.log(level, "event stream broke, will be opened again", extra={"source": source.name, "problem": problem})


class _Measures:
    def __init__(self, metrics: Registry) -> None:
        self.opened = metrics.counter(
            "kubelet_evented_pleg_connection_success_count", "Event streams of the runtime that worked."
        )
        self.broken = metrics.counter(
            "kubelet_evented_pleg_connection_error_count", "Event streams of the runtime that broke."
        )
        self.latency = metrics.histogram(
            "kubelet_evented_pleg_connection_latency_seconds", "From an event in the runtime to its arrival."
        )
