"""/containerLogs: the query, which container is meant, and the bytes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from pykubelet.api.types import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodStatus,
)
from pykubelet.kit.clock import LoopClock
from pykubelet.model.runtime_status import ContainerState as RuntimeState
from pykubelet.model.runtime_status import ContainerStatus as RuntimeContainer
from pykubelet.runtime.logs_read import GATHER
from pykubelet.server.logs import PACE, WAKERS, ContainerLogs, LogOptions, log_options, wanted_container
from pykubelet.server.requests import Refused, Request, Stream
from tests.builders import a_pod
from tests.unit.server.support import FakePods, FakeRuntime

NOW_NS = 1_000_000_000_000


def call(query: str, **params: str) -> Request:
    pairs = [tuple(pair.partition("=")[::2]) for pair in query.split("&") if pair]
    return Request(query=pairs, params={"namespace": "default", "pod": "web", "container": "app", **params})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", LogOptions()),
        ("follow=true&timestamps=1&previous=", LogOptions(follow=True, timestamps=True, previous=True)),
        ("follow=false&timestamps=0", LogOptions()),
        ("tailLines=5&limitBytes=7", LogOptions(tail_lines=5, limit_bytes=7)),
        ("tail=all", LogOptions()),
        ("tail=3", LogOptions(tail_lines=3)),
        ("sinceSeconds=10", LogOptions(since_ns=NOW_NS - 10_000_000_000)),
        ("sinceTime=1970-01-01T00:00:01Z", LogOptions(since_ns=1_000_000_000)),
        ("stream=All", LogOptions()),
        ("stream=Stderr", LogOptions(stream="stderr")),
    ],
)
def test_queries(query: str, wanted: LogOptions) -> None:
    assert log_options(call(query), now_ns=NOW_NS, split_streams=True) == wanted


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("tailLines=x", 400),
        ("tailLines=1_0", 400),
        ("tailLines=99999999999999999999", 400),
        ("sinceTime=yesterday", 400),
        ("tailLines=-1", 422),
        ("limitBytes=0", 422),
        ("sinceSeconds=0", 422),
        ("sinceSeconds=1&sinceTime=1970-01-01T00:00:01Z", 422),
        ("stream=Stdout", 422),
        ("stream=Both", 422),
    ],
)
def test_bad_queries(query: str, status: int) -> None:
    with pytest.raises(Refused) as caught:
        log_options(call(query), now_ns=NOW_NS, split_streams=False)
    assert caught.value.status == status


def ended(container_id: str | None) -> ContainerState:
    return ContainerState(terminated=ContainerStateTerminated(container_id=container_id, exit_code=1))


def waiting(reason: str) -> ContainerState:
    return ContainerState(waiting=ContainerStateWaiting(reason=reason))


RUNNING = ContainerState(running=ContainerStateRunning())


@pytest.mark.parametrize(
    ("state", "last", "previous", "wanted"),
    [
        (RUNNING, None, False, "now"),
        (RUNNING, ended("cri://before"), False, "now"),
        (RUNNING, ended("cri://before"), True, "before"),
        (RUNNING, None, True, 'previous terminated container "app" in pod "web" not found'),
        (ended("cri://done"), ended("cri://before"), False, "done"),
        (ended(None), ended("cri://before"), False, "before"),
        (ended(None), None, False, 'container "app" in pod "web" is terminated'),
        (waiting("CrashLoopBackOff"), ended("cri://before"), False, "before"),
        (waiting("ErrImagePull"), None, False, "is waiting to start: image can't be pulled"),
        (waiting("ImagePullBackOff"), None, False, "is waiting to start: trying and failing to pull image"),
        (waiting("ContainerCreating"), None, False, "is waiting to start: ContainerCreating"),
        (None, None, False, "is waiting to start"),
    ],
)
def test_which_container_is_meant(
    state: ContainerState | None, last: ContainerState | None, previous: bool, wanted: str
) -> None:
    told = ContainerStatus(name="app", state=state, last_state=last, container_id="cri://now")
    status = PodStatus(container_statuses=[told])
    if " " in wanted:
        with pytest.raises(Refused, match=wanted):
            wanted_container(a_pod("web"), status, "app", previous=previous)
    else:
        assert wanted_container(a_pod("web"), status, "app", previous=previous) == wanted


def logs_of(path: Path, *, state: RuntimeState = RuntimeState.EXITED) -> ContainerLogs:
    told = ContainerStatus(name="app", state=RUNNING, container_id="cri://c1")
    runtime = FakeRuntime(statuses={"c1": RuntimeContainer(id="c1", name="app", state=state, log_path=str(path))})
    return ContainerLogs(
        table=FakePods(a_pod("web"), statuses={"uid-web": PodStatus(container_statuses=[told])}),
        runtime=runtime,
        clock=LoopClock(),
    )


async def text(logs: ContainerLogs, query: str) -> str:
    reply = await logs.handle(call(query))
    assert isinstance(reply, Stream)
    return b"".join([chunk async for chunk in reply.chunks]).decode()


async def test_the_log_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text(
        "1970-01-01T00:00:01.000000000Z stdout F one\n"
        "1970-01-01T00:00:02.000000000Z stderr P tw\n"
        "1970-01-01T00:00:02.000000001Z stderr F o\n"
    )
    logs = logs_of(path)
    assert await text(logs, "") == "one\ntwo\n"
    assert await text(logs, "limitBytes=5") == "one\nt"
    assert await text(logs, "tailLines=0") == ""
    assert await text(logs, "timestamps=true&tailLines=3") == (
        "1970-01-01T00:00:01.000000000Z one\n1970-01-01T00:00:02.000000000Z two\n"
    )
    assert await text(logs, "follow=true") == "one\ntwo\n", "an ended container has an end"


def inotify_instances() -> int:
    found = 0
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{each}") == "anon_inode:inotify"
    return found


@pytest.mark.real_loop
async def test_a_crowd_of_followers_shares_what_the_kernel_and_the_loop_have(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text("1970-01-01T00:00:01.000000000Z stdout F one\n")
    logs, before = logs_of(path, state=RuntimeState.RUNNING), inotify_instances()
    assert logs._pace() == GATHER
    async with contextlib.AsyncExitStack() as crowd:
        for _ in range(WAKERS + 20):
            reply = await logs.handle(call("follow=true"))
            assert isinstance(reply, Stream)
            await crowd.enter_async_context(contextlib.aclosing(reply.chunks))
            assert await anext(reply.chunks) == b"one\n"
        assert inotify_instances() - before <= WAKERS
        assert logs._pace() == pytest.approx((WAKERS + 20) * PACE)
    assert (inotify_instances(), logs._pace()) == (before, GATHER)


async def test_what_is_not_there(tmp_path: Path) -> None:
    logs = logs_of(tmp_path / "gone.log")
    for request, status, words in (
        (call("", pod="nope"), 404, 'pod "nope" does not exist'),
        (call("", container="nope"), 404, 'container "nope" not found in pod "web"'),
        (call(""), 400, "gone.log: No such file or directory"),
    ):
        with pytest.raises(Refused, match=words) as caught:
            await logs.handle(request)
        assert caught.value.status == status
