"""Whether the runtime answers and its network works, checked every few seconds.

While it is away it is checked again after 100 ms, doubling to 5 s, and tasks that wait are woken the moment it is
back. It counts as down only after answers have failed for a while; a single slow call is not an outage. Without an API
server the runtime gets the address range of pods (podCIDR) before any pod starts.
"""

from __future__ import annotations

import asyncio
import logging

from pykubelet.clients.cri.port import CriRuntime
from pykubelet.context import Context
from pykubelet.kit.backoff import Backoff
from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import RuntimeConditions
from pykubelet.signals import RuntimeChanged

logger = logging.getLogger(__name__)

CHECK_EVERY = 5.0
CHECK_UNTIL_READY = 0.5
"""Seconds between checks while something is not ready: a node that comes up should not wait for a tick."""
DOWN_AFTER = 30.0
ANSWER_WITHIN = 10.0


class RuntimeState:
    name = "runtime-state"

    def __init__(self, ctx: Context, cri: CriRuntime) -> None:
        self._cri = cri
        self._clock = ctx.clock
        self._signals = ctx.signals
        self._up = asyncio.Event()
        self._last_good: float | None = None
        self._conditions = RuntimeConditions()
        self._error = "the runtime has not answered yet"
        alone = ctx.settings.flags.standalone
        self._new_pod_cidr = ctx.settings.config.sources.pod_cidr if alone else ""
        """Still to be sent to the runtime. A node of a cluster has its range from the Node object."""

    async def run(self) -> None:
        backoff = Backoff(initial=0.1, maximum=CHECK_EVERY)
        while True:
            if await self.check():
                backoff.reset()
                await self._clock.sleep(CHECK_EVERY if self._all_ready() else CHECK_UNTIL_READY)
            else:
                await self._clock.sleep(backoff.next())

    async def check(self) -> bool:
        """Request the status once; True when the runtime answered."""
        before = self._conditions.conditions
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                self._conditions = await self._cri.status()
        except (CriError, TimeoutError) as error:
            text = str(error) or f"no answer within {ANSWER_WITHIN:g}s"
            if self._up.is_set():
                logger.error("the container runtime does not answer", extra={"error": text})
            self._up.clear()
            self._error = text
            return False
        self._last_good = self._clock.monotonic()
        if self._new_pod_cidr:
            await self._send_pod_cidr()
        if not self._up.is_set():
            self._up.set()
            logger.info("the container runtime answers")
            self._signals.publish(RuntimeChanged())
        elif self._conditions.conditions != before:
            self._signals.publish(RuntimeChanged())
        return True

    async def _send_pod_cidr(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                await self._cri.update_runtime_config(self._new_pod_cidr)
        except (CriError, TimeoutError) as error:
            level = logging.DEBUG if self._up.is_set() else logging.WARNING
            logger.log(level, "the runtime did not take podCIDR, will retry", extra={"error": str(error)})
        else:
            self._new_pod_cidr = ""

    def _all_ready(self) -> bool:
        return all(condition.status for condition in self._conditions.conditions)

    async def wait_up(self) -> None:
        await self._up.wait()

    def is_up(self) -> bool:
        return self._up.is_set()

    @property
    def conditions(self) -> RuntimeConditions:
        return self._conditions

    def network_problem(self) -> str:
        """Why the pod network cannot be used; empty when it can."""
        network = self._conditions.condition("NetworkReady")
        if network is None:
            return "network state unknown"
        if network.status:
            return ""
        return (
            f"container runtime network not ready: NetworkReady=false reason:{network.reason} message:{network.message}"
        )

    def runtime_problem(self) -> str:
        """Why the node is not ready because of the runtime; empty when it is."""
        if self._last_good is None:
            return "container runtime status check may not have completed yet"
        if self._clock.monotonic() - self._last_good > DOWN_AFTER:
            return f"container runtime is down: {self._error}"
        ready = self._conditions.condition("RuntimeReady")
        if ready is not None and not ready.status:
            return f"container runtime not ready: RuntimeReady=false reason:{ready.reason} message:{ready.message}"
        return ""
