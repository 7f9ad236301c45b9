"""/containerLogs/<namespace>/<pod>/<container>: which container is meant, and its log as a flow of bytes.

The pod's status decides which container of that name counts (running, ended, or the one before with `previous`);
the runtime says where its log is. Does not cover: reading and following files (runtime/logs_read.py), the query
(log_options.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from pykubelet.api.types import ContainerStatus as ToldContainer
from pykubelet.api.types import Pod, PodStatus
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import CriError
from pykubelet.model.pod import find_container, name_of, uid_of
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.runtime.logs import open_log
from pykubelet.runtime.logs_read import GATHER, FolderWaker, ReadOptions, read_logs, waking
from pykubelet.server.calls import Call, Flow, Refused, Reply
from pykubelet.server.log_options import LogOptions, log_options

WAKERS = 32
"""Followers that the kernel wakes, through one of the few inotify instances that root has; others look by the clock."""
PACE = 0.002
"""Seconds between looks for each follower there is: a crowd of them must not fill the loop, however busy its log."""
PULL_PROBLEMS = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}


class PodByName(Protocol):
    def by_name(self, namespace: str, name: str) -> Pod | None: ...


class ContainerLookup(Protocol):
    async def container_status(self, container_id: str) -> ContainerStatus: ...


class ContainerLogs:
    def __init__(
        self,
        *,
        pods: PodByName,
        status: Callable[[str], PodStatus | None],
        runtime: ContainerLookup,
        seen: Callable[[str], PodRuntimeStatus],
        clock: Clock,
        split_streams: bool = False,
    ) -> None:
        """`seen` is the cached runtime status of a pod: it spares asking the runtime at each line of a follower."""
        self._pods = pods
        self._status = status
        self._runtime = runtime
        self._seen = seen
        self._clock = clock
        self._split_streams = split_streams
        self._followers = self._woken = 0

    async def handle(self, call: Call) -> Reply:
        namespace, name, container = call.params["namespace"], call.params["pod"], call.params["container"]
        options = log_options(call, now_ns=self._clock.now_ns(), split_streams=self._split_streams)
        pod = self._pods.by_name(namespace, name)
        if pod is None:
            raise Refused(404, f'pod "{name}" does not exist\n')
        if find_container(pod, container) is None:
            raise Refused(404, f'container "{container}" not found in pod "{name}"\n')
        status = self._status(uid_of(pod)) or pod.status
        container_id = wanted_container(pod, status, container, previous=options.previous)
        path = await self._log_path(container_id)
        # Opened once before the answer begins: a log that cannot be read is still an error then.
        try:
            open_log(path).close()
        except OSError as error:
            problem = error.strerror or str(error)
            raise Refused(400, f"unable to retrieve container logs for {container_id}: {path}: {problem}") from None
        return Flow(chunks=self._flow(uid_of(pod), container_id, path, options))

    async def _log_path(self, container_id: str) -> Path:
        try:
            status = await self._runtime.container_status(container_id)
        except CriError as error:
            raise Refused(400, f"unable to retrieve container logs for {container_id}: {error}") from error
        if not status.log_path:
            raise Refused(400, f"unable to retrieve container logs for {container_id}: the runtime keeps none")
        return Path(status.log_path)

    async def _flow(self, uid: str, container_id: str, path: Path, options: LogOptions) -> AsyncGenerator[bytes, None]:
        async def is_running() -> bool:
            cached = next((c for c in self._seen(uid).containers if c.id == container_id), None)
            if cached is not None and cached.state is ContainerState.RUNNING:
                return True
            try:
                status = await self._runtime.container_status(container_id)
            except CriError:
                return False
            return status.state in (ContainerState.RUNNING, ContainerState.CREATED)

        wanted = ReadOptions(
            follow=options.follow,
            tail=options.tail_lines,
            since=options.since_ns,
            timestamps=options.timestamps,
            limit_bytes=options.limit_bytes,
            stream=options.stream,
        )
        with self._following(path.parent) if options.follow else nullcontext(None) as waker:
            pieces = read_logs(path, wanted, clock=self._clock, is_running=is_running, waker=waker, pace=self._pace)
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece

    @contextmanager
    def _following(self, folder: Path) -> Iterator[FolderWaker | None]:
        woken = self._woken < WAKERS
        self._followers += 1
        self._woken += woken
        try:
            with waking(folder) if woken else nullcontext(None) as waker:
                yield waker
        finally:
            self._followers -= 1
            self._woken -= woken

    def _pace(self) -> float:
        return max(GATHER, self._followers * PACE)


def wanted_container(pod: Pod, status: PodStatus, name: str, *, previous: bool) -> str:
    """The id of the container whose log is meant. Raises Refused 400 when there is none."""
    told = _told(status, name)
    if told is None:
        raise Refused(400, f'container "{name}" in pod "{name_of(pod)}" is not available')
    state, last = told.state, told.last_state
    ended = last.terminated if last is not None else None
    last_id = bare_id(ended.container_id) if ended is not None else ""
    if previous:
        if not last_id:
            raise Refused(400, f'previous terminated container "{name}" in pod "{name_of(pod)}" not found')
        return last_id
    if state is not None and state.running is not None and told.container_id:
        return bare_id(told.container_id)
    if state is not None and state.terminated is not None:
        # A container that could not be created has ended without an id; what ran before it still has a log.
        if current := bare_id(state.terminated.container_id):
            return current
        if last_id:
            return last_id
        raise Refused(400, f'container "{name}" in pod "{name_of(pod)}" is terminated')
    if last_id:
        return last_id
    reason = (state.waiting.reason if state is not None and state.waiting is not None else "") or ""
    said = PULL_PROBLEMS.get(reason, reason)
    raise Refused(400, f'container "{name}" in pod "{name_of(pod)}" is waiting to start: {said}')


def _told(status: PodStatus, name: str) -> ToldContainer | None:
    groups = (status.init_container_statuses, status.container_statuses, status.ephemeral_container_statuses)
    return next((told for group in groups for told in group if told.name == name), None)


def bare_id(text: str | None) -> str:
    """`containerd://abc` without its runtime."""
    return (text or "").rpartition("://")[2]
