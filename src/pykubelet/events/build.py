"""Builds the event recorder, with the API server as a sink where there is one."""

from __future__ import annotations

from msgspec import Struct

from pykubelet.clients.kube.port import KubeClient
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.events.sink import ApiEventSink
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Services


class Events(Struct, frozen=True, kw_only=True):
    recorder: EventBroadcaster
    services: Services


def build(client: KubeClient | None, *, clock: Clock, node_name: str, metrics: Registry) -> Events:
    """`client` should be one of its own: events have their own rate (eventRecordQPS, eventBurst)."""
    if client is None:
        return Events(recorder=EventBroadcaster(clock=clock, node_name=node_name), services=Services())
    sink = ApiEventSink(kube=client, clock=clock, node_name=node_name, metrics=metrics)
    recorder = EventBroadcaster(clock=clock, node_name=node_name, sink=sink)
    return Events(recorder=recorder, services=Services(sinks=[sink]))
