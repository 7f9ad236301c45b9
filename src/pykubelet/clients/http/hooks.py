"""Lifecycle hooks over HTTP: one GET into the pod; any answer is success.

An HTTPS hook that is answered in plain HTTP is sent again as HTTP, without its Authorization header, and an event
says so: upstream keeps old pods alive this way. The caller bounds the time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from pykubelet.api.types import HTTPGetAction, Pod
from pykubelet.clients.http.port import PodNetwork
from pykubelet.kit.metrics import Registry
from pykubelet.model.events import EventSink
from pykubelet.model.http import BadRequest, BodyProblem, HttpRequest, PlainAnswer, get_request
from pykubelet.model.pod import AnyContainer, uid_of
from pykubelet.model.reasons import WARNING

MAX_BODY: Final = 10 * 1024

PodAddress = Callable[[str], Awaitable[str]]
"""The first address of a pod by UID, asked from the runtime; empty when it has none."""


class HookCaller:
    """What runtime/hooks.py calls HookHttp."""

    def __init__(
        self, *, network: PodNetwork, pod_ip: PodAddress, events: EventSink, metrics: Registry | None = None
    ) -> None:
        self._network = network
        self._pod_ip = pod_ip
        self._events = events
        self._fallbacks = (metrics or Registry()).counter(
            "kubelet_lifecycle_handler_http_fallbacks_total",
            "HTTPS hooks answered in HTTP and sent again as that.",
        )

    async def call(self, pod: Pod, container: AnyContainer, action: HTTPGetAction) -> None:
        host = action.host or await self._pod_ip(uid_of(pod))
        if not host:
            raise BadRequest("failed to find networking container: the pod has no address")
        request = get_request(action, container.ports, host, "lifecycle")
        try:
            await self._send(request)
        except PlainAnswer as error:
            await self._send_plain(pod, request, error)

    async def _send_plain(self, pod: Pod, request: HttpRequest, problem: PlainAnswer) -> None:
        headers = tuple(header for header in request.headers if header[0].lower() != "authorization")
        try:
            await self._send(replace(request, scheme="http", headers=headers))
        except Exception as error:
            raise problem from error
        self._fallbacks.inc()
        text = f"request to HTTPS lifecycle hook {request.address} got HTTP response, retry with HTTP succeeded"
        self._events.pod_event(pod, WARNING, "LifecycleHTTPFallback", text)

    async def _send(self, request: HttpRequest) -> None:
        try:
            await self._network.get(request, timeout=None, max_body=MAX_BODY)
        except BodyProblem:
            return  # the answer began, which is all a hook asks for
