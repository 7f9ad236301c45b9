"""/containerLogs: the query as upstream understands it, and the log of a container, past or running.

What cannot be decoded is refused with 400, what is not allowed with 422. Does not cover: how a log is read
(runtime/logs.py), logs of the machine (node_logs.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from pathlib import Path

from msgspec import Struct

from pykubelet.api.times import parse_nano_time
from pykubelet.api.types import ContainerStatus as ReportedContainer
from pykubelet.api.types import Pod, PodStatus
from pykubelet.clients.cri.port import CriContainers
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import CriError
from pykubelet.model.pod import find_container, name_of, uid_of
from pykubelet.model.runtime_status import ContainerState
from pykubelet.pods.table import PodTable
from pykubelet.runtime.logs import open_log
from pykubelet.runtime.logs_read import GATHER, FolderWaker, ReadOptions, read_logs, waking
from pykubelet.server.requests import Refused, Reply, Request, Stream

STREAMS = {"All": None, "Stdout": "stdout", "Stderr": "stderr"}
MAX_INT64 = (1 << 63) - 1
BILLION = 1_000_000_000


class LogOptions(Struct, frozen=True, kw_only=True):
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since_ns: int | None = None
    """Unix nanoseconds."""
    tail_lines: int | None = None
    limit_bytes: int | None = None
    stream: str | None = None
    """stdout or stderr; None is both."""


def log_options(request: Request, *, now_ns: int, split_streams: bool) -> LogOptions:
    """Raises Refused: 400 for what cannot be read, 422 for what makes no sense."""
    since_seconds = _number(request, "sinceSeconds")
    since_time = request.get("sinceTime")
    tail = _number(request, "tailLines")
    if (legacy := request.get("tail")) and tail is None and legacy != "all":
        tail = _int64(legacy, "tail")
    limit = _number(request, "limitBytes")
    stream = request.get("stream") or "All"
    problems = []
    if stream not in STREAMS:
        problems.append(f'stream: Unsupported value: "{stream[:40]}": supported values: "All", "Stdout", "Stderr"')
    elif stream != "All" and not split_streams:
        problems.append("stream: Forbidden: may not be specified")
    elif stream != "All" and tail is not None:
        problems.append("tailLines: Forbidden: `tailLines` and specific `stream` are mutually exclusive for now")
    if tail is not None and tail < 0:
        problems.append(f"tailLines: Invalid value: {tail}: must be greater than or equal to 0")
    if limit is not None and limit < 1:
        problems.append(f"limitBytes: Invalid value: {limit}: must be greater than 0")
    if since_seconds is not None and since_time:
        problems.append("sinceSeconds: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified")
    elif since_seconds is not None and since_seconds < 1:
        problems.append(f"sinceSeconds: Invalid value: {since_seconds}: must be greater than 0")
    if problems:
        raise Refused(422, _invalid(problems))
    return LogOptions(
        follow=_flag(request, "follow"),
        previous=_flag(request, "previous"),
        timestamps=_flag(request, "timestamps"),
        since_ns=now_ns - since_seconds * BILLION if since_seconds is not None else _time(since_time),
        tail_lines=tail,
        limit_bytes=limit,
        stream=STREAMS[stream],
    )


def _invalid(problems: list[str]) -> str:
    text = problems[0] if len(problems) == 1 else "[" + ", ".join(problems) + "]"
    return f'PodLogOptions "" is invalid: {text}'


def _flag(request: Request, name: str) -> bool:
    """Upstream's reading: present is true unless the value says otherwise."""
    if not request.has(name):
        return False
    return request.get(name).lower() not in ("false", "0")


def _number(request: Request, name: str) -> int | None:
    text = request.get(name)
    return _int64(text, name) if text else None


def _int64(text: str, name: str) -> int:
    try:
        # int() also takes underscores and blanks, which no other reader of this query does.
        value = int(text) if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() else None
    except ValueError:
        value = None
    if value is None or not -MAX_INT64 - 1 <= value <= MAX_INT64:
        raise Refused(400, f'{{"message": "Unable to decode query.", "field": "{name}"}}')
    return value


def _time(text: str) -> int | None:
    if not text:
        return None
    try:
        return parse_nano_time(text)
    except ValueError:
        raise Refused(400, '{"message": "Unable to decode query.", "field": "sinceTime"}') from None


WAKERS = 32
"""Followers that the kernel wakes, through one of the few inotify instances that root has; others look by the clock."""
PACE = 0.002
"""Seconds between looks for each follower there is: a crowd of them must not fill the loop, however busy its log."""
PULL_PROBLEMS = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}


class ContainerLogs:
    def __init__(self, *, table: PodTable, runtime: CriContainers, clock: Clock, split_streams: bool = False) -> None:
        self._table = table
        self._runtime = runtime
        self._clock = clock
        self._split_streams = split_streams
        self._followers = self._woken = 0

    async def handle(self, request: Request) -> Reply:
        namespace, name, container = request.params["namespace"], request.params["pod"], request.params["container"]
        options = log_options(request, now_ns=self._clock.now_ns(), split_streams=self._split_streams)
        pod = self._table.by_name(namespace, name)
        if pod is None:
            raise Refused(404, f'pod "{name}" does not exist\n')
        if find_container(pod, container) is None:
            raise Refused(404, f'container "{container}" not found in pod "{name}"\n')
        status = self._table.reported_status(uid_of(pod)) or pod.status
        container_id = wanted_container(pod, status, container, previous=options.previous)
        path = await self._log_path(container_id)
        # Opened once before the answer begins: a log that cannot be read is still an error then.
        try:
            open_log(path).close()
        except OSError as error:
            problem = error.strerror or str(error)
            raise Refused(400, f"unable to retrieve container logs for {container_id}: {path}: {problem}") from None
        return Stream(chunks=self._flow(uid_of(pod), container_id, path, options))

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
            # Spares asking the runtime at each line of a follower.
            cached = next((c for c in self._table.runtime_status(uid).containers if c.id == container_id), None)
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
    container = _status_of(status, name)
    if container is None:
        raise Refused(400, f'container "{name}" in pod "{name_of(pod)}" is not available')
    state, last = container.state, container.last_state
    ended = last.terminated if last is not None else None
    last_id = bare_id(ended.container_id) if ended is not None else ""
    if previous:
        if not last_id:
            raise Refused(400, f'previous terminated container "{name}" in pod "{name_of(pod)}" not found')
        return last_id
    if state is not None and state.running is not None and container.container_id:
        return bare_id(container.container_id)
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
    text = PULL_PROBLEMS.get(reason, reason)
    raise Refused(400, f'container "{name}" in pod "{name_of(pod)}" is waiting to start: {text}')


def _status_of(status: PodStatus, name: str) -> ReportedContainer | None:
    groups = (status.init_container_statuses, status.container_statuses, status.ephemeral_container_statuses)
    return next((each for group in groups for each in group if each.name == name), None)


def bare_id(text: str | None) -> str:
    """`containerd://abc` without its runtime."""
    return (text or "").rpartition("://")[2]
