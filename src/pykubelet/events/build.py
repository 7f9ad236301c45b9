"""Builds the event recorder, with the API server as a sink where there is one."""

from __future__ import annotations

from msgspec import Struct

from pykubelet.edges import Edges
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.events.sink import ApiEventSink
from pykubelet.kit.tasks import Services


class Events(Struct, frozen=True, kw_only=True):
    recorder: EventBroadcaster
    services: Services


def build(edges: Edges, node_name: str) -> Events:
    clock = edges.clock
    if edges.cluster is None:
        return Events(recorder=EventBroadcaster(clock=clock, node_name=node_name), services=Services())
    sink = ApiEventSink(kube=edges.cluster.events, clock=clock, node_name=node_name, metrics=edges.metrics)
    recorder = EventBroadcaster(clock=clock, node_name=node_name, sink=sink)
    return Events(recorder=recorder, services=Services(sinks=[sink]))
