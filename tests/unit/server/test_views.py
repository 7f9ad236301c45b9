"""Health, metrics, settings and debug pages."""

from __future__ import annotations

import asyncio
import gzip
import time
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pykubelet.kit.clock import LoopClock, SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet, running
from pykubelet.model.errors import PykubeletError
from pykubelet.server.app import App
from pykubelet.server.introspection import LOG, PING, ConfigRoutes, DebugRoutes, HealthCheck, HealthRoutes
from pykubelet.server.metrics import MetricRoutes, RequestMetrics, path_label
from pykubelet.server.profiles import LoopStalls
from pykubelet.server.requests import Refused, Reply, Request, Response, Route, Router


def shown(reply: Reply) -> tuple[int, str]:
    assert isinstance(reply, Response)
    return reply.status, reply.body.decode()


def broken() -> str:
    raise RuntimeError("oops")


async def test_health_in_upstreams_words() -> None:
    well = HealthRoutes([PING, LOG])
    assert shown(await well.all(Request())) == (200, "ok")
    verbose = Request(query=[("verbose", ""), ("exclude", "log"), ("exclude", "nope")])
    assert shown(await well.all(verbose)) == (
        200,
        "[+]ping ok\n[+]log excluded: ok\n"
        'warn: some health checks cannot be excluded: no matches for "nope"\nhealthz check passed\n',
    )
    ill = HealthRoutes([PING, HealthCheck("syncloop", lambda: "no sync for 5m"), HealthCheck("bug", broken)])
    assert shown(await ill.all(Request())) == (
        500,
        "[+]ping ok\n[-]syncloop failed: reason withheld\n[-]bug failed: reason withheld\nhealthz check failed\n",
    )
    assert shown(await ill.one(Request(params={"check": "ping"}))) == (200, "ok")
    assert shown(await ill.one(Request(params={"check": "syncloop"})))[0] == 500
    with pytest.raises(Refused):
        await ill.one(Request(params={"check": "nope"}))


class Figures:
    async def summary(self, *, only_cpu_and_memory: bool) -> bytes:
        return b'{"only": true}' if only_cpu_and_memory else b"{}"

    async def cadvisor(self) -> str:
        return "container_last_seen 1\n"

    async def resource(self) -> str:
        raise PykubeletError("no cgroups")


def metric_routes(registry: Registry, stats: Any = None) -> MetricRoutes:
    health = HealthRoutes([PING, HealthCheck("syncloop", lambda: "late")])
    return MetricRoutes(agent=registry, probes=lambda: "p 1\n", health=health.problems, stats=stats)


async def test_metrics_can_be_parsed_and_packed() -> None:
    registry = Registry()
    counter = registry.counter("kubelet_x_total", 'Text with \\ and "quotes"', ("name",))
    for number in range(100):
        counter.inc(f'a"\n\\{number}')
    RequestMetrics(registry).begin(("false", "GET", "pods", "readwrite"))
    routes = metric_routes(registry)
    plain = await routes.metrics(Request())
    packed = await routes.metrics(Request(headers=[("accept-encoding", "deflate, gzip;q=0.5")]))
    assert isinstance(plain, Response) and isinstance(packed, Response)
    assert plain.content_type.startswith("text/plain; version=0.0.4")
    assert gzip.decompress(packed.body) == plain.body
    families = {family.name: family for family in text_string_to_metric_families(plain.body.decode())}
    assert len(families["kubelet_x"].samples) == 100
    assert families["kubelet_http_requests"].samples[0].labels == {
        "long_running": "false",
        "method": "GET",
        "path": "pods",
        "server_type": "readwrite",
    }
    slis = shown(await routes.slis(Request()))[1]
    assert 'kubernetes_healthcheck{name="syncloop",type="healthz"} 0' in slis
    assert 'kubernetes_healthchecks_total{name="ping",type="healthz",status="success"} 1' in slis
    list(text_string_to_metric_families(slis))


async def test_figures_come_from_their_source() -> None:
    routes = metric_routes(Registry(), Figures())
    assert shown(await routes.summary(Request(query=[("only_cpu_and_memory", "true")]))) == (200, '{"only": true}')
    assert shown(await routes.summary(Request())) == (200, "{}")
    assert shown(await routes.cadvisor(Request())) == (200, "container_last_seen 1\n")
    assert shown(await routes.probes(Request())) == (200, "p 1\n")
    with pytest.raises(Refused) as caught:
        await metric_routes(Registry()).resource(Request())
    assert caught.value.status == 503


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/pods", "pods"),
        ("/exec/a/b/c", "exec"),
        ("/metrics", "metrics"),
        ("/metrics/probes", "metrics/probes"),
        ("/metrics/evil", "other"),
        ("/evil", "other"),
        ("/", "other"),
    ],
)
def test_callers_cannot_invent_series(path: str, label: str) -> None:
    assert path_label(path, frozenset({"pods", "exec", "metrics", "metrics/probes"})) == label


