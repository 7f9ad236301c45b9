"""The agent as a process: edges to the outside, run until a stop signal. A second one leaves at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pykubelet.clients.host.process import LockFile
from pykubelet.kit import log
from pykubelet.kit.clock import Clock, SystemClock
from pykubelet.kit.memory import freeze_start_up, limit_arenas
from pykubelet.kit.tasks import Wakeup, running
from pykubelet.model.errors import PykubeletError
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.kinds import quantity_of
from pykubelet.settings.load import LoadedSettings
from pykubelet.settings.schema_node import LoggingSettings
from pykubelet.settings.settings import EnvironmentSettings, Settings

if TYPE_CHECKING:
    from pykubelet.kubelet import Kubelet

logger = logging.getLogger(__name__)


def run_loaded(loaded: LoadedSettings) -> int:
    start_logging(loaded.settings.config.process.logging)
    for warning in loaded.warnings:
        logger.warning(warning)
    return run_settings(loaded.settings)


def start_logging(settings: LoggingSettings) -> None:
    options, is_json = settings.options, settings.format == "json"
    size = options.json.info_buffer_size if is_json else options.text.info_buffer_size
    output = log.Output(
        json_format=is_json,
        split=options.json.split_stream if is_json else options.text.split_stream,
        buffer_bytes=quantity_of(size).value(),
        flush_every=settings.flush_frequency,
    )
    vmodule = [(item.file_pattern, item.verbosity) for item in settings.vmodule]
    log.set_up(output, verbosity=settings.verbosity, vmodule=vmodule)


def run_settings(settings: Settings) -> int:
    import uvloop

    from pykubelet.cli.host_setup import set_up_host

    limit_arenas()
    try:
        lock = set_up_host(settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(settings, lock))
    except SettingsError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return 1
    except PykubeletError as error:
        print(f"pykubelet: {error}", file=sys.stderr)
        return 1
    except ExceptionGroup as group:
        # A service that cannot go on for a reason of its own; anything else is a bug and shows where.
        if group.split(PykubeletError)[1] is not None:
            raise
        for cause in _causes(group):
            print(f"pykubelet: {cause}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _causes(group: ExceptionGroup[Exception]) -> list[Exception]:
    """The single errors in a group of groups."""
    found: list[Exception] = []
    for error in group.exceptions:
        found += _causes(error) if isinstance(error, ExceptionGroup) else [error]
    return found


async def _run(settings: Settings, lock: LockFile | None) -> int:
    from pykubelet.cli.agent_edges import connected_edges
    from pykubelet.cli.host_setup import host_services
    from pykubelet.kubelet import assemble

    clock = SystemClock()
    notifier = systemd_notifier(settings.environment, clock)
    async with running(notifier), connected_edges(settings) as edges:
        node = assemble(settings, edges)
        freeze_start_up()
        stop = stop_requested()
        if settings.config.sources.run_once:
            from pykubelet.cli.run_once import run_once

            return await run_once(node)
        async with node.running(), running(*host_services(settings, lock=lock, stop=stop, clock=clock)):
            logger.info("agent is running", extra={"node": settings.node_name(edges.machine.hostname)})
            notifier.ready(partial(stuck, node))
            await stop.wait()
            notifier.stopping()
            logger.info("stop requested; pods keep running")
    return 0


def stop_requested() -> asyncio.Event:
    """Set by SIGTERM or SIGINT; the second one ends the process on the spot."""
    event = asyncio.Event()

    def request_stop() -> None:
        if event.is_set():
            os._exit(1)
        event.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, request_stop)
    return event


START_STEP = 10.0
"""Seconds between two requests for more time; each asks for three of them."""
READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"

Notify = Callable[[str], None]


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
                logger.warning("systemd cannot be notified", extra={"message_text": message, "error": str(error)})
            self._failed = True
        else:
            self._failed = False


class SystemdNotifier:
    name = "systemd-notify"

    def __init__(self, *, notify: Notify, watchdog: float | None, clock: Clock) -> None:
        self._notify = notify
        self._watchdog = watchdog
        self._clock = clock
        self._ready = Wakeup()
        self._is_ready = False
        self._problem: Callable[[], str] = lambda: ""

    def ready(self, problem: Callable[[], str] = lambda: "") -> None:
        """The agent runs. While there is a `problem`, the watchdog is not fed."""
        self._problem = problem
        self._is_ready = True
        self._ready.set()

    def stopping(self) -> None:
        self._notify(STOPPING)

    async def run(self) -> None:
        while not self._is_ready:
            self._notify(f"EXTEND_TIMEOUT_USEC={round(3 * START_STEP * 1e6)}")
            await self._ready.wait(at_most=START_STEP)
        self._notify(READY)
        while True:
            if self._watchdog is None:
                await self._clock.sleep(3600.0)
                continue
            if problem := self._problem():
                logger.error("systemd's watchdog is not fed, the agent is stuck", extra={"problem": problem})
            else:
                self._notify(ALIVE)
            await self._clock.sleep(self._watchdog / 2)


def stuck(node: Kubelet) -> str:
    """Why a new agent could do better than this one; empty when it could not.

    A runtime that is away is no reason: a new agent would not bring it back. One that answers, while nothing was heard
    about pods for minutes, is.
    """
    healthy, why = node.pleg.healthy()
    return "" if healthy or not node.pleg.has_answered or not node.runtime_state.is_up() else why


def systemd_notifier(environment: EnvironmentSettings, clock: Clock) -> SystemdNotifier:
    return SystemdNotifier(
        notify=NotifySocket(environment.notify_socket), watchdog=environment.watchdog_timeout, clock=clock
    )
