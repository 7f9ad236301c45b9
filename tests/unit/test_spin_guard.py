"""Whoever runs again and again without time passing fails its test, and is named."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import Pod
from pykubelet.kit.clock import LoopClock
from tests.builders import a_pod
from tests.clock_loop import AutojumpLoop
from tests.fakes.fake_cri import FakeCri
from tests.fakes.fake_kube import FakeKube
from tests.harness import a_node
from tests.spin_guard import MOST_REPETITIONS, HotLoop, note


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        runner.run(work)


def test_a_task_that_spins_is_named() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def body() -> None:
        spinning = asyncio.create_task(spin(), name="status-sender")
        await asyncio.sleep(60)
        spinning.cancel()

    with pytest.raises(HotLoop, match="task 'status-sender'"):
        run(body())


def test_a_task_that_hardly_lets_time_pass_spins_too() -> None:
    async def body() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1e-6)

    with pytest.raises(HotLoop):
        run(body())


def test_an_error_handler_does_not_hide_it() -> None:
    async def body() -> None:
        while True:
            try:
                note("a probe")
                await asyncio.sleep(0.001)
            except Exception:
                await asyncio.sleep(0)

    with pytest.raises(HotLoop, match=f"a probe happened {MOST_REPETITIONS + 1} times"):
        run(body())


async def test_what_happens_often_over_a_long_time_is_no_hot_loop() -> None:
    for _ in range(10 * MOST_REPETITIONS):
        note("a probe")
        await asyncio.sleep(1)


async def test_who_is_woken_a_moment_too_early_gets_there() -> None:
    loop = asyncio.get_running_loop()
    due = loop.time() + 1e-10
    while loop.time() < due:  # noqa: ASYNC110
        await asyncio.sleep(due - loop.time())


def test_a_worker_that_asks_to_run_again_at_once_is_named(tmp_path: Path) -> None:
    async def body() -> None:
        async with a_node(tmp_path) as node:
            pod = node.run(a_pod("web"))
            await node.until_running(pod)
            node.node.ctx.recorder.listen(lambda uid, _entry: node.node.sync.workers.sync_now(uid))
            node.node.sync.workers.sync_now(pod.metadata.uid or "")
            await node.clock.sleep(60)

    with pytest.raises(HotLoop, match=r"web-node1_default|of pod"):
        run(body())


def test_a_call_made_again_and_again_is_named() -> None:
    async def runtime() -> None:
        cri = FakeCri(LoopClock())
        while True:
            await cri.version()

    async def server() -> None:
        kube = FakeKube(LoopClock())
        while True:
            await kube.list(Pod)

    with pytest.raises(HotLoop, match="runtime call version"):
        run(runtime())
    with pytest.raises(HotLoop, match="request list Pod"):
        run(server())
