"""The composition root: every subsystem is built here, once, from the context, the edges and the subsystems before it.

`Edges` is everything outside this process; tests replace it and nothing else. What subsystems cause in each other is in
`reactions.py`. Leaving `running` stops producers first, then managers, then sinks; pods keep running without the agent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec.structs import asdict

from pykubelet import api_server, reactions
from pykubelet.cm import build as cm_build
from pykubelet.cm.admission import NodeNow
from pykubelet.cm.node_spec import node_spec
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.events import build as events_build
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.eviction import build as eviction_build
from pykubelet.explain.service import Explainer
from pykubelet.kit.tasks import Services
from pykubelet.node.conditions import NodeConditions
from pykubelet.pleg.pleg import Pleg
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.table import PodTable
from pykubelet.probes.manager import ProbeManager
from pykubelet.recorder import LifeRecorder
from pykubelet.runtime import build as runtime_build
from pykubelet.server import build as server_build
from pykubelet.settings.settings import Settings
from pykubelet.sources import build as sources_build
from pykubelet.stats import build as stats_build
from pykubelet.sync.build import Subsystems, Sync
from pykubelet.sync.build import build as build_sync
from pykubelet.volumes import build as volumes_build


class Kubelet(Subsystems, frozen=True, kw_only=True):
    """The agent: its subsystems, and what runs."""

    ctx: Context
    events: EventBroadcaster
    sync: Sync
    server: server_build.Server
    services: Services

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the agent for as long as the block lasts. What cannot be opened is an error before anything starts."""
        self.cm.open()
        self.server.open()
        async with self.services.running():
            yield


def assemble(settings: Settings, edges: Edges) -> Kubelet:
    clock, metrics, cri, name = edges.clock, edges.metrics, edges.cri, settings.node_name(edges.machine.hostname)
    events = events_build.build(edges, name)
    ctx = Context(settings, name, clock, events.recorder, LifeRecorder(clock), metrics, started=clock.now())
    table, conditions, spec = PodTable(), NodeConditions(ctx.signals), node_spec(settings, edges)
    runtime_state, pleg = RuntimeState(ctx, cri), Pleg(ctx, cri, table, edges.event_source)
    sources = sources_build.build(ctx, edges)
    ready = sources.mux.all_ready
    api = api_server.build(ctx, edges, table, spec, runtime_state, sources.mux.deliver)
    node = NodeNow(info=api.node_info, pressure=conditions.pressures, shutting_down=conditions.shutting_down)
    cm = cm_build.build(ctx, edges, spec, table, node, ready, api.resource_claims, api.runtime_classes, runtime_state)
    volumes = volumes_build.build(ctx, edges, api.volume_objects, cm.admission, api.supports_recursive_read_only)
    plugins = cm_build.plugin_services(ctx, edges, cm, volumes.csi_drivers, ready)
    runtime = runtime_build.build(ctx, edges, spec, table, pleg, cm, volumes, api.container_objects, ready)
    probes = ProbeManager(ctx, cri=cri, network=edges.network, table=table)
    explainer = Explainer(ctx, table, volumes.manager, runtime_state, api.unreadable_pods, runtime.pacer.position)
    below = Subsystems(table, conditions, sources, pleg, runtime_state, api, cm, volumes, runtime, probes, explainer)
    sync = build_sync(ctx, edges, below)
    stats = stats_build.build(ctx, edges, spec, table, volumes.manager)
    eviction = eviction_build.build(ctx, edges, table, stats, conditions, runtime, sync.evictor)
    reporting = api_server.report(ctx, edges, api, conditions, pleg, cm, volumes)
    server = server_build.build(ctx, edges, events.recorder, below, sync, stats)
    reactions.connect(ctx, below, sync, reporting, server.pod_feed)
    first = Services(sinks=[runtime_state, pleg], managers=[probes])
    services = Services.of(
        *(first, cm.services, runtime.services, events.services, volumes.services, sync.services, sources.services),
        *(plugins, api.services, reporting.services, eviction, server.services),
    )
    return Kubelet(**asdict(below), ctx=ctx, events=events.recorder, sync=sync, server=server, services=services)
