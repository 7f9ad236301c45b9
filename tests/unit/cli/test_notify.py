from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from pykubelet.cli.agent import NotifySocket, SystemdNotifier, stuck
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from tests.harness import NodeHarness


async def told_by(watchdog: float | None, *, ready_after: float, until: float) -> list[tuple[float, str]]:
    clock, told = LoopClock(), []
    notifier = SystemdNotifier(
        notify=lambda text: told.append((round(clock.monotonic() - begun, 1), text)), watchdog=watchdog, clock=clock
    )
    begun = clock.monotonic()
    async with running(notifier):
        await asyncio.sleep(ready_after)
        notifier.ready()
        await asyncio.sleep(until - ready_after)
        notifier.stopping()
    return told


async def test_ready_is_said_once_and_the_watchdog_fed_twice_a_period() -> None:
    assert await told_by(10, ready_after=1, until=13) == [
        (0.0, "EXTEND_TIMEOUT_USEC=30000000"),
        (1.0, "READY=1"),
        (1.0, "WATCHDOG=1"),
        (6.0, "WATCHDOG=1"),
        (11.0, "WATCHDOG=1"),
        (13.0, "STOPPING=1"),
    ]


async def test_a_slow_start_asks_for_more_time() -> None:
    told = await told_by(None, ready_after=25, until=26)
    assert [text for _, text in told] == ["EXTEND_TIMEOUT_USEC=30000000"] * 3 + ["READY=1", "STOPPING=1"]


async def test_the_watchdog_is_not_fed_while_the_agent_is_stuck() -> None:
    clock, told, problem = LoopClock(), list[str](), ""
    notifier = SystemdNotifier(notify=told.append, watchdog=10, clock=clock)
    async with running(notifier):
        notifier.ready(lambda: problem)
        await asyncio.sleep(11)
        assert told.count("WATCHDOG=1") == 3
        problem = "pleg was last seen active 4m ago"
        await asyncio.sleep(60)
        assert told.count("WATCHDOG=1") == 3
        problem = ""
        await asyncio.sleep(6)
        assert told.count("WATCHDOG=1") in (4, 5)


async def test_what_counts_as_stuck(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path)
    await node.start()
    await node.clock.sleep(30)
    assert stuck(node.node) == ""
    node.cri.hang("list_containers")
    node.cri.hang("list_pod_sandboxes")
    await node.clock.sleep(300)
    assert stuck(node.node).startswith("pleg was last seen active")
    node.cri.hang("status")  # now the runtime is away as a whole
    await node.clock.sleep(300)
    assert stuck(node.node) == ""
    await node.kill()


def test_messages_reach_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    for address in (str(path), f"@pykubelet-test-{tmp_path.name}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind("\0" + address[1:] if address.startswith("@") else address)
            NotifySocket(address)("READY=1")
            assert server.recv(100) == b"READY=1"


def test_a_service_manager_that_is_gone_stops_nobody(tmp_path: Path, caplog: object) -> None:
    gone = NotifySocket(str(tmp_path / "missing"))
    gone("READY=1")
    gone("WATCHDOG=1")
    assert len(caplog.records) == 1  # type: ignore[attr-defined]
    NotifySocket("")("READY=1")
