"""Requests to the API server: deadlines, rate limit, repeats, errors as our own, request metrics.

An error's reason decides where one status code has two meanings (409); bodies that are no Status, as proxies send
them, keep the beginning of their text as the message. A server that hangs is noticed by deadlines.
Does not cover: what the requests mean (client.py), connections and protocols (connections.py).
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import platform
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import urlencode

from pykubelet.api.codec import ManifestError, decode_json
from pykubelet.api.types import Status
from pykubelet.clients.http2.session import ConnectionEnded, NotProcessed, StreamReset
from pykubelet.clients.kube.connections import Connections, ServerConnections
from pykubelet.clients.kube.credentials import Identity
from pykubelet.clients.kube.exchanges import Answer, Request, read_all
from pykubelet.clients.kube.port import Sent
from pykubelet.clients.kube.request_spans import carried, note_answer, request_span
from pykubelet.kit.backoff import jittered
from pykubelet.kit.limits import TokenBucket
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tracing import Span
from pykubelet.model.errors import (
    ApiAlreadyExists,
    ApiConflict,
    ApiDown,
    ApiError,
    ApiNotFound,
    ApiServerError,
    Expired,
    Forbidden,
    Invalid,
    TooManyRequests,
    Unauthorized,
)

T = TypeVar("T")

_BY_CODE: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: ApiNotFound,
    409: ApiConflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}


def error_of(code: int, body: bytes, retry_after_header: str = "") -> ApiError:
    """The error of an answer with status 300 and up."""
    try:
        status = decode_json(Status, body)
    except ManifestError:
        status = Status(message=body[:300].decode(errors="replace").strip())
    return error_of_status(status, code=code, retry_after_header=retry_after_header)


def error_of_status(status: Status, *, code: int = 0, retry_after_header: str = "") -> ApiError:
    """The error of a Status object, as answers and ERROR events of watches carry it."""
    code = code or status.code or 500
    reason = status.reason or ""
    kind = _BY_CODE.get(code, ApiServerError if code >= 500 else ApiError)
    if reason == "AlreadyExists":
        kind = ApiAlreadyExists
    elif reason in ("Expired", "Gone"):
        kind = Expired
    elif kind is Invalid and _is_about_uid(status):
        kind = ApiConflict  # a patch meant for another object of this name; validation sees it before preconditions
    return kind(
        status.message or f"the server answered {code}",
        code=code,
        reason=reason,
        retry_after=_retry_after(status, retry_after_header),
    )


def _is_about_uid(status: Status) -> bool:
    return status.details is not None and any(cause.field == "metadata.uid" for cause in status.details.causes)


LONGEST_RETRY_AFTER = 30.0
"""Seconds that a server can make us wait: a proxy's page of maintenance must not stop a node for a night."""


def _retry_after(status: Status, header: str) -> float | None:
    if header.isascii() and header.isdigit() and len(header) < 10:
        return min(float(header), LONGEST_RETRY_AFTER)
    seconds = status.details.retry_after_seconds if status.details is not None else None
    return min(float(seconds), LONGEST_RETRY_AFTER) if seconds else None


REQUEST_TIMEOUT = 60.0
LONGEST_LINE = 64 * 1024 * 1024
"""Bytes of one event; the server's store holds objects of a few MiB at most."""
LINES_AT_ONCE = 20
"""Lines of an endless answer after which the loop gets a turn, when many came together."""
RETRIES = 10
DEFAULT_QPS = 5.0
DEFAULT_BURST = 10

NO_ANSWER = "<error>"
"""In place of a status code in metrics."""

Query = Sequence[tuple[str, str]]
_SIZES = (64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0)
_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class RequestMetrics:
    """The request metrics every Kubernetes client has, for all clients of one agent together."""

    def __init__(self, registry: Registry) -> None:
        self._total = registry.counter(
            "rest_client_requests_total", "Requests to the API server by status code.", ("code", "host", "method")
        )
        self._seconds = registry.histogram(
            "rest_client_request_duration_seconds",
            "Duration of requests to the API server.",
            ("host", "verb"),
            _BUCKETS,
        )
        self._waits = registry.histogram(
            "rest_client_rate_limiter_duration_seconds",
            "Waiting for the client's own limit.",
            ("verb", "host"),
            _BUCKETS,
        )

        self._retries = registry.counter(
            "rest_client_request_retries_total", "Requests that were sent again.", ("code", "verb", "host")
        )
        self._request_bytes = registry.histogram(
            "rest_client_request_size_bytes", "Size of requests.", ("verb", "host"), _SIZES
        )
        self._answer_bytes = registry.histogram(
            "rest_client_response_size_bytes", "Size of whole answers.", ("verb", "host"), _SIZES
        )

    def retried(self, method: str, host: str, code: str) -> None:
        """`code` is that of the answer before, or NO_ANSWER."""
        self._retries.inc(code, method, host)

    def measured(self, method: str, host: str, *, sent: int, received: int) -> None:
        self._request_bytes.observe(sent, method, host)
        self._answer_bytes.observe(received, method, host)

    def requested(self, method: str, host: str, code: str, seconds: float) -> None:
        """`code` is NO_ANSWER when none came."""
        self._total.inc(code, host, method)
        self._seconds.observe(seconds, host, method)

    def waited(self, method: str, host: str, seconds: float) -> None:
        self._waits.observe(seconds, method, host)


