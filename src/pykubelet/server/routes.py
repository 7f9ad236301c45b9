"""The table of everything this node serves, and the right each path needs.

Built once per server from the settings: what is switched off answers 405 with upstream's words or is not there.
Does not cover: what the paths do (their own modules).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec import Struct

from pykubelet.server.introspection import ConfigRoutes, DebugRoutes, HealthRoutes
from pykubelet.server.logs import ContainerLogs
from pykubelet.server.metrics import MetricRoutes
from pykubelet.server.node_logs import SystemLogs
from pykubelet.server.pods import PodRoutes
from pykubelet.server.requests import ANY, PROXY, Handler, Refused, Reply, Request, Route
from pykubelet.server.streams import StreamRoutes
from pykubelet.settings.gates import Gates
from pykubelet.settings.schema_server import ServerSettings

STREAM_METHODS = ("GET", "POST")
PODS = ("pods", "proxy")
DISABLED = "Debug endpoints are disabled."
DEBUG_HEADS = ("run", "exec", "attach", "portForward", "containerLogs", "runningpods", "debug/pprof", "logs")


class Handlers(Struct, frozen=True, kw_only=True):
    pods: PodRoutes
    logs: ContainerLogs
    streams: StreamRoutes
    health: HealthRoutes
    metrics: MetricRoutes
    configs: ConfigRoutes
    system_logs: SystemLogs
    debug: DebugRoutes


class Offers(Struct, frozen=True, kw_only=True):
    """The paths that are switched on."""

    debugging: bool = True
    profiling: bool = True
    debug_flags: bool = True
    system_logs: bool = True
    checkpoint: bool = True
    statusz: bool = True
    flagz: bool = True

    @classmethod
    def of(cls, settings: ServerSettings, gates: Gates) -> Offers:
        return cls(
            debugging=settings.enable_debugging_handlers,
            profiling=settings.enable_profiling_handler,
            debug_flags=settings.enable_debug_flags_handler,
            system_logs=settings.enable_system_log_handler,
            checkpoint=gates.enabled("ContainerCheckpoint"),
            statusz=gates.enabled("ComponentStatusz"),
            flagz=gates.enabled("ComponentFlagz"),
        )


def main_routes(handlers: Handlers, offers: Offers) -> list[Route]:
    routes = [*health_routes(handlers.health), *_plain(handlers)]
    if not offers.debugging:
        return [*routes, *_disabled()]
    routes += _debugging(handlers)
    routes += _system_logs(handlers, offers)
    routes += _debug(handlers, offers)
    configs = handlers.configs
    routes.append(Route(pattern="/configz", handler=configs.configz, access=("configz", "proxy")))
    if offers.flagz:
        routes.append(Route(pattern="/flagz", handler=configs.flagz, access=("configz",)))
    if offers.checkpoint:
        pattern = "/checkpoint/{namespace}/{pod}/{container}"
        routes.append(
            Route(pattern=pattern, handler=handlers.pods.checkpoint, access=("checkpoint",), methods=("POST",))
        )
    if offers.statusz:
        paths = sorted({"/statusz", *(route.pattern for route in routes)})
        routes.append(Route(pattern="/statusz", handler=partial(configs.statusz, paths), access=("statusz",)))
    return routes


def read_only_routes(handlers: Handlers) -> list[Route]:
    """The server without authentication: stats and pods, nothing that acts."""
    return [*health_routes(handlers.health), *_plain(handlers), *_disabled()]


def health_routes(health: HealthRoutes) -> list[Route]:
    access = ("healthz", "proxy")
    return [
        Route(pattern="/healthz", handler=health.all, access=access, methods=(ANY,)),
        Route(pattern="/healthz/{check}", handler=health.one, access=access, methods=(ANY,)),
    ]


def _plain(handlers: Handlers) -> Iterator[Route]:
    metrics, access = handlers.metrics, ("metrics",)
    yield Route(pattern="/pods", handler=handlers.pods.list, access=PODS)
    yield Route(pattern="/pods/", handler=handlers.pods.list, access=PODS)
    yield Route(pattern="/metrics", handler=metrics.metrics, access=access)
    yield Route(pattern="/metrics/cadvisor", handler=metrics.cadvisor, access=access)
    yield Route(pattern="/metrics/resource", handler=metrics.resource, access=access)
    yield Route(pattern="/metrics/probes", handler=metrics.probes, access=access)
    yield Route(pattern="/metrics/slis", handler=metrics.slis, access=access)
    yield Route(pattern="/stats/summary", handler=metrics.summary, access=("stats",), methods=("GET", "POST"))


def _debugging(handlers: Handlers) -> Iterator[Route]:
    pods, streams = handlers.pods, handlers.streams
    yield Route(pattern="/runningpods", handler=pods.running, access=PODS)
    yield Route(pattern="/runningpods/", handler=pods.running, access=PODS)
    yield Route(
        pattern="/containerLogs/{namespace}/{pod}/{container}",
        handler=handlers.logs.handle,
        access=PROXY,
        long_running=True,
    )
    yield Route(pattern="/explain/{namespace}/{pod}", handler=handlers.configs.explain, access=PROXY)
    for head, handler in (("exec", streams.exec), ("attach", streams.attach)):
        for rest in ("{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"):
            yield Route(
                pattern=f"/{head}/{rest}", handler=handler, access=PROXY, methods=STREAM_METHODS, long_running=True
            )
    for rest in ("{namespace}/{pod}", "{namespace}/{pod}/{uid}"):
        yield Route(
            pattern=f"/portForward/{rest}",
            handler=streams.port_forward,
            access=PROXY,
            methods=STREAM_METHODS,
            long_running=True,
        )
    for rest in ("{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"):
        yield Route(pattern=f"/run/{rest}", handler=pods.run, access=PROXY, methods=("POST",))


def _system_logs(handlers: Handlers, offers: Offers) -> Iterator[Route]:
    handler = handlers.system_logs.handle if offers.system_logs else _refuse("logs endpoint is disabled.")
    methods = ("GET",) if offers.system_logs else (ANY,)
    for pattern in ("/logs", "/logs/{path:*}"):
        yield Route(pattern=pattern, handler=handler, access=("log",), methods=methods, long_running=True)


def _debug(handlers: Handlers, offers: Offers) -> Iterator[Route]:
    debug = handlers.debug
    if offers.profiling:
        yield Route(pattern="/debug/pprof", handler=debug.index, access=PROXY)
        yield Route(pattern="/debug/pprof/", handler=debug.index, access=PROXY)
        yield Route(pattern="/debug/pprof/{name}", handler=debug.profile, access=PROXY, long_running=True)
    else:
        yield from _off("debug/pprof", "profiling endpoint is disabled.")
    if offers.debug_flags:
        yield Route(pattern="/debug/flags/v", handler=debug.verbosity, access=PROXY, methods=("PUT",))
    else:
        yield from _off("debug/flags/v", "flags endpoint is disabled.")


def _disabled() -> Iterator[Route]:
    for head in DEBUG_HEADS:
        yield from _off(head, DISABLED)


def _off(head: str, text: str) -> Iterator[Route]:
    access = {"runningpods": PODS, "logs": ("log",)}.get(head, PROXY)
    for pattern in (f"/{head}", f"/{head}/{{rest:*}}"):
        yield Route(pattern=pattern, handler=_refuse(text), access=access, methods=(ANY,))


def _refuse(text: str) -> Handler:
    async def handler(request: Request) -> Reply:
        raise Refused(405, text + "\n")

    return handler
