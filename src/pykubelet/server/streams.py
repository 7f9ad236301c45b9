"""/exec, /attach and /portForward: check the request, ask the runtime for a stream, say how to reach it.

The options and their errors are upstream's. The reply is an `Upgrade`; joining the two connections, WebSocket v5 and
tunnels are in relay.py. Does not cover: /run, which does not stream (pods.py).
"""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec import Struct

from pykubelet.clients.cri.port import CriClient
from pykubelet.model.errors import CriError, Exhausted, NotFound
from pykubelet.model.pod import find_container, uid_of
from pykubelet.pods.table import PodTable
from pykubelet.server.pods import find_pod, running_container
from pykubelet.server.requests import Bridging, Refused, Reply, Request, Upgrade

CHANNELS_V5 = "v5.channel.k8s.io"
TUNNEL_PROTOCOL = "SPDY/3.1+portforward.k8s.io"
SPDY = "spdy/3.1"
WEBSOCKET = "websocket"
RETRY_AFTER = "60"


class StreamOptions(Struct, frozen=True, kw_only=True):
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool

    def names(self) -> tuple[str, ...]:
        wanted = {"stdin": self.stdin, "stdout": self.stdout, "stderr": self.stderr, "resize": self.tty}
        return tuple(name for name, on in wanted.items() if on)


def stream_options(request: Request) -> StreamOptions:
    tty = request.get("tty") == "1"
    # A terminal has one output; asking for both is an old client's habit.
    options = StreamOptions(
        stdin=request.get("input") == "1",
        stdout=request.get("output") == "1",
        stderr=request.get("error") == "1" and not tty,
        tty=tty,
    )
    if not (options.stdin or options.stdout or options.stderr):
        raise Refused(400, "you must specify at least 1 of stdin, stdout, stderr")
    return options


def check_upgrade(request: Request) -> str:
    """The protocol to upgrade to, spdy/3.1 or websocket. Raises Refused 400 for any other."""
    if not request.wants_upgrade:
        raise Refused(400, "Upgrade request required")
    wanted = request.header("upgrade").strip().lower()
    if wanted not in (SPDY, WEBSOCKET):
        raise Refused(400, f"unable to upgrade: unknown protocol {wanted[:40]!r}")
    if request.has_body:
        # Its bytes would be taken for the first frames of the new protocol.
        raise Refused(400, "unable to upgrade: the request has a body")
    if wanted == WEBSOCKET and request.method != "GET":
        raise Refused(400, "unable to upgrade: a websocket begins with GET")
    return wanted


def offered(request: Request) -> list[str]:
    """WebSocket protocols the caller can speak, in its order."""
    return [word.strip() for word in request.header("sec-websocket-protocol").split(",") if word.strip()]


class StreamRoutes:
    def __init__(self, *, table: PodTable, runtime: CriClient, translate: bool = True) -> None:
        """`translate`: speak WebSocket v5 and tunnels for runtimes that do not (gate ExtendWebSocketsToKubelet)."""
        self._table = table
        self._runtime = runtime
        self._translate = translate

    async def exec(self, request: Request) -> Reply:
        options = stream_options(request)
        pod = find_pod(self._table, request)
        kind = check_upgrade(request)
        container = await running_container(self._runtime, pod, request.params["container"])
        url = await _url(
            self._runtime.exec(
                container,
                request.all("command"),
                tty=options.tty,
                stdin=options.stdin,
                stdout=options.stdout,
                stderr=options.stderr,
            )
        )
        return self._joined(request, kind, url, options)

    async def attach(self, request: Request) -> Reply:
        options = stream_options(request)
        pod = find_pod(self._table, request)
        kind = check_upgrade(request)
        name = request.params["container"]
        container = await running_container(self._runtime, pod, name)
        declared = find_container(pod, name)
        # What the container was started with, not what the caller believes.
        tty = bool(declared[1].tty) if declared is not None else options.tty
        url = await _url(
            self._runtime.attach(
                container,
                tty=tty,
                stdin=options.stdin,
                stdout=options.stdout,
                stderr=options.stderr and not tty,
            )
        )
        return self._joined(request, kind, url, options)

    async def port_forward(self, request: Request) -> Reply:
        pod = find_pod(self._table, request)
        kind = check_upgrade(request)
        tunnelled = kind == WEBSOCKET and self._translate and TUNNEL_PROTOCOL in offered(request)
        ports = [] if kind == SPDY or tunnelled else forwarded_ports(request)
        sandbox = await self._sandbox(uid_of(pod))
        url = await _url(self._runtime.port_forward(sandbox, ports))
        return Upgrade(url=url, bridging=Bridging.TUNNEL if tunnelled else Bridging.VERBATIM)

    def _joined(self, request: Request, kind: str, url: str, options: StreamOptions) -> Upgrade:
        if kind == WEBSOCKET and self._translate and CHANNELS_V5 in offered(request):
            return Upgrade(url=url, bridging=Bridging.CHANNELS, streams=options.names())
        return Upgrade(url=url)

    async def _sandbox(self, uid: str) -> str:
        try:
            found = await self._runtime.list_pod_sandboxes(pod_uid=uid, ready_only=True)
        except CriError as error:
            raise Refused(500, str(error)) from error
        if not found:
            raise Refused(500, f"failed to find sandbox for pod {uid}: it is not running")
        return max(found, key=lambda record: (record.attempt, record.created_at)).id


def forwarded_ports(request: Request) -> list[int]:
    """Ports of a WebSocket port-forward; one or several, repeated or with commas."""
    words = [word for value in request.all("port") for word in value.split(",")]
    if not words:
        raise Refused(400, 'query parameter "port" is required')
    ports: list[int] = []
    for word in words:
        if not (word.isascii() and word.isdigit() and 0 < int(word[:6]) < 65536):
            raise Refused(400, f'unable to parse "{word[:20]}" as a port')
        ports.append(int(word))
    return ports


async def _url(request: Awaitable[str]) -> str:
    try:
        return await request
    except NotFound as error:
        raise Refused(404, f"rpc error: code = NotFound desc = {error}") from error
    except Exhausted as error:
        # Its table of streams that wait for their caller is full; an entry lives for a minute.
        text = f"rpc error: code = ResourceExhausted desc = {error}"
        raise Refused(429, text, {"Retry-After": RETRY_AFTER}) from error
    except CriError as error:
        raise Refused(500, str(error)) from error
