"""Short calls into pods as probes see them: one GET, one TCP connection, one gRPC health question.

Nothing is kept open between calls. What a pod answers is a value; what keeps it from answering is an error whose
text is fit for an event. Hooks and the URL source use the same GET.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from pykubelet.model.errors import PykubeletError
from pykubelet.model.http import HttpAnswer, HttpRequest


class ConnectProblem(PykubeletError):
    """No connection; the text is what a probe shows."""


class HealthProblem(PykubeletError):
    """The gRPC health question was not answered with SERVING; the text is what a probe shows."""


class PodNetwork(Protocol):
    async def get(self, request: HttpRequest, *, timeout: float | None, max_body: int) -> HttpAnswer:
        """Send the request, follow redirects on the same host. Raises HttpProblem and its children.

        A redirect to another host is not followed: that answer is returned. The body is read up to `max_body`.
        """
        ...

    async def connect(self, host: str, port: int, *, timeout: float) -> None:
        """Open a TCP connection and close it. Raises ConnectProblem."""
        ...

    async def grpc_health(self, host: str, port: int, service: str, *, timeout: int) -> None:
        """Ask grpc.health.v1.Health/Check. Raises HealthProblem unless the answer is SERVING."""
        ...


class Fetched(Struct, frozen=True, kw_only=True):
    status: int
    body: bytes


class FetchFailed(PykubeletError):
    """The address could not be read: no connection, no answer in time, too much answer."""


class Fetch(Protocol):
    async def __call__(self, url: str, headers: Mapping[str, str], *, timeout: float, max_bytes: int) -> Fetched:
        """GET the address. Raises FetchFailed, also when the body is larger than `max_bytes`."""
        ...
