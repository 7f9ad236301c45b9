"""Make and send spans where `tracing` is configured; elsewhere nothing is imported: the libraries are an extra."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pykubelet.kit import tracing
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.settings import PYKUBELET_VERSION, Settings

DEFAULT_ENDPOINT = "localhost:4317"
MISSING = (
    "tracing: its libraries are not installed ({error}); "
    "install them with: pip install 'pykubelet[tracing]', or remove tracing from the configuration"
)


@asynccontextmanager
async def spans_sent(settings: Settings, *, clock: Clock, metrics: Registry) -> AsyncIterator[None]:
    """Raises SettingsError when tracing is configured and not installed."""
    chosen = settings.config.process.tracing
    if chosen is None:
        yield
        return
    try:
        from pykubelet.clients.otlp.sender import SpanSender
        from pykubelet.clients.otlp.tracer import OtelTracer
    except ImportError as error:
        raise SettingsError([MISSING.format(error=error)]) from error
    sender = SpanSender(chosen.endpoint or DEFAULT_ENDPOINT, clock=clock, metrics=metrics)
    tracer = OtelTracer(
        samples_per_million=chosen.sampling_rate_per_million or 0,
        host=settings.node_name(socket.gethostname()),
        version=PYKUBELET_VERSION,
        ended=sender.take,
    )
    async with running(sender):
        with tracing.traced(tracer):
            yield
