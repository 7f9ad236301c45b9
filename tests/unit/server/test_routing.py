"""Routes: matching, and the right each path needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.server.requests import BadRoute, Reply, Request, Response, Route, Router
from pykubelet.server.routes import Offers, main_routes
from tests.unit.server.support import ServedNode


async def nothing(call: Request) -> Reply:
    return Response()


def route(pattern: str, *methods: str, access: tuple[str, ...] = ("proxy",)) -> Route:
    return Route(pattern=pattern, handler=nothing, access=access, methods=methods or ("GET",))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (route("/x", access=()), "names no right"),
        (route("/x", access=("everything",)), "unknown subresource everything"),
        (route("x"), "needs a path"),
        (route("/x/{rest:*}/y"), "goes on after"),
    ],
)
def test_a_route_without_a_right_cannot_be_served(bad: Route, why: str) -> None:
    with pytest.raises(BadRoute, match=why):
        Router([route("/ok"), bad])


def test_the_server_refuses_to_be_made_with_such_a_route(tmp_path: Path) -> None:
    with pytest.raises(BadRoute, match="/local names no right"):
        ServedNode(tmp_path).server(local_socket=tmp_path / "s", local_routes=[route("/local", access=())])


@pytest.mark.parametrize(
    ("method", "path", "pattern", "params"),
    [
        ("GET", "/pods", "/pods", {}),
        ("GET", "/exec/ns/pod/c", "/exec/{ns}/{pod}/{c}", {"ns": "ns", "pod": "pod", "c": "c"}),
        ("GET", "/exec/ns/pod/uid/c", "/exec/{ns}/{pod}/{uid}/{c}", {"ns": "ns", "pod": "pod", "uid": "uid", "c": "c"}),
        ("GET", "/logs/", "/logs/{path:*}", {"path": ""}),
        ("GET", "/logs/a/b//c", "/logs/{path:*}", {"path": "a/b//c"}),
        ("GET", "/debug/fixed", "/debug/fixed", {}),
        ("GET", "/debug/other", "/debug/{name}", {"name": "other"}),
        ("BREW", "/any", "/any", {}),
        ("POST", "/pods", None, 405),
        ("GET", "/pods/", None, 404),
        ("GET", "/exec/ns//c", None, 404),
        ("GET", "/exec/ns/pod", None, 404),
        ("GET", "pods", "/pods", {}),
        ("GET", "/", None, 404),
    ],
)
def test_where_a_request_goes(method: str, path: str, pattern: str | None, params: object) -> None:
    router = Router(
        [
            route("/pods"),
            route("/exec/{ns}/{pod}/{c}"),
            route("/exec/{ns}/{pod}/{uid}/{c}"),
            route("/logs/{path:*}"),
            route("/debug/{name}"),
            route("/debug/fixed"),
            route("/any", "*"),
        ]
    )
    match = router.find(method, path)
    if match.route is None:
        assert (pattern, params) == (None, match.status)
    else:
        assert (match.route.pattern, match.params) == (pattern, params)


@pytest.mark.parametrize(
    ("path", "access"),
    [
        ("/pods", ("pods", "proxy")),
        ("/runningpods/", ("pods", "proxy")),
        ("/healthz", ("healthz", "proxy")),
        ("/healthz/syncloop", ("healthz", "proxy")),
        ("/configz", ("configz", "proxy")),
        ("/stats/summary", ("stats",)),
        ("/metrics", ("metrics",)),
        ("/metrics/cadvisor", ("metrics",)),
        ("/metrics/resource", ("metrics",)),
        ("/metrics/probes", ("metrics",)),
        ("/logs/", ("log",)),
        ("/logs/syslog", ("log",)),
        ("/checkpoint/a/b/c", ("checkpoint",)),
        ("/statusz", ("statusz",)),
        ("/flagz", ("configz",)),
        ("/exec/a/b/c", ("proxy",)),
        ("/attach/a/b/uid/c", ("proxy",)),
        ("/run/a/b/c", ("proxy",)),
        ("/portForward/a/b", ("proxy",)),
        ("/containerLogs/a/b/c", ("proxy",)),
        ("/explain/a/b", ("proxy",)),
        ("/debug/pprof/profile", ("proxy",)),
        ("/debug/flags/v", ("proxy",)),
        ("/unknown", ("proxy",)),
    ],
)
def test_the_right_each_path_needs(path: str, access: tuple[str, ...], tmp_path: Path) -> None:
    router = Router(main_routes(ServedNode(tmp_path).handlers(), Offers()))
    method = "POST" if path.startswith(("/checkpoint", "/run/")) else "PUT" if path.endswith("/v") else "GET"
    match = router.find(method, path)
    assert match.access == access
    assert (match.route is None) == (path == "/unknown")


async def test_what_is_switched_off_says_so(tmp_path: Path) -> None:
    handlers = ServedNode(tmp_path).handlers()
    off = Router(main_routes(handlers, Offers(debugging=False)))
    for path in ("/exec/a/b/c", "/logs/", "/run/a/b/c", "/debug/pprof/heap", "/runningpods/", "/containerLogs/a/b/c"):
        assert off.find("GET", path).route is not None, path
    for path in ("/configz", "/flagz", "/statusz", "/checkpoint/a/b/c", "/debug/flags/v", "/explain/a/b"):
        assert off.find("GET", path).status == 404, path
    part = Router(main_routes(handlers, Offers(profiling=False, debug_flags=False, system_logs=False)))
    texts = {"/debug/pprof/heap": "profiling", "/debug/flags/v": "flags", "/logs/x": "logs"}
    for path, word in texts.items():
        found = part.find("GET", path).route
        assert found is not None
        with pytest.raises(Exception, match=f"{word} endpoint is disabled"):
            await found.handler(Request(path=path))