def configs(explain: Any = None) -> ConfigRoutes:
    return ConfigRoutes(
        configz=lambda: {"port": 10250},
        flags=lambda: {"v": "2", "config": "/etc/c"},
        explain=explain,
        version="v1.36.4",
        started=LoopClock().now() - 3725 if explain else 0.0,
        clock=LoopClock(),
    )


async def test_what_the_agent_was_told() -> None:
    routes = configs(lambda namespace, name: {"pod": name, "steps": [1, 2]} if name == "web" else None)
    assert shown(await routes.configz(Request())) == (200, '{"kubeletconfig":{"port":10250}}\n')
    assert shown(await routes.flagz(Request()))[1].endswith("\n\nconfig=/etc/c\nv=2\n")
    status = shown(await routes.statusz(["/healthz", "/pods"], Request()))[1]
    assert "Up: 1 hr 02 min 05 sec" in status and "Paths: /healthz /pods" in status
    web = Request(params={"namespace": "ns", "pod": "web"})
    assert shown(await routes.explain(web)) == (200, '{"pod":"web","steps":[1,2]}\n')
    for other in (routes.explain(Request(params={"namespace": "ns", "pod": "no"})), configs().explain(web)):
        with pytest.raises(Refused) as caught:
            await other
        assert caught.value.status == 404


@pytest.mark.real_loop
async def test_debug_pages() -> None:
    levels: list[int] = []
    routes = DebugRoutes(set_verbosity=levels.append, clock=LoopClock())

    async def ask(name: str, **query: str) -> str:
        return shown(await routes.profile(Request(params={"name": name}, query=list(query.items()))))[1]

    async def outer() -> None:
        await asyncio.Event().wait()

    async with TaskSet("test") as tasks:
        tasks.spawn(outer(), name="waiter")
        await asyncio.sleep(0)
        stacks = await ask("goroutine")
    assert "task waiter" in stacks and "outer" in stacks and "Event.wait" in stacks
    assert "thread MainThread" in await ask("threads")
    assert ";" in await ask("profile", seconds="1")
    assert await ask("cmdline")
    assert "builtins.dict" in await ask("heap")
    assert await ask("block") == "enableContentionProfiling is off\n"
    for name, query in (("mutex", {}), ("profile", {"seconds": "x"}), ("profile", {"seconds": "301"})):
        with pytest.raises(Refused):
            await ask(name, **query)

    async def body(limit: int) -> bytes:
        return b"5\n"

    await routes.verbosity(Request(method="PUT", body=body))
    assert levels == [5]
    with pytest.raises(Refused):
        await routes.verbosity(Request(method="PUT"))


@pytest.mark.real_loop
async def test_what_holds_the_loop_up_is_seen() -> None:
    stalls = LoopStalls(SystemClock())
    routes = DebugRoutes(set_verbosity=lambda level: None, clock=LoopClock(), stalls=stalls.shown)

    def hold_up() -> None:
        time.sleep(0.5)

    async with running(stalls):
        await asyncio.sleep(0.1)
        hold_up()
        await asyncio.sleep(0)
        _, text = shown(await routes.profile(Request(params={"name": "block"})))
    (line,) = [line for line in text.splitlines() if line.partition(" ")[0].endswith(":hold_up")]
    assert 100 <= int(line.rpartition(" ")[2]) <= 1000


async def test_a_bug_in_a_route_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def bug(call: Request) -> Reply:
        raise ValueError("internal detail")

    async def known(call: Request) -> Reply:
        raise PykubeletError("no cgroups")

    routes = [Route(pattern=f"/{h.__name__}", handler=h, access=("proxy",)) for h in (bug, known)]
    metrics = RequestMetrics(Registry())
    app = App(router=Router(routes), gate=None, metrics=metrics, server_type="local", clock=LoopClock())
    assert shown(await app.handle(Request(path="/bug"), None, lambda key: None, ExitStack())) == (
        500,
        "Internal Error: see the agent's log\n",
    )
    assert "internal detail" in caplog.text
    assert shown(await app.handle(Request(path="/known"), None, lambda key: None, ExitStack())) == (
        500,
        "Internal Error: no cgroups\n",
    )