def user_agent(version: str) -> str:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"kubelet/{version} (linux/{machine}) kubernetes/pykubelet"


def rate_limit(qps: float, burst: int) -> TokenBucket:
    """A `qps` below zero means no limit, zero the usual default of a Kubernetes client."""
    return TokenBucket(rate=qps or DEFAULT_QPS, burst=burst or DEFAULT_BURST)


class Transport:
    def __init__(
        self,
        server: ServerConnections,
        *,
        agent: str,
        qps: float = 50,
        burst: int = 100,
        timeout: float = REQUEST_TIMEOUT,
        metrics: RequestMetrics | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Several may share the connections to a server, each with its own limit of requests a second. `headers` go
        with every request."""
        self._server = server
        self._clock = server.clock
        self._timeout = timeout
        self._limiter = rate_limit(qps, burst)
        self._metrics = metrics or RequestMetrics(Registry())
        self._headers = [("User-Agent", agent), ("Accept", "application/json"), *headers]

    async def open(self) -> None:
        """Read the credentials now, so that a mistake in them is a KubeconfigError at start; does not connect."""
        await self._server.open()

    async def close(self) -> None:
        """Close the connections, also for those that share them."""
        await self._server.close()

    async def renew(self) -> None:
        """Leave all connections, e.g. because a new certificate is there; running requests may finish."""
        await self._server.renew()

    async def abandon(self) -> None:
        """End all connections at once: the peer is silent. Requests that can be repeated are, on new ones."""
        await self._server.abandon()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: bytes = b"",
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> bytes:
        """The body of a good answer; everything else raises ApiError."""
        deadline = self._clock.monotonic() + (timeout or self._timeout)
        refused: Identity | None = None
        broken = retries = 0
        while True:
            await self._turn(method)
            identity = await self._server.identity(refused)
            headers = [*self._headers, *identity.headers]
            if body:
                headers.append(("Content-Type", content_type))
            request = Request(method=method, url=self._url(path, query), headers=headers, body=body)
            try:
                return await self._call(await self._server.connections(identity), request, deadline)
            except Unauthorized:
                if refused is not None or await self._server.identity(identity) == identity:
                    raise
                refused = identity
            except _Broken:
                # A pooled connection may end just as it is used. Never send a POST twice: it might create twice.
                broken += 1
                if broken > 1 or method == "POST":
                    raise
                self._metrics.retried(method, self._server.host, NO_ANSWER)
            except _Unprocessed:
                retries += 1
                wait = _patience(retries)
                if retries > RETRIES or self._clock.monotonic() + wait >= deadline:
                    raise
                self._metrics.retried(method, self._server.host, NO_ANSWER)
                await self._clock.sleep(wait)
            except ApiError as error:
                wait = error.retry_after or 0.0
                retries += 1
                if not wait or retries > RETRIES or self._clock.monotonic() + wait >= deadline:
                    raise
                self._metrics.retried(method, self._server.host, str(error.code or NO_ANSWER))
                await self._clock.sleep(wait)

    async def _turn(self, method: str) -> None:
        """Wait until the limit of requests a second lets one more go."""
        waited = await self._limiter.take(self._clock)
        self._metrics.waited(method, self._server.host, waited)

    async def stream(
        self,
        path: str,
        *,
        query: Query = (),
        silence: float,
        read: Callable[[bytes], Awaitable[T | None]],
        sent: Sent | None = None,
    ) -> AsyncGenerator[T, None]:
        """What `read` makes of each line of an endless answer; more than `silence` seconds without a byte is ApiDown.

        A generator of lines, and one around it that reads them, would be two for each watch.
        """
        await self._turn("GET")
        identity = await self._server.identity()
        connections = await self._server.connections(identity)
        async with connections:
            try:
                headers = [*self._headers, *identity.headers]
                request = Request(method="GET", url=self._url(path, query), headers=headers, silence=silence, sent=sent)
                # Not as a block: it would become the parent of what the reader does between two events.
                span = request_span(request)
                answer = await self._opened_stream(connections, carried(request, span), span)
                # Most watches are silent for most of their life: nothing is kept in variables while they wait.
                del path, query, headers, request, sent
                try:
                    connections.follow(answer)
                    lines = _Lines()
                    while lines.feed(await answer.chunk()):
                        while lines.complete:
                            found = await read(lines.complete.pop())
                            if found is not None:
                                yield found
                            del found
                            if len(lines.complete) % LINES_AT_ONCE == LINES_AT_ONCE - 1:
                                await self._clock.sleep(0)
                finally:
                    connections.forget(answer)
                    answer.leave()
                    span.end()
            except OSError as error:  # TimeoutError is one
                if connections.retired:
                    return
                raise self._failure(connections, error) from error

    async def _opened_stream(self, connections: Connections, request: Request, span: Span) -> Answer:
        """An endless answer that has begun well; otherwise the span ends."""
        try:
            answer = await self._begun_stream(connections, request)
            note_answer(span, answer)
            if answer.status < 300:
                return answer
            try:
                async with asyncio.timeout(self._timeout):  # it may say a little now and then, for ever
                    body = await read_all(answer)
                raise error_of(answer.status, body, answer.retry_after)
            finally:
                answer.leave()
        except BaseException as error:
            span.fail(str(error))
            span.end()
            raise

    async def _begun_stream(self, connections: Connections, request: Request) -> Answer:
        for tries in itertools.count(1):
            started = self._clock.monotonic()
            try:
                answer = await connections.open(request)
                break
            except NotProcessed:
                if tries > RETRIES or connections.retired:  # others have to be taken
                    raise
                if request.sent is not None:
                    request.sent(False)
            await self._clock.sleep(_patience(tries))
        self._note("GET", str(answer.status), started)
        return answer

    async def _call(self, connections: Connections, request: Request, deadline: float) -> bytes:
        started = self._clock.monotonic()
        code = NO_ANSWER
        async with connections:
            try:
                with request_span(request) as span:
                    async with connections.calling(max(0.1, deadline - started)):
                        answer = await connections.open(carried(request, span))
                        try:
                            body = await read_all(answer)
                        finally:
                            answer.leave()
                    note_answer(span, answer)
                code = str(answer.status)
                self._metrics.measured(request.method, self._server.host, sent=len(request.body), received=len(body))
                if answer.status >= 300:
                    raise error_of(answer.status, body, answer.retry_after)
                return body
            except OSError as error:  # TimeoutError is one
                raise self._failure(connections, error) from error
            finally:
                self._note(request.method, code, started)

    def _failure(self, connections: Connections, error: Exception) -> ApiDown:
        if not isinstance(error, TimeoutError):
            connections.broke()
        kind = ApiDown
        if isinstance(error, NotProcessed):
            kind = _Unprocessed
        elif connections.aborted or _is_broken(error):
            kind = _Broken
        return kind(f"{self._server.host}: {_what(error)}")

    def _note(self, method: str, code: str, started: float) -> None:
        self._metrics.requested(method, self._server.host, code, self._clock.monotonic() - started)

    def _url(self, path: str, query: Query) -> str:
        return self._server.url + path + (f"?{urlencode(query)}" if query else "")


class _Broken(ApiDown):
    """A connection ended before an answer came."""


class _Unprocessed(ApiDown):
    """The server did nothing with the request."""


def _patience(tries: int) -> float:
    """Seconds before a request that was not processed is sent again; the first time another connection will do."""
    return 0.0 if tries == 1 else jittered(min(0.05 * 2**tries, 2.0), 0.5)


def _what(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


def _is_broken(error: BaseException) -> bool:
    if isinstance(error, ConnectionEnded | StreamReset):
        return True
    return isinstance(error, OSError) and error.errno in (errno.ECONNRESET, errno.EPIPE)


class _Lines:
    """Cuts a stream into lines. (aiohttp's readline refuses lines longer than its buffer; a Secret may be a MiB.)"""

    __slots__ = ("_rest", "complete")

    def __init__(self) -> None:
        self.complete: list[bytes] = []
        """The lines that are there as a whole, to be taken from the end."""
        self._rest = bytearray()  # not a list of pieces: a server may send single bytes

    def feed(self, chunk: bytes) -> bool:
        """False for the end. Raises ApiServerError for a line that is too long."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            if self._rest:
                lines[0], self._rest = bytes(self._rest + lines[0]), bytearray()
            self.complete = [line for line in reversed(lines) if line]
        self._rest += rest
        if len(self._rest) > LONGEST_LINE:
            raise ApiServerError(f"an event of more than {LONGEST_LINE} bytes")
        return bool(chunk)
