"""Carries out one probe: exec, httpGet, tcpSocket, grpc; with upstream's texts for the result.

A pod that answers badly is an answer (`Result.FAILURE`); only what keeps the probe from being carried out at all is
an error (`ProbeErrored`), which is retried and leaves the result as it was. Not covered: when to probe and what an
answer counts (worker.py).
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

from pykubelet.api.types import ExecAction, GRPCAction, HTTPGetAction, Pod, Probe, TCPSocketAction
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.http.port import ConnectProblem, HealthProblem, PodNetwork
from pykubelet.model.errors import CriError, ExecTimedOut, PykubeletError
from pykubelet.model.expand import ExpansionTooLong, expand_command
from pykubelet.model.http import BadRequest, BodyProblem, HttpProblem, get_request, go_duration, resolve_port
from pykubelet.model.pod import AnyContainer, log_form

OUTPUT_LIMIT: Final = 10 * 1024
"""Bytes of output or body that are read and shown."""
TRIES: Final = 3
"""How often a probe is tried that cannot be carried out."""


class Result(enum.Enum):
    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"


class Answer(Struct, frozen=True):
    result: Result
    output: str = ""


class Target(Struct, frozen=True, kw_only=True):
    """What one probe is aimed at."""

    pod: Pod
    container: AnyContainer
    container_id: str
    pod_ip: str


class ProbeErrored(PykubeletError):
    """The probe could not be carried out. `state` is the word the event uses for the outcome."""

    def __init__(self, text: str, state: str = "unknown") -> None:
        super().__init__(text)
        self.state = state


class ProbeExecutor:
    def __init__(self, cri: CriClient, network: PodNetwork) -> None:
        self._cri = cri
        self._network = network

    async def probe(self, probe: Probe, target: Target) -> Answer:
        """Up to three tries; raises the last ProbeErrored."""
        for _ in range(TRIES - 1):
            try:
                return await self._once(probe, target)
            except ProbeErrored:
                continue
        return await self._once(probe, target)

    async def _once(self, probe: Probe, target: Target) -> Answer:
        timeout = probe.timeout_seconds or 1
        if probe.exec is not None:
            return await self._exec(probe.exec, target, timeout)
        if probe.http_get is not None:
            return await self._http(probe.http_get, target, timeout)
        if probe.tcp_socket is not None:
            return await self._tcp(probe.tcp_socket, target, timeout)
        if probe.grpc is not None:
            return await self._grpc(probe.grpc, target, timeout)
        raise ProbeErrored(f"missing probe handler for {log_form(target.pod)}:{target.container.name}")

    async def _exec(self, action: ExecAction, target: Target, timeout: int) -> Answer:
        try:
            command = expand_command(target.container, action.command)
        except ExpansionTooLong as error:
            raise ProbeErrored(f"the probe's command is {error}") from error
        try:
            result = await self._cri.exec_sync(target.container_id, command, timeout)
        except ExecTimedOut:
            after = go_duration(timeout)
            return Answer(Result.FAILURE, f'command timed out: "{" ".join(command)}" timed out after {after}')
        except CriError as error:
            raise ProbeErrored(str(error)) from error
        output = (result.stdout + result.stderr)[:OUTPUT_LIMIT].decode(errors="replace")
        return Answer(Result.SUCCESS if result.exit_code == 0 else Result.FAILURE, output)

    async def _http(self, action: HTTPGetAction, target: Target, timeout: int) -> Answer:
        try:
            request = get_request(action, target.container.ports, target.pod_ip, "probe")
            answer = await self._network.get(request, timeout=timeout, max_body=OUTPUT_LIMIT)
        except BadRequest as error:
            raise ProbeErrored(str(error)) from error
        except BodyProblem as error:
            raise ProbeErrored(str(error), "failure") from error
        except (HttpProblem, ConnectProblem) as error:
            return Answer(Result.FAILURE, str(error))
        if 200 <= answer.status < 300:
            return Answer(Result.SUCCESS)
        if 300 <= answer.status < 400:
            body = answer.body.decode(errors="replace")
            return Answer(Result.WARNING, f"Probe terminated redirects, Response body: {body}")
        # Never the body: events are read by others than the pod's owner.
        return Answer(Result.FAILURE, f"HTTP probe failed with statuscode: {answer.status}")

    async def _tcp(self, action: TCPSocketAction, target: Target, timeout: int) -> Answer:
        try:
            port = resolve_port(action.port, target.container.ports)
        except BadRequest as error:
            raise ProbeErrored(str(error)) from error
        try:
            await self._network.connect(action.host or target.pod_ip, port, timeout=timeout)
        except ConnectProblem as error:
            return Answer(Result.FAILURE, str(error))
        return Answer(Result.SUCCESS)

    async def _grpc(self, action: GRPCAction, target: Target, timeout: int) -> Answer:
        try:
            port = resolve_port(action.port, ())
        except BadRequest as error:
            raise ProbeErrored(str(error)) from error
        try:
            await self._network.grpc_health(target.pod_ip, port, action.service or "", timeout=timeout)
        except HealthProblem as error:
            return Answer(Result.FAILURE, str(error))
        return Answer(Result.SUCCESS, "service healthy")
