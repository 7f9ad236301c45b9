"""Pods as this node sees them, and short orders to their containers: /pods, /runningpods, /run, /checkpoint.

/pods is what the sources want, with the newest statuses; /runningpods is what the runtime runs, from any
source. Does not cover: logs (logs.py) and everything that streams (streams.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from pykubelet.api.codec import encode_json
from pykubelet.api.times import format_time
from pykubelet.api.types import Container, ObjectMeta, Pod, PodSpec
from pykubelet.clients.cri.port import CriClient
from pykubelet.kit.clock import Clock, utc
from pykubelet.model.errors import CriError, CriNotFound, Unimplemented
from pykubelet.model.pod import PodUID, find_container, uid_of
from pykubelet.model.runtime_status import ContainerRecord, SandboxRecord
from pykubelet.pods.table import PodTable
from pykubelet.server.requests import JSON, Refused, Reply, Request, Response

RUN_TIMEOUT = 0
"""The runtime's own; /run has no deadline upstream either."""
MAX_RUN_OUTPUT = 16 * 1024 * 1024


def find_pod(table: PodTable, request: Request) -> Pod:
    """The pod that the path names; a UID in it must be the pod's own or that of its mirror."""
    pod = table.by_name(request.params["namespace"], request.params["pod"])
    if pod is None:
        raise Refused(404, "pod does not exist")
    uid = request.params.get("uid")
    if uid is not None and table.translate(PodUID(uid)) != uid_of(pod):
        raise Refused(404, "pod not found")
    return pod


async def running_container(runtime: CriClient, pod: Pod, name: str) -> str:
    """The id of the newest running container of that name; raises Refused."""
    try:
        found = await runtime.list_containers(pod_uid=uid_of(pod), running_only=True)
    except CriError as error:
        raise Refused(500, str(error)) from error
    named = [record for record in found if record.name == name]
    if not named:
        raise Refused(500, f'container not found ("{name}")')
    return max(named, key=lambda record: (record.attempt, record.created_at)).id


class PodRoutes:
    def __init__(
        self,
        *,
        table: PodTable,
        runtime: CriClient,
        checkpoints: Path,
        clock: Clock,
    ) -> None:
        self._table = table
        self._runtime = runtime
        self._checkpoints = checkpoints
        self._clock = clock

    async def list(self, request: Request) -> Reply:
        return Response.json(pod_list(self._with_status(pod) for pod in self._table.pods()))

    def _with_status(self, pod: Pod) -> Pod:
        status = self._table.reported_status(uid_of(pod))
        return pod if status is None else msgspec.structs.replace(pod, status=status)

    async def running(self, request: Request) -> Reply:
        try:
            sandboxes = await self._runtime.list_pod_sandboxes(ready_only=True)
            containers = await self._runtime.list_containers(running_only=True)
        except CriError as error:
            raise Refused(500, f"Internal Error: {error}") from error
        return Response.json(pod_list(running_pods(sandboxes, containers)))

    async def run(self, request: Request) -> Reply:
        pod = find_pod(self._table, request)
        container = await running_container(self._runtime, pod, request.params["container"])
        command = request.get("cmd").split(" ")
        try:
            result = await self._runtime.exec_sync(container, command, RUN_TIMEOUT)
        except CriError as error:
            raise Refused(500, str(error)) from error
        output = result.stdout + result.stderr
        if result.exit_code:
            text = output[-MAX_RUN_OUTPUT:].decode(errors="replace")
            raise Refused(500, f"command '{' '.join(command)}' exited with {result.exit_code}: {text}")
        return Response(body=output, content_type=JSON)

    async def checkpoint(self, request: Request) -> Reply:
        pod = find_pod(self._table, request)
        name = request.params["container"]
        if find_container(pod, name) is None:
            raise Refused(404, f"container {name} does not exist")
        timeout = _timeout(request)
        container = await running_container(self._runtime, pod, name)
        # Times in file names as upstream writes them; pod and container names cannot hold a slash.
        stamp = format_time(utc(self._clock.now()))
        parts = f"{request.params['pod']}_{request.params['namespace']}-{name}-{stamp}"
        location = self._checkpoints / f"checkpoint-{parts}.tar"
        try:
            self._checkpoints.mkdir(mode=0o700, parents=True, exist_ok=True)
            await self._runtime.checkpoint_container(container, str(location), timeout)
        except CriNotFound as error:
            raise Refused(404, str(error)) from error
        except Unimplemented as error:
            why = f"the container runtime does not offer it: {error}"
            problem = f"checkpointing of {request.params['namespace']}/{request.params['pod']}/{name} failed ({why})"
            raise Refused(500, problem) from error
        except (CriError, OSError) as error:
            problem = f"checkpointing of {request.params['namespace']}/{request.params['pod']}/{name} failed ({error})"
            raise Refused(500, problem) from error
        return Response.json(encode_json({"items": [str(location)]}))


def _timeout(request: Request) -> int:
    text = request.get("timeout")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 31):
        raise Refused(404, f'could not parse timeout: "{text[:40]}" is not a number of seconds')
    return int(text)


def pod_list(pods: Iterable[Pod]) -> bytes:
    """A PodList in JSON. `items` is there even when empty, which clients rely on."""
    items = b",".join(encode_json(_versioned(pod)) for pod in pods)
    return b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[' + items + b"]}\n"


def _versioned(pod: Pod) -> Pod:
    """Members of a list carry no kind of their own."""
    return msgspec.structs.replace(pod, kind=None, api_version=None)


def running_pods(sandboxes: Sequence[SandboxRecord], containers: Sequence[ContainerRecord]) -> list[Pod]:
    """Pods as far as the runtime knows them: names, and the containers that run."""
    found: dict[str, Pod] = {}
    for sandbox in sandboxes:
        found.setdefault(sandbox.pod_uid, _bare(sandbox.pod_namespace, sandbox.pod_name, sandbox.pod_uid))
    for record in sorted(containers, key=lambda each: each.created_at):
        pod = found.setdefault(record.pod_uid, _bare(record.pod_namespace, record.pod_name, record.pod_uid))
        pod.spec.containers.append(Container(name=record.name, image=record.image or record.image_ref))
    return list(found.values())


def _bare(namespace: str, name: str, uid: str) -> Pod:
    return Pod(metadata=ObjectMeta(namespace=namespace, name=name, uid=uid), spec=PodSpec(containers=[]))
