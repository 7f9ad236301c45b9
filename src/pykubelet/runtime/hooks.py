"""Lifecycle hooks: run one handler against a running container and say clearly how it failed.

Exec has no time limit of its own: a preStop hook is waited for within the grace and ends with its container, and a
postStart hook may take as long as it likes, as upstream lets it. Any HTTP answer counts as success, whatever its code.
"""

from __future__ import annotations

import asyncio
import shlex
from typing import Protocol

from pykubelet.api.types import ExecAction, HTTPGetAction, LifecycleHandler, Pod
from pykubelet.clients.cri.port import CriClient
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import CriError, PykubeletError
from pykubelet.model.pod import AnyContainer, log_form

OUTPUT_SHOWN = 1024


class HookError(PykubeletError):
    """A lifecycle hook did not succeed; the text is what the container's status shows."""


class HookHttp(Protocol):
    async def call(self, pod: Pod, container: AnyContainer, action: HTTPGetAction) -> None:
        """Send the request; returns on any answer, raises OSError-like errors when there is none."""
        ...


class LifecycleHooks:
    def __init__(self, *, cri: CriClient, http: HookHttp, clock: Clock, metrics: Registry) -> None:
        self._cri = cri
        self._http = http
        self._clock = clock
        self._cut_short = metrics.counter(
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
            said = f"command '{command}' exited with {result.exit_code}: {output}".rstrip(": ")
            raise self._failed("Exec", command, pod, container, said, output)

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
