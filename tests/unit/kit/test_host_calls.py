"""Calls the host may never answer: deadlines, what is stuck, and that nobody else waits for it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.kit import host_calls as module
from pykubelet.kit.host_calls import MOST_PER_KEY, HostCalls, HostCallStuck
from pykubelet.kit.metrics import Registry

NOW = 0.01


class DeadServer:
    """A call to it comes back when the test lets it."""

    def __init__(self) -> None:
        self._answer = threading.Event()
        self.requested = 0

    def ask(self) -> str:
        self.requested += 1
        assert self._answer.wait(60)
        return "answer"

    def answer(self) -> None:
        self._answer.set()


@pytest.fixture
def dead() -> Iterator[DeadServer]:
    server = DeadServer()
    yield server
    server.answer()


async def until_free(calls: HostCalls) -> None:
    async with asyncio.timeout(10):
        while calls.stuck():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.real_loop
async def test_results_and_errors_come_back() -> None:
    calls = HostCalls()
    where = contextvars.ContextVar("where", default="nowhere")
    where.set("here")
    assert await calls.run(where.get, name="ask", within=10) == "here"
    with pytest.raises(FileNotFoundError):
        await calls.run(Path("/nowhere/at/all").read_bytes, name="open", within=10)


@pytest.mark.real_loop
async def test_a_stuck_call_is_remembered_and_refused_at_once(dead: DeadServer) -> None:
    calls, metrics = HostCalls(), Registry()
    calls.measure(metrics)
    with pytest.raises(HostCallStuck, match=r"statvfs of /a has not come back after 1 s"):
        await calls.run(dead.ask, name="statvfs", key="/a", pod="uid-a", within=1.0)
    with pytest.raises(HostCallStuck, match="an earlier statvfs of /a has not come back"):
        await calls.run(dead.ask, name="statvfs", key="/a", pod="uid-a", within=60)
    assert dead.requested == 1
    assert [str(call) for call in calls.stuck("uid-a")] == ["statvfs of /a"] and calls.stuck("uid-b") == []
    assert 'pykubelet_host_calls_stuck{name="statvfs"} 1' in metrics.expose()
    # Another key, and another call of the same key, are not its business: an unmount must be tried.
    assert await calls.run(lambda: 1, name="statvfs", key="/b", within=60) == 1
    assert await calls.run(lambda: 2, name="unmount", key="/a", within=60) == 2
    dead.answer()
    await until_free(calls)
    assert await calls.run(dead.ask, name="statvfs", key="/a", within=60) == "answer"
    text = metrics.expose()
    assert 'pykubelet_host_calls_overdue_total{name="statvfs"} 1' in text and 'stuck{name="statvfs"}' not in text


async def until_asked(dead: DeadServer, times: int) -> None:
    async with asyncio.timeout(10):
        while dead.requested < times:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.real_loop
async def test_pods_do_not_get_all_threads(dead: DeadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_AFTER", 0.0)
    monkeypatch.setattr(module, "MOST_FOR_PODS", 3)
    calls = HostCalls()
    hanging = [calls.begin(dead.ask, name="statvfs", key=f"/{n}", pod="uid", within=600) for n in range(3)]
    await until_asked(dead, 3)
    with pytest.raises(HostCallStuck, match="statvfs of /more was not begun: 3 calls hang on this host"):
        await calls.run(lambda: 1, name="statvfs", key="/more", pod="uid", within=60)
    # The agent's own, also those with a key: a checkpoint, the signals of eviction.
    assert await calls.run(lambda: "own", name="read", within=60) == "own"
    assert await calls.run(lambda: "own", name="writing a checkpoint", key="/own", within=60) == "own"
    dead.answer()
    await asyncio.gather(*hanging)


@pytest.mark.real_loop
async def test_pods_that_come_all_at_once_do_not_get_all_threads_either(
    dead: DeadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any of their calls is known to be slow."""
    monkeypatch.setattr(module, "MOST_FOR_PODS", 3)
    monkeypatch.setattr(module, "MOST_THREADS", 5)
    calls = HostCalls()
    hanging = [calls.begin(dead.ask, name="mount", key=f"/{n}", pod=f"uid-{n}", within=600) for n in range(20)]
    assert await calls.run(lambda: "own", name="read", within=10) == "own"
    assert dead.requested <= 3
    dead.answer()
    assert await asyncio.gather(*hanging) == ["answer"] * 20
    again = [calls.begin(dead.ask, name="mount", key=f"/{n}", pod=f"uid-{n}", within=600) for n in range(3)]
    assert await asyncio.gather(*again) == ["answer"] * 3


