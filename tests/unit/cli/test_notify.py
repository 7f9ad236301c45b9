from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from pykubelet.cli.agent import NotifySocket, SystemdNotifier
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running


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
