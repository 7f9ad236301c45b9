"""Telling systemd how the agent is (`Type=notify`, `WatchdogSec=`): starting, ready, alive, stopping.

While it starts it asks for more time, because a runtime that comes up late is no failure. The watchdog is fed from the
event loop: a loop that hangs is restarted, and what runs is adopted. A runtime that is away does not stop it, since a
new agent would not bring it back.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from pykubelet.kit.clock import Clock
from pykubelet.kit.mailbox import Signal
from pykubelet.settings.settings import EnvironmentSettings

logger = logging.getLogger(__name__)

START_STEP = 10.0
"""Seconds between two requests for more time; each asks for three of them."""
READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"

Tell = Callable[[str], None]


class NotifySocket:
    """The datagram socket that NOTIFY_SOCKET names; without one nothing is sent."""

    def __init__(self, address: str) -> None:
        # A leading @ is the abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._failed = False

    def __call__(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as sender:
                sender.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._failed:
                logger.warning("systemd cannot be told", extra={"message_text": message, "error": str(error)})
            self._failed = True
        else:
            self._failed = False


class SystemdNotifier:
    name = "systemd-notify"

    def __init__(self, *, tell: Tell, watchdog: float | None, clock: Clock) -> None:
        self._tell = tell
        self._watchdog = watchdog
        self._clock = clock
        self._ready = Signal()
        self._is_ready = False

    def ready(self) -> None:
        """The agent runs."""
        self._is_ready = True
        self._ready.set()

    def stopping(self) -> None:
        self._tell(STOPPING)

    async def run(self) -> None:
        while not self._is_ready:
            self._tell(f"EXTEND_TIMEOUT_USEC={round(3 * START_STEP * 1e6)}")
            await self._ready.wait(at_most=START_STEP)
        self._tell(READY)
        while True:
            if self._watchdog is None:
                await self._clock.sleep(3600.0)
                continue
            self._tell(ALIVE)
            await self._clock.sleep(self._watchdog / 2)


def systemd_notifier(environment: EnvironmentSettings, clock: Clock) -> SystemdNotifier:
    return SystemdNotifier(
        tell=NotifySocket(environment.notify_socket), watchdog=environment.watchdog_timeout, clock=clock
    )