@pytest.mark.real_loop
async def test_a_host_without_processes_left_makes_calls_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = HostCalls()

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(HostCallStuck, match="was not begun within"):
            await calls.run(lambda: 1, name="read", within=NOW)
    assert await calls.run(lambda: 2, name="read", within=10) == 2


@pytest.mark.real_loop
async def test_a_cancel_before_the_work_has_begun_keeps_it_from_beginning(
    dead: DeadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_THREADS", 1)
    calls = HostCalls()
    first, begun = calls.begin(dead.ask, name="mount", within=600), threading.Event()
    waiting = asyncio.create_task(calls.run(begun.set, name="mount", key="/a", within=600))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    dead.answer()
    await first
    assert await calls.run(lambda: 3, name="read", within=60) == 3
    assert not begun.is_set()


@pytest.mark.real_loop
async def test_whoever_cancels_the_future_leaves_a_call_that_is_still_known(dead: DeadServer) -> None:
    calls = HostCalls()
    future = calls.begin(dead.ask, name="mount", key="/a", within=NOW)
    await until_asked(dead, 1)
    future.cancel()
    await asyncio.sleep(2 * NOW)
    with pytest.raises(HostCallStuck, match="an earlier mount of /a has not come back"):
        calls.begin(dead.ask, name="mount", key="/a", within=NOW)
    dead.answer()
    await until_free(calls)


@pytest.mark.real_loop
async def test_a_hundred_calls_that_hang_do_not_queue_anybody(dead: DeadServer) -> None:
    calls = HostCalls()
    hanging = [calls.begin(dead.ask, name="mount", key=f"/{n}", within=600) for n in range(100)]
    assert await calls.run(lambda: "quick", name="read", within=60) == "quick"
    assert calls.stuck() == []
    dead.answer()
    assert await asyncio.gather(*hanging) == ["answer"] * 100


@pytest.mark.real_loop
async def test_one_key_takes_only_a_few_threads(dead: DeadServer) -> None:
    calls = HostCalls()
    hanging = [calls.begin(dead.ask, name="mount", key="/a", within=600) for _ in range(MOST_PER_KEY)]
    with pytest.raises(HostCallStuck, match="8 calls of the same kind are under way: mount of /a"):
        calls.begin(dead.ask, name="mount", key="/a", within=600)
    dead.answer()
    await asyncio.gather(*hanging)


@pytest.mark.real_loop
async def test_what_waits_for_a_thread_is_given_up_without_being_begun(
    dead: DeadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_THREADS", 1)
    calls = HostCalls()
    first = calls.begin(dead.ask, name="mount", within=600)
    with pytest.raises(HostCallStuck, match=r"was not begun within 0.01 s"):
        await calls.run(dead.ask, name="read", within=NOW)
    dead.answer()
    await first
    assert await calls.run(lambda: 3, name="read", within=60) == 3
    assert dead.requested == 1


@pytest.mark.real_loop
async def test_a_cancel_leaves_the_work_to_its_end(dead: DeadServer) -> None:
    calls = HostCalls()
    waiting = asyncio.create_task(calls.run(dead.ask, name="write", key="/a", within=0.3))
    await until_asked(dead, 1)
    waiting.cancel()
    async with asyncio.timeout(10):
        while not calls.stuck():  # noqa: ASYNC110 - nobody waits any more; the deadline counts all the same
            await asyncio.sleep(0.01)
    dead.answer()
    await until_free(calls)


@pytest.mark.real_loop
async def test_threads_are_used_again() -> None:
    calls = HostCalls()
    names = {await calls.run(threading.get_ident, name="ask", within=60) for _ in range(50)}
    # A thread may need a moment to be idle again; on a busy machine that is more often than not.
    assert len(names) <= 25
