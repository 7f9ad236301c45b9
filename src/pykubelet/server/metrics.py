"""/metrics, its sisters and /stats/summary; and the counters the server keeps about itself.

The agent's own instruments are in the registry, the probes' in one of their own. Stats of pods and the machine
(/metrics/cadvisor, /metrics/resource, /stats/summary) come from stats/source.py; without it those paths answer 503.
Only the text format is offered; every scraper takes it.
"""

from __future__ import annotations

import gzip
import platform
from collections.abc import Callable, Mapping
from functools import partial

from pykubelet.clients.host.process import process_stats
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.metrics import Registry, render_labels
from pykubelet.server.requests import Refused, Reply, Request, Response
from pykubelet.settings.gates import known_gates
from pykubelet.settings.settings import Settings
from pykubelet.stats.source import NodeStatsSource

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COMPRESS_FROM = 1024
THREAD_FROM = 32 * 1024
"""Bytes whose compression takes so long that others should not wait for it."""
PROCESS_HELP = {
    "resident_memory_bytes": "Resident memory size in bytes.",
    "virtual_memory_bytes": "Virtual memory size in bytes.",
    "start_time_seconds": "Start time of the process since unix epoch in seconds.",
    "open_fds": "Number of open file descriptors.",
    "max_fds": "Maximum number of open file descriptors.",
}
GATE_STAGES = {"Alpha": "ALPHA", "Beta": "BETA", "GA": "", "Deprecated": "DEPRECATED"}
DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class MetricRoutes:
    def __init__(
        self,
        *,
        agent: Registry,
        probes: Callable[[], str],
        health: Callable[[], Mapping[str, str]],
        stats: NodeStatsSource | None,
    ) -> None:
        """`probes` gives the text of /metrics/probes, `health` check name to problem."""
        self._agent = agent
        self._probes = probes
        self._health = health
        self._stats = stats
        self._checks: dict[tuple[str, str], int] = {}

    async def metrics(self, request: Request) -> Reply:
        return await exposition(request, self._agent.expose())

    async def probes(self, request: Request) -> Reply:
        return await exposition(request, self._probes())

    async def cadvisor(self, request: Request) -> Reply:
        return await exposition(request, await self._source().cadvisor())

    async def resource(self, request: Request) -> Reply:
        return await exposition(request, await self._source().resource())

    async def summary(self, request: Request) -> Reply:
        only = request.get("only_cpu_and_memory").lower() in ("true", "1", "t")
        return Response.json(await self._source().summary(only_cpu_and_memory=only))

    def _source(self) -> NodeStatsSource:
        if self._stats is None:
            raise Refused(503, "stats are not collected on this node")
        return self._stats

    async def slis(self, request: Request) -> Reply:
        lines = [
            "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a single healthcheck.",
            "# TYPE kubernetes_healthcheck gauge",
        ]
        for name, problem in self._health().items():
            labels = render_labels(("name", "type"), (name, "healthz"))
            lines.append(f"kubernetes_healthcheck{labels} {0 if problem else 1}")
            outcome = (name, "error" if problem else "success")
            self._checks[outcome] = self._checks.get(outcome, 0) + 1
        lines += [
            "# HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all healthcheck.",
            "# TYPE kubernetes_healthchecks_total counter",
        ]
        for (name, status), count in self._checks.items():
            labels = render_labels(("name", "type", "status"), (name, "healthz", status))
            lines.append(f"kubernetes_healthchecks_total{labels} {count}")
        return await exposition(request, "\n".join(lines) + "\n")


async def exposition(request: Request, text: str) -> Response:
    encodings = [word.partition(";")[0].strip() for word in request.tokens("accept-encoding")]
    if "gzip" not in encodings or len(text) < COMPRESS_FROM:
        return Response(body=text.encode(), content_type=CONTENT_TYPE)
    if len(text) < THREAD_FROM:
        body = _packed(text)
    else:
        body = await host_calls.run(partial(_packed, text), name="packing metrics", within=60.0)
    return Response(body=body, content_type=CONTENT_TYPE, headers={"Content-Encoding": "gzip"})


def _packed(text: str) -> bytes:
    return gzip.compress(text.encode(), compresslevel=1)


class RequestMetrics:
    """Upstream's metrics of requests."""

    def __init__(self, registry: Registry) -> None:
        labels = ("long_running", "method", "path", "server_type")
        self._total = registry.counter(
            "kubelet_http_requests_total", "Number of the http requests received since the server started", labels
        )
        self._inflight = registry.gauge(
            "kubelet_http_inflight_requests", "Number of the inflight http requests", labels
        )
        self._duration = registry.histogram(
            "kubelet_http_requests_duration_seconds",
            "Duration in seconds to serve http requests",
            labels,
            DURATION_BUCKETS,
        )
        self._streams = registry.counter(
            "kubelet_websocket_streaming_requests_total",
            "Number of streaming requests over WebSocket, by kind",
            ("subresource",),
        )

    def begin(self, labels: tuple[str, str, str, str]) -> None:
        self._total.inc(*labels)
        self._inflight.inc(*labels)

    def end(self, labels: tuple[str, str, str, str], seconds: float) -> None:
        self._inflight.inc(*labels, by=-1.0)
        self._duration.observe(seconds, *labels)

    def websocket(self, subresource: str) -> None:
        self._streams.inc(subresource)


def path_label(path: str, heads: frozenset[str]) -> str:
    """The first segment if it is one of ours, two for metrics; callers must not be able to invent series."""
    parts = path.strip("/").split("/")
    if parts[0] == "metrics" and len(parts) > 1:
        two = "/".join(parts[:2])
        return two if two in heads else "other"
    return parts[0] if parts[0] in heads else "other"


METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


def method_label(method: str) -> str:
    return method if method in METHODS else "other"


def add_agent_metrics(metrics: Registry, settings: Settings) -> None:
    """Add metrics about the agent itself: its version, its feature gates, its process."""
    version = settings.kubernetes_version
    major, minor = version.lstrip("v").split(".")[:2]
    labels = ("major", "minor", "git_version", "platform", "python_version")
    machine = f"linux/{platform.machine()}"
    build = metrics.gauge("kubernetes_build_info", "What this agent was built as; always 1.", labels)
    build.set(1, major, minor, version, machine, platform.python_version())
    host_calls.measure(metrics)
    gates = metrics.gauge("kubernetes_feature_enabled", "Feature gates, 1 for on.", ("name", "stage"))
    for gate in known_gates().values():
        stage = GATE_STAGES.get(gate.stage, gate.stage.upper())
        gates.set(float(settings.gates.enabled(gate.name)), gate.name, stage)
    total = metrics.counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.")
    gauges = {name: metrics.gauge(f"process_{name}", text) for name, text in PROCESS_HELP.items()}

    def refresh() -> None:
        found = process_stats()
        total.inc(by=found["cpu_seconds_total"] - total.value())
        for name, gauge in gauges.items():
            gauge.set(found[name])

    metrics.on_scrape(refresh)
