"""Lifecycle hooks: run one handler against a running container, with a clear text when it fails.

Exec has no time limit of its own: a preStop hook is waited for within the grace and ends with its container, and a
postStart hook may take as long as it likes, as upstream lets it. Any HTTP answer counts as success, also an error.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from pykubelet.api.types import ExecAction, HTTPGetAction, LifecycleHandler, Pod
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.http.port import PodNetwork
from pykubelet.context import Context
from pykubelet.model.errors import CriError, PykubeletError
from pykubelet.model.http import BadRequest, BodyProblem, HttpRequest, PlainAnswer, get_request
from pykubelet.model.pod import AnyContainer, log_form, uid_of
from pykubelet.model.reasons import WARNING

OUTPUT_SHOWN = 1024


class HookError(PykubeletError):
    """A lifecycle hook did not succeed; the text is what the container's status shows."""


class LifecycleHooks:
    def __init__(self, ctx: Context, cri: CriClient, http: HttpHooks) -> None:
        self._cri = cri
        self._http = http
        self._clock = ctx.clock
        self._cut_short = ctx.metrics.counter(
            "kubelet_sleep_action_terminated_early_total", "Sleep hooks that ended before their time was over."
        )

    async def run(self, pod: Pod, container: AnyContainer, container_id: str, hook: LifecycleHandler) -> None:
        if hook.exec is not None:
            await self._exec(pod, container, container_id, hook.exec)
        elif hook.http_get is not None:
            await self._http_get(pod, container, hook.http_get)
        elif hook.sleep is not None:
            await self._sleep(hook.sleep.seconds or 0)
        else:
            raise HookError(
                f'Lifecycle hook for Container "{container.name}" in Pod "{log_form(pod)}" failed - '
                "error: only exec, httpGet and sleep hooks can be run"
            )

    async def _sleep(self, seconds: int) -> None:
        try:
            await self._clock.sleep(seconds)
        except asyncio.CancelledError:
            self._cut_short.inc()
            raise

    async def _exec(self, pod: Pod, container: AnyContainer, container_id: str, action: ExecAction) -> None:
        command = shlex.join(action.command)
        try:
            result = await self._cri.exec_sync(container_id, action.command, 0)
        except CriError as error:
            raise self._failed("Exec", command, pod, container, str(error), "") from error
        if result.exit_code != 0:
            output = (result.stdout + result.stderr)[:OUTPUT_SHOWN].decode(errors="replace")
            text = f"command '{command}' exited with {result.exit_code}: {output}".rstrip(": ")
            raise self._failed("Exec", command, pod, container, text, output)

    async def _http_get(self, pod: Pod, container: AnyContainer, action: HTTPGetAction) -> None:
        try:
            await self._http.call(pod, container, action)
        except (PykubeletError, OSError, ValueError, TimeoutError) as error:
            raise self._failed("HTTP", action.path or "/", pod, container, str(error), "") from error

    def _failed(self, kind: str, what: str, pod: Pod, container: AnyContainer, error: str, output: str) -> HookError:
        return HookError(
            f'{kind} lifecycle hook ({what}) for Container "{container.name}" in Pod "{log_form(pod)}" failed - '
            f'error: {error}, message: "{output}"'
        )


MAX_BODY: Final = 10 * 1024

PodAddress = Callable[[str], Awaitable[str]]
"""The first address of a pod by UID, as the runtime has it; empty when it has none."""


class HttpHooks:
    """One GET into the pod; any answer is success.

    An HTTPS hook that is answered in plain HTTP is sent again as HTTP, without its Authorization header, and an event
    says so: upstream keeps old pods alive this way. The caller bounds the time.
    """

    def __init__(self, ctx: Context, network: PodNetwork, pod_ip: PodAddress) -> None:
        self._network = network
        self._pod_ip = pod_ip
        self._events = ctx.events
        self._fallbacks = ctx.metrics.counter(
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
            return  # the answer began, which is all a hook needs
