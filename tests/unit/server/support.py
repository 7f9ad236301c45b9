"""A server on fakes: pods, a runtime with a streaming port, an API server that reviews; and a raw client."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from pykubelet.api.types import (
    Pod,
    PodStatus,
    SubjectAccessReviewSpec,
    SubjectAccessReviewStatus,
    TokenReviewStatus,
    UserInfo,
)
from pykubelet.kit.clock import Clock, SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import CriNotFound
from pykubelet.model.pod import name_of, namespace_of
from pykubelet.model.runtime_status import (
    ContainerRecord,
    ContainerStatus,
    ExecResult,
    PodRuntimeStatus,
    SandboxRecord,
)
from pykubelet.server.app import Local, NodeServer
from pykubelet.server.build import https
from pykubelet.server.introspection import LOG, PING, ConfigRoutes, DebugRoutes, HealthRoutes
from pykubelet.server.listeners import Limits, TcpAddress
from pykubelet.server.logs import ContainerLogs
from pykubelet.server.metrics import MetricRoutes
from pykubelet.server.node_logs import SystemLogs
from pykubelet.server.pods import PodRoutes
from pykubelet.server.requests import Route
from pykubelet.server.routes import Handlers
from pykubelet.server.streams import StreamRoutes
from pykubelet.server.tls import FindServing, ServingFiles
from pykubelet.settings.gates import Gates
from pykubelet.settings.schema_server import Authentication, ServerSettings, X509Authentication
from tests.bed.certificates import Authority, Pair
from tests.builders import a_container, a_pod


class FakePods:
    def __init__(self, *pods: Pod, statuses: dict[str, PodStatus] | None = None) -> None:
        self.known = list(pods)
        self.mirrors: dict[str, str] = {}
        self.statuses = statuses or {}

    def reported_status(self, uid: str) -> PodStatus | None:
        return self.statuses.get(uid)

    def runtime_status(self, uid: str) -> PodRuntimeStatus:
        return PodRuntimeStatus(uid=uid)

    def pods(self) -> list[Pod]:
        return self.known

    def by_name(self, namespace: str, name: str) -> Pod | None:
        return next((p for p in self.known if (namespace_of(p), name_of(p)) == (namespace, name)), None)

    def translate(self, uid: str) -> str:
        return self.mirrors.get(uid, uid)


@dataclass
class FakeRuntime:
    """Answers from lists; streams are at `url`."""

    url: str = "http://127.0.0.1:1/exec/token"
    sandboxes: list[SandboxRecord] = field(default_factory=list)
    containers: list[ContainerRecord] = field(default_factory=list)
    statuses: dict[str, ContainerStatus] = field(default_factory=dict)
    result: ExecResult = field(default_factory=ExecResult)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    failure: Exception | None = None

    def _enter(self, *call: Any) -> None:
        self.calls.append(call)
        if self.failure is not None:
            raise self.failure

    async def list_pod_sandboxes(
        self, *, pod_uid: str | None = None, id: str | None = None, ready_only: bool = False
    ) -> Sequence[SandboxRecord]:
        self._enter("list_pod_sandboxes")
        return [each for each in self.sandboxes if pod_uid in (None, each.pod_uid)]

    async def list_containers(
        self,
        *,
        pod_uid: str | None = None,
        id: str | None = None,
        sandbox_id: str | None = None,
        running_only: bool = False,
    ) -> Sequence[ContainerRecord]:
        self._enter("list_containers")
        return [each for each in self.containers if pod_uid in (None, each.pod_uid)]

    async def container_status(self, container_id: str) -> ContainerStatus:
        self._enter("container_status", container_id)
        if container_id not in self.statuses:
            raise CriNotFound(f"no container {container_id}")
        return self.statuses[container_id]

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout: int = 0) -> ExecResult:
        self._enter("exec_sync", container_id, tuple(command))
        return self.result

    async def checkpoint_container(self, container_id: str, location: str, timeout: int = 0) -> None:
        self._enter("checkpoint_container", container_id, location, timeout)

    async def exec(self, container_id: str, command: Sequence[str], **options: bool) -> str:
        self._enter("exec", container_id, tuple(command), options)
        return self.url

    async def attach(self, container_id: str, **options: bool) -> str:
        self._enter("attach", container_id, options)
        return self.url

    async def port_forward(self, sandbox_id: str, ports: Sequence[int] = ()) -> str:
        self._enter("port_forward", sandbox_id, tuple(ports))
        return self.url


@dataclass
class FakeReviewer:
    """Knows tokens by user, and rights as (user, verb, subresource)."""

    tokens: dict[str, str] = field(default_factory=dict)
    rights: set[tuple[str, str, str]] = field(default_factory=set)
    everything: set[str] = field(default_factory=set)
    requested: list[str] = field(default_factory=list)
    failure: Exception | None = None

    async def token_review(self, token: str, audiences: Sequence[str] = ()) -> TokenReviewStatus:
        self.requested.append(f"token {token}")
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        user = self.tokens.get(token)
        return TokenReviewStatus(authenticated=user is not None, user=UserInfo(username=user, groups=["g"]))

    async def access_review(self, spec: SubjectAccessReviewSpec) -> SubjectAccessReviewStatus:
        attributes = spec.resource_attributes
        assert attributes is not None
        right = (spec.user or "", attributes.verb or "", attributes.subresource or "")
        self.requested.append(" ".join(right))
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return SubjectAccessReviewStatus(allowed=right in self.rights or spec.user in self.everything)


@dataclass
class ServedNode:
    """Everything a served node is made of; change it before `serve`."""

    folder: Path
    pods: FakePods = field(default_factory=FakePods)
    runtime: FakeRuntime = field(default_factory=FakeRuntime)
    reviewer: FakeReviewer = field(default_factory=FakeReviewer)
    metrics: Registry = field(default_factory=Registry)
    settings: ServerSettings = field(default_factory=ServerSettings)
    limits: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=SystemClock)
    probe_metrics: Callable[[], str] = lambda: "prober_probe_total 1\n"
    explain: Callable[[str, str], Any] | None = None

    def __post_init__(self) -> None:
        self.ca = Authority(self.folder)
        self.serving = self.ca.issue("server", hosts=["127.0.0.1"])
        authentication = Authentication(x509=X509Authentication(client_ca_file=str(self.ca.pair.certificate)))
        self.settings = replace(
            self.settings, address="127.0.0.1", port=0, healthz_port=0, authentication=authentication
        )

    def handlers(self) -> Handlers:
        health = HealthRoutes([PING, LOG])
        table, runtime, clock = cast(Any, self.pods), cast(Any, self.runtime), self.clock
        return Handlers(
            pods=PodRoutes(table=table, runtime=runtime, checkpoints=self.folder / "checkpoints", clock=clock),
            logs=ContainerLogs(table=table, runtime=runtime, clock=clock),
            streams=StreamRoutes(table=table, runtime=runtime),
            health=health,
            metrics=MetricRoutes(agent=self.metrics, probes=self.probe_metrics, health=health.problems, stats=None),
            configs=ConfigRoutes(
                configz=lambda: {"kind": "KubeletConfiguration", "port": 10250},
                flags=lambda: {"v": "2"},
                explain=self.explain,
                version="v1.36.4",
                started=0.0,
                clock=clock,
            ),
            system_logs=SystemLogs(root=self.folder / "log", query_enabled=self.settings.enable_system_log_query),
            debug=DebugRoutes(set_verbosity=lambda level: None, clock=clock),
        )

    def server(
        self,
        *,
        settings: ServerSettings | None = None,
        serving: FindServing | None = None,
        local_socket: Path | None = None,
        local_routes: Sequence[Route] = (),
    ) -> NodeServer:
        settings = settings or self.settings
        serving = serving or (lambda: ServingFiles(self.serving.certificate, self.serving.key))
        return NodeServer(
            settings=settings,
            handlers=self.handlers(),
            metrics=self.metrics,
            clock=self.clock,
            https=https(settings, Gates({}), "node-1", cast(Any, self.reviewer), serving, self.clock),
            local=Local(socket=local_socket, routes=local_routes) if local_socket is not None else None,
            limits=self.limits,
        )

    def client_context(self, pair: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca.pair.certificate))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context


@asynccontextmanager
async def serving(server: NodeServer) -> AsyncIterator[int]:
    """The server runs for as long as the block lasts; gives the port of its first listener."""
    server.open()
    try:
        async with running(server):
            first = server.listeners[0]
            yield first.port if isinstance(first.address, TcpAddress) else 0
    finally:
        server.close()


@dataclass
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class RawClient:
    """One connection, driven byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: node", *(f"{k}: {v}" for k, v in (headers or {}).items())]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in raw[1:] if line)
        return int(raw[0].split(" ")[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def answer(self, *, bodyless: bool = False) -> RawAnswer:
        status, headers = await self.head()
        if bodyless:
            return RawAnswer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
            return RawAnswer(status, headers, body)
        return RawAnswer(status, headers, await self.reader.readexactly(int(headers.get("content-length", 0))))

    async def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> RawAnswer:
        self.send(method, path, headers, body)
        return await self.answer(bodyless=method == "HEAD")


@asynccontextmanager
async def connected(
    port: int, context: ssl.SSLContext | None = None, *, source: str = "127.0.0.1"
) -> AsyncIterator[RawClient]:
    """`source` is the address the caller comes from."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, limit=1 << 20, local_addr=(source, 0)
    )
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def get(port: int, path: str, context: ssl.SSLContext | None = None, **headers: str) -> RawAnswer:
    async with connected(port, context) as client:
        return await client.ask("GET", path, {name.replace("_", "-"): value for name, value in headers.items()})


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def streaming_runtime(behave: Behaviour) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A runtime's streaming port: notes each request's head, says 101 and then behaves. Gives (url, heads)."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
            await behave(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 16)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/exec/token-1", heads


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while block := await reader.read(1 << 16):
        writer.write(block)
        await writer.drain()


def with_a_pod(world: ServedNode, url: str) -> None:
    pod = a_pod("web", containers=[a_container("app")])
    uid = pod.metadata.uid or ""
    names = {"pod_uid": uid, "pod_name": "web", "pod_namespace": pod.metadata.namespace or ""}
    world.pods = FakePods(pod)
    world.runtime.url = url
    world.runtime.sandboxes = [SandboxRecord(id="s1", **names)]
    world.runtime.containers = [ContainerRecord(id="c1", sandbox_id="s1", name="app", **names)]
    world.reviewer.everything = {"ada"}
