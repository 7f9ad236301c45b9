"""Many pods change at once and requests are limited: none is lost or sent in vain, what is waited for is first."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pykubelet.api.types import Pod
from pykubelet.clients.kube.transport import rate_limit
from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import TokenBucket
from tests.builders import a_container
from tests.fakes.fake_kube import FakeKube
from tests.scenarios.cluster_node import ClusterHarness

PODS = 50
"""Of each kind."""
QPS, BURST = 5.0, 10
AT_ONCE = 8
JOBS = [f"job-{number}" for number in range(PODS)]
WEBS = [f"web-{number}" for number in range(PODS)]


class LimitedKube(FakeKube):
    """Requests about pods wait for the agent's limit, as those of its client do."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.limit: TokenBucket = rate_limit(-1, 0)
        self.sent: list[tuple[float, str]] = []

    async def patch(self, kind: Any, name: str, *args: Any, **fields: Any) -> Any:
        if kind is Pod:
            await self._turn(name)
        return await super().patch(kind, name, *args, **fields)

    async def delete(self, kind: Any, name: str, *args: Any, **fields: Any) -> None:
        if kind is Pod and fields.get("grace_seconds") == 0:
            await self._turn(name)
        await super().delete(kind, name, *args, **fields)

    async def _turn(self, name: str) -> None:
        await self.limit.take(self._clock)
        self.sent.append((self._clock.monotonic(), name))


@asynccontextmanager
async def a_loaded_node(folder: Path) -> AsyncIterator[LoadHarness]:
    """A hundred pods run on it, and from then on requests are limited."""
    node = LoadHarness(folder)
    try:
        await node.start_all()
        yield node
    finally:
        await node.kill()


class LoadHarness(ClusterHarness):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.limited = LimitedKube(self.clock)
        self.kube = self.limited

    async def start_all(self) -> None:
        await self.start()
        for name in (*JOBS, *WEBS):
            self.cri.add_image(f"{name}:1")
            policy = "Never" if name in JOBS else "Always"
            self.bind(name, restart_policy=policy, containers=[a_container(image=f"{name}:1")])
        await self.until(lambda: all(self.phase(name) == "Running" for name in (*JOBS, *WEBS)))
        await self.clock.sleep(30)
        assert Counter(name for _, name in self.limited.sent) == Counter((*JOBS, *WEBS)), "one request for each start"
        self.limited.limit = rate_limit(QPS, BURST)
        self.limited.sent.clear()

    def change_all(self) -> None:
        """First the web pods crash and are restarted, then the jobs are done."""
        for name in (*WEBS, *JOBS):
            self.cri.exit("app", 1 if name in WEBS else 0, pod=name)

    def is_settled(self) -> bool:
        return all(self.phase(name) == "Succeeded" for name in JOBS) and all(self._restarted(n) for n in WEBS)

    def _restarted(self, name: str) -> bool:
        pod = self.shown(name)
        assert pod is not None
        ready = any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
        return ready and pod.status.container_statuses[0].restart_count == 1


async def test_ends_are_sent_before_restarts_and_the_limit_alone_decides_how_long_it_takes(tmp_path: Path) -> None:
    async with a_loaded_node(tmp_path) as node:
        began = node.clock.monotonic()
        node.change_all()
        await node.until(node.is_settled)
        sent, took = [name for _, name in node.limited.sent], node.clock.monotonic() - began
        assert len(sent) <= 3 * PODS
        assert abs(took - (len(sent) - BURST) / QPS) < 1.0, "the bucket is never full while something waits"
        last = max(index for index, name in enumerate(sent) if name in JOBS)
        assert last < BURST + AT_ONCE + PODS, "only what was under way is before them"
        await node.clock.sleep(120)
        assert len(sent) == len(node.limited.sent), "then there is nothing to send"


async def test_nothing_is_lost_while_the_server_is_away(tmp_path: Path) -> None:
    async with a_loaded_node(tmp_path) as node:
        node.change_all()
        await node.clock.sleep(3)
        node.api.stop()
        await node.clock.sleep(60)
        assert not node.is_settled()
        node.api.start()
        await node.until(node.is_settled, within=60)


async def test_nothing_is_lost_when_the_agent_is_killed_in_the_middle(tmp_path: Path) -> None:
    async with a_loaded_node(tmp_path) as node:
        node.change_all()
        await node.clock.sleep(3)
        node.api.stop()  # so that nothing can be said at the end
        await node.kill()
        assert not node.is_settled()
        node.api.start()
        await node.start()
        await node.until(node.is_settled, within=60)
        assert sorted(node.running()) == sorted(f"{name}/app" for name in WEBS)
