"""What one relist audit costs the agent: the agent's own code against the running pods, in this process.

Measured here because an agent's processor time from outside cannot be told apart by what it was used for.
"""

from __future__ import annotations

import asyncio
import time

from tests.builders import a_context

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.kit.clock import SystemClock
from pykubelet.pleg.pleg import Pleg, PlegSettings
from pykubelet.pods.table import PodTable

ROUNDS = 10


async def audit_cpu(cri: GrpcCriClient) -> float:
    """Seconds of processor time for one relist in which nothing changed, on average."""
    clock = SystemClock()
    settings = PlegSettings(relist_period=3600.0)
    pleg = Pleg(a_context(clock=clock), cri, PodTable(), settings=settings)
    task = asyncio.create_task(pleg.run())
    try:
        await asyncio.sleep(3.0)  # the first relist has every pod inspected
        before = time.process_time()
        for _ in range(ROUNDS):
            await pleg.relist()
        return (time.process_time() - before) / ROUNDS
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
