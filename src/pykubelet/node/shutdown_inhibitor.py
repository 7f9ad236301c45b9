"""Delays a shutdown of the machine until its pods have ended, by a delay inhibitor lock of logind.

Registers again when the bus or logind was away, and checks first whether a shutdown was announced meanwhile. A machine
without logind gets one warning (the command `pykubelet shutdown` does the same there). Does not cover ending the pods
(shutdown.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pykubelet.clients.dbus.port import BusDown, BusRefused, DelayLock, Logind, LogindSession, Notice
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.node.shutdown import ShutdownManager, ShutdownPeriod, whole_time

logger = logging.getLogger(__name__)

RECONNECT = 1.0
LONGEST_WAIT = 30.0
RELOAD_PAUSE, RELOAD_TRIES = 0.1, 5


class DelayTooShort(Exception):
    """logind does not let us delay a shutdown for as long as the settings require."""


class ShutdownWatch:
    name = "shutdown-watch"

    def __init__(
        self, *, logind: Logind, manager: ShutdownManager, periods: Sequence[ShutdownPeriod], clock: Clock
    ) -> None:
        self._logind = logind
        self._manager = manager
        self._turns = periods
        self._clock = clock
        self._warned = ""
        self._retries = Backoff(RECONNECT, LONGEST_WAIT)

    async def run(self) -> None:
        while True:
            try:
                async with self._logind.session() as session:
                    await self._serve(session)
            except (BusDown, BusRefused, DelayTooShort, OSError) as error:
                self._complain(str(error))
            await self._clock.sleep(self._retries.next())

    def _complain(self, problem: str) -> None:
        if problem != self._warned:
            self._warned = problem
            logger.warning(
                "shutdowns of this machine cannot be held up, pods may be cut off; will retry", extra={"error": problem}
            )

    async def _serve(self, session: LogindSession) -> None:
        # Announced before we listened, for instance during a restart of the agent: logind grants no lock any more.
        if await session.is_shutting_down():
            await self._manager.shut_down(self._turns)
            lock = None
        else:
            lock = await self._register(session)
        try:
            while True:
                notice = await session.next_notice()
                if notice is Notice.SHUTDOWN:
                    await self._manager.shut_down(self._turns)
                elif notice is Notice.CANCELLED:
                    self._manager.cancel()
                if lock is not None:
                    lock.release()
                if notice is not Notice.SHUTDOWN:
                    lock = await self._register(session)
        finally:
            if lock is not None:
                lock.release()

    async def _register(self, session: LogindSession) -> DelayLock:
        await self._ensure_delay(session)
        lock = await session.delay_shutdown()
        self._warned = ""
        self._retries.reset()
        logger.info("shutdowns of this machine wait for its pods", extra={"seconds": whole_time(self._turns)})
        return lock

    async def _ensure_delay(self, session: LogindSession) -> None:
        wanted, allowed = whole_time(self._turns), await session.max_delay()
        if allowed >= wanted:
            return
        await session.raise_max_delay(wanted)
        pauses = Backoff(RELOAD_PAUSE)
        for _ in range(RELOAD_TRIES):
            allowed = await session.max_delay()
            if allowed >= wanted:
                return
            await self._clock.sleep(pauses.next())
        raise DelayTooShort(
            f"the pods' grace periods at shutdown need {wanted:g}s, but logind holds up shutdowns for {allowed:g}s "
            "at most (InhibitDelayMaxSec) and did not take our setting"
        )
