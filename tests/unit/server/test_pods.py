"""/pods, /runningpods, /run, /checkpoint, and what exec, attach and port-forward ask of the runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import PodStatus
from pykubelet.kit.clock import LoopClock
from pykubelet.model.errors import CriError, CriNotFound, Exhausted
from pykubelet.model.runtime_status import ContainerRecord, ExecResult, SandboxRecord
from pykubelet.server.pods import PodRoutes
from pykubelet.server.requests import Bridging, Refused, Request, Response, Upgrade
from pykubelet.server.streams import StreamRoutes
from tests.builders import a_container, a_pod
from tests.unit.server.support import FakePods, FakeRuntime

NAMES = {"pod_uid": "uid-web", "pod_name": "web", "pod_namespace": "default"}
PARAMS = {"namespace": "default", "pod": "web", "container": "app"}


def runtime() -> FakeRuntime:
    return FakeRuntime(
        url="http://127.0.0.1:5/x",
        sandboxes=[SandboxRecord(id="s1", **NAMES), SandboxRecord(id="s2", attempt=1, **NAMES)],
        containers=[
            ContainerRecord(id="c1", sandbox_id="s1", name="app", image="busybox:1", **NAMES),
            ContainerRecord(id="c2", sandbox_id="s2", name="app", attempt=1, created_at=5, image="busybox:1", **NAMES),
        ],
    )


def routes(found: FakeRuntime, tmp_path: Path = Path("/nowhere")) -> PodRoutes:
    statuses = {"uid-web": PodStatus(phase="Running")}
    return PodRoutes(
        table=FakePods(a_pod("web"), a_pod("new"), statuses=statuses),
        runtime=found,
        checkpoints=tmp_path / "checkpoints",
        clock=LoopClock(start=0.0),
    )


def parsed(reply: Any) -> Any:
    assert isinstance(reply, Response)
    return json.loads(reply.body)


async def test_pods_carry_their_newest_status() -> None:
    found = parsed(await routes(runtime()).list(Request()))
    assert (found["kind"], found["apiVersion"], found["metadata"]) == ("PodList", "v1", {})
    assert [(pod["metadata"]["name"], pod.get("status")) for pod in found["items"]] == [
        ("web", {"phase": "Running"}),
        ("new", None),
    ]
    assert "kind" not in found["items"][0]


async def test_running_pods_are_the_runtimes() -> None:
    found = parsed(await routes(runtime()).running(Request()))
    (pod,) = found["items"]
    assert pod["metadata"] == {"name": "web", "namespace": "default", "uid": "uid-web"}
    assert pod["spec"]["containers"] == [{"name": "app", "image": "busybox:1"}] * 2


async def test_run_gives_both_outputs() -> None:
    cri = runtime()
    cri.result = ExecResult(stdout=b"out", stderr=b"err")
    call = Request(method="POST", params=PARAMS, query=[("cmd", "ls -l /")])
    reply = await routes(cri).run(call)
    assert isinstance(reply, Response) and (reply.body, reply.content_type) == (b"outerr", "application/json")
    assert cri.calls[-1] == ("exec_sync", "c2", ("ls", "-l", "/"))
    cri.result = ExecResult(stderr=b"bad", exit_code=3)
    with pytest.raises(Refused, match="exited with 3: bad"):
        await routes(cri).run(call)
    cri.failure = CriError("broken")
    with pytest.raises(Refused, match="broken"):
        await routes(cri).run(call)


async def test_checkpoint(tmp_path: Path) -> None:
    cri = runtime()
    call = Request(method="POST", params=PARAMS, query=[("timeout", "5")])
    found = parsed(await routes(cri, tmp_path).checkpoint(call))
    location = str(tmp_path / "checkpoints" / "checkpoint-web_default-app-1970-01-01T00:00:00Z.tar")
    assert found == {"items": [location]}
    assert cri.calls[-1] == ("checkpoint_container", "c2", location, 5)
    for params, query, status in (
        ({**PARAMS, "pod": "nope"}, [], 404),
        ({**PARAMS, "container": "nope"}, [], 404),
        (PARAMS, [("timeout", "x")], 404),
    ):
        with pytest.raises(Refused) as caught:
            await routes(cri, tmp_path).checkpoint(Request(params=params, query=query))
        assert caught.value.status == status


SPDY = (("connection", "Upgrade"), ("upgrade", "SPDY/3.1"))


def websocket(*protocols: str) -> tuple[tuple[str, str], ...]:
    return (
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-protocol", ", ".join(protocols)),
    )


def streams(cri: FakeRuntime, *, tty: bool = False, translate: bool = True) -> StreamRoutes:
    pods = FakePods(a_pod("web", containers=[a_container("app", tty=tty)]))
    pods.mirrors = {"mirror": "uid-web"}
    return StreamRoutes(table=pods, runtime=cri, translate=translate)


def call(query: str, headers: tuple[tuple[str, str], ...] = SPDY, method: str = "POST", **params: str) -> Request:
    pairs = [(name, value) for name, _, value in (pair.partition("=") for pair in query.split("&") if pair)]
    return Request(method=method, query=pairs, headers=headers, params={**PARAMS, **params})


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("output=1", {"tty": False, "stdin": False, "stdout": True, "stderr": False}),
        ("input=1&output=true&error=1", {"tty": False, "stdin": True, "stdout": False, "stderr": True}),
        ("input=1&output=1&error=1&tty=1", {"tty": True, "stdin": True, "stdout": True, "stderr": False}),
    ],
)
async def test_exec_options(query: str, options: dict[str, bool]) -> None:
    cri = runtime()
    reply = await streams(cri).exec(call(f"command=ls&command=a&{query}"))
    assert reply == Upgrade(url="http://127.0.0.1:5/x")
    assert cri.calls[-1] == ("exec", "c2", ("ls", "a"), options)


async def test_attach_takes_the_terminal_from_the_spec() -> None:
    cri = runtime()
    await streams(cri, tty=True).attach(call("input=1&output=1&error=1"))
    assert cri.calls[-1] == ("attach", "c2", {"tty": True, "stdin": True, "stdout": True, "stderr": False})


@pytest.mark.parametrize(
    ("protocols", "translate", "bridging"),
    [
        (("v5.channel.k8s.io",), True, Bridging.CHANNELS),
        (("v5.channel.k8s.io", "v4.channel.k8s.io"), True, Bridging.CHANNELS),
        (("v4.channel.k8s.io",), True, Bridging.VERBATIM),
        (("v5.channel.k8s.io",), False, Bridging.VERBATIM),
    ],
)
async def test_who_translates(protocols: tuple[str, ...], translate: bool, bridging: Bridging) -> None:
    asked = call("input=1&output=1&tty=1", websocket(*protocols), "GET")
    reply = await streams(runtime(), translate=translate).exec(asked)
    assert isinstance(reply, Upgrade) and reply.bridging is bridging
    if bridging is Bridging.CHANNELS:
        assert reply.streams == ("stdin", "stdout", "resize")


async def test_port_forward_uses_the_newest_sandbox() -> None:
    cri = runtime()
    assert await streams(cri).port_forward(call("", uid="mirror")) == Upgrade(url=cri.url)
    assert cri.calls[-1] == ("port_forward", "s2", ())
    await streams(cri).port_forward(call("port=80,81&port=82", websocket("v4.channel.k8s.io"), "GET"))
    assert cri.calls[-1] == ("port_forward", "s2", (80, 81, 82))
    tunnel = await streams(cri).port_forward(call("", websocket("SPDY/3.1+portforward.k8s.io"), "GET"))
    assert isinstance(tunnel, Upgrade) and tunnel.bridging is Bridging.TUNNEL
    for query in ("", "port=0", "port=65536", "port=x", "port="):
        with pytest.raises(Refused) as caught:
            await streams(cri).port_forward(call(query, websocket("v4.channel.k8s.io"), "GET"))
        assert caught.value.status == 400
    with pytest.raises(Refused, match="pod not found"):
        await streams(cri).port_forward(call("", uid="other"))
    cri.sandboxes = []
    with pytest.raises(Refused, match="failed to find sandbox"):
        await streams(cri).port_forward(call(""))


@pytest.mark.parametrize(
    ("failure", "status", "text"),
    [
        (CriNotFound("gone"), 404, "rpc error: code = NotFound desc = gone"),
        (Exhausted("too many"), 429, "rpc error: code = ResourceExhausted desc = too many"),
        (CriError("broken"), 500, "broken"),
    ],
)
async def test_the_runtimes_errors(failure: Exception, status: int, text: str) -> None:
    class Failing(FakeRuntime):
        async def exec(self, container_id: str, command: Any, **options: bool) -> str:
            raise failure

    cri = Failing(containers=runtime().containers)
    with pytest.raises(Refused) as caught:
        await streams(cri).exec(call("output=1"))
    assert (caught.value.status, caught.value.text) == (status, text)
    assert caught.value.headers == ({"Retry-After": "60"} if status == 429 else {})
