"""Builds the pod sources that the settings name, and the mux that merges them."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from pykubelet.api.manifest import Allowed
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.kit.tasks import Service, Services
from pykubelet.model.pod import Source
from pykubelet.pods.admission import HOST_NETWORK_GATE
from pykubelet.pods.gated_fields import field_filter
from pykubelet.settings.settings import Settings
from pykubelet.sources.manifests import file_loader, url_loader
from pykubelet.sources.mux import PodMux
from pykubelet.sources.remote import UrlSource
from pykubelet.sources.static import StaticSource


class Sources(Struct, frozen=True, kw_only=True):
    mux: PodMux
    services: Services
    """The static sources; that of the API server belongs to the watch it reads."""


def source_kinds(settings: Settings, edges: Edges) -> list[Source]:
    sources = settings.config.sources
    kinds = [Source.FILE] if sources.static_pod_path else []
    kinds += [Source.API] if edges.cluster is not None else []
    return kinds + ([Source.HTTP] if sources.static_pod_url else [])


def build(ctx: Context, edges: Edges) -> Sources:
    config, gates = ctx.settings.config.sources, ctx.settings.gates
    mux = PodMux(
        sources=source_kinds(ctx.settings, edges), events=ctx.events, clock=ctx.clock, filtered=field_filter(gates)
    )
    allowed = Allowed(
        api_references=not gates.enabled("PreventStaticPodAPIReferences"),
        users_in_host_network=gates.enabled(HOST_NETWORK_GATE),
    )
    found: list[Service] = []
    if config.static_pod_path:
        found.append(
            StaticSource(
                path=Path(config.static_pod_path),
                check_period=config.file_check_frequency,
                load=file_loader(ctx.node_name, allowed=allowed),
                deliver=mux.deliver,
                events=ctx.events,
                clock=ctx.clock,
            )
        )
    if config.static_pod_url:
        found.append(
            UrlSource(
                url=config.static_pod_url,
                headers={name: ", ".join(values) for name, values in config.static_pod_url_header.items()},
                check_period=config.http_check_frequency,
                load=url_loader(ctx.node_name, allowed=allowed),
                fetch=edges.fetch,
                deliver=mux.deliver,
                events=ctx.events,
                clock=ctx.clock,
            )
        )
    return Sources(mux=mux, services=Services(producers=found))
