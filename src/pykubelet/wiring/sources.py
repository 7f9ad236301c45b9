"""Where the pods of this node come from, by its settings."""

from __future__ import annotations

from pathlib import Path

from pykubelet.edges import Edges
from pykubelet.kit.tasks import Service
from pykubelet.model.events import EventSink
from pykubelet.model.pod import Source
from pykubelet.pods.gated_fields import field_filter
from pykubelet.settings.settings import Settings
from pykubelet.sources.loading import file_loader, url_loader
from pykubelet.sources.mux import PodMux
from pykubelet.sources.static import StaticSource
from pykubelet.sources.url import UrlSource


def source_kinds(settings: Settings, edges: Edges) -> list[Source]:
    sources = settings.config.sources
    kinds = [Source.FILE] if sources.static_pod_path else []
    kinds += [Source.API] if edges.cluster is not None else []
    return kinds + ([Source.HTTP] if sources.static_pod_url else [])


def make_mux(settings: Settings, edges: Edges, events: EventSink) -> PodMux:
    kinds, filtered = source_kinds(settings, edges), field_filter(settings.gates)
    return PodMux(sources=kinds, events=events, clock=edges.clock, filtered=filtered)


def make_sources(settings: Settings, edges: Edges, mux: PodMux, events: EventSink) -> list[Service]:
    sources = settings.config.sources
    node_name = settings.node_name(edges.machine.hostname)
    may_refer = not settings.gates.enabled("PreventStaticPodAPIReferences")
    found: list[Service] = []
    if sources.static_pod_path:
        found.append(
            StaticSource(
                path=Path(sources.static_pod_path),
                check_period=sources.file_check_frequency,
                load=file_loader(node_name, may_refer=may_refer),
                sets=mux,
                events=events,
                clock=edges.clock,
            )
        )
    if sources.static_pod_url:
        found.append(
            UrlSource(
                url=sources.static_pod_url,
                headers={name: ", ".join(values) for name, values in sources.static_pod_url_header.items()},
                check_period=sources.http_check_frequency,
                load=url_loader(node_name, may_refer=may_refer),
                fetch=edges.fetch,
                sets=mux,
                events=events,
                clock=edges.clock,
            )
        )
    return found
