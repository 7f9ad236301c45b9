"""What an agent does to the machine it runs on before it starts, and keeps doing beside its pods.

The lock file, how many files it may open, the kernel's settings, a few iptables chains. `pykubelet up` does none of it:
it is a guest on the machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from pykubelet.clients.host.kernel import PROC_SYS, check_tunables, set_tunables
from pykubelet.clients.host.process import LockFile, allow_open_files
from pykubelet.kit.clock import Clock
from pykubelet.kit.programs import Finished, run_program
from pykubelet.kit.tasks import Service
from pykubelet.node.iptables_chains import WITHIN, IptablesChains
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.settings import Settings

logger = logging.getLogger(__name__)


def set_up_host(settings: Settings, *, proc_sys: Path = PROC_SYS) -> LockFile | None:
    """Before the event loop starts; the lock is held from here on. Raises SettingsError, LockFailed."""
    lock = None
    if settings.flags.lock_file:
        lock = LockFile(Path(settings.flags.lock_file))
        lock.acquire(watch=settings.flags.exit_on_lock_contention)
    wanted = settings.config.node.max_open_files
    if (allowed := allow_open_files(wanted)) < wanted:
        logger.warning("maxOpenFiles: the host allows fewer", extra={"wanted": wanted, "allowed": allowed})
    if settings.config.cgroups.protect_kernel_defaults:
        if problems := check_tunables(proc_sys):
            raise SettingsError([f"protectKernelDefaults: {problem}" for problem in problems])
    elif problems := set_tunables(proc_sys):
        # As with limits that a host refuses: worse than configured, but pods can run.
        logger.warning("kernel settings are not as a node needs them", extra={"problems": "; ".join(problems)})
    return lock


def host_services(settings: Settings, *, lock: LockFile | None, stop: asyncio.Event, clock: Clock) -> Sequence[Service]:
    services: list[Service] = []
    if settings.config.network.make_iptables_util_chains:
        services.append(IptablesChains(run=_program, clock=clock))
    if lock is not None and settings.flags.exit_on_lock_contention:
        services.append(LeaveOnContention(lock, stop))
    return services


class LeaveOnContention:
    """Ends the agent when another process opens its lock file."""

    name = "lock-contention"

    def __init__(self, lock: LockFile, stop: asyncio.Event) -> None:
        self._lock = lock
        self._stop = stop

    async def run(self) -> None:
        while True:
            await self._lock.contended()
            logger.info("another process wants the lock file: leaving", extra={"path": str(self._lock.path)})
            self._stop.set()
            # Removed, there is nothing left to watch; the agent is on its way out.
            await asyncio.Event().wait()


async def _program(words: Sequence[str]) -> Finished:
    return await run_program(words, seconds=WITHIN)
